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
            return equal_prefix_len(bytes, copy);
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
        let most = available.min(exact + BLIND_BYTES_MAX.max(period));
        let blind_suffix_len = |now: &[u8], before: &[u8]| {
            let pairs = now.iter().zip(before).rev();
            let are_equal = |(now, before): &(&u8, &u8)| mask_digit(**now) == mask_digit(**before);
            pairs.take_while(are_equal).count()
        };
        let blind = self.matching_len(period, exact, most, equal_but_digits, blind_suffix_len);
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
        let are_equal = |now: &[u8], before: &[u8]| now == before;
        self.matching_len(period, 0, most, are_equal, equal_suffix_len)
    }

    /// How many of the last bytes, at most `most`, match those one period earlier, given
    /// that the last `known` do. Compares slices of the ring, backwards; `suffix_len` is for
    /// the first that do not match.
    fn matching_len(
        &self,
        period: usize,
        known: usize,
        most: usize,
        slices_match: impl Fn(&[u8], &[u8]) -> bool,
        suffix_len: impl Fn(&[u8], &[u8]) -> usize,
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
                return len + suffix_len(now, before);
            }
            len += step;
        }
        len
    }
}

/// How many bytes at the start of two slices are equal, eight at a time.
fn equal_prefix_len(now: &[u8], before: &[u8]) -> usize {
    // One of them may be longer.
    let most = now.len().min(before.len());
    let (now_words, now_rest) = now[..most].as_chunks::<8>();
    let (before_words, before_rest) = before[..most].as_chunks::<8>();
    let mut len = 0;
    for (now, before) in now_words.iter().zip(before_words) {
        let difference = u64::from_le_bytes(*now) ^ u64::from_le_bytes(*before);
        if difference != 0 {
            return len + difference.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    let pairs = now_rest.iter().zip(before_rest);
    len + pairs.take_while(|(now, before)| now == before).count()
}

/// The same at the end of two slices of one length.
fn equal_suffix_len(now: &[u8], before: &[u8]) -> usize {
    let (now_rest, now_words) = now.as_rchunks::<8>();
    let (before_rest, before_words) = before.as_rchunks::<8>();
    let mut len = 0;
    for (now, before) in now_words.iter().zip(before_words).rev() {
        let difference = u64::from_le_bytes(*now) ^ u64::from_le_bytes(*before);
        if difference != 0 {
            return len + difference.leading_zeros() as usize / 8;
        }
        len += 8;
    }
    let pairs = now_rest.iter().zip(before_rest).rev();
    len + pairs.take_while(|(now, before)| now == before).count()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ends_are_as_long_as_byte_by_byte() {
        let text: Vec<u8> = (0..70).collect();
        for len in 0..text.len() {
            let now = &text[..len];
            assert_eq!(equal_prefix_len(now, &text), len);
            assert_eq!(equal_suffix_len(now, now), len);
            for at in 0..len {
                let mut changed = now.to_vec();
                changed[at] ^= 1 << (at % 8);
                assert_eq!(equal_prefix_len(now, &changed), at);
                assert_eq!(equal_suffix_len(now, &changed), len - 1 - at);
            }
        }
    }
}
