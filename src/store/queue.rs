//! The bounded queue of verdicts to write. Adding a verdict never blocks.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::domain::{self, Action, Effect, VerdictId, VerdictRecord};

pub(super) struct WriteQueue {
    state: Mutex<QueueState>,
    filled: Condvar,
    queue_max: usize,
    bytes_max: usize,
    dropped_total: AtomicU64,
    any_dropped: AtomicBool,
}

#[derive(Default)]
struct QueueState {
    queue: VecDeque<VerdictRecord>,
    /// The bytes of the queued verdicts.
    bytes: usize,
    /// How many queued verdicts have a caller that waits for the commit.
    urgent: usize,
    closed: bool,
    last: VerdictId,
    /// The newest ids of dropped verdicts, at most `DROPPED_IDS_MAX`.
    dropped: BTreeSet<VerdictId>,
    /// Up to this id it is no longer known which verdicts were dropped.
    untracked_through: VerdictId,
}

/// Verdicts that no caller waits for are delayed by this time, so that later ones are
/// written with them.
const LINGER: Duration = Duration::from_millis(2);
/// How many ids of dropped verdicts are kept. An id has 16 bytes.
const DROPPED_IDS_MAX: usize = 65_536;
/// The limit of the queue in bytes. Verdicts of 1 KiB, the usual size, reach this limit
/// and `queue_max` together. A verdict with much text has about 12 KiB.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most verdicts per write.
pub(super) const BATCH_MAX: usize = 1_024;

impl WriteQueue {
    pub fn new(queue_max: usize, last: VerdictId) -> Self {
        Self {
            state: Mutex::new(QueueState {
                last,
                ..QueueState::default()
            }),
            filled: Condvar::new(),
            queue_max,
            bytes_max: BYTES_MAX,
            dropped_total: AtomicU64::new(0),
            any_dropped: AtomicBool::new(false),
        }
    }

