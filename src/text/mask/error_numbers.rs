//! Classifies the numbers of an error. A number is kept if it is significant: a count
//! of failed tests, a status code, an expected or actual value. All other numbers are
//! noise.
//!
//! The word before the number and the one or two words after it decide. Cost: a few
//! comparisons with short word lists per number.

use super::cursor::Cursor;
use super::{PrecedingWord, is_one_of};

/// Labels of what a test expected and what it got. A list of values may follow.
const VALUE_LABELS: [&str; 5] = ["expected", "got", "left", "right", "want"];
const CODE_LABELS: [&str; 6] = ["code", "status", "http", "errno", "exit", "signal"];
/// A number directly before one of these words is a count ("2 failed").
const COUNT_NOUNS: [&str; 15] = [
    "failed", "passed", "error", "errors", "failure", "failures", "warning", "warnings", "test",
    "tests", "skipped", "failing", "passing", "problem", "problems",
];
/// A number is also a count if one adjective separates it from one of these words ("due
/// to 3 previous errors").
const PLURAL_COUNT_NOUNS: [&str; 5] = ["errors", "failures", "warnings", "tests", "problems"];
/// The minimum length of that adjective. It excludes prepositions: in "line 3 in tests"
/// the number is no count.
const ADJECTIVE_LETTERS_MIN: usize = 4;
/// A number after one of these words is a count if the word is a label ("Failures: 2",
/// "errors=1", "Received: 4").
const COUNT_LABELS: [&str; 10] = [
    "failed", "passed", "errors", "failures", "warnings", "skipped", "run", "received", "actual",
    "was",
];

/// Whether a number is kept, and why.
pub enum NumberRole {
    Noise,
    /// Kept because of the text next to it.
    Significant,
    /// Kept as an item of a list. The next number of the list is kept too.
    ListItem,
}

pub fn classify_number(
    text: &[u8],
    before: &PrecedingWord,
    start: usize,
    end: usize,
) -> NumberRole {
    let Some(gap) = before.gap_to(text, start) else {
        return if is_count(text, start, end) {
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
        || is_count(text, start, end);
    if is_significant {
        NumberRole::Significant
    } else {
        NumberRole::Noise
    }
}

/// Matches `exitcode` and `statusCode`.
fn ends_with_code(word: &[u8]) -> bool {
    let tail = word.len().checked_sub(4).and_then(|i| word.get(i..));
    tail.is_some_and(|w| w.eq_ignore_ascii_case(b"code"))
}

/// Whether the text after a number makes it significant: "3 failed", "3 != 4", "[1, 2]
/// == [1]".
fn is_count(text: &[u8], start: usize, end: usize) -> bool {
    let mut c = Cursor::new(text, end);
    let mut behind = c;
    // `12:7 error` is a place: a line and a column.
    let is_place = Cursor::new(text, start).peek_back(1) == b':'
        || text
            .get(start..end)
            .is_some_and(|number| number.contains(&b':'));
    if !is_place && behind.eat(b' ') {
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
