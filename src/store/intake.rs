//! Where verdicts wait for the disk: bounded, and nobody who puts one in waits.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::domain::{self, Action, Effect, Issued, VerdictId};

pub(super) struct Intake {
    state: Mutex<State>,
    filled: Condvar,
    queue_max: usize,
    bytes_max: usize,
    shed: AtomicU64,
    any_lost: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Issued>,
    /// What those in the queue take.
    bytes: usize,
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
/// What the queue may take beside its number: verdicts of 1 KiB, as most are, fill
/// both. One with much text has some 12 KiB.
const BYTES_MAX: usize = 64 * 1024 * 1024;
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
            bytes_max: BYTES_MAX,
            shed: AtomicU64::new(0),
            any_lost: AtomicBool::new(false),
        }
    }

    /// Takes a verdict in, or lets go of it where there are too many of its
    /// kind: alerts first, then warnings, then what is stronger, then what
    /// operators do, which is refused then. While the disk hangs, callers give up
    /// and ask again, and each asking leaves an act. Terminations always find room:
    /// to ask again adds none, since each is of another session or sub-agent, and
    /// the verdict is the one that its tombstone holds.
    pub fn put(&self, issued: Issued) {
        let mut state = self.lock();
        state.last = issued.verdict.id;
        if !self.has_room(&state, &issued) {
            self.lose(&mut state, issued.verdict.id);
            return;
        }
        state.bytes += bytes(&issued);
        let urgent = is_urgent(&issued);
        state.urgent += usize::from(urgent);
        let wake = urgent || state.queue.is_empty();
        state.queue.push_back(issued);
        drop(state);
        if wake {
            self.filled.notify_one();
        }
    }

    fn has_room(&self, state: &State, issued: &Issued) -> bool {
        let quarters = match (issued.effect, issued.verdict.action) {
            (Effect::Terminated, _) => return true,
            (Effect::Reset | Effect::Snoozed(_), _) => 8,
            (Effect::None, Some(Action::Alert) | None) => 2,
            (Effect::None, Some(Action::Warn | Action::Throttle)) => 3,
            (Effect::None, Some(_)) => 4,
        };
        let share = |of: usize| of.saturating_mul(quarters).div_ceil(4);
        state.queue.len() < share(self.queue_max) && state.bytes < share(self.bytes_max)
    }

    /// The next verdicts to write, oldest first; none where `patience` ended
    /// without any. `None`: there will be no more.
    pub fn next(&self, patience: Option<Duration>) -> Option<Batch> {
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
            return (!state.closed).then(Batch::default);
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
        let issued: Vec<Issued> = state.queue.drain(..most).collect();
        state.urgent -= issued.iter().filter(|issued| is_urgent(issued)).count();
        state.bytes -= issued.iter().map(bytes).sum::<usize>();
        let through = match (state.queue.is_empty(), issued.last()) {
            (false, Some(last)) => last.verdict.id,
            _ => state.last,
        };
        Some(Batch { issued, through })
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

/// What one write takes.
#[derive(Default)]
pub(super) struct Batch {
    pub issued: Vec<Issued>,
    /// All up to this one are in it, were before, or were let go of: whoever waits
    /// for one of those waits no longer.
    pub through: VerdictId,
}

fn bytes(issued: &Issued) -> usize {
    size_of::<Issued>() + issued.verdict.bytes() + domain::labels_bytes(&issued.labels)
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
        let batch = intake.next(None).unwrap().issued;
        batch.iter().map(|issued| issued.verdict.id.0).collect()
    }

    #[test]
    fn the_weakest_are_let_go_first_acts_beyond_twice_the_room_and_terminations_never() {
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
        (10..=20).for_each(|id| intake.put(reset(id, "s")));
        intake.put(terminated(21, "t"));
        assert_eq!(kept(&intake), [1, 2, 4, 6, 8, 9, 10, 11, 21]);
    }

    #[test]
    fn large_verdicts_fill_the_queue_before_their_number_does() {
        let each = bytes(&looping(1, "s", Action::Escalate));
        let intake = Intake {
            bytes_max: 4 * each,
            ..Intake::new(1_000, VerdictId(0))
        };
        for id in 1..=9 {
            intake.put(looping(id, "s", Action::Escalate));
        }
        intake.put(terminated(10, "s"));
        (11..=20).for_each(|id| intake.put(reset(id, "s")));
        assert_eq!(kept(&intake), [1, 2, 3, 4, 10, 11, 12, 13]);
        // What was taken out leaves its room.
        intake.put(looping(21, "s", Action::Alert));
        assert_eq!((kept(&intake), intake.shed()), (vec![21], 12));
    }

    #[test]
    fn nobody_waits_for_what_was_let_go_of_last() {
        let intake = Intake::new(1, VerdictId(0));
        intake.put(looping(1, "s", Action::Alert));
        intake.put(looping(2, "s", Action::Alert));
        assert_eq!(intake.next(None).unwrap().through, VerdictId(2));
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
        let batch = intake.next(Some(Duration::ZERO)).unwrap();
        assert!(batch.issued.is_empty());
    }
}
