use std::cell::Cell;

use serde::Deserialize;

/// Keys of `[limits]`: what is remembered of an agent at most.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct AgentLimits {
    pub paths_max: usize,
    pub commands_max: usize,
    pub loops_max: usize,
}

/// What is remembered of an agent, by kind.
#[derive(Clone, Debug)]
pub struct Capacities {
    /// Paths, a detector.
    pub paths: Capacity,
    /// Commands and polls, a detector.
    pub commands: Capacity,
    /// Loops that were found.
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

/// How many there is room for. Who makes room by forgetting says so here, and
/// whoever lent it counts.
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

    /// Forgets until there is room for one more. It may take more than once: a
    /// reload can lower the bound.
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
