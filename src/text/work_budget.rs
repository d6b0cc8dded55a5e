//! The bound on the work that a text may cause.
//!
//! A part of the work on a text is the same for every byte of every text and needs no
//! counter. The rest (following, verifying and measuring a period, searching a window,
//! comparing a sentence, reporting a finding) depends on the text, and a text can be
//! written so that it happens at every byte. That work is paid for in units from a
//! [`WorkBudget`] before it is done; without enough units it is skipped.
//!
//! The budget fills by the bytes of the text, so whether a step is affordable depends
//! on the text up to it and on nothing else: not on the time, and not on how the text
//! is cut into pieces.

use serde::{Deserialize, Serialize};

/// The budget for periods. Rows of JSON, the costliest ordinary text, cause 20 units a
/// byte: what is saved up pays for the first 8 KiB, and after that only rows that are
/// equal, which cost less, are still followed.
pub(crate) type PeriodBudget = WorkBudget<12>;
/// The budget for words, sentences, chunks and reports.
pub(crate) type TextBudget = WorkBudget<12>;

/// The work that a text may still cause. One unit is ten to thirty instructions, counted
/// on the costliest texts known (`benches/counts.rs`).
///
/// A text of `n` bytes consumes at most [`Self::BURST`] + `n` · `PER_BYTE` units.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct WorkBudget<const PER_BYTE: u32> {
    units: u32,
    /// The position in the text up to which the budget has been filled.
    filled_to: u64,
    /// Units consumed since the text began, or since it was thawed.
    #[serde(skip)]
    consumed: u64,
    /// A step was not affordable since this was last asked, which is after each piece.
    #[serde(skip)]
    is_limited: bool,
}

impl<const PER_BYTE: u32> Default for WorkBudget<PER_BYTE> {
    fn default() -> Self {
        Self {
            units: Self::BURST,
            filled_to: 0,
            consumed: 0,
            is_limited: false,
        }
    }
}

impl<const PER_BYTE: u32> WorkBudget<PER_BYTE> {
    /// The most units that can be saved up: about 650,000 instructions. A loop that is
    /// found and reported consumes some hundreds to thousands; one with the longest
    /// period about 50,000.
    pub const BURST: u32 = 65_536;
    /// The units that each byte of the text adds.
    pub const PER_BYTE: u32 = PER_BYTE;

    /// Consumes units at a position of the text. Returns false, and consumes nothing,
    /// if there are too few: the caller skips the step.
    pub fn consume(&mut self, position: u64, units: u32) -> bool {
        let bytes = position.saturating_sub(self.filled_to);
        let earned = bytes
            .saturating_mul(PER_BYTE.into())
            .min(Self::BURST.into());
        self.units = (self.units + earned as u32).min(Self::BURST);
        self.filled_to = self.filled_to.max(position);
        let is_affordable = units <= self.units;
        if is_affordable {
            self.units -= units;
            self.consumed += u64::from(units);
        } else {
            self.is_limited = true;
        }
        is_affordable
    }

    /// Returns units that were consumed in advance and not used.
    pub fn refund(&mut self, units: u32) {
        self.units += units;
        self.consumed -= u64::from(units);
    }

    /// The budget of the text that follows in the same turn, from its position 0.
    pub fn restart(&mut self) {
        self.filled_to = 0;
    }

    /// Units consumed so far.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Whether a thawed budget can be one of a text that has been read up to `position`.
    pub fn is_consistent(&self, position: u64) -> bool {
        self.units <= Self::BURST && self.filled_to <= position
    }

    /// Whether a step was skipped since this was last asked.
    pub fn take_limited(&mut self) -> bool {
        std::mem::take(&mut self.is_limited)
    }
}

/// Counts the steps of the loops that units pay for, in unit tests only: that the units
/// consumed are bounded says nothing unless they pay for the steps.
pub(crate) mod steps {
    #[cfg(test)]
    thread_local! {
        static COUNT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// A step is about ten instructions, like a unit.
    #[inline(always)]
    pub fn count(steps: usize) {
        #[cfg(test)]
        COUNT.set(COUNT.get() + steps as u64);
        let _ = steps;
    }

    /// The steps since this was last asked.
    #[cfg(test)]
    pub fn take() -> u64 {
        COUNT.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_units_consumed_are_bounded_by_the_bytes() {
        let mut budget = TextBudget::default();
        for position in 1..=100_000 {
            while budget.consume(position, 7) {}
            assert!(
                budget.consumed()
                    <= u64::from(TextBudget::BURST) + position * u64::from(TextBudget::PER_BYTE)
            );
        }
        assert!(budget.take_limited());
        assert!(!budget.take_limited());
    }

    #[test]
    fn units_are_not_saved_up_beyond_a_burst() {
        let mut budget = TextBudget::default();
        assert!(budget.consume(1_000_000_000, TextBudget::BURST));
        assert!(!budget.consume(1_000_000_000, 1));
        assert!(budget.consume(1_000_000_001, TextBudget::PER_BYTE));
    }

    #[test]
    fn refunded_units_can_be_consumed_again() {
        let mut budget = TextBudget::default();
        assert!(budget.consume(0, TextBudget::BURST));
        budget.refund(100);
        assert!(!budget.consume(0, 101));
        assert!(budget.consume(0, 100));
    }
}
