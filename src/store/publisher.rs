//! Publishes commits of the writer to waiting calls and to subscribers.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::{Mutex, MutexGuard};

use tokio::sync::{broadcast, watch};

use super::reader::{ReadError, ReadPosition};
use crate::domain::{ChainHead, Effect, Verdict, VerdictId, VerdictRecord};

/// How many verdicts are kept in memory. The stream of a watcher that is further
/// behind ends. A watcher that resumes within this range needs no disk access. A slot
/// is small, because the verdict in it is shared.
pub(super) const RECENT_MAX: usize = 4_096;
/// How many terminations are kept for streams. A stream that is further behind looks up
/// each of its sessions instead.
const TERMINATIONS_MAX: usize = 1_024;

pub(super) struct CommitPublisher {
    watermarks: watch::Sender<Watermarks>,
    verdicts: broadcast::Sender<VerdictRecord>,
    terminations: broadcast::Sender<Arc<Verdict>>,
    recent: Mutex<RecentVerdicts>,
    disk: Mutex<DiskStatus>,
    pub commits: AtomicU64,
    pub failures: AtomicU64,
    /// Terminations in force that were removed from the disk for lack of room.
    pub removed_terminations: AtomicU64,
}

/// The progress of the writer. Verdicts are written in the order of their ids, so two
/// ids describe all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watermarks {
    /// The writes up to this verdict have succeeded or failed.
    pub settled: VerdictId,
    /// All verdicts up to this one are on disk, except dropped ones.
    pub durable: VerdictId,
    /// The last write failed.
    pub write_failing: bool,
}

/// The state of the log and of the disk after the last write.
struct DiskStatus {
    head: ChainHead,
    /// The last verdict that has been removed; later ones are retained.
    retained_after: VerdictId,
    /// Why the last failed write failed.
    failure: String,
}

/// The recent verdicts, including the text that is not written to disk.
struct RecentVerdicts {
    verdicts: VecDeque<VerdictRecord>,
    /// The last verdict that has been removed from here.
    floor: VerdictId,
}

impl RecentVerdicts {
    fn last(&self) -> VerdictId {
        let last = self.verdicts.back();
        last.map_or(self.floor, |issued| issued.verdict.id)
    }
}

impl CommitPublisher {
    pub fn new(last: VerdictId, on_disk: bool, head: ChainHead, retained_after: VerdictId) -> Self {
        Self {
            watermarks: watch::Sender::new(Watermarks {
                settled: last,
                // All verdicts that were read from the log are durable.
                durable: if on_disk { last } else { VerdictId(0) },
                write_failing: false,
            }),
            verdicts: broadcast::Sender::new(RECENT_MAX),
            terminations: broadcast::Sender::new(TERMINATIONS_MAX),
            recent: Mutex::new(RecentVerdicts {
                verdicts: VecDeque::new(),
                floor: last,
            }),
            disk: Mutex::new(DiskStatus {
                head,
                retained_after,
                failure: String::new(),
            }),
            commits: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            removed_terminations: AtomicU64::new(0),
        }
    }

    pub fn verdicts(&self) -> broadcast::Receiver<VerdictRecord> {
        self.verdicts.subscribe()
    }

    pub fn terminations(&self) -> broadcast::Receiver<Arc<Verdict>> {
        self.terminations.subscribe()
    }

    pub fn watermarks(&self) -> Watermarks {
        *self.watermarks.borrow()
    }

    /// Waits until the write of the verdict has succeeded or failed.
    pub async fn wait_until_settled(&self, id: VerdictId) -> Watermarks {
        let mut watermarks = self.watermarks.subscribe();
        let settled = watermarks
            .wait_for(|watermarks| watermarks.settled >= id)
            .await;
        // The channel cannot be closed, because `self` owns its sender.
        settled.map_or_else(|_| self.watermarks(), |watermarks| *watermarks)
    }

    /// Publishes verdicts to subscribers first and to waiting calls last, so that a
    /// client that has its answer finds the verdict everywhere.
    pub fn publish(&self, batch: Vec<VerdictRecord>, watermarks: Watermarks) {
        // Subscribers show whether a verdict is on disk.
        self.watermarks.send_if_modified(|current| {
            current.durable = watermarks.durable;
            false
        });
        self.publish_unsettled(batch);
        self.watermarks.send_replace(watermarks);
    }

