//! The answer to an event or a delta.

use std::sync::Arc;

use crate::domain::{Action, Standing, Verdict};

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
    /// The action in force for the agent after the event.
    pub standing: Option<Standing>,
    /// The input was sent to a terminated session or agent.
    pub after_termination: bool,
    /// The session is known, but its state was lost at a restart.
    pub state_lost: bool,
}

impl RecordOutcome {
    /// What the broker must do.
    pub fn action(&self) -> Option<Action> {
        self.verdict.as_deref().and_then(Verdict::effective_action)
    }

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
            standing: None,
            after_termination: false,
            state_lost: false,
        }
    }

    /// The event was recorded before, with this verdict.
    pub(super) fn duplicate(index: i32, verdict: Option<Arc<Verdict>>) -> Self {
        Self {
            index: Some(index),
            duplicate: true,
            is_new_verdict: false,
            ..Self::not_counted(verdict)
        }
    }

    /// The session or the agent was terminated before, by this verdict.
    pub(super) fn terminated(verdict: Option<Arc<Verdict>>) -> Self {
        Self {
            is_new_verdict: false,
            after_termination: true,
            standing: verdict.as_deref().and_then(Standing::of_termination),
            ..Self::not_counted(verdict)
        }
    }

    /// The event was recorded before the termination.
    pub(super) fn sent_again(self) -> Self {
        Self {
            after_termination: false,
            ..self
        }
    }

    /// Adds the action in force for the agent; after a termination that is the termination.
    pub(super) fn with_standing(self, standing: Option<Standing>) -> Self {
        let verdict = self.verdict.as_deref();
        Self {
            standing: verdict.and_then(Standing::of_termination).or(standing),
            ..self
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
