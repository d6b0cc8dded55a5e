//! What an answer says, apart from its words: nothing, that nothing was found, or
//! something. Different calls with one answer are stuck only if the answer is no.
//!
//! Cost: one Aho-Corasick pass over an answer of at most 400 bytes.

use std::sync::LazyLock;

use aho_corasick::{
    Anchored,
    automaton::{Automaton, StateID},
    dfa::DFA,
};

use super::ack;
use crate::domain::AnswerKind;

/// Longer answers carry information, whatever words are in them.
const PHRASE_BYTES_MAX: usize = 400;
/// Answers for different objects are often equal up to this length: "202 Accepted".
const BRIEF_BYTES_MAX: usize = 100;

/// Phrases that say that nothing was found, or that it is not allowed.
#[rustfmt::skip]
const NO_PHRASES: &[&str] = &[
    "not found", "no match", "no result", "no such", "nothing found", "none found", "no hits",
    "does not exist", "doesn't exist", "do not exist", "not exist", "could not find", "found 0 ",
    "couldn't find", "cannot find", "can't find", "unable to find", "no files", "no rows",
    "no records", "no items", "no entries", "no data", "0 results", "0 matches", "0 rows", "0 hits",
    "0 files", "not available", "unknown ", "is not defined", "undefined ", "no longer available",
    "nicht gefunden", "keine treffer", "introuvable", "aucun", "no encontrad", "sin resultados",
    "non trovat", "未找到", "没有找到", "見つかりません",
    "\"found\": false", "\"found\":false", "\"ok\": false", "\"ok\":false", "\"success\": false",
    "\"success\":false", "\"count\": 0", "\"count\":0", "\"total\": 0", "\"total\":0",
    "error: ", "captcha", "access denied", "permission denied", "forbidden",
    "unauthorized", "not authorized", "not allowed", "not permitted", "login required",
    "authentication required", "invalid ", "verify you are", "verify that you are", "just a moment", "enable javascript",
    "unavailable", "end of results", "no more ", "wrong answer", "incorrect", "nothing happen",
    "there is no ", "there are no ", "there were no ",
    "try again", "bad credentials", "bad request", "\"status\":40", "\"status\": 40", "http 40",
];
/// An empty list in an answer, which is no only where the answer is that list.
const EMPTY_LIST: &str = "[]";
/// The key of an error in an object, which is no only with a value.
const ERROR_KEY: &str = "error\":";
/// What a check finds none of when all is well: "no problems found".
#[rustfmt::skip]
const GOOD_NEWS: &[&str] = &[
    "no problem", "no issue", "no error", "no warning", "no vulnerabilit", "no conflict",
    "no violation", "no difference", "no diagnostics", "no regressions", "0 errors", "0 problems",
    "0 issues", "0 failures", "0 failed", "0 vulnerabilities", "\"error\": null", "\"error\":null",
    "\"errors\": []", "\"errors\":[]", "\"warnings\": []", "\"issues\": []", "\"problems\": []",
];

/// What a run says when all is well, or when it has only done its work. Parts of words, since
/// a run that says more than it found is left alone.
#[rustfmt::skip]
const WELL_PARTS: &[&str] = &[
    "pass", "succe", "ok", "complet", "done", "finish", "built", "build", "compil", "clean", "valid",
    "same", "equal", "identical", "match", "healthy", "\"up\"", "online", "alive", "green",
    "up to date", "up-to-date", "nothing", "ready", "saved", "formatted", "generated", "wrote",
    "written", "writing", "convert", "bundle", "started", "listening", "installed", "deployed", "✓", "✔", "✅",
];

/// The automaton of all phrases, and its first state. It is run here: an iterator over its
/// overlapping matches costs half as much again.
static PHRASE_AUTOMATON: LazyLock<Option<(DFA, StateID)>> = LazyLock::new(|| {
    let automaton = DFA::builder()
        .ascii_case_insensitive(true)
        .build(
            NO_PHRASES
                .iter()
                .chain(GOOD_NEWS)
                .chain(WELL_PARTS)
                .chain([&EMPTY_LIST, &ERROR_KEY]),
        )
        .ok()?;
    let start = automaton.start_state(Anchored::No).ok()?;
    Some((automaton, start))
});

