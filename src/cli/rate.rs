//! `unstuck rate`: says of a verdict whether it was right.

use std::process::ExitCode;

use super::{
    CliError,
    operator_action::{OperatorCallArgs, print_line},
    output::{OutputFormat, map_write_error, print_proto_json_line},
    text_format::sanitize,
};
use crate::pb;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The verdict id, as `unstuck session` and `unstuck verdicts --ids` print it.
    #[arg(value_name = "ID")]
    id: String,
    /// Whether there was a loop, or another reason to act.
    #[arg(value_enum, value_name = "RATING")]
    rating: RatingName,
    /// The reason, for the audit log.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    call: OperatorCallArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RatingName {
    Right,
    FalseAlarm,
}

impl From<RatingName> for pb::Rating {
    fn from(name: RatingName) -> Self {
        match name {
            RatingName::Right => Self::Right,
            RatingName::FalseAlarm => Self::FalseAlarm,
        }
    }
}

/// `right`, or `false alarm`.
pub(super) fn rating_name(rating: pb::Rating) -> &'static str {
    match rating {
        pb::Rating::Unspecified => "not rated",
        pb::Rating::Right => "right",
        pb::Rating::FalseAlarm => "false alarm",
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let rating = pb::Rating::from(args.rating);
    let request = pb::RateVerdictRequest {
        verdict_id: args.id.clone(),
        rating: rating.into(),
        reason: args.reason.clone(),
    };
    let response = args.call.run(async |client| {
        client
            .call(request, async |mut service, request| {
                service.rate_verdict(request).await
            })
            .await
    })?;
    let verdict = response.verdict.unwrap_or_default();
    map_write_error(match args.call.output {
        OutputFormat::Json => print_proto_json_line(&verdict),
        OutputFormat::Table => {
            let (detector, session) = (sanitize(&verdict.detector), sanitize(&verdict.session_id));
            let rest = format!(" as {}: {detector} in {session}", rating_name(rating));
            print_line("rated", &args.id, &rest)
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
