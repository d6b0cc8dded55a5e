//! The decision of the policy on an event.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::domain::{Action, DetectorId, Evidence, LoopId, Sig, Trend, Waste};

/// The report about a loop on an event.
#[derive(Debug, Serialize, Deserialize)]
pub struct Decision {
    pub detector: DetectorId,
    pub other_detectors: Vec<DetectorId>,
    pub action: Action,
    /// The action is for the whole session, not for the agent.
    pub is_session_wide: bool,
    pub reason: String,
    pub confidence: f64,
    pub loop_id: LoopId,
    /// The loop's distinct calls.
    pub calls: SmallVec<[Sig; 4]>,
    pub trend: Option<Trend>,
    pub evidence: Evidence,
    pub wasted: Waste,
    pub retry_after: Option<Duration>,
    /// The refused calls of the loop, if they are why it is reported; else 0.
    pub refusals: u32,
}

impl Decision {
    /// Memory of a deferred decision.
    pub(super) fn bytes(&self) -> usize {
        let Evidence {
            event_indexes,
            excerpt,
            ..
        } = &self.evidence;
        size_of::<Self>()
            + self.other_detectors.capacity() * size_of::<DetectorId>()
            + self.reason.capacity()
            + event_indexes.capacity() * size_of::<i32>()
            + excerpt.capacity()
    }
}
