use std::process::ExitCode;

use super::{ConfigArgs, Failure, InsecureArg};
use crate::{app, config::Config};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Print every setting that is in force, as TOML.
    Print(ConfigArgs),
    /// Say whether the service would start with this configuration, its ports and
    /// its store left aside.
    Check(CheckArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    insecure: InsecureArg,
}

pub(super) fn run(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Print(args) => {
            let layers = args.layers()?;
            anstream::print!("{}", layers.to_toml());
        }
        Command::Check(args) => {
            let layers = args.config.layers()?;
            let config = Config::new(&layers).map_err(Failure::usage)?;
            app::check(&config, args.insecure.insecure).map_err(Failure::usage)?;
            match layers.file() {
                Some(file) => anstream::println!("{}: fine", file.display()),
                None => anstream::println!("the defaults: fine"),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
