//! `unstuck backup`: copies the database while the service runs.

use std::{path::PathBuf, process::ExitCode};

use super::{
    CliError,
    output::{OutputFormat, to_json_line},
    store_dir::{StoreDirArgs, store_error},
};
use crate::store;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file to write. It must not exist.
    file: PathBuf,
    #[command(flatten)]
    store: StoreDirArgs,
    /// Output format: a sentence, or one JSON object.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let dir = args.store.resolve()?;
    let copy = store::back_up(&dir, &args.file).map_err(store_error)?;
    match args.output {
        OutputFormat::Json => {
            anstream::println!("{}", to_json_line(&copy).map_err(CliError::failed)?);
        }
        OutputFormat::Table => anstream::println!("{}: {copy}", args.file.display()),
    }
    Ok(ExitCode::SUCCESS)
}
