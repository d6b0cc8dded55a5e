//! The numbers of an error that are its point: how many tests failed, which
//! status came, what was expected.

use super::cursor::Cursor;
use super::{PrecedingWord, is_one_of};

/// What a test expected and what it got. There may be several values: a list.
const VALUE_LABELS: [&str; 5] = ["expected", "got", "left", "right", "want"];
const CODE_LABELS: [&str; 6] = ["code", "status", "http", "errno", "exit", "signal"];
/// Words that count when a number stands before them ("2 failed") …
const COUNT_NOUNS: [&str; 15] = [
    "failed", "passed", "error", "errors", "failure", "failures", "warning", "warnings", "test",
    "tests", "skipped", "failing", "passing", "problem", "problems",
];
/// … also with a word between ("due to 3 previous errors") …
const PLURAL_COUNT_NOUNS: [&str; 5] = ["errors", "failures", "warnings", "tests", "problems"];
/// … which is no preposition: "line 3 in tests" counts none.
const ADJECTIVE_LETTERS_MIN: usize = 4;
/// … and when they are a label ("Failures: 2", "errors=1", "Received: 4").
const COUNT_LABELS: [&str; 10] = [
    "failed", "passed", "errors", "failures", "warnings", "skipped", "run", "received", "actual",
    "was",
];

/// Whether the number from `start` to `end` stays, and why.
pub enum NumberRole {
    Noise,
    /// For what stands beside it.
    Significant,
    /// It is one of a list, and the next one stays too.
    ListItem,
}

pub fn classify_number(
    text: &[u8],
    before: &PrecedingWord,
    start: usize,
    end: usize,
) -> NumberRole {
    let Some(gap) = before.gap_to(text, start) else {
        return if is_count(Cursor::new(text, end)) {
            NumberRole::Significant
        } else {
            NumberRole::Noise
        };
    };
    let word = before.word(text);
    let is_http = word
        .get(..4)
        .is_some_and(|w| w.eq_ignore_ascii_case(b"http"));
    if is_one_of(word, &VALUE_LABELS) || matches!(word, [.., b'=']) || is_http {
        return NumberRole::ListItem;
    }
    let is_label = gap.iter().any(|b| matches!(b, b':' | b'='));
    let is_significant = is_one_of(word, &CODE_LABELS)
        || ends_with_code(word)
        || is_label && is_one_of(word, &COUNT_LABELS)
        || is_count(Cursor::new(text, end));
    if is_significant {
        NumberRole::Significant
    } else {
        NumberRole::Noise
    }
}

/// `exitcode`, `statusCode`.
fn ends_with_code(word: &[u8]) -> bool {
    let tail = word.len().checked_sub(4).and_then(|i| word.get(i..));
    tail.is_some_and(|w| w.eq_ignore_ascii_case(b"code"))
}

/// "3 failed", "3 != 4", "[1, 2] == [1]": what stands behind a number.
fn is_count(mut c: Cursor) -> bool {
    let mut behind = c;
    if behind.eat(b' ') {
        let word = behind.eat_letters();
        let between = word.len() >= ADJECTIVE_LETTERS_MIN && behind.eat(b' ');
        if is_one_of(word, &COUNT_NOUNS)
            || between && is_one_of(behind.eat_letters(), &PLURAL_COUNT_NOUNS)
        {
            return true;
        }
    }
    for _ in 0..3 {
        c.eat_any(b" )]}'\"`");
    }
    matches!(c.peek(0), b'=' | b'!' | b'<' | b'>') && c.peek(1) == b'='
}
