//! What a character beyond ASCII is, for texts of which every character is asked:
//! Unicode's tables are searched, at some 200 instructions a question. Of the
//! scripts that have no case and the most characters the block alone says it.

/// It is a letter, as [`char::is_alphabetic`] has it.
#[inline]
pub(super) fn is_letter(c: char) -> bool {
    letter_by_block(c).unwrap_or_else(|| c.is_alphabetic())
}

/// It is a figure, as [`char::is_numeric`] has it.
#[inline]
pub(super) fn is_numeric(c: char) -> bool {
    letter_by_block(c).is_none() && c.is_numeric()
}

/// Calls `each` with the characters that it is in lower case.
#[inline]
pub(super) fn for_each_lowercase(c: char, mut each: impl FnMut(char)) {
    match letter_by_block(c) {
        Some(_) => each(c),
        None => c.to_lowercase().for_each(each),
    }
}

/// The first of them.
#[inline]
pub(super) fn first_lowercase(c: char) -> char {
    match letter_by_block(c) {
        Some(_) => c,
        None => c.to_lowercase().next().unwrap_or(c),
    }
}

/// Whether it is a letter; neither is a figure, nor has an upper case. `None`: its
/// block does not say.
#[inline]
fn letter_by_block(c: char) -> Option<bool> {
    match c {
        // Combining marks that are no letters.
        '\u{300}'..='\u{344}' | '\u{346}'..='\u{362}' => Some(false),
        // Hiragana, katakana, Chinese characters, Hangul.
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
    fn it_says_of_every_character_what_the_tables_say() {
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
