//! A resumable subscription to verdicts: first those since a given id, then live ones,
//! without a gap or a duplicate.
//!
//! In a cluster it is the feed of all replicas.
//!
//! Uses: domain, store, server, cluster.

mod shared_feed;

use std::{collections::VecDeque, sync::Arc};

use thiserror::Error;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::Cluster,
    domain::{Verdict, VerdictId, VerdictRecord},
    server::blocking,
    store::{ReadError, Store},
};

/// Why a feed ends, or cannot start.
#[derive(Debug, Error)]
pub enum FeedError {
    #[error("the service is shutting down")]
    Draining,
    #[error("the watcher was too slow and missed {0} verdicts; resume after the last one")]
    TooSlow(u64),
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    #[error("this service did not issue the verdict")]
    UnknownVerdict,
    #[error("redis cannot be reached, so it is unknown what follows; try again")]
    Unreachable,
}

pub use crate::store::VerdictFilter;
use shared_feed::SharedFeed;

/// The verdicts of a filter, in the order of their ids, or in that of the cluster's feed.
/// None is skipped: a reader that is too slow gets an error.
pub struct Feed {
    source: FeedSource,
    draining: CancellationToken,
}

enum FeedSource {
    Store(Box<StoreFeed>),
    Cluster(Box<SharedFeed>),
}

/// The verdicts of this process.
struct StoreFeed {
    store: Arc<Store>,
    filter: Arc<VerdictFilter>,
    live: Receiver<VerdictRecord>,
    /// Read from the store, not returned yet.
    backlog: VecDeque<VerdictRecord>,
    /// All verdicts up to this one have been returned or do not match the filter.
    position: VerdictId,
    /// The store holds later verdicts that have not been read.
    is_behind: bool,
}

/// The most verdicts that are read from the store at a time.
const PAGE_VERDICTS_MAX: usize = 256;

impl Feed {
    /// Starts after a verdict, or with the next one that is issued.
    pub fn new(
        store: Arc<Store>,
        filter: VerdictFilter,
        after: Option<VerdictId>,
        draining: CancellationToken,
    ) -> Result<Self, FeedError> {
        let source = FeedSource::Store(Box::new(StoreFeed::new(store, filter, after)?));
        Ok(Self { source, draining })
    }

    /// The verdicts of all replicas. `is_lenient`: it starts with the first verdict that is
    /// there if those before are not.
    pub fn of_cluster(
        cluster: Arc<Cluster>,
        filter: VerdictFilter,
        after: Option<VerdictId>,
        is_lenient: bool,
        draining: CancellationToken,
    ) -> Self {
        let feed = SharedFeed::new(cluster, filter, after, is_lenient);
        let source = FeedSource::Cluster(Box::new(feed));
        Self { source, draining }
    }

    pub async fn next(&mut self) -> Result<Arc<Verdict>, FeedError> {
        Ok(self.next_record().await?.verdict)
    }

    /// The next verdict with the labels of its session. Cancel safe: if the future is
    /// dropped, no verdict is lost.
    pub async fn next_record(&mut self) -> Result<VerdictRecord, FeedError> {
        let next = async {
            match &mut self.source {
                FeedSource::Store(feed) => feed.next_from_backlog_or_live().await,
                FeedSource::Cluster(feed) => feed.next().await,
            }
        };
        tokio::select! {
            next = next => next,
            () = self.draining.cancelled() => Err(FeedError::Draining),
        }
    }

    /// The next stored verdict; `None`: all that follow are live.
    pub async fn next_from_backlog(&mut self) -> Result<Option<Arc<Verdict>>, FeedError> {
        let next = async {
            match &mut self.source {
                FeedSource::Store(feed) => feed.pop_backlog().await,
                FeedSource::Cluster(feed) => feed.pop_backlog().await,
            }
        };
        tokio::select! {
            next = next => Ok(next?.map(|record| record.verdict)),
            () = self.draining.cancelled() => Err(FeedError::Draining),
        }
    }
}

impl StoreFeed {
    fn new(
        store: Arc<Store>,
        filter: VerdictFilter,
        after: Option<VerdictId>,
    ) -> Result<Self, FeedError> {
        let live = store.subscribe_verdicts();
        match after {
            Some(after) if after < store.retained_after() => {
                return Err(FeedError::Unreadable(ReadError::NotRetained));
            }
            // It has not been issued yet, so it is unknown what follows it.
            Some(after) if after > store.last_verdict_id() => {
                return Err(FeedError::UnknownVerdict);
            }
            _ => {}
        }
        Ok(Self {
            live,
            store,
            filter: Arc::new(filter),
            backlog: VecDeque::new(),
            position: after.unwrap_or_default(),
            is_behind: after.is_some(),
        })
    }

    async fn pop_backlog(&mut self) -> Result<Option<VerdictRecord>, FeedError> {
        while self.backlog.is_empty() && self.is_behind {
            self.read_next_page().await?;
        }
        Ok(self.backlog.pop_front())
    }

    async fn next_from_backlog_or_live(&mut self) -> Result<VerdictRecord, FeedError> {
        loop {
            if let Some(record) = self.pop_backlog().await? {
                return Ok(record);
            }
            match self.live.recv().await {
                Ok(record) if record.verdict.id <= self.position => {}
                Ok(record) => {
                    self.position = record.verdict.id;
                    if self.filter.matches(&record) {
                        return Ok(record);
                    }
                }
                Err(RecvError::Lagged(missed)) => return Err(FeedError::TooSlow(missed)),
                Err(RecvError::Closed) => return Err(FeedError::Draining),
            }
        }
    }

    /// Reads the next page from the store. It subscribes before it reads, so a verdict is
    /// in the page, live, or both; a duplicate is recognised by its id.
    async fn read_next_page(&mut self) -> Result<(), FeedError> {
        let (store, filter) = (self.store.clone(), self.filter.clone());
        let after = self.position;
        let read_page = move || {
            // Subscribe only when the read starts: the wait for a blocking thread must not
            // count as a slow reader.
            let live = store.subscribe_verdicts();
            let page = store.read_after(after, PAGE_VERDICTS_MAX, &filter);
            page.map(|page| (page, live))
        };
        let read = blocking::read_log(read_page).await;
        // The read is cancelled only when the service shuts down.
        let (page, live) = read.map_err(|_| FeedError::Draining)??;
        self.live = live;
        self.position = page.cursor;
        self.is_behind = !page.at_end;
        self.backlog.extend(page.verdicts);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{SessionId, clock},
        engine::{OperatorRequest, RunMode},
        testing,
    };

    #[tokio::test]
    async fn a_verdict_that_is_both_stored_and_live_is_returned_once() {
        let config = testing::config(&[]);
        let store = testing::store(&config);
        let engine = testing::engine(config, RunMode::Live, store.verdict_sink());
        let draining = CancellationToken::new();
        let mut feed =
            Feed::new(Arc::new(store), VerdictFilter::default(), None, draining).unwrap();
        let request = OperatorRequest {
            reason: "it loops",
            operator: "ann",
        };
        let [first, second] = ["a", "b"].map(|name| {
            let id = SessionId::parse(name).unwrap();
            engine
                .terminate_session(&id, &request, clock::now())
                .verdict
                .id
        });
        // The state after a page from the store that ends with the first verdict.
        let FeedSource::Store(store_feed) = &mut feed.source else {
            panic!("it is the store's");
        };
        store_feed.position = first;
        assert_eq!(feed.next().await.unwrap().id, second);
    }
}
