//! What is looked at now and then, as long as the service runs.

use std::{sync::Arc, time::Duration};

use tokio::{task, time};
use tokio_util::sync::CancellationToken;

use super::{RunError, systemd};
use crate::{domain::clock, engine::Engine, store::Store, telemetry::Metrics};

/// Idle sessions are looked for every second.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// A slice at a time, of so many of each kind and tenant: some 200 µs where all
/// are due. In between whoever has come meanwhile has a turn.
const SWEEP_SLICE: usize = 32;
/// As often at most: 20,000 of each kind a second.
const SWEEP_SLICES_MAX: usize = 625;
/// What is kept for days and by the megabyte is looked at every minute.
const RETENTION_INTERVAL: Duration = Duration::from_secs(60);

/// Forgets sessions that were idle for too long, and tombstones that have expired.
pub(super) async fn sweep_sessions(
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
) -> Result<(), RunError> {
    let mut ticks = time::interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    while draining.run_until_cancelled(ticks.tick()).await.is_some() {
        let now = clock::now();
        for _ in 0..SWEEP_SLICES_MAX {
            if draining.is_cancelled() || !engine.evict_expired(now, SWEEP_SLICE) {
                break;
            }
            task::yield_now().await;
        }
        metrics.set_state_bytes(engine.state_bytes(), engine.tombstone_bytes());
        metrics.drain_histograms();
        systemd::notify_watchdog();
    }
    Ok(())
}

/// Lets go of what the store has kept for long enough.
pub(super) async fn enforce_retention(
    store: Arc<Store>,
    draining: CancellationToken,
) -> Result<(), RunError> {
    let mut ticks = time::interval(RETENTION_INTERVAL);
    while draining.run_until_cancelled(ticks.tick()).await.is_some() {
        let store = store.clone();
        let enforced = task::spawn_blocking(move || store.enforce_retention(clock::now())).await?;
        if let Err(error) = enforced {
            tracing::error!(%error, "cannot let go of old verdicts");
        }
    }
    Ok(())
}
