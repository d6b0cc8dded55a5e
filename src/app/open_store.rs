//! What stands when the service starts.

use std::{io, sync::Arc, time::Duration};

use super::StartError;
use crate::{
    config::Config,
    domain::{RecoveredState, clock},
    store::{Store, StoreOptions},
};

/// What a thread needs to write a line, and more.
const LOG_FLUSH_DELAY: Duration = Duration::from_millis(100);

/// Opens the store, which may take a second, and says what it found.
pub(super) async fn open_and_log(
    config: &Config,
) -> Result<(Arc<Store>, RecoveredState), StartError> {
    let (settings, audit) = (config.store.clone(), config.audit);
    let tombstone_age_max = Duration::from_secs(config.engine.tombstone_secs_max);
    let tombstones_max = config.engine.tombstones_max;
    let open = move || {
        Store::open(StoreOptions {
            settings: &settings,
            audit,
            tombstone_age_max,
            tombstones_max,
            now: clock::now(),
            on_fatal: Box::new(exit_after_failed_sync),
        })
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let (store, recovered) = opened.map_err(|_| StartError::Interrupted)??;
    match store.dir() {
        Some(dir) => tracing::info!(
            ?dir,
            terminations = recovered.sessions.len() + recovered.agents.len(),
            "the store is open"
        ),
        None => tracing::warn!("state is kept in memory only: a restart forgets terminations"),
    }
    if let Some((aside, tail)) = store.damaged_tail() {
        let (bytes, offset) = (tail.bytes, tail.offset);
        tracing::warn!(
            ?aside,
            bytes,
            offset,
            "a damaged tail of the audit log was set aside"
        );
    }
    Ok((Arc::new(store), recovered))
}

/// After a failed sync nobody knows what is on the disk, and another sync would
/// say that all is well. A new process reads what is there.
fn exit_after_failed_sync(error: io::Error) {
    tracing::error!(%error, "the disk could not keep what it took; ending");
    // The line is written by another thread.
    std::thread::sleep(LOG_FLUSH_DELAY);
    std::process::exit(1);
}
