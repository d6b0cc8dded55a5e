//! Recorded traces through the server's own engine, offline: what `replay` and
//! `eval` have in common. The clock is the trace's and the keys are fixed, so
//! the same files give the same verdicts.

pub(super) mod input;
pub(super) mod line;
pub(super) mod player;

#[cfg(test)]
mod tests;

use std::{
    fmt::Display,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::Failure;
use crate::domain::text;
use input::{Lines, Source};
use line::Line;
use player::{Given, Player};

/// Why a run ends before its input does.
pub(super) enum Halt {
    /// Standard output takes no more.
    Output(io::Error),
    Input(Failure),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl Halt {
    pub fn ended(self) -> Result<ExitCode, Failure> {
        match self {
            // `unstuck replay … | head` has seen enough.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Ok(ExitCode::SUCCESS)
            }
            Self::Output(error) => Err(Failure::failed(format!("cannot write: {error}"))),
            Self::Input(failure) => Err(failure),
        }
    }
}

/// Reads the lines of files and plays them.
pub(super) struct Reading {
    pub player: Player,
    pub lines: u64,
    pub bad_lines: u64,
    /// The first line that cannot be read ends it.
    strict: bool,
}

impl Reading {
    pub fn new(player: Player, strict: bool) -> Self {
        Self {
            player,
            lines: 0,
            bad_lines: 0,
            strict,
        }
    }

    /// Plays the files one after the other. `give` gets each verdict as it is
    /// given, and whether somebody may be waiting for it.
    pub fn files(
        &mut self,
        files: &[PathBuf],
        mut give: impl FnMut(Given, bool) -> io::Result<()>,
    ) -> Result<(), Halt> {
        files.iter().try_for_each(|file| self.file(file, &mut give))
    }

    fn file(
        &mut self,
        file: &Path,
        give: &mut impl FnMut(Given, bool) -> io::Result<()>,
    ) -> Result<(), Halt> {
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
                Ok(Some(given)) => give(given, live)?,
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

    /// There were lines, and none was a line of a trace.
    pub fn check(&self) -> Result<(), Halt> {
        if self.lines > 0 && self.lines == self.bad_lines {
            return Err(Halt::Input(Failure::usage("no line could be read")));
        }
        Ok(())
    }
}

/// Finds a typing error before anything is printed: nobody wants half an answer.
pub(super) fn check_files(files: &[PathBuf]) -> Result<(), Failure> {
    for file in files.iter().filter(|file| !is_stdin(file)) {
        std::fs::metadata(file).map_err(|error| unreadable(file, &error))?;
    }
    Ok(())
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

pub(super) fn complaint(file: &Path, number: u64, fault: &impl Display) -> String {
    format!("{}:{number}: {}", shown(file.display()), shown(fault))
}

pub(super) fn unreadable(file: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("cannot read {}: {error}", shown(file.display())))
}
