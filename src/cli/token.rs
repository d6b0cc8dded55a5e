use std::process::ExitCode;

use serde::Serialize;

use super::{
    CliError,
    output::{OutputFormat, to_json_line},
};
use crate::{
    auth::{TokenLine, TokenRole, TokenSecret},
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
    role: TokenRole,
    /// Whose sessions it is for.
    #[arg(long, value_name = "TENANT", default_value = "default", value_parser = Tenant::parse)]
    tenant: Tenant,
    /// Sentences for people, an object for programs.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

#[derive(Serialize)]
struct TokenReport<'a> {
    token: &'a str,
    /// For the file of tokens.
    line: String,
}

pub(super) fn run(Command::New(args): &Command) -> Result<ExitCode, CliError> {
    let secret = TokenSecret::new().map_err(CliError::failed)?;
    let entry = TokenLine::new(&args.name, args.role, &args.tenant, &secret);
    let entry = entry.map_err(CliError::usage)?;
    match args.output {
        OutputFormat::Table => {
            anstream::println!("The token, which is shown only now:");
            anstream::println!("{}", secret.reveal());
            anstream::println!("The line for the file that [auth] tokens names:");
            anstream::println!("{entry}");
        }
        OutputFormat::Json => {
            let report = TokenReport {
                token: secret.reveal(),
                line: entry.to_string(),
            };
            anstream::println!("{}", to_json_line(&report).map_err(CliError::failed)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}
