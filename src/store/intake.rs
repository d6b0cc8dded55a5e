//! Where verdicts wait for the disk: bounded, and nobody who puts one in waits.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::domain::{Action, Effect, Issued, VerdictId};

pub(super) struct Intake {
    state: Mutex<State>,
    filled: Condvar,
    queue_max: usize,
    shed: AtomicU64,
    any_lost: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Issued>,
    /// How many in the queue have somebody who waits for the disk.
    urgent: usize,
    closed: bool,
    last: VerdictId,
    /// Verdicts that are on no disk and will not be, as many as are remembered.
    lost: BTreeSet<VerdictId>,
    /// Up to this one it is not known any more which were lost.
    unknown: VerdictId,
}

/// Verdicts that nobody waits for are written together with what comes within
/// this time.
const LINGER: Duration = Duration::from_millis(2);
/// Lost verdicts that are remembered by their ids, 16 bytes each.
const LOST_MAX: usize = 65_536;
/// Verdicts in one write.
pub(super) const BATCH_MAX: usize = 1_024;

impl Intake {
    pub fn new(queue_max: usize, last: VerdictId) -> Self {
        Self {
            state: Mutex::new(State {
                last,
                ..State::default()
            }),
            filled: Condvar::new(),
            queue_max,
            shed: AtomicU64::new(0),
            any_lost: AtomicBool::new(false),
        }
    }

    /// Takes a verdict in, or lets go of it where there are too many of its
    /// kind: alerts first, then warnings, then what is stronger. Terminations
    /// and operators' acts always find room: each has a caller that waits, so
    /// there are never more than calls.
    pub fn put(&self, issued: Issued) {
        let room = match issued.verdict.action {
            _ if is_urgent(&issued) => usize::MAX,
            Some(Action::Alert) | None => self.queue_max / 2,
            Some(Action::Warn | Action::Throttle) => self.queue_max / 4 * 3,
            Some(_) => self.queue_max,
        };
        let mut state = self.lock();
        state.last = issued.verdict.id;
        if state.queue.len() >= room {
            self.lose(&mut state, issued.verdict.id);
            return;
        }
        let urgent = is_urgent(&issued);
        state.urgent += usize::from(urgent);
        let wake = urgent || state.queue.is_empty();
        state.queue.push_back(issued);
        drop(state);
        if wake {
            self.filled.notify_one();
        }
    }

    /// The next verdicts to write, oldest first; none where `patience` ended
    /// without any. `None`: there will be no more.
    pub fn next(&self, patience: Option<Duration>) -> Option<Vec<Issued>> {
        let mut state = self.lock();
        let is_idle = |state: &mut State| state.queue.is_empty() && !state.closed;
        state = match patience {
            None => {
                let waited = self.filled.wait_while(state, is_idle);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
            Some(patience) => {
                let waited = self.filled.wait_timeout_while(state, patience, is_idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if state.queue.is_empty() {
            return (!state.closed).then(Vec::new);
        }
        let until = Instant::now() + LINGER;
        while state.urgent == 0 && !state.closed && state.queue.len() < BATCH_MAX {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.filled.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let most = state.queue.len().min(BATCH_MAX);
        let batch: Vec<Issued> = state.queue.drain(..most).collect();
        state.urgent -= batch.iter().filter(|issued| is_urgent(issued)).count();
        Some(batch)
    }

    /// A verdict will not be on disk.
    pub fn give_up(&self, id: VerdictId) {
        self.lose(&mut self.lock(), id);
    }

    fn lose(&self, state: &mut State, id: VerdictId) {
        state.lost.insert(id);
        if state.lost.len() > LOST_MAX
            && let Some(oldest) = state.lost.pop_first()
        {
            state.unknown = oldest;
        }
        self.any_lost.store(true, Relaxed);
        self.shed.fetch_add(1, Relaxed);
    }

    /// It was let go of. Where so many were that they are not all remembered,
    /// that is said of the oldest too: better than to promise what is not.
    pub fn may_be_lost(&self, id: VerdictId) -> bool {
        if !self.any_lost.load(Relaxed) {
            return false;
        }
        let state = self.lock();
        id <= state.unknown || state.lost.contains(&id)
    }

    /// What it has in hand is still given out.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }

    /// The last verdict that was given.
    pub fn last(&self) -> VerdictId {
        self.lock().last
    }

    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    pub fn shed(&self) -> u64 {
        self.shed.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Its caller waits for the disk.
fn is_urgent(issued: &Issued) -> bool {
    issued.effect != Effect::None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::{looping, reset, terminated};

    fn kept(intake: &Intake) -> Vec<u128> {
        let batch = intake.next(None).unwrap();
        batch.iter().map(|issued| issued.verdict.id.0).collect()
    }

    #[test]
    fn the_weakest_are_let_go_first_and_terminations_and_acts_never() {
        let intake = Intake::new(4, VerdictId(0));
        for id in 1..=3 {
            intake.put(looping(id, "s", Action::Alert));
        }
        intake.put(looping(4, "s", Action::Warn));
        intake.put(looping(5, "s", Action::Warn));
        intake.put(looping(6, "s", Action::Escalate));
        intake.put(looping(7, "s", Action::Escalate));
        intake.put(terminated(8, "s"));
        intake.put(reset(9, "s"));
        assert_eq!(intake.shed(), 3);
        assert_eq!((intake.len(), intake.last()), (6, VerdictId(9)));
        assert!(intake.may_be_lost(VerdictId(7)) && !intake.may_be_lost(VerdictId(9)));
        assert_eq!(kept(&intake), [1, 2, 4, 6, 8, 9]);
    }

    #[test]
    fn what_was_put_in_before_the_end_is_given_out() {
        let intake = Intake::new(4, VerdictId(0));
        intake.put(looping(1, "s", Action::Warn));
        intake.close();
        assert_eq!(kept(&intake), [1]);
        assert!(intake.next(None).is_none());
    }

    #[test]
    fn patience_ends() {
        let intake = Intake::new(4, VerdictId(0));
        assert!(intake.next(Some(Duration::ZERO)).unwrap().is_empty());
    }
}
