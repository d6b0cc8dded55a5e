//! The words of a call's arguments, to compare calls that vary.

use smallvec::SmallVec;

use crate::{
    domain::{ProgramWords, Sig, WordHashes},
    text::{
        key::{HashKey, SignatureKind},
        mixing::{PI_DIGITS, folded_multiply},
    },
};

/// The words of a call's arguments without their numbers. They stay the same if a call
/// is only reordered or counted up, and mostly the same if it is reworded.
#[derive(Debug, Default)]
pub(crate) struct ArgumentWords {
    /// The sum of the words' hashes, which does not depend on their order.
    hash_sum: u64,
    /// The sum of the numbers' hashes.
    number_sum: u64,
    hashes: SmallVec<[u32; 32]>,
    /// A bit for each word.
    bitmap: u128,
    bytes: usize,
}

impl ArgumentWords {
    /// Longer arguments contain a file or a program, whose words say little about the
    /// call. The limit also bounds the cost of a call.
    const BYTES_MAX: usize = 1_024;
    /// Two sets that differ in one word overlap by at least .9 from 19 shared words on.
    const SET_LEN_MIN: usize = 19;

    pub fn push_text(&mut self, text: &str) {
        self.bytes += text.len();
        if self.bytes > Self::BYTES_MAX {
            return;
        }
        let mut word = WordHasher::default();
        if text.is_ascii() {
            // Most arguments have no digit, so numbers are collected apart.
            let mut number = 0u64;
            for byte in text.bytes() {
                match LOWERCASE_LETTERS[usize::from(byte)] {
                    SEPARATOR => {
                        self.finish_word(&mut word);
                        self.push_number(std::mem::take(&mut number));
                    }
                    DIGIT => number = number.wrapping_mul(11).wrapping_add(u64::from(byte)),
                    letter => word.push_letter(letter),
                }
            }
            self.push_number(number);
        } else {
            for c in text.chars() {
                if !c.is_alphanumeric() {
                    self.finish_word(&mut word);
                } else if !c.is_numeric() {
                    let mut bytes = [0; 4];
                    let letter = c.to_ascii_lowercase().encode_utf8(&mut bytes);
                    letter.bytes().for_each(|byte| word.push_letter(byte));
                }
            }
        }
        self.finish_word(&mut word);
    }

    /// The numbers so far, to leave later ones out with `restore_numbers`.
    pub fn numbers(&self) -> u64 {
        self.number_sum
    }

    pub fn restore_numbers(&mut self, numbers: u64) {
        self.number_sum = numbers;
    }

    /// Adds a number to those that distinguish calls; 0: none.
    #[inline]
    pub fn push_number(&mut self, number: u64) {
        if number != 0 {
            self.number_sum = self
                .number_sum
                .wrapping_add(folded_multiply(number ^ WordHasher::SEED, PI_DIGITS));
        }
    }

    /// Records the current word, if it is not empty, and starts the next one.
    fn finish_word(&mut self, word: &mut WordHasher) {
        if word.len > 0 {
            let hash = std::mem::take(word).hash();
            self.hash_sum = self.hash_sum.wrapping_add(hash);
            self.bitmap |= 1 << (hash & 127);
            self.hashes.push((hash >> 32) as u32);
        }
    }

    /// One signature for all words. `None` if there are no words or the arguments are
    /// too long.
    pub fn unordered_signature(&self, key: &HashKey) -> Option<Sig> {
        (self.bytes <= Self::BYTES_MAX && !self.hashes.is_empty())
            .then(|| Sig::new(key.hash_pair(SignatureKind::Words, self.hash_sum, 0)))
    }

    /// The same with the numbers: equal if only the order differs.
    pub fn unordered_signature_with_numbers(&self, key: &HashKey) -> Option<Sig> {
        self.unordered_signature(key).map(|words| {
            Sig::new(key.hash_pair(SignatureKind::Words, words.get(), self.number_sum))
        })
    }

    /// The words and numbers of a program.
    pub fn program_words(&self) -> ProgramWords {
        if self.bytes > Self::BYTES_MAX {
            return ProgramWords::default();
        }
        ProgramWords {
            words: self.bitmap,
            numbers: self.number_sum,
        }
    }

    /// The hashes of all words, or none if there are too few words for an overlap of .9
    /// between different sets.
    pub fn into_hashes(self) -> WordHashes {
        if self.bytes > Self::BYTES_MAX || self.hashes.len() < Self::SET_LEN_MIN {
            return None;
        }
        Some(self.hashes.as_slice().into())
    }
}

/// The class of a byte: a separator, a digit, or otherwise its lower-case letter.
const SEPARATOR: u8 = 0;
const DIGIT: u8 = 1;
static LOWERCASE_LETTERS: [u8; 256] = {
    let mut letters = [SEPARATOR; 256];
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

/// Hashes a word letter by letter. The hash has no key, like that of the words of
/// turns: a client that crafts colliding words only makes its own calls look alike,
/// which repeating them does as well. It is written by hand, because a generic hasher
/// invoked for every letter costs more than all other work on a call's arguments.
#[derive(Default)]
struct WordHasher {
    /// The letters since the last multiple of eight.
    chunk: u64,
    len: u64,
    /// The hash of the letters before `chunk`.
    state: u64,
}

impl WordHasher {
    /// Odd, with as many ones as zeros: digits of pi.
    const SEED: u64 = 0x243f_6a88_85a3_08d3;

    #[inline]
    fn push_letter(&mut self, letter: u8) {
        self.chunk = self.chunk << 8 | u64::from(letter);
        self.len += 1;
        if self.len.is_multiple_of(8) {
            self.state = folded_multiply(self.state ^ self.chunk ^ Self::SEED, PI_DIGITS);
            self.chunk = 0;
        }
    }

    fn hash(self) -> u64 {
        folded_multiply(
            self.state ^ self.chunk ^ Self::SEED,
            PI_DIGITS ^ self.len << 32,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loose(text: &str) -> Option<Sig> {
        let mut words = ArgumentWords::default();
        words.push_text(text);
        words.unordered_signature(&HashKey::fixed())
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
