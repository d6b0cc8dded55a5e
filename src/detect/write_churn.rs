//! `write_churn`: the agent writes one file again and again without effect.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{Detector, History, NeverFires, check_count, streak::Streak};
use crate::domain::{
    CallFacts, DetectorExplanation, DetectorOutcome, Finding, Observation, Operation, Sig,
};

/// Fires when: `count` writes in a row to one file change nothing, by their content or
/// their answer, or the file is rewritten as a whole `rewrites` times with no read of
/// it and no run in between. Edits of a part are work, however many there are. Also
/// fires when the agent rewrites its plan or todo list `plan_rewrites` times with no
/// other call between and without one more step done: planning is no work.
///
/// Resets when: another file is written, this file is read, or a command or a
/// call of unknown operation runs. Any other call ends a row of plans.
///
/// Cost: one comparison per write.
///
/// Defaults: two writes of the same content can be a formatter and a save, so
/// three are a mistake; ten drafts without checking the result are churn. In recorded
/// sessions healthy agents rewrite their plan at most twice in a row.
#[derive(Default, Serialize, Deserialize)]
pub struct WriteChurn {
    last_path: Option<Sig>,
    last_content: Option<Sig>,
    unchanged: Streak,
    rewrites: Streak,
    plans: Streak,
    /// The steps of the latest plan that are done.
    plan_steps_done: u16,
}

/// `[detect.write_churn]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    pub rewrites: u32,
    /// 0: rewritten plans are not counted.
    pub plan_rewrites: u32,
}

impl Detector for WriteChurn {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "write")?;
        check_count("rewrites", settings.rewrites, "rewrite")?;
        match settings.plan_rewrites {
            0 => Ok(()),
            rewrites => check_count("plan_rewrites", rewrites, "rewrite"),
        }
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "writes of one file change nothing, or rewrite it again and again without reading it",
            threshold: format!(
                "{} writes in a row that change nothing, or {} rewrites with no read of it and no \
                 run between; or {} plans with no other call between",
                settings.count, settings.rewrites, settings.plan_rewrites
            ),
            would_not_fire_if: "a read of the file or a run between, or another file",
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
        if let Some(done) = facts.plan_steps_done {
            return self.observe_plan(now, facts, done, settings);
        }
        self.plans.clear();
        if !facts.wrote() {
            let inspects = match facts.operation {
                Operation::Execute | Operation::Other => true,
                Operation::Read => facts.target == self.last_path,
                Operation::Write | Operation::Edit | Operation::Search => false,
            };
            if inspects {
                self.forget_file();
            }
            return DetectorOutcome::NotApplicable;
        }
        let Some(path) = facts.target else {
            return DetectorOutcome::MissingField("tool_call.target");
        };
        if self.last_path.replace(path) != Some(path) {
            self.forget_file();
            self.last_path = Some(path);
        }
        self.observe_write(now, path, facts, settings)
    }

    fn consume(&mut self, cited: &[i32]) {
        self.unchanged.consume(cited);
        self.rewrites.consume(cited);
        self.plans.consume(cited);
    }

    fn reset(&mut self) {
        self.forget_file();
        self.plans.clear();
        self.plan_steps_done = 0;
    }

    fn heap_bytes(&self) -> usize {
        self.unchanged.heap_bytes() + self.rewrites.heap_bytes() + self.plans.heap_bytes()
    }
}

impl WriteChurn {
    /// Restarts the counts of writes.
    fn forget_file(&mut self) {
        self.last_path = None;
        self.last_content = None;
        self.unchanged.clear();
        self.rewrites.clear();
    }

    /// Counts plans in a row.
    fn observe_plan(
        &mut self,
        now: &Observation,
        facts: &CallFacts,
        done: u16,
        settings: &Settings,
    ) -> DetectorOutcome {
        // Ticking off one step after the other is what plans are for.
        if std::mem::replace(&mut self.plan_steps_done, done) < done {
            self.plans.clear();
        }
        if settings.plan_rewrites == 0 || facts.failed() || !self.plans.push(now.at, facts.call) {
            return DetectorOutcome::NotApplicable;
        }
        match self.plans.finding_at_threshold(settings.plan_rewrites) {
            Some(finding) => DetectorOutcome::from_finding(Finding {
                loop_key: smallvec![facts.tool],
                ..finding
            }),
            None => DetectorOutcome::NoMatch,
        }
    }

