//! The answer to an event or a delta.

use std::sync::Arc;

use crate::domain::Verdict;

/// The answer to an event.
#[derive(Clone, Debug)]
pub struct RecordOutcome {
    /// `None`: the event was not counted. The session or agent is terminated, or
    /// it was a delta or the end of a turn that had reasoning only.
    pub index: Option<i32>,
    pub duplicate: bool,
    pub verdict: Option<Arc<Verdict>>,
    /// This event caused the verdict.
    pub is_new_verdict: bool,
}

impl RecordOutcome {
    /// The event was counted.
    pub(super) fn new_event(index: i32, new_verdict: Option<Arc<Verdict>>) -> Self {
        Self {
            index: Some(index),
            ..Self::not_counted(new_verdict)
        }
    }

    /// The input was not counted as an event.
    pub(super) fn not_counted(new_verdict: Option<Arc<Verdict>>) -> Self {
        Self {
            index: None,
            duplicate: false,
            is_new_verdict: new_verdict.is_some(),
            verdict: new_verdict,
        }
    }

    /// The event was recorded before, with this verdict.
    pub(super) fn duplicate(index: i32, verdict: Option<Arc<Verdict>>) -> Self {
        Self {
            index: Some(index),
            duplicate: true,
            verdict,
            is_new_verdict: false,
        }
    }

    /// The session or the agent was terminated before, by this verdict.
    pub(super) fn terminated(verdict: Option<Arc<Verdict>>) -> Self {
        Self {
            index: None,
            duplicate: false,
            verdict,
            is_new_verdict: false,
        }
    }

    /// A new verdict, if there is one, replaces the earlier one.
    pub(super) fn with_new_verdict(self, new_verdict: Option<Arc<Verdict>>) -> Self {
        Self {
            is_new_verdict: new_verdict.is_some(),
            verdict: new_verdict.or(self.verdict),
            ..self
        }
    }
}
