//! `unstuck config`: prints or checks the configuration.

use std::process::ExitCode;

use super::{CliError, ConfigArgs, InsecureArg};
use crate::{app, config::Config};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Print the effective value of every setting, as TOML.
    Print(ConfigArgs),
    /// Check that the service would start with this configuration.
    ///
    /// Does not bind ports or open the store.
    Check(CheckArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    insecure: InsecureArg,
}

pub(super) fn run(command: &Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Print(args) => {
            let layers = args.load_layers()?;
            anstream::print!("{}", layers.to_toml());
        }
        Command::Check(args) => {
            let layers = args.config.load_layers()?;
            let config = Config::new(&layers).map_err(CliError::usage)?;
            app::check_startup(&config, args.insecure.insecure).map_err(CliError::usage)?;
            match layers.file() {
                Some(file) => anstream::println!("{}: ok", file.display()),
                None => anstream::println!("the defaults: ok"),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
