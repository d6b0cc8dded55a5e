use super::heap;
use crate::domain::{CallFacts, Moment, Sig};

/// Repeats that were found and go on with other calls between, one a key.
pub(super) struct Runs<K> {
    /// Empty in all sessions but those that loop.
    known: Vec<Run<K>>,
}

struct Run<K> {
    key: K,
    count: i32,
    /// Calls since its latest event.
    idle: u32,
    round: Option<Sig>,
    raw: Sig,
    /// Equal without masking, too.
    exact: bool,
}

/// What an event is to a run.
pub(super) enum Step {
    /// It is in no run.
    None,
    /// Its round has been counted.
    Counted,
    /// It goes on with one: how long that is now, and whether exactly equal.
    On { count: i32, exact: bool },
}

impl<K> Default for Runs<K> {
    fn default() -> Self {
        Self { known: Vec::new() }
    }
}

impl<K: PartialEq> Runs<K> {
    /// Beyond it the run that was found longest ago is forgotten.
    const RUNS_MAX: usize = 4;

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub fn clear(&mut self) {
        self.known.clear();
    }

    pub fn heap_bytes(&self) -> usize {
        heap::list(&self.known)
    }

    /// A call was made: runs whose latest event has left the window are over.
    pub fn pass(&mut self, window: u32) {
        if self.known.is_empty() {
            return;
        }
        self.known.retain_mut(|run| {
            run.idle = run.idle.saturating_add(1);
            run.idle < window
        });
    }

    pub fn retain(&mut self, goes_on: impl Fn(&K) -> bool) {
        if !self.known.is_empty() {
            self.known.retain(|run| goes_on(&run.key));
        }
    }

    pub fn step(&mut self, key: &K, at: Moment, facts: &CallFacts) -> Step {
        let Some(run) = self.known.iter_mut().find(|run| run.key == *key) else {
            return Step::None;
        };
        run.idle = 0;
        if at.round.is_some() && run.round == at.round {
            return Step::Counted;
        }
        run.round = at.round;
        run.count = run.count.saturating_add(1);
        run.exact &= run.raw == facts.raw;
        Step::On {
            count: run.count,
            exact: run.exact,
        }
    }

    /// A run was found with this event.
    pub fn begin(&mut self, key: K, count: i32, at: Moment, raw: Sig, exact: bool) {
        if self.known.len() == Self::RUNS_MAX {
            self.known.remove(0);
        }
        self.known.push(Run {
            key,
            count,
            idle: 0,
            round: at.round,
            raw,
            exact,
        });
    }
}
