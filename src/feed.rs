//! Verdicts to those who watch: what was missed, then what happens, without a
//! gap between.
//!
//! Uses: domain, store, server.

use std::{collections::VecDeque, sync::Arc};

use thiserror::Error;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

use crate::{
    domain::{Action, Labels, SessionId, Tenant, Verdict, VerdictId, VerdictRecord, has_labels},
    server::blocking,
    store::{ReadError, Store},
};

/// Which verdicts somebody watches.
#[derive(Clone, Debug, Default)]
pub struct VerdictFilter {
    /// `None`: any, which only the service itself may ask for.
    pub tenant: Option<Tenant>,
    /// `None`: any.
    pub session: Option<SessionId>,
    /// All of these; none: any.
    pub labels: Labels,
    /// Empty: any.
    pub detector: String,
    /// This and stronger; `None`: any, also those that ask for nothing.
    pub min_action: Option<Action>,
}

impl VerdictFilter {
    pub fn matches(&self, issued: &VerdictRecord) -> bool {
        let Verdict {
            session,
            detector,
            action,
            ..
        } = &*issued.verdict;
        let is_of_tenant = |tenant: &Tenant| session.belongs_to(tenant);
        self.tenant.as_ref().is_none_or(is_of_tenant)
            && self.session.as_ref().is_none_or(|wanted| wanted == session)
            && (self.detector.is_empty() || self.detector == **detector)
            && *action >= self.min_action
            && has_labels(&issued.labels, &self.labels)
    }
}

/// Why a feed is over, or does not begin.
#[derive(Debug, Error)]
pub enum FeedError {
    #[error("the service is shutting down")]
    Draining,
    #[error("the watcher was too slow and missed {0} verdicts; resume after the last one")]
    TooSlow(u64),
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    #[error("the verdict is not one of this service's")]
    UnknownVerdict,
}

/// The verdicts that somebody watches, in the order of their ids. It misses
/// none: who is too slow is told so.
pub struct Feed {
    store: Arc<Store>,
    filter: Arc<VerdictFilter>,
    live: Receiver<VerdictRecord>,
    /// Read, and not yet given.
    backlog: VecDeque<VerdictRecord>,
    /// All up to this one were given or not wanted.
    position: VerdictId,
    /// The past is not read to its end.
    is_behind: bool,
    draining: CancellationToken,
}

/// Verdicts that are read at a time.
const PAGE_VERDICTS_MAX: usize = 256;

impl Feed {
    /// From now on, or from after a verdict on.
    pub fn new(
        store: Arc<Store>,
        filter: VerdictFilter,
        after: Option<VerdictId>,
        draining: CancellationToken,
    ) -> Result<Self, FeedError> {
        let live = store.subscribe_verdicts();
        match after {
            Some(after) if after < store.retained_after() => {
                return Err(FeedError::Unreadable(ReadError::NotRetained));
            }
            // Nothing can be said to follow it.
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
            draining,
        })
    }

    pub async fn next(&mut self) -> Result<Arc<Verdict>, FeedError> {
        Ok(self.next_record().await?.verdict)
    }

    /// The next verdict with the labels of its session. It may be dropped
    /// before it is ready, and misses nothing.
    pub async fn next_record(&mut self) -> Result<VerdictRecord, FeedError> {
        let draining = self.draining.clone();
        tokio::select! {
            next = self.next_from_backlog_or_live() => next,
            () = draining.cancelled() => Err(FeedError::Draining),
        }
    }

    /// The next verdict of the past; `None`: what comes from now on is news.
    pub async fn next_from_backlog(&mut self) -> Result<Option<Arc<Verdict>>, FeedError> {
        let draining = self.draining.clone();
        tokio::select! {
            next = self.pop_backlog() => Ok(next?.map(|issued| issued.verdict)),
            () = draining.cancelled() => Err(FeedError::Draining),
        }
    }

    async fn pop_backlog(&mut self) -> Result<Option<VerdictRecord>, FeedError> {
        while self.backlog.is_empty() && self.is_behind {
            self.read_next_page().await?;
        }
        Ok(self.backlog.pop_front())
    }

    async fn next_from_backlog_or_live(&mut self) -> Result<VerdictRecord, FeedError> {
        loop {
            if let Some(issued) = self.pop_backlog().await? {
                return Ok(issued);
            }
            match self.live.recv().await {
                Ok(issued) if issued.verdict.id <= self.position => {}
                Ok(issued) => {
                    self.position = issued.verdict.id;
                    if self.filter.matches(&issued) {
                        return Ok(issued);
                    }
                }
                Err(RecvError::Lagged(missed)) => return Err(FeedError::TooSlow(missed)),
                Err(RecvError::Closed) => return Err(FeedError::Draining),
            }
        }
    }

    /// Reads more of the past. What is given from now on comes live; what was
    /// given before is in the past, or in both, and then it is known by its id.
    async fn read_next_page(&mut self) -> Result<(), FeedError> {
        let (store, filter) = (self.store.clone(), self.filter.clone());
        let after = self.position;
        let read_page = move || {
            // Not while it waits for its turn to read: that is not to be slow.
            let live = store.subscribe_verdicts();
            let page = store.read_after(after, PAGE_VERDICTS_MAX, |issued| filter.matches(issued));
            page.map(|page| (page, live))
        };
        let read = blocking::read_log(read_page).await;
        // It is cancelled only when the service ends.
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
        domain::clock,
        engine::{OperatorRequest, RunMode},
        testing,
    };

    #[tokio::test]
    async fn what_was_read_of_the_past_and_comes_live_too_is_given_once() {
        let config = testing::config(&[]);
        let store = testing::store(&config);
        let engine = testing::engine(config, RunMode::Live, store.verdict_sink());
        let draining = CancellationToken::new();
        let mut feed =
            Feed::new(Arc::new(store), VerdictFilter::default(), None, draining).unwrap();
        let act = OperatorRequest {
            reason: "it loops",
            operator: "ann",
        };
        let [first, second] = ["a", "b"].map(|name| {
            let id = SessionId::parse(name).unwrap();
            engine.terminate_session(&id, &act, clock::now()).id
        });
        // As after a page of the past that ended with the first.
        feed.position = first;
        assert_eq!(feed.next().await.unwrap().id, second);
    }
}
