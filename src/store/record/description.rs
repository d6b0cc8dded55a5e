//! Texts in place of those that are not on disk.

use super::Record;
use crate::domain::{Action, BUDGET, format_ranges};

/// The correction used if the original was not stored.
pub(super) fn generic_correction(action: Option<usize>, detector: &str) -> String {
    let terminates = action.and_then(|index| Action::ALL.get(index)) == Some(&Action::Terminate);
    if !terminates {
        return String::new();
    }
    let why = match detector {
        BUDGET => "its budget is used up",
        rule if rule.starts_with("rule:") => "it matched a rule of the operator",
        _ => "it was stuck in a loop",
    };
    format!("This has been ended because {why}. Stop here.")
}

/// A pattern without agent text: "read_loop: count 3, tools read_file, events 4, 6,
/// 8".
pub(super) fn describe(record: &Record) -> String {
    let mut text = format!("{}: count {}", record.detector, record.count);
    if record.period > 1 {
        text += &format!(", period {}", record.period);
    }
    let mut tools: Vec<&str> = record.members.iter().map(|call| &*call.tool).collect();
    tools.retain(|tool| !tool.is_empty());
    tools.dedup();
    if !tools.is_empty() {
        text += &format!(", tools {}", tools.join(", "));
    }
    if !record.event_indexes.is_empty() {
        text += &format!(", events {}", format_ranges(&record.event_indexes));
    }
    text
}
