//! `error_streak`: different calls fail with the same error.

mod failed_edits;
mod recent_calls;

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{Detector, History, NeverFires, check_count, lru_map::LruMap, streak::Streak};
use crate::domain::{
    Action, CallFacts, DetectorExplanation, DetectorOutcome, EventPosition, Finding, LazyBox,
    Observation, Sig,
};
use failed_edits::FailedEdits;
use recent_calls::RecentCalls;

/// Fires when: `count` failures in a row have the same masked error although the
/// arguments or tools vary: unknown tool, permission denied, missing parameter,
/// missing file, timeout of a command. A round of parallel calls that all fail is
/// one failure; the first try with another tool waits for one more. Also fires when `count`
/// of the last `window` calls of one tool have the same error, whatever came between:
/// guesses with a look at something else after each; or, with a warning at most, when as
/// many runs of one tool find nothing and nothing is written.
///
/// Resets when: a call succeeds or fails with another error; the calls of one tool when
/// fewer than `count` of the last `window` failed alike. Failed
/// edits and writes count only in a row and with three files or more: those of one are
/// left to `patch_spiral`. Outages (`infra_outage`) neither count nor reset.
///
/// Cost: one comparison per call, and a look-up of the tool while a tool fails.
///
/// Defaults: four. Three tries at the syntax of a command line are ordinary, and
/// a parallel batch counted call by call could look like ten failures. Six: a tool that
/// fails every second time is put right each time.
#[derive(Default, Serialize, Deserialize)]
pub struct ErrorStreak {
    error: Option<Sig>,
    streak: Streak,
    /// The tool of all calls of the streak; `None`: there are several.
    tool: Option<Sig>,
    /// Allocated by the first failed edit.
    edits: LazyBox<FailedEdits>,
    /// The latest calls of the tools that failed lately.
    tools: LruMap<RecentCalls>,
}

/// `[detect.error_streak]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    /// The last calls of one tool of which `count` fail alike; 0: only calls in a row.
    pub window: u32,
}

