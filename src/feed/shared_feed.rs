//! The feed of all replicas: verdicts in the order of their places in it.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::{FeedError, VerdictFilter};
use crate::{
    cluster::{Cluster, FeedPosition, FeedStart, place},
    domain::{VerdictId, VerdictRecord},
    store::ReadError,
};

/// The verdicts of a filter. None is skipped: a reader that is too slow gets an error.
pub(super) struct SharedFeed {
    cluster: Arc<Cluster>,
    filter: VerdictFilter,
    live: Receiver<(FeedPosition, VerdictRecord)>,
    backlog: VecDeque<VerdictRecord>,
    /// The verdict after which it begins, until its place is known.
    after: Option<VerdictId>,
    /// A verdict that is no longer there is not an error: it begins with the first that is.
    is_lenient: bool,
    /// All verdicts up to this place were returned or do not match.
    position: String,
    /// Ids up to this one were returned before.
    skipped: VerdictId,
    is_behind: bool,
}

impl SharedFeed {
    pub fn new(
        cluster: Arc<Cluster>,
        filter: VerdictFilter,
        after: Option<VerdictId>,
        is_lenient: bool,
    ) -> Self {
        Self {
            live: cluster.subscribe_feed(),
            cluster,
            filter,
            backlog: VecDeque::new(),
            after,
            is_lenient,
            position: String::new(),
            skipped: VerdictId::default(),
            is_behind: after.is_some(),
        }
    }

    /// Cancel safe.
    pub async fn next(&mut self) -> Result<VerdictRecord, FeedError> {
        loop {
            if let Some(record) = self.pop_backlog().await? {
                return Ok(record);
            }
            match self.live.recv().await {
                Ok((position, record)) => {
                    if let Some(position) = position {
                        if place(&position) <= place(&self.position) {
                            continue;
                        }
                        self.position = position.as_ref().to_owned();
                    }
                    if self.filter.matches(&record) {
                        return Ok(record);
                    }
                }
                Err(RecvError::Lagged(missed)) => return Err(FeedError::TooSlow(missed)),
                Err(RecvError::Closed) => return Err(FeedError::Draining),
            }
        }
    }

    pub async fn pop_backlog(&mut self) -> Result<Option<VerdictRecord>, FeedError> {
        if let Some(after) = self.after {
            match self.cluster.find_in_feed(after).await {
                FeedStart::After(position) => self.position = position,
                FeedStart::Since(position) => (self.position, self.skipped) = (position, after),
                FeedStart::NotRetained if self.is_lenient => self.skipped = after,
                FeedStart::NotRetained => {
                    return Err(FeedError::Unreadable(ReadError::NotRetained));
                }
                FeedStart::Unreachable => return Err(FeedError::Unreachable),
            }
            self.after = None;
        }
        while self.backlog.is_empty() && self.is_behind {
            self.read_next_page().await?;
        }
        Ok(self.backlog.pop_front())
    }

    /// Subscribes before it reads, so a verdict is in a page, live, or both.
    async fn read_next_page(&mut self) -> Result<(), FeedError> {
        let live = self.cluster.subscribe_feed();
        let after = if self.position.is_empty() {
            "0-0"
        } else {
            &self.position
        };
        let page = self.cluster.read_feed_page(after).await;
        let page = page.ok_or(FeedError::Unreachable)?;
        let matching = page
            .verdicts
            .into_iter()
            .filter(|it| it.verdict.id > self.skipped && self.filter.matches(it));
        self.backlog.extend(matching);
        (self.live, self.position) = (live, page.position);
        self.is_behind = !page.at_end;
        Ok(())
    }
}
