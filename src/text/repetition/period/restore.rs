//! Restores the periods of a thawed text. Frozen are the ring, the runs and the budget;
//! the hash and the anchors are computed from the ring, so they cannot contradict it.

use super::{
    DIGITS_MAX, EXACT_HASH, GRID_BYTES, PERIOD_MAX, PeriodRun, PeriodTracker, RING_BYTES,
    RING_STEP, RUNS_MAX, count_digits, mask_digit, roll_exact_hash, roll_hash,
};
use crate::text::{
    mixing::GOLDEN_RATIO_32,
    repetition::{POSITION_MAX, anchors::ANCHORS_MAX},
};

impl PeriodTracker {
    /// Computes what is not frozen. Returns false if the frozen part is inconsistent.
    pub fn restore(&mut self) -> bool {
        let runs_are_consistent = self.runs.len() <= RUNS_MAX
            && self
                .runs
                .iter()
                .all(|run| run.is_consistent(self.total_bytes));
        if self.total_bytes > POSITION_MAX
            || !runs_are_consistent
            || !self.budget.is_consistent(self.total_bytes)
        {
            return false;
        }
        // The ring is frozen without the zeros at its end.
        let total_bytes = self.total_bytes as usize;
        let len = total_bytes.min(RING_BYTES).next_multiple_of(RING_STEP);
        if self.ring.len() > total_bytes.min(RING_BYTES) {
            return false;
        }
        self.ring.reserve_exact(len - self.ring.len());
        self.ring.resize(len, 0);
        self.hash = masked_hash(&self.tail(GRID_BYTES));
        self.restore_anchors(total_bytes / GRID_BYTES);
        true
    }

    /// Stores the anchors of the complete blocks that are still in the ring. `last` is the
    /// number of the last one.
    fn restore_anchors(&mut self, last: usize) {
        // The block that the next bytes replace is too far back for any period.
        for number in last.saturating_sub(ANCHORS_MAX - 1) + 1..=last {
            let block = *self.block(number);
            self.last_block_digits = count_digits(&block);
            let hash = if self.last_block_digits > DIGITS_MAX {
                let roll = |hash, byte: &u8| roll_exact_hash(hash, *byte, 0);
                block.iter().fold(0, roll) ^ EXACT_HASH
            } else {
                masked_hash(&block)
            };
            self.anchors.insert(number, hash);
        }
    }
}

/// The rolling hash of a window of at most [`GRID_BYTES`] bytes.
fn masked_hash(window: &[u8]) -> u32 {
    window.iter().fold(0u32, |hash, byte| {
        let product = hash.wrapping_mul(GOLDEN_RATIO_32);
        roll_hash(product, mask_digit(*byte).into(), 0)
    })
}

impl PeriodRun {
    /// Whether this can be a run of a text of this many bytes.
    fn is_consistent(&self, total_bytes: u64) -> bool {
        let has_period = (1..=PERIOD_MAX as u32).contains(&self.period);
        let span = u64::from(self.digit_blind_len) + u64::from(self.period);
        has_period
            && self.exact_len <= self.digit_blind_len
            && span <= total_bytes.min(u64::from(u32::MAX / 2))
            && self.unit.is_none_or(|unit| unit.is_consistent(PERIOD_MAX))
    }
}

/// The ring as bytes, without the zeros at its end.
pub(super) mod frozen_ring {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::RING_STEP;

    pub fn serialize<S: Serializer>(ring: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let last = ring.iter().rposition(|byte| *byte != 0);
        serializer.serialize_bytes(&ring[..last.map_or(0, |last| last + 1)])
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        let mut ring = Vec::with_capacity(bytes.len().next_multiple_of(RING_STEP));
        ring.extend_from_slice(bytes);
        Ok(ring)
    }
}
