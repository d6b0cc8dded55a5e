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
    queue: VecDeque<QueuedVerdict>,
    /// The bytes of the verdicts that are queued or in flight.
    bytes: usize,
    /// How many queued verdicts have a caller that waits for the commit.
    urgent: usize,
    closed: bool,
    /// The writer has something to do beside verdicts.
    is_woken: bool,
    last: VerdictId,
    /// The newest ids of dropped verdicts, at most `DROPPED_IDS_MAX`.
    dropped: BTreeSet<VerdictId>,
    /// Up to this id it is no longer known which verdicts were dropped.
    untracked_through: VerdictId,
    in_flight: Option<InFlight>,
    /// Operator actions in flight that were refused meanwhile.
    withdrawn: Vec<VerdictId>,
    /// The bytes of the terminations that wait for a disk that refuses them.
    backlog_bytes: usize,
    /// When the oldest of these began to wait.
    backlog_since: Option<Instant>,
    /// The oldest termination that was dropped and is still to be written.
    lost_since: Option<VerdictId>,
}

struct QueuedVerdict {
    issued: VerdictRecord,
    queued_at: Instant,
}

impl QueueState {
    fn note_lost(&mut self, id: VerdictId) {
        let oldest = self.lost_since.unwrap_or(id);
        self.lost_since = Some(oldest.min(id));
    }
}

/// The batch that the writer is writing.
struct InFlight {
    issued: Vec<VerdictRecord>,
    bytes: usize,
    started_at: Instant,
    /// When the oldest verdict was queued.
    queued_at: Instant,
}

