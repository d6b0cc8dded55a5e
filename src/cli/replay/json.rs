use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;

use super::summary::Summary;
use crate::{
    api,
    domain::{Verdict, text},
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
        let line = serde_json::to_string(&api::present_verdict(verdict))?;
        writeln!(self.out, "{}", escaped(with_zulu_time(line)))?;
        if live { self.out.flush() } else { Ok(()) }
    }

    pub fn finish(mut self, summary: &Summary) -> io::Result<()> {
        writeln!(self.out, "{}", serde_json::to_string(&Last { summary })?)?;
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

/// serde_json escapes only what JSON asks for. Beyond it are control characters
/// that steer a terminal and marks that turn text around; they occur only within
/// strings, where an escape means the same.
fn escaped(line: String) -> String {
    if line.is_ascii() || !line.contains(text::is_unseen) {
        return line;
    }
    let mut out = String::with_capacity(line.len() + 64);
    for c in line.chars() {
        if text::is_unseen(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out += &format!("\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
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

    #[test]
    fn what_is_unseen_is_escaped_and_means_the_same() {
        let text = "ä\u{9b}2J\u{202e}\u{e0041}漢";
        let line = escaped(serde_json::to_string(text).unwrap());
        assert_eq!(line, r#""ä\u009b2J\u202e\udb40\udc41漢""#);
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }
}
