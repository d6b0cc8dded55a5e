//! A token of a turn: what stands between white space, in lower case.

use super::stem::Stem;

/// The token that is being read. Its hash depends on its characters alone, not
/// on the pieces they came in. It has no key: of a long turn the lowest hashes are
/// a sample, and a sample that differed between a server and a replay could give
/// two verdicts on one trace. Who makes words collide makes only its own turns
/// alike, which repeating them does as well.
#[derive(Clone, Copy, Default)]
pub(super) struct Token {
    hash: u64,
    /// The latest bytes that are not in the hash yet, the first lowest.
    pending: u64,
    bytes: u32,
    has_digit: bool,
    stem: Stem,
}

/// What a byte of ASCII is to a token.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Not ASCII, or not seen.
    Other = 0,
    Space = 0x80,
    Letter = 1,
    Digit = 2,
    Mark = 4,
}

const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Other; 256];
    let mut byte = 0;
    while byte < 128 {
        kinds[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Kind::Letter,
            b'0'..=b'9' => Kind::Digit,
            // As `char::is_whitespace` has it.
            b' ' | b'\t'..=b'\r' => Kind::Space,
            b'!'..=b'~' => Kind::Mark,
            _ => Kind::Other,
        };
        byte += 1;
    }
    kinds
};

impl Kind {
    #[inline]
    pub fn of(byte: u8) -> Self {
        KINDS[usize::from(byte)]
    }
}

/// The kinds of a run of bytes, as bits, and how many of them are letters.
#[derive(Clone, Copy, Default)]
pub(super) struct Kinds {
    bits: u8,
    letters: u32,
    /// How many it begins with, as far as that is cheap to say: of a word, or a
    /// word with one mark behind it.
    leading: u32,
}

/// As wide as the hash goes at a time.
const WORD: usize = size_of::<u64>();
/// Odd, with its bits well spread: the digits of pi.
const FACTOR: u64 = 0x2436_a885_a308_d313;
const LAST_FACTOR: u64 = 0x1319_8a2e_0370_7345;

impl Token {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    #[inline]
    pub fn has_digit(&self) -> bool {
        self.has_digit
    }

    #[inline]
    pub fn stem(&self) -> Option<u32> {
        self.stem.hash()
    }

    /// The letters, digits and marks of ASCII that a text begins with: how many.
    #[inline]
    pub fn plain_run(text: &[u8]) -> (usize, Kinds) {
        const PLAIN: u8 = Kind::Letter as u8 | Kind::Digit as u8 | Kind::Mark as u8;
        let mut kinds = Kinds::default();
        let mut length = 0;
        for byte in text {
            let kind = Kind::of(*byte) as u8;
            if kind & PLAIN == 0 {
                break;
            }
            kinds.bits |= kind;
            kinds.letters += u32::from(kind & Kind::Letter as u8);
            length += 1;
        }
        let marked = length > 0 && !text[length - 1].is_ascii_alphabetic();
        let word = length - usize::from(marked);
        kinds.leading = if kinds.letters as usize == word {
            kinds.letters
        } else {
            0
        };
        (length, kinds)
    }

    /// Takes such a run in, in either case: the first `length` bytes of `text`.
    #[inline]
    pub fn push_run(&mut self, text: &[u8], length: usize, kinds: Kinds) {
        if length == 0 {
            return;
        }
        let run = &text[..length];
        self.has_digit |= kinds.bits & Kind::Digit as u8 != 0;
        let begins = kinds.leading == kinds.letters && self.stem.is_empty();
        if begins {
            let first = lower(word_at(text, length.min(WORD)));
            self.stem.begin(first, kinds.letters);
        } else {
            run.iter()
                .filter(|byte| byte.is_ascii_alphabetic())
                .for_each(|byte| self.stem.push(byte.to_ascii_lowercase().into()));
        }
        let filled = self.bytes as usize % WORD;
        let first = length.min((WORD - filled) % WORD);
        for byte in &run[..first] {
            self.push_byte(byte.to_ascii_lowercase());
        }
        let mut at = first;
        while at < length {
            let taken = (length - at).min(WORD);
            self.pending = lower(word_at(&text[at..], taken));
            self.bytes = self.bytes.wrapping_add(taken as u32);
            if taken == WORD {
                self.mix_pending();
            }
            at += taken;
        }
    }