/// Verdicts that no caller waits for are delayed by this time, so that later ones are
/// written with them.
const LINGER: Duration = Duration::from_millis(2);
/// How many ids of dropped verdicts are kept. An id has 16 bytes.
const DROPPED_IDS_MAX: usize = 65_536;
/// The limit of all that waits for the disk, in bytes: queued, in flight and in the
/// backlog. A verdict usually has 1 KiB, one with much text 12 KiB.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most verdicts per write.
pub(super) const BATCH_MAX: usize = 1_024;
/// A write has as many bytes, or one verdict more: with its indexes it fits into the
/// write-ahead log.
const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

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

    #[cfg(test)]
    pub fn with_bytes_max(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            ..Self::new(1_000, VerdictId(0))
        }
    }

    /// Adds a verdict, or drops it if the queue is too full for its kind: alerts are
    /// dropped first, then warnings, then stronger verdicts, then operator actions,
    /// which are then refused. Operator actions need a bound because callers retry while
    /// the disk hangs, and each retry adds an action.
    ///
    /// A termination is dropped last, and only by bytes. It is in force all the same, and
    /// written from the engine's tombstones when the disk is back. A retry adds none,
    /// because a session or sub-agent is terminated once and its tombstone has the verdict.
    pub fn enqueue(&self, issued: VerdictRecord) {
        let mut state = self.lock();
        state.last = issued.verdict.id;
        if !self.has_room(&state, &issued) {
            if issued.effect == Effect::Terminated {
                state.note_lost(issued.verdict.id);
            }
            self.record_dropped(&mut state, issued.verdict.id);
            return;
        }
        state.bytes += bytes(&issued);
        let urgent = is_urgent(&issued);
        state.urgent += usize::from(urgent);
        let wake = urgent || state.queue.is_empty();
        state.queue.push_back(QueuedVerdict {
            issued,
            queued_at: Instant::now(),
        });
        drop(state);
        if wake {
            self.filled.notify_one();
        }
    }

    fn has_room(&self, state: &QueueState, issued: &VerdictRecord) -> bool {
        // The quarters of `queue_max`, and the eighths of `bytes_max`.
        let (quarters, eighths) = match (issued.effect, issued.verdict.action) {
            (Effect::Terminated, _) => (usize::MAX, 8),
            (Effect::Reset | Effect::Snoozed(_) | Effect::Rated { .. }, _) => (8, 6),
            (Effect::None, Some(Action::Alert) | None) => (2, 2),
            (Effect::None, Some(Action::Warn | Action::Throttle)) => (3, 3),
            (Effect::None | Effect::Disobeyed, _) => (4, 4),
        };
        let len_max = self.queue_max.saturating_mul(quarters).div_ceil(4);
        let bytes_max = self.bytes_max.saturating_mul(eighths).div_ceil(8);
        state.queue.len() < len_max && state.bytes + state.backlog_bytes < bytes_max
    }

    /// Waits for the next verdicts to write, oldest first. The batch is empty if
    /// `timeout` passes without a verdict. `None`: the queue is closed and empty.
    pub fn next_batch(&self, timeout: Option<Duration>) -> Option<Batch> {
        let mut state = self.lock();
        let is_idle =
            |state: &mut QueueState| state.queue.is_empty() && !state.closed && !state.is_woken;
        match timeout {
            None => self.filled.wait_while(&mut state, is_idle),
            Some(timeout) => {
                self.filled.wait_while_for(&mut state, is_idle, timeout);
            }
        }
        state.is_woken = false;
        if state.queue.is_empty() {
            return (!state.closed).then(Batch::default);
        }
        // Wait a little for more, unless something is urgent.
        let until = Instant::now() + LINGER;
        while state.urgent == 0 && !state.closed && state.queue.len() < BATCH_MAX {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.filled.wait_for(&mut state, left);
        }
        // Take as many as a write may have.
        let (mut taken, mut taken_bytes) = (0, 0);
        while taken < BATCH_MAX
            && taken_bytes < BATCH_BYTES_MAX
            && let Some(queued) = state.queue.get(taken)
        {
            taken += 1;
            taken_bytes += bytes(&queued.issued);
        }
        let (issued, queued_at): (Vec<VerdictRecord>, Vec<Instant>) = state
            .queue
            .drain(..taken)
            .map(|queued| (queued.issued, queued.queued_at))
            .unzip();
        state.urgent -= issued.iter().filter(|issued| is_urgent(issued)).count();
        let through = match (state.queue.is_empty(), issued.last()) {
            (false, Some(last)) => last.verdict.id,
            _ => state.last,
        };
        // They stay known while they are written.
        let started_at = Instant::now();
        state.in_flight = Some(InFlight {
            bytes: taken_bytes,
            issued: issued.clone(),
            started_at,
            queued_at: queued_at.first().copied().unwrap_or(started_at),
        });
        Some(Batch {
            issued,
            queued_at,
            through,
        })
    }

    /// Ends the wait of the writer, which then gets an empty batch.
    pub fn wake(&self) {
        self.lock().is_woken = true;
        self.filled.notify_one();
    }

    /// The writer has written the batch, or failed to. Returns the operator actions in it
    /// that were refused meanwhile.
    pub fn end_batch(&self) -> Vec<VerdictId> {
        let mut state = self.lock();
        if let Some(ended) = state.in_flight.take() {
            state.bytes -= ended.bytes;
        }
        std::mem::take(&mut state.withdrawn)
    }

    /// The writer writes something other than verdicts. Verdicts wait meanwhile.
    pub fn begin_maintenance(&self) {
        let started_at = Instant::now();
        self.lock().in_flight = Some(InFlight {
            issued: Vec::new(),
            bytes: 0,
            started_at,
            queued_at: started_at,
        });
    }

    pub fn end_maintenance(&self) {
        self.lock().in_flight = None;
    }

    /// Withdraws an operator action that is not on disk yet.
    pub fn withdraw(&self, id: VerdictId) -> Withdrawal {
        self.withdraw_locked(&mut self.lock(), id)
    }

    fn withdraw_locked(&self, state: &mut QueueState, id: VerdictId) -> Withdrawal {
        let is_it = |issued: &VerdictRecord| issued.verdict.id == id;
        let in_flight = state.in_flight.as_ref();
        if in_flight.is_some_and(|in_flight| in_flight.issued.iter().any(is_it)) {
            if !state.withdrawn.contains(&id) {
                state.withdrawn.push(id);
                self.record_dropped(state, id);
            }
            return Withdrawal::InFlight;
        }
        let index = state.queue.iter().position(|queued| is_it(&queued.issued));
        let Some(removed) = index.and_then(|index| state.queue.remove(index)) else {
            return Withdrawal::Settled;
        };
        state.bytes -= bytes(&removed.issued);
        state.urgent -= usize::from(is_urgent(&removed.issued));
        self.record_dropped(state, id);
        Withdrawal::Removed
    }

    /// The verdicts after the given one that wait for a disk that hangs: the writer has
    /// been writing for `sync_max`. They are delivered without waiting any longer, so the
    /// operator actions before the last of them are withdrawn: published later, they would
    /// be out of order.
    pub fn stalled_after(&self, after: VerdictId, sync_max: Duration) -> Vec<VerdictRecord> {
        let mut state = self.lock();
        let Some(in_flight) = &state.in_flight else {
            return Vec::new();
        };
        if in_flight.started_at.elapsed() < sync_max {
            return Vec::new();
        }
        let queued = state.queue.iter().map(|queued| &queued.issued);
        let waiting = in_flight.issued.iter().chain(queued).rev();
        let new = waiting.take_while(|issued| issued.verdict.id > after);
        let (actions, mut verdicts): (Vec<_>, Vec<_>) = new.cloned().partition(is_operator_action);
        for action in actions {
            self.withdraw_locked(&mut state, action.verdict.id);
        }
        verdicts.reverse();
        verdicts
    }

    /// How long the oldest verdict has waited to be on disk.
    pub fn oldest_unsynced_age(&self) -> Duration {
        let state = self.lock();
        let queued = state.queue.front().map(|queued| queued.queued_at);
        let in_flight = state.in_flight.as_ref().map(|writing| writing.queued_at);
        let oldest = [queued, in_flight, state.backlog_since]
            .into_iter()
            .flatten()
            .min();
        oldest.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// How long the writer has been writing its batch, or something else.
    pub fn write_age(&self) -> Duration {
        let state = self.lock();
        let writing = state.in_flight.as_ref();
        writing.map_or(Duration::ZERO, |writing| writing.started_at.elapsed())
    }

    /// Reserves bytes for a termination that the disk refused. `false`: there is no room.
    pub fn reserve_backlog(&self, bytes: usize) -> bool {
        let mut state = self.lock();
        let has_room = state.bytes + state.backlog_bytes + bytes <= self.bytes_max;
        state.backlog_bytes += if has_room { bytes } else { 0 };
        has_room
    }

    /// Releases bytes of terminations that were written.
    pub fn release_backlog(&self, bytes: usize) {
        let mut state = self.lock();
        state.backlog_bytes = state.backlog_bytes.saturating_sub(bytes);
    }

    /// Sets when the oldest termination began to wait for a disk that refuses it.
    pub fn set_backlog_since(&self, since: Option<Instant>) {
        self.lock().backlog_since = since;
    }

    /// Records that a verdict will not be written.
    pub fn mark_dropped(&self, id: VerdictId) {
        self.record_dropped(&mut self.lock(), id);
    }

    /// Records that a termination will not be written from here, but from the engine's
    /// tombstones when the disk is back.
    pub fn mark_lost(&self, id: VerdictId) {
        let mut state = self.lock();
        state.note_lost(id);
        self.record_dropped(&mut state, id);
    }

    /// Takes over the writing of the terminations that were lost: the oldest of them.
    pub fn take_lost_since(&self) -> Option<VerdictId> {
        self.lock().lost_since.take()
    }

    /// The terminations from this one on are still to be written.
    pub fn return_lost_since(&self, id: VerdictId) {
        self.lock().note_lost(id);
    }

    /// Verdicts that had been dropped are on disk now.
    pub fn mark_written(&self, ids: impl Iterator<Item = VerdictId>) {
        let mut state = self.lock();
        for id in ids {
            state.dropped.remove(&id);
        }
    }

    /// Verdicts are no longer on disk, although they were.
    pub fn mark_removed(&self, ids: &[VerdictId]) {
        let mut state = self.lock();
        for id in ids {
            self.remember_dropped(&mut state, *id);
        }
    }

    fn record_dropped(&self, state: &mut QueueState, id: VerdictId) {
        self.remember_dropped(state, id);
        self.dropped_total.fetch_add(1, Relaxed);
    }

    fn remember_dropped(&self, state: &mut QueueState, id: VerdictId) {
        state.dropped.insert(id);
        if state.dropped.len() > DROPPED_IDS_MAX
            && let Some(oldest) = state.dropped.pop_first()
        {
            state.untracked_through = oldest;
        }
        self.any_dropped.store(true, Relaxed);
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

/// The result of withdrawing an operator action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withdrawal {
    /// It was not written.
    Removed,
    /// It is being written. The writer undoes it.
    InFlight,
    /// It has been written, or was dropped or withdrawn before.
    Settled,
}

/// The verdicts of one write.
#[derive(Default)]
pub(super) struct Batch {
    pub issued: Vec<VerdictRecord>,
    /// When each was queued.
    pub queued_at: Vec<Instant>,
    /// All verdicts up to this one are in this batch, in an earlier one, or dropped.
    /// Calls that wait for one of them can be answered after the write.
    pub through: VerdictId,
}

fn bytes(issued: &VerdictRecord) -> usize {
    size_of::<VerdictRecord>()
        + issued.verdict.memory_bytes()
        + domain::labels_bytes(&issued.labels)
}

/// Whether the record is refused if it cannot be written.
pub(super) fn is_operator_action(issued: &VerdictRecord) -> bool {
    matches!(
        issued.effect,
        Effect::Reset | Effect::Snoozed(_) | Effect::Rated { .. }
    )
}

/// Whether a caller waits for the commit.
fn is_urgent(issued: &VerdictRecord) -> bool {
    !matches!(issued.effect, Effect::None | Effect::Disobeyed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::{looping, reset, terminated};

    fn taken(queue: &WriteQueue) -> Vec<u128> {
        let batch = queue.next_batch(None).unwrap().issued;
        queue.end_batch();
        batch.iter().map(|issued| issued.verdict.id.0).collect()
    }

    #[test]
    fn the_weakest_are_dropped_first_operator_actions_at_twice_the_limit_terminations_last() {
        let queue = WriteQueue::new(4, VerdictId(0));
        for id in 1..=3 {
            queue.enqueue(looping(id, "s", Action::Alert));
        }
        queue.enqueue(looping(4, "s", Action::Warn));
        queue.enqueue(looping(5, "s", Action::Warn));
        queue.enqueue(looping(6, "s", Action::Escalate));
        queue.enqueue(looping(7, "s", Action::Escalate));
        queue.enqueue(terminated(8, "s"));
        queue.enqueue(reset(9, "s"));
        assert_eq!(queue.dropped_total(), 3);
        assert_eq!((queue.len(), queue.last()), (6, VerdictId(9)));
        assert!(queue.may_be_dropped(VerdictId(7)) && !queue.may_be_dropped(VerdictId(9)));
        (10..=20).for_each(|id| queue.enqueue(reset(id, "s")));
        queue.enqueue(terminated(21, "t"));
        assert_eq!(taken(&queue), [1, 2, 4, 6, 8, 9, 10, 11, 21]);
    }

    #[test]
    fn a_batch_is_bounded_in_bytes() {
        let queue = WriteQueue::new(1_000, VerdictId(0));
        let mut issued = terminated(1, "s");
        let verdict = crate::domain::Verdict {
            pattern: "x".repeat(BATCH_BYTES_MAX / 2),
            ..(*issued.verdict).clone()
        };
        issued.verdict = verdict.into();
        (0..5).for_each(|_| queue.enqueue(issued.clone()));
        assert_eq!([(); 3].map(|()| taken(&queue).len()), [2, 2, 1]);
    }

    #[test]
    fn large_verdicts_fill_the_queue_before_their_number_does() {
        let each = bytes(&looping(1, "s", Action::Escalate));
        let queue = WriteQueue::with_bytes_max(8 * each);
        for id in 1..=9 {
            queue.enqueue(looping(id, "s", Action::Escalate));
        }
        queue.enqueue(terminated(10, "s"));
        (11..=20).for_each(|id| queue.enqueue(reset(id, "s")));
        (21..=30).for_each(|id| queue.enqueue(terminated(id, "s")));
        let batch = queue.next_batch(None).unwrap();
        let ids: Vec<u128> = batch
            .issued
            .iter()
            .map(|issued| issued.verdict.id.0)
            .collect();
        assert_eq!(ids, [1, 2, 3, 4, 10, 11, 21, 22]);
        assert!(queue.may_be_dropped(VerdictId(23)));
        // Verdicts in flight have their bytes until they are written.
        queue.enqueue(terminated(31, "s"));
        assert!(queue.may_be_dropped(VerdictId(31)));
        queue.end_batch();
        queue.enqueue(looping(32, "s", Action::Alert));
        assert_eq!((taken(&queue), queue.dropped_total()), (vec![32], 23));
    }

    #[test]
    fn refused_terminations_have_the_bytes_that_the_queue_leaves() {
        let each = bytes(&terminated(1, "s"));
        let queue = WriteQueue::with_bytes_max(8 * each);
        queue.enqueue(terminated(1, "s"));
        assert!(queue.reserve_backlog(7 * each));
        assert!(!queue.reserve_backlog(1));
        queue.enqueue(terminated(2, "s"));
        assert!(queue.may_be_dropped(VerdictId(2)));
        queue.release_backlog(each);
        queue.enqueue(terminated(3, "s"));
        assert_eq!(taken(&queue), [1, 3]);
    }

    #[test]
    fn the_age_of_a_verdict_counts_from_when_it_was_added() {
        let queue = WriteQueue::new(10_000, VerdictId(0));
        let begin = Instant::now();
        (1..=2 * BATCH_MAX as u128).for_each(|id| queue.enqueue(terminated(id, "s")));
        // While the first batch is written, the others wait.
        queue.next_batch(None).unwrap();
        let (added, written) = (Instant::now(), Duration::from_millis(5));
        while added.elapsed() < written {
            std::thread::yield_now();
        }
        queue.end_batch();
        queue.next_batch(None).unwrap();
        // The second write began after the oldest verdict was added.
        let write_age = queue.write_age();
        let age = queue.oldest_unsynced_age();
        assert!(write_age < age, "{write_age:?}, {age:?}");
        assert!((written..=begin.elapsed()).contains(&age), "{age:?}");
    }

    #[test]
    fn a_batch_settles_verdicts_that_were_dropped_after_it() {
        let queue = WriteQueue::new(1, VerdictId(0));
        queue.enqueue(looping(1, "s", Action::Alert));
        queue.enqueue(looping(2, "s", Action::Alert));
        assert_eq!(queue.next_batch(None).unwrap().through, VerdictId(2));
    }

    #[test]
    fn a_closed_queue_still_returns_what_it_holds() {
        let queue = WriteQueue::new(4, VerdictId(0));
        queue.enqueue(looping(1, "s", Action::Warn));
        queue.close();
        assert_eq!(taken(&queue), [1]);
        assert!(queue.next_batch(None).is_none());
    }

    #[test]
    fn an_empty_batch_is_returned_after_the_timeout() {
        let queue = WriteQueue::new(4, VerdictId(0));
        let batch = queue.next_batch(Some(Duration::ZERO)).unwrap();
        assert!(batch.issued.is_empty());
    }

    #[test]
    fn a_write_of_something_else_has_an_age_too() {
        let queue = WriteQueue::new(4, VerdictId(0));
        queue.begin_maintenance();
        std::thread::sleep(Duration::from_millis(2));
        assert!(queue.write_age() >= Duration::from_millis(2));
        queue.enqueue(reset(1, "a"));
        assert_eq!(queue.withdraw(VerdictId(1)), Withdrawal::Removed);
        queue.end_maintenance();
        assert_eq!(queue.write_age(), Duration::ZERO);
    }

    #[test]
    fn an_action_is_withdrawn_from_the_queue_or_undone_by_the_writer() {
        let queue = WriteQueue::new(4, VerdictId(0));
        queue.enqueue(reset(1, "a"));
        queue.enqueue(reset(2, "b"));
        assert_eq!(queue.withdraw(VerdictId(1)), Withdrawal::Removed);
        assert_eq!(queue.next_batch(None).unwrap().issued.len(), 1);
        assert_eq!(queue.withdraw(VerdictId(2)), Withdrawal::InFlight);
        assert!(queue.may_be_dropped(VerdictId(2)));
        assert_eq!(queue.end_batch(), [VerdictId(2)]);
        assert_eq!(queue.withdraw(VerdictId(2)), Withdrawal::Settled);
        assert_eq!(queue.oldest_unsynced_age(), Duration::ZERO);
    }
}
