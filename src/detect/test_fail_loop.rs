//! `test_fail_loop`: a command keeps failing with the same error.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{Detector, History, NeverFires, check_count, heap, lru_map::LruMap, streak::Streak};
use crate::domain::{
    CallFacts, DetectorExplanation, DetectorOutcome, EventPosition, Finding, Observation,
    Operation, Sig,
};

/// Fires when: the same command fails `count` runs in a row with the same masked
/// error (another duration is the same error, another number of failures is
/// not). Edits in between do not reset it: they are what did not help. Also fires
/// when one call fails `count` + 1 times with nothing in between and one of the
/// errors occurs twice.
///
/// Resets when: the command passes, fails with another error, a figure in the error moves
/// on after other work (34, 30, 21 problems), or the session moves to another state of
/// the world (another commit, branch, cluster). Other commands in between neither
/// count nor reset, nor does a message of the user: what fails again in the same way was
/// not helped by it.
///
/// Cost: one map look-up per run.
///
/// Defaults: three runs, as in the published rule.
#[derive(Default, Serialize, Deserialize)]
pub struct TestFailLoop {
    commands: LruMap<CommandFailures>,
    /// The command of the latest finding.
    last_reported: Option<Sig>,
    last_call: Option<Sig>,
    same_call_failures: Streak,
    same_call_errors: SmallVec<[Sig; 1]>,
    /// An error of `same_call_errors` occurred twice.
    error_came_twice: bool,
    /// A user has spoken since `last_call`: only the same error goes on counting.
    is_after_user: bool,
}

/// `[detect.test_fail_loop]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    /// The runs must be within this many last calls; 0: anywhere in the session.
    pub within: u32,
    /// Also find one call that fails `count` + 1 times in a row with different errors.
    pub mixed_errors: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct CommandFailures {
    last_error: Option<Sig>,
    world_moves: u32,
    streak: Streak,
}

impl Detector for TestFailLoop {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "failure")?;
        let Settings { count, within, .. } = *settings;
        let within_max = History::CALLS_MAX as u32;
        if within > within_max {
            let why = format!("{within} calls, at most {within_max} are stored");
            return Err(NeverFires::new("within", why));
        }
        if within > 0 && count > within {
            let why = format!("{count} runs never fit in the last {within} calls");
            return Err(NeverFires::new("count", why).with_other_key("within"));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "one command or call keeps failing with the same error, whatever was edited between",
            threshold: {
                let Settings {
                    count,
                    within,
                    mixed_errors,
                } = *settings;
                let mut threshold = format!("{count} failed runs of one command with one error");
                if within > 0 {
                    threshold += &format!(", in the last {within} calls");
                }
                if mixed_errors {
                    let more = count.saturating_add(1);
                    threshold += &format!(
                        ", or {more} failures of one call with nothing between and one error twice"
                    );
                }
                threshold
            },
            would_not_fire_if: "a run or call that succeeds, or fails with another error",
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        let Some(facts) = now.ordinary_call() else {
            return DetectorOutcome::NotApplicable;
        };
        let same_call = self.observe_same_call(now.at, facts, settings);
        let is_run = match facts.operation {
            Operation::Execute | Operation::Other => true,
            // A change of no particular file, such as a statement of SQL.
            Operation::Write | Operation::Edit => facts.failed() && !is_edit(facts),
            Operation::Read | Operation::Search => false,
        };
        if !is_run {
            return same_call.map_or(
                DetectorOutcome::NotApplicable,
                DetectorOutcome::from_finding,
            );
        }
        let Some(call) = facts.call else {
            return DetectorOutcome::MissingField("tool_call.args");
        };
        let begin = past.window_start(settings.within, now.at);
        match self.observe_same_error(now, call, facts, begin, settings) {
            DetectorOutcome::Match(finding) => DetectorOutcome::Match(finding),
            other => same_call.map_or(other, DetectorOutcome::from_finding),
        }
    }

    fn consume(&mut self, cited: &[i32]) {
        self.same_call_failures.consume(cited);
        self.commands
            .values_mut()
            .for_each(|command| command.streak.consume(cited));
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn reset_for_user(&mut self) {
        self.is_after_user = true;
    }

    fn heap_bytes(&self) -> usize {
        let commands = self
            .commands
            .heap_bytes(|command| command.streak.heap_bytes());
        commands
            + self.same_call_failures.heap_bytes()
            + heap::small_vec_bytes(&self.same_call_errors)
    }
}

