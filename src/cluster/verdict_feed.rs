//! The verdicts of all replicas in one order: their places in a stream. A watcher may resume
//! after a verdict on any replica.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tokio::{sync::broadcast, time};
use tokio_util::sync::CancellationToken;

use super::{
    Cluster,
    exchange::{ExchangeResult, SharedStream, StreamEntry},
};
use crate::{
    domain::{VerdictId, VerdictRecord},
    telemetry::ClusterCount,
};

/// The verdicts that are kept for watchers that fall behind.
const LIVE_MAX: usize = 4_096;
/// The entries that are read at a time.
const READ_MAX: usize = 256;
/// Clocks of replicas and of Redis differ by less: a verdict is looked for from so much
/// before its time on.
const SKEW_MAX: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The verdicts that were delivered here while Redis was away.
const DELIVERED_MAX: usize = 4_096;

/// A place in the feed. `None`: the verdict is not in the feed yet.
pub type FeedPosition = Option<Arc<str>>;

/// Where the feed goes on after a verdict.
#[derive(Debug)]
pub enum FeedStart {
    /// After this place, where the verdict is.
    After(String),
    /// After this place, with the verdicts of later ids.
    Since(String),
    /// The feed no longer goes back so far.
    NotRetained,
    Unreachable,
}

/// The time and the number of a place, which sort.
pub fn place(position: &str) -> (u64, u64) {
    let (time, number) = position.split_once('-').unwrap_or((position, "0"));
    (time.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

/// Verdicts as they come.
pub(super) struct VerdictFeed {
    live: broadcast::Sender<(FeedPosition, VerdictRecord)>,
    /// Delivered here while Redis was away, to be skipped when they come by the stream.
    delivered: Mutex<VecDeque<VerdictId>>,
}

impl Default for VerdictFeed {
    fn default() -> Self {
        Self {
            live: broadcast::Sender::new(LIVE_MAX),
            delivered: Mutex::default(),
        }
    }
}

/// Some verdicts of the feed, oldest first.
#[derive(Debug, Default)]
pub struct FeedPage {
    pub verdicts: Vec<VerdictRecord>,
    /// Where the next page begins.
    pub position: String,
    pub at_end: bool,
}

impl Cluster {
    /// Verdicts from now on.
    pub fn subscribe_feed(&self) -> broadcast::Receiver<(FeedPosition, VerdictRecord)> {
        self.feed.live.subscribe()
    }

    /// Where the feed goes on after a verdict.
    pub async fn find_in_feed(&self, id: VerdictId) -> FeedStart {
        let Some(since) = id.time().checked_sub(SKEW_MAX) else {
            return FeedStart::NotRetained;
        };
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = format!("{}-0", since.as_millis());
        let mut after = start.clone();
        loop {
            let Ok(entries) = self.read_feed_entries(&after, false).await else {
                return FeedStart::Unreachable;
            };
            let Some(last) = entries.last() else { break };
            let found = entries.iter().find(|entry| {
                let record = self.codec.decode_verdict(&entry.value);
                record.is_some_and(|record| record.verdict.id == id)
            });
            if let Some(entry) = found {
                return FeedStart::After(entry.position.clone());
            }
            after.clone_from(&last.position);
        }
        // It was never in the feed, as an id between two verdicts; or it was removed.
        let first = self.exchange.read(SharedStream::Feed, "0-0", 1, false);
        match self.unless_away(first).await {
            Ok(first) => match first.first() {
                Some(first) if place(&first.position) > place(&start) => FeedStart::NotRetained,
                _ => FeedStart::Since(start),
            },
            Err(_) => FeedStart::Unreachable,
        }
    }

    /// The verdicts after a place. `None`: Redis is away.
    pub async fn read_feed_page(&self, after: &str) -> Option<FeedPage> {
        let entries = self.read_feed_entries(after, false).await.ok()?;
        let position = entries.last().map_or(after, |last| &*last.position);
        Some(FeedPage {
            position: position.to_owned(),
            at_end: entries.is_empty(),
            verdicts: entries.iter().filter_map(|it| self.decode(it)).collect(),
        })
    }

    async fn read_feed_entries(&self, after: &str, wait: bool) -> ExchangeResult<Vec<StreamEntry>> {
        let read = self
            .exchange
            .read(SharedStream::Feed, after, READ_MAX, wait);
        self.unless_away(read).await
    }

    fn decode(&self, entry: &StreamEntry) -> Option<VerdictRecord> {
        let record = self.codec.decode_verdict(&entry.value);
        if record.is_none() {
            self.metrics.count_cluster(ClusterCount::Unreadable, 1);
        }
        record
    }

    /// While Redis is away, watchers here get what this replica decides.
    pub(super) fn deliver_own(&self, batch: &[VerdictRecord]) {
        if !self.status.is_away() {
            return;
        }
        let mut delivered = self.feed.delivered.lock();
        for record in batch {
            if delivered.len() == DELIVERED_MAX {
                delivered.pop_front();
            }
            delivered.push_back(record.verdict.id);
            // `send` fails only if there is no receiver.
            let _ = self.feed.live.send((None, record.clone()));
        }
    }

    /// Passes the verdicts of the stream to the watchers here.
    pub(super) async fn read_feed(&self, stopped: &CancellationToken) {
        let mut position: Option<String> = None;
        loop {
            let read = self.read_feed_after(&mut position);
            match stopped.run_until_cancelled(read).await {
                None => return,
                Some(true) => {}
                Some(false) => {
                    let pause = time::sleep(RETRY_DELAY);
                    stopped.run_until_cancelled(pause).await;
                }
            }
        }
    }

    /// Returns false after a failure.
    async fn read_feed_after(&self, position: &mut Option<String>) -> bool {
        let after = match position {
            Some(after) => after.clone(),
            None => {
                let last = self.exchange.last_position(SharedStream::Feed).await;
                match last {
                    Ok(last) => position.insert(last).clone(),
                    Err(_) => return false,
                }
            }
        };
        let Ok(entries) = self.read_feed_entries(&after, true).await else {
            return false;
        };
        for entry in entries {
            let record = self.decode(&entry);
            *position = Some(entry.position.clone());
            if let Some(record) = record
                && !self.was_delivered(record.verdict.id)
            {
                let _ = self.feed.live.send((Some(entry.position.into()), record));
            }
        }
        true
    }

    fn was_delivered(&self, id: VerdictId) -> bool {
        let mut delivered = self.feed.delivered.lock();
        let known = delivered.iter().position(|known| *known == id);
        known.map(|at| delivered.remove(at)).is_some()
    }
}
