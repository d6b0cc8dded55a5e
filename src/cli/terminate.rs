//! `unstuck terminate`: ends sessions, by their ids or by what they have in
//! common.

mod bulk;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use tokio::task::JoinHandle;

use super::{
    CliError,
    client::{self, Client, OperatorArgs, ServerArgs},
    output::{OutputFormat, map_write_error, to_proto_json_line},
    sessions::{StatusName, parse_label},
    style::BOLD,
    text_format::{pluralize, sanitize},
};
use crate::{
    domain::OPERATOR,
    pb::{self, Verdict},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The sessions.
    #[arg(
        value_name = "ID",
        required_unless_present_any = ["labels", "detector"],
        conflicts_with_all = ["labels", "detector", "status", "dry_run"]
    )]
    ids: Vec<String>,
    /// Why, for the agent, the audit log and the next person.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    reason: Option<String>,
    /// All live sessions that have this label; may be given more than once.
    #[arg(long = "label", id = "labels", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// All sessions that loop and whose last verdict is of this detector.
    #[arg(long, value_name = "NAME")]
    detector: Option<String>,
    /// Of those, only the ones with this status: active or looping.
    #[arg(long, value_enum, value_name = "STATUS")]
    status: Option<StatusName>,
    /// Only say how many there are, and which.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    operator: OperatorArgs,
    /// A line a session for people, or its verdict as an object a line.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Requests under way at a time. The service takes 64 streams a connection.
const CONCURRENT_REQUESTS_MAX: usize = 16;

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    client::connect_and_run(&args.server, async |client| {
        let client = client.with_operator(&args.operator)?;
        let ids = if args.ids.is_empty() {
            bulk::select_sessions(&client, args).await?
        } else {
            args.ids.clone()
        };
        match &args.reason {
            Some(reason) if !args.dry_run => {
                terminate_all(&client, &ids, reason, args.output).await
            }
            _ => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Ends them all. One that fails does not keep the others.
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
        for (id, answer) in chunk.iter().zip(requests) {
            let answer = answer.await.map_err(CliError::failed)?;
            match answer {
                Ok(verdict) => map_write_error(print_result(id, &verdict, reason, output))?,
                Err(failure) => {
                    anstream::eprintln!("unstuck: {}: {failure}", sanitize(id));
                    failures.push(failure);
                }
            }
        }
    }
    match (failures.pop(), failures.len()) {
        (None, _) => Ok(()),
        // Said already: the code is what is left to tell.
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
) -> JoinHandle<Result<Verdict, CliError>> {
    let client = client.clone();
    let request = pb::TerminateSessionRequest {
        session_id: id.to_owned(),
        reason: reason.to_owned(),
    };
    tokio::spawn(async move {
        let response = client.call(request, async |mut service, request| {
            service.terminate_session(request).await
        });
        Ok(response.await?.verdict.unwrap_or_default())
    })
}

fn print_result(id: &str, verdict: &Verdict, reason: &str, output: OutputFormat) -> io::Result<()> {
    if let OutputFormat::Json = output {
        return writeln!(io::stdout().lock(), "{}", to_proto_json_line(verdict)?);
    }
    let id = sanitize(id);
    let is_ours = verdict.detector == OPERATOR && verdict.reason == reason;
    let mut out = anstream::stdout().lock();
    if is_ours {
        writeln!(out, "terminated {BOLD}{id}{BOLD:#}")?;
        if !verdict.durable {
            anstream::eprintln!(
                "unstuck: {id}: that is on no disk, so a restart of the service forgets it"
            );
        }
        return Ok(());
    }
    // The first verdict stands; whoever comes later should know whose it was.
    let (by, why) = (sanitize(&verdict.detector), sanitize(&verdict.reason));
    writeln!(
        out,
        "{BOLD}{id}{BOLD:#} was terminated before, by {by}: {why}"
    )
}
