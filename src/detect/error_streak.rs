//! `error_streak`: different calls fail with the same error.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{Detector, History, NeverFires, check_count, streak::Streak};
use crate::domain::{DetectorExplanation, DetectorOutcome, Finding, Observation, Sig};

/// Fires when: `count` failures in a row have the same masked error although the
/// arguments or tools vary: unknown tool, permission denied, missing parameter,
/// missing file, timeout of a command. A round of parallel calls that all fail is
/// one failure.
///
/// Resets when: a call succeeds or fails with another error. Failed edits and
/// writes of a path (`patch_spiral`) and outages (`infra_outage`) neither count
/// nor reset.
///
/// Cost: one comparison per call.
///
/// Defaults: four. Three tries at the syntax of a command line are ordinary, and
/// a parallel batch counted call by call could look like ten failures.
#[derive(Default, Serialize, Deserialize)]
pub struct ErrorStreak {
    error: Option<Sig>,
    streak: Streak,
}

/// `[detect.error_streak]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
}

impl Detector for ErrorStreak {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "failure")
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "calls in a row fail with the same error, although they vary",
            threshold: format!("{} in a row", settings.count),
            would_not_fire_if: "a success or another error between",
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        _past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        let Some(facts) = now.ordinary_call() else {
            return DetectorOutcome::NotApplicable;
        };
        if !facts.failed() {
            self.reset();
            return DetectorOutcome::NoMatch;
        }
        if facts.is_change() && facts.target.is_some() {
            return DetectorOutcome::NotApplicable;
        }
        let Some(error) = facts.error else {
            self.reset();
            return DetectorOutcome::MissingField("tool_call.error");
        };
        if self.error.replace(error) == Some(error) {
            if !self.streak.push(now.at, facts.call) {
                return DetectorOutcome::NotApplicable;
            }
        } else {
            self.streak.restart(now.at, facts.call);
        }
        // Repeats of one call belong to another detector.
        let varied = self.streak.distinct_calls() > 1;
        let finding = varied.then(|| self.streak.finding_at_threshold(settings.count));
        match finding.flatten() {
            Some(finding) => DetectorOutcome::from_finding(Finding {
                confidence: 0.9,
                loop_key: smallvec![error],
                ..finding
            }),
            None => DetectorOutcome::NoMatch,
        }
    }

    fn consume(&mut self, cited: &[i32]) {
        self.streak.consume(cited);
    }

    fn reset(&mut self) {
        self.error = None;
        self.streak.clear();
    }

    fn heap_bytes(&self) -> usize {
        self.streak.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, calls, cited, edit, read, run, user};

    const SETTINGS: Settings = Settings { count: 4 };

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<ErrorStreak>(&SETTINGS), expected);
    }

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<ErrorStreak>(&SETTINGS), expected);
    }

    #[test]
    fn the_fourth_different_call_with_one_error_is_found_and_each_further_one() {
        check(calls("a b c d e").fails("denied"), &[0, 0, 0, 4, 5]);
        let tools = call("a") + call("b").tool("t") + read("f") + run("x");
        check(tools.fails("EIO"), &[0, 0, 0, 4]);
    }

    #[test]
    fn repeats_of_one_call_are_left_to_another_detector() {
        check(call("a").fails("denied").times(6), &[0; 6]);
    }

    #[test]
    fn a_streak_that_varies_late_cites_all_its_events() {
        let late = (call("a").times(5) + calls("b c")).fails("denied");
        let found = late.findings::<ErrorStreak>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [0, 1, 2, 3, 4, 5]);
        assert!(!found[0].extends && found[1].extends);
    }

    #[test]
    fn cited_events_do_not_count_again() {
        let denied = |names: &str| calls(names).fails("denied");
        check_letters(denied("a b c") + cited() + denied("d e f g"), "......!");
        check_letters(denied("a b c d") + cited() + denied("e"), "...!+");
    }

    #[test]
    fn a_success_or_another_error_resets() {
        let three = calls("a b c").fails("denied");
        check_letters(
            three.clone() + call("x") + call("d").fails("denied"),
            ".....",
        );
        check_letters(
            three.clone() + call("x").fails("other") + call("d").fails("denied"),
            ".....",
        );
        check_letters(three + user() + call("d").fails("denied"), "... .");
    }

    #[test]
    fn failed_edits_of_a_path_neither_count_nor_reset() {
        check(
            calls("a b c").fails("e") + edit("f", "1").fails("e"),
            &[0; 4],
        );
        check_letters(
            calls("a b c").fails("e") + edit("f", "1").fails("x") + call("d").fails("e"),
            "... !",
        );
    }

    #[test]
    fn failed_edits_without_a_path_count() {
        let edits =
            ["1", "2", "3", "4"].map(|n| edit("f", n).fails("missing path").without_target());
        check(edits.into_iter().sum(), &[0, 0, 0, 4]);
    }

    #[test]
    fn a_parallel_batch_that_fails_is_one_failure() {
        check_letters(calls("a b c d e f").fails("denied").round("1"), ".     ");
        let round = |n: &str| (call(n) + call("z")).fails("denied").round(n);
        check_letters(
            ["1", "2", "3", "4"].map(round).into_iter().sum(),
            ". . . ! ",
        );
    }

    #[test]
    fn polls_and_outages_neither_count_nor_reset() {
        let between = call("p").poll() + call("o").outage();
        check_letters(
            calls("a b c").fails("e") + between + call("d").fails("e"),
            "...  !",
        );
    }

    #[test]
    fn a_failure_without_an_error_reports_a_missing_field() {
        let mute = call("x").fails("e").error_unknown();
        check_letters(
            calls("a b c").fails("e") + mute + call("d").fails("e"),
            "...?.",
        );
    }

    #[test]
    fn evidence_cites_the_failures_and_the_error_is_the_loop_key() {
        let found = (call("x") + calls("a b c d e").fails("e")).findings::<ErrorStreak>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3, 4]);
        assert_eq!(found[1].events.as_slice(), [5]);
        assert_eq!(found[0].loop_key, found[1].loop_key);
        assert_eq!(found[0].calls.len(), 4);
    }

    #[test]
    fn a_streak_of_a_thousand_stays_bounded() {
        let long: Script = (0..1000).map(|n| call(&n.to_string()).fails("e")).sum();
        let found = long.findings::<ErrorStreak>(&SETTINGS);
        assert_eq!(found.last().map(|found| found.count), Some(1000));
        assert!(
            found
                .iter()
                .all(|found| found.calls.len() <= 16 && found.events.len() <= 64)
        );
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        assert!(ErrorStreak::check(&SETTINGS).is_ok());
        assert!(ErrorStreak::check(&Settings { count: 1 }).is_err());
    }
}
