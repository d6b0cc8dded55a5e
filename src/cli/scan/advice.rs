//! Lines for the instructions of agents, from the loops and failures of a scan.

use std::io::{self, Write};

use super::totals::ScanSummary;

/// The line that would prevent a detector's loops. Detectors without a line are left out.
const BY_DETECTOR: &[(&str, &str)] = &[
    (
        "read_loop",
        "Do not read a file again that has not changed: use what you have.",
    ),
    (
        "test_fail_loop",
        "After a command fails twice the same way, change something or ask before you run it again.",
    ),
    (
        "exact_repeat",
        "Do not repeat a call that gave the same answer: try another way.",
    ),
    (
        "near_repeat",
        "Do not repeat a call with small changes: say what you look for, and try another way.",
    ),
    (
        "interleaved_repeat",
        "Do not return to a call that gave the same answer: try another way.",
    ),
    (
        "cycle",
        "If you come back to the same steps, stop and say what blocks you.",
    ),
    (
        "edit_revert",
        "Do not undo and redo an edit: decide once, and say why.",
    ),
    (
        "write_churn",
        "Plan a change to a file before you write it again.",
    ),
    (
        "patch_spiral",
        "After three fixes of one place that fail, look for the cause elsewhere.",
    ),
    (
        "error_streak",
        "After three errors in a row, stop and look for their common cause.",
    ),
    (
        "stagnation",
        "If several steps change nothing, say what you know and what is missing.",
    ),
    (
        "polling",
        "Wait longer between looks at something that runs.",
    ),
    (
        "similar_turns",
        "Do not announce the same step again: do it, or say why not.",
    ),
    (
        "compaction_loop",
        "Write what you learned to a file before the context is compacted.",
    ),
];

/// The line that would prevent failures, by the start of their message.
const BY_FAILURE: &[(&str, &str)] = &[
    (
        "File does not exist",
        "List a directory before you name a file in it.",
    ),
    (
        "String to replace not found",
        "Read the lines of an edit just before it, and copy them exactly.",
    ),
    (
        "File has not been read yet",
        "Read a file before you edit it.",
    ),
    (
        "File has been modified since read",
        "Read a file again after a formatter or the user changed it.",
    ),
];

/// Fewer failures are chance.
const FAILURES_MIN: u64 = 5;
/// Fewer repeated reads are chance.
const REREADS_MIN: u64 = 10;

pub(super) fn write_lines(out: &mut impl Write, summary: &ScanSummary) -> io::Result<()> {
    let lines = advice(summary);
    if lines.is_empty() {
        return writeln!(out, "Nothing was found that a line would help against.");
    }
    for line in lines {
        writeln!(out, "- {line}")?;
    }
    Ok(())
}

fn advice(summary: &ScanSummary) -> Vec<&'static str> {
    let mut lines = Vec::new();
    for (detector, line) in BY_DETECTOR {
        if summary.by_detector.contains_key(*detector) {
            lines.push(*line);
        }
    }
    for (start, line) in BY_FAILURE {
        let failures = summary.failures.iter();
        let same = failures.filter(|(message, _)| message.starts_with(start));
        if same.map(|(_, count)| count).sum::<u64>() >= FAILURES_MIN {
            lines.push(line);
        }
    }
    let (_, read_loop) = BY_DETECTOR[0];
    if summary.rereads >= REREADS_MIN && !lines.contains(&read_loop) {
        lines.push(read_loop);
    }
    lines
}
