use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;

use super::summary::Summary;
use crate::{
    api,
    cli::output::{json_line, proto_line},
    domain::Verdict,
};

/// Verdicts and the summary, an object a line.
pub(super) struct JsonLines {
    out: BufWriter<StdoutLock<'static>>,
}

#[derive(Serialize)]
struct Last<'a> {
    summary: &'a Summary,
}

impl JsonLines {
    pub fn to_stdout() -> Self {
        Self {
            out: BufWriter::new(io::stdout().lock()),
        }
    }

    /// Prints a verdict; at once where the input is `live`.
    pub fn print(&mut self, verdict: &Verdict, live: bool) -> io::Result<()> {
        let line = proto_line(&api::present_verdict(verdict))?;
        writeln!(self.out, "{line}")?;
        if live { self.out.flush() } else { Ok(()) }
    }

    pub fn finish(mut self, summary: &Summary) -> io::Result<()> {
        writeln!(self.out, "{}", json_line(&Last { summary })?)?;
        self.out.flush()
    }
}
