//! `unstuck token`: creates API tokens.

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
    /// Create a token and print it, with the line for the service's token file.
    ///
    /// The token is shown once. The line holds only its hash.
    New(Args),
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The owner's name, as recorded in the audit log.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// The role: broker (sends events), viewer (reads), operator (also terminates,
    /// resets and snoozes sessions) or admin (everything).
    #[arg(long, value_name = "ROLE")]
    role: TokenRole,
    /// The tenant whose sessions the token gives access to.
    #[arg(long, value_name = "TENANT", default_value = "default", value_parser = Tenant::parse)]
    tenant: Tenant,
    /// Output format: text, or one JSON object.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

#[derive(Serialize)]
struct TokenReport<'a> {
    token: &'a str,
    /// The line for the token file.
    line: String,
}

pub(super) fn run(Command::New(args): &Command) -> Result<ExitCode, CliError> {
    let secret = TokenSecret::new().map_err(CliError::failed)?;
    let entry =
        TokenLine::new(&args.name, args.role, &args.tenant, &secret).map_err(CliError::usage)?;
    match args.output {
        OutputFormat::Table => {
            anstream::println!("The token (shown only once):");
            anstream::println!("{}", secret.reveal());
            anstream::println!("The line for the token file ([auth] tokens):");
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
