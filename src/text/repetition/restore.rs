//! Restores the state of a thawed text.
//!
//! A tracker freezes what it cannot compute from the rest. `restore` computes the rest and
//! checks what was frozen, because a damaged number could be used as an index or overflow.

use super::{RUN_BYTES_MAX, RepetitionTracker};
use crate::domain::RepetitionSettings;

/// No text is longer; a thawed position beyond it is damaged.
pub(super) const POSITION_MAX: u64 = 1 << 48;

impl RepetitionTracker {
    /// Computes what is not frozen. The settings are those with which the text was read.
    /// Returns false if the frozen part is inconsistent.
    pub fn restore(&mut self, settings: &RepetitionSettings) -> bool {
        let ahead_max = self.periods.total_bytes().min(RUN_BYTES_MAX as u64);
        self.chars <= POSITION_MAX
            && self.code_detector.is_consistent()
            && self.budget.is_consistent(self.chars)
            && self.period_ahead as u64 <= ahead_max
            && self.periods.restore()
            && self.words.restore()
            && self.sentences.is_consistent()
            && self.chunks.restore(settings)
    }
}

/// Whether a ring of `len` of at most `len_max` entries, of which `next` is replaced next,
/// was filled one by one.
pub(super) fn is_ring(len: usize, next: usize, len_max: usize) -> bool {
    if len < len_max {
        next == len
    } else {
        len == len_max && next < len_max
    }
}
