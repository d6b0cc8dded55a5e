//! `unstuck completions`: what a shell needs to complete our commands.

use std::{io, process::ExitCode};

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, CliError, output::map_write_error};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell: bash, zsh, fish, …
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    // Into memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "unstuck", &mut script);
    map_write_error(io::Write::write_all(&mut io::stdout().lock(), &script))?;
    Ok(ExitCode::SUCCESS)
}
