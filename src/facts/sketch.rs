use std::hash::Hasher;

use foldhash::quality::FoldHasher;

use super::{
    Key,
    listener::{Hearing, Listener},
    stem::Stem,
};
use crate::domain::{Sketch, TurnFacts, text};

/// Makes the facts of a turn from its text, in pieces or whole: how the text is
/// cut makes no difference. Of a long text the beginning and the end are looked
/// at, so that its cost has a bound.
#[derive(Default)]
pub struct Sketcher {
    words: Lowest<{ Sketch::WORDS_MAX }>,
    numbers: Lowest<{ Sketch::NUMBERS_MAX }>,
    stems: Lowest<{ Sketch::STEMS_MAX }>,
    hearing: Hearing,
    /// The token that the last piece ended in.
    token: Option<Token>,
    /// Tokens begun.
    tokens: u32,
    chars: usize,
    /// How much of the beginning was taken in.
    head_bytes: usize,
    /// What came after the beginning, the latest of it.
    tail: String,
    /// Some of what came after the beginning was let go of.
    gap: bool,
}

struct Token {
    hasher: FoldHasher<'static>,
    has_digit: bool,
    stem: Stem,
}

impl Sketcher {
    /// As much of each end of a text is looked at.
    const END_BYTES_MAX: usize = 32 * 1024;

    pub fn push(&mut self, piece: &str, listener: &Listener) {
        self.chars += piece.chars().count();
        // Once a character goes to the tail all others do, so that the parts do
        // not depend on how the text is cut.
        let room = if self.tail.is_empty() && !self.gap {
            Self::END_BYTES_MAX - self.head_bytes
        } else {
            0
        };
        let head = text::prefix(piece, room);
        self.take(head, listener);
        self.head_bytes += head.len();
        let rest = &piece[head.len()..];
        let last = last_bytes(rest, Self::END_BYTES_MAX);
        self.gap |= last.len() < rest.len();
        self.tail.push_str(last);
        // Twice as much as is needed, so that moving it is rare.
        if self.tail.len() > 2 * Self::END_BYTES_MAX {
            self.trim_tail();
        }
    }

    pub fn finish(mut self, listener: &Listener) -> TurnFacts {
        self.trim_tail();
        if self.gap {
            self.end_token();
            self.hearing.interrupt();
        }
        let tail = std::mem::take(&mut self.tail);
        self.take(&tail, listener);
        self.end_token();
        TurnFacts {
            sketch: Sketch {
                words: self.words.finish(),
                numbers: self.numbers.finish(),
                stems: self.stems.finish(),
                vector: Box::default(),
            },
            chars: self.chars,
            heard: self.hearing.heard,
            repeated: None,
        }
    }

    fn trim_tail(&mut self) {
        let kept = last_bytes(&self.tail, Self::END_BYTES_MAX).len();
        let cut = self.tail.len() - kept;
        self.gap |= cut > 0;
        self.tail.drain(..cut);
    }

    fn take(&mut self, piece: &str, listener: &Listener) {
        for c in piece.chars() {
            if c.is_ascii() {
                self.take_lower(c.to_ascii_lowercase(), listener);
            } else {
                c.to_lowercase().for_each(|c| self.take_lower(c, listener));
            }
        }
    }

    fn take_lower(&mut self, c: char, listener: &Listener) {
        if c.is_whitespace() {
            self.end_token();
        } else if !text::is_unseen(c) {
            if self.token.is_none() {
                self.tokens = self.tokens.saturating_add(1);
            }
            let token = self.token.get_or_insert_with(|| Token {
                hasher: Key::token(),
                has_digit: false,
                stem: Stem::default(),
            });
            token.has_digit |= c.is_numeric();
            // A character at a time, so that the hash depends on the token alone
            // and not on the pieces it came in.
            token.hasher.write_u32(u32::from(c));
            token.stem.push(c);
        }
        listener.hear(c, self.tokens, &mut self.hearing);
    }

    fn end_token(&mut self) {
        let Some(token) = self.token.take() else {
            return;
        };
        // The upper half: the lower one also picks map slots elsewhere.
        let hash = (token.hasher.finish() >> 32) as u32;
        if token.has_digit {
            self.numbers.push(hash);
        } else {
            self.words.push(hash);
            if let Some(stem) = token.stem.hash() {
                self.stems.push(stem);
            }
        }
    }

    pub fn heap_bytes(&self) -> usize {
        let hashes = [&self.words.seen, &self.numbers.seen, &self.stems.seen];
        let hashes = hashes.iter().map(|seen| seen.capacity() * size_of::<u32>());
        hashes.sum::<usize>() + self.tail.capacity()
    }
}

/// The longest end of at most `bytes_max` bytes that begins between characters.
fn last_bytes(text: &str, bytes_max: usize) -> &str {
    let from = text.ceil_char_boundary(text.len().saturating_sub(bytes_max));
    &text[from..]
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
    use crate::domain::Phrase;

    fn facts(pieces: &[&str]) -> TurnFacts {
        let phrases = ["start over".to_owned(), "hi there".to_owned()].map(Phrase::from);
        let listener = Listener::new(&phrases).unwrap();
        let mut sketcher = Sketcher::default();
        for piece in pieces {
            sketcher.push(piece, &listener);
        }
        sketcher.finish(&listener)
    }

    fn sketch(pieces: &[&str]) -> Sketch {
        facts(pieces).sketch
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

    #[test]
    fn of_a_long_text_the_beginning_and_the_end_are_looked_at() {
        let filler = "x ".repeat(100_000);
        let whole = format!("first {filler} middle {filler} last");
        let made = sketch(&[&whole]);
        assert_eq!(made.words.len(), 3, "first, x, last");
        let pieces: Vec<&str> = whole.split_inclusive(' ').collect();
        assert_eq!(made, sketch(&pieces));
    }

    proptest! {
        #[test]
        fn how_the_text_is_cut_makes_no_difference(text in "(\\PC|\\s){0,200}", cut in 0usize..200) {
            let cut = text.floor_char_boundary(cut);
            prop_assert_eq!(sketch(&[&text]), sketch(&[&text[..cut], &text[cut..]]));
        }
    }
}
