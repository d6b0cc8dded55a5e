//! `fan_out`: one model response repeats the same call.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::{Detector, History, NeverFires, check_count, heap};
use crate::domain::{DetectorExplanation, DetectorOutcome, Finding, Observation, Sig};

/// Fires when: a round makes the same call `count` times, whatever the outcomes.
/// Needs `round_id`.
///
/// Resets when: another round begins.
///
/// Cost: a search among the calls of the round; nothing without `round_id`.
///
/// Defaults: four. The same call two or three times in a round is a slip that the
/// harness answers once.
#[derive(Default, Serialize, Deserialize)]
pub struct FanOut {
    round: Option<Sig>,
    calls: Vec<(Sig, u32)>,
    /// The latest events of the round, each with its call.
    events: Vec<(i32, Sig)>,
    reported: bool,
}

/// `[detect.fan_out]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
}

impl FanOut {
    const CALLS_MAX: usize = 64;
    const EVENTS_MAX: usize = 64;
}

impl Detector for FanOut {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "call")
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "one model response makes the same call several times",
            threshold: format!("{} equal calls in one round", settings.count),
            would_not_fire_if: "making each call once per response; different calls in one round are fine",
        }
    }

    #[inline]
    fn quick_check(now: &Observation) -> Option<DetectorOutcome> {
        now.at
            .round
            .is_none()
            .then_some(DetectorOutcome::NotApplicable)
    }

    fn observe(
        &mut self,
        now: &Observation,
        _past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        let (Some(facts), Some(round)) = (now.ordinary_call(), now.at.round) else {
            return DetectorOutcome::NotApplicable;
        };
        let Some(call) = facts.call else {
            return DetectorOutcome::MissingField("tool_call.args");
        };
        // Another round starts all counts at zero.
        if self.round.replace(round) != Some(round) {
            self.calls.clear();
            self.events.clear();
            self.reported = false;
        }
        // The event is stored as evidence; the oldest makes room.
        if self.events.len() == Self::EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push((now.at.index, call));
        // Count the call. When the list of distinct calls is full, its last entry is replaced.
        let known = self.calls.iter().position(|(known, _)| *known == call);
        let position = known.unwrap_or_else(|| {
            self.calls.truncate(Self::CALLS_MAX - 1);
            self.calls.push((call, 0));
            self.calls.len() - 1
        });
        self.calls[position].1 += 1;
        let count = self.calls[position].1;
        if count < settings.count {
            return DetectorOutcome::NoMatch;
        }
        // The first finding cites every repeated call of the round, a later one only itself.
        let extends = std::mem::replace(&mut self.reported, true);
        let repeated: SmallVec<[Sig; 4]> = self
            .calls
            .iter()
            .filter(|(_, times)| *times > 1)
            .map(|(call, _)| *call)
            .collect();
        let events = if extends {
            smallvec![now.at.index]
        } else {
            self.events
                .iter()
                .filter(|(_, call)| repeated.contains(call))
                .map(|(event, _)| *event)
                .collect()
        };
        DetectorOutcome::from_finding(Finding {
            extends,
            calls: repeated,
            ..Finding::new(count, events, smallvec![round])
        })
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn heap_bytes(&self) -> usize {
        heap::vec_bytes(&self.calls) + heap::vec_bytes(&self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, calls, user};

    const SETTINGS: Settings = Settings { count: 4 };

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<FanOut>(&SETTINGS), expected);
    }

    #[test]
    fn the_fourth_call_in_a_round_is_found_and_each_further_one() {
        let script = call("a").times(6).round("1");
        assert_eq!(
            script.clone().counts::<FanOut>(&SETTINGS),
            [0, 0, 0, 4, 5, 6]
        );
        check_letters(script, "...!++");
        check_letters(calls("a b").times(4).round("1"), "......!+");
    }

    #[test]
    fn three_equal_calls_or_many_different_ones_are_not_found() {
        check_letters(call("a").times(3).round("1"), "...");
        let batch: Script = (0..100).map(|n| call(&n.to_string())).sum();
        check_letters(batch.round("1"), &".".repeat(100));
    }

    #[test]
    fn the_outcome_does_not_matter() {
        let workers = ["1", "2", "3", "4"].map(|n| call("spawn").result(n));
        check_letters(workers.into_iter().sum::<Script>().round("1"), "...!");
    }

    #[test]
    fn another_round_or_a_user_resets() {
        check_letters(
            call("a").times(3).round("1") + call("a").times(3).round("2"),
            "......",
        );
        check_letters(
            call("a").times(3).round("1") + user() + call("a").round("1"),
            "... .",
        );
        check_letters(
            call("a").times(4).round("1") + call("a").times(4).round("2"),
            "...!...!",
        );
    }

    #[test]
    fn without_a_round_id_nothing_is_found() {
        check_letters(call("a").times(6), "      ");
    }

    #[test]
    fn missing_arguments_are_reported_and_polls_and_outages_skipped() {
        check_letters(call("a").without_args().times(4).round("1"), "????");
        check_letters(call("a").poll().times(4).round("1"), "    ");
        check_letters(call("a").outage().times(4).round("1"), "    ");
    }

    #[test]
    fn evidence_cites_only_the_repeated_calls() {
        let script = calls("x a y a a a a").round("1");
        let found = script.findings::<FanOut>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 3, 4, 5]);
        assert_eq!(found[1].events.as_slice(), [6]);
        assert_eq!(found[0].calls.len(), 1);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        assert!(FanOut::check(&SETTINGS).is_ok());
        assert!(FanOut::check(&Settings { count: 1 }).is_err());
    }
}
