//! `compaction_loop`: the context is compacted again and again without work in between.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::{Detector, History, NeverFires, check_count, streak::Streak};
use crate::domain::{
    CallFacts, DetectorExplanation, DetectorOutcome, EventPosition, LazyBox, MarkerKind,
    Observation, ObservationBody, Sig,
};

/// Fires when: the context is compacted `count` times in a row with no tool call
/// in between, or without progress and to the same size each time. Then the
/// summary fills the context, and the agent no longer gets any work done.
///
/// Resets when: a tool is called; for the second condition, on progress, another
/// size, or work. Work is at least `fresh_calls_min` distinct successful calls not
/// made between the two compactions before. An agent that reads new things is
/// compacted to the same size each time by its harness; one that reads the same
/// things again is stuck.
///
/// Cost: one comparison per marker; after the first marker, one search per call.
///
/// Defaults: three, because one failed compaction and one retry are ordinary.
#[derive(Default, Serialize, Deserialize)]
pub struct CompactionLoop {
    without_calls: Streak,
    last_size_and_progress: Option<(i32, u32)>,
    same_size: Streak,
    /// Allocated by the first marker, because most sessions have none.
    calls_between: LazyBox<CallsBetween>,
}

/// The distinct calls between two compactions.
#[derive(Default, Serialize, Deserialize)]
struct CallsBetween {
    previous: SmallVec<[Sig; CALLS_MAX]>,
    current: SmallVec<[Sig; CALLS_MAX]>,
    /// How many of the current calls are not in `previous`.
    new_calls: u32,
}

/// Most calls stored between two compactions.
const CALLS_MAX: usize = 32;

impl CallsBetween {
    /// The calls before the first compaction, as far as the history has them.
    fn from_history(past: &History) -> Box<Self> {
        let calls = past.calls().filter_map(|entry| entry.call);
        Box::new(Self {
            current: calls.take(CALLS_MAX).collect(),
            ..Self::default()
        })
    }

    fn push(&mut self, call: Sig) {
        if self.current.contains(&call) {
            return;
        }
        self.new_calls += u32::from(!self.previous.contains(&call));
        if self.current.len() < CALLS_MAX {
            self.current.push(call);
        }
    }

    /// Starts the next interval. Returns the number of new calls in this one.
    fn start_next(&mut self) -> u32 {
        self.previous = std::mem::take(&mut self.current);
        std::mem::take(&mut self.new_calls)
    }
}

/// `[detect.compaction_loop]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    /// This many new calls between two compactions are work.
    pub fresh_calls_min: u32,
}

/// Sizes that differ by at most one part in this many are the same.
const SIZE_TOLERANCE: u32 = 100;

impl Detector for CompactionLoop {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "compaction")?;
        if settings.fresh_calls_min == 0 {
            let why = "must be at least 1: with 0, any two compactions have work between them";
            return Err(NeverFires::new("fresh_calls_min", why.to_owned()));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "the context is compacted again and again, with no work between",
            threshold: format!(
                "{} in a row with no tool call between, or with no progress, to the same size, and \
                 fewer than {} new calls between",
                settings.count, settings.fresh_calls_min
            ),
            would_not_fire_if: "progress between, calls not made before, or a tool call and another size",
        }
    }

    #[inline]
    fn quick_check(now: &Observation) -> Option<DetectorOutcome> {
        (!now.is_compaction()).then_some(DetectorOutcome::NotApplicable)
    }

    fn observe(
        &mut self,
        now: &Observation,
        past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        match &now.body {
            ObservationBody::Marker {
                kind: MarkerKind::Compaction,
                context_tokens,
            } => self.observe_compaction(now.at, *context_tokens, past, settings),
            ObservationBody::Call(facts) => {
                self.observe_call(facts);
                DetectorOutcome::NotApplicable
            }
            ObservationBody::Marker { .. }
            | ObservationBody::Turn(_)
            | ObservationBody::PartialText(_)
            | ObservationBody::Other => DetectorOutcome::NotApplicable,
        }
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn heap_bytes(&self) -> usize {
        self.without_calls.heap_bytes()
            + self.same_size.heap_bytes()
            + self.calls_between.heap_bytes(|_| 0)
    }
}

impl CompactionLoop {
    fn observe_call(&mut self, facts: &CallFacts) {
        self.without_calls.clear();
        if let (Some(work), Some(call), false) =
            (self.calls_between.get_mut(), facts.call, facts.failed())
        {
            work.push(call);
        }
    }

