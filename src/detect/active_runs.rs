//! Repeats that were reported and may continue.

use serde::{Deserialize, Serialize};

use super::heap;
use crate::domain::{CallFacts, EventPosition, Sig};

/// Repeats that were found and can be extended, with other calls in between; one
/// per key.
#[derive(Serialize, Deserialize)]
pub(super) struct ActiveRuns<K> {
    /// Empty in sessions that do not loop.
    runs: Vec<ActiveRun<K>>,
}

#[derive(Serialize, Deserialize)]
struct ActiveRun<K> {
    key: K,
    count: i32,
    /// Calls since the run's latest event.
    calls_since: u32,
    round: Option<Sig>,
    raw_outcome: Sig,
    /// The outcomes are equal without masking, too.
    exact: bool,
}

/// The relation of an event to the runs.
pub(super) enum RunStep {
    NotInRun,
    /// An event of the same round was counted before.
    AlreadyCounted,
    /// The event extends a run, which now has `count` events.
    Extended {
        count: i32,
        exact: bool,
    },
}

impl<K> Default for ActiveRuns<K> {
    fn default() -> Self {
        Self { runs: Vec::new() }
    }
}

impl<K: PartialEq> ActiveRuns<K> {
    /// At this bound the run that was found first is dropped.
    const RUNS_MAX: usize = 4;

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub fn clear(&mut self) {
        self.runs.clear();
    }

    pub fn heap_bytes(&self) -> usize {
        heap::vec_bytes(&self.runs)
    }

    /// Counts a call, and ends runs whose latest event has left the window.
    pub fn advance(&mut self, window: u32) {
        if self.runs.is_empty() {
            return;
        }
        self.runs.retain_mut(|run| {
            run.calls_since = run.calls_since.saturating_add(1);
            run.calls_since < window
        });
    }

    pub fn retain(&mut self, is_active: impl Fn(&K) -> bool) {
        if !self.runs.is_empty() {
            self.runs.retain(|run| is_active(&run.key));
        }
    }

    pub fn extend(&mut self, key: &K, at: EventPosition, facts: &CallFacts) -> RunStep {
        let Some(run) = self.runs.iter_mut().find(|run| run.key == *key) else {
            return RunStep::NotInRun;
        };
        run.calls_since = 0;
        if at.round.is_some() && run.round == at.round {
            return RunStep::AlreadyCounted;
        }
        run.round = at.round;
        run.count = run.count.saturating_add(1);
        run.exact &= run.raw_outcome == facts.raw_outcome;
        RunStep::Extended {
            count: run.count,
            exact: run.exact,
        }
    }

    /// Starts a run that was found with this event.
    pub fn insert(&mut self, key: K, count: i32, at: EventPosition, raw: Sig, exact: bool) {
        if self.runs.len() == Self::RUNS_MAX {
            self.runs.remove(0);
        }
        self.runs.push(ActiveRun {
            key,
            count,
            calls_since: 0,
            round: at.round,
            raw_outcome: raw,
            exact,
        });
    }
}
