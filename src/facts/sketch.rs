use std::hash::Hasher;

use foldhash::quality::FoldHasher;

use super::Key;
use crate::domain::{Sketch, TurnFacts, text};

/// Makes the sketch of a turn from its text, in pieces or whole: how the text
/// is cut makes no difference.
#[derive(Default)]
pub struct Sketcher {
    words: Lowest<{ Sketch::WORDS_MAX }>,
    numbers: Lowest<{ Sketch::NUMBERS_MAX }>,
    /// The token that the last piece ended in.
    token: Option<Token>,
}

struct Token {
    hasher: FoldHasher<'static>,
    has_digit: bool,
}

impl Sketcher {
    pub fn push(&mut self, piece: &str, key: &Key) {
        for c in piece.chars() {
            if c.is_whitespace() {
                self.end_token();
            } else if !text::is_unseen(c) {
                let token = self.token.get_or_insert_with(|| Token {
                    hasher: key.token(),
                    has_digit: false,
                });
                token.has_digit |= c.is_numeric();
                // A character at a time, so that the hash depends on the token
                // alone and not on the pieces it came in.
                if c.is_ascii() {
                    token.hasher.write_u32(u32::from(c.to_ascii_lowercase()));
                } else {
                    c.to_lowercase()
                        .for_each(|c| token.hasher.write_u32(u32::from(c)));
                }
            }
        }
    }

    pub fn finish(mut self) -> TurnFacts {
        self.end_token();
        TurnFacts {
            sketch: Sketch {
                words: self.words.finish(),
                numbers: self.numbers.finish(),
            },
        }
    }

    fn end_token(&mut self) {
        if let Some(token) = self.token.take() {
            let hash = token.hasher.finish();
            // The upper half: the lower one also picks map slots elsewhere.
            let hash = (hash >> 32) as u32;
            if token.has_digit {
                self.numbers.push(hash);
            } else {
                self.words.push(hash);
            }
        }
    }

    pub fn heap_bytes(&self) -> usize {
        (self.words.seen.capacity() + self.numbers.seen.capacity()) * size_of::<u32>()
    }
}

/// The `N` lowest distinct hashes of all that are pushed: all of them where
/// there are no more than `N`, else a fair sample. Room for twice as many makes
/// the sorting rare.
#[derive(Default)]
struct Lowest<const N: usize> {
    seen: Vec<u32>,
}

impl<const N: usize> Lowest<N> {
    fn push(&mut self, hash: u32) {
        if self.seen.len() >= 2 * N {
            self.settle();
        }
        self.seen.push(hash);
    }

    fn settle(&mut self) {
        self.seen.sort_unstable();
        self.seen.dedup();
        self.seen.truncate(N);
    }

    fn finish(mut self) -> Box<[u32]> {
        self.settle();
        self.seen.into_boxed_slice()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sketch(pieces: &[&str]) -> Sketch {
        let key = Key::fixed();
        let mut sketcher = Sketcher::default();
        for piece in pieces {
            sketcher.push(piece, &key);
        }
        sketcher.finish().sketch
    }

    #[test]
    fn tokens_are_distinct_lower_case_words_with_numbers_apart() {
        let made = sketch(&["Batch 12 of 500: the batch, THE batch"]);
        assert_eq!((made.words.len(), made.numbers.len()), (4, 2));
        assert_eq!(made, sketch(&["batch 12 of 500: the batch, the batch"]));
    }

    #[test]
    fn zero_width_characters_change_nothing() {
        assert_eq!(sketch(&["wo\u{200b}rd"]), sketch(&["word"]));
        assert!(sketch(&["\u{200b} \u{feff}"]).is_empty());
    }

    #[test]
    fn a_long_turn_keeps_the_lowest_hashes() {
        let text: String = (0..5_000).map(|n| format!("w{} ", letters(n))).collect();
        assert_eq!(sketch(&[&text]).words.len(), Sketch::WORDS_MAX);
    }

    fn letters(mut n: u32) -> String {
        let mut word = String::new();
        while n > 0 {
            word.push(char::from(b'a' + (n % 26) as u8));
            n /= 26;
        }
        word
    }

    proptest! {
        #[test]
        fn how_the_text_is_cut_makes_no_difference(text in "(\\PC|\\s){0,200}", cut in 0usize..200) {
            let cut = text.floor_char_boundary(cut);
            prop_assert_eq!(sketch(&[&text]), sketch(&[&text[..cut], &text[cut..]]));
        }
    }
}
