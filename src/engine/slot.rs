use std::sync::Arc;

use super::{Recorded, expiry::Place, session::Session};
use crate::domain::{
    Cost, Labels, SessionId, SessionView, Status, TimelineEntry, Verdict, Waste, labels_bytes,
};

/// A session's place in the map: live, or the tombstone of one that is over.
pub(super) enum Slot {
    Live(Box<Session>),
    Gone(Box<Tombstone>),
}

/// What stays of a session that was terminated or has ended.
pub(super) struct Tombstone {
    view: SessionView,
    place: Place,
    bytes: usize,
}

impl Slot {
    pub fn status(&self) -> Status {
        match self {
            Self::Live(session) => session.status(),
            Self::Gone(tombstone) => tombstone.view.status,
        }
    }

    pub fn is_ended(&self) -> bool {
        self.status() == Status::Ended
    }

    pub fn generation(&self) -> u64 {
        match self {
            Self::Live(session) => session.place().generation,
            Self::Gone(tombstone) => tombstone.place.generation,
        }
    }

    /// What it was last counted with.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Live(session) => session.accounted_bytes(),
            Self::Gone(tombstone) => tombstone.bytes,
        }
    }

    pub fn labels(&self) -> &Labels {
        match self {
            Self::Live(session) => session.labels(),
            Self::Gone(tombstone) => &tombstone.view.labels,
        }
    }

    /// The verdicts that ended it or agents of it.
    pub fn terminations(&self) -> Vec<Arc<Verdict>> {
        match self {
            Self::Live(session) => session.terminations(),
            Self::Gone(tombstone) => tombstone.view.termination.iter().cloned().collect(),
        }
    }

    /// Its latest events; nothing where it is over.
    pub fn timeline(&self) -> Vec<TimelineEntry> {
        match self {
            Self::Live(session) => session.timeline(),
            Self::Gone(_) => Vec::new(),
        }
    }

    pub fn view(&self, id: &SessionId) -> SessionView {
        match self {
            Self::Live(session) => session.view(id),
            Self::Gone(tombstone) => tombstone.view.clone(),
        }
    }
}

impl Tombstone {
    /// Keeps what a later question is about: how the session ended. What it had
    /// learned was told when it ended.
    pub fn new(mut view: SessionView, place: Place) -> Self {
        view.trends = Vec::new();
        view.trend_samples = Vec::new();
        view.abstentions = Vec::new();
        view.verdicts = view.termination.iter().cloned().collect();
        let verdicts: usize = view.verdicts.iter().map(|verdict| verdict.bytes()).sum();
        let bytes =
            size_of::<Self>() + view.id.as_str().len() + labels_bytes(&view.labels) + verdicts;
        Self { view, place, bytes }
    }

    pub fn place(&self) -> Place {
        self.place
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The answer to everything that is sent to a terminated session.
    pub fn latched(&self) -> Recorded {
        Recorded {
            index: None,
            duplicate: false,
            verdict: self.view.termination.clone(),
        }
    }

    /// Answers an event; had the termination been heeded, it would not have
    /// cost anything.
    pub fn refuse(&mut self, cost: Cost) -> Recorded {
        self.view.avoidable += Waste::of(1, cost);
        self.latched()
    }
}
