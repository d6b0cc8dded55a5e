use smallvec::{SmallVec, smallvec};

use super::heap;
use crate::domain::{Finding, Moment, Sig};

/// Events in a row that are alike in what a detector looks for. The calls of one
/// round count once.
///
/// Most streaks of most sessions are one event long, so that takes no box. One
/// that had a box keeps it, so that a session in its steady state does not
/// allocate.
#[derive(Default)]
pub(super) enum Streak {
    #[default]
    None,
    /// One event, in a round of its own.
    One {
        event: i32,
        call: Option<Sig>,
    },
    Run(Box<Run>),
}

#[derive(Default)]
pub(super) struct Run {
    count: u32,
    /// It was found: what comes now extends it.
    found: bool,
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
    pub fn push(&mut self, at: Moment, call: Option<Sig>) -> bool {
        match self {
            Self::None if at.round.is_none() => {
                let event = at.index;
                *self = Self::One { event, call };
                true
            }
            Self::Run(run) => run.push(at, call),
            Self::None | Self::One { .. } => self.boxed(|run| run.push(at, call)),
        }
    }

    /// Gives it a box.
    fn boxed<T>(&mut self, with: impl FnOnce(&mut Run) -> T) -> T {
        let mut run = Box::<Run>::default();
        if let Self::One { event, call } = self {
            run.count = 1;
            run.events.push(*event);
            run.calls.extend(*call);
        }
        let answer = with(&mut run);
        *self = Self::Run(run);
        answer
    }

    /// Begins anew with this event.
    pub fn restart(&mut self, at: Moment, call: Option<Sig>) {
        self.clear();
        self.push(at, call);
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::None | Self::One { .. } => 0,
            Self::Run(run) => {
                size_of::<Run>() + heap::short_list(&run.events) + heap::short_list(&run.calls)
            }
        }
    }

    pub fn clear(&mut self) {
        match self {
            Self::Run(run) => run.clear(),
            Self::None | Self::One { .. } => *self = Self::None,
        }
    }

    /// Lets go of its events before `begin`.
    pub fn forget_before(&mut self, begin: i32) {
        match self {
            Self::None => {}
            Self::One { event, .. } if *event >= begin => {}
            Self::One { .. } => *self = Self::None,
            Self::Run(run) => {
                let old = run.events.iter().take_while(|event| **event < begin);
                let old = old.count();
                run.events.drain(..old);
                run.count = run.count.saturating_sub(old as u32);
            }
        }
    }

    /// Lets go of events that a loop was reported with, unless it was found
    /// itself and only goes on.
    pub fn spend(&mut self, cited: &[i32]) {
        match self {
            Self::One { event, .. } if cited.contains(event) => *self = Self::None,
            Self::None | Self::One { .. } => {}
            Self::Run(run) => run.spend(cited),
        }
    }

    /// How many different calls are in it.
    pub fn distinct(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One { call, .. } => usize::from(call.is_some()),
            Self::Run(run) => run.calls.len(),
        }
    }

    /// It was found, and nothing has broken it since.
    pub fn stands(&self) -> bool {
        matches!(self, Self::Run(run) if run.found)
    }

    /// What is found once it is `needed` long; named by its calls. Ask only on
    /// an event that counted, and only where nothing else forbids to find it:
    /// the first answer cites all events, the others extend it.
    pub fn finding(&mut self, needed: u32) -> Option<Finding> {
        match self {
            Self::None => None,
            Self::One { .. } if needed > 1 => None,
            Self::One { .. } => self.boxed(|run| run.finding(needed)),
            Self::Run(run) => run.finding(needed),
        }
    }
}

impl Run {
    fn push(&mut self, at: Moment, call: Option<Sig>) -> bool {
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
        self.found = false;
        self.round = None;
        self.events.clear();
        self.calls.clear();
    }

    fn spend(&mut self, cited: &[i32]) {
        if self.found || self.count == 0 {
            return;
        }
        let before = self.events.len();
        self.events.retain(|event| !cited.contains(event));
        let gone = before - self.events.len();
        self.count = self.count.saturating_sub(gone as u32);
        if self.events.is_empty() {
            self.calls.clear();
        }
    }

    fn finding(&mut self, needed: u32) -> Option<Finding> {
        if self.count < needed {
            self.found = false;
            return None;
        }
        let extends = std::mem::replace(&mut self.found, true);
        let events = match self.events.last() {
            Some(last) if extends => smallvec![*last],
            _ => self.events.clone(),
        };
        Some(Finding {
            count: self.count.try_into().unwrap_or(i32::MAX),
            period: 0,
            similarity: 1.0,
            confidence: 1.0,
            bar: None,
            extends,
            events,
            name: self.calls.clone(),
            calls: self.calls.clone(),
        })
    }
}
