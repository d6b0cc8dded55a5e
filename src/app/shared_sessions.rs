//! What the cluster needs of the service.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::{JoinError, JoinHandle},
    time::Instant,
};

use super::StartError;
use crate::{
    api,
    cluster::{self, Cluster, ClusterParts, Settings},
    domain::clock,
    engine::Engine,
    notify,
    secret::Secret,
    store::Store,
    telemetry::Metrics,
};

/// The time for saving in Redis if open calls have used all of the drain time.
const SHARE_TIME_MIN: Duration = Duration::from_millis(500);

/// The secret of the cluster. `None`: there is no cluster.
pub(super) fn load_secret(settings: &Settings) -> Result<Option<Secret>, StartError> {
    if !settings.is_on() {
        return Ok(None);
    }
    // For TLS to Redis.
    notify::install_crypto_provider();
    let secret = cluster::load_secret(settings).map_err(cluster::JoinError::from)?;
    Ok(Some(secret))
}

/// Joins the cluster, if there is one.
pub(super) async fn join(
    settings: Settings,
    secret: Option<Secret>,
    (engine, store, metrics): (&Arc<Engine>, &Arc<Store>, &Arc<Metrics>),
) -> Result<Option<Arc<Cluster>>, StartError> {
    let Some(secret) = secret else {
        return Ok(None);
    };
    let parts = ClusterParts {
        engine: engine.clone(),
        store: store.clone(),
        metrics: metrics.clone(),
        replay_metrics: Metrics::new([])?,
        decode_event: api::decode_shared_event,
        now: clock::now,
        idle_max: engine.idle_max(),
        tombstone_age_max: engine.tombstone_retention(),
    };
    Ok(Some(Cluster::join(settings, secret, parts).await?))
}

/// Saves what is not saved when the service has drained, and ends the tasks.
pub(super) async fn leave(
    cluster: Option<Arc<Cluster>>,
    running: Option<JoinHandle<()>>,
    deadline: Instant,
) -> Result<(), JoinError> {
    if let (Some(cluster), Some(running)) = (cluster, running) {
        cluster
            .stop(deadline.max(Instant::now() + SHARE_TIME_MIN))
            .await;
        running.await?;
    }
    Ok(())
}
