//! The number of calls that wait for a commit.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts a waiting call until dropped.
pub(super) struct WaiterGuard<'a>(&'a AtomicUsize);

impl<'a> WaiterGuard<'a> {
    pub fn new(waiters: &'a AtomicUsize) -> Self {
        waiters.fetch_add(1, Relaxed);
        Self(waiters)
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
