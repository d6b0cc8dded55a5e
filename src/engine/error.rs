use thiserror::Error;
use uuid::Uuid;

use crate::telemetry::Rejection;

/// Why an event or a session was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    #[error("limits.sessions_max, or the tenant's share of it, of {0} live sessions is reached")]
    SessionsMax(usize),
    #[error(
        "limits.state_bytes_max, or the tenant's share of it, of {0} bytes of session state is nearly or wholly used"
    )]
    StateBytesMax(usize),
    #[error("limits.agents_max of {0} agents in a session is reached")]
    AgentsMax(usize),
    /// A fault of ours struck in the session before.
    #[error(
        "a fault of the service struck in this session, which is not watched until it is reset; reference {0}"
    )]
    Quarantined(Uuid),
}

impl RecordError {
    pub fn rejection(self) -> Rejection {
        match self {
            Self::SessionsMax(_) => Rejection::SessionsMax,
            Self::StateBytesMax(_) => Rejection::StateBytesMax,
            Self::AgentsMax(_) => Rejection::AgentsMax,
            Self::Quarantined(_) => Rejection::Quarantined,
        }
    }
}

/// Why a session could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("the session is terminated; reset it first")]
    Terminated,
    #[error("there is no such profile; there are {0}")]
    NoProfile(String),
    #[error(transparent)]
    Record(#[from] RecordError),
}
