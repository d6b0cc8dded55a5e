use super::{Key, key::Tag};
use crate::domain::{Sig, WordHashes};

/// The words of a call's arguments without their numbers: what stays the same
/// when a call is only reworded, reordered or counted up.
#[derive(Debug, Default)]
pub(crate) struct Words {
    /// The words' hashes, in any order, added up.
    sum: u64,
    hashes: WordHashes,
    bytes: usize,
}

impl Words {
    /// Longer arguments carry a file or a program, whose words say little about
    /// the call; and the cost of a call has a bound.
    const BYTES_MAX: usize = 1_024;
    /// Two sets that differ in one word overlap by .9 from 19 shared words on.
    const SET_MIN: usize = 19;

    pub fn push(&mut self, text: &str) {
        self.bytes += text.len();
        if self.bytes > Self::BYTES_MAX {
            return;
        }
        let mut word = Word::default();
        if text.is_ascii() {
            for byte in text.bytes() {
                match LETTERS[usize::from(byte)] {
                    NO_LETTER => self.take(&mut word),
                    DIGIT => {}
                    letter => word.push(letter),
                }
            }
        } else {
            for c in text.chars() {
                if !c.is_alphanumeric() {
                    self.take(&mut word);
                } else if !c.is_numeric() {
                    let mut bytes = [0; 4];
                    let letter = c.to_ascii_lowercase().encode_utf8(&mut bytes);
                    letter.bytes().for_each(|byte| word.push(byte));
                }
            }
        }
        self.take(&mut word);
    }

    /// Takes a word in, where there is one, and begins another.
    fn take(&mut self, word: &mut Word) {
        if word.len > 0 {
            let hash = std::mem::take(word).hash();
            self.sum = self.sum.wrapping_add(hash);
            self.hashes.push((hash >> 32) as u32);
        }
    }

    /// One signature for all of them; `None`: there are none, or too many.
    pub fn loose(&self, key: &Key) -> Option<Sig> {
        (self.bytes <= Self::BYTES_MAX && !self.hashes.is_empty())
            .then(|| Sig::new(key.both(Tag::Words, self.sum, 0)))
    }

    /// All of them, where an overlap of .9 short of all is possible.
    pub fn all(self) -> WordHashes {
        if self.bytes > Self::BYTES_MAX || self.hashes.len() < Self::SET_MIN {
            return WordHashes::default();
        }
        self.hashes
    }
}

/// What a byte is in a word: no part of it, a digit, else the small letter.
const NO_LETTER: u8 = 0;
const DIGIT: u8 = 1;
static LETTERS: [u8; 256] = {
    let mut letters = [NO_LETTER; 256];
    let mut byte = 0;
    while byte < 128u8 {
        if byte.is_ascii_digit() {
            letters[byte as usize] = DIGIT;
        } else if byte.is_ascii_alphabetic() {
            letters[byte as usize] = byte.to_ascii_lowercase();
        }
        byte += 1;
    }
    letters
};

/// The hash of a word, made as its letters come. Without a key, like the words
/// of turns: who makes words collide makes only its own calls alike, which
/// repeating them does as well. By hand, for a hasher that is asked for every
/// letter costs more than all the rest of a call's arguments.
#[derive(Default)]
struct Word {
    /// The letters since the last eighth one.
    chunk: u64,
    len: u64,
    /// Those before.
    state: u64,
}

impl Word {
    /// Odd, and with as many ones as zeros: digits of pi.
    const SEED: u64 = 0x243f_6a88_85a3_08d3;
    const FACTOR: u64 = 0x1319_8a2e_0370_7345;

    #[inline]
    fn push(&mut self, letter: u8) {
        self.chunk = self.chunk << 8 | u64::from(letter);
        self.len += 1;
        if self.len.is_multiple_of(8) {
            self.state = fold(self.state ^ self.chunk ^ Self::SEED, Self::FACTOR);
            self.chunk = 0;
        }
    }

    fn hash(self) -> u64 {
        fold(
            self.state ^ self.chunk ^ Self::SEED,
            Self::FACTOR ^ self.len << 32,
        )
    }
}

/// Both halves of the product, so that every bit of the factors counts.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loose(text: &str) -> Option<Sig> {
        let mut words = Words::default();
        words.push(text);
        words.loose(&Key::fixed())
    }

    #[test]
    fn order_numbers_and_case_do_not_matter_and_words_do() {
        assert_eq!(loose("page 3 of the LIST"), loose("list of the page 4"));
        assert_eq!(loose("file12.txt"), loose("file3.txt"));
        assert_ne!(loose("abcdefgh ij"), loose("abcdefg hij"));
        assert_ne!(loose("abcdefghi"), loose("abcdefgh i"));
        assert_ne!(loose("straße"), loose("strasse"));
        assert_eq!(loose("Straße 1"), loose("2 straße"));
        assert_eq!(loose("12 + 34"), None);
    }
}
