//! `patch_spiral`: edits of one path keep failing.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::{Detector, History, NeverFires, check_count, heap, lru_map::LruMap};
use crate::domain::{DetectorExplanation, DetectorOutcome, Finding, Observation, Sig};

/// Fires when: the failed edits and writes of one path reach `count`. A success
/// subtracts one. Each path has its own count, and a round counts once.
///
/// Resets when: it fires, which restarts the count of that path.
///
/// Cost: one map look-up per edit or write.
///
/// Defaults: the rule and its count of four come from published loop guards.
#[derive(Default, Serialize, Deserialize)]
pub struct PatchSpiral {
    paths: LruMap<PathFailures>,
}

/// `[detect.patch_spiral]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
}

/// Most failures that are stored per path.
const FAILURES_MAX: u32 = 64;

#[derive(Default, Serialize, Deserialize)]
struct PathFailures {
    events: SmallVec<[i32; 4]>,
    calls: SmallVec<[Sig; 4]>,
    round: Option<Sig>,
}

impl Detector for PatchSpiral {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "failure")?;
        if settings.count > FAILURES_MAX {
            let why = format!(
                "{} failures, at most {FAILURES_MAX} are stored",
                settings.count
            );
            return Err(NeverFires::new("count", why));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "edits and writes of one path keep failing",
            threshold: format!("{} failures, minus one for each success", settings.count),
            would_not_fire_if: "an edit or write of that path that succeeds",
        }
    }

    #[inline]
    fn quick_check(now: &Observation) -> Option<DetectorOutcome> {
        let Some(facts) = now.ordinary_call().filter(|facts| facts.is_change()) else {
            return Some(DetectorOutcome::NotApplicable);
        };
        (facts.target.is_some() && !facts.failed()).then_some(DetectorOutcome::NoMatch)
    }

    fn observe(
        &mut self,
        now: &Observation,
        _past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        let Some(facts) = now.ordinary_call().filter(|facts| facts.is_change()) else {
            return DetectorOutcome::NotApplicable;
        };
        let Some(path) = facts.target else {
            return DetectorOutcome::MissingField("tool_call.target");
        };
        if !facts.failed() {
            if let Some(failures) = self.paths.get_mut(path) {
                failures.events.pop();
                failures.calls.pop();
            }
            return DetectorOutcome::NoMatch;
        }
        let failures = self.paths.get_or_insert(path, &now.capacities.paths);
        if now.at.round.is_some() && failures.round == now.at.round {
            return DetectorOutcome::NotApplicable;
        }
        failures.round = now.at.round;
        failures.events.push(now.at.index);
        failures.calls.extend(facts.call);
        if failures.events.len() < settings.count as usize {
            return DetectorOutcome::NoMatch;
        }
        let cleared = PathFailures {
            round: now.at.round,
            ..PathFailures::default()
        };
        let PathFailures {
            events, mut calls, ..
        } = std::mem::replace(failures, cleared);
        calls.sort_unstable();
        calls.dedup();
        DetectorOutcome::from_finding(Finding {
            calls,
            ..Finding::new(events.len(), events.into_iter().collect(), smallvec![path])
        })
    }

    fn consume(&mut self, cited: &[i32]) {
        for failures in self.paths.values_mut() {
            failures.events.retain(|event| !cited.contains(event));
            if failures.events.is_empty() {
                failures.calls.clear();
            }
        }
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn heap_bytes(&self) -> usize {
        let failures = |of: &PathFailures| {
            heap::small_vec_bytes(&of.events) + heap::small_vec_bytes(&of.calls)
        };
        self.paths.heap_bytes(failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, cited, edit, read, run, user, write};

    const SETTINGS: Settings = Settings { count: 4 };

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<PatchSpiral>(&SETTINGS), expected);
    }

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<PatchSpiral>(&SETTINGS), expected);
    }

    /// Edits of a file, by letter: `f` fails, `s` succeeds.
    fn edits(file: &str, outcomes: &str) -> Script {
        let edit = |(n, outcome): (usize, char)| match outcome {
            'f' => edit(file, &n.to_string()).fails("no match"),
            _ => edit(file, &n.to_string()),
        };
        outcomes.chars().enumerate().map(edit).sum()
    }

    #[test]
    fn cited_events_do_not_count_again() {
        check_letters(edits("f", "fff") + cited() + edits("f", "ffff"), "......!");
    }

    #[test]
    fn the_fourth_failed_edit_of_a_file_is_found() {
        check(edits("f", "ffff"), &[0, 0, 0, 4]);
        check(
            edits("f", "fff") + write("f", "x").fails("denied"),
            &[0, 0, 0, 4],
        );
    }

    #[test]
    fn firing_restarts_the_count() {
        check_letters(edits("f", "ffffffff"), "...!...!");
    }

    #[test]
    fn a_success_subtracts_one_but_not_below_zero() {
        check(edits("f", "ffsfff"), &[0, 0, 0, 0, 0, 4]);
        check(edits("f", "sssfff"), &[0; 6]);
        check(edits("f", "fsfsfsfsfs"), &[0; 10]);
    }

    #[test]
    fn other_calls_in_between_do_not_matter() {
        let lap = edits("f", "f") + read("f") + run("test").fails("e");
        check_letters(lap.times(4), ".  .  .  !  ");
    }

    #[test]
    fn paths_are_counted_separately() {
        check(edits("f", "fff") + edits("g", "fff"), &[0; 6]);
        check(
            edits("f", "fff") + edits("g", "s") + edits("f", "f"),
            &[0, 0, 0, 0, 4],
        );
    }

    #[test]
    fn a_round_counts_once() {
        check_letters(edits("f", "fffff").round("1"), ".    ");
        let round = |n: &str| edits("f", "ff").round(n);
        check_letters(
            ["1", "2", "3", "4", "5"].map(round).into_iter().sum(),
            ". . . ! . ",
        );
    }

    #[test]
    fn a_user_resets() {
        check(edits("f", "fff") + user() + edits("f", "f"), &[0; 5]);
    }

    #[test]
    fn a_missing_path_is_reported_and_outages_are_skipped() {
        check_letters(edits("f", "ff").without_target(), "??");
        check_letters(edits("f", "ffff").outage(), "    ");
    }

    #[test]
    fn evidence_cites_the_failures_and_the_path_is_the_loop_key() {
        let found = (run("x") + edits("f", "ffffffff")).findings::<PatchSpiral>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3, 4]);
        assert_eq!(found[1].events.as_slice(), [5, 6, 7, 8]);
        assert_eq!(found[0].loop_key, found[1].loop_key);
        assert_eq!(found[0].calls.len(), 4);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        assert!(PatchSpiral::check(&SETTINGS).is_ok());
        assert!(PatchSpiral::check(&Settings { count: 1 }).is_err());
    }
}
