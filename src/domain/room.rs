use std::cell::Cell;

use serde::Deserialize;

/// Keys of `[limits]`: what is remembered of an agent at most.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Remembered {
    pub paths_max: usize,
    pub commands_max: usize,
    pub loops_max: usize,
}

/// What is remembered of an agent, by kind.
#[derive(Clone, Debug)]
pub struct Rooms {
    /// Paths, a detector.
    pub paths: Room,
    /// Commands and polls, a detector.
    pub commands: Room,
    /// Loops that were found.
    pub loops: Room,
}

impl From<Remembered> for Rooms {
    fn from(most: Remembered) -> Self {
        Self {
            paths: Room::new(most.paths_max),
            commands: Room::new(most.commands_max),
            loops: Room::new(most.loops_max),
        }
    }
}

/// How many there is room for. Who makes room by forgetting says so here, and
/// whoever lent it counts.
#[derive(Clone, Debug)]
pub struct Room {
    most: usize,
    forgotten: Cell<u32>,
}

impl Room {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            forgotten: Cell::new(0),
        }
    }

    /// Forgets until there is room for one more. It may take more than once: a
    /// reload can lower the bound.
    pub fn make<T>(&self, held: &mut T, len: impl Fn(&T) -> usize, forget: impl Fn(&mut T)) {
        while len(held) >= self.most.max(1) {
            forget(held);
            self.forgotten.set(self.forgotten.get() + 1);
        }
    }

    pub fn forgotten(&self) -> u32 {
        self.forgotten.get()
    }
}
