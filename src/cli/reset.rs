//! `unstuck reset`: a session may begin anew.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use super::{
    Failure,
    client::{self, OperatorArgs, ServerArgs},
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
    let request = pb::ResetSessionRequest {
        session_id: args.id.clone(),
        reason: args.reason.clone(),
    };
    let answer = client::run(&args.server, async |client| {
        let client = client.operated_by(&args.operator)?;
        let reset = client.ask(request, async |mut service, request| {
            service.reset_session(request).await
        });
        reset.await
    })?;
    written(print(args, &answer.verdict.unwrap_or_default()))?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &Args, verdict: &pb::Verdict) -> io::Result<()> {
    match args.output {
        Output::Json => writeln!(io::stdout().lock(), "{}", proto_line(verdict)?),
        Output::Table => {
            let id = shown(&args.id);
            let mut out = anstream::stdout().lock();
            writeln!(
                out,
                "reset {BOLD}{id}{BOLD:#}: what was learned of it is forgotten, it may go on"
            )
        }
    }
}
