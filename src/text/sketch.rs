use std::ops::Range;

use super::{
    block::{Block, part},
    listener::{Hearing, Listener},
    lowest::Lowest,
    script,
    token::{Kind, Token},
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
    token: Token,
    /// Tokens begun.
    tokens: u32,
    chars: usize,
    /// How much of the beginning was taken in.
    head_bytes: usize,
    /// The latest of it that is not read yet: to begin and to end reading costs as
    /// much as some dozen bytes, and the pieces of a text are a few.
    unread: String,
    /// What came after the beginning, the latest of it.
    tail: String,
    /// Some of what came after the beginning was let go of.
    gap: bool,
}

impl Sketcher {
    /// As much of the beginning of a text is looked at: some 5,000 words, ten
    /// times what is kept of them.
    const HEAD_BYTES_MAX: usize = 32 * 1024;
    /// As much of its end: a paragraph or two. It is kept as it is while the text
    /// is written, so it is short.
    const TAIL_BYTES_MAX: usize = 1_024;

    /// So much of what is unread is read together.
    const UNREAD_BYTES_MAX: usize = 128;

    pub fn push(&mut self, piece: &str, listener: &Listener) {
        // Once a character goes to the tail all others do, so that the parts do
        // not depend on how the text is cut.
        let room = if self.tail.is_empty() && !self.gap {
            Self::HEAD_BYTES_MAX - self.head_bytes
        } else {
            0
        };
        let head = text::prefix(piece, room);
        self.head_bytes += head.len();
        if self.unread.len() + head.len() > Self::UNREAD_BYTES_MAX {
            self.read(listener);
        }
        if head.len() > Self::UNREAD_BYTES_MAX {
            self.take(head, listener);
        } else if !head.is_empty() {
            self.unread
                .reserve_exact(Self::UNREAD_BYTES_MAX - self.unread.len());
            self.unread.push_str(head);
        }
        if head.len() < piece.len() {
            // No more comes to the beginning.
            self.read(listener);
            self.unread = String::new();
            self.keep(&piece[head.len()..]);
        }
    }

    /// Reads what is unread.
    fn read(&mut self, listener: &Listener) {
        let mut unread = std::mem::take(&mut self.unread);
        self.take(&unread, listener);
        unread.clear();
        self.unread = unread;
    }

    /// Keeps the end of what comes after the beginning.
    fn keep(&mut self, rest: &str) {
        // Twice as much as is needed, so that moving it is rare.
        const ROOM: usize = 2 * Sketcher::TAIL_BYTES_MAX;
        self.chars += rest.chars().count();
        let last = last_bytes(rest, Self::TAIL_BYTES_MAX);
        if last.len() < rest.len() {
            // What came before is too far back, and no neighbour of it.
            self.gap = true;
            self.tail.clear();
        }
        if self.tail.len() + last.len() > ROOM {
            self.trim_tail();
        }
        self.tail.reserve_exact(ROOM - self.tail.len());
        self.tail.push_str(last);
    }

