//! What makes a call a poll, and which poll it is.
//!
//! A call is a poll if its tool or its command waits (class poll), or if its answer says
//! that what it asked about is still under way, whatever the tool is called. See
//! `docs/polls.md`. Cost: nothing but a cached look-up for most calls; the key is computed
//! for polls only.

use super::{
    FactExtractor,
    outcome::{CallTexts, TextHashes},
    readings::Question,
};
use crate::{
    domain::{CallKind, Operation, Sig, ToolCall},
    text::{ack, key::SignatureKind, outage, status},
    tools::{ToolClass, tool_traits::ToolTraits},
};

/// What is known of a poll.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PollFacts {
    /// The poll without the times in it; `None`: no other than the call itself.
    pub key: Option<Sig>,
    pub is_dead: bool,
}

impl FactExtractor {
    /// Whether the answer of an ordinary call makes it a poll. Files that are read or
    /// searched wait for nothing, nor does a call that starts something, and a run that
    /// failed has ended, unless its error says that something is not there yet. `line` is
    /// the command line of a shell.
    pub(super) fn is_poll_by_answer(
        &self,
        call: &ToolCall,
        (class, line): (ToolClass, Option<&str>),
        traits: &ToolTraits,
        failed: bool,
        texts: &CallTexts<'_>,
        result: &TextHashes,
    ) -> bool {
        /// The rows of a larger table are data.
        const SQL_ANSWER_BYTES_MAX: usize = 160;
        // Which calls may be polls.
        let is_file_operation = matches!(
            call.operation,
            Some(Operation::Read | Operation::Search | Operation::Write | Operation::Edit)
        );
        let answer = match texts.result.as_deref() {
            Some(result) if !result.is_empty() => result,
            _ => &*texts.error,
        };
        let may_poll = match class {
            ToolClass::Execute => true,
            ToolClass::Other => {
                let is_rows = traits.runs_sql && answer.len() > SQL_ANSWER_BYTES_MAX;
                !(traits.is_action || is_rows || keeps_plan(&call.tool))
            }
            ToolClass::Read
            | ToolClass::Write
            | ToolClass::Edit
            | ToolClass::Search
            | ToolClass::Poll
            | ToolClass::Exempt => false,
        };
        if !may_poll || is_file_operation || answer.is_empty() {
            return false;
        }
        // Of a failure only its error can say so.
        if failed {
            let is_pending =
                texts.exit_code == Some(PENDING_EXIT_CODE) || has_pending_exit_code(answer);
            return is_pending && status::is_pending(answer)
                || status::is_pending_failure(answer)
                || line.is_some_and(watches) && is_timeout(answer);
        }
        self.ask(result.raw, Question::IsPending, || {
            status::is_pending(answer)
        })
    }

    /// What is known of a call of this kind. `command` is the command line of a shell.
    pub(super) fn poll_facts(
        &self,
        kind: CallKind,
        call: &ToolCall,
        command: Option<&str>,
        texts: &CallTexts<'_>,
        failed: bool,
    ) -> PollFacts {
        if kind != CallKind::Poll {
            return PollFacts::default();
        }
        let text = command.unwrap_or_else(|| call.args.as_text());
        let key = without_times(text).map(|text| {
            let text = self.key.hash_text(SignatureKind::Text, &text);
            self.key.signature(SignatureKind::Call, &call.tool, text)
        });
        PollFacts {
            key,
            // A poll that failed is one because what it waits for may still come.
            is_dead: !failed && texts.result.as_deref().is_some_and(status::is_dead),
        }
    }
}

/// Whether a failed wait may succeed later: nothing is known but its exit code, or no server
/// answers yet.
pub(super) fn may_come(error: &str) -> bool {
    error.is_empty()
        || ack::is_exit_status(error)
        || outage::is_outage_error(error)
        || status::is_pending_failure(error)
}

/// Whether a command shows something until it ends: `gh run watch`, `rollout status --watch`.
fn watches(line: &str) -> bool {
    line.split_whitespace()
        .any(|word| matches!(word, "watch" | "wait" | "--watch" | "--wait" | "--follow"))
}

/// Whether a tool gave up because of its own time limit.
fn is_timeout(error: &str) -> bool {
    error.contains("timed out after")
}

/// Whether a tool keeps the agent's own plan, whose pending steps wait for the agent.
fn keeps_plan(tool: &str) -> bool {
    let bytes = tool.as_bytes();
    let has = |word: &[u8]| bytes.windows(4).any(|part| part.eq_ignore_ascii_case(word));
    has(b"todo") || has(b"plan")
}

/// `gh pr checks` exits with 8 while checks are pending: that is no failure.
const PENDING_EXIT_CODE: i32 = 8;

fn has_pending_exit_code(answer: &str) -> bool {
    ["code 8\n", "code 8 ", "code: 8", "status 8"]
        .iter()
        .any(|code| answer.contains(code))
}

/// The text without the times to wait in it: the numbers after `sleep`, `timeout`,
/// `--timeout=`, `"wait_seconds":` and the like. `None`: there are none.
fn without_times(text: &str) -> Option<String> {
    /// A longer text is a program.
    const TEXT_BYTES_MAX: usize = 2_048;
    const WAIT_WORDS: &[&str] = &["sleep", "timeout", "wait", "poll"];
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let mut out = String::new();
    let mut rest = text;
    loop {
        let next = WAIT_WORDS
            .iter()
            .filter_map(|word| rest.find(word).map(|at| at + word.len()))
            .min();
        let Some(end) = next else { break };
        let (before, after) = rest.split_at(end);
        out.push_str(before);
        rest = after;
        // The rest of the name, then what separates it from the number.
        let name = after.trim_start_matches(|c: char| c.is_ascii_alphabetic() || "_-".contains(c));
        let number = name.trim_start_matches([' ', '=', '(', ':', '"', '\'', '\t']);
        let unit = number.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        if unit.len() < number.len() {
            let label = after.len() - number.len();
            out.push_str(after.get(..label).unwrap_or_default());
            rest = unit.trim_start_matches(['s', 'm', 'h']);
        }
    }
    let is_cut = out.len() + rest.len() < text.len();
    out.push_str(rest);
    is_cut.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_of_a_wait_is_left_out() {
        let same =
            |a: &str, b: &str| without_times(a).is_some() && without_times(a) == without_times(b);
        assert!(same("sleep 5", "sleep 10"));
        assert!(same("sleep 30 && tail log", "sleep 2m && tail log"));
        assert!(same("sleep 5; ci status 41", "sleep 60; ci status 41"));
        assert!(!same("sleep 5; ci status 41", "sleep 5; ci status 42"));
        assert!(same(
            "time.sleep(5)\nprint(job)",
            "time.sleep(60)\nprint(job)"
        ));
        assert!(same(
            "rollout status x --timeout=60s",
            "rollout status x --timeout=2m"
        ));
        assert!(same(
            "{\"job\": \"j1\", \"wait_seconds\": 10}",
            "{\"job\": \"j1\", \"wait_seconds\": 90}"
        ));
        assert_eq!(without_times("wait job 12"), None);
        assert_eq!(without_times("ci status 41"), None);
    }
}
