//! `unstuck completions`: a shell completion script.

use std::{io, process::ExitCode};

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, CliError, output::map_write_error};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    // Generated in memory first, because the generator panics on a write error.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "unstuck", &mut script);
    map_write_error(io::Write::write_all(&mut io::stdout().lock(), &script))?;
    Ok(ExitCode::SUCCESS)
}
