//! Requests to remove what exceeds the retention. The writer thread serves them a slice
//! at a time, so that commits do not wait for long.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::SystemTime,
};

use parking_lot::Mutex;

use super::{StoreError, removal::Retention};

#[derive(Default)]
pub(super) struct RetentionRequests {
    pending: Mutex<Option<RetentionRequest>>,
    is_closed: AtomicBool,
}

struct RetentionRequest {
    retention: Retention,
    now: SystemTime,
    /// `None`: no caller waits.
    done: Option<mpsc::SyncSender<Result<(), StoreError>>>,
}

impl RetentionRequests {
    /// Requests it and waits until it is done. A second request replaces the first, which
    /// is then reported as done.
    pub fn request(&self, retention: Retention, now: SystemTime) -> Result<(), StoreError> {
        let (done, result) = mpsc::sync_channel(1);
        let mut pending = self.pending.lock();
        if self.is_closed.load(Relaxed) {
            return Ok(());
        }
        *pending = Some(RetentionRequest {
            retention,
            now,
            done: Some(done),
        });
        drop(pending);
        // Without a sender the request was replaced, or the writer has ended.
        result.recv().unwrap_or(Ok(()))
    }

    /// Requests it without waiting, unless it is requested already.
    pub fn request_soon(&self, retention: Retention, now: SystemTime) {
        self.pending.lock().get_or_insert(RetentionRequest {
            retention,
            now,
            done: None,
        });
    }

    pub fn is_requested(&self) -> bool {
        self.pending.lock().is_some()
    }

    /// The parameters of the current request.
    pub fn next(&self) -> Option<(Retention, SystemTime)> {
        let pending = self.pending.lock();
        pending
            .as_ref()
            .map(|request| (request.retention, request.now))
    }

    pub fn end(&self, result: Result<(), StoreError>) {
        let ended = self.pending.lock().take();
        if let Some(done) = ended.and_then(|request| request.done) {
            // The requester may have given up.
            let _ = done.send(result);
        }
    }

    /// The writer ends: nothing is removed any more.
    pub fn close(&self) {
        let mut pending = self.pending.lock();
        self.is_closed.store(true, Relaxed);
        *pending = None;
    }
}
