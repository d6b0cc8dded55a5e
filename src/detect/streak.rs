use smallvec::{SmallVec, smallvec};

use super::heap;
use crate::domain::{EventPosition, Finding, Sig};

/// Events in a row that are alike in what a detector looks for. The calls of one
/// round count once.
///
/// Most streaks of most sessions are one event long, so that takes no box. One
/// that had a box keeps it, so that a session in its steady state does not
/// allocate.
#[derive(Default)]
pub(super) enum Streak {
    #[default]
    Empty,
    /// One event, in a round of its own.
    One {
        event: i32,
        call: Option<Sig>,
    },
    Many(Box<StreakEvents>),
}

#[derive(Default)]
pub(super) struct StreakEvents {
    count: u32,
    /// It was found: what comes now extends it.
    reported: bool,
    round: Option<Sig>,
    /// Its events as long as it is short; then the latest.
    events: SmallVec<[i32; 8]>,
    /// Its distinct calls, the latest of them.
    calls: SmallVec<[Sig; 4]>,
}

/// What a finding remembers of a streak.
const EVENTS_MAX: usize = 64;
const CALLS_MAX: usize = 16;

impl Streak {
    /// Takes an event in; false where its round has been counted.
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

    /// Gives it a box.
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

    /// Begins anew with this event.
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

    /// Lets go of its events before `begin`.
    pub fn remove_before(&mut self, begin: i32) {
        match self {
            Self::Empty => {}
            Self::One { event, .. } if *event >= begin => {}
            Self::One { .. } => *self = Self::Empty,
            Self::Many(run) => {
                let old = run.events.iter().take_while(|event| **event < begin);
                let old = old.count();
                run.events.drain(..old);
                run.count = run.count.saturating_sub(old as u32);
            }
        }
    }

    /// Lets go of events that a loop was reported with, unless it was found
    /// itself and only goes on.
    pub fn consume(&mut self, cited: &[i32]) {
        match self {
            Self::One { event, .. } if cited.contains(event) => *self = Self::Empty,
            Self::Empty | Self::One { .. } => {}
            Self::Many(run) => run.consume(cited),
        }
    }

    /// How many different calls are in it.
    pub fn distinct_calls(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::One { call, .. } => usize::from(call.is_some()),
            Self::Many(run) => run.calls.len(),
        }
    }

    /// It was found, and nothing has broken it since.
    pub fn is_ongoing(&self) -> bool {
        matches!(self, Self::Many(run) if run.reported)
    }

    /// What is found once it is `needed` long; named by its calls. Ask only on
    /// an event that counted, and only where nothing else forbids to find it:
    /// the first answer cites all events, the others extend it.
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
