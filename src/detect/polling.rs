//! `polling`: the agent waits for something that never changes.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{Detector, History, NeverFires, check_count, lru_map::LruMap, streak::Streak};
use crate::domain::{
    CallFacts, CallKind, DetectorExplanation, DetectorOutcome, Finding, Observation,
    ObservationBody, Sig, serde_time,
};

/// Fires when: a poll returns the same outcome `count` times, or `dead_count` times if
/// the outcome says that what it waits for is dead, or does not change for `patience`
/// seconds. A poll is a tool that waits or checks for changes, a `sleep`, an empty
/// command, a call repeated after the agent has waited, or a call whose answer says that
/// something is under way. Different polls may alternate, for example a sleep and a
/// status check. Other detectors skip polls: waiting is not a loop, waiting forever is.
///
/// Resets when: any poll returns something else, the session makes progress, or
/// the agent makes an ordinary call other than a read or a search, because an
/// agent that acts between two waits does not wait forever.
///
/// Cost: one map look-up per poll; nothing on other calls.
///
/// Defaults: ten, the point at which agent harnesses give up. Four for something dead:
/// the answer cannot change any more, but the agent needs a poll or two to learn of it.
/// Four hours: a build or a training may take one or two.
#[derive(Default, Serialize, Deserialize)]
pub struct Polling {
    polls: LruMap<PollState>,
    progress: u32,
    reported: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct PollState {
    last_outcome: Option<Sig>,
    streak: Streak,
    /// The time of the first poll with this outcome.
    #[serde(with = "serde_time::option")]
    since: Option<SystemTime>,
}

/// `[detect.polling]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    /// Fewer polls are enough if what they wait for is dead.
    pub dead_count: u32,
    /// Seconds without a change after which a wait is found, whatever its count; 0: never.
    pub patience: u64,
    /// Polls do not count for other detectors. If false, they count like any call.
    pub exclude_from_others: bool,
}

impl Detector for Polling {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "poll")?;
        check_count("dead_count", settings.dead_count, "poll")
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "a wait, or a check for changes, keeps returning the same",
            threshold: {
                let Settings {
                    count,
                    dead_count,
                    patience,
                    ..
                } = *settings;
                let mut threshold =
                    format!("{count} times in a row, {dead_count} if what it waits for has failed");
                if patience > 0 {
                    threshold += &format!(", or no change for {patience} seconds");
                }
                threshold
            },
            would_not_fire_if: "anything new in the result, or work between the checks: a write, a run",
        }
    }

    #[inline]
    fn quick_check(now: &Observation) -> Option<DetectorOutcome> {
        let is_poll =
            matches!(&now.body, ObservationBody::Call(facts) if facts.kind == CallKind::Poll);
        (!is_poll).then_some(DetectorOutcome::NotApplicable)
    }

    fn observe(
        &mut self,
        now: &Observation,
        _past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        let ObservationBody::Call(facts) = &now.body else {
            return DetectorOutcome::NotApplicable;
        };
        match facts.kind {
            CallKind::Poll => self.observe_poll(now, facts, settings),
            CallKind::Ordinary if !facts.operation.is_read() => {
                self.reset();
                DetectorOutcome::NotApplicable
            }
            CallKind::Ordinary | CallKind::Outage => DetectorOutcome::NotApplicable,
        }
    }

    fn reset(&mut self) {
        self.polls.clear();
        self.progress = 0;
        self.reported = false;
    }

    fn heap_bytes(&self) -> usize {
        self.polls.heap_bytes(|state| state.streak.heap_bytes())
    }
}

impl Polling {
    /// Most polls that a finding cites.
    const CALLS_MAX: usize = 16;

    fn observe_poll(
        &mut self,
        now: &Observation,
        facts: &CallFacts,
        settings: &Settings,
    ) -> DetectorOutcome {
        let at = now.at;
        let poll = poll_key(facts);
        let known = self
            .polls
            .get_mut(poll)
            .and_then(|state| state.last_outcome);
        if self.progress != at.progress
            || known.is_some_and(|answer| answer != facts.masked_outcome)
        {
            self.reset();
            self.progress = at.progress;
        }
        let state = self.polls.get_or_insert(poll, &now.capacities.commands);
        state.last_outcome = Some(facts.masked_outcome);
        if !state.streak.push(at, facts.call) {
            return DetectorOutcome::NotApplicable;
        }
        let since = *state.since.get_or_insert(at.time);
        let waited = at.time.duration_since(since).unwrap_or_default().as_secs();
        let is_out_of_patience = settings.patience > 0 && waited >= settings.patience;
        let needed = if facts.is_dead || is_out_of_patience {
            settings.dead_count.min(settings.count)
        } else {
            settings.count
        };
        match state.streak.finding_at_threshold(needed) {
            Some(finding) => {
                self.reported = true;
                // All recent polls are cited, so that alternating polls are one loop
                // whichever of them reaches the count.
                let mut calls = finding.calls;
                calls.extend(self.polls.keys().filter(|key| *key != poll));
                calls.truncate(Self::CALLS_MAX);
                DetectorOutcome::from_finding(Finding {
                    loop_key: smallvec![poll],
                    calls,
                    ..finding
                })
            }
            None if self.reported => DetectorOutcome::Unchanged,
            None => DetectorOutcome::NoMatch,
        }
    }
}

