//! Calls that wait until a verdict is on disk.

use std::time::Duration;

use tokio::sync::oneshot;

use super::{Store, queue::Withdrawal, waiter_guard::WaiterGuard};
use crate::domain::VerdictId;

/// The longest that the answer to a withdrawn action waits for its note.
const NOTE_TIMEOUT: Duration = Duration::from_secs(1);

impl Store {
    /// Waits until the write of a verdict has succeeded or failed, but not longer than
    /// `store.sync_secs_max`, and not at all while the disk hangs. Returns whether it is
    /// durable.
    pub async fn wait_until_settled_or_timeout(&self, id: VerdictId) -> bool {
        self.wait(id).await;
        self.is_durable(id)
    }

    /// Waits in the same way for an operator action, which has not happened unless it is
    /// durable: if it is not written in time, it is withdrawn. Returns whether it has
    /// happened.
    pub async fn settle_or_withdraw(&self, id: VerdictId) -> bool {
        if !self.wait(id).await {
            match self.queue.withdraw(id) {
                Withdrawal::Removed => return false,
                // It was published meanwhile, or is about to be.
                Withdrawal::Settled if !self.queue.may_be_dropped(id) => {
                    self.publisher.wait_until_settled(id).await;
                }
                // `publish_stalled` may have withdrawn it before.
                Withdrawal::InFlight | Withdrawal::Settled => {
                    self.note_withdrawn(id).await;
                    return false;
                }
            }
        }
        self.disk.is_none() || self.is_durable(id)
    }

    /// Returns false if the write has not ended in time.
    async fn wait(&self, id: VerdictId) -> bool {
        let id = id.min(self.queue.last());
        if self.is_settled(id) {
            return true;
        }
        let Some(left) = self.sync_max.checked_sub(self.queue.write_age()) else {
            return false;
        };
        let _waiting = WaiterGuard::new(&self.waiters);
        let settled = self.publisher.wait_until_settled(id);
        tokio::time::timeout(left, settled).await.is_ok()
    }

    /// Notes a withdrawn action in a file, in case the process ends before the writer has
    /// undone it. The disk may hang for this write too, so it runs on its own thread and
    /// the wait is bounded. There are no more such threads than actions in a batch.
    async fn note_withdrawn(&self, id: VerdictId) {
        let Some(disk) = &self.disk else {
            return;
        };
        let dir = disk.dir.clone();
        let (done, noted) = oneshot::channel();
        std::thread::spawn(move || {
            if let Err(error) = dir.note_withdrawn(id) {
                tracing::error!(%error, "cannot note a refused operator action");
            }
            // The caller may have given up.
            let _ = done.send(());
        });
        let _ = tokio::time::timeout(NOTE_TIMEOUT, noted).await;
    }
}