impl Detector for ErrorStreak {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "failure")?;
        let Settings { count, window } = *settings;
        if window > 0 && count > window {
            let why = format!("{count} failures never fit in the last {window} calls of a tool");
            return Err(NeverFires::new("count", why).with_other_key("window"));
        }
        if window > Self::WINDOW_MAX {
            let why = format!("{window} calls, at most {} are stored", Self::WINDOW_MAX);
            return Err(NeverFires::new("window", why));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "calls in a row, or most of a tool's last calls, fail with the same error, although they vary",
            threshold: match *settings {
                Settings { count, window: 0 } => format!("{count} in a row"),
                Settings { count, window } => {
                    format!("{count} in a row, or {count} of a tool's last {window} calls")
                }
            },
            would_not_fire_if: "more successes or other errors between",
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
            self.error = None;
            self.streak.clear();
            if facts.is_change() {
                self.edits.clear();
            }
            let nothing = facts.found_nothing.then(|| nothing_found(now.at));
            return match self.push_recent_call(now, facts, nothing, settings) {
                Some(finding) => DetectorOutcome::from_finding(Finding {
                    similarity: NOTHING_SIMILARITY,
                    confidence: NOTHING_CONFIDENCE,
                    action_max: Some(NOTHING_ACTION_MAX),
                    ..finding
                }),
                None => DetectorOutcome::NoMatch,
            };
        }
        // Failed edits of one path are left to another detector.
        let edited = facts.target.filter(|_| facts.is_change());
        let Some(error) = facts.error else {
            if edited.is_some() {
                return DetectorOutcome::NotApplicable;
            }
            self.error = None;
            self.streak.clear();
            return DetectorOutcome::MissingField("tool_call.error");
        };
        if let Some(file) = edited {
            let edits = self.edits.get_or_insert_default();
            return edits.observe(now.at, facts.call, [error, file], settings.count);
        }
        // A failure counts among the tool's calls, and in the streak of one error.
        let recent = self.push_recent_call(now, facts, Some(error), settings);
        if self.error.replace(error) == Some(error) {
            if !self.streak.push(now.at, facts.call) {
                return DetectorOutcome::NotApplicable;
            }
        } else {
            self.streak.restart(now.at, facts.call);
            self.tool = Some(facts.tool);
        }
        // The first try with another tool is how the agent learns that the cause is not
        // the tool.
        let is_other_way = self.tool.is_some_and(|tool| tool != facts.tool);
        if is_other_way {
            self.tool = None;
        }
        // Repeats of one call belong to another detector.
        let varied = self.streak.distinct_calls() > 1 && !is_other_way;
        let in_a_row = varied.then(|| self.streak.finding_at_threshold(settings.count));
        let finding = match (in_a_row.flatten(), recent) {
            // The loop was found by its share of the tool's calls before it was a streak.
            (Some(in_a_row), Some(recent)) if recent.extends && !in_a_row.extends => recent,
            (Some(in_a_row), _) => in_a_row,
            (None, Some(recent)) => recent,
            (None, None) => return DetectorOutcome::NoMatch,
        };
        DetectorOutcome::from_finding(Finding {
            confidence: 0.9,
            loop_key: smallvec![error],
            ..finding
        })
    }

    fn consume(&mut self, cited: &[i32]) {
        self.streak.consume(cited);
        if let Some(edits) = self.edits.get_mut() {
            edits.consume(cited);
        }
        self.tools
            .values_mut()
            .for_each(|calls| calls.consume(cited));
    }

    fn reset(&mut self) {
        self.error = None;
        self.streak.clear();
        self.edits.clear();
        self.tools.clear();
    }

    fn heap_bytes(&self) -> usize {
        self.streak.heap_bytes()
            + self.edits.heap_bytes(FailedEdits::heap_bytes)
            + self.tools.heap_bytes(RecentCalls::heap_bytes)
    }
}

/// The similarity in a finding of runs that find nothing, which no error has.
const NOTHING_SIMILARITY: f64 = 0.0;
const NOTHING_CONFIDENCE: f64 = 0.8;
/// A warning at most, because what the agent looks for may not exist.
const NOTHING_ACTION_MAX: Action = Action::Warn;

/// Stands for the error of a run that finds nothing, until something is written.
fn nothing_found(at: EventPosition) -> Sig {
    Sig::new(u64::from(at.progress).saturating_add(1))
}

impl ErrorStreak {
    const WINDOW_MAX: u32 = 16;

