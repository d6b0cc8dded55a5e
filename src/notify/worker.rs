//! Carries verdicts from the feed to one receiver, and remembers how far it
//! has come.

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

/// So many are under way at a time, so that a slow receiver is not waited for
/// one by one.
const IN_FLIGHT_MAX: usize = 8;

pub(super) struct DeliveryWorker {
    pub endpoint: Arc<Endpoint>,
    pub context: NotifierContext,
}

impl DeliveryWorker {
    /// Delivers until the service drains. What is under way then, and whatever
    /// follows it, is delivered after the next start.
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
                    issued = feed.next_record(), if in_flight.len() < IN_FLIGHT_MAX => match issued {
                        Ok(issued) => in_flight.push_back(self.deliver(issued, &on_event)),
                        Err(FeedError::Draining) => return,
                        // What was read and not delivered is read again.
                        Err(FeedError::TooSlow(_)) => break,
                        Err(error) => {
                            let endpoint = &self.endpoint.name;
                            tracing::error!(endpoint, %error, "notices are lost");
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
        issued: VerdictRecord,
        on_event: &impl Fn(DeliveryEvent),
    ) -> (VerdictId, DeliveryOutcome) {
        let verdict_json = (self.context.render_verdict)(&issued.verdict);
        let on_retry = || on_event(DeliveryEvent::Retried);
        let delivery = self
            .endpoint
            .deliver(&issued, verdict_json, self.context.now, on_retry);
        (issued.verdict.id, delivery.await)
    }

    /// `None`: nobody writes to the store any more. A place that is no longer
    /// kept is one that nothing wanted has followed for long; one that is not
    /// known is of another store.
    fn open_feed(&self, cursor: VerdictId) -> Option<Feed> {
        let (store, filter) = (self.context.store.clone(), self.endpoint.verdict_filter());
        let after = cursor
            .min(store.last_verdict_id())
            .max(store.retained_after());
        Feed::new(store, filter, Some(after), self.context.draining.clone()).ok()
    }
}

/// How far it has come, on disk where there is a store. It is written without a
/// sync: a place that is lost to a crash is an earlier one, and what follows it
/// is delivered twice, under the same ids.
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
            tracing::warn!(%error, "cannot keep how far notices have come");
        }
    }
}

/// In one step: nobody finds half of it.
fn write_cursor_atomically(path: &Path, cursor: VerdictId) -> io::Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, cursor.to_string())?;
    fs::rename(&temporary, path)
}
