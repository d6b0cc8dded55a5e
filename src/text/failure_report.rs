//! Recognises the report of a failed run in its output: failed tests, an error of a
//! compiler, a traceback. The outcome alone does not show it: with a pipe (`pytest |
//! tail`) or `|| true` the command succeeds, and many tools answer OK with any text.
//!
//! Only the form of a report counts, at the beginning of a line. "error" within a line is
//! a title, a log line or source code. Cost: one Aho-Corasick pass over the last 2 KiB, and
//! a look at the beginnings of lines if it finds something.

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

/// What begins a line of a compiler, a build tool or a runtime that reports a failure.
#[rustfmt::skip]
const LINE_STARTS: &[&str] = &[
    "error: ", "error[", "Error: ", "ERROR: ", "fatal: ", "fatal error: ", "FAILED ", "FAIL ",
    "make: *** ", "npm ERR!", "npm error ", "BUILD FAILED", "panic: ", "FAILURE: ", "Traceback (",
    "Unhandled exception", "Uncaught ",
];
/// Members of a JSON report that say the same.
const FAILED_MEMBERS: &[&str] = &[
    "\"success\": false",
    "\"success\":false",
    "\"passed\": false",
    "\"passed\":false",
];
/// Each line start and each name of an exception contains one of these.
const LINE_HINTS: &[&str] = &[
    "error",
    "fail",
    "fatal",
    "panic",
    "traceback",
    "exception",
    "uncaught",
    "make: *",
    "false",
    "not pass",
    "been applied",
];

static HINT_SEARCHER: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .build(LINE_HINTS)
        .ok()
});

/// Whether the output of a run says that the run failed.
pub fn reports_failed_run(output: &str) -> bool {
    let tail = sanitize::suffix(output, TAIL_BYTES_MAX);
    let has_hint = HINT_SEARCHER
        .as_ref()
        .is_some_and(|searcher| searcher.is_match(tail));
    has_hint
        && (reports_failures(tail)
            || tail.lines().any(is_failure_line)
            || ends_with_exception(tail)
            || FAILED_MEMBERS.iter().any(|member| tail.contains(member)))
}

fn is_failure_line(line: &str) -> bool {
    let line = line.trim_start();
    LINE_STARTS.iter().any(|start| line.starts_with(start))
        || is_failed_summary(line)
        || is_compiler_error(line)
        || line.ends_with("Traceback (most recent call last)")
        || line.contains(" panicked at ")
        || line.contains(" did not pass")
        || line.contains(" NOT been applied")
}

/// Matches the line that sums up a run, with a count other than 0: "Tests: 41, Failures: 2",
/// "Failed: 2, Passed: 40", "3 problems (3 errors, 0 warnings)".
fn is_failed_summary(line: &str) -> bool {
    const LABELS: &[&str] = &["Failures:", "Failed:", "Errors:"];
    let count_after = |label: &&str| {
        let (_, after) = line.split_once(*label)?;
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_digit());
        after.get(..end.unwrap_or(after.len()))?.parse::<u32>().ok()
    };
    let sums_up = line.contains("Tests") || line.contains("Passed:");
    let failed = sums_up && LABELS.iter().filter_map(count_after).any(|count| count > 0);
    let linted = line
        .split_once(" problems (")
        .or_else(|| line.split_once(" problem ("));
    failed
        || linted.is_some_and(|(_, counts)| counts.contains(" error") && !counts.starts_with("0 "))
}

/// Matches `src/ring.c:41:12: error: …`: a place, then the word.
fn is_compiler_error(line: &str) -> bool {
    let place = line.split_once(": error").map(|(place, _)| place);
    place.is_some_and(|place| {
        place.ends_with(|c: char| c.is_ascii_digit() || c == ')') && !place.contains(' ')
    })
}

/// Whether the last line names an exception: "ModuleNotFoundError: No module named 'x'".
fn ends_with_exception(output: &str) -> bool {
    let last = output.trim_end().lines().next_back().unwrap_or_default();
    let name = last.split_once(':').map_or(last, |(name, _)| name);
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && (name.ends_with("Error") || name.ends_with("Exception"))
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_'))
}

/// Whether the output reports failed tests.
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
    fn a_failed_run_is_recognised_by_the_form_of_its_report() {
        for failed in [
            "1 failed, 3 passed in 0.12s",
            "error[E0502]: cannot borrow\n --> src/a.rs:1:2",
            "cc -c ring.c\nring.c:41:12: error: no member named 'head'\nmake: *** [ring.o] Error 1",
            "KeyError      Traceback (most recent call last)\nKeyError: 'ts'",
            "    import yaml\nModuleNotFoundError: No module named 'yaml'",
            "thread 'main' panicked at src/lib.rs:88:9:",
            "fatal: not a git repository",
            "Test case did not pass. Please try again.",
            "Your changes have NOT been applied. Please fix your edit command.",
            "FAILURES!\nTests: 41, Assertions: 88, Failures: 2.",
            "Failed!  - Failed:     2, Passed:    40, Skipped:     0",
            "\u{2716} 3 problems (3 errors, 0 warnings)",
        ] {
            assert!(reports_failed_run(failed), "{failed}");
        }
        for healthy in [
            "",
            "3 passed in 0.12s",
            "a01 fix error: nil map\nb22 retry on FAILED",
            "src/http/client.go:41:\tlog.Printf(\"error: %v\", err)",
            "DONE: 12 FAILED: 0 LEFT: 228",
            "no errors found",
            "0 errors, 3 warnings",
            "Tests run: 12, Failures: 0, Errors: 0",
            "\u{2716} 2 problems (0 errors, 2 warnings)",
            "12 failed login attempts",
        ] {
            assert!(!reports_failed_run(healthy), "{healthy}");
        }
    }

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
