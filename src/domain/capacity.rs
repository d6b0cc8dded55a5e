//! Limits on what is stored per agent, and a count of what was evicted.

use std::cell::Cell;

use serde::Deserialize;

/// The keys of `[limits]` that bound the state of one agent.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct AgentLimits {
    pub paths_max: usize,
    pub commands_max: usize,
    pub loops_max: usize,
}

/// The capacities of one agent's state, by kind.
#[derive(Clone, Debug)]
pub struct Capacities {
    /// Paths, per detector.
    pub paths: Capacity,
    /// Commands and polls, per detector.
    pub commands: Capacity,
    /// Known loops.
    pub loops: Capacity,
}

impl From<AgentLimits> for Capacities {
    fn from(limits: AgentLimits) -> Self {
        Self {
            paths: Capacity::new(limits.paths_max),
            commands: Capacity::new(limits.commands_max),
            loops: Capacity::new(limits.loops_max),
        }
    }
}

/// A capacity limit. Evictions are counted in it and reported to metrics by its
/// owner.
#[derive(Clone, Debug)]
pub struct Capacity {
    limit: usize,
    evicted: Cell<u32>,
}

impl Capacity {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            evicted: Cell::new(0),
        }
    }

    /// Evicts until one more element fits. That may take several evictions, because
    /// a reload can lower the limit.
    pub fn evict_to_fit<T>(
        &self,
        collection: &mut T,
        len: impl Fn(&T) -> usize,
        evict_one: impl Fn(&mut T),
    ) {
        while len(collection) >= self.limit.max(1) {
            evict_one(collection);
            self.evicted.set(self.evicted.get() + 1);
        }
    }

    pub fn evicted(&self) -> u32 {
        self.evicted.get()
    }
}
