//! `exact_repeat`: the agent makes the same call again and again.

use serde::{Deserialize, Serialize};

use super::{Detector, History, NeverFires, check_count, streak::Streak};
use crate::domain::{
    CallFacts, DetectorExplanation, DetectorOutcome, EventPosition, Finding, Observation,
    Operation, Sig,
};

/// Fires when: the last `count` calls are equal (tool and canonical arguments)
/// with equal outcomes and no progress in between. The same call twice in one
/// round counts once.
///
/// Resets when: another call, another outcome or progress comes in between; and on
/// a compaction if the call reads or searches, because the model has lost what it
/// read.
///
/// Cost: a few comparisons per call.
///
/// Defaults: three in a row within ten calls is the most common rule among
/// agents. With "same outcome, no write in between" it fires on almost no healthy
/// coding session; without, on one in six.
#[derive(Default, Serialize, Deserialize)]
pub struct ExactRepeat {
    repeated_call: Option<RepeatedCall>,
    streak: Streak,
}

/// `[detect.exact_repeat]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    /// Bounds `count`; the policy reads it as the half-life of the trend.
    pub window: u32,
    /// Equal calls repeat whatever their outcomes.
    pub ignore_outcome: bool,
}

/// What the calls of the streak have in common.
#[derive(Serialize, Deserialize)]
struct RepeatedCall {
    call: Sig,
    /// Tags are enough, because the call itself is compared in full.
    masked_outcome: u32,
    raw_outcome: u32,
    progress: u32,
    operation: Operation,
    /// The outcomes are equal without masking, too.
    exact: bool,
}

impl Detector for ExactRepeat {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        let Settings { count, window, .. } = *settings;
        check_count("count", count, "call")?;
        History::check_window(window)?;
        if count > window {
            let why = format!("{count} calls in a row never fit in a window of {window}");
            return Err(NeverFires::new("count", why).with_other_key("window"));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: if settings.ignore_outcome {
                "the same call several times in a row, with any outcome"
            } else {
                "the same call several times in a row, with the same outcome and no progress between"
            },
            threshold: format!("{} in a row", settings.count),
            would_not_fire_if: if settings.ignore_outcome {
                "another call between"
            } else {
                "another call, another result, or a write that changed something between"
            },
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        _past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        if now.is_compaction() {
            let is_read = |repeated: &mut RepeatedCall| repeated.operation.is_read();
            if self.repeated_call.take_if(is_read).is_some() {
                self.streak.clear();
            }
        }
        match now.ordinary_call() {
            Some(facts) => self.observe_call(now.at, facts, settings),
            None => DetectorOutcome::NotApplicable,
        }
    }

    fn consume(&mut self, cited: &[i32]) {
        self.streak.consume(cited);
    }

    fn reset(&mut self) {
        self.repeated_call = None;
        self.streak.clear();
    }

    fn heap_bytes(&self) -> usize {
        self.streak.heap_bytes()
    }
}

impl ExactRepeat {
    fn observe_call(
        &mut self,
        at: EventPosition,
        facts: &CallFacts,
        settings: &Settings,
    ) -> DetectorOutcome {
        let Some(call) = facts.call else {
            self.reset();
            return DetectorOutcome::MissingField("tool_call.args");
        };
        match &mut self.repeated_call {
            Some(repeated) if repeated.matches(call, at, facts, settings) => {
                if !self.streak.push(at, Some(call)) {
                    return DetectorOutcome::NotApplicable;
                }
                repeated.exact &= repeated.raw_outcome == facts.raw_outcome.tag();
            }
            _ => {
                self.repeated_call = Some(RepeatedCall::new(call, at, facts));
                self.streak.restart(at, Some(call));
            }
        }
        let exact = self
            .repeated_call
            .as_ref()
            .is_some_and(|repeated| repeated.exact);
        match self.streak.finding_at_threshold(settings.count) {
            Some(finding) => DetectorOutcome::from_finding(Finding {
                period: 1,
                confidence: if exact { 1.0 } else { 0.9 },
                ..finding
            }),
            None => DetectorOutcome::NoMatch,
        }
    }
}

impl RepeatedCall {
    fn new(call: Sig, at: EventPosition, facts: &CallFacts) -> Self {
        Self {
            call,
            masked_outcome: facts.masked_outcome.tag(),
            raw_outcome: facts.raw_outcome.tag(),
            progress: at.progress,
            operation: facts.operation,
            exact: true,
        }
    }

    fn matches(
        &self,
        call: Sig,
        at: EventPosition,
        facts: &CallFacts,
        settings: &Settings,
    ) -> bool {
        let same_state =
            self.masked_outcome == facts.masked_outcome.tag() && self.progress == at.progress;
        self.call == call && (same_state || settings.ignore_outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, compaction, user};

    const SETTINGS: Settings = Settings {
        count: 3,
        window: 10,
        ignore_outcome: false,
    };

    /// Compares the count of each event's finding; 0 without a finding.
    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<ExactRepeat>(&SETTINGS), expected);
    }

    #[test]
    fn the_third_equal_call_is_found_and_each_further_one() {
        check(call("a").times(5), &[0, 0, 3, 4, 5]);
    }

    #[test]
    fn another_call_in_between_resets() {
        check(
            call("a").times(2) + call("b") + call("a").times(3),
            &[0, 0, 0, 0, 0, 3],
        );
    }

    #[test]
    fn another_outcome_is_progress() {
        check(
            call("a").result("1") + call("a").result("2") + call("a").result("3"),
            &[0, 0, 0],
        );
    }

    #[test]
    fn a_write_by_another_agent_is_progress() {
        check(call("a").times(2) + call("a").after_progress(), &[0, 0, 0]);
    }

    #[test]
    fn unknown_arguments_equal_nothing() {
        check(call("a").without_args().times(4), &[0, 0, 0, 0]);
    }

    #[test]
    fn the_same_call_counts_once_per_round() {
        check(call("a").round("r1").times(5), &[0, 0, 0, 0, 0]);
        check(
            call("a").round("r1").times(2) + call("a").round("r2").times(2) + call("a").round("r3"),
            &[0, 0, 0, 0, 3],
        );
    }

    #[test]
    fn a_user_restarts_the_count() {
        check(
            call("a").times(2) + user() + call("a").times(3),
            &[0, 0, 0, 0, 0, 3],
        );
    }

    #[test]
    fn a_compaction_drops_reads_only() {
        check(
            call("a").read().times(2) + compaction() + call("a").read().times(2),
            &[0; 5],
        );
        check(call("a").times(2) + compaction() + call("a"), &[0, 0, 0, 3]);
    }

    #[test]
    fn evidence_cites_each_event_and_masked_equality_lowers_confidence() {
        let found = (call("b") + call("a").times(3)).findings::<ExactRepeat>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3]);
        assert_eq!(found[0].confidence, 1.0);
        let found = (call("a") + call("a").raw("1") + call("a").raw("2"))
            .findings::<ExactRepeat>(&SETTINGS);
        assert_eq!(found[0].confidence, 0.9);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        let rejects = |count, window| {
            let settings = Settings {
                count,
                window,
                ..SETTINGS
            };
            ExactRepeat::check(&settings).is_err()
        };
        assert!(!rejects(3, 10));
        assert!(rejects(1, 10));
        assert!(rejects(11, 10));
        assert!(rejects(3, 33));
    }
}
