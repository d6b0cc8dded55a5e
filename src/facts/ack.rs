//! What a call says that says nothing: acknowledgements, empty outputs, exit
//! statuses. Different calls that all get one are at work, not in a loop.

use std::{borrow::Cow, fmt, sync::LazyLock};

use memchr::memmem;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::sql;

/// Longer texts say something.
const SHORT_TEXT_BYTES_MAX: usize = 160;

/// Words that only say that it went well, or yes or no.
#[rustfmt::skip]
const ACKNOWLEDGEMENTS: &[&str] = &[
    "ok", "okay", "done", "true", "false", "yes", "no", "success", "successful", "successfully",
    "null", "none", "undefined", "{}", "[]", "complete", "completed", "passed", "all checks passed",
    "exists", "sent", "set", "saved", "created", "updated", "deleted", "removed", "added", "moved",
    "archived", "started", "stopped", "uploaded", "closed", "assigned", "approved", "booked",
    "cancelled", "canceled", "scheduled", "posted", "submitted", "applied",
];

/// Phrases of harnesses for a command that printed nothing.
#[rustfmt::skip]
const NO_OUTPUT_PHRASES: &[&str] = &[
    "no output", "without output", "not produce any output", "no stdout", "produced no output",
    "empty output",
];

pub(super) fn is_acknowledgement(result: &str) -> bool {
    let result = result.trim();
    if result.is_empty() {
        return true;
    }
    if result.len() > SHORT_TEXT_BYTES_MAX {
        return false;
    }
    if result.starts_with('{') {
        return serde_json::from_str(result).is_ok_and(|AcknowledgementCheck(only)| only);
    }
    if is_scalar(result) {
        return true;
    }
    let mut buffer = [0; SHORT_TEXT_BYTES_MAX];
    let lowered = lowercase_into(result, &mut buffer);
    let bare = lowered.trim_matches(|c: char| !c.is_alphanumeric() && c != '{' && c != '[');
    is_acknowledgement_word(lowered)
        || is_acknowledgement_word(bare)
        || reports_no_output(lowered)
        || lowered.lines().last().is_some_and(is_all_passed)
        || sql::is_sql_receipt(bare)
}

fn is_acknowledgement_word(text: &str) -> bool {
    /// None is longer.
    const WORD_BYTES_MAX: usize = 17;
    text.len() <= WORD_BYTES_MAX && ACKNOWLEDGEMENTS.contains(&text)
}

/// A result of a line or two: whoever sought something has hardly found it.
pub(super) fn is_small_result(result: &str) -> bool {
    const SMALL_RESULT_BYTES_MAX: usize = 256;
    result.trim().len() <= SMALL_RESULT_BYTES_MAX
}

/// A number by itself, or as the one row of one column: `0`, `[(0,)]`.
fn is_scalar(result: &str) -> bool {
    let bare = result.trim_matches(|c: char| "[]()\"',.;! \n".contains(c));
    bare.parse::<f64>().is_ok()
}

/// The text in small letters, in a buffer that has room for it.
fn lowercase_into<'b>(text: &str, buffer: &'b mut [u8; SHORT_TEXT_BYTES_MAX]) -> &'b str {
    let Some(lowered) = buffer.get_mut(..text.len()) else {
        return "";
    };
    lowered.copy_from_slice(text.as_bytes());
    lowered.make_ascii_lowercase();
    std::str::from_utf8(lowered).unwrap_or_default()
}

fn reports_no_output(text: &str) -> bool {
    /// Each of the phrases holds it, and most texts do not.
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
        let text = text.trim();
        let only = ACKNOWLEDGEMENTS
            .iter()
            .any(|word| word.eq_ignore_ascii_case(text));
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

/// "12 passed", "=== 12 passed in 0.1s ===", "test result: ok. 12 passed; 0 failed".
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

/// "exit code 1", "Command failed with exit code 2", "exited with status 1".
pub(super) fn is_exit_status(error: &str) -> bool {
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

/// A short error without the name of the tool: "no such tool: foo" is one error
/// whatever it was called.
pub(super) fn replace_tool_name<'a>(error: &'a str, tool: &str) -> Cow<'a, str> {
    /// A shorter name is in many words.
    const NAME_BYTES_MIN: usize = 3;
    if tool.len() < NAME_BYTES_MIN || error.len() > SHORT_TEXT_BYTES_MAX || !error.contains(tool) {
        return Cow::Borrowed(error);
    }
    Cow::Owned(error.replace(tool, "<tool>"))
}

/// Names of tools that act on something and answer with a receipt.
#[rustfmt::skip]
const ACTION_VERBS: &[&str] = &[
    "send", "post", "create", "add", "update", "set", "delete", "remove", "save", "submit", "close",
    "assign", "click", "type", "fill", "press", "key", "drag", "select", "think", "plan", "memory",
    "log", "notify", "reply", "email", "message", "book", "cancel", "approve", "upload", "computer",
    "transition", "move", "archive", "schedule", "register", "mark", "label", "tag", "merge",
    "start", "stop", "restart", "enable", "disable", "rename", "invite", "share", "publish",
    "refund", "transfer",
];

/// Whether a tool of no known class acts, by the words of its name; its short
/// answer is then a receipt.
pub(super) fn has_action_verb(tool: &str) -> bool {
    super::tools::split_name_words(tool).any(|word| {
        ACTION_VERBS
            .iter()
            .any(|act| act.eq_ignore_ascii_case(word))
    })
}

/// Whether a result is as short as a receipt, which is a line.
pub(super) fn is_receipt_sized(result: Option<&str>) -> bool {
    const RECEIPT_BYTES_MAX: usize = 80;
    let result = result.unwrap_or_default().trim();
    result.len() <= RECEIPT_BYTES_MAX && !result.contains('\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_and_empty_outputs_tell_nothing() {
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
    fn every_word_is_known() {
        assert!(
            ACKNOWLEDGEMENTS
                .iter()
                .all(|word| is_acknowledgement_word(word))
        );
    }

    #[test]
    fn results_tell_something() {
        for text in [
            "clean",
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
    fn an_exit_status_is_no_error_of_its_own() {
        assert!(is_exit_status("Command failed with exit code 101"));
        assert!(is_exit_status("exit status 1"));
        assert!(!is_exit_status("exit code 1: no such file a.rs"));
        assert!(!is_exit_status("command timed out after 30s"));
    }

    #[test]
    fn an_error_that_names_the_tool_is_the_same_of_every_tool() {
        let error =
            |tool: &str| replace_tool_name(&format!("No such tool: {tool}"), tool).into_owned();
        assert_eq!(error("foo"), error("browser"));
        assert_eq!(
            replace_tool_name("No such file: x", "cat"),
            "No such file: x"
        );
    }

    #[test]
    fn the_short_answer_of_a_tool_that_acts_is_a_receipt() {
        let is_receipt = |tool, result| has_action_verb(tool) && is_receipt_sized(Some(result));
        assert!(is_receipt("send_email", "Email sent successfully"));
        assert!(is_receipt("browserClick", "Clicked element"));
        assert!(!is_receipt("browser", "captcha required"));
        assert!(!is_receipt("send_email", &"x".repeat(200)));
    }
}
