//! What the bytes of a text are, sixty-four at a time.

use std::ops::Range;

use wide::u8x16;

use super::mask::simd_lanes::{BLOCK_BYTES, LANES, in_range, is_digit, is_letter};

/// The first bytes of a text, a bit for each, the first lowest.
#[derive(Clone, Copy, Default)]
pub(super) struct ByteClasses {
    pub length: usize,
    pub letters: u64,
    pub digits: u64,
    /// All of ASCII that is seen: letters, digits and marks.
    pub visible: u64,
}

impl ByteClasses {
    /// Not part of the loops that go over a block: its constants would take the
    /// registers that they need.
    #[inline(never)]
    pub fn classify(text: &[u8]) -> Self {
        let text = &text[..text.len().min(BLOCK_BYTES)];
        let mut block = Self {
            length: text.len(),
            ..Self::default()
        };
        let (lanes, rest) = text.as_chunks::<LANES>();
        for (n, lane) in lanes.iter().enumerate() {
            block.add_lane(*lane, n * LANES);
        }
        if !rest.is_empty() {
            block.add_lane(zero_padded(rest), lanes.len() * LANES);
        }
        block
    }

    #[inline]
    fn add_lane(&mut self, lane: [u8; LANES], shift: usize) {
        let lane = u8x16::new(lane);
        let bits = |is: u8x16| u64::from(is.to_bitmask()) << shift;
        self.letters |= bits(is_letter(lane));
        self.digits |= bits(is_digit(lane));
        self.visible |= bits(in_range(lane, b'!', b'~'));
    }

    /// Its bytes that are not among these.
    #[inline]
    pub fn complement(&self, bits: u64) -> u64 {
        !bits & low_bits(self.length)
    }
}

/// So many bits, at most 64.
#[inline]
fn low_bits(count: usize) -> u64 {
    !u64::MAX.checked_shl(count as u32).unwrap_or(0)
}

/// The bits of some bytes of a block, the first lowest.
#[inline]
pub(super) fn bit_range(bits: u64, bytes: &Range<usize>) -> u64 {
    bits >> bytes.start & low_bits(bytes.len())
}

const WORD_BYTES: usize = size_of::<u64>();

/// The first `length` bytes of a text, one to eight, the first lowest.
#[inline]
pub(super) fn load_word(text: &[u8], length: usize) -> u64 {
    match text.first_chunk::<WORD_BYTES>() {
        // What lies behind them is cut off.
        Some(bytes) => {
            let unused = 8 * (WORD_BYTES - length) as u32;
            u64::from_le_bytes(*bytes) << unused >> unused
        }
        None => load_short_word(&text[..length]),
    }
}

/// The same of fewer than eight, behind which there may be nothing: their
/// beginning and their end, which overlap.
fn load_short_word(text: &[u8]) -> u64 {
    const HALF: usize = WORD_BYTES / 2;
    if let (Some(first), Some(last)) = (text.first_chunk::<HALF>(), text.last_chunk::<HALF>()) {
        let [first, last] = [u32::from_le_bytes(*first), u32::from_le_bytes(*last)];
        return u64::from(first) | u64::from(last) << (8 * (text.len() - HALF));
    }
    let byte = |n: usize| text.get(n).map_or(0, |byte| u64::from(*byte) << (8 * n));
    byte(0) | byte(1) | byte(2)
}

/// Fewer bytes than lanes, filled up with zeros: two words cost less than a copy
/// of a length that is not known.
#[inline]
fn zero_padded(rest: &[u8]) -> [u8; LANES] {
    let low = load_word(rest, rest.len().min(WORD_BYTES));
    let high = match rest.get(WORD_BYTES..) {
        Some(more) if !more.is_empty() => load_short_word(more),
        _ => 0,
    };
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_its_bit() {
        let text: Vec<u8> = (0..=255).collect();
        for begin in 0..text.len() {
            for length in [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 40, 63, 64, 65] {
                let text = &text[begin..text.len().min(begin + length)];
                let block = ByteClasses::classify(text);
                let bytes = &text[..text.len().min(BLOCK_BYTES)];
                assert_eq!(block.length, bytes.len());
                let bits = |is: fn(&u8) -> bool| {
                    let bytes = bytes.iter().enumerate();
                    bytes.fold(0, |bits, (n, byte)| bits | u64::from(is(byte)) << n)
                };
                assert_eq!(block.letters, bits(u8::is_ascii_alphabetic));
                assert_eq!(block.digits, bits(u8::is_ascii_digit));
                assert_eq!(block.visible, bits(u8::is_ascii_graphic));
                assert_eq!(
                    block.complement(block.visible),
                    bits(|byte| !byte.is_ascii_graphic())
                );
            }
        }
    }
}
