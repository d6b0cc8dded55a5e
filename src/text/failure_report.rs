//! Recognises the report of a failed run in its output: failed tests, an error of a
//! compiler, a traceback. The outcome alone does not show it: with a pipe (`pytest |
//! tail`) or `|| true` the command succeeds, and many tools answer OK with any text.
//!
//! Only the form of a report counts: what begins a line, or a count with a word for a
//! failure that ends the clause ("1 failed", "3 errors in 2 s"). "error" within a line is a
//! title, a log line or source code. Cost: one Aho-Corasick pass over the last 2 KiB, and a
//! look at the lines in which it finds something.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::domain::sanitize;

/// Runners report at the end of their output.
const TAIL_BYTES_MAX: usize = 2_048;

/// The end of a line in a JSON string.
const ESCAPED_LINE_END: &str = "\\n";

/// What begins a line of a compiler, a build tool or a runtime that reports a failure.
#[rustfmt::skip]
const LINE_STARTS: &[&str] = &[
    "error: ", "error[", "Error: ", "ERROR: ", "ERROR in ", "error during ",
    "error Command failed", "fatal: ", "fatal error: ", "Fatal error: ", "PHP Fatal error: ",
    "FAILED ", "FAIL ", "FAIL\t", "[  FAILED  ]", "--- FAIL: ", "BUILD FAILED", "** BUILD FAILED",
    "** TEST FAILED", "FAILURE: ", "[INFO] BUILD FAILURE",
    "make: *** ", "npm ERR!", "npm error ", "panic: ", "Traceback (", "Unhandled exception",
    "Uncaught ", "Exception in thread ",
];
/// What reports a failure wherever it stands.
#[rustfmt::skip]
const REPORTS: &[&str] = &[
    " panicked at ", " did not pass", " NOT been applied", "test result: FAILED",
    "\"success\": false", "\"success\":false", "\"passed\": false", "\"passed\":false",
    ": Some tests failed",
];
/// Each other report contains one of these: only lines with one are looked at.
#[rustfmt::skip]
const HINTS: &[&str] = &[
    "fail", "error", "fatal", "panic: ", "traceback", "exception", "uncaught", "make: *", "npm err!",
    "command not found", "not ok ", "exit", ".go:",
];

static SEARCHER: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .build(REPORTS.iter().chain(HINTS))
        .ok()
});

/// Whether the output of a run says that the run failed.
pub fn reports_failed_run(output: &str) -> bool {
    let tail = sanitize::suffix(output, TAIL_BYTES_MAX);
    // Some tools return their output as a text in JSON, whose lines are escaped.
    if output.trim_start().starts_with('{') && tail.contains(ESCAPED_LINE_END) {
        return reports_failure(&tail.replace(ESCAPED_LINE_END, "\n"));
    }
    reports_failure(tail)
}

