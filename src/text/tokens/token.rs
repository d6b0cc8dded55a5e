//! Hashes a token of a turn: the text between white space, in lower case. Cost: one
//! multiplication per eight bytes, because a turn has thousands of tokens.

use serde::{Deserialize, Serialize};

use super::stem::Stem;
use crate::text::{
    mixing::{PI_DIGITS, folded_multiply},
    simd::load_word,
    unicode,
};

/// The token that is being read. Its hash depends only on its characters, not on how
/// they are split into pieces.
///
/// The hash has no key. The lowest hashes of a long turn are a sample, and a sample
/// that differs between a server and a replay could give two verdicts on one trace. A
/// client that crafts colliding words only makes its own turns look alike, which
/// repeating them does as well.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Token {
    hash: u64,
    /// The latest bytes that are not hashed yet, the first one lowest.
    pending: u64,
    byte_count: u32,
    has_digit: bool,
    stem: Stem,
}

/// The role of a byte in a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenByte {
    /// An ASCII letter, digit or punctuation mark.
    Part,
    Space,
    /// Not ASCII, or not visible.
    Other,
}

const TOKEN_BYTES: [TokenByte; 256] = {
    let mut kinds = [TokenByte::Other; 256];
    let mut byte = 0;
    while byte < 128 {
        kinds[byte] = match byte as u8 {
            // The same as `char::is_whitespace`.
            b' ' | b'\t'..=b'\r' => TokenByte::Space,
            b'!'..=b'~' => TokenByte::Part,
            _ => TokenByte::Other,
        };
        byte += 1;
    }
    kinds
};

impl TokenByte {
    #[inline]
    pub fn from_byte(byte: u8) -> Self {
        TOKEN_BYTES[usize::from(byte)]
    }
}

/// Bytes that are hashed in one step.
const WORD_BYTES: usize = size_of::<u64>();
/// Odd, with evenly distributed bits: digits of pi.
const FACTOR: u64 = 0x2436_a885_a308_d313;

impl Token {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.byte_count == 0
    }

    #[inline]
    pub fn has_digit(&self) -> bool {
        self.has_digit
    }

    #[inline]
    pub fn stem(&self) -> Option<u32> {
        self.stem.hash()
    }

    /// Appends the first `length` bytes of `text` (at least one), which are ASCII
    /// letters, digits and marks in either case. `letters` and `digits` have a bit for
    /// each byte of that class. For a whole token the initial state is known to be
    /// empty, so inlining removes half of this code.
    #[inline(always)]
    pub fn push_ascii(&mut self, text: &[u8], length: usize, letters: u64, digits: u64) {
        let first = lowercase_ascii(load_word(text, length.min(WORD_BYTES)));
        self.push_word(first, length.min(WORD_BYTES));
        let mut at = WORD_BYTES;
        while at < length {
            let chunk_len = (length - at).min(WORD_BYTES);
            self.push_word(
                lowercase_ascii(load_word(&text[at..], chunk_len)),
                chunk_len,
            );
            at += chunk_len;
        }
        self.has_digit |= digits != 0;
        // If the letters are the first bytes, adding one carries through all of their
        // bits.
        let are_first = letters & letters.wrapping_add(1) == 0;
        if are_first && self.stem.is_empty() {
            self.stem.set_ascii_prefix(first, letters.trailing_ones());
        } else {
            self.push_stem_letters(text, letters);
        }
    }

    /// Adds the letters of a word that has marks before or within it, or that continues
    /// an earlier piece.
    #[inline(never)]
    fn push_stem_letters(&mut self, text: &[u8], mut letters: u64) {
        while letters != 0 {
            let letter = text[letters.trailing_zeros() as usize];
            self.stem.push_letter(letter.to_ascii_lowercase().into());
            letters &= letters - 1;
        }
    }

    /// Appends a character, given in lower case.
    pub fn push_char(&mut self, c: char) {
        self.has_digit |= unicode::is_numeric(c);
        self.stem.push(c);
        let mut buffer = [0; WORD_BYTES / 2];
        let length = c.encode_utf8(&mut buffer).len();
        self.push_word(u32::from_le_bytes(buffer).into(), length);
    }

    /// Appends `length` bytes (at most eight) of `word`, the first one lowest.
    #[inline]
    fn push_word(&mut self, word: u64, length: usize) {
        let filled = self.byte_count as usize % WORD_BYTES;
        self.pending |= word << (8 * filled);
        self.byte_count = self.byte_count.wrapping_add(length as u32);
        if filled + length >= WORD_BYTES {
            self.hash = mix(self.hash ^ self.pending, FACTOR);
            // The bytes of `word` that did not fit.
            self.pending = word
                .checked_shr(8 * (WORD_BYTES - filled) as u32)
                .unwrap_or(0);
        }
    }

    #[inline]
    pub fn hash(&self) -> u32 {
        let last = self.pending ^ u64::from(self.byte_count).rotate_right(8);
        (mix(mix(self.hash ^ last, FACTOR), PI_DIGITS) >> 32) as u32
    }
}

