//! The numbers of an error that are its point: how many tests failed, which
//! status came, what was expected.

use super::cursor::Cursor;
use super::{Before, one_of};

/// What a test expected and what it got. There may be several values: a list.
const VALUES: [&str; 5] = ["expected", "got", "left", "right", "want"];
const CODES: [&str; 6] = ["code", "status", "http", "errno", "exit", "signal"];
/// Words that count when a number stands before them ("2 failed") …
const COUNTED: [&str; 15] = [
    "failed", "passed", "error", "errors", "failure", "failures", "warning", "warnings", "test",
    "tests", "skipped", "failing", "passing", "problem", "problems",
];
/// … also with a word between ("due to 3 previous errors") …
const MANY: [&str; 5] = ["errors", "failures", "warnings", "tests", "problems"];
/// … which is no preposition: "line 3 in tests" counts none.
const BETWEEN_LETTERS_MIN: usize = 4;
/// … and when they are a label ("Failures: 2", "errors=1", "Received: 4").
const LABELS: [&str; 10] = [
    "failed", "passed", "errors", "failures", "warnings", "skipped", "run", "received", "actual",
    "was",
];

/// Whether the number from `start` to `end` stays, and why.
pub enum Kept {
    No,
    /// For what stands beside it.
    Alone,
    /// It is one of a list, and the next one stays too.
    Listed,
}

pub fn kept(text: &[u8], before: &Before, start: usize, end: usize) -> Kept {
    let Some(gap) = before.gap(text, start) else {
        return if is_counted(Cursor::new(text, end)) {
            Kept::Alone
        } else {
            Kept::No
        };
    };
    let word = before.word(text);
    let is_http = word
        .get(..4)
        .is_some_and(|w| w.eq_ignore_ascii_case(b"http"));
    if one_of(word, &VALUES) || matches!(word, [.., b'=']) || is_http {
        return Kept::Listed;
    }
    let is_label = gap.iter().any(|b| matches!(b, b':' | b'='));
    let stays = one_of(word, &CODES)
        || ends_with_code(word)
        || is_label && one_of(word, &LABELS)
        || is_counted(Cursor::new(text, end));
    if stays { Kept::Alone } else { Kept::No }
}

/// `exitcode`, `statusCode`.
fn ends_with_code(word: &[u8]) -> bool {
    let tail = word.len().checked_sub(4).and_then(|i| word.get(i..));
    tail.is_some_and(|w| w.eq_ignore_ascii_case(b"code"))
}

/// "3 failed", "3 != 4", "[1, 2] == [1]": what stands behind a number.
fn is_counted(mut c: Cursor) -> bool {
    let mut behind = c;
    if behind.eat(b' ') {
        let word = behind.letters();
        let between = word.len() >= BETWEEN_LETTERS_MIN && behind.eat(b' ');
        if one_of(word, &COUNTED) || between && one_of(behind.letters(), &MANY) {
            return true;
        }
    }
    for _ in 0..3 {
        c.eat_any(b" )]}'\"`");
    }
    matches!(c.peek(0), b'=' | b'!' | b'<' | b'>') && c.peek(1) == b'='
}
