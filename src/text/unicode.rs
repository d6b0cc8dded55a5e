//! Classifies characters beyond ASCII, for code that classifies every character of a
//! text.
//!
//! The standard library searches Unicode's tables, at about 200 instructions per query.
//! For the scripts with the most characters and no case, a comparison with the range of
//! the block replaces that search. The results are identical.

/// Whether `c` is a letter. The same as [`char::is_alphabetic`].
#[inline]
pub(super) fn is_letter(c: char) -> bool {
    letter_by_block(c).unwrap_or_else(|| c.is_alphabetic())
}

/// Whether `c` is numeric. The same as [`char::is_numeric`].
#[inline]
pub(super) fn is_numeric(c: char) -> bool {
    letter_by_block(c).is_none() && c.is_numeric()
}

/// Whether `c` belongs to a script that puts no space between words: Thai, Lao, Burmese,
/// Khmer, Japanese, Chinese.
#[inline]
pub(super) fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{e00}'..='\u{eff}'
        | '\u{1000}'..='\u{109f}'
        | '\u{1780}'..='\u{17ff}'
        | '\u{2e80}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}')
}

/// Calls `each` with the characters of the lower-case form of `c`.
#[inline]
pub(super) fn for_each_lowercase(c: char, mut each: impl FnMut(char)) {
    match letter_by_block(c) {
        Some(_) => each(c),
        None => c.to_lowercase().for_each(each),
    }
}

/// The first character of the lower-case form of `c`.
#[inline]
pub(super) fn first_lowercase(c: char) -> char {
    match letter_by_block(c) {
        Some(_) => c,
        None => c.to_lowercase().next().unwrap_or(c),
    }
}

/// Whether `c` is a letter, decided by its block. With `Some`, `c` is not numeric and
/// has no case. `None` if the block does not decide.
#[inline]
fn letter_by_block(c: char) -> Option<bool> {
    match c {
        // Combining marks that are not letters.
        '\u{300}'..='\u{344}' | '\u{346}'..='\u{362}' => Some(false),
        // Hiragana, katakana, Chinese characters and Hangul.
        '\u{3041}'..='\u{3096}'
        | '\u{30a1}'..='\u{30fa}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}' => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_is_classified_like_the_unicode_tables() {
        for c in '\0'..=char::MAX {
            assert_eq!(is_letter(c), c.is_alphabetic(), "{c:?}");
            assert_eq!(is_numeric(c), c.is_numeric(), "{c:?}");
            let mut lower = String::new();
            for_each_lowercase(c, |c| lower.push(c));
            assert_eq!(lower, c.to_lowercase().collect::<String>(), "{c:?}");
            assert!(lower.starts_with(first_lowercase(c)), "{c:?}");
        }
    }
}
