use thiserror::Error;
use uuid::Uuid;

use crate::telemetry::Rejection;

/// Why an event or a session was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    #[error("limits.sessions_max, or the tenant's share of it, of {0} live sessions is reached")]
    Sessions(usize),
    #[error(
        "limits.state_bytes_max, or the tenant's share of it, of {0} bytes of session state is nearly or wholly used"
    )]
    Bytes(usize),
    #[error("limits.agents_max of {0} agents in a session is reached")]
    Agents(usize),
    /// A fault of ours struck in the session before.
    #[error(
        "a fault of the service struck in this session, which is not watched until it is reset; reference {0}"
    )]
    Quarantined(Uuid),
}

impl Refused {
    pub fn rejection(self) -> Rejection {
        match self {
            Self::Sessions(_) => Rejection::SessionsMax,
            Self::Bytes(_) => Rejection::StateBytesMax,
            Self::Agents(_) => Rejection::AgentsMax,
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
    Refused(#[from] Refused),
}
