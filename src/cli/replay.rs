//! `unstuck replay`: recorded traces through the server's own engine, offline.
//! The same files print the same bytes.

mod json;
mod report;
mod summary;

use std::{io, path::PathBuf, process::ExitCode};

use super::{
    CliError, ConfigArgs,
    output::OutputFormat,
    trace::{
        self, TraceRunError, TraceRunner,
        player::{TracePlayer, TraceVerdict},
    },
};
use crate::domain::Action;
use json::JsonLines;
use report::ReplayReport;
use summary::{ReplayCounts, ReplaySummary};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Traces, one event a line as JSON, or `{"delta": {…}}`; `-` is standard
    /// input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
    /// The profile that all sessions are watched with.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// A timeline for people, or an object a line for programs.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
    /// Exit with 1 if a verdict asks for this action or a stronger one: alert,
    /// warn, throttle, checkpoint, ask, block, break, escalate, terminate.
    #[arg(long, value_name = "ACTION")]
    fail_on: Option<Action>,
    /// Stop at the first line that cannot be read, with exit code 2.
    #[arg(long)]
    strict: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let player = TracePlayer::new(args.config.load_config()?, args.profile.as_deref())?;
    trace::check_files_exist(&args.files)?;
    replay(args, player).or_else(TraceRunError::into_result)
}

/// Where verdicts go.
enum ReplayOutput {
    /// Printed as they are given.
    Json(JsonLines),
    /// Kept: the events of sessions may alternate, and a timeline is of one.
    Table(ReplayReport),
}

impl ReplayOutput {
    fn write_verdict(&mut self, played: TraceVerdict, live: bool) -> io::Result<()> {
        match self {
            Self::Json(lines) => lines.print(&played.verdict, live),
            Self::Table(report) => {
                report.push(played);
                Ok(())
            }
        }
    }
}

/// A run over all the files.
fn replay(args: &Args, player: TracePlayer) -> Result<ExitCode, TraceRunError> {
    let mut sink = match args.output {
        OutputFormat::Table => ReplayOutput::Table(ReplayReport::default()),
        OutputFormat::Json => ReplayOutput::Json(JsonLines::to_stdout()),
    };
    let mut counts = ReplayCounts::default();
    let mut runner = TraceRunner::new(player, args.strict);
    runner.run_files(&args.files, |played, live| {
        counts.record(&played.verdict);
        sink.write_verdict(played, live)
    })?;
    let summary = ReplaySummary::new(&runner.player, &counts, runner.bad_lines);
    match sink {
        ReplayOutput::Json(lines) => lines.finish(&summary)?,
        ReplayOutput::Table(report) => report.print(&runner.player, &counts, &summary)?,
    }
    runner.require_valid_line()?;
    let strongest = counts.strongest_action();
    let reached = args
        .fail_on
        .is_some_and(|threshold| strongest >= Some(threshold));
    Ok(ExitCode::from(u8::from(reached)))
}
