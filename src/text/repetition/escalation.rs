//! How a repetition that goes on is raised: soft when it is found, hard and
//! final after it has gone on for some further amount of text.

use serde::{Deserialize, Serialize};

use crate::domain::EscalationLevel;

/// One repetition that is going on. The default is none.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct LoopEscalation {
    /// For how much text it has gone on since it was found, in the tracker's own unit
    /// (characters, words or sentences). `None`: nothing is going on.
    elapsed: Option<u32>,
    reported: Option<EscalationLevel>,
}

/// The amounts after which a repetition is hard and final.
#[derive(Clone, Copy)]
pub(super) struct EscalationSteps {
    pub hard: u32,
    pub last: u32,
}

impl LoopEscalation {
    pub fn is_active(&self) -> bool {
        self.elapsed.is_some()
    }

    /// The repetition goes on by `amount`; the first call starts it at 0. Returns the
    /// level it is on.
    pub fn advance(&mut self, amount: u32, steps: EscalationSteps) -> EscalationLevel {
        let elapsed = self
            .elapsed
            .map_or(0, |so_far| so_far.saturating_add(amount));
        self.elapsed = Some(elapsed);
        if elapsed >= steps.last {
            EscalationLevel::Final
        } else if elapsed >= steps.hard {
            EscalationLevel::Hard
        } else {
            EscalationLevel::Soft
        }
    }

    /// Marks a level as reported. Returns false if it or a stronger one already was.
    pub fn report(&mut self, level: EscalationLevel) -> bool {
        let is_new = Some(level) > self.reported;
        self.reported = self.reported.max(Some(level));
        is_new
    }
}
