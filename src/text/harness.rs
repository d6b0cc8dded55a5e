//! Removes what an agent's harness adds to the results of its tools: headers with chunk
//! ids, process groups, shell ids, reminders, usage footers, and the service's own
//! corrections. These change on every call, so with them no two results are equal.
//!
//! Cost: a search for the starts of lines and for `<` in both ends of the text; a copy only
//! if something is removed.

use std::{borrow::Cow, ops::Range, sync::LazyLock};

use aho_corasick::{AhoCorasick, Anchored, Input, StartKind};

use crate::domain::sanitize;

/// A result without what the harness added.
#[derive(Debug, PartialEq, Eq)]
pub struct HarnessResult<'a> {
    pub text: Cow<'a, str>,
    /// The exit code that the harness reports in the text.
    pub exit_code: Option<i32>,
}

impl<'a> HarnessResult<'a> {
    /// The result of a text in which no harness wrote.
    pub fn unchanged(text: &'a str) -> Self {
        Self {
            text: Cow::Borrowed(text),
            exit_code: None,
        }
    }
}

/// Harnesses write at the beginning and at the end of a result.
const END_BYTES_MAX: usize = 2_048;

/// What begins a line that a harness adds. `Process exited with code` and the like are
/// also read for the exit code.
#[rustfmt::skip]
const LINE_MARKERS: &[&str] = &[
    "Chunk ID: ", "Wall time: ", "Original token count: ", "Process exited with code ",
    "Process running with session ID ",                                       // Codex
    "Exit Code: ", "Signal: ", "Error: (none)", "Background PIDs: ", "Process Group PGID: ",   // Gemini, Qwen
    "<shellId: ", "<exited with exit code ",                                  // Copilot
    "agentId: ", "<usage>", "total_tokens: ", "tool_uses: ", "duration_ms: ", // Claude Code
    "[The command completed with exit code ", "[Command finished with exit code ",
    "[Current working directory: ", "[Python interpreter: ",                  // OpenHands
    "[unstuck] ",
];
/// Labels before the output in the formats of Codex, Gemini and Qwen.
const OUTPUT_LABELS: &[&str] = &["Output:\n", "Output: "];
/// Elements that are removed with their content.
const ELEMENTS: &[(&str, &str)] = &[
    ("<system-reminder>", "</system-reminder>"),
    ("<hook_context>[unstuck]", "</hook_context>"),
    ("<total_tokens>", "</total_tokens>"),
    ("<environment_details>", "</environment_details>"), // Cline, Roo Code
    (RETURN_CODE, "</returncode>"),                      // mini-swe-agent
];
const RETURN_CODE: &str = "<returncode>";
/// Tags that are removed without what they enclose.
#[rustfmt::skip]
const TAGS: &[&str] = &[
    "<untrusted_context>", "</untrusted_context>",
    "Execution logs:\n", "Last output from code snippet:\nNone", // smolagents
];

static SEARCHER: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    let elements = ELEMENTS.iter().map(|(open, _)| open);
    AhoCorasick::builder()
        .start_kind(StartKind::Anchored)
        .build(LINE_MARKERS.iter().chain(elements).chain(TAGS))
        .ok()
});

/// Removes what a harness added.
pub fn strip(text: &str) -> HarnessResult<'_> {
    let Some(searcher) = SEARCHER.as_ref() else {
        return HarnessResult::unchanged(text);
    };
    let mut removals = Removals {
        text,
        ranges: Vec::new(),
        exit_code: None,
        has_header: false,
    };
    let head = sanitize::prefix(text, END_BYTES_MAX);
    let tail = sanitize::suffix(text, END_BYTES_MAX);
    // Both ends of a short text are the whole of it.
    let tail_start = (text.len() - tail.len()).max(head.len());
    for (start, end) in [(0, head.len()), (tail_start, text.len())] {
        let Some(part) = text.get(start..end) else {
            continue;
        };
        for at in candidates(part) {
            let from_here = Input::new(part).range(at..).anchored(Anchored::Yes);
            if let Ok(Some(found)) = searcher.try_find(from_here) {
                removals.add(found.pattern().as_usize(), start + at);
            }
        }
    }
    if removals.ranges.is_empty() {
        return HarnessResult::unchanged(text);
    }
    removals.finish()
}

/// Where a marker may begin: at the start of a line, or at `<`.
fn candidates(part: &str) -> impl Iterator<Item = usize> {
    let found = memchr::memchr2_iter(b'\n', b'<', part.as_bytes());
    std::iter::once(0).chain(found.map(|at| match part.as_bytes().get(at) {
        Some(b'\n') => at + 1,
        _ => at,
    }))
}

struct Removals<'a> {
    text: &'a str,
    /// In order, without overlaps.
    ranges: Vec<Range<usize>>,
    exit_code: Option<i32>,
    /// A line of a harness was found, so its label before the output is one too.
    has_header: bool,
}

