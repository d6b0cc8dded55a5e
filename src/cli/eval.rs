//! `unstuck eval`: labelled traces through the server's own engine, and how well
//! the verdicts agree with the labels.

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
    output::{OutputFormat, to_json_line},
    trace::{self, TraceRunError, TraceRunner, player::TracePlayer},
};
use alarms::Alarms;
use labels::GroundTruth;
use metrics::EvalMetrics;

/// What the figures mean; docs/tuning.md has the same at more length.
const DEFINITIONS: &str = "\
Labels, a line each; `first_loop_event` counts the session's events from 0, and
fields that are not known are left alone:
  {\"session_id\": \"s\", \"loop\": true, \"first_loop_event\": 7, \"kind\": \"…\", \"why\": \"…\"}
  {\"session_id\": \"t\", \"loop\": false}

Definitions:
  found      the session gets a verdict that is not shadow
  TP, FP     labelled a loop and found; labelled no loop and found
  FN, TN     labelled a loop and not found; labelled no loop and not found
  precision  TP / (TP + FP): how many of the alarms are right
  recall     TP / (TP + FN): how many of the loops are found
  F1         2 TP / (2 TP + FP + FN): both in one figure
  delay      events from `first_loop_event` to the first verdict; below 0 where
             the verdict came first. Median, and 90th percentile (nearest rank)
  per 1,000  verdicts per 1,000 events of the sessions without a label

Of a detector count the sessions and verdicts of which it is the detector or one
of those in `also`, so a session may count for several; its recall is the share
of all labelled loops that it found. A labelled session that is not in the traces
is reported and not counted.

Exit code: 0 when it ran; 1 below --min-precision or --min-recall, or where that
figure is undefined; 2 for wrong use, such as a bad line among the labels.";

#[derive(Debug, clap::Args)]
#[command(after_long_help = DEFINITIONS)]
pub(super) struct Args {
    /// Traces, as `replay` reads them; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Which sessions loop, one label a line as JSON.
    #[arg(long, value_name = "FILE")]
    labels: PathBuf,
    #[command(flatten)]
    config: ConfigArgs,
    /// The profile that all sessions are watched with.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// A table for people, or one object on one line for programs.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
    /// List all false alarms and missed loops in the table, not the first 20 of
    /// each.
    #[arg(long)]
    list: bool,
    /// Exit with 1 if the precision is below it: 0 to 1.
    #[arg(long, value_name = "P", value_parser = parse_ratio)]
    min_precision: Option<f64>,
    /// Exit with 1 if the recall is below it: 0 to 1.
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
    match evaluate(args, player, &labels) {
        Ok(metrics) => check_thresholds(args, &metrics),
        Err(error) => error.into_result(),
    }
}

fn evaluate(
    args: &Args,
    player: TracePlayer,
    labels: &GroundTruth,
) -> Result<EvalMetrics, TraceRunError> {
    let mut alarms = Alarms::default();
    let mut runner = TraceRunner::new(player, false);
    runner.run_files(&args.files, |played, _| {
        alarms.record(played.verdict);
        Ok(())
    })?;
    runner.require_valid_line()?;
    let sessions = runner.player.sessions().map(|(view, _)| view);
    let metrics = EvalMetrics::new(sessions, &alarms, labels, runner.bad_lines);
    match args.output {
        OutputFormat::Table => report::print(&metrics, args.list)?,
        OutputFormat::Json => print_json(&metrics)?,
    }
    Ok(metrics)
}

fn print_json(metrics: &EvalMetrics) -> io::Result<()> {
    let line = to_json_line(&EvalLine { eval: metrics })?;
    writeln!(io::stdout().lock(), "{line}")
}

/// What a pipeline asked for. A figure that is undefined meets nothing: a typing
/// error in every id must not look like a pass.
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
            "the {name} is undefined, at least {threshold} is asked for"
        )),
        Some(value) if value < threshold => Some(format!(
            "the {name} is {value:.4}, at least {threshold} is asked for"
        )),
        Some(_) => None,
    }
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("it must be a number from 0 to 1".to_owned()),
    }
}
