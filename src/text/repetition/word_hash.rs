//! A word, as it is compared with others.

/// A word by its hash, its lowest bits apart; 0: none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WordHash(u32);

impl WordHash {
    const PRESENT: u32 = 1;
    const HAS_DIGIT: u32 = 2;
    const ID: u32 = 4;

    #[inline]
    pub fn new(hash: u32, has_digit: bool, is_id: bool) -> Self {
        let hash = hash & !(Self::HAS_DIGIT | Self::ID) | Self::PRESENT;
        let figure = if has_digit { Self::HAS_DIGIT } else { 0 };
        Self(hash | figure | if is_id { Self::ID } else { 0 })
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

    /// One of 64, for telling words apart at a glance.
    #[inline]
    pub fn bloom_bit(self) -> u64 {
        1 << (self.0.wrapping_mul(0x9e37_79b1) >> 26)
    }
}

/// The hash of a word that has one more character.
#[inline]
pub(super) fn extend_hash(word: u32, c: u32) -> u32 {
    (word ^ c).wrapping_mul(0x0100_0193).rotate_left(5)
}
