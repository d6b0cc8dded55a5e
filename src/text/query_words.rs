//! The words of a search query. A search engine answers the words, whatever their order, so
//! a query whose words were all in an earlier one asks nothing new.
//!
//! Cost: one pass over at most 400 bytes.

use std::sync::Arc;

use crate::text::mixing::{GOLDEN_RATIO_64, folded_multiply};

/// A longer text is a task or a program.
const QUERY_BYTES_MAX: usize = 400;
/// A few words are a name or a pattern, and another look at it is another question.
const WORDS_MIN: usize = 6;
/// Shorter words have no plural to take off.
const PLURAL_BYTES_MIN: usize = 4;

/// The distinct words and numbers of a query as sorted hashes; `None`: it has too few.
pub fn hash_query_words(query: &str) -> Option<Arc<[u32]>> {
    if query.len() > QUERY_BYTES_MAX || query.split_whitespace().nth(WORDS_MIN - 1).is_none() {
        return None;
    }
    let mut hashes: Vec<u32> = query
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(hash_word)
        .collect();
    hashes.sort_unstable();
    hashes.dedup();
    (hashes.len() >= WORDS_MIN).then(|| hashes.into())
}

/// The hash of a word in lower case and without the `s` of a plural.
fn hash_word(word: &str) -> u32 {
    let singular = word
        .strip_suffix(['s', 'S'])
        .filter(|singular| singular.len() >= PLURAL_BYTES_MIN);
    let hash = singular.unwrap_or(word).chars().fold(0, |hash, c| {
        let letter = u64::from(u32::from(c.to_ascii_lowercase()));
        folded_multiply(hash ^ letter ^ GOLDEN_RATIO_64, GOLDEN_RATIO_64)
    });
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_case_marks_and_plurals_do_not_matter() {
        let words = hash_query_words("first year Apple stock prices closed above $50");
        assert!(words.is_some());
        assert_eq!(
            words,
            hash_query_words("Apple \"stock price\" first year: above 50, closed")
        );
    }

    #[test]
    fn another_number_or_name_is_another_query() {
        let query = |rest: &str| hash_query_words(&format!("total output of the region {rest}"));
        assert_ne!(query("Alsace"), query("Savoie"));
        assert_ne!(query("2019"), query("2020"));
    }

    #[test]
    fn a_name_or_a_long_text_has_none() {
        assert_eq!(hash_query_words("func getKeys"), None);
        assert_eq!(hash_query_words(&"word ".repeat(100)), None);
        assert_eq!(hash_query_words("a a a a a a a"), None);
    }
}
