//! Recorded traces through the server's own engine, offline: what `replay` and
//! `eval` have in common. The clock is the trace's and the keys are fixed, so
//! the same files give the same verdicts.

pub(super) mod line;
pub(super) mod player;
pub(super) mod reader;

#[cfg(test)]
mod tests;

use std::{
    fmt::Display,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::CliError;
use crate::domain::sanitize;
use line::TraceLine;
use player::{TracePlayer, TraceVerdict};
use reader::{NdjsonReader, TraceSource};

/// Why a run ends before its input does.
pub(super) enum TraceRunError {
    /// Standard output takes no more.
    Output(io::Error),
    Input(CliError),
}

impl From<io::Error> for TraceRunError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl TraceRunError {
    pub fn into_result(self) -> Result<ExitCode, CliError> {
        match self {
            // `unstuck replay … | head` has seen enough.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Ok(ExitCode::SUCCESS)
            }
            Self::Output(error) => Err(CliError::failed(format!("cannot write: {error}"))),
            Self::Input(failure) => Err(failure),
        }
    }
}

/// Reads the lines of files and plays them.
pub(super) struct TraceRunner {
    pub player: TracePlayer,
    pub lines: u64,
    pub bad_lines: u64,
    /// The first line that cannot be read ends it.
    strict: bool,
}

impl TraceRunner {
    pub fn new(player: TracePlayer, strict: bool) -> Self {
        Self {
            player,
            lines: 0,
            bad_lines: 0,
            strict,
        }
    }

    /// Plays the files one after the other. `give` gets each verdict as it is
    /// given, and whether somebody may be waiting for it.
    pub fn run_files(
        &mut self,
        files: &[PathBuf],
        mut on_verdict: impl FnMut(TraceVerdict, bool) -> io::Result<()>,
    ) -> Result<(), TraceRunError> {
        files
            .iter()
            .try_for_each(|file| self.run_file(file, &mut on_verdict))
    }

    fn run_file(
        &mut self,
        file: &Path,
        on_verdict: &mut impl FnMut(TraceVerdict, bool) -> io::Result<()>,
    ) -> Result<(), TraceRunError> {
        let to_run_error = |error: io::Error| TraceRunError::Input(read_error(file, &error));
        let source = if is_stdin(file) {
            TraceSource::stdin()
        } else {
            TraceSource::open(file).map_err(to_run_error)?
        };
        let TraceSource {
            reader,
            progress,
            live,
        } = source;
        let mut lines = NdjsonReader::new(reader);
        while let Some((number, line)) = lines.next().map_err(to_run_error)? {
            self.lines += 1;
            let parsed = line.and_then(TraceLine::parse);
            match parsed.and_then(|line| self.player.play(&line)) {
                Ok(None) => {}
                Ok(Some(verdict)) => on_verdict(verdict, live)?,
                Err(error) => {
                    self.bad_lines += 1;
                    let message = format_line_error(file, number, &error);
                    if self.strict {
                        return Err(TraceRunError::Input(CliError::usage(message)));
                    }
                    // The run goes on also where nobody can be told.
                    progress.suspend(|| {
                        writeln!(anstream::stderr(), "unstuck: {message}").unwrap_or_default();
                    });
                }
            }
        }
        progress.finish_and_clear();
        Ok(())
    }

    /// There were lines, and none was a line of a trace.
    pub fn require_valid_line(&self) -> Result<(), TraceRunError> {
        if self.lines > 0 && self.lines == self.bad_lines {
            return Err(TraceRunError::Input(CliError::usage(
                "no line could be read",
            )));
        }
        Ok(())
    }
}

/// Finds a typing error before anything is printed: nobody wants half an answer.
pub(super) fn check_files_exist(files: &[PathBuf]) -> Result<(), CliError> {
    for file in files.iter().filter(|file| !is_stdin(file)) {
        std::fs::metadata(file).map_err(|error| read_error(file, &error))?;
    }
    Ok(())
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

/// Longer than any path that is typed, short enough for one look.
const QUOTED_CHARS_MAX: usize = 400;

/// File names and what parsers say of a line are untrusted as well.
fn quote_untrusted(text: impl Display) -> String {
    sanitize::quote(&text.to_string(), QUOTED_CHARS_MAX)
}

pub(super) fn format_line_error(file: &Path, number: u64, error: &impl Display) -> String {
    format!(
        "{}:{number}: {}",
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
