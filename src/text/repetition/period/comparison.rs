//! Comparisons of the end of a text with what is one period earlier: forwards, with the
//! bytes that come next, and backwards, in the ring.

use super::{GRID_BYTES, PeriodRun, PeriodTracker, RING_BYTES, mask_digit};
use crate::text::work_budget::steps;

/// How far back copies that differ in digits are followed, or one period if that is longer.
/// Rows of data are such copies at many distances, each over the whole ring; a sentence with
/// a counter is known from its second copy on, so there is little to follow.
const BLIND_BYTES_MAX: usize = 1_024;

impl PeriodTracker {
    /// How many of these bytes, at most up to the next anchor position, extend every run
    /// exactly without making one due.
    pub(super) fn equal_prefix_len(&self, bytes: &[u8]) -> usize {
        let to_anchor = GRID_BYTES - self.total_bytes as usize % GRID_BYTES;
        let most = bytes.len().min(to_anchor);
        self.runs
            .iter()
            .fold(most, |most, run| self.run_prefix_len(run, bytes, most))
    }

    /// The same for one run and at most `most` bytes.
    pub(super) fn run_prefix_len(&self, run: &PeriodRun, bytes: &[u8], most: usize) -> usize {
        steps::count(2);
        let (at, period) = (self.total_bytes as usize, run.period as usize);
        let before_due = run
            .due_at
            .saturating_sub(run.digit_blind_len)
            .saturating_sub(1);
        let most = most.min(before_due as usize);
        // Usually the copy is one slice of the ring.
        let copy_start = (at - period) % RING_BYTES;
        if let Some(copy) = self.ring.get(copy_start..copy_start + most)
            && most <= period
        {
            let pairs = bytes.iter().zip(copy);
            return pairs.take_while(|(now, before)| now == before).count();
        }
        let is_equal = |n: &usize| {
            let before = match n.checked_sub(period) {
                Some(n) => bytes[n],
                None => self.ring[(at + n - period) % RING_BYTES],
            };
            bytes[*n] == before
        };
        (0..most).find(|n| !is_equal(n)).unwrap_or(most)
    }

    /// How many of the last bytes equal those one period earlier: exactly, and with digits
    /// treated as equal.
    pub(super) fn run_lengths(&self, period: usize) -> (u32, u32) {
        let at = self.total_bytes as usize;
        let available = at.min(RING_BYTES) - period;
        let exact = self.exact_len(period, available);
        let is_digit = |at: usize| self.ring[at % RING_BYTES].is_ascii_digit();
        // Nearly always the copies end where they differ in more than a digit.
        if exact == available || !is_digit(at - 1 - exact) || !is_digit(at - 1 - exact - period) {
            return (exact as u32, exact as u32);
        }
        let is_equal = |now: &u8, before: &u8| mask_digit(*now) == mask_digit(*before);
        let most = available.min(exact + BLIND_BYTES_MAX.max(period));
        let blind = self.matching_len(period, exact, most, equal_but_digits, is_equal);
        (exact as u32, blind as u32)
    }

    /// Whether the last `len` bytes equal those one period earlier.
    pub(super) fn ends_with_copy(&self, period: usize, len: usize) -> bool {
        let at = self.total_bytes as usize;
        let [now, before] = [at, at - period].map(|end| (end - 1) % RING_BYTES + 1);
        if now < len || before < len {
            return self.exact_len(period, len) == len;
        }
        self.ring[now - len..now] == self.ring[before - len..before]
    }

    /// How many of the last bytes, at most `most`, equal those one period earlier.
    fn exact_len(&self, period: usize, most: usize) -> usize {
        self.matching_len(period, 0, most, |now, before| now == before, u8::eq)
    }

    /// How many of the last bytes, at most `most`, match those one period earlier, given
    /// that the last `known` do. Compares slices of the ring, backwards.
    fn matching_len(
        &self,
        period: usize,
        known: usize,
        most: usize,
        slices_match: impl Fn(&[u8], &[u8]) -> bool,
        bytes_match: impl Fn(&u8, &u8) -> bool,
    ) -> usize {
        let at = self.total_bytes as usize;
        let mut len = known;
        while len < most {
            steps::count(4);
            // The ends of both slices, in 1..=RING_BYTES; neither wraps around.
            let [now, before] = [at - len, at - len - period].map(|end| (end - 1) % RING_BYTES + 1);
            let step = GRID_BYTES.min(most - len).min(now).min(before);
            let (now, before) = (
                &self.ring[now - step..now],
                &self.ring[before - step..before],
            );
            if !slices_match(now, before) {
                let pairs = now.iter().zip(before).rev();
                return len + pairs.take_while(|(a, b)| bytes_match(a, b)).count();
            }
            len += step;
        }
        len
    }
}

/// Whether two slices are equal with digits treated as equal. Blocks have a constant length
/// and no early end, so the compiler compares 16 bytes at once.
fn equal_but_digits(now: &[u8], before: &[u8]) -> bool {
    let differ = |now: u8, before: u8| {
        let are_digits = (now.wrapping_sub(b'0') < 10) & (before.wrapping_sub(b'0') < 10);
        u8::from((now != before) & !are_digits)
    };
    let ((now_blocks, now_rest), (before_blocks, before_rest)) = (
        now.as_chunks::<GRID_BYTES>(),
        before.as_chunks::<GRID_BYTES>(),
    );
    let mut blocks = now_blocks.iter().zip(before_blocks);
    let mut rest = now_rest.iter().zip(before_rest);
    blocks.all(|(now, before)| {
        let pairs = now.iter().zip(before);
        pairs.fold(0, |any, (now, before)| any | differ(*now, *before)) == 0
    }) && rest.all(|(now, before)| differ(*now, *before) == 0)
}
