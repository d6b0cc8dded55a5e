//! Watches Redis on a connection of its own. Two pings in a row without an answer mean that
//! it is away; one late answer means nothing. After it was away, or lost its data, what it
//! may have lost is sent again.

use std::time::Duration;

use tokio::time::{self, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{Cluster, exchange::ExchangeError};

const PING_INTERVAL: Duration = Duration::from_millis(100);
/// A ping waits for this long at most, or for `wait_ms` if that is longer.
const PING_TIMEOUT: Duration = Duration::from_millis(100);
const FAILURES_MAX: u32 = 2;
/// The sessions of which the owners are asked for at a time.
const SWEEP_MAX: usize = 256;
/// How often sessions are looked for that are not saved.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The entries of sessions that the engine no longer has are removed as often, in sweeps.
const CLEAN_SECS: u64 = 30;

impl Cluster {
    pub(super) async fn run_monitor(&self, stopped: &CancellationToken) {
        let watched = async { tokio::join!(self.watch_redis(), self.sweep_periodically()) };
        stopped.run_until_cancelled(watched).await;
    }

    async fn watch_redis(&self) {
        let mut ticks = time::interval(PING_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ping_timeout = PING_TIMEOUT.max(self.wait_max);
        let (mut failures, mut data) = (0, String::new());
        loop {
            ticks.tick().await;
            let ping = time::timeout(ping_timeout, self.exchange.ping()).await;
            let answer = ping.unwrap_or_else(|_| {
                Err(ExchangeError::Unreachable("it does not answer".to_owned()))
            });
            match answer {
                Ok(identity) => {
                    failures = 0;
                    let is_known = data.is_empty() || data == identity;
                    data = identity;
                    // Both after a restart without data.
                    let may_have_lost = self.status.take_broken() || !is_known;
                    if may_have_lost && !self.recover().await {
                        self.status.note_broken();
                    }
                }
                // It answers, and has no room for the mark of its data.
                Err(ExchangeError::Full(_)) => failures = 0,
                Err(error) => {
                    failures += 1;
                    self.status.note_broken();
                    if failures >= FAILURES_MAX {
                        let why = error.to_string();
                        self.status.set_away((self.now)(), &why, &self.metrics);
                    }
                }
            }
        }
    }

    /// Sends what Redis may have lost: acts first, then sessions. Returns false after a
    /// failure.
    async fn recover(&self) -> bool {
        self.sessions.invalidate_all();
        self.status.set_reachable(&self.metrics);
        self.resend_acts().await
    }

    async fn sweep_periodically(&self) {
        let mut ticks = time::interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seconds = 0_u64;
        loop {
            ticks.tick().await;
            self.settle_terminated();
            seconds += 1;
            if seconds.is_multiple_of(CLEAN_SECS) {
                self.sessions.remove_closed();
            }
            let unsaved = if self.sessions.take_may_be_unsaved() {
                self.sessions.unsaved()
            } else {
                Vec::new()
            };
            let replicas = self.known_replicas().len();
            self.metrics.set_cluster_sizes(unsaved.len(), replicas);
            if self.status.is_away() {
                self.sessions.note_unsaved();
                continue;
            }
            for slice in unsaved.chunks(SWEEP_MAX) {
                self.save_or_drop(slice).await;
            }
        }
    }

    /// Saves the sessions that are still ours and drops those that others have taken.
    async fn save_or_drop(&self, sessions: &[crate::domain::SessionId]) {
        let owners = match self.unless_away(self.exchange.owners(sessions)).await {
            Ok(owners) => owners,
            Err(error) => {
                self.sessions.note_unsaved();
                return self.note_error(&error);
            }
        };
        let (mut ours, mut waits) = (Vec::new(), 0);
        for (session, owner) in sessions.iter().zip(owners) {
            match owner {
                Some(owner) if !self.sessions.is_owner(session, &owner) => {
                    self.sessions.drop_copy(session, &owner);
                }
                _ => ours.push(session.clone()),
            }
        }
        self.save_whole(ours);
        // The next slice waits until these are saved.
        while !self.queue.is_idle() && !self.status.is_away() && waits < SWEEP_MAX {
            waits += 1;
            time::sleep(Duration::from_millis(2)).await;
        }
    }
}