fn reports_failure(tail: &str) -> bool {
    let Some(searcher) = SEARCHER.as_ref() else {
        return false;
    };
    let mut line_end = 0;
    searcher.find_overlapping_iter(tail).any(|found| {
        // Only the hints are found in any case.
        if let Some(report) = REPORTS.get(found.pattern().as_usize()) {
            return tail.get(found.range()) == Some(*report);
        }
        let at = found.start();
        let (before, rest) = tail.split_at_checked(at).unwrap_or_default();
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let opening = before.get(start..).unwrap_or_default();
        if is_counted_failure(opening, rest) || is_compiler_error(opening, rest) {
            return true;
        }
        // Each line is looked at once, however many hints it has.
        if at < line_end {
            return false;
        }
        line_end = at + rest.find('\n').unwrap_or(rest.len());
        let line = tail.get(start..line_end).unwrap_or_default();
        is_failure_line(line)
            // The last line of a traceback may have no message.
            || is_exception_name(line.trim_end_matches([':', '\r', ' ']))
                && tail.get(line_end..).is_none_or(is_blank)
            || is_go_error(line) && before.get(..start).is_some_and(ends_with_package)
    })
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

fn is_failure_line(line: &str) -> bool {
    // A frame before an error: `│ Error: …`, `✘ [ERROR] …`.
    let text = line.trim_start_matches(|c: char| c.is_whitespace() || is_frame_sign(c));
    LINE_STARTS.iter().any(|start| text.starts_with(start))
        // Without a sign before it, it is the level of a line of a log.
        || text.starts_with("[ERROR] ") && line.starts_with(is_frame_sign)
        || is_failed_summary(line)
        || names_exception(line)
        || is_unknown_command(text)
        || is_failed_point(text)
        || is_exit_code(text)
        || line.ends_with("Traceback (most recent call last)")
}

/// A line, a cross or another sign that is no ASCII.
fn is_frame_sign(c: char) -> bool {
    !c.is_ascii() && !c.is_alphanumeric()
}

/// Matches "1 failed", "3 errors in 2 s", "1 FAILED TEST", "2 tests failed." at the word for
/// the failure: a count other than 0 before it, and the end of the clause behind it.
fn is_counted_failure(before: &str, rest: &str) -> bool {
    /// With whether the word counts one only. "500 error" is a status.
    #[rustfmt::skip]
    const WORDS: &[(&str, bool)] = &[
        ("failed", false), ("failures", false), ("failure", true), ("errors", false),
        ("error", true), ("failing", false), ("fail", false),
    ];
    let Some(before) = before.strip_suffix(' ') else {
        return false;
    };
    let length = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
    let (word, after) = rest.split_at_checked(length).unwrap_or_default();
    let known = WORDS
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(word));
    let Some((_, counts_one)) = known else {
        return false;
    };
    ends_clause(after)
        && count_before(before).is_some_and(|count| count > 0 && (!counts_one || count == 1))
}

/// What is counted in a report of failures.
#[rustfmt::skip]
const COUNTED_NOUNS: &[&str] = &[
    "test", "tests", "spec", "specs", "example", "examples", "suite", "suites", "check", "checks",
    "scenario", "scenarios", "assertion", "assertions", "file", "files",
];

fn is_counted_noun(word: &str) -> bool {
    COUNTED_NOUNS
        .iter()
        .any(|noun| noun.eq_ignore_ascii_case(word))
}

/// Whether the clause ends here, apart from a noun, a time or a number in brackets: not
/// "12 failed login attempts", "3 errors found and fixed".
fn ends_clause(after: &str) -> bool {
    let after = after.strip_prefix("(s)").unwrap_or(after);
    let noun = after.strip_prefix(' ').map(|rest| {
        let end = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        rest.split_at_checked(end).unwrap_or_default()
    });
    let after = match noun {
        Some((word, rest)) if is_counted_noun(word) => rest,
        _ => after,
    };
    let mut chars = after.chars();
    match chars.next() {
        None | Some('\n' | '\r') => true,
        Some(',' | '.' | ';' | ')' | ']' | '|' | '!') => {
            chars.next().is_none_or(char::is_whitespace)
        }
        // "12 failed: 0" is a label.
        Some(':') => chars.next().is_none_or(|c| matches!(c, '\n' | '\r')),
        Some(' ') => {
            let rest = chars.as_str();
            let number = rest.strip_prefix("in ").or_else(|| rest.strip_prefix('('));
            let line = || rest.lines().next().unwrap_or_default();
            number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
                && !line().contains("fixed")
                || rest.starts_with(['|', '\u{b7}'])
                || rest.trim_start_matches(' ').starts_with(['\n', '\r'])
                || is_blank(rest)
        }
        Some(_) => false,
    }
}

/// The count that the text ends with: `2` of "Tests: 2", of "2 tests" and of "2 of 9".
/// `None`: it ends with something else, or the number says which try it is, or what was fixed.
fn count_before(text: &str) -> Option<u32> {
    let mut text = text;
    if let Some((rest, word)) = text.rsplit_once(' ')
        && is_counted_noun(word)
    {
        text = rest;
    }
    let (mut rest, mut count) = split_last_number(text)?;
    // A share: "1 of 3 failed", "1/3 failed".
    let share = rest.strip_suffix(" of ").or_else(|| rest.strip_suffix('/'));
    if let Some(part) = share.and_then(split_last_number) {
        (rest, count) = part;
    }
    let label = rest.trim_end_matches([' ', '#']);
    let is_other = ["attempt", "try", "retry", "line", "fixed", "resolved"]
        .iter()
        .any(|word| {
            label
                .len()
                .checked_sub(word.len())
                .and_then(|at| label.get(at..))
                .is_some_and(|end| end.eq_ignore_ascii_case(word))
        });
    (!is_other && !rest.ends_with(['.', '-', '_'])).then_some(count)
}

