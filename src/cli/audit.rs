//! `unstuck audit`: checks the audit log on disk, and prints its end.

use std::process::ExitCode;

use serde::Serialize;

use super::{
    CliError,
    output::{OutputFormat, to_json_line},
    store_dir::{StoreDirArgs, store_error},
};
use crate::store::{self, LogVerification, StoreError};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Check that the audit log is complete and unmodified.
    ///
    /// Every record must follow the one before it, the columns must repeat the records,
    /// and the terminations in force must be those that were written. To prove that the
    /// end was not cut off, compare the head with one that was noted elsewhere.
    Verify(Args),
    /// Print the number and the hash of the last record.
    ///
    /// The hash covers this record and all before it. Note it outside of this machine.
    Head(Args),
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreDirArgs,
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

/// Exit code 0: the log is intact; 1: it is damaged; 2: there is no log to check.
pub(super) fn run(command: &Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Verify(args) => verify(args),
        Command::Head(args) => head(args),
    }
}

fn head(args: &Args) -> Result<ExitCode, CliError> {
    let head = store::read_chain_head(&args.store.resolve()?).map_err(store_error)?;
    match args.output {
        OutputFormat::Json => {
            anstream::println!("{}", to_json_line(&head).map_err(CliError::failed)?);
        }
        OutputFormat::Table => anstream::println!("record {} {}", head.record, head.hash),
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(args: &Args) -> Result<ExitCode, CliError> {
    let report = match store::verify(&args.store.resolve()?) {
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
