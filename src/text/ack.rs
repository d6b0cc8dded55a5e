//! Results without information: acknowledgements, empty outputs, exit statuses.
//! Different calls that all get one are at work, not in a loop.

use std::{fmt, sync::LazyLock};

use memchr::memmem;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::sql;

/// Longer texts carry information.
const SHORT_TEXT_BYTES_MAX: usize = 160;

/// Results that only say success, yes or no.
#[rustfmt::skip]
const ACKNOWLEDGEMENTS: &[&str] = &[
    "ok", "okay", "done", "true", "false", "yes", "no", "success", "successful", "successfully",
    "null", "none", "undefined", "{}", "[]", "complete", "completed", "passed", "all checks passed",
    "exists", "sent", "set", "saved", "created", "updated", "deleted", "removed", "added", "moved",
    "archived", "started", "stopped", "uploaded", "closed", "assigned", "approved", "booked",
    "cancelled", "canceled", "scheduled", "posted", "submitted", "applied",
];

/// What harnesses report for a command that printed nothing.
#[rustfmt::skip]
const NO_OUTPUT_PHRASES: &[&str] = &[
    "no output", "without output", "not produce any output", "no stdout", "produced no output",
    "empty output",
];

/// Whether a trimmed result has no content: no output, an empty list.
pub fn is_empty_result(trimmed: &str) -> bool {
    const EMPTY_VALUES: &[&str] = &["[]", "{}", "()", "\"\"", "''", "null", "(empty)", "<empty>"];
    if trimmed.len() > SHORT_TEXT_BYTES_MAX {
        return false;
    }
    let mut buffer = [0; SHORT_TEXT_BYTES_MAX];
    trimmed.is_empty()
        || EMPTY_VALUES
            .iter()
            .any(|value| value.eq_ignore_ascii_case(trimmed))
        || reports_no_output(lowercase_into(trimmed, &mut buffer))
}

pub fn is_acknowledgement(result: &str) -> bool {
    let trimmed = result.trim();
    if trimmed.is_empty() {
        return true;
    }
    if trimmed.len() > SHORT_TEXT_BYTES_MAX {
        return false;
    }
    if trimmed.starts_with('{') {
        return serde_json::from_str(trimmed).is_ok_and(|AcknowledgementCheck(only)| only);
    }
    if is_scalar(trimmed) {
        return true;
    }
    let mut buffer = [0; SHORT_TEXT_BYTES_MAX];
    let lowered = lowercase_into(trimmed, &mut buffer);
    let bare = lowered.trim_matches(|c: char| !c.is_alphanumeric() && c != '{' && c != '[');
    is_acknowledgement_word(lowered)
        || is_acknowledgement_word(bare)
        || reports_no_output(lowered)
        || lowered.lines().last().is_some_and(is_all_passed)
        || sql::is_sql_receipt(bare)
}

fn is_acknowledgement_word(text: &str) -> bool {
    /// The longest of [`ACKNOWLEDGEMENTS`].
    const WORD_BYTES_MAX: usize = 17;
    text.len() <= WORD_BYTES_MAX && ACKNOWLEDGEMENTS.contains(&text)
}

/// Whether a result is only a line or two, so that a search has hardly found anything.
pub fn is_small_result(result: &str) -> bool {
    const SMALL_RESULT_BYTES_MAX: usize = 256;
    result.len() <= SMALL_RESULT_BYTES_MAX || result.trim().len() <= SMALL_RESULT_BYTES_MAX
}

/// Whether a result is a short number, alone or as the only row and column: `0`, `[(0,)]`.
/// Different objects hardly share a long one.
fn is_scalar(result: &str) -> bool {
    const DIGITS_MAX: usize = 3;
    let bare = result.trim_matches(|c: char| "[]()\"',.;! \n".contains(c));
    bare.bytes().filter(u8::is_ascii_digit).count() <= DIGITS_MAX && bare.parse::<f64>().is_ok()
}

/// The text in ASCII lower case, written to a buffer; empty if it does not fit.
fn lowercase_into<'b>(text: &str, buffer: &'b mut [u8; SHORT_TEXT_BYTES_MAX]) -> &'b str {
    let Some(lowered) = buffer.get_mut(..text.len()) else {
        return "";
    };
    lowered.copy_from_slice(text.as_bytes());
    lowered.make_ascii_lowercase();
    std::str::from_utf8(lowered).unwrap_or_default()
}

fn reports_no_output(text: &str) -> bool {
    /// Part of every phrase, and rare in other texts.
    static OUT_FINDER: LazyLock<memmem::Finder<'static>> =
        LazyLock::new(|| memmem::Finder::new("out"));
    let is_candidate = OUT_FINDER.find(text.as_bytes()).is_some();
    is_candidate && NO_OUTPUT_PHRASES.iter().any(|phrase| text.contains(phrase))
}

/// Whether a value only acknowledges: `{"success": true}`, `{"status": "ok"}`.
struct AcknowledgementCheck(bool);

impl<'de> Deserialize<'de> for AcknowledgementCheck {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AcknowledgementVisitor)
    }
}

struct AcknowledgementVisitor;

impl<'de> Visitor<'de> for AcknowledgementVisitor {
    type Value = AcknowledgementCheck;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<AcknowledgementCheck, E> {
        Ok(AcknowledgementCheck(true))
    }

