//! Classes of bytes, computed for 64 bytes at a time and returned as the bits of a
//! `u64`, the first byte in the lowest bit.
//!
//! Each 16-byte lane is compared with vector instructions (`wide`) and its result is
//! moved into 16 bits. Callers then find the next interesting byte with
//! `trailing_zeros` instead of a branch per byte. Cost: a few instructions per 16 bytes
//! and class.

use std::ops::Range;

use wide::u8x16;

/// Bytes per block: as many as a `u64` has bits.
pub(super) const BLOCK_BYTES: usize = 64;
const LANES: usize = 16;

/// A bit for each byte of the block for which `is` holds.
#[inline]
pub(super) fn match_bits(block: &[u8; BLOCK_BYTES], is: impl Fn(u8x16) -> u8x16) -> u64 {
    let (lanes, _) = block.as_chunks::<LANES>();
    let mut bits = 0;
    for (n, lane) in lanes.iter().enumerate() {
        bits |= u64::from(is(u8x16::new(*lane)).to_bitmask()) << (n * LANES);
    }
    bits
}

/// All bits from `start` up; none if `start` is 64 or more.
#[inline]
pub(super) fn bits_from(start: usize) -> u64 {
    u64::MAX.checked_shl(start as u32).unwrap_or(0)
}

/// The bytes from `first` to `last`, both included.
#[inline]
pub(super) fn in_range(lane: u8x16, first: u8, last: u8) -> u8x16 {
    let above = lane - u8x16::splat(first);
    above.min(u8x16::splat(last - first)).simd_eq(above)
}

#[inline]
pub(super) fn equals(lane: u8x16, byte: u8) -> u8x16 {
    lane.simd_eq(u8x16::splat(byte))
}

#[inline]
pub(super) fn is_letter(lane: u8x16) -> u8x16 {
    in_range(lane | u8x16::splat(0x20), b'a', b'z')
}

#[inline]
pub(super) fn is_digit(lane: u8x16) -> u8x16 {
    in_range(lane, b'0', b'9')
}

/// The classes of the first bytes of a text, at most [`BLOCK_BYTES`].
#[derive(Clone, Copy, Default)]
pub(super) struct ByteClasses {
    pub length: usize,
    pub letters: u64,
    pub digits: u64,
    /// Visible ASCII: letters, digits and punctuation.
    pub visible: u64,
}

impl ByteClasses {
    /// Not inlined: its constants would take the registers that the loops over a block
    /// need.
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

    /// The bytes of the block that are not in `bits`.
    #[inline]
    pub fn complement(&self, bits: u64) -> u64 {
        !bits & low_bits(self.length)
    }
}

/// The lowest `count` bits, at most 64.
#[inline]
fn low_bits(count: usize) -> u64 {
    !bits_from(count)
}

/// The bits of a range of bytes, shifted down so that its first byte is lowest.
#[inline]
pub(super) fn bit_range(bits: u64, bytes: &Range<usize>) -> u64 {
    bits >> bytes.start & low_bits(bytes.len())
}

const WORD_BYTES: usize = size_of::<u64>();

/// The first `length` bytes of a text (1 to 8) as a little-endian word.
#[inline]
pub(super) fn load_word(text: &[u8], length: usize) -> u64 {
    match text.first_chunk::<WORD_BYTES>() {
        // The shifts clear the bytes after `length`.
        Some(bytes) => {
            let unused = 8 * (WORD_BYTES - length) as u32;
            u64::from_le_bytes(*bytes) << unused >> unused
        }
        None => load_short_word(&text[..length]),
    }
}

/// The same for fewer than eight bytes at the end of the text. Combines the first and
/// the last half, which overlap, instead of copying byte by byte.
fn load_short_word(text: &[u8]) -> u64 {
    const HALF: usize = WORD_BYTES / 2;
    if let (Some(first), Some(last)) = (text.first_chunk::<HALF>(), text.last_chunk::<HALF>()) {
        let [first, last] = [u32::from_le_bytes(*first), u32::from_le_bytes(*last)];
        return u64::from(first) | u64::from(last) << (8 * (text.len() - HALF));
    }
    let byte = |n: usize| text.get(n).map_or(0, |byte| u64::from(*byte) << (8 * n));
    byte(0) | byte(1) | byte(2)
}

/// Fewer bytes than a lane, padded with zeros. Two word loads cost less than a copy of
/// unknown length.
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
    fn each_byte_sets_the_bits_of_its_classes() {
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