/// What an answer says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerReading {
    pub kind: AnswerKind,
    /// A short answer that does not say that all is well: a score, a difference.
    pub leaves_open: bool,
    /// It says that what was asked for is not there: no hits, an empty list.
    pub found_nothing: bool,
    /// A short answer with a value, rather than a word or two on how it is: rows, a list.
    pub is_datum: bool,
}

impl AnswerReading {
    const KINDS: [AnswerKind; 5] = [
        AnswerKind::Unknown,
        AnswerKind::Empty,
        AnswerKind::Negative,
        AnswerKind::Brief,
        AnswerKind::Substantial,
    ];

    /// As a word, for a cache.
    pub fn pack(self) -> u64 {
        let kind = Self::KINDS.iter().position(|kind| *kind == self.kind);
        let flags = u64::from(self.is_datum) << 2
            | u64::from(self.leaves_open) << 1
            | u64::from(self.found_nothing);
        (kind.unwrap_or_default() as u64) << 3 | flags
    }

    pub fn unpack(packed: u64) -> Self {
        let kind = Self::KINDS.get((packed >> 3) as usize);
        Self {
            kind: kind.copied().unwrap_or_default(),
            is_datum: packed & 4 != 0,
            leaves_open: packed & 2 != 0,
            found_nothing: packed & 1 != 0,
        }
    }
}

/// The phrases in a short answer.
#[derive(Default)]
struct FoundPhrases {
    no: bool,
    good_news: bool,
    well: bool,
}

impl FoundPhrases {
    /// Adds the phrase with this number, which ends before `end`.
    fn add(&mut self, phrase: usize, answer: &str, end: usize) {
        const GOOD_NEWS_START: usize = NO_PHRASES.len();
        const WELL_START: usize = GOOD_NEWS_START + GOOD_NEWS.len();
        const EMPTY_LIST_AT: usize = WELL_START + WELL_PARTS.len();
        match phrase {
            ..GOOD_NEWS_START => self.no = true,
            // It decides, whatever else the answer says.
            GOOD_NEWS_START..WELL_START => self.good_news = true,
            WELL_START..EMPTY_LIST_AT => self.well = true,
            EMPTY_LIST_AT => self.no |= is_list_of_answer(answer, end - EMPTY_LIST.len()),
            _ => self.no |= has_value(answer.get(end..).unwrap_or_default()),
        }
    }
}

/// What the answer of a call says. `result`: without what the harness added.
pub fn classify(failed: bool, result: Option<&str>) -> AnswerReading {
    let kind = |kind| AnswerReading {
        kind,
        ..AnswerReading::default()
    };
    if failed {
        return kind(AnswerKind::Negative);
    }
    let Some(result) = result else {
        return kind(AnswerKind::Unknown);
    };
    let trimmed = result.trim();
    if ack::is_empty_result(trimmed) {
        return AnswerReading {
            // A tool that never answers has found nothing out, either way.
            found_nothing: trimmed.starts_with(['[', '{']),
            ..kind(AnswerKind::Empty)
        };
    }
    if trimmed.len() > PHRASE_BYTES_MAX {
        return kind(AnswerKind::Substantial);
    }
    let mut found = find_phrases(trimmed);
    let absence = read_absence(trimmed);
    found.good_news |= absence == Absence::OfFaults;
    let says_no = !found.good_news
        && (found.no || absence == Absence::OfThings || !found.well && has_only_headings(trimmed));
    let is_brief = trimmed.len() <= BRIEF_BYTES_MAX;
    AnswerReading {
        is_datum: is_brief && !says_no && !found.good_news && !found.well && !is_words(trimmed),
        kind: if says_no {
            AnswerKind::Negative
        } else if is_brief {
            AnswerKind::Brief
        } else {
            AnswerKind::Substantial
        },
        found_nothing: says_no,
        leaves_open: !found.good_news && !found.well && has_word(trimmed),
    }
}

