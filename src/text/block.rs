//! What the bytes of a text are, sixty-four at a time.

use std::ops::Range;

use wide::u8x16;

use super::mask::lanes::{BLOCK, LANES, between, digit, letter};

/// The first bytes of a text, a bit for each, the first lowest.
#[derive(Clone, Copy, Default)]
pub(super) struct Block {
    pub length: usize,
    pub letters: u64,
    pub digits: u64,
    /// All of ASCII that is seen: letters, digits and marks.
    pub seen: u64,
}

impl Block {
    /// Not part of the loops that go over a block: its constants would take the
    /// registers that they need.
    #[inline(never)]
    pub fn of(text: &[u8]) -> Self {
        let text = &text[..text.len().min(BLOCK)];
        let mut block = Self {
            length: text.len(),
            ..Self::default()
        };
        let (lanes, rest) = text.as_chunks::<LANES>();
        for (n, lane) in lanes.iter().enumerate() {
            block.add(*lane, n * LANES);
        }
        if !rest.is_empty() {
            block.add(filled(rest), lanes.len() * LANES);
        }
        block
    }

    #[inline]
    fn add(&mut self, lane: [u8; LANES], at: usize) {
        let lane = u8x16::new(lane);
        let bits = |is: u8x16| u64::from(is.to_bitmask()) << at;
        self.letters |= bits(letter(lane));
        self.digits |= bits(digit(lane));
        self.seen |= bits(between(lane, b'!', b'~'));
    }

    /// Its bytes that are not among these.
    #[inline]
    pub fn others(&self, bits: u64) -> u64 {
        !bits & lowest(self.length)
    }
}

/// So many bits, at most 64.
#[inline]
fn lowest(count: usize) -> u64 {
    !u64::MAX.checked_shl(count as u32).unwrap_or(0)
}

/// The bits of some bytes of a block, the first lowest.
#[inline]
pub(super) fn part(bits: u64, bytes: &Range<usize>) -> u64 {
    bits >> bytes.start & lowest(bytes.len())
}

const WORD: usize = size_of::<u64>();

/// The first `length` bytes of a text, one to eight, the first lowest.
#[inline]
pub(super) fn word_at(text: &[u8], length: usize) -> u64 {
    match text.first_chunk::<WORD>() {
        // What lies behind them is cut off.
        Some(bytes) => {
            let unused = 8 * (WORD - length) as u32;
            u64::from_le_bytes(*bytes) << unused >> unused
        }
        None => short_word(&text[..length]),
    }
}

/// The same of fewer than eight, behind which there may be nothing: their
/// beginning and their end, which overlap.
fn short_word(text: &[u8]) -> u64 {
    const HALF: usize = WORD / 2;
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
fn filled(rest: &[u8]) -> [u8; LANES] {
    let low = word_at(rest, rest.len().min(WORD));
    let high = match rest.get(WORD..) {
        Some(more) if !more.is_empty() => short_word(more),
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
                let block = Block::of(text);
                let bytes = &text[..text.len().min(BLOCK)];
                assert_eq!(block.length, bytes.len());
                let bits = |is: fn(&u8) -> bool| {
                    let bytes = bytes.iter().enumerate();
                    bytes.fold(0, |bits, (n, byte)| bits | u64::from(is(byte)) << n)
                };
                assert_eq!(block.letters, bits(u8::is_ascii_alphabetic));
                assert_eq!(block.digits, bits(u8::is_ascii_digit));
                assert_eq!(block.seen, bits(u8::is_ascii_graphic));
                assert_eq!(
                    block.others(block.seen),
                    bits(|byte| !byte.is_ascii_graphic())
                );
            }
        }
    }
}