impl TestFailLoop {
    /// Counts runs of one command that fail with the same error.
    fn observe_same_error(
        &mut self,
        now: &Observation,
        call: Sig,
        facts: &CallFacts,
        begin: i32,
        settings: &Settings,
    ) -> DetectorOutcome {
        if !facts.failed() {
            // A success of a command that never failed is not applicable.
            let had_failed = self.commands.remove(call);
            return if had_failed {
                DetectorOutcome::NoMatch
            } else {
                DetectorOutcome::NotApplicable
            };
        }
        let Some(error) = facts.error else {
            return DetectorOutcome::MissingField("tool_call.error");
        };
        let failures = self.commands.get_or_insert(call, &now.capacities.commands);
        // Another commit or cluster may fail for another reason.
        let moved = failures.world_moves != now.world_moves;
        failures.world_moves = now.world_moves;
        let is_same = failures.last_error.replace(error) == Some(error) && !moved;
        if is_same && !facts.has_moved_figure {
            if !failures.streak.push(now.at, Some(call)) {
                return DetectorOutcome::NotApplicable;
            }
        } else {
            failures.streak.restart(now.at, Some(call));
        }
        failures.streak.remove_before(begin);
        if let Some(finding) = failures.streak.finding_at_threshold(settings.count) {
            self.last_reported = Some(call);
            return DetectorOutcome::from_finding(Finding {
                confidence: 0.9,
                ..finding
            });
        }
        let reported = self
            .last_reported
            .and_then(|command| self.commands.get_mut(command));
        match reported {
            Some(failures) if failures.streak.is_ongoing() => DetectorOutcome::Unchanged,
            _ => DetectorOutcome::NoMatch,
        }
    }

    /// Counts consecutive failures of one call whose errors recur.
    fn observe_same_call(
        &mut self,
        at: EventPosition,
        facts: &CallFacts,
        settings: &Settings,
    ) -> Option<Finding> {
        /// Most errors stored for one run of failures.
        const ERRORS_MAX: usize = 8;
        let error = facts.error.filter(|_| !is_edit(facts));
        let (Some(call), Some(error)) = (facts.call, error) else {
            self.last_call = None;
            return None;
        };
        let is_after_user = std::mem::take(&mut self.is_after_user);
        let is_same_error = self.same_call_errors.last() == Some(&error);
        let is_same_call = self.last_call.replace(call) == Some(call);
        let goes_on = (is_same_error || !is_after_user) && !facts.has_moved_figure;
        if is_same_call && goes_on {
            if !self.same_call_failures.push(at, Some(call)) {
                return None;
            }
        } else {
            self.same_call_failures.restart(at, Some(call));
            self.same_call_errors.clear();
            self.error_came_twice = false;
        }
        self.error_came_twice |= self.same_call_errors.contains(&error);
        if self.same_call_errors.len() == ERRORS_MAX {
            self.same_call_errors.remove(0);
        }
        self.same_call_errors.push(error);
        if !self.error_came_twice || !settings.mixed_errors {
            return None;
        }
        let needed = settings.count.saturating_add(1);
        self.same_call_failures.finding_at_threshold(needed)
    }
}

