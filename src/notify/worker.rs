//! Delivers verdicts from the feed to one endpoint, and saves its cursor.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::{StreamExt, stream::FuturesOrdered};

use super::{DeliveryEvent, DeliveryOutcome, NotifierContext, endpoint::Endpoint};
use crate::{
    domain::{VerdictId, VerdictRecord},
    feed::{Feed, FeedError},
};

/// Concurrent deliveries, so that the latency of a slow endpoint does not add up.
const IN_FLIGHT_MAX: usize = 8;

pub(super) struct DeliveryWorker {
    pub endpoint: Arc<Endpoint>,
    pub context: NotifierContext,
}

impl DeliveryWorker {
    /// Delivers until the service drains. Deliveries in flight then are repeated
    /// after the next start, together with all that follow.
    pub async fn run(self, on_event: impl Fn(DeliveryEvent)) {
        let cursor_file = CursorFile::new(self.context.store.dir(), &self.endpoint.name);
        let saved_cursor = cursor_file.load().unwrap_or(self.context.start_after);
        cursor_file.save(saved_cursor).await;
        let mut cursor = saved_cursor;
        let mut in_flight = FuturesOrdered::new();
        while let Some(mut feed) = self.open_feed(cursor) {
            in_flight.clear();
            loop {
                tokio::select! {
                    Some((id, delivery)) = in_flight.next() => {
                        on_event(DeliveryEvent::Finished(delivery));
                        cursor = id;
                        cursor_file.save(id).await;
                    }
                    next = feed.next_record(), if in_flight.len() < IN_FLIGHT_MAX => match next {
                        Ok(record) => in_flight.push_back(self.deliver(record, &on_event)),
                        Err(FeedError::Draining) => return,
                        // Deliveries in flight are read again from the cursor.
                        Err(FeedError::TooSlow(_)) => break,
                        Err(error) => {
                            let endpoint = &self.endpoint.name;
                            tracing::error!(endpoint, %error, "notifications are lost");
                            cursor = self.context.store.last_verdict_id();
                            break;
                        }
                    },
                }
            }
        }
    }

    async fn deliver(
        &self,
        record: VerdictRecord,
        on_event: &impl Fn(DeliveryEvent),
    ) -> (VerdictId, DeliveryOutcome) {
        let verdict_json = (self.context.render_verdict)(&record.verdict);
        let on_retry = || on_event(DeliveryEvent::Retried);
        let delivery = self
            .endpoint
            .deliver(&record, verdict_json, self.context.now, on_retry);
        (record.verdict.id, delivery.await)
    }

    /// Opens the feed after the cursor; `None` if the store is closed. A cursor
    /// before the retained log moves forward to it: no matching verdict followed it
    /// for that long. A cursor after the last verdict is from another store and
    /// moves back.
    fn open_feed(&self, cursor: VerdictId) -> Option<Feed> {
        let (store, filter) = (self.context.store.clone(), self.endpoint.verdict_filter());
        let after = cursor
            .min(store.last_verdict_id())
            .max(store.retained_after());
        Feed::new(store, filter, Some(after), self.context.draining.clone()).ok()
    }
}

/// The cursor on disk, if there is a store. It is written without fsync: a crash
/// may restore an earlier cursor, and what follows it is delivered twice, with the
/// same ids.
struct CursorFile(Option<PathBuf>);

impl CursorFile {
    fn new(dir: Option<&Path>, endpoint: &str) -> Self {
        Self(dir.map(|dir| dir.join(format!("notify-{endpoint}"))))
    }

    fn load(&self) -> Option<VerdictId> {
        let text = fs::read_to_string(self.0.as_ref()?).ok()?;
        VerdictId::parse(text.trim())
    }

    async fn save(&self, cursor: VerdictId) {
        let Some(path) = self.0.clone() else { return };
        let saved =
            tokio::task::spawn_blocking(move || write_cursor_atomically(&path, cursor)).await;
        if let Ok(Err(error)) = saved {
            tracing::warn!(%error, "cannot save the notification cursor");
        }
    }
}

/// Writes to a temporary file and renames it, so that the file is never partial.
fn write_cursor_atomically(path: &Path, cursor: VerdictId) -> io::Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, cursor.to_string())?;
    fs::rename(&temporary, path)
}
