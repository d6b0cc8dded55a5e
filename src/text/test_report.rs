//! Recognises the report of failed tests in the output of a run. The outcome alone does
//! not show it: with a pipe (`pytest | tail`) or `|| true` the command succeeds.
//!
//! Cost: a search for "fail" in the last 2 KiB, and one Aho-Corasick pass if it is found.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use memchr::memchr2_iter;

use crate::domain::sanitize;

/// Runners report at the end of their output.
const TAIL_BYTES_MAX: usize = 2_048;

/// Phrases that report failed tests.
#[rustfmt::skip]
const FAILURE_PHRASES: &[&str] = &[
    "test result: failed",                    // cargo test
    "failed (failures=", "failed (errors=",   // unittest
    "--- fail: ",                             // go test
];
/// Phrases that do so after a number other than 0.
#[rustfmt::skip]
const COUNTED_PHRASES: &[&str] = &[
    " failed, ", " failed in ", " failed |",  // pytest, jest, vitest
    " failing\n", " failing ",                // mocha
    " failure\n", " failures\n",              // rspec
    " tests failed",                          // ctest, nextest
];

static PHRASE_SEARCHER: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .build(FAILURE_PHRASES.iter().chain(COUNTED_PHRASES))
        .ok()
});

pub fn reports_failures(result: &str) -> bool {
    let tail = sanitize::suffix(result, TAIL_BYTES_MAX);
    // Every phrase contains "fail", and most output does not.
    let bytes_at = |at: usize| tail.as_bytes().get(at..at + 4);
    let is_fail = |at| bytes_at(at).is_some_and(|word| word.eq_ignore_ascii_case(b"fail"));
    if !memchr2_iter(b'f', b'F', tail.as_bytes()).any(is_fail) {
        return false;
    }
    PHRASE_SEARCHER.as_ref().is_some_and(|searcher| {
        searcher.find_overlapping_iter(tail).any(|found| {
            let needs_count = found.pattern().as_usize() >= FAILURE_PHRASES.len();
            !needs_count || ends_with_nonzero_number(tail.get(..found.start()).unwrap_or_default())
        })
    })
}

/// Whether the text ends with a number other than 0.
fn ends_with_nonzero_number(before: &str) -> bool {
    let digits = before.trim_end_matches(|c: char| c.is_ascii_digit());
    before
        .get(digits.len()..)
        .is_some_and(|number| number.bytes().any(|digit| digit != b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_failures_are_distinguished_from_reports_of_success() {
        for failed in [
            "FAILED tests/a.py::b - assert 1 == 2\n1 failed, 3 passed in 0.12s",
            "==== 2 failed in 1.47s ====",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored",
            "Tests:       1 failed, 2 passed, 3 total",
            " Tests  1 failed | 2 passed (3)",
            "  3 passing (4s)\n  1 failing\n",
            "--- FAIL: TestParse (0.00s)\nFAIL\nexit status 1",
            "Ran 3 tests in 0.001s\n\nFAILED (failures=1)",
            "3 examples, 1 failure\n",
        ] {
            assert!(reports_failures(failed), "{failed}");
        }
        for passed in [
            "3 passed in 0.12s",
            "test result: ok. 3 passed; 0 failed; 0 ignored",
            "Tests: 0 failed, 3 passed",
            "Tests  3 passed (3)",
            "10 examples, 0 failures\n",
            "the build failed, see above",
            "error: 2 warnings emitted",
            "",
        ] {
            assert!(!reports_failures(passed), "{passed}");
        }
    }
}
