//! A count of alike events in a row, with the finding it leads to.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::heap;
use crate::domain::{EventPosition, Finding, Sig};

/// Consecutive events that are alike for a detector. Calls of the same round
/// count once.
///
/// Most streaks are one event long, so that case is stored without a box. A
/// streak that had a box keeps it when it is cleared, so a session in its steady
/// state does not allocate.
#[derive(Default, Serialize, Deserialize)]
pub(super) enum Streak {
    #[default]
    Empty,
    /// One event without a round id.
    One {
        event: i32,
        call: Option<Sig>,
    },
    Many(Box<StreakEvents>),
}

#[derive(Default, Serialize, Deserialize)]
pub(super) struct StreakEvents {
    count: u32,
    /// The streak was found before, so the next event extends it.
    reported: bool,
    round: Option<Sig>,
    /// The latest events, at most `EVENTS_MAX`.
    events: SmallVec<[i32; 8]>,
    /// The latest distinct calls, at most `CALLS_MAX`.
    calls: SmallVec<[Sig; 4]>,
}

/// Upper bound for the events that a finding cites.
const EVENTS_MAX: usize = 64;
/// Upper bound for the distinct calls that a finding cites.
const CALLS_MAX: usize = 16;

impl Streak {
    /// Adds an event. Returns false if its round was counted before.
    pub fn push(&mut self, at: EventPosition, call: Option<Sig>) -> bool {
        match self {
            Self::Empty if at.round.is_none() => {
                let event = at.index;
                *self = Self::One { event, call };
                true
            }
            Self::Many(run) => run.push(at, call),
            Self::Empty | Self::One { .. } => self.with_boxed(|run| run.push(at, call)),
        }
    }

    /// Moves the streak into a box and updates it there.
    fn with_boxed<T>(&mut self, update: impl FnOnce(&mut StreakEvents) -> T) -> T {
        let mut run = Box::<StreakEvents>::default();
        if let Self::One { event, call } = self {
            run.count = 1;
            run.events.push(*event);
            run.calls.extend(*call);
        }
        let result = update(&mut run);
        *self = Self::Many(run);
        result
    }

    /// Clears the streak and adds this event.
    pub fn restart(&mut self, at: EventPosition, call: Option<Sig>) {
        self.clear();
        self.push(at, call);
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Empty | Self::One { .. } => 0,
            Self::Many(run) => {
                size_of::<StreakEvents>()
                    + heap::small_vec_bytes(&run.events)
                    + heap::small_vec_bytes(&run.calls)
            }
        }
    }

    pub fn clear(&mut self) {
        match self {
            Self::Many(run) => run.clear(),
            Self::Empty | Self::One { .. } => *self = Self::Empty,
        }
    }

    /// Removes the events before `begin`.
    pub fn remove_before(&mut self, begin: i32) {
        match self {
            Self::Empty => {}
            Self::One { event, .. } if *event >= begin => {}
            Self::One { .. } => *self = Self::Empty,
            Self::Many(run) => {
                let old = run
                    .events
                    .iter()
                    .take_while(|event| **event < begin)
                    .count();
                run.events.drain(..old);
                run.count = run.count.saturating_sub(old as u32);
            }
        }
    }

    /// Removes events that another reported loop cites. A streak that was itself
    /// found keeps them, so that it can still be extended.
    pub fn consume(&mut self, cited: &[i32]) {
        match self {
            Self::One { event, .. } if cited.contains(event) => *self = Self::Empty,
            Self::Empty | Self::One { .. } => {}
            Self::Many(run) => run.consume(cited),
        }
    }

    /// The number of distinct calls.
    pub fn distinct_calls(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::One { call, .. } => usize::from(call.is_some()),
            Self::Many(run) => run.calls.len(),
        }
    }

    /// The streak was found and nothing has broken it since.
    pub fn is_ongoing(&self) -> bool {
        matches!(self, Self::Many(run) if run.reported)
    }

    /// The finding once the streak is `needed` long. Its loop key is its calls.
    /// Call it only on an event that was counted, and only if nothing else
    /// prevents a finding: the first finding cites all events, later ones only
    /// the new event.
    pub fn finding_at_threshold(&mut self, needed: u32) -> Option<Finding> {
        match self {
            Self::Empty => None,
            Self::One { .. } if needed > 1 => None,
            Self::One { .. } => self.with_boxed(|run| run.finding_at_threshold(needed)),
            Self::Many(run) => run.finding_at_threshold(needed),
        }
    }
}

impl StreakEvents {
    fn push(&mut self, at: EventPosition, call: Option<Sig>) -> bool {
        let counts = self.count == 0 || at.round.is_none() || at.round != self.round;
        self.round = at.round;
        if let Some(call) = call
            && !self.calls.contains(&call)
        {
            if self.calls.len() == CALLS_MAX {
                self.calls.remove(0);
            }
            self.calls.push(call);
        }
        if counts {
            self.count = self.count.saturating_add(1);
            if self.events.len() == EVENTS_MAX {
                self.events.remove(0);
            }
            self.events.push(at.index);
        }
        counts
    }

    fn clear(&mut self) {
        self.count = 0;
        self.reported = false;
        self.round = None;
        self.events.clear();
        self.calls.clear();
    }

    fn consume(&mut self, cited: &[i32]) {
        if self.reported || self.count == 0 {
            return;
        }
        let before = self.events.len();
        self.events.retain(|event| !cited.contains(event));
        let removed = before - self.events.len();
        self.count = self.count.saturating_sub(removed as u32);
        if self.events.is_empty() {
            self.calls.clear();
        }
    }

    fn finding_at_threshold(&mut self, needed: u32) -> Option<Finding> {
        if self.count < needed {
            self.reported = false;
            return None;
        }
        let extends = std::mem::replace(&mut self.reported, true);
        let events = match self.events.last() {
            Some(last) if extends => smallvec![*last],
            _ => self.events.clone(),
        };
        Some(Finding {
            extends,
            calls: self.calls.clone(),
            ..Finding::new(self.count, events, self.calls.clone())
        })
    }
}
