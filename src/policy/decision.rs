use std::time::Duration;

use smallvec::SmallVec;

use crate::domain::{Action, DetectorId, Evidence, LoopId, Sig, Trend, Waste};

/// What to say about an event.
#[derive(Debug)]
pub struct Decision {
    pub detector: DetectorId,
    pub other_detectors: Vec<DetectorId>,
    pub action: Action,
    /// The action is asked of the whole session, not of the agent.
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
}

impl Decision {
    /// What it takes in memory, while it is held back.
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