/// Identifies what is polled. The time to wait does not count, so that `sleep 5; tail
/// log` and `sleep 60; tail log` are one poll. A wait without a response ignores all
/// numbers in its arguments. A poll with a response is identified by all its other
/// arguments, so that job 1 and job 2 are two.
fn poll_key(facts: &CallFacts) -> Sig {
    let wait = facts
        .loose_args
        .filter(|_| facts.response.is_none())
        .map(|args| Sig::new(args.get() ^ facts.tool.get()));
    wait.or(facts.poll_key).or(facts.call).unwrap_or(facts.tool)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, compaction, edit, read, run, user};

    const SETTINGS: Settings = Settings {
        count: 10,
        dead_count: 4,
        patience: 14_400,
        exclude_from_others: true,
    };

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<Polling>(&SETTINGS), expected);
    }

    /// Asserts that no event of the script matches.
    #[track_caller]
    fn check_no_match(script: Script) {
        assert!(script.findings::<Polling>(&SETTINGS).is_empty());
    }

    fn poll(name: &str) -> Script {
        call(name).poll()
    }

    #[test]
    fn the_tenth_equal_response_is_found_and_each_further_one() {
        check_letters(poll("p").times(12), ".........!++");
        let found = poll("p").times(11).findings::<Polling>(&SETTINGS);
        assert_eq!((found[0].count, found[1].count), (10, 11));
    }

    #[test]
    fn another_result_resets() {
        let lap = poll("p").times(9) + poll("p").result("news");
        check_no_match(lap.times(3));
        check_letters(
            poll("p").times(10) + poll("p").result("news"),
            ".........!.",
        );
    }

    #[test]
    fn a_wait_and_a_status_check_may_alternate() {
        let lap = poll("sleep 5") + poll("status");
        check_letters(lap.times(11), "..................!!++");
    }

    #[test]
    fn an_alternating_wait_and_status_check_are_one_loop() {
        let found = (poll("sleep 5") + poll("status"))
            .times(10)
            .findings::<Polling>(&SETTINGS);
        assert!(
            found[0]
                .calls
                .iter()
                .all(|call| found[1].calls.contains(call))
        );
    }

    #[test]
    fn waits_of_different_length_are_one_poll_and_checks_of_different_jobs_are_many() {
        let wait = |n: u32| poll(&format!("sleep {n}")).loose("sleep");
        assert_eq!(
            (0..10)
                .map(wait)
                .sum::<Script>()
                .findings::<Polling>(&SETTINGS)
                .len(),
            1
        );
        let look = |n: u32| {
            poll(&format!("job {n}"))
                .loose("job")
                .result("pending")
                .responds("pending")
        };
        check_no_match((0..20).map(look).sum());
    }

    #[test]
    fn a_poll_is_the_same_whatever_time_it_waits() {
        let look = |n: u32| {
            poll(&format!("sleep {n}; tail log"))
                .poll_key("sleep; tail log")
                .responds("building")
        };
        check_letters((0..11).map(look).sum(), ".........!+");
    }

    #[test]
    fn waiting_for_something_dead_is_found_sooner() {
        let failed = || poll("status").responds("FAILED").dead();
        check_letters(failed().times(5), "...!+");
        check_no_match(poll("status").times(3) + failed().times(3));
        check_no_match((failed().times(3) + run("restart")).times(3));
    }

    #[test]
    fn patience_ends_without_a_change() {
        let look = |hour: u64| poll("status").at(hour * 3_600);
        check_letters((0..6).map(look).sum(), "....!+");
        let moving = |hour: u64| look(hour).result(&(hour / 3).to_string());
        check_no_match((0..9).map(moving).sum());
    }

    #[test]
    fn waiting_is_no_loop_while_checks_return_something_new() {
        let lap = |n: usize| poll("sleep 5") + poll("status").result(&n.to_string());
        check_no_match((0..20).map(lap).sum());
    }

    #[test]
    fn acting_between_waits_resets() {
        let lap = |n: usize| call(&format!("click {n}")) + poll("wait");
        check_no_match((0..20).map(lap).sum());
        check_no_match((run("deploy") + poll("wait").times(5)).times(4));
        check_no_match(
            (0..20)
                .map(|n| edit("f", &n.to_string()) + poll("wait"))
                .sum(),
        );
        check_no_match((0..20).map(|n| poll("wait").state(&n.to_string())).sum());
    }

    #[test]
    fn reading_between_polls_does_not_reset() {
        let lap = |n: usize| read(&n.to_string()) + poll("status");
        let laps: Script = (0..11).map(lap).sum();
        assert_eq!(
            laps.outcome_letters::<Polling>(&SETTINGS).trim_end().len(),
            22
        );
        let laps: Script = (0..10).map(lap).sum();
        assert!(laps.outcome_letters::<Polling>(&SETTINGS).ends_with('!'));
    }

    #[test]
    fn outages_between_polls_do_not_reset() {
        check_letters(
            poll("p").times(9) + call("x").outage() + poll("p"),
            "......... !",
        );
    }

    #[test]
    fn a_round_counts_once() {
        check_no_match(poll("p").times(12).round("1"));
    }

    #[test]
    fn a_user_resets_and_a_compaction_does_not() {
        check_no_match(poll("p").times(9) + user() + poll("p").times(9));
        check_letters(poll("p").times(9) + compaction() + poll("p"), "......... !");
    }

    #[test]
    fn polls_with_unknown_arguments_are_identified_by_their_tool() {
        check_letters(poll("p").without_args().times(10), ".........!");
    }

    #[test]
    fn evidence_cites_the_polls() {
        let found = (read("f") + poll("p").times(11)).findings::<Polling>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(found[1].events.as_slice(), [11]);
        assert_eq!(found[0].loop_key, found[1].loop_key);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        assert!(Polling::check(&SETTINGS).is_ok());
        assert!(
            Polling::check(&Settings {
                count: 1,
                ..SETTINGS
            })
            .is_err()
        );
    }
}