    /// Adds a verdict, or drops it if the queue is too full for its kind: alerts are
    /// dropped first, then warnings, then stronger verdicts, then operator actions,
    /// which are then refused. Operator actions need a bound because callers retry while
    /// the disk hangs, and each retry adds an action.
    ///
    /// The queue always accepts a termination. A retry adds none, because a session or
    /// sub-agent is terminated once and its tombstone has the verdict. A termination can
    /// only be marked dropped later, by the writer: when its write fails and the backlog
    /// of failed terminations is full.
    pub fn enqueue(&self, issued: VerdictRecord) {
        let mut state = self.lock();
        state.last = issued.verdict.id;
        if !self.has_room(&state, &issued) {
            self.record_dropped(&mut state, issued.verdict.id);
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

    fn has_room(&self, state: &QueueState, issued: &VerdictRecord) -> bool {
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

    /// Waits for the next verdicts to write, oldest first. The batch is empty if
    /// `timeout` passes without a verdict. `None`: the queue is closed and empty.
    pub fn next_batch(&self, timeout: Option<Duration>) -> Option<Batch> {
        let mut state = self.lock();
        let is_idle = |state: &mut QueueState| state.queue.is_empty() && !state.closed;
        match timeout {
            None => self.filled.wait_while(&mut state, is_idle),
            Some(timeout) => {
                self.filled.wait_while_for(&mut state, is_idle, timeout);
            }
        }
        if state.queue.is_empty() {
            return (!state.closed).then(Batch::default);
        }
        let until = Instant::now() + LINGER;
        while state.urgent == 0 && !state.closed && state.queue.len() < BATCH_MAX {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.filled.wait_for(&mut state, left);
        }
        let most = state.queue.len().min(BATCH_MAX);
        let issued: Vec<VerdictRecord> = state.queue.drain(..most).collect();
        state.urgent -= issued.iter().filter(|issued| is_urgent(issued)).count();
        state.bytes -= issued.iter().map(bytes).sum::<usize>();
        let through = match (state.queue.is_empty(), issued.last()) {
            (false, Some(last)) => last.verdict.id,
            _ => state.last,
        };
        Some(Batch { issued, through })
    }

    /// Records that a verdict will not be written.
    pub fn mark_dropped(&self, id: VerdictId) {
        self.record_dropped(&mut self.lock(), id);
    }

    fn record_dropped(&self, state: &mut QueueState, id: VerdictId) {
        state.dropped.insert(id);
        if state.dropped.len() > DROPPED_IDS_MAX
            && let Some(oldest) = state.dropped.pop_first()
        {
            state.untracked_through = oldest;
        }
        self.any_dropped.store(true, Relaxed);
        self.dropped_total.fetch_add(1, Relaxed);
    }

    /// Whether the verdict was dropped. If more verdicts were dropped than
    /// `DROPPED_IDS_MAX`, all verdicts up to `untracked_through` are reported as dropped,
    /// because durability must not be promised wrongly.
    pub fn may_be_dropped(&self, id: VerdictId) -> bool {
        if !self.any_dropped.load(Relaxed) {
            return false;
        }
        let state = self.lock();
        id <= state.untracked_through || state.dropped.contains(&id)
    }

    /// Closes the queue. Queued verdicts are still returned.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }

    /// The last issued verdict.
    pub fn last(&self) -> VerdictId {
        self.lock().last
    }

    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    pub fn dropped_total(&self) -> u64 {
        self.dropped_total.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }
}

/// The verdicts of one write.
#[derive(Default)]
pub(super) struct Batch {
    pub issued: Vec<VerdictRecord>,
    /// All verdicts up to this one are in this batch, in an earlier one, or dropped.
    /// Calls that wait for one of them can be answered after the write.
    pub through: VerdictId,
}

fn bytes(issued: &VerdictRecord) -> usize {
    size_of::<VerdictRecord>()
        + issued.verdict.memory_bytes()
        + domain::labels_bytes(&issued.labels)
}

/// Whether a caller waits for the commit.
fn is_urgent(issued: &VerdictRecord) -> bool {
    issued.effect != Effect::None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::{looping, reset, terminated};

    fn kept(intake: &WriteQueue) -> Vec<u128> {
        let batch = intake.next_batch(None).unwrap().issued;
        batch.iter().map(|issued| issued.verdict.id.0).collect()
    }

    #[test]
    fn the_weakest_are_let_go_first_acts_beyond_twice_the_room_and_terminations_never() {
        let intake = WriteQueue::new(4, VerdictId(0));
        for id in 1..=3 {
            intake.enqueue(looping(id, "s", Action::Alert));
        }
        intake.enqueue(looping(4, "s", Action::Warn));
        intake.enqueue(looping(5, "s", Action::Warn));
        intake.enqueue(looping(6, "s", Action::Escalate));
        intake.enqueue(looping(7, "s", Action::Escalate));
        intake.enqueue(terminated(8, "s"));
        intake.enqueue(reset(9, "s"));
        assert_eq!(intake.dropped_total(), 3);
        assert_eq!((intake.len(), intake.last()), (6, VerdictId(9)));
        assert!(intake.may_be_dropped(VerdictId(7)) && !intake.may_be_dropped(VerdictId(9)));
        (10..=20).for_each(|id| intake.enqueue(reset(id, "s")));
        intake.enqueue(terminated(21, "t"));
        assert_eq!(kept(&intake), [1, 2, 4, 6, 8, 9, 10, 11, 21]);
    }

    #[test]
    fn large_verdicts_fill_the_queue_before_their_number_does() {
        let each = bytes(&looping(1, "s", Action::Escalate));
        let intake = WriteQueue {
            bytes_max: 4 * each,
            ..WriteQueue::new(1_000, VerdictId(0))
        };
        for id in 1..=9 {
            intake.enqueue(looping(id, "s", Action::Escalate));
        }
        intake.enqueue(terminated(10, "s"));
        (11..=20).for_each(|id| intake.enqueue(reset(id, "s")));
        assert_eq!(kept(&intake), [1, 2, 3, 4, 10, 11, 12, 13]);
        // A verdict taken from the queue frees its bytes.
        intake.enqueue(looping(21, "s", Action::Alert));
        assert_eq!((kept(&intake), intake.dropped_total()), (vec![21], 12));
    }

    #[test]
    fn nobody_waits_for_what_was_let_go_of_last() {
        let intake = WriteQueue::new(1, VerdictId(0));
        intake.enqueue(looping(1, "s", Action::Alert));
        intake.enqueue(looping(2, "s", Action::Alert));
        assert_eq!(intake.next_batch(None).unwrap().through, VerdictId(2));
    }

    #[test]
    fn what_was_put_in_before_the_end_is_given_out() {
        let intake = WriteQueue::new(4, VerdictId(0));
        intake.enqueue(looping(1, "s", Action::Warn));
        intake.close();
        assert_eq!(kept(&intake), [1]);
        assert!(intake.next_batch(None).is_none());
    }

    #[test]
    fn patience_ends() {
        let intake = WriteQueue::new(4, VerdictId(0));
        let batch = intake.next_batch(Some(Duration::ZERO)).unwrap();
        assert!(batch.issued.is_empty());
    }
}
