//! A word, as it is compared with others.

/// A word by its hash, its lowest bits apart; 0: none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Word(u32);

impl Word {
    const IS: u32 = 1;
    const FIGURE: u32 = 2;
    const ID: u32 = 4;

    #[inline]
    pub fn new(hash: u32, is_figure: bool, is_id: bool) -> Self {
        let hash = hash & !(Self::FIGURE | Self::ID) | Self::IS;
        let figure = if is_figure { Self::FIGURE } else { 0 };
        Self(hash | figure | if is_id { Self::ID } else { 0 })
    }

    #[inline]
    pub fn hash(self) -> u32 {
        self.0
    }

    #[inline]
    pub fn is_figure(self) -> bool {
        self.0 & Self::FIGURE != 0
    }

    #[inline]
    pub fn is_id(self) -> bool {
        self.0 & Self::ID != 0
    }

    /// One of 64, for telling words apart at a glance.
    #[inline]
    pub fn bit(self) -> u64 {
        1 << (self.0.wrapping_mul(0x9e37_79b1) >> 26)
    }
}

/// The hash of a word that has one more character.
#[inline]
pub(super) fn grown(word: u32, c: u32) -> u32 {
    (word ^ c).wrapping_mul(0x0100_0193).rotate_left(5)
}
