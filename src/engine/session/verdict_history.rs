//! Verdicts and the state that goes with them, which few sessions have.

use std::{collections::VecDeque, sync::Arc, time::SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::domain::{Empty, Level, LoopId, Verdict, Waste};

/// A termination that the breaker turned into a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WithheldTermination {
    pub loop_id: LoopId,
    /// The session's number of events at which the loop may be terminated although the
    /// breaker is open: it has then gone on for as many events again.
    pub enforced_from: i32,
}

#[derive(Default)]
pub(super) struct VerdictHistory {
    /// Oldest first: the last few, and all that a duplicate may be answered with.
    pub verdicts: VecDeque<Arc<Verdict>>,
    pub verdicts_bytes: usize,
    /// The number of verdicts beside the last few that the last prune retained.
    pub retained_after_prune: usize,
    pub wasted: Waste,
    pub avoidable: Waste,
    /// By detector: the level that the trend metrics count for this session.
    pub trend_levels: Vec<Option<Level>>,
    pub termination: Option<Arc<Verdict>>,
    /// Verdicts are `shadow` until this time.
    pub snoozed_until: Option<SystemTime>,
    /// The breaker withheld a termination of this session.
    pub withheld_termination: Option<WithheldTermination>,
    /// The session panicked and is not watched. The reference is in the log.
    pub quarantine: Option<Uuid>,
    /// The session is in its tenant's queue of sessions with verdicts.
    pub is_queued_with_verdicts: bool,
}

const NO_WASTE: Waste = Waste {
    events: 0,
    tokens: 0,
    cached_tokens: 0,
    usd: 0.0,
};

impl Empty for VerdictHistory {
    const EMPTY: &'static Self = &Self {
        verdicts: VecDeque::new(),
        verdicts_bytes: 0,
        retained_after_prune: 0,
        wasted: NO_WASTE,
        avoidable: NO_WASTE,
        trend_levels: Vec::new(),
        termination: None,
        snoozed_until: None,
        withheld_termination: None,
        quarantine: None,
        is_queued_with_verdicts: false,
    };
}

impl VerdictHistory {
    pub fn heap_bytes(&self) -> usize {
        self.verdicts_bytes
            + self.verdicts.capacity() * size_of::<Arc<Verdict>>()
            + self.trend_levels.capacity() * size_of::<Option<Level>>()
    }
}
