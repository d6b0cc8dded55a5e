//! The formats of recorded sessions: traces of this service, and transcripts of agents.

use std::{io, path::Path};

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::{is_stdin, read_error};
use crate::{
    cli::CliError,
    ingest::transcripts::{self, FORMATS, Transcript, TranscriptFormat},
};

/// The format of the files.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) enum TraceFormat {
    /// That of each file.
    Auto,
    /// One event a line.
    Ndjson,
    Transcript(&'static TranscriptFormat),
}

const AUTO: &str = "auto";
const NDJSON: &str = "ndjson";

impl TraceFormat {
    /// Parses the value of `--format`.
    pub fn parser() -> impl TypedValueParser<Value = Self> {
        let names = FORMATS.iter().map(|format| format.name);
        let names = [AUTO, NDJSON].into_iter().chain(names);
        PossibleValuesParser::new(names).map(|name| match transcripts::find_format(&name) {
            Some(format) => Self::Transcript(format),
            None if name == NDJSON => Self::Ndjson,
            None => Self::Auto,
        })
    }

    /// The transcripts that a path leads to; none if it is a trace.
    pub fn transcripts_at(self, path: &Path) -> Result<Vec<Transcript>, CliError> {
        let format = match self {
            Self::Ndjson => return Ok(Vec::new()),
            Self::Auto if is_stdin(path) => return Ok(Vec::new()),
            Self::Auto => None,
            Self::Transcript(format) if is_stdin(path) => {
                let why = format!("a transcript of {} is a file: name it", format.title);
                return Err(CliError::usage(why));
            }
            Self::Transcript(format) => Some(format),
        };
        let found = transcripts::transcripts_at(path, format);
        if found.is_empty() && path.is_dir() {
            let why = io::Error::other("no transcript of a known format in it");
            return Err(read_error(path, &why));
        }
        Ok(found)
    }
}
