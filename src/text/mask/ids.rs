//! Recognises machine-generated names: uuids, hashes, addresses and request ids. Also
//! recognises compiler error codes, which look similar but carry meaning.
//!
//! Cost: a few passes over one word.

use super::cursor::Cursor;

/// The shortest commit abbreviation that git prints.
pub const HEX_HASH_LEN_MIN: usize = 7;
const LONG_ID_LEN_MIN: usize = 12;

/// Matches `f81d4fae-7dec-11d0-a765-00a0c91e6bf6`.
pub fn uuid_end(mut c: Cursor) -> Option<usize> {
    for (i, len) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        let hyphen = i == 0 || c.eat(b'-');
        if !hyphen || c.skip_while(|b| b.is_ascii_hexdigit()) != len {
            return None;
        }
    }
    c.is_word_end().then_some(c.at)
}

/// Matches `0x7ffe`: an address of any length.
pub fn is_address(word: &[u8]) -> bool {
    matches!(word, [b'0', b'x' | b'X', digits @ ..]
        if !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Whether a word is a hash in hexadecimal. It must have a letter, because a plain
/// number is a result. It must have a digit, because it may otherwise be a word
/// ("defaced", "effaced"); one hash of seven digits in a thousand has none. It must not
/// be in mixed case, because hashes are not.
pub fn is_hex_hash(word: &[u8]) -> bool {
    let any = |is: fn(&u8) -> bool| word.iter().any(is);
    word.len() >= HEX_HASH_LEN_MIN
        && word.iter().all(u8::is_ascii_hexdigit)
        && any(u8::is_ascii_digit)
        && any(u8::is_ascii_lowercase) != any(u8::is_ascii_uppercase)
        && !is_quantity(word)
}

/// Matches `1048576B` and `1000000e3`: digits and one letter, which is a unit or an
/// exponent.
fn is_quantity(word: &[u8]) -> bool {
    let mut letters = word.iter().enumerate().filter(|(_, b)| !b.is_ascii_digit());
    let one = letters.next().filter(|_| letters.next().is_none());
    one.is_some_and(|(i, b)| i > 0 && (i + 1 == word.len() || b.eq_ignore_ascii_case(&b'e')))
        && word.len() < 16
}

/// Matches `011CSHoEeqs5C35K2UUqR7Fy`: a long word with digits in two or more places.
/// `base64decoder` and `configuration12` carry meaning and do not match.
pub fn is_long_id(word: &[u8]) -> bool {
    let starts = word
        .windows(2)
        .filter(|pair| matches!(pair, [a, b] if !a.is_ascii_digit() && b.is_ascii_digit()));
    let leading = usize::from(word.first().is_some_and(u8::is_ascii_digit));
    word.len() >= LONG_ID_LEN_MIN && starts.count() + leading >= 2
}

/// The length of the ids that nanoid makes by default.
pub const NANOID_LEN: usize = 21;

/// Whether joined words are an id of nanoid: letters in both cases, and digits in two places
/// or more.
pub fn is_nanoid(joined: &[u8]) -> bool {
    joined.len() == NANOID_LEN
        && joined.iter().any(u8::is_ascii_uppercase)
        && joined.iter().any(u8::is_ascii_lowercase)
        && is_long_id(joined)
}

/// Matches `E0502`, `TS2304` and `F401`: one to three capitals, then three to five
/// digits.
pub fn is_error_code(word: &[u8]) -> bool {
    let letters = word.iter().take_while(|b| b.is_ascii_uppercase()).count();
    let digits = word.get(letters..).unwrap_or_default();
    (1..=3).contains(&letters)
        && (3..=5).contains(&digits.len())
        && digits.iter().all(u8::is_ascii_digit)
}
