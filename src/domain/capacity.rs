//! Limits on what is stored per agent, and a count of what was evicted.

use std::cell::Cell;

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

impl Capacities {
    /// Most paths stored per agent and detector, and written paths per session. An
    /// agent that works on more files at once is not in a loop. Beyond it the least
    /// recently used path is evicted.
    pub const PATHS_MAX: usize = 256;
    /// Most failed commands and polls stored per agent and detector. Beyond it the
    /// least recently used one is evicted.
    pub const COMMANDS_MAX: usize = 64;
    /// Most loops stored per agent to recognise one that returns. Beyond it the one
    /// that ended first is evicted.
    pub const LOOPS_MAX: usize = 32;
}

impl Default for Capacities {
    fn default() -> Self {
        Self {
            paths: Capacity::new(Self::PATHS_MAX),
            commands: Capacity::new(Self::COMMANDS_MAX),
            loops: Capacity::new(Self::LOOPS_MAX),
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

    /// Evicts until one more element fits.
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
