use crate::{
    domain::{Sig, WordHashes},
    text::{
        key::{HashKey, SignatureKind},
        mixing::{PI_DIGITS, folded_multiply},
    },
};

/// The words of a call's arguments without their numbers: what stays the same
/// when a call is only reworded, reordered or counted up.
#[derive(Debug, Default)]
pub(crate) struct ArgumentWords {
    /// The words' hashes, in any order, added up.
    hash_sum: u64,
    hashes: WordHashes,
    bytes: usize,
}

impl ArgumentWords {
    /// Longer arguments carry a file or a program, whose words say little about
    /// the call; and the cost of a call has a bound.
    const BYTES_MAX: usize = 1_024;
    /// Two sets that differ in one word overlap by .9 from 19 shared words on.
    const SET_LEN_MIN: usize = 19;

    pub fn push_text(&mut self, text: &str) {
        self.bytes += text.len();
        if self.bytes > Self::BYTES_MAX {
            return;
        }
        let mut word = WordHasher::default();
        if text.is_ascii() {
            for byte in text.bytes() {
                match LOWERCASE_LETTERS[usize::from(byte)] {
                    SEPARATOR => self.finish_word(&mut word),
                    DIGIT => {}
                    letter => word.push_letter(letter),
                }
            }
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

    /// Takes a word in, where there is one, and begins another.
    fn finish_word(&mut self, word: &mut WordHasher) {
        if word.len > 0 {
            let hash = std::mem::take(word).hash();
            self.hash_sum = self.hash_sum.wrapping_add(hash);
            self.hashes.push((hash >> 32) as u32);
        }
    }

    /// One signature for all of them; `None`: there are none, or too many.
    pub fn unordered_signature(&self, key: &HashKey) -> Option<Sig> {
        (self.bytes <= Self::BYTES_MAX && !self.hashes.is_empty())
            .then(|| Sig::new(key.hash_pair(SignatureKind::Words, self.hash_sum, 0)))
    }

    /// All of them, where an overlap of .9 short of all is possible.
    pub fn into_hashes(self) -> WordHashes {
        if self.bytes > Self::BYTES_MAX || self.hashes.len() < Self::SET_LEN_MIN {
            return WordHashes::default();
        }
        self.hashes
    }
}

/// What a byte is in a word: no part of it, a digit, else the small letter.
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

/// The hash of a word, made as its letters come. Without a key, like the words
/// of turns: who makes words collide makes only its own calls alike, which
/// repeating them does as well. By hand, for a hasher that is asked for every
/// letter costs more than all the rest of a call's arguments.
#[derive(Default)]
struct WordHasher {
    /// The letters since the last eighth one.
    chunk: u64,
    len: u64,
    /// Those before.
    state: u64,
}

impl WordHasher {
    /// Odd, and with as many ones as zeros: digits of pi.
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
