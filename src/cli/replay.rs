//! `unstuck replay`: runs recorded traces through the service's engine, offline.
//! The same files print the same bytes.

mod json;
mod report;
mod summary;

use std::{io, path::PathBuf, process::ExitCode};

use super::{
    CliError, ConfigArgs,
    output::{OutputFormat, map_write_error},
    trace::{
        self, TraceRunner,
        format::TraceFormat,
        player::{TracePlayer, TraceVerdict},
    },
};
use crate::domain::Action;
use json::JsonLines;
use report::ReplayReport;
use summary::{ReplayCounts, ReplaySummary};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Trace files with one event, or `{"delta": {…}}`, per line as JSON; transcripts of
    /// agents, or directories with them; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The format of the files: found by their content, or given.
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = TraceFormat::parser())]
    format: TraceFormat,
    #[command(flatten)]
    config: ConfigArgs,
    /// The profile for all sessions.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Output format: a report, or one JSON object per line.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
    /// Exit with 1 if a verdict has this action or a stronger one: alert, warn,
    /// throttle, checkpoint, ask, block, break, escalate, terminate.
    #[arg(long, value_name = "ACTION")]
    fail_on: Option<Action>,
    /// Stop at the first invalid line, with exit code 2.
    #[arg(long)]
    strict: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let player = TracePlayer::new(args.config.load_config()?, args.profile.as_deref())?;
    trace::check_files_exist(&args.files)?;
    replay(args, player)
}

/// The destination of verdicts.
enum ReplayOutput {
    /// Printed when issued.
    Json(JsonLines),
    /// Collected by session, because the events of sessions may be interleaved.
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

fn replay(args: &Args, player: TracePlayer) -> Result<ExitCode, CliError> {
    let mut sink = match args.output {
        OutputFormat::Table => ReplayOutput::Table(ReplayReport::default()),
        OutputFormat::Json => ReplayOutput::Json(JsonLines::to_stdout()),
    };
    let mut counts = ReplayCounts::default();
    let mut runner = TraceRunner::new(player, args.format, args.strict);
    runner.run_files(&args.files, |played, live| {
        counts.record(&played.verdict);
        sink.write_verdict(played, live)
    })?;
    let summary = ReplaySummary::new(&runner.player, &counts, runner.bad_lines);
    map_write_error(match sink {
        ReplayOutput::Json(lines) => lines.finish(&summary),
        ReplayOutput::Table(report) => report.print(&runner.player, &counts, &summary),
    })?;
    runner.require_valid_line()?;
    let strongest = counts.strongest_action();
    let reached = args
        .fail_on
        .is_some_and(|threshold| strongest >= Some(threshold));
    Ok(ExitCode::from(u8::from(reached)))
}
