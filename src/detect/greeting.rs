//! `greeting`: the agent greets the user in the middle of its work.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{Detector, History, NeverFires, skip_unless_turn};
use crate::domain::{
    DetectorExplanation, DetectorOutcome, Finding, Observation, ObservationBody, Phrase, Phrases,
    Sig, TurnFacts,
};

/// Fires when: a turn of `chars_min` to `chars_max` characters contains one of
/// `markers` after at most `words_before` words, and a tool was called since the
/// user's last message. It does not fire after a report, which is a turn longer
/// than `chars_max` since the latest call: asking what comes next is polite then.
/// With `anywhere` a marker at any position in a turn of at least `chars_min`
/// characters is enough, whatever was done before.
///
/// Resets when: the agent says something else.
///
/// Cost: a check of the phrases found in the turn.
///
/// Defaults: the markers, and `anywhere`, are those of the published rule.
#[derive(Default, Serialize, Deserialize)]
pub struct Greeting {
    /// Greetings in a row.
    count: u32,
    /// The words of the first greeting. They are the loop key.
    first_greeting: Option<Sig>,
    /// How many calls the session had made when the agent wrote a report.
    calls_at_report: Option<u32>,
}

/// `[detect.greeting]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub markers: Phrases,
    pub chars_min: usize,
    pub chars_max: usize,
    pub words_before: u32,
    /// The maximum length, the position and earlier calls do not matter.
    pub anywhere: bool,
}

impl Detector for Greeting {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        let Settings {
            chars_min,
            chars_max,
            ..
        } = *settings;
        if settings.markers.is_empty() {
            let why = "without phrases no turn is a greeting: set enabled = false instead";
            return Err(NeverFires::new("markers", why.to_owned()));
        }
        if chars_min > chars_max {
            let why = format!("no turn has {chars_min} characters or more and {chars_max} at most");
            return Err(NeverFires::new("chars_min", why).with_other_key("chars_max"));
        }
        Ok(())
    }

    fn phrases(settings: &Settings) -> impl Iterator<Item = &Phrase> {
        settings.markers.iter()
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "the agent greets in the middle of its work",
            threshold: if settings.anywhere {
                format!(
                    "one of the markers in {} characters or more",
                    settings.chars_min
                )
            } else {
                format!(
                    "one of the markers after at most {} words of {} to {} characters, after a \
                     tool call since the user's last message",
                    settings.words_before, settings.chars_min, settings.chars_max
                )
            },
            would_not_fire_if: "a report of what was done, a message of the user, or no greeting",
        }
    }

    #[inline]
    fn quick_check(now: &Observation) -> Option<DetectorOutcome> {
        skip_unless_turn(now)
    }

    fn observe(
        &mut self,
        now: &Observation,
        past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        let ObservationBody::Turn(turn) = &now.body else {
            return DetectorOutcome::NotApplicable;
        };
        let at_work = past.has_calls() && self.calls_at_report != Some(now.at.calls);
        if turn.chars > settings.chars_max {
            self.calls_at_report = Some(now.at.calls);
        }
        if !settings.is_greeting(turn) || !(at_work || settings.anywhere) {
            self.count = 0;
            return DetectorOutcome::NoMatch;
        }
        self.count = self.count.saturating_add(1);
        let first = *self
            .first_greeting
            .get_or_insert_with(|| turn.sketch.signature());
        DetectorOutcome::from_finding(Finding {
            extends: self.count > 1,
            ..Finding::new(self.count, smallvec![now.at.index], smallvec![first])
        })
    }

    /// Keeps the loop key: another greeting after a message of the user is the
    /// same loop.
    fn reset(&mut self) {
        self.count = 0;
        self.calls_at_report = None;
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Settings {
    fn is_greeting(&self, turn: &TurnFacts) -> bool {
        let Some(words_before) = turn.words_before_first(&self.markers) else {
            return false;
        };
        let short = turn.chars <= self.chars_max && words_before <= self.words_before;
        turn.chars >= self.chars_min && (short || self.anywhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, turn, user};

    fn settings() -> Settings {
        let markers = ["how can i help", "hi there"];
        Settings {
            markers: markers
                .map(|text| Phrase::from(text.to_owned()))
                .to_vec()
                .into(),
            chars_min: 10,
            chars_max: 160,
            words_before: 4,
            anywhere: false,
        }
    }

    #[track_caller]
    fn check(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<Greeting>(&settings()), expected);
    }

    fn hello() -> Script {
        turn("Hello! How can I help you today?")
    }

    #[test]
    fn a_greeting_after_a_call_is_found() {
        check(call("x") + turn("Reading file.") + hello(), " .!");
        check(call("x") + hello().times(2), " !+");
    }

    #[test]
    fn a_greeting_before_any_call_is_not_found() {
        check(hello() + call("x") + user() + hello(), ".  .");
    }

    #[test]
    fn a_report_may_end_in_a_question() {
        let report = "The build is green again and the fix is on main.";
        let long = format!(
            "{report} {}",
            "I changed the parser and its tests. ".repeat(5)
        );
        check(
            call("x") + turn(&format!("{report} How can I help you further?")),
            " .",
        );
        check(call("x") + turn(&long) + hello(), " ..");
        check(call("x") + turn(&long) + call("y") + hello(), " . !");
        check(
            call("x") + turn("It passes all of them now. How can I help?"),
            " .",
        );
        check(call("x") + turn("It passes. How can I help?"), " !");
    }

    #[test]
    fn a_text_of_9_or_161_characters_is_not_a_greeting() {
        let long = |n: usize| turn(&format!("Hi there!{}", " yes".repeat(n)));
        check(call("x") + turn("Hi there!"), " .");
        check(call("x") + turn("Hi there!!"), " !");
        check(call("x") + long(37), " !");
        check(call("x") + long(38), " .");
    }

    #[test]
    fn with_anywhere_only_the_minimum_length_matters() {
        let settings = Settings {
            anywhere: true,
            ..settings()
        };
        let long = format!("{} How can I help?", "It is done. ".repeat(30));
        let script = hello() + turn("Hi there") + turn(&long) + turn("No.");
        assert_eq!(script.outcome_letters::<Greeting>(&settings), "!.!.");
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        assert!(Greeting::check(&settings()).is_ok());
        let silent = Settings {
            markers: Phrases::default(),
            ..settings()
        };
        assert!(Greeting::check(&silent).is_err());
        let none = Settings {
            chars_min: 161,
            ..settings()
        };
        assert!(Greeting::check(&none).is_err());
    }
}
