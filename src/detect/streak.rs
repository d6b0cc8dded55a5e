use smallvec::{SmallVec, smallvec};

use crate::domain::{Finding, Moment, Sig};

/// Events in a row that are alike in what a detector looks for. The calls of one
/// round count once.
#[derive(Default)]
pub(super) struct Streak {
    count: u32,
    round: Option<Sig>,
    /// Its events as long as it is short; then the latest.
    events: SmallVec<[i32; 8]>,
    /// Its distinct calls, the latest of them.
    calls: SmallVec<[Sig; 4]>,
    /// It was found: what comes now extends it.
    found: bool,
}

/// What a finding remembers of a streak.
const EVENTS_MAX: usize = 64;
const CALLS_MAX: usize = 16;

impl Streak {
    /// Takes an event in; false where its round has been counted.
    pub fn push(&mut self, at: Moment, call: Option<Sig>) -> bool {
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

    /// Begins anew with this event.
    pub fn restart(&mut self, at: Moment, call: Option<Sig>) {
        self.clear();
        self.push(at, call);
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Lets go of its events before `begin`.
    pub fn forget_before(&mut self, begin: i32) {
        let old = self.events.iter().take_while(|event| **event < begin);
        let old = old.count();
        self.events.drain(..old);
        self.count = self.count.saturating_sub(old as u32);
    }

    /// Lets go of events that a loop was reported with, unless it was found
    /// itself and only goes on.
    pub fn spend(&mut self, cited: &[i32]) {
        if self.found || self.count == 0 {
            return;
        }
        let before = self.events.len();
        self.events.retain(|event| !cited.contains(event));
        self.count = self
            .count
            .saturating_sub((before - self.events.len()) as u32);
        if self.events.is_empty() {
            self.calls.clear();
        }
    }

    /// How many different calls are in it.
    pub fn distinct(&self) -> usize {
        self.calls.len()
    }

    /// It was found, and nothing has broken it since.
    pub fn stands(&self) -> bool {
        self.found
    }

    /// What is found once it is `needed` long; named by its calls. Ask only on
    /// an event that counted, and only where nothing else forbids to find it:
    /// the first answer cites all events, the others extend it.
    pub fn finding(&mut self, needed: u32) -> Option<Finding> {
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
