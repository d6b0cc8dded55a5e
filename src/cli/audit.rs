use std::{path::PathBuf, process::ExitCode};

use serde::Serialize;

use super::{
    ConfigArgs, Failure,
    output::{Output, json_line},
};
use crate::store::{self, Fault, Verified};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Check that the audit log is whole: every record follows the one before.
    Verify(Args),
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The directory of the store, instead of the configured one.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
    /// A sentence for people, an object for programs.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// The outcome for programs.
#[derive(Serialize)]
struct Report {
    sound: bool,
    #[serde(flatten)]
    verified: Option<Verified>,
    /// What is wrong, and where.
    fault: Option<String>,
}

impl Args {
    fn dir(&self) -> Result<PathBuf, Failure> {
        if let Some(dir) = &self.dir {
            return Ok(dir.clone());
        }
        let layers = self.config.layers()?;
        let settings: store::Settings = layers.section("store").map_err(Failure::usage)?;
        if settings.dir.as_os_str().is_empty() {
            return Err(Failure::usage(
                "store.dir is empty: state is kept in memory only",
            ));
        }
        Ok(settings.dir)
    }
}

/// Exit 0: it is whole; 1: it is not; 2: there is none to look at.
pub(super) fn run(command: &Command) -> Result<ExitCode, Failure> {
    let Command::Verify(args) = command;
    let report = match store::verify(&args.dir()?) {
        Ok(verified) => Report {
            sound: verified.is_sound(),
            fault: (!verified.is_sound()).then(|| verified.to_string()),
            verified: Some(verified),
        },
        Err(fault @ (Fault::Damaged { .. } | Fault::Missing { .. })) => Report {
            sound: false,
            verified: None,
            fault: Some(fault.to_string()),
        },
        Err(fault @ (Fault::Io { .. } | Fault::InUse { .. } | Fault::Empty { .. })) => {
            return Err(Failure::usage(fault));
        }
    };
    match (args.output, &report) {
        (Output::Json, report) => {
            anstream::println!("{}", json_line(report).map_err(Failure::failed)?);
        }
        (
            Output::Table,
            Report {
                fault: Some(fault), ..
            },
        ) => {
            return Err(Failure::failed(fault));
        }
        (Output::Table, Report { verified, .. }) => {
            verified
                .iter()
                .for_each(|verified| anstream::println!("{verified}"));
        }
    }
    Ok(u8::from(!report.sound).into())
}
