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
    /// The writer has something to do beside verdicts.
    is_woken: bool,
    last: VerdictId,
    /// The newest ids of dropped verdicts, at most `DROPPED_IDS_MAX`.
    dropped: BTreeSet<VerdictId>,
    /// Up to this id it is no longer known which verdicts were dropped.
    untracked_through: VerdictId,
    /// Since when the oldest queued verdict has waited.
    queued_since: Option<Instant>,
    /// The ids that the writer is writing now, and since when the oldest has waited.
    in_flight: Option<(Vec<VerdictId>, Instant)>,
    /// Operator actions in flight that were refused meanwhile.
    withdrawn: Vec<VerdictId>,
    /// Since when terminations wait for a disk that refuses them.
    backlog_since: Option<Instant>,
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
    /// sub-agent is terminated once and its tombstone has the verdict.
    pub fn enqueue(&self, issued: VerdictRecord) {
        let mut state = self.lock();
        state.last = issued.verdict.id;
        if !self.has_room(&state, &issued) {
            self.record_dropped(&mut state, issued.verdict.id);
            return;
        }
        state.bytes += bytes(&issued);
        state.queued_since.get_or_insert_with(Instant::now);
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
        let now = Instant::now();
        let since = state.queued_since.take().unwrap_or(now);
        state.queued_since = (!state.queue.is_empty()).then_some(now);
        let ids = issued.iter().map(|issued| issued.verdict.id).collect();
        state.in_flight = Some((ids, since));
        Some(Batch { issued, through })
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
        state.in_flight = None;
        std::mem::take(&mut state.withdrawn)
    }

    /// The writer writes something other than verdicts. Verdicts wait meanwhile.
    pub fn begin_maintenance(&self) {
        self.lock().in_flight = Some((Vec::new(), Instant::now()));
    }

    pub fn end_maintenance(&self) {
        self.lock().in_flight = None;
    }

    /// Withdraws an operator action that is not on disk yet.
    pub fn withdraw(&self, id: VerdictId) -> Withdrawal {
        let mut state = self.lock();
        if let Some(index) = state
            .queue
            .iter()
            .position(|issued| issued.verdict.id == id)
            && let Some(issued) = state.queue.remove(index)
        {
            state.bytes -= bytes(&issued);
            state.urgent -= usize::from(is_urgent(&issued));
            self.record_dropped(&mut state, id);
            return Withdrawal::Removed;
        }
        let is_in_flight = matches!(&state.in_flight, Some((ids, _)) if ids.contains(&id));
        if is_in_flight {
            state.withdrawn.push(id);
            self.record_dropped(&mut state, id);
            return Withdrawal::InFlight;
        }
        Withdrawal::Settled
    }

    /// How long the oldest verdict has waited to be on disk.
    pub fn oldest_unsynced_age(&self) -> Duration {
        let state = self.lock();
        let in_flight = state.in_flight.as_ref().map(|(_, since)| *since);
        let oldest = [state.queued_since, in_flight, state.backlog_since]
            .into_iter()
            .flatten()
            .min();
        oldest.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// How long the writer has been writing its batch, or something else.
    pub fn write_age(&self) -> Duration {
        let state = self.lock();
        let since = state.in_flight.as_ref().map(|(_, since)| *since);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether terminations wait for a disk that refuses them.
    pub fn set_backlogged(&self, is_backlogged: bool) {
        let mut state = self.lock();
        state.backlog_since = match (is_backlogged, state.backlog_since) {
            (false, _) => None,
            (true, since) => since.or_else(|| Some(Instant::now())),
        };
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

/// What became of an operator action that was to be withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withdrawal {
    /// It was not written.
    Removed,
    /// It is being written. The writer undoes it.
    InFlight,
    /// It has been written, or was dropped.
    Settled,
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

    fn taken(queue: &WriteQueue) -> Vec<u128> {
        let batch = queue.next_batch(None).unwrap().issued;
        batch.iter().map(|issued| issued.verdict.id.0).collect()
    }

    #[test]
    fn the_weakest_are_dropped_first_operator_actions_at_twice_the_limit_terminations_never() {
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
    fn large_verdicts_fill_the_queue_before_their_number_does() {
        let each = bytes(&looping(1, "s", Action::Escalate));
        let queue = WriteQueue {
            bytes_max: 4 * each,
            ..WriteQueue::new(1_000, VerdictId(0))
        };
        for id in 1..=9 {
            queue.enqueue(looping(id, "s", Action::Escalate));
        }
        queue.enqueue(terminated(10, "s"));
        (11..=20).for_each(|id| queue.enqueue(reset(id, "s")));
        assert_eq!(taken(&queue), [1, 2, 3, 4, 10, 11, 12, 13]);
        // A verdict taken from the queue frees its bytes.
        queue.enqueue(looping(21, "s", Action::Alert));
        assert_eq!((taken(&queue), queue.dropped_total()), (vec![21], 12));
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
        assert_eq!(taken(&queue), [2]);
        assert_eq!(queue.withdraw(VerdictId(2)), Withdrawal::InFlight);
        assert!(queue.may_be_dropped(VerdictId(2)));
        assert_eq!(queue.end_batch(), [VerdictId(2)]);
        assert_eq!(queue.withdraw(VerdictId(2)), Withdrawal::Settled);
        assert_eq!(queue.oldest_unsynced_age(), Duration::ZERO);
    }
}
