//! What the cluster needs of the service.

use std::{sync::Arc, time::Duration};

use super::StartError;
use crate::{
    api,
    cluster::{self, ClusterParts, JoinError, Settings},
    domain::clock,
    engine::Engine,
    notify,
    secret::Secret,
    store::Store,
    telemetry::Metrics,
};

/// The secret of the cluster. `None`: there is no cluster.
pub(super) fn load_secret(settings: &Settings) -> Result<Option<Secret>, StartError> {
    if !settings.is_on() {
        return Ok(None);
    }
    // For TLS to Redis.
    notify::install_crypto_provider();
    let secret = cluster::load_secret(settings).map_err(JoinError::from)?;
    Ok(Some(secret))
}

pub(super) fn parts(
    engine: &Arc<Engine>,
    store: &Arc<Store>,
    metrics: &Arc<Metrics>,
    tombstone_age_max: Duration,
) -> Result<ClusterParts, StartError> {
    Ok(ClusterParts {
        engine: engine.clone(),
        store: store.clone(),
        metrics: metrics.clone(),
        replay_metrics: Metrics::new([])?,
        decode_event: api::decode_shared_event,
        now: clock::now,
        idle_max: engine.idle_max(),
        tombstone_age_max,
    })
}
