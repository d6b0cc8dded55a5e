//! `unstuck eval`: runs labelled traces through the service's engine and measures
//! how well the verdicts agree with the labels.

mod alarms;
mod delay;
mod labels;
mod metrics;
mod report;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use serde::Serialize;

use super::{
    CliError, ConfigArgs,
    output::{OutputFormat, map_write_error, to_json_line},
    trace::{self, TraceRunner, format::TraceFormat, player::TracePlayer},
};
use alarms::Alarms;
use labels::GroundTruth;
use metrics::EvalMetrics;

/// The definitions of the metrics. docs/tuning.md explains them in more detail.
const DEFINITIONS: &str = "\
Labels, one per line. `first_loop_event` counts the session's events from 0.
Unknown fields are ignored:
  {\"session_id\": \"s\", \"loop\": true, \"first_loop_event\": 7, \"kind\": \"…\", \"why\": \"…\"}
  {\"session_id\": \"t\", \"loop\": false}

Definitions:
  found      the session gets a verdict that is not shadow
  TP, FP     labelled a loop and found; labelled no loop and found
  FN, TN     labelled a loop and not found; labelled no loop and not found
  precision  TP / (TP + FP): the share of alarms that are right
  recall     TP / (TP + FN): the share of loops that are found
             In parentheses: the 95 % confidence interval (Wilson)
  F1         2 TP / (2 TP + FP + FN): precision and recall in one number
  delay      events from `first_loop_event` to the first verdict; negative if the
             verdict came first. Median and 90th percentile (nearest rank)
  per 1,000  verdicts per 1,000 events of the sessions without a label

A detector is credited with the sessions and verdicts in which it is `detector`
or listed in `also`, so a session may count for several detectors. Its recall is
the share of all labelled loops that it found. A labelled session that is not in
the traces is reported and not counted.

Exit code: 0 on success; 1 below --min-precision or --min-recall, or if that
metric is undefined; 2 for wrong usage, such as an invalid label line.";

#[derive(Debug, clap::Args)]
#[command(after_long_help = DEFINITIONS)]
pub(super) struct Args {
    /// Trace files, as for `replay`; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The labels: which sessions loop, one per line as JSON.
    #[arg(long, value_name = "FILE")]
    labels: PathBuf,
    /// The format of the files: found by their content, or given.
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = TraceFormat::parser())]
    format: TraceFormat,
    #[command(flatten)]
    config: ConfigArgs,
    /// The profile for all sessions.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Output format: a table, or one JSON object.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
    /// List all false alarms and missed loops, instead of the first 20 of each.
    #[arg(long)]
    list: bool,
    /// Also print a table by source: the part of a session id before its first `/`.
    #[arg(long)]
    split: bool,
    /// Exit with 1 if the precision is below this: 0 to 1.
    #[arg(long, value_name = "P", value_parser = parse_ratio)]
    min_precision: Option<f64>,
    /// Exit with 1 if the recall is below this: 0 to 1.
    #[arg(long, value_name = "R", value_parser = parse_ratio)]
    min_recall: Option<f64>,
}

#[derive(Serialize)]
struct EvalLine<'a> {
    eval: &'a EvalMetrics,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let player = TracePlayer::new(args.config.load_config()?, args.profile.as_deref())?;
    trace::check_files_exist(&args.files)?;
    let labels = labels::read_labels(&args.labels)?;
    check_thresholds(args, &evaluate(args, player, &labels)?)
}

fn evaluate(
    args: &Args,
    player: TracePlayer,
    labels: &GroundTruth,
) -> Result<EvalMetrics, CliError> {
    let mut alarms = Alarms::default();
    let mut runner = TraceRunner::new(player, args.format, false);
    runner.run_files(&args.files, |played, _| {
        alarms.record(played.verdict);
        Ok(())
    })?;
    runner.require_valid_line()?;
    let sessions = runner.player.sessions().map(|(view, _)| view);
    let metrics = EvalMetrics::new(sessions, &alarms, labels, runner.bad_lines);
    map_write_error(match args.output {
        OutputFormat::Table => report::print(&metrics, args.list, args.split),
        OutputFormat::Json => print_json(&metrics),
    })?;
    Ok(metrics)
}

fn print_json(metrics: &EvalMetrics) -> io::Result<()> {
    let line = to_json_line(&EvalLine { eval: metrics })?;
    writeln!(io::stdout().lock(), "{line}")
}

/// Checks `--min-precision` and `--min-recall`. An undefined metric fails, so that
/// a typing error in every id does not pass.
fn check_thresholds(args: &Args, metrics: &EvalMetrics) -> Result<ExitCode, CliError> {
    let score = &metrics.labelled.score;
    let checks = [
        ("precision", score.precision, args.min_precision),
        ("recall", score.recall, args.min_recall),
    ];
    let shortfalls: Vec<String> = checks
        .into_iter()
        .filter_map(|(name, value, threshold)| describe_shortfall(name, value, threshold?))
        .collect();
    if shortfalls.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CliError::failed(shortfalls.join("; ")))
}

fn describe_shortfall(name: &str, value: Option<f64>, threshold: f64) -> Option<String> {
    match value {
        None => Some(format!(
            "the {name} is undefined, the minimum is {threshold}"
        )),
        Some(value) if value < threshold => Some(format!(
            "the {name} is {value:.4}, the minimum is {threshold}"
        )),
        Some(_) => None,
    }
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("must be a number from 0 to 1".to_owned()),
    }
}
