//! Whether Redis can be reached and has room.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::SystemTime,
};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::telemetry::Metrics;

/// The state of Redis, for health checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterHealth {
    Healthy,
    /// Since then, for this reason.
    Unreachable(SystemTime, String),
    /// It has no memory left.
    Full,
}

pub(super) struct ClusterStatus {
    away: watch::Sender<bool>,
    reason: Mutex<Option<(SystemTime, String)>>,
    is_full: AtomicBool,
    /// Writes may have been lost since the last recovery.
    is_broken: AtomicBool,
}

impl ClusterStatus {
    /// Nothing is known of Redis until it has answered.
    pub fn new() -> Self {
        Self {
            away: watch::Sender::new(false),
            reason: Mutex::new(None),
            is_full: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        }
    }

    pub fn is_away(&self) -> bool {
        *self.away.borrow()
    }

    /// Whether anything is worth waiting for.
    pub fn is_usable(&self) -> bool {
        !self.is_away() && !self.is_full.load(Relaxed)
    }

    /// Waits until Redis is away.
    pub async fn wait_until_away(&self) {
        let mut away = self.away.subscribe();
        if away.wait_for(|is_away| *is_away).await.is_err() {
            // The sender lives as long as `self`.
            std::future::pending().await
        }
    }

    /// No answer waits for Redis from now on.
    pub fn set_away(&self, now: SystemTime, why: &str, metrics: &Metrics) {
        let mut reason = self.reason.lock();
        if reason.is_none() {
            *reason = Some((now, why.to_owned()));
            metrics.set_cluster_unreachable(true);
            tracing::error!(
                error = why,
                "redis is unreachable; sessions are kept in memory"
            );
        }
        self.is_broken.store(true, Relaxed);
        self.away.send_replace(true);
    }

    pub fn set_reachable(&self, metrics: &Metrics) {
        if self.reason.lock().take().is_some() {
            metrics.set_cluster_unreachable(false);
            tracing::info!("redis is reachable again");
        }
        self.away.send_replace(false);
    }

    /// A connection broke: what was sent on it may be lost.
    pub fn note_broken(&self) {
        self.is_broken.store(true, Relaxed);
    }

    pub fn take_broken(&self) -> bool {
        self.is_broken.swap(false, Relaxed)
    }

    pub fn set_full(&self, is_full: bool, metrics: &Metrics) {
        if self.is_full.load(Relaxed) != is_full && self.is_full.swap(is_full, Relaxed) != is_full {
            metrics.set_cluster_full(is_full);
            if is_full {
                tracing::error!("redis is full; sessions are kept in memory");
            } else {
                tracing::info!("redis has room again");
            }
        }
    }

    pub fn health(&self) -> ClusterHealth {
        match &*self.reason.lock() {
            Some((since, why)) => ClusterHealth::Unreachable(*since, why.clone()),
            None if self.is_full.load(Relaxed) => ClusterHealth::Full,
            None => ClusterHealth::Healthy,
        }
    }
}
