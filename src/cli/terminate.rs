//! `unstuck terminate`: ends sessions, by their ids or by what they have in
//! common.

mod bulk;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use tokio::task::JoinHandle;

use super::{
    Failure,
    client::{self, Client, OperatorArgs, ServerArgs},
    output::{Output, proto_line, written},
    sessions::{StatusName, label},
    style::BOLD,
    words::{counted, shown},
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
    #[arg(long = "label", id = "labels", value_name = "KEY=VALUE", value_parser = label)]
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
    output: Output,
}

/// Requests under way at a time. The service takes 64 streams a connection.
const AT_A_TIME: usize = 16;

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    client::run(&args.server, async |client| {
        let client = client.operated_by(&args.operator)?;
        let ids = if args.ids.is_empty() {
            bulk::choose(&client, args).await?
        } else {
            args.ids.clone()
        };
        match &args.reason {
            Some(reason) if !args.dry_run => terminate(&client, &ids, reason, args.output).await,
            _ => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Ends them all. One that fails does not keep the others.
async fn terminate(
    client: &Client,
    ids: &[String],
    reason: &str,
    output: Output,
) -> Result<(), Failure> {
    let mut failed: Vec<Failure> = Vec::new();
    for chunk in ids.chunks(AT_A_TIME) {
        let asked: Vec<_> = chunk.iter().map(|id| ask(client, id, reason)).collect();
        for (id, answer) in chunk.iter().zip(asked) {
            let answer = answer.await.map_err(Failure::failed)?;
            match answer {
                Ok(verdict) => written(report(id, &verdict, reason, output))?,
                Err(failure) => {
                    anstream::eprintln!("unstuck: {}: {failure}", shown(id));
                    failed.push(failure);
                }
            }
        }
    }
    match (failed.pop(), failed.len()) {
        (None, _) => Ok(()),
        // Said already: the code is what is left to tell.
        (Some(failure), 0) if ids.len() == 1 => Err(failure.silent()),
        (Some(_), others) => {
            let count = u64::try_from(others + 1).unwrap_or(u64::MAX);
            let sessions = counted(count, "session");
            Err(Failure::failed(format!(
                "{sessions} could not be terminated"
            )))
        }
    }
}

fn ask(client: &Client, id: &str, reason: &str) -> JoinHandle<Result<Verdict, Failure>> {
    let client = client.clone();
    let request = pb::TerminateSessionRequest {
        session_id: id.to_owned(),
        reason: reason.to_owned(),
    };
    tokio::spawn(async move {
        let answer = client.ask(request, async |mut service, request| {
            service.terminate_session(request).await
        });
        Ok(answer.await?.verdict.unwrap_or_default())
    })
}

fn report(id: &str, verdict: &Verdict, reason: &str, output: Output) -> io::Result<()> {
    if let Output::Json = output {
        return writeln!(io::stdout().lock(), "{}", proto_line(verdict)?);
    }
    let id = shown(id);
    let ours = verdict.detector == OPERATOR && verdict.reason == reason;
    let mut out = anstream::stdout().lock();
    if ours {
        writeln!(out, "terminated {BOLD}{id}{BOLD:#}")?;
        if !verdict.durable {
            anstream::eprintln!(
                "unstuck: {id}: that is on no disk, so a restart of the service forgets it"
            );
        }
        return Ok(());
    }
    // The first verdict stands; whoever comes later should know whose it was.
    let (by, why) = (shown(&verdict.detector), shown(&verdict.reason));
    writeln!(
        out,
        "{BOLD}{id}{BOLD:#} was terminated before, by {by}: {why}"
    )
}
