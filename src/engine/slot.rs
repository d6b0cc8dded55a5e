//! An entry of the session map.

use std::sync::Arc;

use super::{Profile, closed::Tombstone, query::Severity, session::Session};
use crate::{
    domain::{Delta, Labels, SessionId, SessionStatus, SessionView, TimelineEntry, Verdict},
    text::HashKey,
};

/// A live session, or the tombstone of a closed session.
pub(super) enum Slot {
    Live(Box<Session>),
    Closed(Box<Tombstone>),
}

impl Slot {
    pub fn status(&self) -> SessionStatus {
        match self {
            Self::Live(session) => session.status(),
            Self::Closed(tombstone) => tombstone.status(),
        }
    }

    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Closed(tombstone) if tombstone.status() == SessionStatus::Ended)
    }

    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(_))
    }

    pub fn generation(&self) -> u64 {
        match self {
            Self::Live(session) => session.deadline_key().generation,
            Self::Closed(tombstone) => tombstone.deadline_key().generation,
        }
    }

    /// Bytes by the last accounting.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Live(session) => session.accounted_bytes(),
            Self::Closed(tombstone) => tombstone.bytes(),
        }
    }

    pub fn labels(&self, id: &SessionId) -> Arc<Labels> {
        match self {
            Self::Live(session) => session.labels().clone(),
            Self::Closed(tombstone) => tombstone.view(id).labels,
        }
    }

    pub fn profile_name(&self) -> &str {
        match self {
            Self::Live(session) => &session.profile().name,
            Self::Closed(tombstone) => tombstone.profile_name(),
        }
    }

    pub fn last_verdict(&self, id: &SessionId) -> Option<Arc<Verdict>> {
        match self {
            Self::Live(session) => session.last_verdict().cloned(),
            Self::Closed(tombstone) => tombstone.termination(id),
        }
    }

    pub fn severity(&self) -> Severity {
        match self {
            Self::Live(session) => session.severity(),
            Self::Closed(tombstone) => tombstone.severity(),
        }
    }

    /// The profile of a live session.
    pub fn profile(&self) -> Option<&Arc<Profile>> {
        match self {
            Self::Live(session) => Some(session.profile()),
            Self::Closed(_) => None,
        }
    }

    /// The beginning of the text that this delta ends.
    pub fn draft_text(&self, delta: &Delta, key: &HashKey) -> String {
        match self {
            Self::Live(session) => session.draft_text(delta, key),
            Self::Closed(_) => String::new(),
        }
    }

    /// The verdicts that terminated the session or agents of it.
    pub fn terminations(&self, id: &SessionId) -> Vec<Arc<Verdict>> {
        match self {
            Self::Live(session) => session.terminations(),
            Self::Closed(tombstone) => tombstone.termination(id).into_iter().collect(),
        }
    }

    /// The latest events; empty if the session is closed (its post-mortem may have
    /// them).
    pub fn timeline(&self) -> Vec<TimelineEntry> {
        match self {
            Self::Live(session) => session.timeline(),
            Self::Closed(_) => Vec::new(),
        }
    }

    pub fn view(&self, id: &SessionId) -> SessionView {
        match self {
            Self::Live(session) => session.view(id),
            Self::Closed(tombstone) => tombstone.view(id),
        }
    }
}

/// Memory of a slot beside its content: its entry in the map, half of which is
/// empty, its entry in a queue, and the header of its id.
const SLOT_OVERHEAD_BYTES: usize = 256;

/// Memory of a slot with this content. The allocator rounds up by an eighth.
/// Measured: with these numbers the process grows by what is accounted.
pub(super) fn slot_bytes(id: &SessionId, content_bytes: usize) -> usize {
    content_bytes + content_bytes / 8 + id.as_str().len() + SLOT_OVERHEAD_BYTES
}
