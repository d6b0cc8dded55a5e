//! The words of the house, each with one meaning: an [`Event`] comes in, facts
//! turn it into an [`Observation`], a detector finds a [`Finding`], the policy
//! judges and gives a [`Verdict`], the broker acts.
//!
//! Uses: std, serde, thiserror, smallvec (short lists), uuid (parsing), wide
//! (sixteen bytes at a time).

mod action;
pub mod clock;
mod event;
mod finding;
mod id;
mod observation;
mod repeated;
mod room;
mod session;
mod tenant;
pub mod text;
mod timeline;
mod turn;
mod verdict;

pub use action::{Action, UnknownAction};
pub use event::{
    Args, Body, Channel, Cost, Delta, Event, Marker, MarkerKind, Operation, Outcome, Role,
    ToolCall, Turn,
};
pub use finding::{Bar, DetectorId, Finding, Look, Precedence};
pub use id::{AgentId, IdError, LoopId, SessionId, VerdictId};
pub use observation::{
    CallFacts, CallKind, Moment, Observation, RuleSight, Seen, Sig, Used, WordHashes,
};
pub use repeated::{RepeatSettings, Repeated};
pub use room::{Remembered, Room, Rooms};
pub use session::{Abstention, SessionView, Status, Totals};
pub use tenant::{Tenant, TenantKey};
pub use timeline::{Explained, SessionDetail, Step, StepKind, TimelineEntry, TrendSample, ranges};
pub use turn::{Heard, Measure, Phrase, PhraseId, Phrases, Sketch, TurnFacts};
pub use verdict::{
    Effect, Evidence, Folded, Issued, Level, Member, OPERATOR, Outlet, Standing, Trend, Verdict,
    Waste,
};

/// What a broker or operator says of a session.
pub type Labels = std::collections::BTreeMap<String, String>;

/// The labels hold all that are wanted.
pub fn has_labels(labels: &Labels, wanted: &Labels) -> bool {
    wanted
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

/// What labels take in memory.
pub fn labels_bytes(labels: &Labels) -> usize {
    labels
        .iter()
        .map(|(key, value)| 2 * size_of::<String>() + key.len() + value.len())
        .sum()
}