    /// Adds a call of a tool, which is forgotten once none of its recent calls failed.
    fn push_recent_call(
        &mut self,
        now: &Observation,
        facts: &CallFacts,
        error: Option<Sig>,
        settings: &Settings,
    ) -> Option<Finding> {
        if settings.window == 0 || (error.is_none() && self.tools.get_mut(facts.tool).is_none()) {
            return None;
        }
        let calls = self
            .tools
            .get_or_insert(facts.tool, &now.capacities.commands);
        // An object of its own may have nothing.
        let is_other_object =
            std::mem::replace(&mut calls.last_program, facts.program).names_another(facts.program);
        let error = error.filter(|_| facts.failed() || !is_other_object);
        if !calls.push(now.at, facts.call, error, settings.window as usize) {
            self.tools.remove(facts.tool);
            return None;
        }
        calls.finding(now.at, error?, settings.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, calls, cited, edit, read, run, user};

    const SETTINGS: Settings = Settings {
        count: 4,
        window: 6,
    };

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
    fn the_first_try_with_another_tool_waits_for_one_more() {
        let other = |name: &str| call(name).tool("t").fails("EIO");
        check_letters(
            calls("a b c").fails("EIO") + other("d") + other("e"),
            "....!",
        );
        check_letters(
            calls("a b c").fails("EIO") + other("d") + call("e"),
            ".....",
        );
    }

    #[test]
    fn four_of_six_runs_that_find_nothing_are_found_with_a_warning_at_most() {
        let none = |name: &str| run(name).finds_nothing();
        let script = || none("a") + none("b") + run("tables") + none("c");
        let found = (script() + none("d")).findings::<ErrorStreak>(&SETTINGS);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].events.as_slice(), [0, 1, 3, 4]);
        assert_eq!(found[0].action_max, Some(Action::Warn));
        let between = [edit("f", "x"), run("y").times(2)];
        for other in between {
            let found = (script() + other + none("d")).findings::<ErrorStreak>(&SETTINGS);
            assert!(found.is_empty());
        }
    }

    #[test]
    fn a_run_about_another_object_may_find_nothing() {
        let none = |name: &str, words| run(name).program(words).finds_nothing();
        let same = none("a", 0x1F) + none("b", 0x7F) + none("c", 0x1F) + none("d", 0x7F);
        check(same, &[0, 0, 0, 4]);
        let objects = none("a", 0x1F) + none("b", 0x2F) + none("c", 0x4F) + none("d", 0x8F);
        check(objects + none("e", 0x10F), &[0; 5]);
    }

    #[test]
    fn failed_edits_count_with_three_files_or_more() {
        let fails = |file: &str| edit(file, "x").fails("ENOSPC");
        let three = fails("a") + fails("b") + fails("a") + fails("c");
        check(three.clone() + fails("c"), &[0, 0, 0, 4, 5]);
        check(fails("a") + fails("b") + fails("a") + fails("b"), &[0; 4]);
        check(
            fails("a") + fails("b") + edit("d", "y") + fails("c") + fails("e"),
            &[0; 5],
        );
        check(
            fails("a") + fails("b") + edit("c", "x").fails("EIO") + fails("d"),
            &[0; 4],
        );
        // They neither count nor reset among other failures.
        let runs = calls("p q").fails("denied") + fails("a") + calls("r s").fails("denied");
        check(runs, &[0, 0, 0, 0, 4]);
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
        let other = |name: &str| call(name).tool("t");
        let three = (call("a") + other("b") + call("c")).fails("denied");
        let fourth = || other("d").fails("denied");
        check_letters(three.clone() + call("x") + fourth(), ".....");
        check_letters(three.clone() + call("x").fails("other") + fourth(), ".....");
        check_letters(three + user() + fourth(), "... .");
    }

    #[test]
    fn four_of_the_last_six_calls_of_a_tool_are_found() {
        let miss = |name: &str| call(name).fails("not found");
        let between = || call("ls").tool("shell");
        let guesses = |names: &str| -> Script {
            let words = names.split_whitespace();
            words.map(|name| miss(name) + between()).sum()
        };
        check_letters(guesses("a b c d e"), "......!.+.");
        check_letters(
            guesses("a b") + call("hit") + guesses("c") + call("hit2") + miss("d"),
            "........!",
        );
        // Two calls in turn are left to other detectors.
        check_letters((guesses("a b")).times(4), &".".repeat(16));
        // Every other call succeeds; one call alone is left to other detectors.
        check_letters((miss("a") + call("b")).times(8), &".".repeat(16));
        check_letters((miss("a") + between()).times(8), &".".repeat(16));
        let batch = calls("a b c d e").fails("not found").round("1");
        check_letters(batch + miss("x") + between() + miss("y"), ".    ...");
        check_letters(
            guesses("a b c") + user() + guesses("d e f"),
            "...... ......",
        );
        check_letters(
            guesses("a b c") + cited() + guesses("d e f"),
            "............",
        );
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
        let other = call("d").tool("t").fails("e");
        check_letters(calls("a b c").fails("e") + mute + other, "...?.");
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
        for (count, window) in [(1, 6), (7, 6), (4, 17)] {
            assert!(ErrorStreak::check(&Settings { count, window }).is_err());
        }
    }
}
