//! The types shared by all modules: an [`Event`] comes in, `facts` computes its
//! facts, the engine makes an [`Observation`] of them, a detector returns a
//! [`Finding`], the policy a decision, and the engine issues a [`Verdict`].
//!
//! Uses: std, serde, thiserror, smallvec (short lists), uuid (parsing), wide
//! (sixteen bytes at a time).

mod action;
mod capacity;
pub mod clock;
mod event;
mod finding;
mod frozen;
mod id;
mod lazy_box;
mod observation;
mod rating;
pub mod sanitize;
pub mod serde_array;
pub mod serde_time;
mod session;
mod standing;
mod tenant;
mod text_repetition;
mod timeline;
mod turn;
mod verdict;

pub use action::{Action, UnknownAction};
pub use capacity::{Capacities, Capacity};
pub use event::{
    Args, Channel, Cost, Delta, Event, EventBody, Marker, MarkerKind, Operation, Outcome, Role,
    ToolCall, Turn,
};
pub use finding::{
    DetectorId, DetectorOutcome, EscalationLevel, Finding, Precedence, missing_field_name,
};
pub use frozen::FrozenSession;
pub use id::{AgentId, IdError, LoopId, SessionId, VerdictId};
pub use lazy_box::{Empty, LazyBox};
pub use observation::{
    AnswerKind, CallFacts, CallKind, EventPosition, Observation, ObservationBody, ProgramWords,
    RuleOutcome, Sig, UsageDelta, WordHashes,
};
pub use rating::{Feedback, Rating};
pub use session::{Abstention, RestoredSummary, SessionStatus, SessionView, Totals};
pub use standing::{CallCheck, Standing};
pub use tenant::{Tenant, TenantKey};
pub use text_repetition::{RepetitionSettings, TextRepetition};
pub use timeline::{
    DetectorExplanation, SessionDetail, TimelineEntry, TimelineStep, TimelineStepKind, TrendSample,
    format_ranges,
};
pub use turn::{Phrase, PhraseId, PhraseMatch, Phrases, SimilarityMeasure, Sketch, TurnFacts};
pub use unstuck_client::CallKey;
pub use verdict::{
    BUDGET, ChainHash, ChainHead, Effect, EncodedRecord, Evidence, Level, LoopMember, OPERATOR,
    RecoveredState, Trend, Verdict, VerdictRecord, VerdictSink, Waste,
};

/// Key-value pairs that a broker or operator attaches to a session.
pub type Labels = std::collections::BTreeMap<String, String>;

/// Whether `labels` contains all of `wanted`.
pub fn has_labels(labels: &Labels, wanted: &Labels) -> bool {
    wanted
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

/// Bytes that the labels use in memory.
pub fn labels_bytes(labels: &Labels) -> usize {
    labels
        .iter()
        .map(|(key, value)| 2 * size_of::<String>() + key.len() + value.len())
        .sum()
}
