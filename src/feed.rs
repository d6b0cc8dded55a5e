//! Verdicts to those who watch: what was missed, then what happens, without a
//! gap between.
//!
//! Uses: domain, store, server.

use std::{collections::VecDeque, sync::Arc};

use thiserror::Error;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

use crate::{
    domain::{Action, Issued, Labels, SessionId, Tenant, Verdict, VerdictId, has_labels},
    server::aside,
    store::{ReadError, Store},
};

/// Which verdicts somebody watches.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// `None`: any, which only the service itself may ask for.
    pub tenant: Option<Tenant>,
    /// `None`: any.
    pub session: Option<SessionId>,
    /// All of these; none: any.
    pub labels: Labels,
    /// Empty: any.
    pub detector: String,
    /// This and stronger; `None`: any, also those that ask for nothing.
    pub least_action: Option<Action>,
}

impl Watch {
    pub fn wants(&self, issued: &Issued) -> bool {
        let Verdict {
            session,
            detector,
            action,
            ..
        } = &*issued.verdict;
        let is_theirs = |tenant: &Tenant| session.is_of(tenant);
        self.tenant.as_ref().is_none_or(is_theirs)
            && self.session.as_ref().is_none_or(|wanted| wanted == session)
            && (self.detector.is_empty() || self.detector == **detector)
            && *action >= self.least_action
            && has_labels(&issued.labels, &self.labels)
    }
}

/// Why a feed is over, or does not begin.
#[derive(Debug, Error)]
pub enum Ended {
    #[error("the service is shutting down")]
    Draining,
    #[error("the watcher was too slow and missed {0} verdicts; resume after the last one")]
    TooSlow(u64),
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    #[error("the verdict is not one of this service's")]
    Unknown,
}

/// The verdicts that somebody watches, in the order of their ids. It misses
/// none: who is too slow is told so.
pub struct Feed {
    store: Arc<Store>,
    watch: Arc<Watch>,
    live: Receiver<Issued>,
    /// Read, and not yet given.
    past: VecDeque<Issued>,
    /// All up to this one were given or not wanted.
    position: VerdictId,
    /// The past is not read to its end.
    is_behind: bool,
    draining: CancellationToken,
}

/// Verdicts that are read at a time.
const PAST_MAX: usize = 256;

impl Feed {
    /// From now on, or from after a verdict on.
    pub fn new(
        store: Arc<Store>,
        watch: Watch,
        after: Option<VerdictId>,
        draining: CancellationToken,
    ) -> Result<Self, Ended> {
        let live = store.verdicts();
        match after {
            Some(after) if after < store.horizon() => {
                return Err(Ended::Unreadable(ReadError::Forgotten));
            }
            // Nothing can be said to follow it.
            Some(after) if after > store.last() => return Err(Ended::Unknown),
            _ => {}
        }
        Ok(Self {
            live,
            store,
            watch: Arc::new(watch),
            past: VecDeque::new(),
            position: after.unwrap_or_default(),
            is_behind: after.is_some(),
            draining,
        })
    }

    pub async fn next(&mut self) -> Result<Arc<Verdict>, Ended> {
        Ok(self.next_issued().await?.verdict)
    }

    /// The next verdict with the labels of its session. It may be dropped
    /// before it is ready, and misses nothing.
    pub async fn next_issued(&mut self) -> Result<Issued, Ended> {
        let draining = self.draining.clone();
        tokio::select! {
            next = self.next_given() => next,
            () = draining.cancelled() => Err(Ended::Draining),
        }
    }

    /// The next verdict of the past; `None`: what comes from now on is news.
    pub async fn next_missed(&mut self) -> Result<Option<Arc<Verdict>>, Ended> {
        let draining = self.draining.clone();
        tokio::select! {
            next = self.next_past() => Ok(next?.map(|issued| issued.verdict)),
            () = draining.cancelled() => Err(Ended::Draining),
        }
    }

    async fn next_past(&mut self) -> Result<Option<Issued>, Ended> {
        while self.past.is_empty() && self.is_behind {
            self.read_on().await?;
        }
        Ok(self.past.pop_front())
    }

    async fn next_given(&mut self) -> Result<Issued, Ended> {
        loop {
            if let Some(issued) = self.next_past().await? {
                return Ok(issued);
            }
            match self.live.recv().await {
                Ok(issued) if issued.verdict.id <= self.position => {}
                Ok(issued) => {
                    self.position = issued.verdict.id;
                    if self.watch.wants(&issued) {
                        return Ok(issued);
                    }
                }
                Err(RecvError::Lagged(missed)) => return Err(Ended::TooSlow(missed)),
                Err(RecvError::Closed) => return Err(Ended::Draining),
            }
        }
    }

    /// Reads more of the past. What is given from now on comes live; what was
    /// given before is in the past, or in both, and then it is known by its id.
    async fn read_on(&mut self) -> Result<(), Ended> {
        let (store, watch) = (self.store.clone(), self.watch.clone());
        let after = self.position;
        let read = move || {
            // Not while it waits for its turn to read: that is not to be slow.
            let live = store.verdicts();
            let page = store.resume(after, PAST_MAX, |issued| watch.wants(issued));
            page.map(|page| (page, live))
        };
        let read = aside::read(read).await;
        // It is cancelled only when the service ends.
        let (page, live) = read.map_err(|_| Ended::Draining)??;
        self.live = live;
        self.position = page.last;
        self.is_behind = !page.end;
        self.past.extend(page.verdicts);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Config, DEFAULTS, Layers},
        domain::clock,
        engine::{Act, Clockwork, Engine},
        store::Opening,
        telemetry::Metrics,
    };

    #[tokio::test]
    async fn what_was_read_of_the_past_and_comes_live_too_is_given_once() {
        let memory = ("UNSTUCK__STORE__DIR".to_owned(), String::new());
        let layers = Layers::load(DEFAULTS, &[], None, [memory]).unwrap();
        let config = Config::new(&layers).unwrap();
        let (store, _) = Store::open(Opening::in_a_test(&config)).unwrap();
        let engine = Engine::new(
            config.profiles,
            config.tools,
            config.engine,
            Arc::new(Metrics::new([]).unwrap()),
            Clockwork::Live,
            store.outlet(),
        );
        let draining = CancellationToken::new();
        let mut feed = Feed::new(Arc::new(store), Watch::default(), None, draining).unwrap();
        let act = Act {
            reason: "it loops",
            operator: "ann",
        };
        let [first, second] = ["a", "b"].map(|name| {
            let id = SessionId::parse(name).unwrap();
            engine.terminate(&id, &act, clock::now()).id
        });
        // As after a page of the past that ended with the first.
        feed.position = first;
        assert_eq!(feed.next().await.unwrap().id, second);
    }
}
