//! The output of a replay as JSON.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;

use super::summary::ReplaySummary;
use crate::{
    api,
    cli::output::{to_json_line, to_proto_json_line},
    domain::Verdict,
};

/// Prints verdicts and the summary, one object per line.
pub(super) struct JsonLines {
    out: BufWriter<StdoutLock<'static>>,
}

#[derive(Serialize)]
struct SummaryLine<'a> {
    summary: &'a ReplaySummary,
}

impl JsonLines {
    pub fn to_stdout() -> Self {
        Self {
            out: BufWriter::new(io::stdout().lock()),
        }
    }

    /// Prints a verdict, without buffering if the input is `live`.
    pub fn print(&mut self, verdict: &Verdict, live: bool) -> io::Result<()> {
        let line = to_proto_json_line(&api::present_verdict(verdict))?;
        writeln!(self.out, "{line}")?;
        if live { self.out.flush() } else { Ok(()) }
    }

    pub fn finish(mut self, summary: &ReplaySummary) -> io::Result<()> {
        writeln!(self.out, "{}", to_json_line(&SummaryLine { summary })?)?;
        self.out.flush()
    }
}
