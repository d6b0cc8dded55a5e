//! Finds the byte positions of a text at which noise may be recognised: starts of digit
//! runs, slashes, colons, hyphens, line feeds, and the opening quotes of JSON keys.
//!
//! The text is classified in blocks of 64 bytes, one bit per byte. Positions ruled out
//! by neighbouring bytes are discarded with 64-bit masks, and the text between
//! candidates is skipped, because most bytes of a result are not noise. Cost: a few
//! instructions per 16 bytes and class, plus a check of the key before each colon.

use super::json;
use crate::text::simd::{
    BLOCK_BYTES, bits_from, equals, in_range, is_digit, is_letter, match_bits,
};

/// Distance from the first hyphen of a uuid to the second.
const UUID_HYPHEN_DISTANCE: u32 = 5;

/// Yields the candidates from left to right.
pub struct NoiseCandidates<'a> {
    /// One bit per byte of the text, starting with the next block.
    blocks: std::slice::Iter<'a, u64>,
    /// The remaining candidates of the current block, and the offset at which it
    /// begins.
    bits: u64,
    start: usize,
    /// The text may contain a run of base64 that is long enough for media.
    pub has_base64_run: bool,
    /// The text may contain members of a JSON object.
    pub has_keys: bool,
}

impl<'a> NoiseCandidates<'a> {
    /// Finds the candidates of a text that is padded with zeros to whole blocks. `bits`
    /// must be zeros, one word per block.
    pub fn find(blocks: &[[u8; BLOCK_BYTES]], bits: &'a mut [u64]) -> Self {
        let (mut has_run, mut has_keys) = (false, false);
        let mut last = CandidateByteClasses::default();
        let mut run = 0;
        for (n, bytes) in blocks.iter().enumerate() {
            let block = CandidateByteClasses::classify(bytes);
            if let Some(bits) = bits.get_mut(n) {
                *bits |= block.candidates(&last);
            }
            // This colon may follow a key, and the key determines whether its value is
            // noise.
            let mut colons =
                block.colons & !block.following(&last, CandidateByteClasses::alphanumerics);
            while colons != 0 {
                let colon = n * BLOCK_BYTES + colons.trailing_zeros() as usize;
                colons &= colons - 1;
                let Some(key) = json::find_key_before(blocks.as_flattened(), colon) else {
                    continue;
                };
                has_keys = true;
                if let Some(quote) = key.noise_key_start()
                    && let Some(bits) = bits.get_mut(quote / BLOCK_BYTES)
                {
                    *bits |= 1 << (quote % BLOCK_BYTES);
                }
            }
            has_run |= block.has_base64_run(&mut run);
            last = block;
        }
        let mut blocks = bits.iter();
        Self {
            bits: blocks.next().copied().unwrap_or(0),
            blocks,
            start: 0,
            has_base64_run: has_run,
            has_keys,
        }
    }

    #[inline]
    pub fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            self.bits = *self.blocks.next()?;
            self.start += BLOCK_BYTES;
        }
        let stop = self.start + self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(stop)
    }
}

/// Classes of the bytes of a block, one bit per byte.
#[derive(Default)]
struct CandidateByteClasses {
    digits: u64,
    letters: u64,
    /// Slashes and plus signs: the base64 characters other than letters and digits.
    slashes: u64,
    colons: u64,
    hyphens: u64,
    newlines: u64,
}

impl CandidateByteClasses {
    #[inline]
    fn classify(bytes: &[u8; BLOCK_BYTES]) -> Self {
        Self {
            digits: match_bits(bytes, is_digit),
            letters: match_bits(bytes, is_letter),
            slashes: match_bits(bytes, |lane| equals(lane, b'/') | equals(lane, b'+')),
            colons: match_bits(bytes, |lane| equals(lane, b':')),
            hyphens: match_bits(bytes, |lane| equals(lane, b'-')),
            newlines: match_bits(bytes, |lane| equals(lane, b'\n')),
        }
    }

    fn alphanumerics(&self) -> u64 {
        self.digits | self.letters
    }

    /// The bytes that directly follow a byte in the class `is`. `last` is the previous
    /// block.
    #[inline]
    fn following(&self, last: &Self, is: impl Fn(&Self) -> u64) -> u64 {
        is(self) << 1 | is(last) >> (BLOCK_BYTES - 1)
    }

    #[inline]
    fn candidates(&self, last: &Self) -> u64 {
        let behind_letter = self.following(last, |block| block.letters);
        let behind_digit = self.following(last, |block| block.digits);
        let behind_word = behind_letter | behind_digit;
        // The next block is not known yet, so hyphens near the end are kept.
        let far = bits_from(BLOCK_BYTES - UUID_HYPHEN_DISTANCE as usize);
        let hyphens = self.hyphens & (self.hyphens >> UUID_HYPHEN_DISTANCE | far);
        self.newlines
            | self.digits & !behind_digit
            | self.slashes & !behind_word
            | (self.colons | hyphens) & behind_letter
    }

