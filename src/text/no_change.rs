//! Recognises the answer of a write that says nothing was changed: "No replacement was
//! performed", "Already up to date.", `{"updatedCells": 0}`.
//!
//! Only short answers are searched: a long one shows what was changed. Cost: one
//! Aho-Corasick pass over at most 512 bytes.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

/// A longer answer contains more than a receipt.
const ANSWER_BYTES_MAX: usize = 512;

/// Phrases that say so.
#[rustfmt::skip]
const NO_CHANGE_PHRASES: &[&str] = &[
    "no change", "nothing changed", "nothing was changed", "nothing to ", "not changed",
    "up to date", "up-to-date", "unchanged", "no replacement", "no modification", "no edits were",
    "no rows ", "already exists, skipping", "no local changes", "not been applied", "not applied",
    "no edits made", "not modified", "no effect", "already satisfied", "already installed",
];
/// Words for what a write did. A count beside one says how much; 0 is nothing.
#[rustfmt::skip]
const COUNTED_WORDS: &[&str] = &[
    "updated", "modified", "changed", "affected", "replaced", "replacement", "inserted", "deleted",
    "added", "rows", "cells", "records", "documents", "occurrences", "files",
];

static SEARCHER: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .build(NO_CHANGE_PHRASES.iter().chain(COUNTED_WORDS))
        .ok()
});

/// Whether the answer of a write says that nothing was changed.
pub fn says_nothing_changed(answer: &str) -> bool {
    let answer = answer.trim();
    if answer.is_empty() || answer.len() > ANSWER_BYTES_MAX {
        return false;
    }
    if is_empty_command_tag(answer) {
        return true;
    }
    let Some(searcher) = &*SEARCHER else {
        return false;
    };
    let mut says_so = false;
    for found in searcher.find_iter(answer) {
        if found.pattern().as_usize() < NO_CHANGE_PHRASES.len() {
            says_so = true;
            continue;
        }
        let before = answer.get(..found.start()).unwrap_or_default();
        let after = answer.get(found.end()..).unwrap_or_default();
        match number_before(before).or_else(|| number_after(after)) {
            Some(0) => says_so = true,
            // Something else was changed.
            Some(_) => return false,
            None => {}
        }
    }
    says_so
}

/// Whether an answer is what a database says of a statement that touched no row:
/// `UPDATE 0`, `INSERT 0 0`.
fn is_empty_command_tag(answer: &str) -> bool {
    const TAG_BYTES_MAX: usize = 16;
    const TAGS: &[&str] = &["UPDATE", "DELETE", "INSERT", "MERGE", "COPY"];
    answer.len() <= TAG_BYTES_MAX
        && answer.ends_with(" 0")
        && answer
            .split(' ')
            .next()
            .is_some_and(|tag| TAGS.contains(&tag))
}

/// The number right before a word: `0 ` of "0 rows".
fn number_before(text: &str) -> Option<u32> {
    let digits = text.trim_end_matches(' ');
    let from = digits.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    digits.get(from..)?.parse().ok()
}

/// The number that a word is the name of: `Cells": 0` of `"updatedCells": 0`, `=0` of
/// `changed=0`.
fn number_after(text: &str) -> Option<u32> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '"');
    let value = rest.strip_prefix([':', '='])?.trim_start();
    let end = value.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    value.get(..value.len() - end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_a_change_is_recognised() {
        for answer in [
            "No changes to make: old_string and new_string are exactly the same.",
            "No replacement was performed, old_str `a` did not appear verbatim in /w/b.",
            "The tool made no changes to api.py.",
            "Already up to date.",
            "On branch main\nnothing to commit, working tree clean",
            "{\"spreadsheetId\":\"1Zk\",\"updatedRows\":0,\"updatedCells\":0}",
            "{\"modified_count\": 0}",
            "UPDATE: 0 rows affected",
            "UPDATE 0",
            "INSERT 0 0",
            "No local changes to save",
            "0 replacements made",
            "1 file left unchanged.",
        ] {
            assert!(says_nothing_changed(answer), "{answer}");
        }
    }

    #[test]
    fn an_answer_with_a_change_is_not() {
        for answer in [
            "",
            "ok",
            "The file /w/a.py has been updated.",
            "10 rows affected",
            "{\"updatedRows\": 4, \"skipped\": 0}",
            "1 file changed, 0 insertions(+), 2 deletions(-)",
            "2 files reformatted, 3 files left unchanged.",
            "3 rows updated, 0 rows deleted",
            "Successfully modified file: /p/a.py (1 replacements).",
        ] {
            assert!(!says_nothing_changed(answer), "{answer}");
        }
    }
}
