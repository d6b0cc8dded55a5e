//! `unstuck audit`: checks the audit log on disk.

use std::{path::PathBuf, process::ExitCode};

use serde::Serialize;

use super::{
    CliError, ConfigArgs,
    output::{OutputFormat, to_json_line},
};
use crate::store::{self, LogVerification, StoreError};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Check that the audit log is complete and unmodified.
    ///
    /// Every record must follow the one before it.
    Verify(Args),
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The store directory, instead of the configured one.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Output format: a sentence, or one JSON object.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// The result as JSON.
#[derive(Serialize)]
struct VerifyReport {
    sound: bool,
    #[serde(flatten)]
    verified: Option<LogVerification>,
    /// The damage and its location.
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

/// Exit code 0: the log is intact; 1: it is damaged; 2: there is no log to check.
pub(super) fn run(command: &Command) -> Result<ExitCode, CliError> {
    let Command::Verify(args) = command;
    let report = match store::verify(&args.store_dir()?) {
        Ok(verified) => VerifyReport {
            sound: true,
            fault: None,
            verified: Some(verified),
        },
        Err(error @ StoreError::Damaged { .. }) => VerifyReport {
            sound: false,
            verified: None,
            fault: Some(error.to_string()),
        },
        Err(error) => return Err(CliError::usage(error)),
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
