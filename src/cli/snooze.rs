//! `unstuck snooze`: a session's verdicts are not to be acted on for a while.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use jiff::{SignedDuration, Timestamp};

use super::{
    CliError,
    client::{self, OperatorArgs, ServerArgs},
    output::{OutputFormat, map_write_error, to_proto_json_line},
    style::BOLD,
    text_format::sanitize,
    time_format,
};
use crate::pb;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The session.
    #[arg(value_name = "ID")]
    id: String,
    /// For how long: 30m, 2h30m, 1day.
    #[arg(long = "for", value_name = "SPAN", value_parser = time_format::parse_span)]
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
    output: OutputFormat,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let request = pb::SnoozeSessionRequest {
        session_id: args.id.clone(),
        duration: Some(time_format::span_to_wire(args.span)),
        reason: args.reason.clone(),
    };
    let response = client::connect_and_run(&args.server, async |client| {
        let client = client.with_operator(&args.operator)?;
        let snooze = client.call(request, async |mut service, request| {
            service.snooze_session(request).await
        });
        snooze.await
    })?;
    map_write_error(print(args, &response.verdict.unwrap_or_default()))?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &Args, verdict: &pb::Verdict) -> io::Result<()> {
    match args.output {
        OutputFormat::Json => writeln!(io::stdout().lock(), "{}", to_proto_json_line(verdict)?),
        OutputFormat::Table => {
            let id = sanitize(&args.id);
            let until = Timestamp::now()
                .checked_add(args.span)
                .unwrap_or(Timestamp::MAX);
            let until = time_format::format_date_time(&time_format::time_to_wire(until));
            let mut out = anstream::stdout().lock();
            writeln!(
                out,
                "snoozed {BOLD}{id}{BOLD:#} until {until} UTC: its verdicts are shadow"
            )
        }
    }
}
