//! `interleaved_repeat`: the agent returns to the same call among others.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::{
    CallEntry, Detector, History, NeverFires,
    active_runs::{ActiveRuns, RunStep},
    check_count,
};
use crate::domain::{
    AnswerKind, CallFacts, DetectorExplanation, DetectorOutcome, EventPosition, Finding,
    Observation, Operation, Sig,
};

/// Fires when: one call with the same outcome occurs `count` times in the window,
/// with other calls but no progress in between.
///
/// Resets when: the session makes progress, or any call returns something else
/// than before, because then something changes, or a new call acts and shows no effect
/// (a click, a run without output). Events cited by a verdict count
/// only to extend the same run. A run stays active while its latest event is in
/// the window. A compaction drops runs of reads and searches.
///
/// Cost: a scan of the window back to the last progress, only if the call was
/// made before.
///
/// Defaults: four in thirty calls, because a call repeated three times can be a
/// second and third thought.
#[derive(Default, Serialize, Deserialize)]
pub struct InterleavedRepeat {
    /// The repeats that were found and may continue.
    runs: ActiveRuns<RepeatKey>,
    /// The latest event at which a call returned something else than before.
    last_new_result: Option<i32>,
}

/// `[detect.interleaved_repeat]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    pub window: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct RepeatKey {
    call: Sig,
    masked_outcome: Sig,
    progress: u32,
    operation: Operation,
}

impl Detector for InterleavedRepeat {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        let Settings { count, window } = *settings;
        check_count("count", count, "call")?;
        History::check_window(window)?;
        if count >= window {
            let why =
                format!("{count} calls with others between never fit in a window of {window}");
            return Err(NeverFires::new("count", why).with_other_key("window"));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "the same call with the same outcome recurs among other calls, without progress",
            threshold: format!(
                "{} times in the last {} calls",
                settings.count, settings.window
            ),
            would_not_fire_if: "a write that changed something or a changed state between, or another result",
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        if now.is_compaction() {
            let is_retained = |run: &RepeatKey| !run.operation.is_read();
            self.runs.retain(is_retained);
        }
        match now.ordinary_call() {
            Some(facts) => self.observe_call(now.at, facts, past, settings),
            None => DetectorOutcome::NotApplicable,
        }
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn heap_bytes(&self) -> usize {
        self.runs.heap_bytes()
    }
}

impl InterleavedRepeat {
    fn observe_call(
        &mut self,
        at: EventPosition,
        facts: &CallFacts,
        past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        // Runs end outside the window and on progress.
        self.runs.advance(settings.window);
        self.runs.retain(|run| run.progress == at.progress);
        let Some(call) = facts.call else {
            return DetectorOutcome::MissingField("tool_call.args");
        };
        // A call that returns something new is progress: all repeats before it are over.
        // So is a new call that acts in silence: what it changed cannot be seen.
        let last = past.latest_call(call);
        if last.map_or_else(
            || may_change_unseen(facts),
            |last| is_new_result(facts, last),
        ) {
            self.last_new_result = Some(at.index);
            self.runs.clear();
        }
        // A repeat that was reported before is extended by this event alone.
        let repeat = RepeatKey {
            call,
            masked_outcome: facts.masked_outcome,
            progress: at.progress,
            operation: facts.operation,
        };
        match self.runs.extend(&repeat, at, facts) {
            RunStep::Extended { count, exact } => {
                let events = smallvec![at.index];
                return DetectorOutcome::from_finding(build_finding(
                    count, exact, true, events, call,
                ));
            }
            RunStep::AlreadyCounted => return DetectorOutcome::Unchanged,
            RunStep::NotInRun => {}
        }
        // Otherwise the history is searched for enough occurrences to start a run.
        let occurrences = last.and_then(|_| self.find_occurrences(call, at, facts, past, settings));
        let Some((events, exact)) = occurrences else {
            // Other calls do not end a run.
            return if self.runs.is_empty() {
                DetectorOutcome::NoMatch
            } else {
                DetectorOutcome::Unchanged
            };
        };
        let count = events.len().try_into().unwrap_or(i32::MAX);
        self.runs
            .insert(repeat, count, at, facts.raw_outcome, exact);
        DetectorOutcome::from_finding(build_finding(count, exact, false, events, call))
    }

