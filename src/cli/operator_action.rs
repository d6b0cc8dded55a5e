//! The code that `reset`, `snooze` and `terminate` share: the arguments, the call in an
//! operator's name, and the printed result.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use tonic::{Request, Response, Status, transport::Channel};

use super::{
    CliError,
    client::{self, Client, OperatorArgs, ServerArgs},
    output::{OutputFormat, map_write_error, print_proto_json_line},
    style::BOLD,
    text_format::sanitize,
};
use crate::pb::{Verdict, session_service_client::SessionServiceClient};

/// Arguments of every command that acts on sessions.
#[derive(Debug, clap::Args)]
pub(super) struct OperatorCallArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    operator: OperatorArgs,
    /// Output format: one line per session, or its audit log entry as JSON.
    #[arg(long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

impl OperatorCallArgs {
    /// Connects in the operator's name and runs `command`.
    pub fn run<T>(
        &self,
        command: impl AsyncFnOnce(Client) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        client::connect_and_run(&self.server, async |client| {
            command(client.with_operator(&self.operator)?).await
        })
    }
}

/// Arguments of a command that acts on one session.
#[derive(Debug, clap::Args)]
pub(super) struct SessionActionArgs {
    /// The session id.
    #[arg(value_name = "ID")]
    pub id: String,
    /// The reason, for the audit log.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    #[command(flatten)]
    call: OperatorCallArgs,
}

impl SessionActionArgs {
    pub fn call<Q, A>(
        &self,
        request: Q,
        rpc: impl AsyncFnOnce(SessionServiceClient<Channel>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, CliError> {
        self.call
            .run(async |client| client.call(request, rpc).await)
    }

    /// Prints `<verb> <id><rest>`, or the verdict as JSON.
    pub fn print(
        &self,
        verdict: Option<Verdict>,
        verb: &str,
        rest: &str,
    ) -> Result<ExitCode, CliError> {
        let printed = match self.call.output {
            OutputFormat::Json => print_proto_json_line(&verdict.unwrap_or_default()),
            OutputFormat::Table => print_line(verb, &self.id, rest),
        };
        map_write_error(printed)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// `terminated demo`, with the id in bold.
pub(super) fn print_line(verb: &str, id: &str, rest: &str) -> io::Result<()> {
    let id = sanitize(id);
    writeln!(anstream::stdout().lock(), "{verb} {BOLD}{id}{BOLD:#}{rest}")
}
