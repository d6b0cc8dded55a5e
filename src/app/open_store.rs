//! Opens the store when the service starts.

use std::{io, sync::Arc, time::Duration};

use super::StartError;
use crate::{
    config::Config,
    domain::{RecoveredState, clock},
    store::{Store, StoreOptions},
};

/// Ample time for the log thread to write a line.
const LOG_FLUSH_DELAY: Duration = Duration::from_millis(100);

/// Opens the store and logs what it contains. It may take a second, so it runs on a
/// blocking thread.
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
        Some(dir) => {
            let terminations = recovered.sessions.len() + recovered.agents.len();
            let head = store.chain_head();
            let (record, hash) = head.map(|head| (head.record, head.hash)).unzip();
            let hash = hash.map(tracing::field::display);
            tracing::info!(?dir, terminations, record, hash, "the store is open");
        }
        None => tracing::warn!("state is kept in memory only: a restart loses terminations"),
    }
    if let Some(ahead) = store.expiry_clock().held_back() {
        let days = ahead.as_secs() / (24 * 60 * 60);
        tracing::warn!(
            days,
            "the wall clock is far ahead of the last run; nothing expires until it was steady for \
             an hour"
        );
    }
    Ok((Arc::new(store), recovered))
}

/// Ends the process. After a failed sync it is unknown what is on the disk, and another
/// sync would report success. A new process reads what is there.
fn exit_after_failed_sync(error: io::Error) {
    tracing::error!(%error, "cannot sync the audit log; exiting");
    // Another thread writes the log line.
    std::thread::sleep(LOG_FLUSH_DELAY);
    std::process::exit(1);
}