/// A folded multiplication that does not map 0 to 0.
#[inline]
fn mix(word: u64, factor: u64) -> u64 {
    folded_multiply(word ^ factor.rotate_left(17), factor)
}

/// Converts eight ASCII bytes to lower case.
#[inline]
fn lowercase_ascii(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x80 * ONES;
    // The top bit of a byte is set from `A` on in the first sum, and from the byte
    // after `Z` on in the second.
    let from_a = word.wrapping_add((0x80 - b'A' as u64) * ONES);
    let after_z = word.wrapping_add((0x7f - b'Z' as u64) * ONES);
    word | (((from_a ^ after_z) & TOPS) >> 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::simd::ByteClasses;

    fn push(token: &mut Token, text: &str, behind: &str) {
        if !text.is_empty() {
            let block = ByteClasses::classify(text.as_bytes());
            let all = format!("{text}{behind}");
            token.push_ascii(all.as_bytes(), text.len(), block.letters, block.digits);
        }
    }

    fn whole(text: &str) -> Token {
        let mut token = Token::default();
        push(&mut token, text, "");
        token
    }

    #[test]
    fn eight_bytes_are_lowered_as_one_by_one() {
        for first in b'!'..=b'~' {
            let bytes: [u8; WORD_BYTES] =
                std::array::from_fn(|n| b'!' + (first - b'!' + n as u8) % 94);
            let lowered = bytes.map(|byte| byte.to_ascii_lowercase());
            assert_eq!(
                lowercase_ascii(u64::from_le_bytes(bytes)),
                u64::from_le_bytes(lowered)
            );
        }
    }

    #[test]
    fn tokens_that_differ_hash_differently() {
        let words = [
            "",
            "a",
            "b",
            "aa",
            "ab",
            "ba",
            "aaaaaaaa",
            "aaaaaaaaa",
            "aaaaaaa",
        ];
        for a in words {
            for b in words {
                assert_eq!(whole(a).hash() == whole(b).hash(), a == b, "{a} {b}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_pieces_do_not_matter(text in "[!-~]{1,40}", cuts in prop::array::uniform2(0usize..40)) {
            let [a, b] = cuts.map(|cut| cut.min(text.len()));
            let (a, b) = (a.min(b), a.max(b));
            let mut pieces = Token::default();
            for piece in [&text[..a], &text[a..b], &text[b..]] {
                push(&mut pieces, piece, " and more");
            }
            let mut chars = Token::default();
            text.to_lowercase().chars().for_each(|c| chars.push_char(c));
            let of = |token: &Token| (token.hash(), token.has_digit(), token.stem());
            prop_assert_eq!(of(&pieces), of(&whole(&text)));
            prop_assert_eq!(of(&chars), of(&whole(&text)));
        }
    }
}