/// Whether the answer has a word. A number or a date alone says too little.
fn has_word(answer: &str) -> bool {
    const LETTERS_MIN: usize = 4;
    answer
        .split(|c: char| !c.is_alphabetic())
        .any(|word| word.chars().nth(LETTERS_MIN - 1).is_some())
}

fn find_phrases(answer: &str) -> FoundPhrases {
    let mut found = FoundPhrases::default();
    let Some((automaton, start)) = &*PHRASE_AUTOMATON else {
        return found;
    };
    let mut state = *start;
    for (at, byte) in answer.bytes().enumerate() {
        state = automaton.next_state(Anchored::No, state, byte);
        if automaton.is_special(state) && automaton.is_match(state) {
            for n in 0..automaton.match_len(state) {
                let phrase = automaton.match_pattern(state, n).as_usize();
                found.add(phrase, answer, at + 1);
            }
        }
    }
    found
}

/// Whether a JSON value is no empty one and no measured number.
fn has_value(text: &str) -> bool {
    let text = text.trim_start();
    !["null", "false", "\"\"", "{}", "[]"]
        .iter()
        .any(|empty| text.starts_with(empty))
        && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// Whether the empty list at `at` is what the answer is about: in an object, if it is its
/// only value or is named like results. A record may have other lists that are empty.
fn is_list_of_answer(answer: &str, at: usize) -> bool {
    const RESULTS: &[&str] = &[
        "results",
        "result",
        "items",
        "matches",
        "data",
        "hits",
        "rows",
        "records",
        "entries",
        "documents",
        "files",
        "found",
        "list",
        "content",
        "values",
        "output",
        "response",
    ];
    if !answer.starts_with('{') || !answer.contains(',') {
        return true;
    }
    let before = answer.get(..at).unwrap_or_default().trim_end();
    let key = before.strip_suffix(':').map(|before| {
        let before = before.trim_end().trim_end_matches(['"', '\'']);
        let start = before.rfind(['"', '\'']).map_or(0, |at| at + 1);
        before.get(start..).unwrap_or_default()
    });
    key.is_none_or(|key| {
        RESULTS
            .iter()
            .any(|word| ends_with_ignoring_case(key, word))
    })
}

fn ends_with_ignoring_case(text: &str, end: &str) -> bool {
    text.len()
        .checked_sub(end.len())
        .and_then(|at| text.get(at..))
        .is_some_and(|tail| tail.eq_ignore_ascii_case(end))
}

/// Whether the answer is only words: "active", "fast forward". A value has a digit or a mark.
fn is_words(answer: &str) -> bool {
    answer
        .chars()
        .all(|c| c.is_alphabetic() || matches!(c, ' ' | '-' | '_' | '.'))
}

/// Whether nothing follows the headings of a report: "Files found:".
fn has_only_headings(answer: &str) -> bool {
    answer.ends_with(':')
        && answer
            .lines()
            .all(|line| line.is_empty() || line.ends_with(':'))
}

/// What an answer says there is none of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    Unsaid,
    /// What was asked for: "No customers found", "no users match".
    OfThings,
    /// What a check looks for: "No broken links found", "no known vulnerabilities".
    OfFaults,
}

/// Reads what follows "no": a kind of thing, then a word such as "found".
fn read_absence(answer: &str) -> Absence {
    const ENDINGS: &[&str] = &["found", "left", "match", "matched", "available"];
    /// Words between "no" and the fault: "no accessibility violations".
    const WORDS_MAX: usize = 3;
    // Most answers have no word that ends like "no", so that they need not be split.
    let bytes = answer.as_bytes();
    let mut starts = memchr::memchr2_iter(b'n', b'N', bytes);
    if !starts.any(|at| {
        matches!(bytes.get(at + 1), Some(b'o' | b'O'))
            && !bytes.get(at + 2).is_some_and(u8::is_ascii_alphanumeric)
    }) {
        return Absence::Unsaid;
    }
    let mut words = answer
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty());
    while words.by_ref().any(|word| word.eq_ignore_ascii_case("no")) {
        // What matches a query is what was asked for, whatever it is.
        let mut object = words
            .clone()
            .take(WORDS_MAX + 1)
            .take_while(|word| !is_selection(word));
        if object.any(is_fault) {
            return Absence::OfFaults;
        }
        let mut after = words.clone().skip(1).take(5);
        if after.any(|word| {
            ENDINGS
                .iter()
                .any(|ending| word.eq_ignore_ascii_case(ending))
        }) {
            return Absence::OfThings;
        }
    }
    Absence::Unsaid
}

