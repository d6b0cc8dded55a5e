use std::{sync::Arc, time::SystemTime};

use super::{Profile, Recorded, session::Session};
use crate::domain::{Cost, Labels, SessionId, SessionView, Status, Verdict, Waste};

/// A session's place in the map: live, or the tombstone of one that is over.
pub(super) enum Slot {
    Live(Box<Session>),
    Gone(Box<Tombstone>),
}

/// What stays of a session that was terminated or has ended.
pub(super) struct Tombstone {
    view: SessionView,
    /// 0: it is about to be replaced and stands in no queue or metric.
    generation: u64,
}

impl Slot {
    /// The place of an id that nobody has heard of, to be terminated.
    pub fn unknown(id: &SessionId, profile: &Arc<Profile>, now: SystemTime) -> Self {
        let session = Session::new(profile.clone(), Arc::default(), 0, now);
        let mut view = session.view(id);
        view.status = Status::Ended;
        Self::Gone(Box::new(Tombstone::new(view, 0)))
    }

    pub fn status(&self) -> Status {
        match self {
            Self::Live(session) => session.status(),
            Self::Gone(tombstone) => tombstone.view.status,
        }
    }

    /// Under which status it stands in the metrics, if any.
    pub fn counted_status(&self) -> Option<Status> {
        (self.generation() != 0).then(|| self.status())
    }

    pub fn is_ended(&self) -> bool {
        self.status() == Status::Ended
    }

    pub fn generation(&self) -> u64 {
        match self {
            Self::Live(session) => session.generation(),
            Self::Gone(tombstone) => tombstone.generation,
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

    pub fn view(&self, id: &SessionId) -> SessionView {
        match self {
            Self::Live(session) => session.view(id),
            Self::Gone(tombstone) => tombstone.view.clone(),
        }
    }
}

impl Tombstone {
    pub fn new(view: SessionView, generation: u64) -> Self {
        Self { view, generation }
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
