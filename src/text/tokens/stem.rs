//! The stem of a word: its first letters.

use serde::{Deserialize, Serialize};

use crate::text::{mixing::GOLDEN_RATIO_64, unicode};

/// The first letters of a word, which inflection does not change: "inspect",
/// "inspected" and "inspection" have the same. This is cheaper than a stemmer for a
/// specific language, and equally good for deciding whether two turns are about the
/// same subject.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Stem {
    /// The first letters, eight bits apart. Letters outside ASCII need more bits and
    /// overlap.
    letters: u64,
    /// Number of letters in the whole word.
    letter_count: u32,
}

impl Stem {
    /// Letters that represent a word. Five distinguish "config" from "connect".
    const PREFIX_LETTERS: u32 = 5;
    /// Shorter words ("the", "now", "run") say little about the subject of a turn.
    const WORD_LETTERS_MIN: u32 = 4;

    /// Adds a character of the word, given in lower case.
    pub fn push(&mut self, c: char) {
        if unicode::is_letter(c) {
            self.push_letter(c.into());
        }
    }

    #[inline]
    pub fn push_letter(&mut self, letter: u32) {
        if self.letter_count < Self::PREFIX_LETTERS {
            self.letters ^= u64::from(letter) << (8 * self.letter_count);
        }
        self.letter_count = self.letter_count.saturating_add(1);
    }

    /// Sets the letters from the start of an ASCII word. `bytes` holds them in lower
    /// case, the first one lowest; `letters` is their number.
    #[inline]
    pub fn set_ascii_prefix(&mut self, bytes: u64, letters: u32) {
        let wanted = letters.min(Self::PREFIX_LETTERS);
        self.letters = bytes & ((1 << (8 * wanted)) - 1);
        self.letter_count = letters;
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.letter_count == 0
    }

    /// Returns `None` if the word is too short or too common to carry meaning.
    #[inline]
    pub fn hash(self) -> Option<u32> {
        if self.letter_count < Self::WORD_LETTERS_MIN || self.is_common() {
            return None;
        }
        Some((mix(self.letters) >> 32) as u32)
    }

    #[inline]
    fn is_common(self) -> bool {
        let key = table_key(self.letters, self.letter_count);
        let mut slot = table_slot(key);
        while COMMON_TABLE[slot] != 0 {
            if COMMON_TABLE[slot] == key {
                return true;
            }
            slot = (slot + 1) % SLOTS;
        }
        false
    }
}

/// Words of four or more letters that occur in every text.
const COMMON_WORDS: [&str; 60] = [
    "about", "after", "again", "also", "been", "before", "both", "could", "does", "doing", "done",
    "each", "every", "from", "have", "having", "here", "into", "just", "like", "make", "more",
    "most", "much", "must", "need", "only", "other", "over", "same", "shall", "should", "some",
    "such", "than", "that", "their", "them", "then", "there", "these", "they", "this", "those",
    "through", "very", "want", "were", "what", "when", "where", "which", "while", "will", "with",
    "would", "your", "thought", "still", "because",
];

/// Four times the number of words, so that most lookups end at the first slot.
const SLOTS: usize = 256;

/// The common words as a hash table with linear probing, keyed by first letters and
/// length. 0 marks a free slot.
const COMMON_TABLE: [u64; SLOTS] = {
    let mut table = [0; SLOTS];
    let mut n = 0;
    while n < COMMON_WORDS.len() {
        let bytes = COMMON_WORDS[n].as_bytes();
        let (mut letters, mut at) = (0, 0);
        while at < bytes.len() && at < Stem::PREFIX_LETTERS as usize {
            letters |= (bytes[at] as u64) << (8 * at);
            at += 1;
        }
        let key = table_key(letters, bytes.len() as u32);
        let mut slot = table_slot(key);
        while table[slot] != 0 {
            slot = (slot + 1) % SLOTS;
        }
        table[slot] = key;
        n += 1;
    }
    table
};

/// Combines letters and length. Five characters leave the top byte free for the length.
#[inline]
const fn table_key(letters: u64, count: u32) -> u64 {
    let count = if count < 255 { count } else { 255 };
    letters | (count as u64) << 56
}

#[inline]
const fn table_slot(key: u64) -> usize {
    (mix(key) >> (64 - SLOTS.ilog2())) as usize
}

/// Any mixing function is sufficient: a client that crafts colliding stems only makes
/// its own turns look alike.
#[inline]
const fn mix(letters: u64) -> u64 {
    letters.wrapping_mul(GOLDEN_RATIO_64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stem(word: &str) -> Option<u32> {
        let mut stem = Stem::default();
        word.chars().for_each(|c| stem.push(c));
        stem.hash()
    }

    #[test]
    fn inflected_words_have_one_stem_and_others_another() {
        assert_eq!(stem("inspecting"), stem("inspected,"));
        assert_eq!(stem("migrate"), stem("migration"));
        assert_ne!(stem("config"), stem("connect"));
        assert_ne!(stem("größer"), stem("grotte"));
    }

    #[test]
    fn short_and_common_words_have_none() {
        for word in COMMON_WORDS.iter().chain(&["the", "a", "—"]) {
            assert_eq!(stem(word), None, "{word}");
        }
        assert!(
            stem("aboutness").is_some(),
            "it only begins like a common one"
        );
    }
}