    fn visit_bool<E>(self, _: bool) -> Result<AcknowledgementCheck, E> {
        Ok(AcknowledgementCheck(true))
    }

    fn visit_u64<E>(self, _: u64) -> Result<AcknowledgementCheck, E> {
        Ok(AcknowledgementCheck(false))
    }

    fn visit_i64<E>(self, _: i64) -> Result<AcknowledgementCheck, E> {
        Ok(AcknowledgementCheck(false))
    }

    fn visit_f64<E>(self, _: f64) -> Result<AcknowledgementCheck, E> {
        Ok(AcknowledgementCheck(false))
    }

    fn visit_str<E>(self, text: &str) -> Result<AcknowledgementCheck, E> {
        let trimmed = text.trim();
        let only = ACKNOWLEDGEMENTS
            .iter()
            .any(|word| word.eq_ignore_ascii_case(trimmed));
        Ok(AcknowledgementCheck(only))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<AcknowledgementCheck, A::Error> {
        let mut all = true;
        while let Some(AcknowledgementCheck(only)) = items.next_element()? {
            all &= only;
        }
        Ok(AcknowledgementCheck(all))
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut entries: A,
    ) -> Result<AcknowledgementCheck, A::Error> {
        let mut all = true;
        while let Some((serde::de::IgnoredAny, AcknowledgementCheck(only))) =
            entries.next_entry()?
        {
            all &= only;
        }
        Ok(AcknowledgementCheck(all))
    }
}

/// Whether a line reports that all tests passed: "12 passed", "=== 12 passed in 0.1s ===",
/// "test result: ok. 12 passed; 0 failed".
fn is_all_passed(line: &str) -> bool {
    let count_before = |word: &str| {
        let before = line.split_once(word).map(|(before, _)| before);
        let number = before.and_then(|before| before.trim_end().rsplit(' ').next());
        number.and_then(|number| number.parse::<u32>().ok())
    };
    count_before("passed").is_some()
        && count_before("failed").unwrap_or(0) == 0
        && !line.contains("failure")
        && !line.contains("error")
}

/// Whether an error only gives an exit status: "exit code 1", "Command failed with exit
/// code 2", "exited with status 1".
pub fn is_exit_status(error: &str) -> bool {
    #[rustfmt::skip]
    const EXIT_STATUS_WORDS: &[&str] = &[
        "command", "process", "failed", "exit", "exited", "returned", "with", "code", "status",
        "non", "zero", "error", "shell", "the", "a",
    ];
    error.len() <= SHORT_TEXT_BYTES_MAX
        && error
            .as_bytes()
            .windows(4)
            .any(|word| word.eq_ignore_ascii_case(b"exit"))
        && error
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .all(|word| {
                word.bytes().all(|byte| byte.is_ascii_digit())
                    || EXIT_STATUS_WORDS
                        .iter()
                        .any(|part| part.eq_ignore_ascii_case(word))
            })
}

/// Whether a result is short enough for a receipt: one line.
pub fn is_receipt_sized(result: Option<&str>) -> bool {
    const RECEIPT_BYTES_MAX: usize = 80;
    let trimmed = result.unwrap_or_default().trim();
    trimmed.len() <= RECEIPT_BYTES_MAX && !trimmed.contains('\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_and_empty_outputs_carry_no_information() {
        for text in [
            "",
            " OK\n",
            "Done.",
            "true",
            "false",
            "0",
            "200",
            "{\"success\": true}",
            "{\"status\": \"ok\", \"error\": null}",
            "(no output)",
            "All checks passed!",
            "Your command ran successfully and did not produce any output.",
            "<system>Tool ran without output or errors</system>",
            "12 passed in 0.31s",
            ".      [100%]\n1 passed in 0.03s",
            "test result: ok. 12 passed; 0 failed; 0 ignored",
            "exists",
            "[(0,)]",
            "INSERT 0 1",
            "UPDATE 3",
            "CREATE TABLE",
            "COMMIT",
            "Query OK, 1 row affected (0.01 sec)",
            "1 row(s) affected",
            "3 rows updated",
        ] {
            assert!(is_acknowledgement(text), "{text}");
        }
    }

    #[test]
    fn every_acknowledgement_is_recognised() {
        assert!(
            ACKNOWLEDGEMENTS
                .iter()
                .all(|word| is_acknowledgement_word(word))
        );
    }

    #[test]
    fn other_results_carry_information() {
        for text in [
            "clean",
            "16538",
            "captcha required",
            "3 rows: r1 r2 r3",
            "No results found",
            "done=3 open=9",
            "{\"rows\": 3}",
            "1 failed, 2 passed",
            "2 passed, 1 failed",
            "12 passed, 1 error",
            "denied",
            "503 Service Unavailable",
            "3 rows",
            "[(1, 'a')]",
            "insert coin",
            "create account first",
            "update available",
        ] {
            assert!(!is_acknowledgement(text), "{text}");
        }
    }

    #[test]
    fn an_error_with_more_than_an_exit_status_is_kept() {
        assert!(is_exit_status("Command failed with exit code 101"));
        assert!(is_exit_status("exit status 1"));
        assert!(!is_exit_status("exit code 1: no such file a.rs"));
        assert!(!is_exit_status("command timed out after 30s"));
    }
}