    /// Whether a run of base64 that is long enough for media may end in or lie within
    /// this block. `run` is the length of the run at the end of the previous block.
    #[inline]
    fn has_base64_run(&self, run: &mut usize) -> bool {
        const LENGTH: usize = super::media::RUN_LEN_MIN;
        /// A run within the block covers all of these bytes, wherever it begins.
        const MIDDLE: u64 = u64::MAX >> (2 * (BLOCK_BYTES - LENGTH)) << (BLOCK_BYTES - LENGTH);
        let base64 = self.alphanumerics() | self.slashes;
        let run_len = *run + base64.trailing_ones() as usize;
        *run = if base64 == u64::MAX {
            run_len
        } else {
            base64.leading_ones() as usize
        };
        run_len >= LENGTH || base64 & MIDDLE == MIDDLE
    }
}

/// Whether the text has a run of at least `length` bytes of base64. `length` is at most
/// a block.
pub fn contains_base64_run(text: &[u8], length: usize) -> bool {
    let whole = u64::MAX >> (BLOCK_BYTES - length);
    let mut before = 0;
    let mut start = 0;
    while start < text.len() {
        let mut bits = base64_bits(text, start);
        // A run that began in the previous block.
        if before + bits.trailing_ones() as usize >= length {
            return true;
        }
        before = bits.leading_ones() as usize;
        while bits != 0 {
            let at = bits.trailing_zeros();
            let run = bits >> at;
            if run & whole == whole {
                return true;
            }
            // No run that begins later in this block is long enough.
            if BLOCK_BYTES - (at as usize + run.trailing_ones() as usize) < length {
                break;
            }
            bits &= u64::MAX << (at + run.trailing_ones());
        }
        start += BLOCK_BYTES;
    }
    false
}

/// The base64 bytes of the block at `start`, one bit per byte.
#[inline]
fn base64_bits(text: &[u8], start: usize) -> u64 {
    let rest = text.get(start..).unwrap_or_default();
    let mut short = [0; BLOCK_BYTES];
    let block = rest.first_chunk::<BLOCK_BYTES>().unwrap_or_else(|| {
        // Zeros are not base64.
        if let Some(head) = short.get_mut(..rest.len()) {
            head.copy_from_slice(rest);
        }
        &short
    });
    // The slash directly precedes the digits in ASCII.
    match_bits(block, |lane| {
        is_letter(lane) | in_range(lane, b'/', b'9') | equals(lane, b'+')
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn find_candidates(text: &[u8]) -> (Vec<usize>, bool) {
        let mut blocks = vec![[0; BLOCK_BYTES]; text.len().div_ceil(BLOCK_BYTES)];
        blocks.as_flattened_mut()[..text.len()].copy_from_slice(text);
        let mut bits = vec![0; blocks.len()];
        let mut stops = NoiseCandidates::find(&blocks, &mut bits);
        let found = std::iter::from_fn(|| stops.next()).collect();
        (found, stops.has_base64_run)
    }

    proptest! {
        #[test]
        fn no_candidate_is_missed(text in "[a-z .:/'\"\n0-9-]{0,300}") {
            let text = text.as_bytes();
            let (found, _) = find_candidates(text);
            for (at, byte) in text.iter().enumerate() {
                let before = at.checked_sub(1).map_or(0, |at| text[at]);
                let is_stop = match byte {
                    b'\n' => true,
                    b'0'..=b'9' => !before.is_ascii_digit(),
                    b'/' => !before.is_ascii_alphanumeric(),
                    b':' => before.is_ascii_alphabetic(),
                    b'-' => before.is_ascii_alphabetic() && text.get(at + 5) == Some(&b'-'),
                    _ => false,
                };
                prop_assert!(!is_stop || found.contains(&at), "{at}");
            }
            prop_assert!(found.is_sorted());
        }

        #[test]
        fn a_run_is_found_at_any_offset(before in 0usize..200, run in 55usize..80, after in 0usize..80) {
            let text = "a b ".repeat(before) + &"Ab/9+".repeat(run)[..run] + &" c".repeat(after);
            prop_assert_eq!(contains_base64_run(text.as_bytes(), 62), run >= 62);
            prop_assert!(run < 62 || find_candidates(text.as_bytes()).1);
        }
    }

    #[test]
    fn a_key_whose_value_may_be_noise_is_a_candidate() {
        for (text, found) in [
            (r#"{"id": "a"}"#, vec![1]),
            (r#"{"name": "a"}"#, vec![]),
            ("{'ts' : x}", vec![1]),
            (r#"{\"id\": \"a\"}"#, vec![2]),
            (r#"it's"id": a"#, vec![]),
        ] {
            assert_eq!(find_candidates(text.as_bytes()).0, found, "{text}");
        }
    }
}
