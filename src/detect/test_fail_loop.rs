use serde::Deserialize;
use smallvec::SmallVec;

use super::{Detector, Futile, History, heap, paths::Paths, streak::Streak};
use crate::domain::{CallFacts, Explained, Finding, Look, Moment, Observation, Operation, Sig};

/// Fires when the same command fails `count` runs in a row with the same error
/// (masked: a duration is not another error, another number of failures is).
/// Edits between do not reset it: they are what did not help. Also when one call
/// fails `count` + 1 times with nothing between and an error among them comes
/// twice.
///
/// Resets when the command passes or fails otherwise. Other commands between
/// neither count nor reset.
///
/// Cost: a look-up of the command, on runs only. Three is the published rule's.
#[derive(Default)]
pub struct TestFailLoop {
    commands: Paths<Runs>,
    /// The command that was found last.
    found: Option<Sig>,
    call: Option<Sig>,
    in_a_row: Streak,
    errors: SmallVec<[Sig; 1]>,
    /// One of them came twice.
    twice: bool,
}

/// `[detect.test_fail_loop]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    /// The runs stand in so many of the last calls; 0: anywhere in the session.
    pub within: u32,
    /// One call that fails `count` + 1 times in a row is found, although its
    /// errors are not all the same.
    pub mixed_errors: bool,
}

#[derive(Default)]
struct Runs {
    error: Option<Sig>,
    failures: Streak,
}

