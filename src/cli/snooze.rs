//! `unstuck snooze`: marks a session's verdicts as shadow for a while, so that
//! brokers do not act on them.

use std::process::ExitCode;

use jiff::{SignedDuration, Timestamp};

use super::{CliError, operator_action::SessionActionArgs, time_format};
use crate::pb;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    action: SessionActionArgs,
    /// How long: 30m, 2h30m, 1day.
    #[arg(long = "for", value_name = "SPAN", value_parser = time_format::parse_span)]
    span: SignedDuration,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let request = pb::SnoozeSessionRequest {
        session_id: args.action.id.clone(),
        duration: Some(time_format::span_to_wire(args.span)),
        reason: args.action.reason.clone(),
    };
    let response = args.action.call(request, async |mut service, request| {
        service.snooze_session(request).await
    })?;
    let until = Timestamp::now()
        .checked_add(args.span)
        .unwrap_or(Timestamp::MAX);
    let date = time_format::format_date_time(&time_format::time_to_wire(until));
    args.action.print(
        response.verdict,
        "snoozed",
        &format!(" until {date}: its verdicts are shadow"),
    )
}
