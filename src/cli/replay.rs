use super::Failure;
use std::process::ExitCode;
#[derive(Debug, clap::Args)]
pub(super) struct Args {}
pub(super) fn run(_args: &Args) -> Result<ExitCode, Failure> {
    Err(Failure::usage("todo"))
}
