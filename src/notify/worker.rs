//! Delivers verdicts from the feed to one endpoint, and saves its cursor.

use std::{
    fs,
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

use super::{
    DeliveryEvent, DeliveryOutcome, NotifierContext,
    endpoint::{AttemptOutcome, Endpoint},
    pending::PendingNotifications,
};
use crate::{
    atomic_file::{self, Durability},
    cluster::Cluster,
    domain::{Action, VerdictId, VerdictRecord},
    feed::{Feed, FeedError, VerdictFilter},
};

/// Concurrent attempts, so that the latency of a slow endpoint does not add up.
/// Notifications that wait for a retry are not among them.
const IN_FLIGHT_MAX: usize = 8;
/// The pause while the feed of a cluster cannot be read.
const UNREACHABLE_DELAY: Duration = Duration::from_secs(1);

pub(super) struct DeliveryWorker {
    pub endpoint: Arc<Endpoint>,
    pub context: NotifierContext,
    pub console_url: Arc<str>,
}

impl DeliveryWorker {
    /// Delivers until the service drains. Notifications that are not finished then are
    /// sent after the next start, together with all that follow.
    pub async fn run(self, on_event: impl Fn(DeliveryEvent)) {
        let cursor_file = CursorFile::new(self.context.store.dir(), &self.endpoint.name);
        let saved_cursor = cursor_file.load().unwrap_or(self.context.start_after);
        if let Some(cluster) = self.context.cluster.clone() {
            return self
                .run_while_leader(&cluster, saved_cursor, &on_event)
                .await;
        }
        // A cursor after the last verdict is from another store.
        let cursor = saved_cursor.min(self.context.store.last_verdict_id());
        let save = |cursor| cursor_file.save(cursor);
        self.deliver_after(cursor, save, &on_event).await;
    }

    /// In a cluster: delivers the verdicts of all replicas while this one holds the lease.
    /// Another continues at the cursor, which all know.
    async fn run_while_leader(
        &self,
        cluster: &Arc<Cluster>,
        first_cursor: VerdictId,
        on_event: &impl Fn(DeliveryEvent),
    ) {
        let endpoint = &self.endpoint.name;
        let draining = &self.context.draining;
        while draining
            .run_until_cancelled(cluster.wait_for_notify_lease(true))
            .await
            .is_some()
        {
            let cursor = cluster
                .notify_cursor(endpoint)
                .await
                .unwrap_or(first_cursor);
            let save = |cursor| cluster.save_notify_cursor(endpoint, cursor);
            tokio::select! {
                () = self.deliver_after(cursor, save, on_event) => {}
                () = cluster.wait_for_notify_lease(false) => {}
            }
        }
    }

    /// Delivers what follows the cursor.
    async fn deliver_after<S: Future<Output = ()>>(
        &self,
        cursor: VerdictId,
        save: impl Fn(VerdictId) -> S,
        on_event: &impl Fn(DeliveryEvent),
    ) {
        let mut pending = PendingNotifications::new(cursor);
        let mut attempts = FuturesUnordered::new();
        while let Some(mut feed) =
            self.open_feed(self.endpoint.verdict_filter(), pending.read_until())
        {
            let mut terminations = self.open_termination_feed(&pending);
            loop {
                // Start the attempts that are due.
                while attempts.len() < IN_FLIGHT_MAX
                    && let Some((record, expires_at)) = pending.start_next(Instant::now())
                {
                    attempts.push(self.attempt(record, expires_at));
                }
                let next_due_at = pending.next_due_at();
                let may_start = attempts.len() < IN_FLIGHT_MAX;
                tokio::select! {
                    Some((id, outcome)) = attempts.next() => {
                        let cursor = self.handle_outcome(&mut pending, id, outcome, on_event);
                        if let Some(cursor) = cursor {
                            save(cursor).await;
                        }
                    }
                    () = wait_until(next_due_at), if may_start => {}
                    next = feed.next_record(), if pending.may_read() => match next {
                        Ok(record) => {
                            let expires_at = self.expires_at(&record);
                            pending.insert(record, expires_at, Instant::now());
                        }
                        Err(FeedError::Draining) => return,
                        // The feed is opened again after the last record that was read.
                        Err(FeedError::TooSlow(_)) => break,
                        Err(FeedError::Unreachable) => {
                            tokio::time::sleep(UNREACHABLE_DELAY).await;
                            break;
                        }
                        Err(error) => {
                            let endpoint = &self.endpoint.name;
                            tracing::error!(endpoint, %error, "notifications are lost");
                            pending.skip_to(self.context.store.last_verdict_id());
                            break;
                        }
                    },
                    next = next_termination(&mut terminations), if pending.may_read_terminations() => {
                        match next {
                            Ok(record) => {
                                let expires_at = self.expires_at(&record);
                                pending.insert_ahead(record, expires_at, Instant::now());
                            }
                            Err(FeedError::Draining) => return,
                            Err(FeedError::TooSlow(_) | FeedError::Unreachable) => break,
                            // The other feed meets the same error, and logs it.
                            Err(_) => terminations = None,
                        }
                    }
                    () = self.context.draining.cancelled() => return,
                }
            }
        }
    }

    /// Finishes a notification or schedules its next attempt. Returns the new cursor,
    /// if it has moved.
    fn handle_outcome(
        &self,
        pending: &mut PendingNotifications,
        id: VerdictId,
        outcome: AttemptOutcome,
        on_event: &impl Fn(DeliveryEvent),
    ) -> Option<VerdictId> {
        match outcome {
            AttemptOutcome::Finished(delivery) => {
                on_event(DeliveryEvent::Finished(delivery));
                pending.finish(id)
            }
            AttemptOutcome::Failed(failure) => {
                on_event(DeliveryEvent::Retried);
                let endpoint = &self.endpoint.name;
                // One warning per notification.
                if pending.is_first_failure(id) {
                    tracing::warn!(endpoint, %failure, "notification will be retried");
                } else {
                    tracing::debug!(endpoint, %failure, "notification will be retried");
                }
                pending.retry_later(
                    id,
                    || self.endpoint.backoff(),
                    failure.retry_after(),
                    failure.concerns_endpoint(),
                    Instant::now(),
                );
                None
            }
        }
    }

    async fn attempt(
        &self,
        record: VerdictRecord,
        expires_at: Instant,
    ) -> (VerdictId, AttemptOutcome) {
        let id = record.verdict.id;
        if self.endpoint.skips(&record) {
            return (id, AttemptOutcome::Finished(DeliveryOutcome::Skipped));
        }
        let verdict_json = (self.context.render_verdict)(&record.verdict);
        let attempt = self.endpoint.attempt(
            &record,
            verdict_json,
            &self.console_url,
            self.context.wall_now,
        );
        let outcome = match tokio::time::timeout_at(expires_at, attempt).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let (endpoint, verdict) = (&self.endpoint.name, id.to_string());
                tracing::warn!(endpoint, verdict, "notification expired");
                AttemptOutcome::Finished(DeliveryOutcome::Expired)
            }
        };
        (id, outcome)
    }

    /// A notification that was issued long ago, before a restart, has less time left.
    fn expires_at(&self, record: &VerdictRecord) -> Instant {
        let age = (self.context.now)().duration_since(record.verdict.id.time());
        let remaining = self
            .endpoint
            .expiry()
            .saturating_sub(age.unwrap_or(Duration::ZERO));
        Instant::now() + remaining
    }

    /// Opens a feed of TERMINATEs only. It is read also while too many other
    /// notifications are pending to read the feed of all.
    fn open_termination_feed(&self, pending: &PendingNotifications) -> Option<Feed> {
        let filter = VerdictFilter {
            min_action: Some(Action::Terminate),
            ..self.endpoint.verdict_filter()
        };
        self.open_feed(filter, pending.terminations_read_until())
    }

    /// Opens a feed after the cursor; `None` if the store is closed. A cursor before the
    /// retained log moves forward to it: no matching verdict followed it for that long.
    fn open_feed(&self, filter: VerdictFilter, cursor: VerdictId) -> Option<Feed> {
        let draining = self.context.draining.clone();
        if let Some(cluster) = self.context.cluster.clone() {
            let after = Some(cursor);
            return Some(Feed::of_cluster(cluster, filter, after, true, draining));
        }
        let store = self.context.store.clone();
        let after = cursor.max(store.retained_after());
        Feed::new(store, filter, Some(after), draining).ok()
    }
}

