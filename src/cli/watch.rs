//! `unstuck watch`: verdicts as they happen.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use tonic::{Code, Status};

use super::{
    Failure,
    client::{self, Client, ServerArgs},
    output::{Output, written},
    verdicts::{FilterArgs, Lines},
    words::shown,
};
use crate::pb;

/// The pauses between two attempts to connect: from a moment to half a minute,
/// for as long as somebody waits.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
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
    output: Output,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    args.filter.hint();
    client::run(&args.server, async |client| watch(&client, args).await)?;
    Ok(ExitCode::SUCCESS)
}

/// How a watch broke off.
enum Broken {
    /// It may stand again.
    ForNow(Status),
    ForGood(Failure),
}

/// Goes on after the last verdict seen, however often the connection breaks.
async fn watch(client: &Client, args: &Args) -> Result<(), Failure> {
    let mut lines = Lines::new(args.output);
    let mut after = args.after.clone();
    let mut pauses = PAUSES.build();
    let mut stood = false;
    loop {
        let seen = after.clone();
        let broken = follow(
            client,
            args,
            &mut after,
            &mut lines,
            || match std::mem::replace(&mut stood, true) {
                false => tell(&format!("watching {}", client.server())),
                true => tell("the watch stands again"),
            },
        );
        let status = match broken.await {
            Broken::ForGood(failure) => return Err(failure),
            Broken::ForNow(status) if !stood => return Err(client.failure(&status)),
            Broken::ForNow(status) => status,
        };
        // A watch that brought something was sound: the next pause is short.
        if seen != after {
            pauses = PAUSES.build();
        }
        let pause = pauses.next().unwrap_or_default();
        let why = match status.message() {
            "" => "the service has gone",
            message => message,
        };
        let from = if after.is_empty() {
            "with what is given then"
        } else {
            "after the last verdict seen"
        };
        tell(&format!(
            "the watch broke off ({}); it goes on {from}, next attempt in {:.1} s",
            shown(why),
            pause.as_secs_f32()
        ));
        tokio::time::sleep(pause).await;
    }
}

/// One connection's worth of verdicts. `after` moves on with them.
async fn follow(
    client: &Client,
    args: &Args,
    after: &mut String,
    lines: &mut Lines,
    stands: impl FnOnce(),
) -> Broken {
    let request = args.filter.watch(after.clone());
    let mut verdicts = match client.watch(request).await {
        Ok(verdicts) => verdicts,
        Err(status) => return broken(client, status),
    };
    stands();
    loop {
        match verdicts.message().await {
            Ok(Some(pb::WatchVerdictsResponse { verdict })) => {
                if let Some(verdict) = verdict {
                    if let Err(failure) = written(lines.print(&verdict)) {
                        return Broken::ForGood(failure);
                    }
                    *after = verdict.verdict_id;
                }
            }
            Ok(None) => return Broken::ForNow(Status::unavailable("")),
            Err(status) => return broken(client, status),
        }
    }
}

/// Whether another attempt can go better.
fn broken(client: &Client, status: Status) -> Broken {
    match status.code() {
        // A watcher that was too slow is cut off, and may resume.
        Code::Unavailable
        | Code::ResourceExhausted
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Aborted
        | Code::Internal
        | Code::Unknown => Broken::ForNow(status),
        Code::OutOfRange => Broken::ForGood(Failure::failed(format!(
            "{}; without --after the watch begins now, `unstuck verdicts` lists what is kept",
            shown(status.message())
        ))),
        _ => Broken::ForGood(client.failure(&status)),
    }
}

/// Standard output is for verdicts.
fn tell(what: &str) {
    writeln!(anstream::stderr(), "unstuck: {what}").unwrap_or_default();
    io::stderr().flush().unwrap_or_default();
}
