//! `unstuck reset`: a session may begin anew.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use super::{
    CliError,
    client::{self, OperatorArgs, ServerArgs},
    output::{OutputFormat, map_write_error, to_proto_json_line},
    style::BOLD,
    text_format::sanitize,
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
    output: OutputFormat,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let request = pb::ResetSessionRequest {
        session_id: args.id.clone(),
        reason: args.reason.clone(),
    };
    let response = client::connect_and_run(&args.server, async |client| {
        let client = client.with_operator(&args.operator)?;
        let reset = client.call(request, async |mut service, request| {
            service.reset_session(request).await
        });
        reset.await
    })?;
    map_write_error(print(args, &response.verdict.unwrap_or_default()))?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &Args, verdict: &pb::Verdict) -> io::Result<()> {
    match args.output {
        OutputFormat::Json => writeln!(io::stdout().lock(), "{}", to_proto_json_line(verdict)?),
        OutputFormat::Table => {
            let id = sanitize(&args.id);
            let mut out = anstream::stdout().lock();
            writeln!(
                out,
                "reset {BOLD}{id}{BOLD:#}: what was learned of it is forgotten, it may go on"
            )
        }
    }
}
