use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;

use super::summary::Summary;
use crate::{api, cli::output::json_line, domain::Verdict};

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
        let line = json_line(&api::present_verdict(verdict))?;
        writeln!(self.out, "{}", with_zulu_time(line))?;
        if live { self.out.flush() } else { Ok(()) }
    }

    pub fn finish(mut self, summary: &Summary) -> io::Result<()> {
        writeln!(self.out, "{}", json_line(&Last { summary })?)?;
        self.out.flush()
    }
}

/// Proto3 JSON prints times in UTC with a `Z`, pbjson with `+00:00`. A quote
/// within a text is escaped, so this key is found nowhere else.
fn with_zulu_time(mut line: String) -> String {
    const KEY: &str = "\"time\":\"";
    const OFFSET: &str = "+00:00";
    let value = line.find(KEY).map(|key| key + KEY.len());
    let end = value.and_then(|value| Some(value + line.get(value..)?.find('"')?));
    if let Some(end) = end
        && line.get(..end).is_some_and(|text| text.ends_with(OFFSET))
    {
        line.replace_range(end - OFFSET.len()..end, "Z");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_of_the_verdict_is_changed() {
        let line = r#"{"id":"\"time\":\"x+00:00","time":"1970-01-01T00:00:00+00:00","x":"+00:00"}"#;
        let expected = r#"{"id":"\"time\":\"x+00:00","time":"1970-01-01T00:00:00Z","x":"+00:00"}"#;
        assert_eq!(with_zulu_time(line.to_owned()), expected);
        assert_eq!(with_zulu_time("{}".to_owned()), "{}");
    }
}
