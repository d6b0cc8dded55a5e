//! The sentences of a reply: a line for the person, the correction for the agent.

use super::{AgentSpec, quote_for_shell};
use crate::domain::{Action, SessionId, Verdict, sanitize};

/// The longest line for a person.
const LINE_CHARS_MAX: usize = 300;

/// The detector whose pattern of reads has another word order in the line for a person.
const READ_LOOP: &str = "read_loop";
/// The start of that pattern. One of its verdicts can also be about refused calls.
const READ_PATTERN: &str = "read ";

/// The end of the line for a refused call.
const REFUSED: &str = ": the call was refused";

/// The facts of the session that the sentences name.
#[derive(Clone, Copy, Debug)]
pub struct Wording<'a> {
    /// The beginning of each text: people see that it is from Unstuck, and the service
    /// recognises its own text in a result.
    pub prefix: &'a str,
    pub agent: &'a AgentSpec,
    pub session: &'a SessionId,
    /// Paths below it are shown relative to it.
    pub directory: &'a str,
}

impl Wording<'_> {
    /// The pattern for a person, on one line.
    pub fn line(&self, verdict: Option<&Verdict>) -> String {
        self.prefixed_line(&verdict.map_or_else(unknown_pattern, |verdict| self.pattern(verdict)))
    }

    /// The same for a call that is not made.
    pub fn refusal_line(&self, verdict: Option<&Verdict>) -> String {
        let pattern = verdict.map_or_else(unknown_pattern, |verdict| self.pattern(verdict));
        let shown = sanitize::quote(&pattern, LINE_CHARS_MAX - REFUSED.len());
        format!("{}{shown}{REFUSED}", self.prefix)
    }

    /// Why the run ends and how to continue it.
    pub fn stop_line(&self, verdict: Option<&Verdict>) -> String {
        let pattern = verdict.map_or_else(unknown_pattern, |verdict| self.pattern(verdict));
        let resume = self.agent.resume_command(self.session.as_str());
        let is_sub_agent = verdict.is_some_and(|verdict| !verdict.agent.is_main());
        let is_over = verdict.is_none_or(Verdict::terminates);
        let next_step = match (is_over, is_sub_agent) {
            (true, true) => "This sub-agent is ended; the others go on.".to_owned(),
            (true, false) => format!(
                "The session is ended. To go on: unstuck reset {} --reason WHY, then {resume}",
                quote_for_shell(self.session.as_str())
            ),
            (false, _) => format!("Stopped for a person to look. To go on: {resume}"),
        };
        self.prefixed_line(&format!("{pattern}. {next_step}"))
    }

    /// The correction for the agent.
    pub fn advice(&self, verdict: Option<&Verdict>) -> String {
        let Some(verdict) = verdict else {
            return format!(
                "{}This call is part of a loop that was reported. Try a different approach, or \
                 say what blocks you.",
                self.prefix
            );
        };
        let correction = match &*verdict.correction {
            "" => &verdict.pattern,
            correction => correction,
        };
        let wait = verdict.retry_after.unwrap_or_default().as_secs();
        let addition = match verdict.effective_action() {
            Some(Action::Throttle) => format!(" Wait {wait} seconds before the next call."),
            Some(Action::Checkpoint) => " Commit what works before you go on.".to_owned(),
            _ => String::new(),
        };
        format!("{}{correction}{addition}", self.prefix)
    }

    fn pattern(&self, verdict: &Verdict) -> String {
        let pattern = match &*verdict.members {
            [member]
                if &*verdict.detector == READ_LOOP
                    && verdict.pattern.starts_with(READ_PATTERN)
                    && !member.target.is_empty() =>
            {
                format!(
                    "{} was read {} times and has not changed",
                    member.target, verdict.evidence.count
                )
            }
            _ => verdict.pattern.clone(),
        };
        if self.directory.is_empty() {
            return pattern;
        }
        let below = format!("{}/", self.directory.trim_end_matches('/'));
        pattern.replace(&below, "")
    }

    fn prefixed_line(&self, text: &str) -> String {
        format!("{}{}", self.prefix, sanitize::quote(text, LINE_CHARS_MAX))
    }
}

/// The pattern of a verdict whose text was lost at a restart.
fn unknown_pattern() -> String {
    "the agent is in a loop that was reported before".to_owned()
}
