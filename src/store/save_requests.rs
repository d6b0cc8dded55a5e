//! Requests to save sessions at once, because a caller waits for it. The store knows no
//! sessions: `src/app/session_saver.rs` serves the requests.

use std::mem;

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time,
};

use super::{Store, StoreHealth};
use crate::domain::SessionId;

/// A session that is to be saved. The caller waits until it is, or this is dropped.
pub struct SaveRequest {
    pub session: SessionId,
    saved: oneshot::Sender<()>,
}

impl SaveRequest {
    /// Tells the caller that the session is on disk.
    pub fn set_saved(self) {
        // The caller may have stopped waiting.
        let _ = self.saved.send(());
    }
}

#[derive(Default)]
pub(super) struct SaveRequests {
    waiting: Mutex<Vec<SaveRequest>>,
    added: Notify,
}

impl Store {
    /// Waits until a session is saved, but not longer than `store.sync_secs_max`, and not at
    /// all while the disk cannot be written. Returns whether it is saved.
    pub async fn wait_until_saved(&self, session: &SessionId) -> bool {
        let Some(disk) = &self.disk else {
            return false;
        };
        if self.health() != StoreHealth::Healthy {
            return false;
        }
        let (saved, is_saved) = oneshot::channel();
        disk.save_requests.waiting.lock().push(SaveRequest {
            session: session.clone(),
            saved,
        });
        disk.save_requests.added.notify_one();
        matches!(time::timeout(self.sync_max, is_saved).await, Ok(Ok(())))
    }

    /// Waits for requests to save sessions, and takes all of them.
    pub async fn next_save_requests(&self) -> Vec<SaveRequest> {
        let Some(disk) = &self.disk else {
            return std::future::pending().await;
        };
        loop {
            let requests = mem::take(&mut *disk.save_requests.waiting.lock());
            if !requests.is_empty() {
                return requests;
            }
            disk.save_requests.added.notified().await;
        }
    }
}