/// Saves the cursor of an endpoint that has none yet. Done before the service accepts
/// calls: after a kill, delivery continues at the cursor.
pub(super) async fn save_first_cursor(dir: Option<&Path>, endpoint: &str, cursor: VerdictId) {
    let cursor_file = CursorFile::new(dir, endpoint);
    if cursor_file.load().is_none() {
        cursor_file.save(cursor).await;
    }
}

/// `None`: the feed is closed, so this does not complete.
async fn next_termination(feed: &mut Option<Feed>) -> Result<VerdictRecord, FeedError> {
    match feed {
        Some(feed) => feed.next_record().await,
        None => std::future::pending().await,
    }
}

/// `None`: nothing is due, so this does not complete.
async fn wait_until(due_at: Option<Instant>) {
    match due_at {
        Some(due_at) => sleep_until(due_at).await,
        None => std::future::pending().await,
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
        let saved = tokio::task::spawn_blocking(move || write_cursor(&path, cursor)).await;
        if let Ok(Err(error)) = saved {
            tracing::warn!(%error, "cannot save the notification cursor");
        }
    }
}

fn write_cursor(path: &Path, cursor: VerdictId) -> io::Result<()> {
    let text = cursor.to_string();
    atomic_file::replace(path, text.as_bytes(), 0o600, Durability::Unsynced)
}
