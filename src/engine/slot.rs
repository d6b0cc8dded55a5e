use std::sync::Arc;

use super::{Act, Profile, Recorded, expiry::Place, fleet::Plight, outbox, session::Session};
use crate::{
    domain::{
        Cost, Delta, Folded, Labels, SessionId, SessionView, Status, TimelineEntry, Verdict, Waste,
        labels_bytes,
    },
    text::Key,
};

/// A session's place in the map: live, or the tombstone of one that is over.
pub(super) enum Slot {
    Live(Box<Session>),
    Gone(Box<Tombstone>),
}

/// What stays of a session that was terminated or has ended.
pub(super) struct Tombstone {
    remains: Remains,
    place: Place,
    bytes: usize,
}

enum Remains {
    /// Of a session that was over since the service started.
    Whole(Box<SessionView>),
    /// Of one that was terminated before: a million of them must fit.
    Folded(Folded),
}

impl Slot {
    pub fn status(&self) -> Status {
        match self {
            Self::Live(session) => session.status(),
            Self::Gone(tombstone) => tombstone.status(),
        }
    }

    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Gone(tombstone) if tombstone.status() == Status::Ended)
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

    pub fn labels(&self, id: &SessionId) -> Arc<Labels> {
        match self {
            Self::Live(session) => session.labels().clone(),
            Self::Gone(tombstone) => tombstone.view(id).labels,
        }
    }

    pub fn profile_name(&self) -> &str {
        match self {
            Self::Live(session) => &session.profile().name,
            Self::Gone(tombstone) => tombstone.profile_name(),
        }
    }

    pub fn last_verdict(&self, id: &SessionId) -> Option<Arc<Verdict>> {
        match self {
            Self::Live(session) => session.last_verdict().cloned(),
            Self::Gone(tombstone) => tombstone.termination(id),
        }
    }

    /// How badly it is stuck.
    pub fn plight(&self) -> Plight {
        match self {
            Self::Live(session) => session.plight(),
            Self::Gone(tombstone) => tombstone.plight(),
        }
    }

    /// The profile of a session that is live.
    pub fn profile(&self) -> Option<&Arc<Profile>> {
        match self {
            Self::Live(session) => Some(session.profile()),
            Self::Gone(_) => None,
        }
    }

    /// The beginning of the text that this piece is the end of.
    pub fn written(&self, delta: &Delta, key: &Key) -> String {
        match self {
            Self::Live(session) => session.written(delta, key),
            Self::Gone(_) => String::new(),
        }
    }

    /// The verdicts that ended it or agents of it.
    pub fn terminations(&self, id: &SessionId) -> Vec<Arc<Verdict>> {
        match self {
            Self::Live(session) => session.terminations(),
            Self::Gone(tombstone) => tombstone.termination(id).into_iter().collect(),
        }
    }

    /// Its latest events; nothing where it is over (`keepsakes` may have them).
    pub fn timeline(&self) -> Vec<TimelineEntry> {
        match self {
            Self::Live(session) => session.timeline(),
            Self::Gone(_) => Vec::new(),
        }
    }

    pub fn view(&self, id: &SessionId) -> SessionView {
        match self {
            Self::Live(session) => session.view(id),
            Self::Gone(tombstone) => tombstone.view(id),
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
        view.snoozed_until = None;
        view.verdicts = view.termination.iter().cloned().collect();
        let verdicts: usize = view.verdicts.iter().map(|verdict| verdict.bytes()).sum();
        let bytes =
            size_of::<Self>() + size_of::<SessionView>() + labels_bytes(&view.labels) + verdicts;
        let bytes = bytes_with(&view.id, bytes);
        Self {
            remains: Remains::Whole(Box::new(view)),
            place,
            bytes,
        }
    }

    /// Of a session that was terminated before the service started.
    pub fn folded(id: &SessionId, folded: Folded, place: Place) -> Self {
        Self {
            bytes: bytes_with(id, size_of::<Self>() + folded.record.len()),
            remains: Remains::Folded(folded),
            place,
        }
    }

    pub fn place(&self) -> Place {
        self.place
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn status(&self) -> Status {
        match &self.remains {
            Remains::Whole(view) => view.status,
            Remains::Folded(_) => Status::Terminated,
        }
    }

    fn plight(&self) -> Plight {
        match &self.remains {
            Remains::Whole(view) => {
                Plight::new(view.status, 0.0, view.wasted, view.termination.as_deref())
            }
            Remains::Folded(folded) => Plight::terminated(folded.id),
        }
    }

    /// Empty where it would have to be unfolded.
    fn profile_name(&self) -> &str {
        match &self.remains {
            Remains::Whole(view) => &view.profile,
            Remains::Folded(_) => "",
        }
    }

    fn view(&self, id: &SessionId) -> SessionView {
        match &self.remains {
            Remains::Whole(view) => (**view).clone(),
            Remains::Folded(folded) => unfolded(id, folded),
        }
    }

    pub fn termination(&self, id: &SessionId) -> Option<Arc<Verdict>> {
        match &self.remains {
            Remains::Whole(view) => view.termination.clone(),
            Remains::Folded(folded) => unfolded(id, folded).termination,
        }
    }

    /// The answer to everything that is sent to a terminated session.
    pub fn latched(&self, id: &SessionId) -> Recorded {
        Recorded {
            index: None,
            duplicate: false,
            verdict: self.termination(id),
            is_news: false,
        }
    }

    /// Answers an event; had the termination been heeded, it would not have
    /// cost anything.
    pub fn refuse(&mut self, id: &SessionId, cost: Cost) -> Recorded {
        if let Remains::Whole(view) = &mut self.remains {
            view.avoidable += Waste::of(1, cost);
        }
        self.latched(id)
    }
}

/// What a slot takes beside what it holds: its entry in the map, half of which
/// is empty, its place in a queue, and the head of its id.
const OWN_BYTES: usize = 256;

/// What a slot takes in all, when it holds so much. The allocator rounds up by an
/// eighth. Measured: with these the process grows by what is counted.
pub(super) fn bytes_with(id: &SessionId, held: usize) -> usize {
    held + held / 8 + id.as_str().len() + OWN_BYTES
}

/// What the record of a termination tells of its session.
fn unfolded(id: &SessionId, folded: &Folded) -> SessionView {
    let time = folded.id.time();
    let Some(issued) = folded.open() else {
        // Written by a later version, perhaps. It is over all the same.
        let act = Act {
            reason: "terminated before the service started",
            operator: "unknown",
        };
        let verdict = Verdict {
            id: folded.id,
            durable: true,
            ..outbox::termination(id, &act, time)
        };
        return terminated(
            SessionView::unheard_of(id, &"default".into(), time),
            Arc::new(verdict),
        );
    };
    let view = SessionView {
        labels: issued.labels,
        ..SessionView::unheard_of(id, &issued.profile, time)
    };
    terminated(view, issued.verdict)
}

fn terminated(view: SessionView, verdict: Arc<Verdict>) -> SessionView {
    SessionView {
        status: Status::Terminated,
        events: verdict
            .event_index
            .map_or(0, |index| index.saturating_add(1)),
        wasted: verdict.wasted,
        verdicts: vec![verdict.clone()],
        termination: Some(verdict),
        ..view
    }
}
