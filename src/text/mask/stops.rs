//! The places of a text at which something that is noise can be told: where
//! digits begin, and slashes, colons, hyphens and quotes that can be part of it.
//! All that lies between them is passed over; what can be none by the bytes beside
//! it is told from the others sixty-four at a time.

use super::json;
use super::lanes::{BLOCK, between, bits, digit, equal, from, letter};

/// Where a uuid has its second hyphen, seen from its first.
const UUID_HYPHENS: u32 = 5;

/// Finds them, from left to right.
pub struct Stops<'a> {
    /// A bit for each byte of the text, from the block on that comes next.
    blocks: std::slice::Iter<'a, u64>,
    /// Those of this block that are left, and where it begins.
    bits: u64,
    start: usize,
    /// There may be a run of base64 that is long enough for media.
    pub has_run: bool,
    /// There may be members of a JSON object.
    pub has_keys: bool,
}

impl<'a> Stops<'a> {
    /// Those of a text that is filled up with zeros to whole blocks. `bits` are
    /// zeros, as many as there are blocks.
    pub fn of(blocks: &[[u8; BLOCK]], bits: &'a mut [u64]) -> Self {
        let (mut has_run, mut has_keys) = (false, false);
        let mut last = Block::default();
        let mut run = 0;
        for (n, bytes) in blocks.iter().enumerate() {
            let block = Block::of(bytes);
            if let Some(bits) = bits.get_mut(n) {
                *bits |= block.stops(&last);
            }
            // Such a colon may stand behind a key, and the key says what is noise.
            let mut colons = block.colons & !block.behind(&last, Block::words);
            while colons != 0 {
                let colon = n * BLOCK + colons.trailing_zeros() as usize;
                colons &= colons - 1;
                let Some(key) = json::key_before(blocks.as_flattened(), colon) else {
                    continue;
                };
                has_keys = true;
                if let Some(quote) = key.noisy()
                    && let Some(bits) = bits.get_mut(quote / BLOCK)
                {
                    *bits |= 1 << (quote % BLOCK);
                }
            }
            has_run |= block.has_run(&mut run);
            last = block;
        }
        let mut blocks = bits.iter();
        Self {
            bits: blocks.next().copied().unwrap_or(0),
            blocks,
            start: 0,
            has_run,
            has_keys,
        }
    }

    #[inline]
    pub fn next(&mut self) -> Option<usize> {
        while self.bits == 0 {
            self.bits = *self.blocks.next()?;
            self.start += BLOCK;
        }
        let stop = self.start + self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(stop)
    }
}

/// What the bytes of a block are.
#[derive(Default)]
struct Block {
    digits: u64,
    letters: u64,
    /// And plus signs: what besides letters and digits is base64.
    slashes: u64,
    colons: u64,
    hyphens: u64,
    lines: u64,
}

impl Block {
    #[inline]
    fn of(bytes: &[u8; BLOCK]) -> Self {
        Self {
            digits: bits(bytes, digit),
            letters: bits(bytes, letter),
            slashes: bits(bytes, |lane| equal(lane, b'/') | equal(lane, b'+')),
            colons: bits(bytes, |lane| equal(lane, b':')),
            hyphens: bits(bytes, |lane| equal(lane, b'-')),
            lines: bits(bytes, |lane| equal(lane, b'\n')),
        }
    }

    fn words(&self) -> u64 {
        self.digits | self.letters
    }

    /// The bytes behind one that `is`; `last` is the block before.
    #[inline]
    fn behind(&self, last: &Self, is: impl Fn(&Self) -> u64) -> u64 {
        is(self) << 1 | is(last) >> (BLOCK - 1)
    }

