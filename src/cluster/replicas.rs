//! The replicas that are known, and who delivers webhooks.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{self, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{Cluster, ClusterHealth};
use crate::domain::VerdictId;

/// How often a replica says that it is there, and asks for the lease. Both last for 10 s.
const BEAT_INTERVAL: Duration = Duration::from_secs(3);
const LEASE_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The lease of webhooks.
const NOTIFY: &str = "notify";

/// A replica as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    pub name: String,
    /// Where other replicas reach it; empty: not at all.
    pub address: String,
    pub version: String,
    pub sessions: usize,
    pub events_per_sec: u64,
    pub health: String,
}

/// What the last beat has found.
#[derive(Default)]
pub(super) struct KnownReplicas {
    replicas: Mutex<Vec<Replica>>,
    holds_notify: AtomicBool,
}

impl Cluster {
    /// The replicas that were heard of lately, by name. While Redis is away: this one.
    pub fn known_replicas(&self) -> Vec<Replica> {
        let own = self.describe();
        let mut known = if self.status.is_away() {
            Vec::new()
        } else {
            self.known.replicas.lock().clone()
        };
        known.retain(|replica| replica.name != own.name);
        known.push(own);
        known.sort_by(|one, other| one.name.cmp(&other.name));
        known
    }

    fn describe(&self) -> Replica {
        let health = match self.status.health() {
            ClusterHealth::Healthy => "ok",
            ClusterHealth::Unreachable(..) => "redis is unreachable",
            ClusterHealth::Full => "redis is full",
        };
        Replica {
            name: self.me.clone(),
            address: self.settings.advertise.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sessions: self.sessions.engine().live_sessions(),
            events_per_sec: *self.events_per_sec.lock(),
            health: health.to_owned(),
        }
    }

    /// Waits until this replica delivers webhooks, or no longer does. While Redis is away,
    /// each replica delivers its own.
    pub async fn wait_for_notify_lease(&self, held: bool) {
        while (self.status.is_away() || self.known.holds_notify.load(Relaxed)) != held {
            time::sleep(LEASE_CHECK_INTERVAL).await;
        }
    }

    /// Up to where notifications of an endpoint are finished.
    pub async fn notify_cursor(&self, endpoint: &str) -> Option<VerdictId> {
        let cursor = self.unless_away(self.exchange.cursor(endpoint)).await;
        cursor.ok()?.as_deref().and_then(VerdictId::parse)
    }

    pub async fn save_notify_cursor(&self, endpoint: &str, cursor: VerdictId) {
        let cursor = cursor.to_string();
        let saved = self.exchange.set_cursor(endpoint, &cursor);
        if let Err(error) = self.unless_away(saved).await {
            self.note_error(&error);
        }
    }

    pub(super) async fn run_beats(&self, stopped: &CancellationToken) {
        let mut ticks = time::interval(BEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events_before = self.sessions.events();
        while stopped.run_until_cancelled(ticks.tick()).await.is_some() {
            let events = self.sessions.events();
            *self.events_per_sec.lock() =
                events.saturating_sub(events_before) / BEAT_INTERVAL.as_secs();
            events_before = events;
            if self.status.is_away() {
                continue;
            }
            if let Err(error) = self.unless_away(self.beat()).await {
                self.known.holds_notify.store(false, Relaxed);
                self.note_error(&error);
            }
        }
    }

    async fn beat(&self) -> super::exchange::ExchangeResult<()> {
        let own = serde_json::to_string(&self.describe()).unwrap_or_default();
        self.exchange.beat(&own).await?;
        let found = self.exchange.replicas().await?;
        let replicas = found.iter().filter_map(|it| serde_json::from_str(it).ok());
        *self.known.replicas.lock() = replicas.collect();
        let holds = self.exchange.hold_lease(NOTIFY).await?;
        self.known.holds_notify.store(holds, Relaxed);
        Ok(())
    }
}
