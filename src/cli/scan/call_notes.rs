//! Findings that help also without loops: failing calls, repeated reads, failing streaks.

use std::{
    collections::{BTreeMap, HashSet},
    hash::BuildHasher,
};

use foldhash::fast::RandomState;

use crate::{
    cli::text_format::{sanitize, truncate},
    domain::{AgentId, Event, EventBody, MarkerKind, Outcome, ToolCall},
    text::harness,
    tools::{ToolClass, tool_traits::ToolTraits},
};

/// Notes on the calls of a session, or of all.
#[derive(Clone, Debug, Default)]
pub(super) struct CallNotes {
    pub tools: BTreeMap<String, ToolCounts>,
    /// Failing calls by the start of their message.
    pub failures: BTreeMap<String, u64>,
    /// Reads with the arguments and the result of an earlier one, and no compaction
    /// in between.
    pub rereads: u64,
    /// The approximate tokens of their results: a quarter of their characters.
    pub reread_tokens: u64,
    /// Failing calls in a row, at most.
    pub failing_streak: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ToolCounts {
    pub calls: u64,
    pub failing: u64,
}

/// The most messages or tools that are counted by name.
const NAMES_MAX: usize = 500;
/// The name under which the rest is counted.
const OTHER: &str = "other";
/// The width of a message in a column.
const MESSAGE_COLUMNS_MAX: usize = 60;
/// The most reads that are kept of a session.
const READS_MAX: usize = 100_000;
/// The approximate bytes of a token.
const TOKEN_BYTES: usize = 4;

impl CallNotes {
    pub fn add(&mut self, other: &Self) {
        for (tool, counts) in &other.tools {
            let known = entry(&mut self.tools, tool);
            known.calls += counts.calls;
            known.failing += counts.failing;
        }
        for (message, count) in &other.failures {
            *entry(&mut self.failures, message) += count;
        }
        self.rereads += other.rereads;
        self.reread_tokens += other.reread_tokens;
        self.failing_streak = self.failing_streak.max(other.failing_streak);
    }

    pub fn calls(&self) -> u64 {
        self.tools.values().map(|counts| counts.calls).sum()
    }

    pub fn failing(&self) -> u64 {
        self.tools.values().map(|counts| counts.failing).sum()
    }
}

fn entry<'a, T: Default>(counts: &'a mut BTreeMap<String, T>, name: &str) -> &'a mut T {
    let is_known = counts.contains_key(name) || counts.len() < NAMES_MAX;
    let name = if is_known { name } else { OTHER };
    counts.entry(name.to_owned()).or_default()
}

/// Takes the notes of one session.
#[derive(Default)]
pub(super) struct NoteTaker {
    pub notes: CallNotes,
    streak: u64,
    reads: HashSet<u64>,
    hasher: RandomState,
}

impl NoteTaker {
    pub fn observe(&mut self, event: &Event) {
        match &event.body {
            EventBody::Call(call) => self.observe_call(&event.agent, call),
            EventBody::Marker(marker) if marker.kind == MarkerKind::Compaction => {
                self.reads.clear();
            }
            EventBody::Marker(_) | EventBody::Turn(_) => {}
        }
    }

    fn observe_call(&mut self, agent: &AgentId, call: &ToolCall) {
        let counts = entry(&mut self.notes.tools, &truncate(&sanitize(&call.tool), 60));
        counts.calls += 1;
        if call.outcome == Some(Outcome::Error) {
            counts.failing += 1;
            self.streak += 1;
            self.notes.failing_streak = self.notes.failing_streak.max(self.streak);
            let text = if call.error.is_empty() {
                call.result.as_deref().unwrap_or_default()
            } else {
                &call.error
            };
            *entry(&mut self.notes.failures, &failure_message(text)) += 1;
            return;
        }
        self.streak = 0;
        if let Some(result) = &call.result
            && !result.is_empty()
            && ToolTraits::from_name(&call.tool).class == Some(ToolClass::Read)
            && self.reads.len() < READS_MAX
        {
            let key = (agent.as_str(), &call.tool, call.args.as_text(), result);
            if !self.reads.insert(self.hasher.hash_one(key)) {
                self.notes.rereads += 1;
                self.notes.reread_tokens += (result.len() / TOKEN_BYTES) as u64;
            }
        }
    }
}