    #[inline]
    fn stops(&self, last: &Self) -> u64 {
        let behind_letter = self.behind(last, |block| block.letters);
        let behind_digit = self.behind(last, |block| block.digits);
        let behind_word = behind_letter | behind_digit;
        // What the next block holds is not known here.
        let far = from(BLOCK - UUID_HYPHENS as usize);
        let hyphens = self.hyphens & (self.hyphens >> UUID_HYPHENS | far);
        self.lines
            | self.digits & !behind_digit
            | self.slashes & !behind_word
            | (self.colons | hyphens) & behind_letter
    }

    /// Whether a run of base64 that is long enough for media may end or lie here.
    /// `run` is how far one has come at the end of the block before.
    #[inline]
    fn has_run(&self, run: &mut usize) -> bool {
        const LENGTH: usize = super::media::RUN_LEN_MIN;
        /// Within the block it covers all of these, wherever it begins.
        const MIDDLE: u64 = u64::MAX >> (2 * (BLOCK - LENGTH)) << (BLOCK - LENGTH);
        let base64 = self.words() | self.slashes;
        let begun = *run + base64.trailing_ones() as usize;
        *run = if base64 == u64::MAX {
            begun
        } else {
            base64.leading_ones() as usize
        };
        begun >= LENGTH || base64 & MIDDLE == MIDDLE
    }
}

/// Whether there is a run of so many bytes of base64, at most a block.
pub fn has_run(text: &[u8], length: usize) -> bool {
    let whole = u64::MAX >> (BLOCK - length);
    let mut before = 0;
    let mut start = 0;
    while start < text.len() {
        let mut bits = base64(text, start);
        // One that began in the block before.
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
            // No run within this block that begins later is long enough.
            if BLOCK - (at as usize + run.trailing_ones() as usize) < length {
                break;
            }
            bits &= u64::MAX << (at + run.trailing_ones());
        }
        start += BLOCK;
    }
    false
}

/// Those of the block at `start`.
#[inline]
fn base64(text: &[u8], start: usize) -> u64 {
    let rest = text.get(start..).unwrap_or_default();
    let mut short = [0; BLOCK];
    let block = rest.first_chunk::<BLOCK>().unwrap_or_else(|| {
        // Zeros are none.
        if let Some(head) = short.get_mut(..rest.len()) {
            head.copy_from_slice(rest);
        }
        &short
    });
    // The slash and the digits stand in a row.
    bits(block, |lane| {
        letter(lane) | between(lane, b'/', b'9') | equal(lane, b'+')
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stops(text: &[u8]) -> (Vec<usize>, bool) {
        let mut blocks = vec![[0; BLOCK]; text.len().div_ceil(BLOCK)];
        blocks.as_flattened_mut()[..text.len()].copy_from_slice(text);
        let mut bits = vec![0; blocks.len()];
        let mut stops = Stops::of(&blocks, &mut bits);
        let found = std::iter::from_fn(|| stops.next()).collect();
        (found, stops.has_run)
    }

    proptest! {
        #[test]
        fn none_is_missed(text in "[a-z .:/'\"\n0-9-]{0,300}") {
            let text = text.as_bytes();
            let (found, _) = stops(text);
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
        fn a_run_is_found_wherever_it_stands(before in 0usize..200, run in 55usize..80, after in 0usize..80) {
            let text = "a b ".repeat(before) + &"Ab/9+".repeat(run)[..run] + &" c".repeat(after);
            prop_assert_eq!(has_run(text.as_bytes(), 62), run >= 62);
            prop_assert!(run < 62 || stops(text.as_bytes()).1);
        }
    }

    #[test]
    fn a_key_is_a_stop_if_its_value_may_be_noise() {
        for (text, found) in [
            (r#"{"id": "a"}"#, vec![1]),
            (r#"{"name": "a"}"#, vec![]),
            ("{'ts' : x}", vec![1]),
            (r#"{\"id\": \"a\"}"#, vec![2]),
            (r#"it's"id": a"#, vec![]),
        ] {
            assert_eq!(stops(text.as_bytes()).0, found, "{text}");
        }
    }
}