/// The number at the end of a text, and what is before it.
fn split_last_number(text: &str) -> Option<(&str, u32)> {
    let rest = text.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = text.get(rest.len()..)?.parse().ok()?;
    (!rest.ends_with(char::is_alphabetic)).then_some((rest, number))
}

/// Matches the line that sums up a run, with a count other than 0: "Tests: 41, Failures: 2",
/// "Failed: 2, Passed: 40", "# fail 1".
fn is_failed_summary(line: &str) -> bool {
    const LABELS: &[&str] = &["Failures:", "Failed:", "Errors:"];
    let count_after = |label: &&str| {
        let (_, after) = line.split_once(*label)?;
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_digit());
        after.get(..end.unwrap_or(after.len()))?.parse::<u32>().ok()
    };
    // Few lines have a label at all.
    if let Some(count) = line.strip_prefix("# fail ") {
        return count.trim_end().parse::<u32>().is_ok_and(|count| count > 0);
    }
    memchr::memchr(b':', line.as_bytes()).is_some()
        && (line.contains("Tests") || line.contains("Passed:"))
        && LABELS.iter().filter_map(count_after).any(|count| count > 0)
}

/// Matches `src/ring.c:41:12: error: …` and `src/a.ts:3:14 - error …` at the word: a place
/// before it.
fn is_compiler_error(before: &str, rest: &str) -> bool {
    let before = before.strip_suffix("fatal ").unwrap_or(before);
    let place = before
        .strip_suffix(": ")
        .or_else(|| before.strip_suffix(" - "));
    place.is_some_and(|place| {
        place.ends_with(|c: char| c.is_ascii_digit() || c == ')')
            && !place.trim_start().contains(' ')
            && rest.starts_with("error")
    })
}

/// Matches `store.go:41:9: undefined: x`: a file of Go, a line and a column. Go prints a
/// line with the package before it.
fn is_go_error(line: &str) -> bool {
    let mut parts = line.splitn(4, ':');
    let is_number = |part: Option<&str>| part.is_some_and(|part| part.parse::<u32>().is_ok());
    parts.next().is_some_and(|file| file.ends_with(".go"))
        && is_number(parts.next())
        && is_number(parts.next())
        && parts.next().is_some_and(|message| message.starts_with(' '))
}

fn ends_with_package(before: &str) -> bool {
    before
        .lines()
        .next_back()
        .is_some_and(|line| line.starts_with("# "))
}

/// Whether an unindented line begins with the name of an exception and its message:
/// "TypeError: x is not a function", or ends with it: "a.rb:14:in 'fetch': no key (KeyError)".
fn names_exception(line: &str) -> bool {
    let named = line
        .split_once(": ")
        .is_some_and(|(name, message)| is_exception_name(name) && !is_no_message(message));
    let of_ruby = || {
        line.strip_suffix(')')
            .and_then(|line| line.rsplit_once(" ("))
            .is_some_and(|(before, name)| is_exception_name(name) && before.contains(":in "))
    };
    named || of_ruby()
}

/// A count, or that there is none: "TimeoutError: 0" sums something up.
fn is_no_message(message: &str) -> bool {
    let message = message.trim();
    message.bytes().all(|byte| byte.is_ascii_digit())
        || ["none", "null", "nil", "false", "-"]
            .iter()
            .any(|none| none.eq_ignore_ascii_case(message))
}

/// `KeyError`, `java.lang.NullPointerException`.
fn is_exception_name(name: &str) -> bool {
    let class = name.rsplit('.').next().unwrap_or_default();
    class.starts_with(|c: char| c.is_ascii_uppercase())
        && (name.ends_with("Error") || name.ends_with("Exception"))
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_'))
}

