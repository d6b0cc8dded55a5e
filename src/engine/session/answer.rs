//! What is answered.

use std::sync::Arc;

use crate::{
    domain::{Action, Verdict},
    engine::Recorded,
};

pub(super) fn recorded(index: i32, verdict: Option<Arc<Verdict>>) -> Recorded {
    Recorded {
        index: Some(index),
        duplicate: false,
        is_news: verdict.is_some(),
        verdict,
    }
}

/// The answer to what is no event.
pub(super) fn unheard() -> Recorded {
    Recorded {
        index: None,
        duplicate: false,
        verdict: None,
        is_news: false,
    }
}

/// It ends what is being written: a BREAK or something stronger.
pub(super) fn stops_text(verdict: &Arc<Verdict>) -> bool {
    verdict.acted() >= Some(Action::Break)
}

pub(super) fn latched(verdict: Arc<Verdict>) -> Recorded {
    Recorded {
        index: None,
        duplicate: false,
        verdict: Some(verdict),
        is_news: false,
    }
}
