//! `unstuck watch`: verdicts as they happen.

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

/// The pauses between two attempts to connect: from a moment to half a minute,
/// for as long as somebody waits.
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
    /// Begin after this verdict, with what was given since.
    #[arg(long, value_name = "VERDICT_ID", default_value = "")]
    after: String,
    /// A line a verdict for people, or an object a line for programs.
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

/// How a watch broke off.
enum WatchStreamError {
    /// It may stand again.
    Transient(Status),
    Fatal(CliError),
}

/// Goes on after the last verdict seen, however often the connection breaks.
async fn watch_verdicts(client: &Client, args: &Args) -> Result<(), CliError> {
    let mut lines = VerdictPrinter::new(args.output);
    let mut after = args.after.clone();
    let mut backoff = RECONNECT_BACKOFF.build();
    let mut was_connected = false;
    loop {
        let after_before = after.clone();
        let attempt =
            stream_verdicts(
                client,
                args,
                &mut after,
                &mut lines,
                || match std::mem::replace(&mut was_connected, true) {
                    false => print_status(&format!("watching {}", client.display_server())),
                    true => print_status("the watch stands again"),
                },
            );
        let status = match attempt.await {
            WatchStreamError::Fatal(failure) => return Err(failure),
            WatchStreamError::Transient(status) if !was_connected => {
                return Err(client.error_for_status(&status));
            }
            WatchStreamError::Transient(status) => status,
        };
        // A watch that brought something was sound: the next pause is short.
        if after_before != after {
            backoff = RECONNECT_BACKOFF.build();
        }
        let delay = backoff.next().unwrap_or_default();
        let why = match status.message() {
            "" => "the service has gone",
            message => message,
        };
        let from = if after.is_empty() {
            "with what is given then"
        } else {
            "after the last verdict seen"
        };
        print_status(&format!(
            "the watch broke off ({}); it goes on {from}, next attempt in {:.1} s",
            sanitize(why),
            delay.as_secs_f32()
        ));
        tokio::time::sleep(delay).await;
    }
}

/// One connection's worth of verdicts. `after` moves on with them.
async fn stream_verdicts(
    client: &Client,
    args: &Args,
    after: &mut String,
    lines: &mut VerdictPrinter,
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
                    if let Err(failure) = map_write_error(lines.print(&verdict)) {
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

/// Whether another attempt can go better.
fn classify_status(client: &Client, status: Status) -> WatchStreamError {
    match status.code() {
        // A watcher that was too slow is cut off, and may resume.
        Code::Unavailable
        | Code::ResourceExhausted
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Aborted
        | Code::Internal
        | Code::Unknown => WatchStreamError::Transient(status),
        Code::OutOfRange => WatchStreamError::Fatal(CliError::failed(format!(
            "{}; without --after the watch begins now, `unstuck verdicts` lists what is kept",
            sanitize(status.message())
        ))),
        _ => WatchStreamError::Fatal(client.error_for_status(&status)),
    }
}

/// Standard output is for verdicts.
fn print_status(message: &str) {
    writeln!(anstream::stderr(), "unstuck: {message}").unwrap_or_default();
    io::stderr().flush().unwrap_or_default();
}