    pub fn finish(mut self, listener: &Listener) -> TurnFacts {
        self.read(listener);
        let chars = self.chars;
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
                stems: self.stems.finish_unsorted().iter().map(half).collect(),
                vector: Box::default(),
            },
            chars,
            heard: self.hearing.heard,
            repeated: None,
        }
    }

    fn trim_tail(&mut self) {
        let kept = last_bytes(&self.tail, Self::TAIL_BYTES_MAX).len();
        let cut = self.tail.len() - kept;
        self.gap |= cut > 0;
        self.tail.drain(..cut);
    }

    fn take(&mut self, piece: &str, listener: &Listener) {
        let bytes = piece.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            at += self.take_plain(&bytes[at..], listener);
            if let Some(c) = piece[at..].chars().next() {
                script::lowered(c, |c| self.take_lower(c, listener));
                self.chars += 1;
                at += c.len_utf8();
            }
        }
    }

    /// Takes in the ASCII that a text begins with: how many bytes.
    fn take_plain(&mut self, text: &[u8], listener: &Listener) -> usize {
        let (before, within) = (self.tokens, !self.token.is_empty());
        let mut at = 0;
        while at < text.len() && Kind::of(text[at]) != Kind::Other {
            at += self.take_block(&text[at..]);
        }
        let text = &text[..at];
        listener.hear(text, &mut self.hearing, |n| {
            before.saturating_add(begun(&text[..=n], within))
        });
        self.chars += at;
        at
    }

    /// Takes in the ASCII that a text begins with, as much as a block holds: how
    /// many bytes.
    fn take_block(&mut self, text: &[u8]) -> usize {
        let block = Block::of(text);
        let mut gaps = block.others(block.seen);
        let mut begin = 0;
        while gaps != 0 {
            let end = gaps.trailing_zeros() as usize;
            let is_space = Kind::of(text[end]) == Kind::Space;
            if begin < end && is_space && self.token.is_empty() {
                // A whole one, as nearly all are.
                let mut token = Token::default();
                push(&mut token, &block, text, begin..end);
                self.tokens = self.tokens.saturating_add(1);
                self.note(&token);
            } else {
                self.take_part(&block, text, begin..end);
                if is_space {
                    self.end_token();
                }
            }
            if !is_space {
                return end;
            }
            begin = end + 1;
            gaps &= gaps - 1;
        }
        // The last one goes on: where it begins another block holds all of it.
        if begin == 0 || block.length == text.len() {
            self.take_part(&block, text, begin..block.length);
            return block.length;
        }
        begin
    }

    /// Takes in a part of a token, or nothing.
    #[cold]
    fn take_part(&mut self, block: &Block, text: &[u8], part: Range<usize>) {
        if !part.is_empty() {
            self.begin_token();
            push(&mut self.token, block, text, part);
        }
    }

    /// Any character, in lower case.
    #[cold]
    fn take_lower(&mut self, c: char, listener: &Listener) {
        if text::is_unseen(c) {
            return;
        }
        if c.is_whitespace() {
            self.end_token();
        } else {
            self.begin_token();
            self.token.push(c);
        }
        let mut buffer = [0; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        let tokens = self.tokens;
        listener.hear(bytes, &mut self.hearing, |_| tokens);
    }

    fn begin_token(&mut self) {
        if self.token.is_empty() {
            self.tokens = self.tokens.saturating_add(1);
        }
    }

    fn end_token(&mut self) {
        if self.token.is_empty() {
            return;
        }
        let token = std::mem::take(&mut self.token);
        self.note(&token);
    }

    #[inline(always)]
    fn note(&mut self, token: &Token) {
        let hash = token.hash();
        if token.has_digit() {
            return self.numbers.push(hash);
        }
        self.words.push(hash);
        if let Some(stem) = token.stem() {
            self.stems.push(stem);
        }
    }

    #[inline]
    pub fn heap_bytes(&self) -> usize {
        self.words.heap_bytes()
            + self.numbers.heap_bytes()
            + self.stems.heap_bytes()
            + self.unread.capacity()
            + self.tail.capacity()
    }
}

/// Takes some bytes of a block into a token.
#[inline(always)]
fn push(token: &mut Token, block: &Block, text: &[u8], bytes: Range<usize>) {
    let (letters, digits) = (part(block.letters, &bytes), part(block.digits, &bytes));
    token.push_run(&text[bytes.start..], bytes.len(), letters, digits);
}

/// How many tokens begin in a text of ASCII, which may begin within one.
fn begun(text: &[u8], within: bool) -> u32 {
    let mut spaced = !within;
    let begins = text.iter().filter(|byte| {
        let is_space = Kind::of(**byte) == Kind::Space;
        std::mem::replace(&mut spaced, is_space) && !is_space
    });
    begins.count() as u32
}

/// The longest end of at most `bytes_max` bytes that begins between characters.
fn last_bytes(text: &str, bytes_max: usize) -> &str {
    let from = text.ceil_char_boundary(text.len().saturating_sub(bytes_max));
    &text[from..]
}

/// The upper half of a hash: of two hashes the lower has no higher one.
fn half(hash: &u32) -> u16 {
    (hash >> 16) as u16
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

    #[test]
    fn of_a_long_turn_the_first_32_kib_and_the_last_1_kib_are_looked_at() {
        let words = |before: usize, after: usize| {
            let (before, after) = ("x ".repeat(before / 2), " x".repeat(after / 2));
            sketch(&[&format!("{before}word{after}")]).words.len()
        };
        assert_eq!(words(32_000, 100_000), 2, "x, word");
        assert_eq!(words(33_000, 100_000), 1, "x");
        assert_eq!(words(100_000, 1_000), 2, "x, word");
        assert_eq!(words(100_000, 1_100), 1, "x");
    }

    proptest! {
        #[test]
        fn how_the_text_is_cut_makes_no_difference(text in "(\\PC|\\s){0,200}", cut in 0usize..200) {
            let cut = text.floor_char_boundary(cut);
            prop_assert_eq!(sketch(&[&text]), sketch(&[&text[..cut], &text[cut..]]));
        }
    }
}