/// The first sentence of a message without what differs from call to call: paths, long
/// numbers, quoted text. Of a command's output it is the first line that names a failure. An
/// exit code counts only if there is nothing else.
fn failure_message(text: &str) -> String {
    let text = text.trim();
    let text = text.strip_prefix(ERROR_START).unwrap_or(text);
    let text = text.strip_suffix(ERROR_END).unwrap_or(text);
    let stripped = harness::strip(text);
    let mut code = stripped.exit_code;
    let mut lines = Vec::new();
    for line in stripped.text.lines().take(LINES_MAX) {
        let line = line.trim();
        let line = line.strip_prefix(OUTPUT_LABEL).unwrap_or(line);
        if let Some(own) = exit_code(line) {
            code = code.or(Some(own));
        } else if !line.is_empty() && !is_frame(line) {
            lines.push(line);
        }
    }
    let mut named = lines.iter().filter(|_| code.is_some());
    let named = named.find(|line| names_failure(line));
    let Some(line) = named.or(lines.first()) else {
        return code.map_or_else(|| NO_MESSAGE.to_owned(), |code| format!("Exit code {code}"));
    };
    let line = sanitize(line);
    let line = line.trim_start_matches("Error: ");
    let sentence = line.split_once(". ").map_or(line, |(first, _)| first);
    let words = sentence.split(' ').map(|word| {
        let is_long_number = word.len() > 3 && word.bytes().all(|byte| byte.is_ascii_digit());
        let is_private = word.contains(['/', '\\', '"', '\'', '`', '@']) || is_long_number;
        if is_private { "…" } else { word }
    });
    let message = words.collect::<Vec<_>>().join(" ");
    let message = message.trim_end_matches(['.', ':', '<']);
    truncate(message, MESSAGE_COLUMNS_MAX)
}

/// What Claude Code puts around the error of a tool.
const ERROR_START: &str = "<tool_use_error>";
const ERROR_END: &str = "</tool_use_error>";
const NO_MESSAGE: &str = "no message";
/// What Gemini CLI and Qwen Code put before the output of a command.
const OUTPUT_LABEL: &str = "Output: ";
/// The most lines of a message that are examined.
const LINES_MAX: usize = 200;

/// Words in the lines of a command's output that say what failed.
const FAILURE_WORDS: &[&str] = &[
    "error",
    "exception",
    "fail",
    "fatal",
    "panic",
    "denied",
    "no such",
    "not found",
];

fn names_failure(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    FAILURE_WORDS.iter().any(|word| line.contains(word))
}

/// What agents put before an exit code.
const EXIT_CODE_LABELS: &[&str] = &[
    "exit code",
    "exit code:",
    "process exited with code",
    "command exited with code",
];

/// The exit code, if the line says nothing else: `Exit code 1`.
fn exit_code(line: &str) -> Option<i32> {
    let line = line.trim_start_matches('[').trim_end_matches(']');
    let (words, code) = line.rsplit_once(' ')?;
    let is_label = EXIT_CODE_LABELS
        .iter()
        .any(|label| words.eq_ignore_ascii_case(label));
    code.parse().ok().filter(|_| is_label)
}

/// Whether an agent has added this line to the output of a command.
fn is_frame(line: &str) -> bool {
    let heads = [
        "Chunk ID:",
        "Wall time",
        "Original token count",
        "Command:",
        "Directory:",
    ];
    ["Output:", "(empty)", "(no output)"].contains(&line)
        || (line.starts_with('<') && line.ends_with('>'))
        || heads.iter().any(|head| line.starts_with(head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_same_failure_are_equal() {
        let check = |text: &str, expected: &str| assert_eq!(failure_message(text), expected);
        check(
            "<tool_use_error>File does not exist. Note: your directory is /home/a.</tool_use_error>",
            "File does not exist",
        );
        check("Error: File does not exist.", "File does not exist");
        check(
            "<tool_use_error>File does not exist.</tool_use_error>",
            "File does not exist",
        );
        check(
            "<tool_use_error>String to replace not found in file.\nString: a</b></tool_use_error>\n",
            "String to replace not found in file",
        );
        check("cannot open /tmp/a.txt: 123456", "cannot open … …");
        check("", "no message");
    }

    #[test]
    fn an_exit_code_is_a_message_only_if_there_is_no_other() {
        let check = |text: &str, expected: &str| assert_eq!(failure_message(text), expected);
        check("\n Exit code 1\nmore", "more");
        check(
            "Exit code 101\n   Compiling a v0.1.0\nerror: test failed",
            "error: test failed",
        );
        // Of a tool that is no command, the first line says it.
        check("Invalid input\nthe error is in line 3", "Invalid input");
        check(
            "Chunk ID: 3fafdc\nWall time: 1 s\nProcess exited with code 3\nOutput:\nx",
            "x",
        );
        check(
            "<untrusted_context>\nOutput: /usr/bin/bash: line 4: a: command not found\n\
             Exit Code: 127\nProcess Group PGID: 23599\n</untrusted_context>",
            "… line 4: a: command not found",
        );
        // One spelling.
        for text in [
            "Exit code 1",
            "Output: (empty)\nExit Code: 1\nProcess Group PGID: 7",
            "Chunk ID: 3fafdc\nWall time: 1 s\nProcess exited with code 1\nOutput:\n",
            "<shellId: 3 completed with exit code 1>",
            "(no output)\n\n[Command exited with code 1]",
        ] {
            check(text, "Exit code 1");
        }
        check(
            "Exit code 1 is not what I expected",
            "Exit code 1 is not what I expected",
        );
    }
}
