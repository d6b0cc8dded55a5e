use std::process::ExitCode;

use super::{ConfigArgs, Failure};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Print every setting that is in force, as TOML.
    Print(ConfigArgs),
    /// Say whether the service would start with this configuration.
    Check(ConfigArgs),
}

pub(super) fn run(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Print(args) => {
            let layers = args.layers()?;
            anstream::print!("{}", layers.to_toml());
        }
        Command::Check(args) => {
            args.load()?;
            let layers = args.layers()?;
            match layers.file() {
                Some(file) => anstream::println!("{}: fine", file.display()),
                None => anstream::println!("the defaults: fine"),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
