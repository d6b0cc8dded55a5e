//! `unstuck terminate`: terminates sessions, by id or by label and detector.

mod bulk;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use tokio::task::JoinHandle;

use super::{
    CliError,
    client::Client,
    operator_action::{OperatorCallArgs, print_line},
    output::{OutputFormat, map_write_error, print_proto_json_line},
    sessions::{StatusName, parse_label},
    style::BOLD,
    text_format::{pluralize, sanitize},
    verdict::operator_name,
};
use crate::{
    domain::OPERATOR,
    pb::{self, SessionStatus, TerminateSessionResponse},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The session ids.
    #[arg(
        value_name = "ID",
        required_unless_present_any = ["labels", "detector"],
        conflicts_with_all = ["labels", "detector", "status", "dry_run"]
    )]
    ids: Vec<String>,
    /// The reason, sent to the agent and recorded in the audit log.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Terminate all live sessions with this label; can be repeated.
    #[arg(long = "label", id = "labels", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// Terminate all looping sessions whose last verdict is from this detector; a
    /// verdict that only lists it in `also` does not count.
    #[arg(long, value_name = "NAME")]
    detector: Option<String>,
    /// Of the matching sessions, only those with this status: active or looping.
    #[arg(long, value_enum, value_name = "STATUS")]
    status: Option<StatusName>,
    /// List the matching sessions without terminating them.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    call: OperatorCallArgs,
}

/// Concurrent requests. The service allows 64 streams per connection.
const CONCURRENT_REQUESTS_MAX: usize = 16;

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    args.call.run(async |client| {
        let ids = if args.ids.is_empty() {
            bulk::select_sessions(&client, args).await?
        } else {
            args.ids.clone()
        };
        match &args.reason {
            Some(reason) if !args.dry_run => {
                terminate_all(&client, &ids, reason, args.call.output).await
            }
            _ => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Terminates every session. A failure is printed and does not stop the rest.
async fn terminate_all(
    client: &Client,
    ids: &[String],
    reason: &str,
    output: OutputFormat,
) -> Result<(), CliError> {
    let mut failures: Vec<CliError> = Vec::new();
    for chunk in ids.chunks(CONCURRENT_REQUESTS_MAX) {
        let requests: Vec<_> = chunk
            .iter()
            .map(|id| spawn_termination(client, id, reason))
            .collect();
        for (id, request) in chunk.iter().zip(requests) {
            match request.await.map_err(CliError::failed)? {
                Ok(response) => map_write_error(print_result(id, &response, reason, output))?,
                Err(failure) => {
                    anstream::eprintln!("unstuck: {}: {failure}", sanitize(id));
                    failures.push(failure);
                }
            }
        }
    }
    match (failures.pop(), failures.len()) {
        (None, _) => Ok(()),
        // The message is already printed; only the exit code is left.
        (Some(failure), 0) if ids.len() == 1 => Err(failure.without_message()),
        (Some(_), others) => {
            let count = u64::try_from(others + 1).unwrap_or(u64::MAX);
            let sessions = pluralize(count, "session");
            Err(CliError::failed(format!(
                "{sessions} could not be terminated"
            )))
        }
    }
}

fn spawn_termination(
    client: &Client,
    id: &str,
    reason: &str,
) -> JoinHandle<Result<TerminateSessionResponse, CliError>> {
    let client = client.clone();
    let request = pb::TerminateSessionRequest {
        session_id: id.to_owned(),
        reason: reason.to_owned(),
    };
    tokio::spawn(async move {
        let response = client.call(request, async |mut service, request| {
            service.terminate_session(request).await
        });
        response.await
    })
}

fn print_result(
    id: &str,
    response: &TerminateSessionResponse,
    reason: &str,
    output: OutputFormat,
) -> io::Result<()> {
    let verdict = response.verdict.clone().unwrap_or_default();
    let note = not_live_note(response.previous_status());
    if let OutputFormat::Json = output {
        // Standard output has only the entries of the audit log.
        if let Some(note) = note {
            anstream::eprintln!("unstuck: {}: {note}", sanitize(id));
        }
        return print_proto_json_line(&verdict);
    }
    let is_ours = verdict.detector == OPERATOR && verdict.reason == reason;
    if is_ours {
        let rest = note.map(|note| format!(": {note}")).unwrap_or_default();
        print_line("terminated", id, &rest)?;
        if !verdict.durable {
            anstream::eprintln!(
                "unstuck: {}: the termination is not on disk and does not survive a restart of \
                 the service",
                sanitize(id)
            );
        }
        return Ok(());
    }
    // An earlier termination stays in force, so its author is named.
    let by = match operator_name(&verdict) {
        Some(operator) => sanitize(operator),
        None if verdict.detector == OPERATOR => "an operator".to_owned(),
        None => sanitize(&verdict.detector),
    };
    let why = sanitize(&verdict.reason);
    writeln!(
        anstream::stdout().lock(),
        "{BOLD}{}{BOLD:#} is already terminated, by {by}: {why}",
        sanitize(id)
    )
}

/// The note on a termination that stopped nothing: the id may be misspelled.
fn not_live_note(previous_status: SessionStatus) -> Option<&'static str> {
    match previous_status {
        SessionStatus::Unspecified => Some(
            "no such session was live; a tombstone was written, and events of this id are refused",
        ),
        SessionStatus::Ended => Some(
            "the session had ended; a tombstone was written, and events of this id are refused",
        ),
        SessionStatus::Active
        | SessionStatus::Looping
        | SessionStatus::Quarantined
        | SessionStatus::Terminated => None,
    }
}