impl Detector for TestFailLoop {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), Futile> {
        if settings.count < 2 {
            let why = format!("{} failures are no loop: at least 2 are", settings.count);
            return Err(Futile::new("count", why));
        }
        let Settings { count, within, .. } = *settings;
        let within_max = History::CALLS_MAX as u32;
        if within > within_max {
            let why = format!("{within} calls are more than the {within_max} that are kept");
            return Err(Futile::new("within", why));
        }
        if within > 0 && count > within {
            let why = format!("{count} runs never stand in the last {within} calls");
            return Err(Futile::new("count", why).or("within"));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> Explained {
        Explained {
            rule: "one command keeps failing with the same error, whatever was edited between",
            threshold: {
                let Settings {
                    count,
                    within,
                    mixed_errors,
                } = *settings;
                let mut threshold = format!("{count} failed runs in a row with one error");
                if within > 0 {
                    threshold += &format!(", in the last {within} calls");
                }
                if mixed_errors {
                    let more = count.saturating_add(1);
                    threshold += &format!(", or {more} with nothing between and one error twice");
                }
                threshold
            },
            quiet: "a run that passes, or fails with another error",
        }
    }

    fn observe(&mut self, now: &Observation, past: &History, settings: &Settings) -> Look {
        let Some(facts) = now.ordinary() else {
            return Look::Away;
        };
        let in_a_row = self.same_call(now.at, facts, settings);
        if !matches!(facts.operation, Operation::Execute | Operation::Other) {
            return in_a_row.map_or(Look::Away, Look::found);
        }
        let Some(call) = facts.call else {
            return Look::Abstained("tool_call.args");
        };
        let begin = past.begin_of(settings.within, now.at);
        match self.same_error(now, call, facts, begin, settings) {
            Look::Found(finding) => Look::Found(finding),
            other => in_a_row.map_or(other, Look::found),
        }
    }

    fn spend(&mut self, cited: &[i32]) {
        self.in_a_row.spend(cited);
        self.commands
            .all()
            .for_each(|runs| runs.failures.spend(cited));
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn heap_bytes(&self) -> usize {
        let commands = self.commands.heap_bytes(|runs| runs.failures.heap_bytes());
        commands + self.in_a_row.heap_bytes() + heap::short_list(&self.errors)
    }
}

impl TestFailLoop {
    fn same_error(
        &mut self,
        now: &Observation,
        call: Sig,
        facts: &CallFacts,
        begin: i32,
        settings: &Settings,
    ) -> Look {
        if !facts.failed() {
            // A command that had not failed is another matter.
            let fails = self.commands.forget(call);
            return if fails { Look::Clear } else { Look::Away };
        }
        let Some(error) = facts.error else {
            return Look::Abstained("tool_call.error");
        };
        let runs = self.commands.of(call, &now.rooms.commands);
        if runs.error.replace(error) == Some(error) {
            if !runs.failures.push(now.at, Some(call)) {
                return Look::Away;
            }
        } else {
            runs.failures.restart(now.at, Some(call));
        }
        runs.failures.forget_before(begin);
        if let Some(finding) = runs.failures.finding(settings.count) {
            self.found = Some(call);
            return Look::found(Finding {
                confidence: 0.9,
                ..finding
            });
        }
        let found = self.found.and_then(|found| self.commands.get(found));
        match found {
            Some(runs) if runs.failures.stands() => Look::Standing,
            _ => Look::Clear,
        }
    }

    /// One call that fails and fails, with errors that come back.
    fn same_call(&mut self, at: Moment, facts: &CallFacts, settings: &Settings) -> Option<Finding> {
        /// Errors that are remembered of one run of failures.
        const ERRORS_MAX: usize = 8;
        // Failed edits and writes of a path are another detector's.
        let error = facts.error.filter(|_| !facts.is_change());
        let (Some(call), Some(error)) = (facts.call, error) else {
            self.call = None;
            return None;
        };
        if self.call.replace(call) == Some(call) {
            if !self.in_a_row.push(at, Some(call)) {
                return None;
            }
        } else {
            self.in_a_row.restart(at, Some(call));
            self.errors.clear();
            self.twice = false;
        }
        self.twice |= self.errors.contains(&error);
        if self.errors.len() == ERRORS_MAX {
            self.errors.remove(0);
        }
        self.errors.push(error);
        let found = (self.twice && settings.mixed_errors).then(|| {
            let needed = settings.count.saturating_add(1);
            self.in_a_row.finding(needed)
        });
        found.flatten()
    }
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
    fn marks(script: Script, expected: &str) {
        assert_eq!(script.marks::<TestFailLoop>(&SETTINGS), expected);
    }

    fn test(error: &str) -> Script {
        run("test").fails(error)
    }

    #[test]
    fn three_failures_with_one_error_are_found_and_each_that_goes_on() {
        check(test("e").times(5), &[0, 0, 3, 4, 5]);
    }

    #[test]
    fn edits_between_do_not_reset_it() {
        let lap = |n: &str| edit("f", n) + test("e");
        marks(["1", "2", "3", "4"].map(lap).into_iter().sum(), " . . ! +");
    }

    #[test]
    fn a_pass_or_another_error_does() {
        marks(test("e").times(2) + run("test") + test("e"), "....");
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
    fn other_commands_between_neither_count_nor_end_it() {
        let lap = run("git diff") + read("f") + test("e");
        marks(lap.times(4), "  .  .  !  +");
        marks(
            test("e").times(3) + run("lint").fails("x") + test("e"),
            "..!=+",
        );
        marks(
            test("e").times(3) + run("test") + run("lint").fails("x"),
            "..!..",
        );
    }

    #[test]
    fn commands_are_apart() {
        let lap = test("e") + run("lint").fails("e");
        check(lap.times(3), &[0, 0, 0, 0, 3, 3]);
        check(test("e").times(2) + run("lint").fails("e"), &[0; 3]);
    }

    #[test]
    fn a_call_that_keeps_failing_with_errors_that_come_back_is_found() {
        check(test("1") + test("2") + test("1") + test("2"), &[0, 0, 0, 4]);
        check(test("1") + test("2") + test("3") + test("4"), &[0; 4]);
        let late = (test("1") + test("2") + test("3") + test("4") + test("1"))
            .findings::<TestFailLoop>(&SETTINGS);
        assert_eq!(late[0].events.as_slice(), [0, 1, 2, 3, 4]);
        assert!(!late[0].extends);
        let other = read("f").fails("1") + read("f").fails("2");
        marks(other.times(2), "   !");
    }

    #[test]
    fn errors_that_never_come_back_are_no_loop() {
        check((0..20).map(|n| test(&n.to_string())).sum(), &[0; 20]);
    }

    #[test]
    fn with_anything_between_only_the_same_error_counts() {
        let lap = test("1") + read("f") + test("2") + read("f");
        check(lap.times(2), &[0; 8]);
    }

    #[test]
    fn failed_edits_are_another_detectors() {
        marks(edit("f", "1").fails("no match").times(5), "     ");
    }

    #[test]
    fn what_a_loop_was_reported_with_counts_no_more() {
        marks(test("e").times(2) + cited() + test("e").times(3), "....!");
        marks(test("e").times(3) + cited() + test("e"), "..!+");
    }

    #[test]
    fn a_round_counts_once() {
        marks(test("e").times(4).round("1"), ".   ");
        let round = |n: &str| test("e").times(2).round(n);
        marks(["1", "2", "3"].map(round).into_iter().sum(), ". . ! ");
        check((test("1") + test("2")).times(3).round("1"), &[0; 6]);
    }

    #[test]
    fn a_user_starts_anew() {
        check(test("e").times(2) + user() + test("e"), &[0; 4]);
    }

    #[test]
    fn it_abstains_without_arguments_and_skips_polls_and_outages() {
        marks(test("e").without_args().times(3), "???");
        marks(call("x").outage().times(3) + test("e").poll(), "    ");
    }

    #[test]
    fn evidence_names_the_runs() {
        let found =
            (run("ls") + (test("e") + edit("f", "1")).times(4)).findings::<TestFailLoop>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 3, 5]);
        assert_eq!(found[1].events.as_slice(), [7]);
        assert_eq!(found[0].name, found[1].name);
    }

    #[test]
    fn settings_that_can_never_fire_are_refused() {
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
