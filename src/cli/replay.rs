//! `unstuck replay`: recorded traces through the server's own engine, offline.
//! The same files print the same bytes.

mod json;
mod report;
mod summary;

use std::{io, path::PathBuf, process::ExitCode};

use super::{
    ConfigArgs, Failure,
    output::Output,
    trace::{
        self, Halt, Reading,
        player::{Given, Player},
    },
};
use crate::domain::Action;
use json::JsonLines;
use report::Report;
use summary::{Summary, Tally};

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
    output: Output,
    /// Exit with 1 if a verdict asks for this action or a stronger one: alert,
    /// warn, throttle, checkpoint, ask, block, break, escalate, terminate.
    #[arg(long, value_name = "ACTION")]
    fail_on: Option<Action>,
    /// Stop at the first line that cannot be read, with exit code 2.
    #[arg(long)]
    strict: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let player = Player::new(args.config.load()?, args.profile.as_deref())?;
    trace::check_files(&args.files)?;
    replay(args, player).or_else(Halt::ended)
}

/// Where verdicts go.
enum Sink {
    /// Printed as they are given.
    Json(JsonLines),
    /// Kept: the events of sessions may alternate, and a timeline is of one.
    Table(Report),
}

impl Sink {
    fn give(&mut self, given: Given, live: bool) -> io::Result<()> {
        match self {
            Self::Json(lines) => lines.print(&given.verdict, live),
            Self::Table(report) => {
                report.keep(given);
                Ok(())
            }
        }
    }
}

/// A run over all the files.
fn replay(args: &Args, player: Player) -> Result<ExitCode, Halt> {
    let mut sink = match args.output {
        Output::Table => Sink::Table(Report::default()),
        Output::Json => Sink::Json(JsonLines::to_stdout()),
    };
    let mut tally = Tally::default();
    let mut reading = Reading::new(player, args.strict);
    reading.files(&args.files, |given, live| {
        tally.count(&given.verdict);
        sink.give(given, live)
    })?;
    let summary = Summary::new(&reading.player, &tally, reading.bad_lines);
    match sink {
        Sink::Json(lines) => lines.finish(&summary)?,
        Sink::Table(report) => report.print(&reading.player, &tally, &summary)?,
    }
    reading.check()?;
    let strongest = tally.strongest();
    let met = args.fail_on.is_some_and(|least| strongest >= Some(least));
    Ok(ExitCode::from(u8::from(met)))
}
