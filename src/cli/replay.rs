//! `unstuck replay`: recorded traces through the server's own engine, offline.
//! The clock is the trace's and the keys are fixed, so the same files print the
//! same bytes.

mod input;
mod json;
mod line;
mod player;
mod report;
mod summary;
mod words;

#[cfg(test)]
mod tests;

use std::{
    fmt::Display,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::{ConfigArgs, Failure};
use crate::domain::{Action, text};
use input::{Lines, Source};
use json::JsonLines;
use line::{Fault, Line};
use player::{Given, Player};
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

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
}

/// Why a replay ends before its input does.
enum Halt {
    /// Standard output takes no more.
    Output(io::Error),
    Input(Failure),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let player = Player::new(args.config.load()?, args.profile.as_deref())?;
    // Before anything is printed: nobody wants half an answer for a typing error.
    for file in args.files.iter().filter(|file| !is_stdin(file)) {
        std::fs::metadata(file).map_err(|error| unreadable(file, &error))?;
    }
    match Replay::new(args, player).run(&args.files) {
        Ok(code) => Ok(code),
        // `unstuck replay … | head` has seen enough.
        Err(Halt::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(ExitCode::SUCCESS)
        }
        Err(Halt::Output(error)) => Err(Failure::failed(format!("cannot write: {error}"))),
        Err(Halt::Input(failure)) => Err(failure),
    }
}

/// A run over all the files.
struct Replay {
    player: Player,
    sink: Sink,
    tally: Tally,
    lines: u64,
    bad_lines: u64,
    strict: bool,
    fail_on: Option<Action>,
}

/// Where verdicts go.
enum Sink {
    /// Printed as they are given.
    Json(JsonLines),
    /// Kept: the events of sessions may alternate, and a timeline is of one.
    Table(Report),
}

impl Replay {
    fn new(args: &Args, player: Player) -> Self {
        Self {
            player,
            sink: match args.output {
                Output::Table => Sink::Table(Report::default()),
                Output::Json => Sink::Json(JsonLines::to_stdout()),
            },
            tally: Tally::default(),
            lines: 0,
            bad_lines: 0,
            strict: args.strict,
            fail_on: args.fail_on,
        }
    }

    fn run(mut self, files: &[PathBuf]) -> Result<ExitCode, Halt> {
        for file in files {
            self.file(file)?;
        }
        let summary = Summary::new(&self.player, &self.tally, self.bad_lines);
        match self.sink {
            Sink::Json(lines) => lines.finish(&summary)?,
            Sink::Table(report) => report.print(&self.player, &self.tally, &summary)?,
        }
        if self.lines > 0 && self.lines == self.bad_lines {
            return Err(Halt::Input(Failure::usage("no line could be read")));
        }
        let strongest = self.tally.strongest();
        let met = self.fail_on.is_some_and(|least| strongest >= Some(least));
        Ok(ExitCode::from(u8::from(met)))
    }

    fn file(&mut self, file: &Path) -> Result<(), Halt> {
        let unreadable = |error: io::Error| Halt::Input(unreadable(file, &error));
        let source = if is_stdin(file) {
            Source::stdin()
        } else {
            Source::open(file).map_err(unreadable)?
        };
        let Source {
            reader,
            progress,
            live,
        } = source;
        let mut lines = Lines::new(reader);
        while let Some((number, line)) = lines.next().map_err(unreadable)? {
            self.lines += 1;
            let parsed = line.and_then(Line::parse);
            match parsed.and_then(|line| self.player.play(&line)) {
                Ok(None) => {}
                Ok(Some(given)) => self.give(given, live)?,
                Err(fault) => {
                    self.bad_lines += 1;
                    let complaint = complaint(file, number, &fault);
                    if self.strict {
                        return Err(Halt::Input(Failure::usage(complaint)));
                    }
                    // The run goes on also where nobody can be told.
                    progress.suspend(|| {
                        writeln!(anstream::stderr(), "unstuck: {complaint}").unwrap_or_default();
                    });
                }
            }
        }
        progress.finish_and_clear();
        Ok(())
    }

    fn give(&mut self, given: Given, live: bool) -> io::Result<()> {
        self.tally.count(&given.verdict);
        match &mut self.sink {
            Sink::Json(lines) => lines.print(&given.verdict, live),
            Sink::Table(report) => {
                report.keep(given);
                Ok(())
            }
        }
    }
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

/// Longer than any path that is typed, short enough for one look.
const SHOWN_CHARS_MAX: usize = 400;

/// File names and what parsers say of a line are untrusted as well.
fn shown(text: impl Display) -> String {
    text::quoted(&text.to_string(), SHOWN_CHARS_MAX)
}

fn complaint(file: &Path, number: u64, fault: &Fault) -> String {
    format!("{}:{number}: {}", shown(file.display()), shown(fault))
}

fn unreadable(file: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("cannot read {}: {error}", shown(file.display())))
}
