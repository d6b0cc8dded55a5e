//! The places of a text at which something that is noise can be told: digits,
//! quotes, slashes, colons, hyphens, line ends. All that lies between them is
//! passed over, sixteen bytes at a time.

use wide::u8x16;

/// Bytes that are looked at together, a bit each.
const BLOCK: usize = 64;
pub const LANES: usize = 16;

/// Finds them, from left to right.
#[derive(Default)]
pub struct Stops {
    /// Where the block begins whose stops are known, and ends.
    start: usize,
    end: usize,
    bits: u64,
}

impl Stops {
    /// The first one from `at` on. `at` never goes back.
    #[inline]
    pub fn next(&mut self, text: &[u8], at: usize) -> Option<usize> {
        if at >= self.end {
            self.enter(text, at - at % BLOCK);
        }
        let passed = at - self.start;
        self.bits &= u64::MAX << passed;
        while self.bits == 0 {
            if self.end >= text.len() {
                return None;
            }
            self.enter(text, self.end);
        }
        Some(self.start + self.bits.trailing_zeros() as usize)
    }

    fn enter(&mut self, text: &[u8], start: usize) {
        self.start = start;
        self.end = start + BLOCK;
        self.bits = bits(text, start, stops);
    }
}

/// Whether there is a run of so many bytes of base64, at most a block.
pub fn has_run(text: &[u8], length: usize) -> bool {
    let whole = u64::MAX >> (BLOCK - length);
    let mut before = 0;
    let mut start = 0;
    while start < text.len() {
        let mut bits = bits(text, start, base64);
        // One that began in the block before.
        if before + bits.trailing_ones() as usize >= length {
            return true;
        }
        before = bits.leading_ones() as usize;
        while bits != 0 {
            let at = bits.trailing_zeros();
            let run = bits >> at;
            if run & whole == whole {
                return true;
            }
            // No run within this block that begins later is long enough.
            if BLOCK - (at as usize + run.trailing_ones() as usize) < length {
                break;
            }
            bits &= u64::MAX << (at + run.trailing_ones());
        }
        start += BLOCK;
    }
    false
}

/// A bit for each byte of the block at `start` that `is` one.
#[inline]
fn bits(text: &[u8], start: usize, is: impl Fn(u8x16) -> u8x16) -> u64 {
    let rest = text.get(start..).unwrap_or_default();
    let mut short = [0; BLOCK];
    let block = rest.first_chunk::<BLOCK>().unwrap_or_else(|| {
        // Zeros are none of what is asked for.
        if let Some(head) = short.get_mut(..rest.len()) {
            head.copy_from_slice(rest);
        }
        &short
    });
    let (lanes, _) = block.as_chunks::<LANES>();
    let mut bits = 0;
    for (n, lane) in lanes.iter().enumerate() {
        bits |= u64::from(is(u8x16::new(*lane)).to_bitmask()) << (n * LANES);
    }
    bits
}

/// From `first` to `last`.
#[inline]
pub fn between(lane: u8x16, first: u8, last: u8) -> u8x16 {
    let above = lane - u8x16::splat(first);
    above.min(u8x16::splat(last - first)).simd_eq(above)
}

#[inline]
pub fn equal(lane: u8x16, byte: u8) -> u8x16 {
    lane.simd_eq(u8x16::splat(byte))
}

#[inline]
fn stops(lane: u8x16) -> u8x16 {
    // The slash, the digits and the colon stand in a row.
    between(lane, b'/', b':')
        | equal(lane, b'-')
        | equal(lane, b'"')
        | equal(lane, b'\'')
        | equal(lane, b'\n')
}

#[inline]
fn base64(lane: u8x16) -> u8x16 {
    let small = lane | u8x16::splat(0x20);
    between(small, b'a', b'z') | between(lane, b'/', b'9') | equal(lane, b'+')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn none_is_missed(text in "[a-z .:/'\"\n0-9-]{0,300}", step in 1usize..9) {
            let is_stop = |byte: &u8| byte.is_ascii_digit() || b"/:-\"'\n".contains(byte);
            let (mut stops, mut at) = (Stops::default(), 0);
            while at <= text.len() {
                let rest = &text.as_bytes()[at..];
                let plain = rest.iter().position(is_stop).map(|n| n + at);
                prop_assert_eq!(stops.next(text.as_bytes(), at), plain);
                at = plain.map_or(text.len() + 1, |stop| stop + step);
            }
        }

        #[test]
        fn a_run_is_found_wherever_it_stands(before in 0usize..200, run in 55usize..80, after in 0usize..80) {
            let text = "a b ".repeat(before) + &"Ab/9+".repeat(run)[..run] + &" c".repeat(after);
            prop_assert_eq!(has_run(text.as_bytes(), 62), run >= 62);
        }
    }
}