    /// The events of the pattern, oldest first, if there are enough, and whether
    /// their outcomes are equal without masking.
    fn find_occurrences(
        &self,
        call: Sig,
        at: EventPosition,
        facts: &CallFacts,
        past: &History,
        settings: &Settings,
    ) -> Option<(SmallVec<[i32; 8]>, bool)> {
        let mut events: SmallVec<[i32; 8]> = smallvec![at.index];
        let mut exact = true;
        let mut round = at.round;
        let mut other_seen = false;
        let mut others_between = false;
        for entry in past.calls().take(settings.window as usize - 1) {
            if entry.progress != Some(at.progress) || Some(entry.index) < self.last_new_result {
                break;
            }
            if entry.call != Some(call) {
                other_seen = true;
            } else if entry.masked_outcome != facts.masked_outcome.tag() {
                break;
            } else if !entry.consumed && (entry.round.is_none() || entry.round != round) {
                events.push(entry.index);
                exact &= entry.raw_outcome == facts.raw_outcome.tag();
                round = entry.round;
                others_between |= other_seen;
            }
        }
        events.reverse();
        (others_between && events.len() >= settings.count as usize).then_some((events, exact))
    }
}

/// Whether a call that was not made before may have changed something that nothing shows: a
/// click, a run without output.
fn may_change_unseen(facts: &CallFacts) -> bool {
    let is_silent_run = facts.operation == Operation::Execute && facts.answer == AnswerKind::Empty;
    // A receipt has no response.
    let is_act = facts.operation == Operation::Other && facts.may_act && facts.response.is_none();
    !facts.failed() && !facts.changed_nothing && facts.state.is_none() && (is_silent_run || is_act)
}

/// Whether the previous equal call returned something else. The response of a
/// write is ignored, because its effect already counts as progress or not.
fn is_new_result(facts: &CallFacts, last: CallEntry) -> bool {
    !facts.is_change() && last.masked_outcome != facts.masked_outcome.tag()
}

fn build_finding(
    count: i32,
    exact: bool,
    extends: bool,
    events: SmallVec<[i32; 8]>,
    call: Sig,
) -> Finding {
    Finding {
        confidence: if exact { 1.0 } else { 0.9 },
        extends,
        calls: smallvec![call],
        ..Finding::new(count, events, smallvec![call])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{
        Script, call, calls, cited, compaction, edit, read, reads, run, user, write,
    };

    const SETTINGS: Settings = Settings {
        count: 4,
        window: 30,
    };

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<InterleavedRepeat>(&SETTINGS), expected);
    }

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(
            script.outcome_letters::<InterleavedRepeat>(&SETTINGS),
            expected
        );
    }

    #[test]
    fn the_fourth_call_with_others_in_between_is_found_and_each_further_one() {
        check(calls("a x1 a x2 a x3 a x4 a"), &[0, 0, 0, 0, 0, 0, 4, 0, 5]);
    }

    #[test]
    fn other_calls_do_not_end_the_loop() {
        check_letters(calls("a x1 a x2 a x3 a x4 x5 a"), "......!==+");
    }

    #[test]
    fn without_another_call_in_between_it_is_a_plain_repeat() {
        check(calls("x a a a a a x"), &[0; 7]);
    }

    #[test]
    fn a_call_repeated_in_every_round_is_found() {
        let round = |n: &str| (call("a") + call(n)).round(n);
        check_letters(
            ["1", "2", "3", "4", "5"].into_iter().map(round).sum(),
            "......!=+=",
        );
    }

    #[test]
    fn a_call_counts_once_per_round() {
        let round = |n: &str| (call("a").times(2) + call(n)).round(n);
        check_letters(["1", "2", "3"].into_iter().map(round).sum(), ".........");
        let four: Script = ["1", "2", "3", "4"].into_iter().map(round).sum();
        check_letters(four, ".........!==");
    }

    #[test]
    fn a_new_write_is_progress_and_an_equal_write_is_not() {
        check(calls("a x a y a") + write("f", "1") + call("a"), &[0; 7]);
        let twice = write("f", "1") + calls("a x a y a") + write("f", "1") + call("a");
        check(twice, &[0, 0, 0, 0, 0, 0, 0, 4]);
    }

    #[test]
    fn editing_and_testing_is_not_found() {
        let lap = |n: &str| edit("f", n) + run("test") + run("lint");
        check(
            ["1", "2", "3", "4", "5"].into_iter().map(lap).sum(),
            &[0; 15],
        );
    }

    #[test]
    fn rereading_a_file_while_writing_another_is_not_found() {
        let lap = |n: &str| read("a") + read(n) + write("d", n);
        check(
            ["b", "c", "e", "f", "g"].into_iter().map(lap).sum(),
            &[0; 15],
        );
    }

    #[test]
    fn a_changed_state_hash_is_progress() {
        let lap = |n: &str| call("a") + call("x").state(n);
        check(
            ["1", "2", "3", "4", "5"].into_iter().map(lap).sum(),
            &[0; 10],
        );
    }

    #[test]
    fn another_result_resets() {
        check(calls("a x a y a z") + call("a").result("2"), &[0; 7]);
        let then = calls("a x a y a z a") + call("a").result("2") + calls("x y");
        check_letters(then, "......!...");
    }

    #[test]
    fn a_new_result_of_another_call_is_progress() {
        let lap = |n: &str| call("a") + call("status").result(n);
        check(
            ["1", "2", "3", "4", "5"].into_iter().map(lap).sum(),
            &[0; 10],
        );
    }

    #[test]
    fn events_outside_the_window_do_not_count() {
        let far: Script = (0..29).map(|n| call(&n.to_string())).sum();
        check(calls("a x a y a") + far.clone() + call("a"), &[0; 35]);
        let gone = calls("a x a y a z a") + far + call("b") + call("a");
        assert!(
            gone.outcome_letters::<InterleavedRepeat>(&SETTINGS)
                .ends_with("=..")
        );
    }

    #[test]
    fn cited_events_count_only_to_extend_the_loop() {
        let before = calls("a x a y a z");
        check(
            before.clone() + cited() + calls("a x a y a z a"),
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4],
        );
        check_letters(before + call("a") + cited() + calls("x a"), "......!=+");
    }

    #[test]
    fn two_repeated_calls_are_two_runs() {
        check_letters(calls("a b x a b y a b z a b 1 a b"), ".........!!=++");
    }

    #[test]
    fn a_user_resets_and_a_compaction_drops_reads() {
        check(calls("a x a y a") + user() + call("a"), &[0; 7]);
        check(reads("a x a y a z") + compaction() + read("a"), &[0; 8]);
        check_letters(
            reads("a x a y a z a") + compaction() + reads("y a"),
            "......! ..",
        );
        check(
            calls("a x a y a z") + compaction() + call("a"),
            &[0, 0, 0, 0, 0, 0, 0, 4],
        );
    }

    #[test]
    fn polls_outages_and_unknown_arguments_do_not_count() {
        check_letters(calls("x a").poll().times(5), "          ");
        check_letters(calls("x a").outage().times(5), "          ");
        check_letters(call("a").without_args().times(3), "???");
    }

    #[test]
    fn evidence_cites_each_occurrence_and_masked_equality_lowers_confidence() {
        let found = calls("a x a y a z a 1 a").findings::<InterleavedRepeat>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [0, 2, 4, 6]);
        assert_eq!(found[1].events.as_slice(), [8]);
        assert_eq!((found[0].confidence, found[0].period), (1.0, 0));
        let found = (calls("a x a y") + call("a").raw("1") + calls("z a"))
            .findings::<InterleavedRepeat>(&SETTINGS);
        assert_eq!(found[0].confidence, 0.9);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        let rejects =
            |count, window| InterleavedRepeat::check(&Settings { count, window }).is_err();
        assert!(!rejects(4, 30));
        assert!(rejects(1, 30));
        assert!(rejects(30, 30));
        assert!(rejects(4, 33));
    }
}