/// Matches `bash: line 1: jq: command not found` and `zsh: command not found: jq`.
fn is_unknown_command(line: &str) -> bool {
    let shell = line.split_once(':').map_or("", |(shell, _)| shell);
    shell.ends_with("sh")
        && !shell.contains(' ')
        && (line.ends_with(": command not found") || line.contains(": command not found: "))
}

/// Matches a failed point of the Test Anything Protocol, unless it is to be done or skipped.
fn is_failed_point(line: &str) -> bool {
    line.strip_prefix("not ok ").is_some_and(|point| {
        point.starts_with(|c: char| c.is_ascii_digit())
            && !["# TODO", "# SKIP", "# todo", "# skip"]
                .iter()
                .any(|mark| point.contains(mark))
    })
}

/// Matches a line that is only an exit code other than 0: "exit: 1", "exit status 2".
fn is_exit_code(line: &str) -> bool {
    const LINE_BYTES_MAX: usize = 32;
    if line.len() > LINE_BYTES_MAX {
        return false;
    }
    let line = line.trim_end().trim_end_matches('.');
    let rest = line.trim_end_matches(|c: char| c.is_ascii_digit());
    let code = line.get(rest.len()..).unwrap_or_default();
    let mut words = rest
        .split(|c: char| !c.is_ascii_alphabetic())
        .filter(|word| !word.is_empty());
    let is_label = words.next().is_some_and(|word| {
        ["exit", "exited", "exitcode"]
            .iter()
            .any(|w| w.eq_ignore_ascii_case(word))
    }) && words.all(|word| {
        ["code", "status", "with"]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(word))
    });
    is_label && code.bytes().any(|digit| digit != b'0') && !rest.ends_with(char::is_alphabetic)
}

/// Whether the answer of any tool is nothing but the report of its failure: a JSON object
/// with an error, or what a server of tools says when a tool throws.
pub fn is_error_answer(answer: &str) -> bool {
    const OPENERS: &[&str] = &[
        "Error executing tool",
        "Error calling tool",
        "Error invoking tool",
        "MCP error ",
    ];
    /// A longer object is a document.
    const OBJECT_BYTES_MAX: usize = 2_048;
    let text = answer.trim_start();
    match text.as_bytes().first() {
        Some(b'{') => {
            text.len() <= OBJECT_BYTES_MAX
                && text.contains("\"error\"")
                && serde_json::from_str(text).is_ok_and(|object: ErrorMember| object.has_error())
        }
        Some(b'E' | b'M') => OPENERS.iter().any(|opener| text.starts_with(opener)),
        _ => false,
    }
}