/// A failed edit or write of a path belongs to `patch_spiral`.
fn is_edit(facts: &CallFacts) -> bool {
    facts.is_change() && facts.target.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, cited, edit, read, run, user};

    const SETTINGS: Settings = Settings {
        count: 3,
        mixed_errors: true,
        within: 0,
    };

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<TestFailLoop>(&SETTINGS), expected);
    }

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<TestFailLoop>(&SETTINGS), expected);
    }

    fn test(error: &str) -> Script {
        run("test").fails(error)
    }

    #[test]
    fn the_third_failure_with_one_error_is_found_and_each_further_one() {
        check(test("e").times(5), &[0, 0, 3, 4, 5]);
    }

    #[test]
    fn edits_in_between_do_not_reset() {
        let lap = |n: &str| edit("f", n) + test("e");
        check_letters(["1", "2", "3", "4"].map(lap).into_iter().sum(), " . . ! +");
    }

    #[test]
    fn a_pass_or_another_error_resets() {
        check_letters(test("e").times(2) + run("test") + test("e"), "....");
        check(
            test("e").times(2) + edit("f", "1") + test("2") + edit("f", "2") + test("e"),
            &[0; 6],
        );
        let shrinking = |n: &str| edit("f", n) + test(n);
        check(
            ["5 failed", "4 failed", "3 failed", "2 failed"]
                .map(shrinking)
                .into_iter()
                .sum(),
            &[0; 8],
        );
    }

    #[test]
    fn other_commands_neither_count_nor_reset() {
        let lap = run("git diff") + read("f") + test("e");
        check_letters(lap.times(4), "  .  .  !  +");
        check_letters(
            test("e").times(3) + run("lint").fails("x") + test("e"),
            "..!=+",
        );
        check_letters(
            test("e").times(3) + run("test") + run("lint").fails("x"),
            "..!..",
        );
    }

    #[test]
    fn commands_are_counted_separately() {
        let lap = test("e") + run("lint").fails("e");
        check(lap.times(3), &[0, 0, 0, 0, 3, 3]);
        check(test("e").times(2) + run("lint").fails("e"), &[0; 3]);
    }

    #[test]
    fn a_call_that_keeps_failing_with_recurring_errors_is_found() {
        check(test("1") + test("2") + test("1") + test("2"), &[0, 0, 0, 4]);
        check(test("1") + test("2") + test("3") + test("4"), &[0; 4]);
        let late = (test("1") + test("2") + test("3") + test("4") + test("1"))
            .findings::<TestFailLoop>(&SETTINGS);
        assert_eq!(late[0].events.as_slice(), [0, 1, 2, 3, 4]);
        assert!(!late[0].extends);
        let other = read("f").fails("1") + read("f").fails("2");
        check_letters(other.times(2), "   !");
    }

    #[test]
    fn errors_that_do_not_recur_are_not_found() {
        check((0..20).map(|n| test(&n.to_string())).sum(), &[0; 20]);
    }

    #[test]
    fn with_other_calls_in_between_only_equal_errors_count() {
        let lap = test("1") + read("f") + test("2") + read("f");
        check(lap.times(2), &[0; 8]);
    }

    #[test]
    fn failed_edits_are_left_to_another_detector() {
        check_letters(edit("f", "1").fails("no match").times(5), "     ");
        let statement = edit("f", "1").fails("violates").without_target();
        check_letters(statement.times(3), "..!");
    }

    #[test]
    fn cited_events_do_not_count_again() {
        check_letters(test("e").times(2) + cited() + test("e").times(3), "....!");
        check_letters(test("e").times(3) + cited() + test("e"), "..!+");
    }

    #[test]
    fn a_round_counts_once() {
        check_letters(test("e").times(4).round("1"), ".   ");
        let round = |n: &str| test("e").times(2).round(n);
        check_letters(["1", "2", "3"].map(round).into_iter().sum(), ". . ! ");
        check((test("1") + test("2")).times(3).round("1"), &[0; 6]);
    }

    #[test]
    fn a_user_does_not_reset_what_fails_again_with_the_same_error() {
        check(test("e").times(2) + user() + test("e"), &[0, 0, 0, 3]);
        check((test("e") + user()).times(3), &[0, 0, 0, 0, 3, 0]);
        check(
            (read("f").fails("e") + user()).times(4),
            &[0, 0, 0, 0, 0, 0, 4, 0],
        );
        check(test("e").times(2) + user() + test("f") + test("e"), &[0; 5]);
        check(
            test("e").times(2) + user() + run("test") + test("e"),
            &[0; 5],
        );
        check((test("e") + test("f") + user()).times(2), &[0; 6]);
    }

    #[test]
    fn a_figure_that_moves_one_way_resets() {
        let lap = |left: f32| edit("f", &left.to_string()) + test("e").figures(&[left]);
        check(
            [34.0, 30.0, 21.0, 9.0, 2.0].map(lap).into_iter().sum(),
            &[0; 10],
        );
        check_letters(
            [34.0, 30.0, 30.0, 30.0].map(lap).into_iter().sum(),
            " . . . !",
        );
        check_letters([1.8, 1.7, 1.9, 1.75].map(lap).into_iter().sum(), " . . . !");
        let attempts = |left: f32| test("e").figures(&[left]);
        check_letters([4.0, 3.0, 2.0].map(attempts).into_iter().sum(), "..!");
    }

    #[test]
    fn missing_arguments_are_reported_and_polls_and_outages_skipped() {
        check_letters(test("e").without_args().times(3), "???");
        check_letters(call("x").outage().times(3) + test("e").poll(), "    ");
    }

    #[test]
    fn evidence_cites_the_runs() {
        let found =
            (run("ls") + (test("e") + edit("f", "1")).times(4)).findings::<TestFailLoop>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 3, 5]);
        assert_eq!(found[1].events.as_slice(), [7]);
        assert_eq!(found[0].loop_key, found[1].loop_key);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        assert!(TestFailLoop::check(&SETTINGS).is_ok());
        assert!(
            TestFailLoop::check(&Settings {
                count: 1,
                ..SETTINGS
            })
            .is_err()
        );
    }
}
