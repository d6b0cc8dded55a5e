use smallvec::{SmallVec, smallvec};

use crate::domain::{Finding, Moment, Sig};

/// Events in a row that are alike in what a detector looks for. The calls of one
/// round count once.
///
/// Most streaks of most sessions never begin: such a one is a null pointer. One
/// that has begun keeps its room, so that a session in its steady state does not
/// allocate.
#[derive(Default)]
pub(super) struct Streak {
    run: Option<Box<Run>>,
}

#[derive(Default)]
struct Run {
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
        let run = self.run.get_or_insert_default();
        let counts = run.count == 0 || at.round.is_none() || at.round != run.round;
        run.round = at.round;
        if let Some(call) = call
            && !run.calls.contains(&call)
        {
            if run.calls.len() == CALLS_MAX {
                run.calls.remove(0);
            }
            run.calls.push(call);
        }
        if counts {
            run.count = run.count.saturating_add(1);
            if run.events.len() == EVENTS_MAX {
                run.events.remove(0);
            }
            run.events.push(at.index);
        }
        counts
    }

    /// Begins anew with this event.
    pub fn restart(&mut self, at: Moment, call: Option<Sig>) {
        self.clear();
        self.push(at, call);
    }

    pub fn clear(&mut self) {
        if let Some(run) = &mut self.run {
            run.count = 0;
            run.found = false;
            run.round = None;
            run.events.clear();
            run.calls.clear();
        }
    }

    /// Lets go of its events before `begin`.
    pub fn forget_before(&mut self, begin: i32) {
        let Some(run) = &mut self.run else { return };
        let old = run.events.iter().take_while(|event| **event < begin);
        let old = old.count();
        run.events.drain(..old);
        run.count = run.count.saturating_sub(old as u32);
    }

    /// Lets go of events that a loop was reported with, unless it was found
    /// itself and only goes on.
    pub fn spend(&mut self, cited: &[i32]) {
        let Some(run) = &mut self.run else { return };
        if run.found || run.count == 0 {
            return;
        }
        let before = run.events.len();
        run.events.retain(|event| !cited.contains(event));
        let gone = before - run.events.len();
        run.count = run.count.saturating_sub(gone as u32);
        if run.events.is_empty() {
            run.calls.clear();
        }
    }

    /// How many different calls are in it.
    pub fn distinct(&self) -> usize {
        self.run.as_ref().map_or(0, |run| run.calls.len())
    }

    /// It was found, and nothing has broken it since.
    pub fn stands(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.found)
    }

    /// What is found once it is `needed` long; named by its calls. Ask only on
    /// an event that counted, and only where nothing else forbids to find it:
    /// the first answer cites all events, the others extend it.
    pub fn finding(&mut self, needed: u32) -> Option<Finding> {
        let run = self.run.as_mut()?;
        if run.count < needed {
            run.found = false;
            return None;
        }
        let extends = std::mem::replace(&mut run.found, true);
        let events = match run.events.last() {
            Some(last) if extends => smallvec![*last],
            _ => run.events.clone(),
        };
        Some(Finding {
            count: run.count.try_into().unwrap_or(i32::MAX),
            period: 0,
            similarity: 1.0,
            confidence: 1.0,
            bar: None,
            extends,
            events,
            name: run.calls.clone(),
            calls: run.calls.clone(),
        })
    }
}