/// The error of an object, as it stands.
#[derive(Deserialize)]
struct ErrorMember<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl ErrorMember<'_> {
    /// A text, an object, a list or `true` is an error. A number measures something.
    fn has_error(&self) -> bool {
        let error = self.error.map_or("", RawValue::get);
        error == "true"
            || error.starts_with(['"', '{', '[']) && !matches!(error, "\"\"" | "{}" | "[]")
    }
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
            "src/cart.ts:3:14 - error TS2322: Type 'string' is not assignable.",
            "KeyError      Traceback (most recent call last)\nKeyError: 'ts'",
            "    import yaml\nModuleNotFoundError: No module named 'yaml'",
            "Traceback\n    assert x\nAssertionError",
            "thread 'main' panicked at src/lib.rs:88:9:",
            "fatal: not a git repository",
            "Test case did not pass. Please try again.",
            "{\"output\": \"Output: 1 of 9 tests failed: totals\\nExit Code: 1\\n\"}",
            "Your changes have NOT been applied. Please fix your edit command.",
            "FAILURES!\nTests: 41, Assertions: 88, Failures: 2.",
            "Failed!  - Failed:     2, Passed:    40, Skipped:     0",
            "\u{2716} 3 problems (3 errors, 0 warnings)",
            "FAILED tests/a.py::b - assert 1 == 2\n1 failed, 3 passed in 0.12s",
            "==== 2 failed in 1.47s ====",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored",
            "Tests:       1 failed, 2 passed, 3 total",
            " Tests  1 failed | 2 passed (3)",
            "  3 passing (4s)\n  1 failing\n",
            "--- FAIL: TestParse (0.00s)\nFAIL\nexit status 1",
            "Ran 3 tests in 0.001s\n\nFAILED (failures=1)",
            "3 examples, 1 failure",
            "!!! Interrupted: 1 error during collection !!!\n1 error in 0.21s",
            "# app/store\nstore.go:41:9: undefined: newCursor",
            "FAIL\tapp/store [build failed]",
            "  1 failed\n    cart.spec.ts:12:3\n  14 passed (21.4s)",
            "TypeError: x is not a function\n    at main (run.js:14:25)\n\nNode.js v20.11.1",
            "Exception in thread \"main\" java.lang.IllegalStateException",
            " 14 pass\n 1 fail\n 31 expect() calls",
            "# pass 11\n# fail 1\n# skipped 0",
            "not ok 3 - parses a date",
            "14 runs, 31 assertions, 1 failures, 0 errors, 0 skips",
            "[  FAILED  ] RingTest.Wraps (0 ms)",
            "Found 1 error.",
            "Found 3 errors in 2 files (checked 9 source files)",
            "webpack 5.91.0 compiled with 1 error in 2210 ms",
            "    1 Error(s)",
            "bash: line 1: jq: command not found",
            "\u{2502} Error: Reference to undeclared resource",
            "\u{2718} [ERROR] Could not resolve \"./a\"",
            "Executed 12 tests, with 1 failure (0 unexpected) in 0.214 (0.219) seconds",
            "00:04 +11 -1: Some tests failed.",
            "bin/a.rb:14:in `fetch': key not found: :sku (KeyError)\n\tfrom bin/a.rb:2",
            "PHP Fatal error:  Uncaught TypeError: Cart::add()",
            "exit: 1",
            "Exit code: 2",
            "error during build:\nRollupError: Could not resolve",
            "3 of 12 failed (25%)",
            " 1 FAILED TEST",
        ] {
            assert!(reports_failed_run(failed), "{failed}");
        }
    }

    #[test]
    fn an_output_that_speaks_of_failures_is_no_report_of_one() {
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
            "test result: ok. 3 passed; 0 failed; 0 ignored",
            "Tests: 0 failed, 3 passed",
            "10 examples, 0 failures\n",
            "the build failed, see above",
            "TypeErrorPage.tsx\nErrorBoundary.tsx\nfail-fast.ts",
            "    ValueError: If the path is not absolute.",
            "TimeoutError: 0\nKeyError: none\nlastError: timed out\nok: 4",
            "Found 3 errors (3 fixed, 0 remaining).",
            "Fixed 2 errors.",
            "attempt 1 failed, trying again\nconnected",
            "returned 404 error.",
            "0 of 12 failed (0%)",
            "0/12 failed",
            "exit: 0",
            "exit code 0",
            "press Ctrl+C to exit 1",
            "not ok 3 - later # TODO",
            "[ERROR] cache miss for key 12",
            "main.go:41:9: fmt.Println(x)",
            "7.4 failures per hour",
            "migration 0003 has not been applied",
        ] {
            assert!(!reports_failed_run(healthy), "{healthy}");
        }
    }

    #[test]
    fn an_error_object_is_the_answer_of_a_tool_that_failed() {
        for failed in [
            "{\"error\": \"Missing required parameter: city\"}",
            "{\"ok\": 1, \"error\": {\"code\": \"invalid\"}}",
            "Error executing tool replace: no symbol",
            "MCP error -32602: Invalid arguments",
        ] {
            assert!(is_error_answer(failed), "{failed}");
        }
        for healthy in [
            "{\"error\": null, \"id\": 4}",
            "{\"error\": \"\"}",
            "{\"error\": false}",
            "{\"error\": {}}",
            "{\"error\": 0.031, \"steps\": 500}",
            "{\"rows\": [{\"error\": \"x\"}]}",
            "[{\"error\": \"x\"}]",
            "{\"error\": \"x\"",
            "Error budget: 12 min",
            "",
        ] {
            assert!(!is_error_answer(healthy), "{healthy}");
        }
    }
}
