//! `unstuck man`: the man pages.

use std::{fs, io, path::PathBuf, process::ExitCode};

use clap::CommandFactory;
use clap_mangen::Man;

use super::{Cli, CliError, output::map_write_error};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Write one page per command into this directory, instead of the main page
    /// to standard output.
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    match &args.directory {
        None => map_write_error(Man::new(Cli::command()).render(&mut io::stdout().lock()))?,
        Some(directory) => {
            let write = fs::create_dir_all(directory)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
            write.map_err(|error| {
                CliError::failed(format!("cannot write to {}: {error}", directory.display()))
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