impl<'a> Removals<'a> {
    /// Adds the removal that the marker at `at` calls for.
    fn add(&mut self, marker: usize, at: usize) {
        if self.ranges.last().is_some_and(|last| at < last.end) {
            return;
        }
        let rest = self.text.get(at..).unwrap_or_default();
        if let Some(line_marker) = LINE_MARKERS.get(marker) {
            let is_line_start = at == 0 || self.text.as_bytes().get(at - 1) == Some(&b'\n');
            if !is_line_start {
                return;
            }
            let line = rest.split_inclusive('\n').next().unwrap_or_default();
            if line_marker.contains("xit") || line_marker.starts_with("<shellId") {
                self.exit_code = parse_exit_code(line).or(self.exit_code);
            }
            self.has_header |= *line_marker != "[unstuck] ";
            self.ranges.push(at..at + line.len());
            return;
        }
        let element = marker - LINE_MARKERS.len();
        let len = match ELEMENTS.get(element) {
            Some((open, close)) => {
                let end = rest.find(close);
                if *open == RETURN_CODE {
                    let code = rest.get(open.len()..end.unwrap_or(rest.len()));
                    self.exit_code = code.and_then(|code| code.trim().parse().ok());
                }
                end.map_or(rest.len(), |end| end + close.len())
            }
            None => TAGS
                .get(element - ELEMENTS.len())
                .map_or(0, |tag| tag.len()),
        };
        self.ranges.push(at..at + len);
    }

    fn finish(self) -> HarnessResult<'a> {
        let mut kept = String::with_capacity(self.text.len());
        let mut from = 0;
        for range in &self.ranges {
            kept.push_str(self.text.get(from..range.start).unwrap_or_default());
            from = range.end;
        }
        kept.push_str(self.text.get(from..).unwrap_or_default());
        let mut text = kept.as_str();
        if self.has_header {
            let mut labels = OUTPUT_LABELS.iter();
            text = labels
                .find_map(|label| text.strip_prefix(label))
                .unwrap_or(text);
        }
        HarnessResult {
            text: Cow::Owned(text.trim_end().to_owned()),
            exit_code: self.exit_code,
        }
    }
}

/// The number after "code" in a harness's line: "exit code 3>", "code 1", "Code: 0".
fn parse_exit_code(line: &str) -> Option<i32> {
    let after = line.to_ascii_lowercase();
    let (_, number) = after.rsplit_once("code")?;
    let number = number.trim_start_matches([':', ' ']);
    let end = number
        .find(|c: char| !c.is_ascii_digit() && c != '-')
        .unwrap_or(number.len());
    number.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, kept: &str, exit_code: Option<i32>) {
        let result = strip(text);
        assert_eq!((result.text.as_ref(), result.exit_code), (kept, exit_code));
    }

    #[test]
    fn what_the_harness_adds_is_removed() {
        check(
            "Chunk ID: 44d4c0\nWall time: 0.1 seconds\nProcess exited with code 1\nOriginal token count: 9\nOutput:\nboom\n",
            "boom",
            Some(1),
        );
        check(
            "Output: (empty)\nExit Code: 0\nProcess Group PGID: 4100",
            "(empty)",
            Some(0),
        );
        check(
            "<returncode>1</returncode>\n<output>\nboom\n</output>",
            "\n<output>\nboom\n</output>",
            Some(1),
        );
        check(
            "boom\n[Current working directory: /w]\n[The command completed with exit code 2.]",
            "boom",
            Some(2),
        );
        check(
            "ok\n<environment_details>\n# Current Time\n8:01\n</environment_details>",
            "ok",
            None,
        );
        check(
            "Execution logs:\nrow 1\nLast output from code snippet:\nNone",
            "row 1",
            None,
        );
        check("a\n<shellId: 7 completed with exit code 2>", "a", Some(2));
        check(
            "text\n\n<system-reminder>\n14998265 tokens left\n</system-reminder>",
            "text",
            None,
        );
        check("a: 1\n\n[unstuck] read a 3 times", "a: 1", None);
        check(
            "a\n<hook_context>[unstuck] stop</hook_context>\nb",
            "a\n\nb",
            None,
        );
        check(
            "found it\nagentId: a1b2 (for resuming)\n<usage>total_tokens: 9\ntool_uses: 2\nduration_ms: 17</usage>",
            "found it",
            None,
        );
    }

    #[test]
    fn other_text_is_kept() {
        for text in [
            "",
            "plain",
            "the Exit Code: 3 is in a sentence",
            "Output: 7 rows",
            "say [unstuck] here",
        ] {
            check(text, text, None);
        }
    }

    #[test]
    fn both_ends_of_a_long_text_are_read() {
        let middle = "row\n".repeat(5_000);
        let long = format!("Chunk ID: 0a0b0c\n{middle}<shellId: 3 completed with exit code 0>");
        check(&long, middle.trim_end(), Some(0));
    }
}
