//! What is answered.

use std::sync::Arc;

use crate::{
    domain::{Action, Verdict},
    engine::RecordOutcome,
};

pub(super) fn new_event_outcome(index: i32, verdict: Option<Arc<Verdict>>) -> RecordOutcome {
    RecordOutcome {
        index: Some(index),
        duplicate: false,
        is_new_verdict: verdict.is_some(),
        verdict,
    }
}

/// The answer to what is no event.
pub(super) fn no_event_outcome() -> RecordOutcome {
    RecordOutcome {
        index: None,
        duplicate: false,
        verdict: None,
        is_new_verdict: false,
    }
}

/// It ends what is being written: a BREAK or something stronger.
pub(super) fn stops_text(verdict: &Arc<Verdict>) -> bool {
    verdict.effective_action() >= Some(Action::Break)
}

pub(super) fn terminated_outcome(verdict: Arc<Verdict>) -> RecordOutcome {
    RecordOutcome {
        index: None,
        duplicate: false,
        verdict: Some(verdict),
        is_new_verdict: false,
    }
}
