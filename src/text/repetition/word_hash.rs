//! The 32-bit hash of one word, built one character at a time.

use serde::{Deserialize, Serialize};

use crate::text::mixing::GOLDEN_RATIO_32;

/// The hash of a word; its three lowest bits are flags. 0 means no word.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WordHash(u32);

impl WordHash {
    const PRESENT: u32 = 1;
    const HAS_DIGIT: u32 = 2;
    const ID: u32 = 4;

    #[inline]
    pub fn new(hash: u32, has_digit: bool, is_id: bool) -> Self {
        let hash = hash & !(Self::HAS_DIGIT | Self::ID) | Self::PRESENT;
        let digit_flag = if has_digit { Self::HAS_DIGIT } else { 0 };
        let id_flag = if is_id { Self::ID } else { 0 };
        Self(hash | digit_flag | id_flag)
    }

    #[inline]
    pub fn hash(self) -> u32 {
        self.0
    }

    #[inline]
    pub fn has_digit(self) -> bool {
        self.0 & Self::HAS_DIGIT != 0
    }

    #[inline]
    pub fn is_id(self) -> bool {
        self.0 & Self::ID != 0
    }

    /// One of 64 bits, for a first estimate of how many words are distinct.
    #[inline]
    pub fn bloom_bit(self) -> u64 {
        1 << (self.0.wrapping_mul(GOLDEN_RATIO_32) >> 26)
    }
}

/// Adds a character to a word's hash: a variant of FNV-1a (32-bit prime) with a rotation.
#[inline]
pub(super) fn extend_hash(word: u32, c: u32) -> u32 {
    (word ^ c).wrapping_mul(0x0100_0193).rotate_left(5)
}
