//! `unstuck eval`: labelled traces through the server's own engine, and how well
//! the verdicts agree with the labels.

mod alarms;
mod delay;
mod figures;
mod labels;
mod report;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use serde::Serialize;

use super::{
    ConfigArgs, Failure,
    output::{Output, json_line},
    trace::{self, Halt, Reading, player::Player},
};
use alarms::Alarms;
use figures::Figures;
use labels::Labels;

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
    output: Output,
    /// List all false alarms and missed loops in the table, not the first 20 of
    /// each.
    #[arg(long)]
    list: bool,
    /// Exit with 1 if the precision is below it: 0 to 1.
    #[arg(long, value_name = "P", value_parser = share)]
    min_precision: Option<f64>,
    /// Exit with 1 if the recall is below it: 0 to 1.
    #[arg(long, value_name = "R", value_parser = share)]
    min_recall: Option<f64>,
}

#[derive(Serialize)]
struct Line<'a> {
    eval: &'a Figures,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let player = Player::new(args.config.load()?, args.profile.as_deref())?;
    trace::check_files(&args.files)?;
    let labels = labels::read(&args.labels)?;
    match evaluate(args, player, &labels) {
        Ok(figures) => gate(args, &figures),
        Err(halt) => halt.ended(),
    }
}

fn evaluate(args: &Args, player: Player, labels: &Labels) -> Result<Figures, Halt> {
    let mut alarms = Alarms::default();
    let mut reading = Reading::new(player, false);
    reading.files(&args.files, |given, _| {
        alarms.count(given.verdict);
        Ok(())
    })?;
    reading.check()?;
    let sessions = reading.player.sessions().map(|(view, _)| view);
    let figures = Figures::new(sessions, &alarms, labels, reading.bad_lines);
    match args.output {
        Output::Table => report::print(&figures, args.list)?,
        Output::Json => print_json(&figures)?,
    }
    Ok(figures)
}

fn print_json(figures: &Figures) -> io::Result<()> {
    let line = json_line(&Line { eval: figures })?;
    writeln!(io::stdout().lock(), "{line}")
}

/// What a pipeline asked for. A figure that is undefined meets nothing: a typing
/// error in every id must not look like a pass.
fn gate(args: &Args, figures: &Figures) -> Result<ExitCode, Failure> {
    let score = &figures.labelled.score;
    let checks = [
        ("precision", score.precision, args.min_precision),
        ("recall", score.recall, args.min_recall),
    ];
    let missed: Vec<String> = checks
        .into_iter()
        .filter_map(|(name, value, least)| missed(name, value, least?))
        .collect();
    if missed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::failed(missed.join("; ")))
}

fn missed(name: &str, value: Option<f64>, least: f64) -> Option<String> {
    match value {
        None => Some(format!(
            "the {name} is undefined, at least {least} is asked for"
        )),
        Some(value) if value < least => Some(format!(
            "the {name} is {value:.4}, at least {least} is asked for"
        )),
        Some(_) => None,
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("it must be a number from 0 to 1".to_owned()),
    }
}
