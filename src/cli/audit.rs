use std::{path::PathBuf, process::ExitCode};

use serde::Serialize;

use super::{
    CliError, ConfigArgs,
    output::{OutputFormat, to_json_line},
};
use crate::store::{self, LogVerification, StoreError};

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
    output: OutputFormat,
}

/// The outcome for programs.
#[derive(Serialize)]
struct VerifyReport {
    sound: bool,
    #[serde(flatten)]
    verified: Option<LogVerification>,
    /// What is wrong, and where.
    fault: Option<String>,
}

impl Args {
    fn store_dir(&self) -> Result<PathBuf, CliError> {
        if let Some(dir) = &self.dir {
            return Ok(dir.clone());
        }
        let layers = self.config.load_layers()?;
        let settings: store::Settings = layers.section("store").map_err(CliError::usage)?;
        if settings.dir.as_os_str().is_empty() {
            return Err(CliError::usage(
                "store.dir is empty: state is kept in memory only",
            ));
        }
        Ok(settings.dir)
    }
}

/// Exit 0: it is whole; 1: it is not; 2: there is none to look at.
pub(super) fn run(command: &Command) -> Result<ExitCode, CliError> {
    let Command::Verify(args) = command;
    let report = match store::verify(&args.store_dir()?) {
        Ok(verified) => VerifyReport {
            sound: verified.is_intact(),
            fault: (!verified.is_intact()).then(|| verified.to_string()),
            verified: Some(verified),
        },
        Err(fault @ (StoreError::Damaged { .. } | StoreError::Missing { .. })) => VerifyReport {
            sound: false,
            verified: None,
            fault: Some(fault.to_string()),
        },
        Err(
            fault @ (StoreError::Io { .. } | StoreError::InUse { .. } | StoreError::Empty { .. }),
        ) => {
            return Err(CliError::usage(fault));
        }
    };
    match (args.output, &report) {
        (OutputFormat::Json, report) => {
            anstream::println!("{}", to_json_line(report).map_err(CliError::failed)?);
        }
        (
            OutputFormat::Table,
            VerifyReport {
                fault: Some(fault), ..
            },
        ) => {
            return Err(CliError::failed(fault));
        }
        (OutputFormat::Table, VerifyReport { verified, .. }) => {
            verified
                .iter()
                .for_each(|verified| anstream::println!("{verified}"));
        }
    }
    Ok(u8::from(!report.sound).into())
}
