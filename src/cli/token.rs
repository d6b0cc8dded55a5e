use std::process::ExitCode;

use serde::Serialize;

use super::{
    Failure,
    output::{Output, json_line},
};
use crate::{
    auth::{Entry, Role, Secret},
    domain::Tenant,
};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Make a token, and print it once with the line for the service's file of
    /// tokens. Only the line is kept, and the token cannot be had from it.
    New(Args),
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Whose it is; what they do stands under this name in the audit log.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// What it is for: broker (sends events), viewer (looks on), operator (also
    /// ends, resets and snoozes sessions) or admin (all).
    #[arg(long, value_name = "ROLE")]
    role: Role,
    /// Whose sessions it is for.
    #[arg(long, value_name = "TENANT", default_value = "default", value_parser = Tenant::parse)]
    tenant: Tenant,
    /// Sentences for people, an object for programs.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Serialize)]
struct Report<'a> {
    token: &'a str,
    /// For the file of tokens.
    line: String,
}

pub(super) fn run(Command::New(args): &Command) -> Result<ExitCode, Failure> {
    let secret = Secret::new().map_err(Failure::failed)?;
    let entry = Entry::new(&args.name, args.role, &args.tenant, &secret);
    let entry = entry.map_err(Failure::usage)?;
    match args.output {
        Output::Table => {
            anstream::println!("The token, which is shown only now:");
            anstream::println!("{}", secret.reveal());
            anstream::println!("The line for the file that [auth] tokens names:");
            anstream::println!("{entry}");
        }
        Output::Json => {
            let report = Report {
                token: secret.reveal(),
                line: entry.to_string(),
            };
            anstream::println!("{}", json_line(&report).map_err(Failure::failed)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}
