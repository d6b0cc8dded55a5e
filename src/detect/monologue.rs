//! `monologue`: the agent talks and does nothing.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{Detector, History, NeverFires, check_count, skip_unless_turn, streak::Streak};
use crate::domain::{
    Action, DetectorExplanation, DetectorOutcome, Finding, Observation, ObservationBody, Phrase,
    Phrases, Sig, TurnFacts,
};

/// Fires when: `count` turns in a row are empty, or `count` + 1 turns in a row are
/// equal, or are short and announce a new start (they contain one of the phrases
/// `announcements`). Announcements lead to no more than a warning, because words
/// alone prove no loop.
///
/// Resets when: any agent calls a tool, a turn contains an action (a fenced command,
/// a call that is written as text), or a turn is of another kind. An empty turn
/// between equal turns or announcements neither counts nor resets.
///
/// Cost: one comparison per turn.
///
/// Defaults: three empty turns and four equal ones, as in the published stuck
/// detectors of coding agents.
#[derive(Default, Serialize, Deserialize)]
pub struct Monologue {
    /// The session's number of calls at the latest turn.
    calls_at_last_turn: u32,
    empty: Streak,
    equal: Streak,
    announcing: Streak,
    /// The words of the latest non-empty turn.
    latest_words: Option<Sig>,
    /// The words of the first announcement. They are the loop key.
    first_announcement: Option<Sig>,
}

/// `[detect.monologue]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    pub chars_max: usize,
    pub announcements: Phrases,
}

impl Detector for Monologue {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "empty turn")
    }

    fn phrases(settings: &Settings) -> impl Iterator<Item = &Phrase> {
        settings.announcements.iter()
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "turns in a row are empty, equal, or only announce a new start",
            threshold: format!(
                "{} empty ones, or {} others of at most {} characters",
                settings.count,
                settings.count.saturating_add(1),
                settings.chars_max
            ),
            would_not_fire_if: "a tool call between, or a turn with new content",
        }
    }

    #[inline]
    fn quick_check(now: &Observation) -> Option<DetectorOutcome> {
        skip_unless_turn(now)
    }

    fn observe(
        &mut self,
        now: &Observation,
        _past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        let ObservationBody::Turn(turn) = &now.body else {
            return DetectorOutcome::NotApplicable;
        };
        if now.at.calls != self.calls_at_last_turn || turn.acts {
            self.reset();
            self.calls_at_last_turn = now.at.calls;
        }
        if turn.acts {
            return DetectorOutcome::NoMatch;
        }
        let finding = if turn.sketch.is_empty() {
            self.empty.push(now.at, None);
            let empty_words = turn.sketch.signature();
            with_loop_key(
                self.empty.finding_at_threshold(settings.count),
                empty_words,
                1.0,
            )
        } else {
            self.empty.clear();
            self.observe_text(now, turn, settings)
        };
        finding.map_or(DetectorOutcome::NoMatch, DetectorOutcome::from_finding)
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn heap_bytes(&self) -> usize {
        self.empty.heap_bytes() + self.equal.heap_bytes() + self.announcing.heap_bytes()
    }
}

impl Monologue {
    fn observe_text(
        &mut self,
        now: &Observation,
        turn: &TurnFacts,
        settings: &Settings,
    ) -> Option<Finding> {
        let needed = settings.count.saturating_add(1);
        let words = turn.sketch.signature();
        if self.latest_words.replace(words) == Some(words) {
            self.equal.push(now.at, None);
        } else {
            self.equal.restart(now.at, None);
        }
        let announces = turn.chars <= settings.chars_max
            && turn.words_before_first(&settings.announcements).is_some();
        if announces {
            self.announcing.push(now.at, None);
            self.first_announcement.get_or_insert(words);
        } else {
            self.announcing.clear();
            self.first_announcement = None;
        }
        let equal = with_loop_key(self.equal.finding_at_threshold(needed), words, 1.0);
        let first = self.first_announcement.unwrap_or(words);
        equal.or_else(|| {
            let announcing = self.announcing.finding_at_threshold(needed);
            let finding = with_loop_key(announcing, first, 0.9)?;
            Some(Finding {
                action_max: Some(Action::Warn),
                ..finding
            })
        })
    }
}

/// Sets the loop key to the words of the turn.
fn with_loop_key(finding: Option<Finding>, words: Sig, confidence: f64) -> Option<Finding> {
    finding.map(|finding| Finding {
        loop_key: smallvec![words],
        confidence,
        ..finding
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, turn, user};

    fn settings() -> Settings {
        let announcements = ["start over", "another way", "step back", "reconsider"];
        let announcements = announcements.map(|text| Phrase::from(text.to_owned()));
        Settings {
            count: 3,
            chars_max: 160,
            announcements: announcements.to_vec().into(),
        }
    }

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<Monologue>(&settings()), expected);
    }

    #[test]
    fn the_third_empty_turn_is_found() {
        check(turn("").times(4), &[0, 0, 3, 4]);
        check(turn(" \n\u{200b}").times(3), &[0, 0, 3]);
    }

    #[test]
    fn the_fourth_equal_turn_is_found() {
        check(turn("I am on it.").times(5), &[0, 0, 0, 4, 5]);
        check(
            (turn("I am on it.") + turn("")).times(4),
            &[0, 0, 0, 0, 0, 0, 4, 0],
        );
    }

    #[test]
    fn the_fourth_short_announcement_is_found_in_any_words() {
        let starts = turn("Let me start over.")
            + turn("There must be another way.")
            + turn("I take a step back.")
            + turn("Let me reconsider the plan.");
        check(starts.clone(), &[0, 0, 0, 4]);
        check(
            starts.clone() + turn("The tokenizer is fine.") + starts,
            &[0, 0, 0, 4, 0, 0, 0, 0, 4],
        );
    }

    #[test]
    fn a_long_turn_is_not_an_announcement() {
        let long = format!(
            "Let me start over. {}",
            "The parser reads a line. ".repeat(8)
        );
        let others = |n: usize| turn(&format!("{long}{}", "x".repeat(n)));
        check((0..5).map(others).sum(), &[0; 5]);
    }

    #[test]
    fn different_turns_are_not_found() {
        check(
            turn("The parser is fine.") + turn("So is the lexer.") + turn("It is the emitter."),
            &[0; 3],
        );
    }

    #[test]
    fn a_turn_that_contains_an_action_resets() {
        let acts = || turn("Let me start over.\n```sh\nls\n```");
        check(acts().times(5), &[0; 5]);
        let starts = || turn("Let me start over, another way.").times(3);
        check(starts() + acts() + starts(), &[0; 7]);
    }

    #[test]
    fn announcements_are_only_warned_about() {
        let announced = [
            "Let me start over.",
            "Another way.",
            "A step back.",
            "Reconsider.",
        ];
        let announced: Script = announced.map(turn).into_iter().sum();
        let action_max = |script: Script| script.findings::<Monologue>(&settings())[0].action_max;
        assert_eq!(action_max(announced), Some(Action::Warn));
        assert_eq!(action_max(turn("Let me start over.").times(4)), None);
    }

    #[test]
    fn a_call_or_a_user_resets() {
        check((turn("").times(2) + call("x")).times(3), &[0; 9]);
        check(turn("").times(2) + user() + turn("").times(2), &[0; 5]);
    }

    #[test]
    fn a_count_below_two_is_rejected() {
        let settings = |count| Settings {
            count,
            chars_max: 160,
            announcements: Phrases::default(),
        };
        assert!(Monologue::check(&settings(2)).is_ok());
        assert!(Monologue::check(&settings(1)).is_err());
    }
}