    /// Takes a character in, in lower case.
    pub fn push(&mut self, c: char) {
        self.has_digit |= c.is_numeric();
        self.stem.push(c);
        let mut buffer = [0; 4];
        for byte in c.encode_utf8(&mut buffer).bytes() {
            self.push_byte(byte);
        }
    }

    fn push_byte(&mut self, byte: u8) {
        let filled = self.bytes as usize % WORD;
        self.pending |= u64::from(byte) << (8 * filled);
        self.bytes = self.bytes.wrapping_add(1);
        if filled + 1 == WORD {
            self.mix_pending();
        }
    }

    #[inline]
    fn mix_pending(&mut self) {
        let word = std::mem::take(&mut self.pending);
        self.hash = fold(self.hash ^ word, FACTOR);
    }

    #[inline]
    pub fn hash(&self) -> u32 {
        let last = self.pending ^ u64::from(self.bytes).rotate_right(8);
        (fold(fold(self.hash ^ last, FACTOR), LAST_FACTOR) >> 32) as u32
    }
}

/// The two halves of a product, folded into one.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ b.rotate_left(17)).wrapping_mul(u128::from(b));
    (product as u64) ^ ((product >> 64) as u64)
}

/// The first `length` bytes of a text, at most eight, the first lowest.
#[inline]
fn word_at(text: &[u8], length: usize) -> u64 {
    match text.first_chunk::<WORD>() {
        // What lies behind them is cut off.
        Some(bytes) => {
            let unused = 8 * (WORD - length) as u32;
            (u64::from_le_bytes(*bytes) << unused) >> unused
        }
        None => {
            let mut bytes = [0; WORD];
            bytes[..length].copy_from_slice(&text[..length]);
            u64::from_le_bytes(bytes)
        }
    }
}

/// Eight bytes of ASCII in lower case.
#[inline]
fn lower(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x80 * ONES;
    // A byte's top bit is set from `A` on, and from the one after `Z` on.
    let from_a = word.wrapping_add((0x80 - b'A' as u64) * ONES);
    let after_z = word.wrapping_add((0x7f - b'Z' as u64) * ONES);
    word | (((from_a ^ after_z) & TOPS) >> 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> Token {
        let mut token = Token::default();
        let (length, kinds) = Token::plain_run(text.as_bytes());
        assert_eq!(length, text.len());
        token.push_run(text.as_bytes(), length, kinds);
        token
    }

    #[test]
    fn eight_bytes_are_lowered_as_one_by_one() {
        for first in b'!'..=b'~' {
            let bytes: [u8; WORD] = std::array::from_fn(|n| b'!' + (first - b'!' + n as u8) % 94);
            let lowered = bytes.map(|byte| byte.to_ascii_lowercase());
            assert_eq!(
                lower(u64::from_le_bytes(bytes)),
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
        fn the_pieces_do_not_matter(text in "[!-~]{1,40}", cut in 0usize..40) {
            let cut = cut.min(text.len());
            let mut pieces = Token::default();
            for piece in [&text[..cut], &text[cut..]] {
                let (length, kinds) = Token::plain_run(piece.as_bytes());
                pieces.push_run(format!("{piece} and more").as_bytes(), length, kinds);
            }
            let mut chars = Token::default();
            text.to_lowercase().chars().for_each(|c| chars.push(c));
            let of = |token: &Token| (token.hash(), token.has_digit(), token.stem());
            prop_assert_eq!(of(&pieces), of(&whole(&text)));
            prop_assert_eq!(of(&chars), of(&whole(&text)));
        }
    }
}
