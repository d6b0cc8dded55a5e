//! A session as bytes, to be stored or moved to another process.

use std::{sync::Arc, time::SystemTime};

use super::{Labels, SessionId};

/// The state of a session at one moment. Head and window begin with the version of their
/// layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenSession {
    pub id: SessionId,
    pub profile: Arc<str>,
    pub labels: Arc<Labels>,
    /// The arrival time of its latest input.
    pub last_seen: SystemTime,
    /// The state that later events cannot rebuild: counts, costs, the loops that were
    /// reported, recent event ids. It has no text of an agent.
    pub head: Vec<u8>,
    /// The recent observations of the detectors. It quotes agents. `None`: only the head was
    /// saved, and the detectors begin again.
    pub window: Option<Vec<u8>>,
}

impl FrozenSession {
    pub fn bytes(&self) -> usize {
        self.id.as_str().len() + self.head.len() + self.window.as_ref().map_or(0, Vec::len)
    }
}
