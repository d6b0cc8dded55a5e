use std::sync::Arc;

use super::{
    OperatorRequest, Profile, RecordOutcome, expiry::DeadlineKey, fleet::Severity, issuer,
    session::Session,
};
use crate::{
    domain::{
        Cost, Delta, EncodedRecord, Labels, SessionId, SessionStatus, SessionView, TimelineEntry,
        Verdict, Waste, labels_bytes,
    },
    text::HashKey,
};

/// A session's place in the map: live, or the tombstone of one that is over.
pub(super) enum Slot {
    Live(Box<Session>),
    Closed(Box<Tombstone>),
}

/// What stays of a session that was terminated or has ended.
pub(super) struct Tombstone {
    content: TombstoneContent,
    deadline_key: DeadlineKey,
    bytes: usize,
}

enum TombstoneContent {
    /// Of a session that was over since the service started.
    Full(Box<SessionView>),
    /// Of one that was terminated before: a million of them must fit.
    Encoded(EncodedRecord),
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

    pub fn generation(&self) -> u64 {
        match self {
            Self::Live(session) => session.deadline_key().generation,
            Self::Closed(tombstone) => tombstone.deadline_key.generation,
        }
    }

    /// What it was last counted with.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Live(session) => session.accounted_bytes(),
            Self::Closed(tombstone) => tombstone.bytes,
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

    /// How badly it is stuck.
    pub fn severity(&self) -> Severity {
        match self {
            Self::Live(session) => session.severity(),
            Self::Closed(tombstone) => tombstone.severity(),
        }
    }

    /// The profile of a session that is live.
    pub fn profile(&self) -> Option<&Arc<Profile>> {
        match self {
            Self::Live(session) => Some(session.profile()),
            Self::Closed(_) => None,
        }
    }

    /// The beginning of the text that this piece is the end of.
    pub fn draft_text(&self, delta: &Delta, key: &HashKey) -> String {
        match self {
            Self::Live(session) => session.draft_text(delta, key),
            Self::Closed(_) => String::new(),
        }
    }

    /// The verdicts that ended it or agents of it.
    pub fn terminations(&self, id: &SessionId) -> Vec<Arc<Verdict>> {
        match self {
            Self::Live(session) => session.terminations(),
            Self::Closed(tombstone) => tombstone.termination(id).into_iter().collect(),
        }
    }

    /// Its latest events; nothing where it is over (`keepsakes` may have them).
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

impl Tombstone {
    /// Keeps what a later question is about: how the session ended. What it had
    /// learned was told when it ended.
    pub fn new(mut view: SessionView, key: DeadlineKey) -> Self {
        view.trends = Vec::new();
        view.trend_samples = Vec::new();
        view.abstentions = Vec::new();
        view.snoozed_until = None;
        view.verdicts = view.termination.iter().cloned().collect();
        let verdicts: usize = view
            .verdicts
            .iter()
            .map(|verdict| verdict.memory_bytes())
            .sum();
        let bytes =
            size_of::<Self>() + size_of::<SessionView>() + labels_bytes(&view.labels) + verdicts;
        let bytes = slot_bytes(&view.id, bytes);
        Self {
            content: TombstoneContent::Full(Box::new(view)),
            deadline_key: key,
            bytes,
        }
    }

    /// Of a session that was terminated before the service started.
    pub fn from_encoded(id: &SessionId, encoded: EncodedRecord, key: DeadlineKey) -> Self {
        Self {
            bytes: slot_bytes(id, size_of::<Self>() + encoded.bytes.len()),
            content: TombstoneContent::Encoded(encoded),
            deadline_key: key,
        }
    }

    pub fn deadline_key(&self) -> DeadlineKey {
        self.deadline_key
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn status(&self) -> SessionStatus {
        match &self.content {
            TombstoneContent::Full(view) => view.status,
            TombstoneContent::Encoded(_) => SessionStatus::Terminated,
        }
    }

    fn severity(&self) -> Severity {
        match &self.content {
            TombstoneContent::Full(view) => {
                Severity::new(view.status, 0.0, view.wasted, view.termination.as_deref())
            }
            TombstoneContent::Encoded(encoded) => Severity::of_termination(encoded.id),
        }
    }

    /// Empty where it would have to be unfolded.
    fn profile_name(&self) -> &str {
        match &self.content {
            TombstoneContent::Full(view) => &view.profile,
            TombstoneContent::Encoded(_) => "",
        }
    }

    fn view(&self, id: &SessionId) -> SessionView {
        match &self.content {
            TombstoneContent::Full(view) => (**view).clone(),
            TombstoneContent::Encoded(encoded) => decode_view(id, encoded),
        }
    }

    pub fn termination(&self, id: &SessionId) -> Option<Arc<Verdict>> {
        match &self.content {
            TombstoneContent::Full(view) => view.termination.clone(),
            TombstoneContent::Encoded(encoded) => decode_view(id, encoded).termination,
        }
    }

    /// The answer to everything that is sent to a terminated session.
    pub fn terminated_outcome(&self, id: &SessionId) -> RecordOutcome {
        RecordOutcome {
            index: None,
            duplicate: false,
            verdict: self.termination(id),
            is_new_verdict: false,
        }
    }

    /// Answers an event; had the termination been heeded, it would not have
    /// cost anything.
    pub fn reject_event(&mut self, id: &SessionId, cost: Cost) -> RecordOutcome {
        if let TombstoneContent::Full(view) = &mut self.content {
            view.avoidable += Waste::new(1, cost);
        }
        self.terminated_outcome(id)
    }
}

/// What a slot takes beside what it holds: its entry in the map, half of which
/// is empty, its place in a queue, and the head of its id.
const SLOT_OVERHEAD_BYTES: usize = 256;

/// What a slot takes in all, when it holds so much. The allocator rounds up by an
/// eighth. Measured: with these the process grows by what is counted.
pub(super) fn slot_bytes(id: &SessionId, content_bytes: usize) -> usize {
    content_bytes + content_bytes / 8 + id.as_str().len() + SLOT_OVERHEAD_BYTES
}

/// What the record of a termination tells of its session.
fn decode_view(id: &SessionId, encoded: &EncodedRecord) -> SessionView {
    let time = encoded.id.time();
    let Some(record) = encoded.decode() else {
        // Written by a later version, perhaps. It is over all the same.
        let request = OperatorRequest {
            reason: "terminated before the service started",
            operator: "unknown",
        };
        let verdict = Verdict {
            id: encoded.id,
            durable: true,
            ..issuer::termination_verdict(id, &request, time)
        };
        return terminated_view(
            SessionView::unknown(id, &"default".into(), time),
            Arc::new(verdict),
        );
    };
    let view = SessionView {
        labels: record.labels,
        ..SessionView::unknown(id, &record.profile, time)
    };
    terminated_view(view, record.verdict)
}

fn terminated_view(view: SessionView, verdict: Arc<Verdict>) -> SessionView {
    SessionView {
        status: SessionStatus::Terminated,
        events: verdict
            .event_index
            .map_or(0, |index| index.saturating_add(1)),
        wasted: verdict.wasted,
        verdicts: vec![verdict.clone()],
        termination: Some(verdict),
        ..view
    }
}
