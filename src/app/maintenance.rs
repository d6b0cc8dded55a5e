//! Periodic tasks of a running service: removing expired sessions, and retention of
//! the audit log.

use std::{sync::Arc, time::Duration};

use tokio::{task, time};
use tokio_util::sync::CancellationToken;

use super::{RunError, ServiceTasks, systemd};
use crate::{
    domain::clock::{self, ExpiryClock},
    engine::Engine,
    store::Store,
    telemetry::Metrics,
};

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The most entries of each kind and tenant that are removed at a time, about 200 µs of
/// work. Other tasks run between two slices.
const SWEEP_SLICE: usize = 32;
/// The most slices per sweep: 20,000 entries of each kind a second.
const SWEEP_SLICES_MAX: usize = 625;
/// A minute is precise enough, because retention is measured in days and megabytes.
const RETENTION_INTERVAL: Duration = Duration::from_secs(60);

/// How often the store is checked for verdicts that wait for a disk that hangs.
const STALL_INTERVAL: Duration = Duration::from_millis(100);

/// How often the end of the audit log is logged.
const HEAD_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Removes sessions that have been idle for too long and expired tombstones, updates the
/// memory metrics and notifies the watchdog.
pub(super) async fn sweep_sessions(
    engine: Arc<Engine>,
    expiry_clock: ExpiryClock,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
) -> Result<(), RunError> {
    let mut ticks = time::interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut is_clock_wrong = false;
    while draining.run_until_cancelled(ticks.tick()).await.is_some() {
        let now = expiry_clock.now();
        for _ in 0..SWEEP_SLICES_MAX {
            if draining.is_cancelled() || !engine.evict_expired(now, SWEEP_SLICE) {
                break;
            }
            task::yield_now().await;
        }
        metrics.set_state_bytes(engine.state_bytes(), engine.tombstone_bytes());
        metrics.drain_histograms();
        systemd::notify_watchdog();
        is_clock_wrong = log_clock_difference(is_clock_wrong);
    }
    Ok(())
}

/// Logs when the wall clock begins or ends to differ from the service's time. Returns
/// whether it does.
fn log_clock_difference(was_large: bool) -> bool {
    let difference = clock::large_difference();
    match difference {
        Some(difference) if !was_large => tracing::warn!(
            secs = difference.as_secs(),
            "the wall clock differs from the service's time, which follows it slowly; a restart \
             adopts it"
        ),
        None if was_large => tracing::info!("the wall clock and the service's time agree again"),
        _ => {}
    }
    difference.is_some()
}

/// Spawns the periodic tasks.
pub(super) fn maintain(
    tasks: &mut ServiceTasks,
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    store: &Arc<Store>,
    draining: &CancellationToken,
) {
    let clock = store.expiry_clock();
    let retention = enforce_retention(store.clone(), metrics.clone(), draining.clone());
    tasks.spawn(retention);
    tasks.spawn(sweep_sessions(engine, clock, metrics, draining.clone()));
    tasks.spawn(publish_stalled(store.clone(), draining.clone()));
    tasks.spawn(log_chain_head(store.clone(), draining.clone()));
}

/// Delivers the verdicts that wait for a disk that hangs.
async fn publish_stalled(store: Arc<Store>, draining: CancellationToken) -> Result<(), RunError> {
    let mut ticks = time::interval(STALL_INTERVAL);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    while draining.run_until_cancelled(ticks.tick()).await.is_some() {
        store.publish_stalled();
    }
    Ok(())
}

/// Logs the end of the audit log every hour, so that it is noted outside of the database:
/// a log that was cut off or rewritten no longer has that record.
async fn log_chain_head(store: Arc<Store>, draining: CancellationToken) -> Result<(), RunError> {
    let mut ticks = time::interval(HEAD_INTERVAL);
    // The first is due at once, and the start has logged it.
    ticks.tick().await;
    while draining.run_until_cancelled(ticks.tick()).await.is_some() {
        log_head(&store);
    }
    Ok(())
}

pub(super) fn log_head(store: &Store) {
    if let Some(head) = store.chain_head() {
        tracing::info!(record = head.record, hash = %head.hash, "end of the audit log");
    }
}

/// Deletes the records that exceed the retention of the store, and counts the ratings that
/// are left.
async fn enforce_retention(
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
) -> Result<(), RunError> {
    let mut ticks = time::interval(RETENTION_INTERVAL);
    while draining.run_until_cancelled(ticks.tick()).await.is_some() {
        let store = store.clone();
        let (enforced, counts) = task::spawn_blocking(move || {
            let enforced = store.enforce_retention(store.expiry_clock().now());
            (enforced, store.rating_counts())
        })
        .await?;
        if let Err(error) = enforced {
            tracing::error!(%error, "cannot delete old verdicts");
        }
        match counts {
            Ok(counts) => metrics.set_rating_counts(&counts),
            Err(error) => tracing::error!(%error, "cannot count the ratings"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing;

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_audit_log_is_logged_every_hour() {
        let dir = tempfile::tempdir().unwrap();
        let store_dir = dir.path().join("store");
        let config = testing::config(&[("UNSTUCK__STORE__DIR", store_dir.to_str().unwrap())]);
        let store = Arc::new(testing::store(&config));
        let path = dir.path().join("log");
        let log = Arc::new(fs::File::create(&path).unwrap());
        let subscriber = tracing_subscriber::fmt().with_writer(log).finish();
        let _guard = tracing::subscriber::set_default(subscriber);

        let logging = log_chain_head(store.clone(), CancellationToken::new());
        let two_and_a_half_hours = Duration::from_secs(60 * 150);
        assert!(time::timeout(two_and_a_half_hours, logging).await.is_err());
        let log = fs::read_to_string(path).unwrap();
        let hash = store.chain_head().unwrap().hash.to_string();
        let lines = log
            .lines()
            .filter(|line| line.contains("end of the audit log"));
        assert_eq!(
            lines.filter(|line| line.contains(&hash)).count(),
            2,
            "{log}"
        );
    }
}