/// Whether a word begins like that for something that a check looks for and that is better
/// not there.
fn is_fault(word: &str) -> bool {
    #[rustfmt::skip]
    const FAULTS: &[&str] = &[
        "problem", "issue", "error", "warning", "vulnerab", "conflict", "violation", "secret", "leak",
        "duplicate", "typo", "broken", "dead", "missing", "unused", "outdated", "stale", "orphan",
        "invalid", "fail", "defect", "regression", "smell", "malware", "virus", "threat", "infect",
        "anomal", "inconsisten", "mismatch", "misspel", "deprecat", "unresolved", "exception",
        "differen", "discrepan", "drift", "alert", "incident", "cycle", "cyclic", "circular", "lint",
        "diagnostic", "offense", "overlap", "corrupt", "blocker", "risk", "weakness", "breaking",
    ];
    FAULTS.iter().any(|fault| {
        word.get(..fault.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(fault))
    })
}

/// Whether a word says that something was selected: "no matching issues", "no open errors".
fn is_selection(word: &str) -> bool {
    [
        "matching", "matched", "such", "open", "relevant", "related", "similar", "results",
    ]
    .iter()
    .any(|known| known.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(result: &str, answer: AnswerKind) {
        assert_eq!(classify(false, Some(result)).kind, answer, "{result}");
    }

    #[test]
    fn an_answer_without_content_is_empty() {
        for empty in [
            "",
            " \n",
            "[]",
            "{}",
            "null",
            "(empty)",
            "(no output)",
            "\"\"",
        ] {
            check(empty, AnswerKind::Empty);
        }
    }

    #[test]
    fn an_answer_that_says_nothing_was_found_is_negative() {
        for no in [
            "No matches found for 'x'",
            "No customers found for 'Smyth'",
            "Error: user not found",
            "{\"error\": \"no such city\"}",
            "{\"ok\": false, \"detail\": \"shape not there\"}",
            "{\"results\": [], \"total\": 0}",
            "{\"query\": \"x\", \"searchResults\": []}",
            "{\"data\": {\"users\": []}}",
            "Users: []",
            "No matching issues found",
            "No customers found.",
            "Python files found:\n\nSchemas found:",
            "Keine Treffer",
        ] {
            check(no, AnswerKind::Negative);
        }
        assert_eq!(classify(true, None).kind, AnswerKind::Negative);
    }

    #[test]
    fn other_answers_are_not() {
        for yes in [
            "active",
            "No problems found.",
            "No broken links found in docs.",
            "No accessibility violations found (axe-core 4.9, 61 rules)",
            "no known vulnerabilities",
            "No type errors found",
            "No duplicates found",
            "{\"id\": \"queued\", \"error\": \"\"}",
            "{\"error\": 0.0012, \"iterations\": 500}",
            "{\"user\": \"u-anna\", \"roles\": [], \"locked\": false}",
            "valid",
            "UTC",
            "{\"errors\": []}",
        ] {
            check(yes, AnswerKind::Brief);
        }
        check(&"row ".repeat(200), AnswerKind::Substantial);
        assert_eq!(classify(false, None).kind, AnswerKind::Unknown);
    }

    #[test]
    fn a_score_or_a_difference_leaves_it_open_whether_all_is_well() {
        let leaves_open = |text| classify(false, Some(text)).leaves_open;
        for open in [
            "nDCG@10: 0.6134",
            "312 pixels differ",
            "Title and logo overlap by 14 pt",
        ] {
            assert!(leaves_open(open), "{open}");
        }
        for well in [
            "12 passed",
            "Build succeeded",
            "0 errors",
            "No problems found.",
            "",
            "200",
            "2026-11-18",
            "✓ 3",
        ] {
            assert!(!leaves_open(well), "{well}");
        }
        assert!(!leaves_open(&"row ".repeat(200)));
    }
}