    fn observe_compaction(
        &mut self,
        at: EventPosition,
        size: i32,
        past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        // A compaction after compactions without a call in between.
        self.without_calls.push(at, None);
        // A compaction to the size of the last one, without progress or new calls.
        let work = self
            .calls_between
            .get_or_insert_with(|| CallsBetween::from_history(past));
        let worked = work.start_next() >= settings.fresh_calls_min;
        let same = self.last_size_and_progress.is_some_and(|(last, progress)| {
            let near = size.abs_diff(last) <= last.unsigned_abs() / SIZE_TOLERANCE;
            size > 0 && progress == at.progress && near && !worked
        });
        self.last_size_and_progress = Some((size, at.progress));
        if same {
            self.same_size.push(at, None);
        } else {
            self.same_size.restart(at, None);
        }
        // Either streak is a loop at the threshold.
        let finding = self.without_calls.finding_at_threshold(settings.count);
        match finding.or_else(|| self.same_size.finding_at_threshold(settings.count)) {
            Some(mut finding) => {
                finding.loop_key = smallvec![loop_key()];
                DetectorOutcome::from_finding(finding)
            }
            None => DetectorOutcome::NoMatch,
        }
    }
}

/// All compaction loops of an agent share one key.
fn loop_key() -> Sig {
    let mut hasher = DefaultHasher::new();
    "compaction".hash(&mut hasher);
    Sig::new(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{
        Script, call, compaction, compaction_to, edit, read, reads, turn, user,
    };

    const SETTINGS: Settings = Settings {
        count: 3,
        fresh_calls_min: 5,
    };

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(
            script.outcome_letters::<CompactionLoop>(&SETTINGS),
            expected
        );
    }

    #[test]
    fn the_third_in_a_row_is_found_and_each_further_one() {
        let script = compaction().times(4);
        assert_eq!(script.counts::<CompactionLoop>(&SETTINGS), [0, 0, 3, 4]);
        check_letters(compaction().times(4), "..!+");
    }

    #[test]
    fn a_turn_in_between_does_not_reset_and_a_call_does() {
        check_letters((compaction() + turn("on we go")).times(3), ". . ! ");
        check_letters((compaction() + call("a")).times(4), ". . . . ");
    }

    #[test]
    fn ending_at_the_same_size_without_progress_is_found() {
        let lap = |tokens| read("f") + compaction_to(tokens);
        check_letters(
            [90_000, 90_500, 89_900, 90_100].map(lap).into_iter().sum(),
            " . . ! +",
        );
        check_letters(
            [90_000, 80_000, 90_000, 80_000].map(lap).into_iter().sum(),
            " . . . .",
        );
    }

    #[test]
    fn progress_in_between_resets() {
        let lap = |n: &str| edit("f", n) + compaction_to(90_000);
        check_letters(["1", "2", "3", "4"].map(lap).into_iter().sum(), " . . . .");
    }

    #[test]
    fn new_calls_are_work_and_repeated_calls_are_not() {
        let lap = |files: &str| reads(files) + compaction_to(90_000);
        let on = ["a b c d e", "f g h i j", "k l m n o", "p q r s t"];
        check_letters(on.map(lap).into_iter().sum(), "     .     .     .     .");
        check_letters(lap("a b c d e f").times(3), "      .      .      !");
        let few = ["a b c d e", "a b c f", "a b c g"];
        check_letters(few.map(lap).into_iter().sum(), "     .    .    !");
        let failed = |files: &str| reads(files).fails("gone") + compaction_to(90_000);
        check_letters(
            on.map(failed).into_iter().take(3).sum(),
            "     .     .     !",
        );
    }

    #[test]
    fn unknown_and_absurd_sizes_are_not_compared() {
        let lap = |tokens| read("f") + compaction_to(tokens);
        check_letters([0, 0, 0, 0].map(lap).into_iter().sum(), " . . . .");
        check_letters(
            [i32::MIN, i32::MAX, i32::MIN, -1]
                .map(lap)
                .into_iter()
                .sum(),
            " . . . .",
        );
    }

    #[test]
    fn a_user_resets() {
        check_letters(compaction().times(2) + user() + compaction(), ".. .");
    }

    #[test]
    fn evidence_cites_the_compactions() {
        let found = (call("a") + compaction().times(4)).findings::<CompactionLoop>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3]);
        assert_eq!(found[1].events.as_slice(), [4]);
        assert_eq!(found[0].loop_key, found[1].loop_key);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        assert!(CompactionLoop::check(&SETTINGS).is_ok());
        let check = |count, fresh_calls_min| {
            CompactionLoop::check(&Settings {
                count,
                fresh_calls_min,
            })
        };
        assert!(check(1, 5).is_err() && check(3, 0).is_err());
    }
}
