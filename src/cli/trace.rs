//! Runs recorded traces through the service's engine, offline, for `replay` and
//! `eval`. The clock is the trace's and the hash keys are fixed, so the same files
//! give the same verdicts.

pub(super) mod format;
pub(super) mod line;
pub(super) mod player;
pub(super) mod reader;

#[cfg(test)]
mod tests;

use std::{
    fmt::Display,
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::{
    CliError,
    output::map_write_error,
    text_format::{sanitize, truncate},
};
use crate::ingest::{
    NdjsonReader,
    transcripts::{ReadProblem, Transcript, TranscriptItem},
};
use format::TraceFormat;
use line::{TraceLine, TraceLineError};
use player::{TracePlayer, TraceVerdict};
use reader::TraceSource;

/// Reads the lines of files and plays them.
pub(super) struct TraceRunner {
    pub player: TracePlayer,
    pub lines: u64,
    pub bad_lines: u64,
    format: TraceFormat,
    /// Stop at the first invalid line.
    strict: bool,
}

impl TraceRunner {
    pub fn new(player: TracePlayer, format: TraceFormat, strict: bool) -> Self {
        Self {
            player,
            lines: 0,
            bad_lines: 0,
            format,
            strict,
        }
    }

    /// Plays the files in order. `on_verdict` gets each verdict, and whether its
    /// input is live, so that output must not be buffered.
    pub fn run_files(
        &mut self,
        files: &[PathBuf],
        mut on_verdict: impl FnMut(TraceVerdict, bool) -> io::Result<()>,
    ) -> Result<(), CliError> {
        files
            .iter()
            .try_for_each(|file| self.run_file(file, &mut on_verdict))
    }

    fn run_file(
        &mut self,
        file: &Path,
        on_verdict: &mut impl FnMut(TraceVerdict, bool) -> io::Result<()>,
    ) -> Result<(), CliError> {
        let transcripts = self.format.transcripts_at(file)?;
        if !transcripts.is_empty() {
            return transcripts
                .iter()
                .try_for_each(|transcript| self.run_transcript(transcript, on_verdict));
        }
        let TraceSource {
            reader,
            progress,
            live,
        } = if is_stdin(file) {
            TraceSource::stdin()
        } else {
            TraceSource::open(file).map_err(|error| read_error(file, &error))?
        };
        let mut lines = NdjsonReader::new(reader);
        while let Some((number, line)) = lines
            .next_line()
            .map_err(|error| read_error(file, &error))?
        {
            self.lines += 1;
            let line = line.map_err(TraceLineError::from);
            let parsed = line.and_then(TraceLine::parse);
            match parsed.and_then(|line| self.player.play(&line)) {
                Ok(None) => {}
                Ok(Some(verdict)) => map_write_error(on_verdict(verdict, live))?,
                Err(error) => progress.suspend(|| self.report(file, number, &error))?,
            }
        }
        progress.finish_and_clear();
        Ok(())
    }

    /// Plays the sessions of a transcript, event by event.
    fn run_transcript(
        &mut self,
        transcript: &Transcript,
        on_verdict: &mut impl FnMut(TraceVerdict, bool) -> io::Result<()>,
    ) -> Result<(), CliError> {
        let mut result = Ok(());
        transcript.read(&mut |item| {
            // The reader cannot be stopped: what follows an error is skipped.
            if result.is_err() {
                return;
            }
            result = match item {
                TranscriptItem::Event(transcript_event) => {
                    self.lines += 1;
                    let line = TraceLine::Event(transcript_event.event);
                    match self.player.play(&line) {
                        Ok(None) => Ok(()),
                        Ok(Some(verdict)) => map_write_error(on_verdict(verdict, false)),
                        Err(error) => {
                            let path = transcript.paths.first().map(PathBuf::as_path);
                            self.report(path.unwrap_or(Path::new("")), 0, &error)
                        }
                    }
                }
                TranscriptItem::Problem(ReadProblem { path, line, what }) => {
                    self.lines += 1;
                    self.report(&path, line, &what)
                }
                TranscriptItem::Start(_) | TranscriptItem::End(_) => Ok(()),
            };
        });
        result
    }

    /// Counts and reports an invalid line.
    fn report(&mut self, file: &Path, number: u64, error: &impl Display) -> Result<(), CliError> {
        self.bad_lines += 1;
        let message = format_line_error(file, number, error);
        if self.strict {
            return Err(CliError::usage(message));
        }
        // The run continues even if standard error is closed.
        writeln!(anstream::stderr(), "unstuck: {message}").unwrap_or_default();
        Ok(())
    }

    /// Fails if there were lines and none was valid.
    pub fn require_valid_line(&self) -> Result<(), CliError> {
        if self.lines > 0 && self.lines == self.bad_lines {
            return Err(CliError::usage("no valid line in the traces"));
        }
        Ok(())
    }
}

/// Fails on a misspelt file name before anything is printed.
pub(super) fn check_files_exist(files: &[PathBuf]) -> Result<(), CliError> {
    for file in files.iter().filter(|file| !is_stdin(file)) {
        std::fs::metadata(file).map_err(|error| read_error(file, &error))?;
    }
    Ok(())
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

/// Longer than any path that is typed by hand, short enough to read.
const QUOTED_COLUMNS_MAX: usize = 400;

/// File names and parser messages are untrusted text too.
fn quote_untrusted(text: impl Display) -> String {
    truncate(&sanitize(&text.to_string()), QUOTED_COLUMNS_MAX)
}

/// Line 0 is the file as a whole.
pub(super) fn format_line_error(file: &Path, number: u64, error: &impl Display) -> String {
    let line = match number {
        0 => String::new(),
        _ => format!(":{number}"),
    };
    format!(
        "{}{line}: {}",
        quote_untrusted(file.display()),
        quote_untrusted(error)
    )
}

pub(super) fn read_error(file: &Path, error: &io::Error) -> CliError {
    CliError::usage(format!(
        "cannot read {}: {error}",
        quote_untrusted(file.display())
    ))
}
