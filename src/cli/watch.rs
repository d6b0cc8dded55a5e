//! `unstuck watch`: live verdicts. It reconnects and resumes after the last one.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use tonic::{Code, Status};

use super::{
    CliError,
    client::{self, Client, ServerArgs},
    output::{OutputFormat, map_write_error},
    text_format::sanitize,
    verdicts::{FilterArgs, VerdictPrinter},
};
use crate::pb;

/// The pauses between two attempts to reconnect, without a limit on attempts.
const RECONNECT_BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(250))
    .with_max_delay(Duration::from_secs(30))
    .with_jitter()
    .without_max_times();

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Start with the verdicts after this one.
    #[arg(long, value_name = "VERDICT_ID", default_value = "")]
    after: String,
    /// Output format: one line, or one JSON object, per verdict.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    args.filter.check_detector_name();
    client::connect_and_run(&args.server, async |client| {
        watch_verdicts(&client, args).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Why a stream ended.
enum WatchStreamError {
    /// A new attempt may succeed.
    Transient(Status),
    Fatal(CliError),
}

/// Streams verdicts, and resumes after the last one whenever the connection ends.
async fn watch_verdicts(client: &Client, args: &Args) -> Result<(), CliError> {
    let mut printer = VerdictPrinter::new(args.output);
    let mut after = args.after.clone();
    let mut backoff = RECONNECT_BACKOFF.build();
    let mut was_connected = false;
    loop {
        // Stream until the connection ends. The first attempt must succeed.
        let after_before = after.clone();
        let attempt = stream_verdicts(client, args, &mut after, &mut printer, || {
            if std::mem::replace(&mut was_connected, true) {
                print_status("reconnected");
            } else {
                print_status(&format!("watching {}", client.display_server()));
            }
        });
        let status = match attempt.await {
            WatchStreamError::Fatal(failure) => return Err(failure),
            WatchStreamError::Transient(status) if !was_connected => {
                return Err(client.explain_status(&status).await);
            }
            WatchStreamError::Transient(status) => status,
        };
        // Wait. The pause is short again after a stream that delivered something.
        if after_before != after {
            backoff = RECONNECT_BACKOFF.build();
        }
        let delay = backoff.next().unwrap_or_default();
        let why = match status.message() {
            "" => "the service closed the connection",
            message => message,
        };
        let from = if after.is_empty() {
            "with new verdicts"
        } else {
            "after the last verdict seen"
        };
        print_status(&format!(
            "connection lost ({}); resuming {from}, next attempt in {:.1} s",
            sanitize(why),
            delay.as_secs_f32()
        ));
        tokio::time::sleep(delay).await;
    }
}

/// Prints the verdicts of one connection and advances `after`.
async fn stream_verdicts(
    client: &Client,
    args: &Args,
    after: &mut String,
    printer: &mut VerdictPrinter,
    on_connected: impl FnOnce(),
) -> WatchStreamError {
    let request = args.filter.to_watch_request(after.clone());
    let mut verdicts = match client.watch_verdicts(request).await {
        Ok(verdicts) => verdicts,
        Err(status) => return classify_status(client, status),
    };
    on_connected();
    loop {
        match verdicts.message().await {
            Ok(Some(pb::WatchVerdictsResponse { verdict })) => {
                if let Some(verdict) = verdict {
                    if let Err(failure) = map_write_error(printer.print(&verdict)) {
                        return WatchStreamError::Fatal(failure);
                    }
                    *after = verdict.verdict_id;
                }
            }
            Ok(None) => return WatchStreamError::Transient(Status::unavailable("")),
            Err(status) => return classify_status(client, status),
        }
    }
}

/// Whether another attempt may succeed.
fn classify_status(client: &Client, status: Status) -> WatchStreamError {
    match status.code() {
        // `ResourceExhausted`: a slow watcher is disconnected and may resume.
        Code::Unavailable
        | Code::ResourceExhausted
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Aborted
        | Code::Internal
        | Code::Unknown => WatchStreamError::Transient(status),
        Code::OutOfRange => WatchStreamError::Fatal(CliError::failed(format!(
            "{}; omit --after to start now, or list the audit log with `unstuck verdicts`",
            sanitize(status.message())
        ))),
        _ => WatchStreamError::Fatal(client.error_for_status(&status)),
    }
}

/// Prints to standard error, because standard output is for verdicts.
fn print_status(message: &str) {
    writeln!(anstream::stderr(), "unstuck: {message}").unwrap_or_default();
    io::stderr().flush().unwrap_or_default();
}
