//! Verdicts to those who watch.
//!
//! Uses: domain.

use std::sync::Arc;

use thiserror::Error;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

use crate::domain::{Action, Issued, Labels, SessionId, Verdict, has_labels};

/// Which verdicts somebody watches.
#[derive(Clone, Debug, Default)]
pub struct Watch {
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
    fn wants(&self, issued: &Issued) -> bool {
        let Verdict {
            session,
            detector,
            action,
            ..
        } = &*issued.verdict;
        self.session.as_ref().is_none_or(|wanted| wanted == session)
            && (self.detector.is_empty() || self.detector == **detector)
            && *action >= self.least_action
            && has_labels(&issued.labels, &self.labels)
    }
}

/// Why a feed is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Ended {
    #[error("the service is shutting down")]
    Draining,
    #[error("the watcher was too slow and missed {0} verdicts")]
    TooSlow(u64),
}

/// The verdicts that somebody watches, in the order of their ids. It misses
/// none: who is too slow is told so.
pub struct Feed {
    verdicts: Receiver<Issued>,
    watch: Watch,
    draining: CancellationToken,
}

impl Feed {
    pub fn new(verdicts: Receiver<Issued>, watch: Watch, draining: CancellationToken) -> Self {
        Self {
            verdicts,
            watch,
            draining,
        }
    }

    pub async fn next(&mut self) -> Result<Arc<Verdict>, Ended> {
        loop {
            let issued = tokio::select! {
                issued = self.verdicts.recv() => issued,
                () = self.draining.cancelled() => return Err(Ended::Draining),
            };
            match issued {
                Ok(issued) if self.watch.wants(&issued) => return Ok(issued.verdict),
                Ok(_) => {}
                Err(RecvError::Lagged(missed)) => return Err(Ended::TooSlow(missed)),
                Err(RecvError::Closed) => return Err(Ended::Draining),
            }
        }
    }
}