    fn observe_write(
        &mut self,
        now: &Observation,
        path: Sig,
        facts: &CallFacts,
        settings: &Settings,
    ) -> DetectorOutcome {
        // Without a content hash, an equal whole-file write changes nothing. An
        // equal edit does change something, or it would not have matched.
        let whole = facts.operation == Operation::Write;
        let content = facts.content.or(facts.call.filter(|_| whole));
        let same = facts.changed_nothing || (content.is_some() && self.last_content == content);
        if !facts.changed_nothing {
            self.last_content = content;
        }
        let counts = if same {
            self.unchanged.push(now.at, facts.call)
        } else {
            self.unchanged.restart(now.at, facts.call);
            whole && self.rewrites.push(now.at, facts.call)
        };
        let found = match (counts, same) {
            (true, true) => self.unchanged.finding_at_threshold(settings.count),
            (true, false) => self.rewrites.finding_at_threshold(settings.rewrites),
            (false, _) => None,
        };
        match found {
            Some(finding) => DetectorOutcome::from_finding(Finding {
                loop_key: smallvec![path],
                ..finding
            }),
            None if self.unchanged.is_ongoing() || self.rewrites.is_ongoing() => {
                DetectorOutcome::Unchanged
            }
            None => DetectorOutcome::NoMatch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, edit, read, run, user, write};

    const SETTINGS: Settings = Settings {
        count: 3,
        rewrites: 10,
        plan_rewrites: 5,
    };

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<WriteChurn>(&SETTINGS), expected);
    }

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<WriteChurn>(&SETTINGS), expected);
    }

    fn drafts(n: usize) -> Script {
        (0..n).map(|n| write("f", &n.to_string())).sum()
    }

    #[test]
    fn the_third_write_of_one_content_is_found_and_each_further_one() {
        check(write("f", "a").content("a").times(4), &[0, 0, 3, 4]);
        check(write("f", "a").times(4), &[0, 0, 3, 4]);
        let other_words = edit("f", "1") + edit("f", "2") + edit("f", "3");
        check(other_words.content("a"), &[0, 0, 3]);
    }

    #[test]
    fn two_equal_writes_are_not_found() {
        check(write("f", "a").content("a").times(2), &[0, 0]);
    }

    #[test]
    fn an_equal_edit_counts_as_a_change_unless_the_content_is_equal() {
        check(edit("f", "a").times(4), &[0; 4]);
        let at = |content: &str| edit("f", "a").content(content);
        check(at("1") + at("2") + at("3") + at("4"), &[0; 4]);
    }

    #[test]
    fn writes_whose_answer_says_that_nothing_changed_are_found() {
        let slip = |n: usize| edit("f", &n.to_string()).changes_nothing();
        check((0..4).map(slip).sum(), &[0, 0, 3, 4]);
        check(slip(0) + slip(1) + edit("f", "x") + slip(2), &[0; 4]);
        check(slip(0) + slip(1) + read("f") + slip(2), &[0; 4]);
    }

    #[test]
    fn the_fifth_plan_with_no_other_call_between_is_found() {
        let plan = |n: usize| call(&n.to_string()).plan(1);
        let plans = |n: usize| (0..n).map(plan).sum::<Script>();
        check(plans(6), &[0, 0, 0, 0, 5, 6]);
        check((plans(4) + read("f")).times(2), &[0; 10]);
        check(plans(4) + user() + plans(4), &[0; 9]);
        check(plans(6).round("1"), &[0; 6]);
        let ticked = |n: usize| plan(n).plan(n as u16);
        check((0..8).map(ticked).sum(), &[0; 8]);
    }

    #[test]
    fn different_edits_are_not_found() {
        check((0..20).map(|n| edit("f", &n.to_string())).sum(), &[0; 20]);
    }

    #[test]
    fn the_tenth_rewrite_without_a_read_is_found_and_each_further_one() {
        let mut expected = [0; 12];
        expected[9..].copy_from_slice(&[10, 11, 12]);
        check(drafts(12), &expected);
        check_letters(
            drafts(11) + write("f", "10") + edit("f", "x"),
            ".........!+==",
        );
    }

    #[test]
    fn a_read_of_the_file_a_run_or_an_unknown_call_resets() {
        check(drafts(9) + read("f") + drafts(9), &[0; 19]);
        check(drafts(9) + run("test") + drafts(9), &[0; 19]);
        check(drafts(9) + call("preview") + drafts(9), &[0; 19]);
        check(
            write("f", "a").times(2) + read("f") + write("f", "a"),
            &[0; 4],
        );
    }

    #[test]
    fn a_read_of_another_file_or_a_failed_write_does_not_reset() {
        let mut expected = [0; 11];
        expected[10] = 10;
        check(read("g") + drafts(10), &expected);
        check(
            drafts(5) + read("g") + (5..10).map(|n| write("f", &n.to_string())).sum(),
            &expected,
        );
        check(
            drafts(5)
                + write("f", "x").fails("disk full")
                + (5..10).map(|n| write("f", &n.to_string())).sum(),
            &expected,
        );
    }

    #[test]
    fn alternating_between_files_is_not_found() {
        let lap = |n: usize| write("index", &n.to_string()) + write(&n.to_string(), "text");
        check((0..12).map(lap).sum(), &[0; 24]);
    }

    #[test]
    fn a_round_counts_once() {
        check(write("f", "a").times(4).round("1"), &[0; 4]);
        let round = |n: &str| write("f", "a").times(2).round(n);
        check_letters(
            ["1", "2", "3", "4"].map(round).into_iter().sum(),
            "....!=+=",
        );
    }

    #[test]
    fn a_user_resets() {
        check(write("f", "a").times(2) + user() + write("f", "a"), &[0; 4]);
    }

    #[test]
    fn a_missing_target_is_reported() {
        check_letters(write("f", "a").without_target().times(3), "???");
    }

    #[test]
    fn evidence_cites_the_writes_and_the_file_is_the_loop_key() {
        let found = (write("f", "x") + write("f", "a").times(4)).findings::<WriteChurn>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3]);
        assert_eq!(found[1].events.as_slice(), [4]);
        assert_eq!(
            found[0].loop_key,
            drafts(10).findings::<WriteChurn>(&SETTINGS)[0].loop_key
        );
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        let rejects = |count, rewrites| {
            let settings = Settings {
                count,
                rewrites,
                ..SETTINGS
            };
            WriteChurn::check(&settings).is_err()
        };
        assert!(!rejects(3, 10));
        assert!(rejects(1, 10));
        assert!(rejects(3, 1));
    }
}
