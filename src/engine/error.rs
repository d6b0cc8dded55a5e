//! Why the engine rejects an input or a configuration.

use std::time::Duration;

use thiserror::Error;
use uuid::Uuid;

use crate::telemetry::Rejection;

/// Why an event or a session is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    #[error(
        "the limit of {0} live sessions is reached (limits.sessions_max, or the tenant's share of it)"
    )]
    SessionsMax(usize),
    #[error(
        "limits.state_bytes_max, or the tenant's share of it, of {0} bytes of session state is nearly or fully used"
    )]
    StateBytesMax(usize),
    #[error("limits.agents_max of {0} agents in a session is reached")]
    AgentsMax(usize),
    /// The engine has no rates: the API refuses the event before it.
    #[error("limits.events_per_second_max of {per_second_max} events per second is exceeded")]
    EventsPerSecondMax {
        per_second_max: u32,
        /// When the next event would be accepted.
        retry_after: Duration,
    },
    /// The session panicked before.
    #[error(
        "the session is quarantined after a fault of the service, until it is reset; reference {0}"
    )]
    Quarantined(Uuid),
}

impl RecordError {
    pub fn rejection(self) -> Rejection {
        match self {
            Self::SessionsMax(_) => Rejection::SessionsMax,
            Self::StateBytesMax(_) => Rejection::StateBytesMax,
            Self::AgentsMax(_) => Rejection::AgentsMax,
            Self::EventsPerSecondMax { .. } => Rejection::EventsPerSecondMax,
            Self::Quarantined(_) => Rejection::Quarantined,
        }
    }
}

/// Why a session cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("the session is terminated; reset it first")]
    Terminated,
    #[error("unknown profile; known profiles: {0}")]
    NoProfile(String),
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Why a new configuration is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EngineReloadError {
    /// Counts, trends and metrics are indexed by the position of a rule.
    #[error("adding, removing, renaming or reordering [[rules]] needs a restart")]
    RulesChanged,
    /// Turns embedded by one model cannot be compared with those of another.
    #[error("changing detect.similar_turns.model needs a restart")]
    ModelChanged,
}