    /// Publishes verdicts to subscribers while their write goes on. Those that were
    /// published before are skipped.
    pub fn publish_unsettled(&self, batch: Vec<VerdictRecord>) {
        let mut recent = self.recent();
        for issued in batch {
            if issued.verdict.id <= recent.last() {
                continue;
            }
            if recent.verdicts.len() == RECENT_MAX
                && let Some(oldest) = recent.verdicts.pop_front()
            {
                recent.floor = oldest.verdict.id;
            }
            recent.verdicts.push_back(issued.clone());
            if issued.effect == Effect::Terminated {
                // `send` fails only if there is no receiver.
                let _ = self.terminations.send(issued.verdict.clone());
            }
            let _ = self.verdicts.send(issued);
        }
    }

    /// Publishes terminations that are older than the last published verdict. Watchers get
    /// verdicts in their order, and find these in the log.
    pub fn publish_late(&self, terminations: &[VerdictRecord]) {
        for issued in terminations {
            // `send` fails only if there is no receiver.
            let _ = self.terminations.send(issued.verdict.clone());
        }
    }

    /// The last published verdict.
    pub fn last(&self) -> VerdictId {
        self.recent().last()
    }

    /// Passes the recent verdicts after the given one to `show`, oldest first, until it
    /// returns false.
    pub fn read(
        &self,
        after: VerdictId,
        mut show: impl FnMut(VerdictRecord) -> bool,
    ) -> Result<ReadPosition, ReadError> {
        let mut reached = ReadPosition {
            cursor: after,
            at_end: false,
        };
        let recent = self.recent();
        if after < recent.floor {
            return Err(ReadError::NotRetained);
        }
        let known = recent
            .verdicts
            .partition_point(|issued| issued.verdict.id <= after);
        for issued in recent.verdicts.range(known..) {
            reached.cursor = issued.verdict.id;
            if !show(issued.clone()) {
                return Ok(reached);
            }
        }
        reached.at_end = true;
        Ok(reached)
    }

    /// Passes the recent verdicts before the given one to `show`, newest first, until it
    /// returns false.
    pub fn read_back(
        &self,
        before: VerdictId,
        mut show: impl FnMut(VerdictRecord) -> bool,
    ) -> ReadPosition {
        let mut reached = ReadPosition {
            cursor: before,
            at_end: false,
        };
        let recent = self.recent();
        let earlier = |issued: &&VerdictRecord| issued.verdict.id < before;
        for issued in recent.verdicts.iter().rev().filter(earlier) {
            reached.cursor = issued.verdict.id;
            if !show(issued.clone()) {
                return reached;
            }
        }
        reached.at_end = true;
        reached
    }

    /// A recent verdict.
    pub fn find(&self, id: VerdictId) -> Option<VerdictRecord> {
        let recent = self.recent();
        let found = recent
            .verdicts
            .binary_search_by_key(&id, |issued| issued.verdict.id);
        found.ok().and_then(|at| recent.verdicts.get(at).cloned())
    }

    /// The verdict before the last `most` recent ones, or the floor if there are fewer.
    pub fn before_last(&self, most: usize) -> VerdictId {
        let recent = self.recent();
        let before = recent.verdicts.iter().rev().nth(most);
        before.map_or(recent.floor, |issued| issued.verdict.id)
    }

    /// The last verdict that is not among the recent ones.
    pub fn floor(&self) -> VerdictId {
        self.recent().floor
    }

    pub fn head(&self) -> ChainHead {
        self.disk.lock().head
    }

    pub fn set_head(&self, head: ChainHead) {
        self.disk.lock().head = head;
    }

    pub fn retained_after(&self) -> VerdictId {
        self.disk.lock().retained_after
    }

    pub fn set_retained_after(&self, id: VerdictId) {
        self.disk.lock().retained_after = id;
    }

    pub fn failure(&self) -> String {
        self.disk.lock().failure.clone()
    }

    pub fn set_failure(&self, failure: &str) {
        failure.clone_into(&mut self.disk.lock().failure);
    }

    /// Writes have failed since the start.
    pub fn start_failing(&self, failure: &str) {
        self.set_failure(failure);
        let before = self.watermarks();
        self.watermarks.send_replace(Watermarks {
            write_failing: true,
            ..before
        });
    }

    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    fn recent(&self) -> MutexGuard<'_, RecentVerdicts> {
        self.recent.lock()
    }
}
