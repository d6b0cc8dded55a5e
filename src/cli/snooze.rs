//! `unstuck snooze`: a session's verdicts are not to be acted on for a while.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use jiff::{SignedDuration, Timestamp};

use super::{
    Failure,
    client::{self, OperatorArgs, ServerArgs},
    clock,
    output::{Output, proto_line, written},
    style::BOLD,
    words::shown,
};
use crate::pb;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The session.
    #[arg(value_name = "ID")]
    id: String,
    /// For how long: 30m, 2h30m, 1day.
    #[arg(long = "for", value_name = "SPAN", value_parser = clock::span)]
    span: SignedDuration,
    /// Why, for the audit log.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    operator: OperatorArgs,
    /// A line for people, or the entry of the audit log as an object.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let request = pb::SnoozeSessionRequest {
        session_id: args.id.clone(),
        duration: Some(clock::span_to_wire(args.span)),
        reason: args.reason.clone(),
    };
    let answer = client::run(&args.server, async |client| {
        let client = client.operated_by(&args.operator)?;
        let snooze = client.ask(request, async |mut service, request| {
            service.snooze_session(request).await
        });
        snooze.await
    })?;
    written(print(args, &answer.verdict.unwrap_or_default()))?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &Args, verdict: &pb::Verdict) -> io::Result<()> {
    match args.output {
        Output::Json => writeln!(io::stdout().lock(), "{}", proto_line(verdict)?),
        Output::Table => {
            let id = shown(&args.id);
            let until = Timestamp::now()
                .checked_add(args.span)
                .unwrap_or(Timestamp::MAX);
            let until = clock::date_time(&clock::to_wire(until));
            let mut out = anstream::stdout().lock();
            writeln!(
                out,
                "snoozed {BOLD}{id}{BOLD:#} until {until} UTC: its verdicts are shadow"
            )
        }
    }
}
