//! Computes the facts of a turn: sketches of its words, numbers and stems.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{
    bottom_k::BottomKSketch,
    token::{Token, TokenByte},
};
use crate::{
    domain::{Sketch, TurnFacts, sanitize},
    text::{
        phrases::{PhraseMatchState, PhraseMatcher},
        simd::{ByteClasses, bit_range},
        unicode,
    },
};

/// Computes the facts of a turn from its text, which arrives whole or in pieces. The
/// result does not depend on how the text is split. Only the start and the end of a
/// long text are processed, so the cost is bounded.
///
/// Each token is hashed once and added to a bottom-k sketch of words, of numbers or of
/// stems. Phrases are matched in the same pass.
#[derive(Default, Serialize, Deserialize)]
pub struct Sketcher {
    words: BottomKSketch<{ Sketch::WORDS_MAX }>,
    numbers: BottomKSketch<{ Sketch::NUMBERS_MAX }>,
    stems: BottomKSketch<{ Sketch::STEMS_MAX }>,
    phrase_state: PhraseMatchState,
    /// The token at the end of the last piece, which may continue.
    token: Token,
    /// Number of tokens begun.
    token_count: u32,
    /// Characters of scripts that put no space between words.
    unspaced_chars: u32,
    chars: usize,
    /// Bytes of the start of the text received so far.
    head_bytes: usize,
    /// The end of the received start that is not processed yet. Starting and ending a
    /// pass costs as much as a few dozen bytes, and a piece has only a few bytes.
    pending: String,
    /// The latest bytes after the start of the text.
    tail: String,
    /// Some of the text after the start has been dropped.
    has_gap: bool,
}

impl Sketcher {
    /// Bytes that are processed at the start of a text: about 5,000 words, ten times
    /// the number that the sketch keeps.
    const HEAD_BYTES_MAX: usize = 32 * 1024;
    /// Bytes that are processed at the end of a text: one or two paragraphs. The limit
    /// is small because this text is held in memory while the turn is written.
    const TAIL_BYTES_MAX: usize = 1_024;

    /// Twice the required capacity, so that bytes are rarely moved.
    const TAIL_CAPACITY: usize = 2 * Self::TAIL_BYTES_MAX;

    /// Pending bytes that are processed in one pass.
    const PENDING_BYTES_MAX: usize = 128;

    pub fn push(&mut self, piece: &str, matcher: &PhraseMatcher) {
        // Once a character goes to the tail, all later ones do, so that head and tail
        // do not depend on how the text is split.
        let head_room = if self.tail.is_empty() && !self.has_gap {
            Self::HEAD_BYTES_MAX - self.head_bytes
        } else {
            0
        };
        let head = sanitize::prefix(piece, head_room);
        self.head_bytes += head.len();
        if self.pending.len() + head.len() > Self::PENDING_BYTES_MAX {
            self.flush_pending(matcher);
        }
        if head.len() > Self::PENDING_BYTES_MAX {
            self.process(head, matcher);
        } else if !head.is_empty() {
            self.pending
                .reserve_exact(Self::PENDING_BYTES_MAX - self.pending.len());
            self.pending.push_str(head);
        }
        if head.len() < piece.len() {
            // The head is complete.
            self.flush_pending(matcher);
            self.pending = String::new();
            self.append_tail(&piece[head.len()..]);
        }
    }

    /// Processes the pending bytes.
    fn flush_pending(&mut self, matcher: &PhraseMatcher) {
        let mut pending = std::mem::take(&mut self.pending);
        self.process(&pending, matcher);
        pending.clear();
        self.pending = pending;
    }

    /// Keeps the end of the text that follows the head.
    fn append_tail(&mut self, rest: &str) {
        self.chars += rest.chars().count();
        let last = suffix(rest, Self::TAIL_BYTES_MAX);
        if last.len() < rest.len() {
            // Everything before is out of range and not adjacent to this piece.
            self.has_gap = true;
            self.tail.clear();
        }
        if self.tail.len() + last.len() > Self::TAIL_CAPACITY {
            self.trim_tail();
        }
        self.tail
            .reserve_exact(Self::TAIL_CAPACITY - self.tail.len());
        self.tail.push_str(last);
    }

    pub fn finish(mut self, matcher: &PhraseMatcher) -> TurnFacts {
        self.flush_pending(matcher);
        let chars = self.chars;
        self.trim_tail();
        if self.has_gap {
            self.end_token();
            self.phrase_state.reset();
        }
        let tail = std::mem::take(&mut self.tail);
        self.process(&tail, matcher);
        self.end_token();
        TurnFacts {
            sketch: Sketch {
                words: self.words.finish(),
                numbers: self.numbers.finish(),
                stems: self
                    .stems
                    .finish_unsorted()
                    .iter()
                    .map(upper_half)
                    .collect(),
                vector: Box::default(),
            },
            chars,
            words: self.token_count.saturating_add(self.unspaced_chars / 2),
            acts: self.phrase_state.acts,
            phrase_matches: self.phrase_state.matches,
            repetition: None,
            is_work_limited: false,
        }
    }

    fn trim_tail(&mut self) {
        let retained = suffix(&self.tail, Self::TAIL_BYTES_MAX).len();
        let excess = self.tail.len() - retained;
        self.has_gap |= excess > 0;
        self.tail.drain(..excess);
    }

    fn process(&mut self, piece: &str, matcher: &PhraseMatcher) {
        let bytes = piece.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            at += self.process_ascii(&bytes[at..], matcher);
            if let Some(c) = piece[at..].chars().next() {
                unicode::for_each_lowercase(c, |c| self.process_lowercase(c, matcher));
                self.chars += 1;
                at += c.len_utf8();
            }
        }
    }

    /// Processes the leading ASCII bytes of a text. Returns their number.
    fn process_ascii(&mut self, text: &[u8], matcher: &PhraseMatcher) -> usize {
        let (tokens_before, in_token) = (self.token_count, !self.token.is_empty());
        let mut at = 0;
        while at < text.len() && TokenByte::from_byte(text[at]) != TokenByte::Other {
            at += self.process_ascii_block(&text[at..]);
        }
        let text = &text[..at];
        // Each byte is counted once: a phrase that is found again and again must not make
        // the text be counted from its start each time.
        let (mut counted_to, mut tokens, mut in_token) = (0, tokens_before, in_token);
        matcher.match_piece(text, &mut self.phrase_state, |n| {
            let uncounted = text.get(counted_to..=n).unwrap_or_default();
            tokens = tokens.saturating_add(count_token_starts(uncounted, in_token));
            if let Some(last) = uncounted.last() {
                in_token = TokenByte::from_byte(*last) != TokenByte::Space;
            }
            counted_to = n + 1;
            tokens
        });
        self.chars += at;
        at
    }

    /// Processes the leading ASCII bytes of a text, at most one block. Returns their
    /// number.
    fn process_ascii_block(&mut self, text: &[u8]) -> usize {
        let block = ByteClasses::classify(text);
        let mut separators = block.complement(block.visible);
        let mut begin = 0;
        while separators != 0 {
            let end = separators.trailing_zeros() as usize;
            let is_space = TokenByte::from_byte(text[end]) == TokenByte::Space;
            if begin < end && is_space && self.token.is_empty() {
                // The token is complete within the block, as nearly all are.
                let mut token = Token::default();
                push_block_bytes(&mut token, &block, text, begin..end);
                self.token_count = self.token_count.saturating_add(1);
                self.record_token(&token);
            } else {
                self.push_token_part(&block, text, begin..end);
                if is_space {
                    self.end_token();
                }
            }
            if !is_space {
                return end;
            }
            begin = end + 1;
            separators &= separators - 1;
        }
        // The last token continues in the next block. That block starts at the token,
        // so it usually contains the whole token.
        if begin == 0 || block.length == text.len() {
            self.push_token_part(&block, text, begin..block.length);
            return block.length;
        }
        begin
    }

    /// Appends a part of a token, if it is not empty.
    #[cold]
    fn push_token_part(&mut self, block: &ByteClasses, text: &[u8], part: Range<usize>) {
        if !part.is_empty() {
            self.begin_token();
            push_block_bytes(&mut self.token, block, text, part);
        }
    }

    /// Processes any character, given in lower case.
    #[cold]
    fn process_lowercase(&mut self, c: char, matcher: &PhraseMatcher) {
        if sanitize::is_invisible(c) {
            return;
        }
        if c.is_whitespace() {
            self.end_token();
        } else {
            self.begin_token();
            self.token.push_char(c);
            // A word of these scripts has about two characters.
            self.unspaced_chars = self
                .unspaced_chars
                .saturating_add(u32::from(unicode::is_unspaced(c)));
        }
        let mut buffer = [0; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        let tokens = self.token_count;
        matcher.match_piece(bytes, &mut self.phrase_state, |_| tokens);
    }

    fn begin_token(&mut self) {
        if self.token.is_empty() {
            self.token_count = self.token_count.saturating_add(1);
        }
    }

    fn end_token(&mut self) {
        if self.token.is_empty() {
            return;
        }
        let token = std::mem::take(&mut self.token);
        self.record_token(&token);
    }

    #[inline(always)]
    fn record_token(&mut self, token: &Token) {
        let hash = token.hash();
        if token.has_digit() {
            return self.numbers.push(hash);
        }
        self.words.push(hash);
        if let Some(stem) = token.stem() {
            self.stems.push(stem);
        }
    }

    /// Whether a thawed sketcher is one that this matcher was used with.
    pub fn is_consistent(&self, matcher: &PhraseMatcher) -> bool {
        /// No text has more characters.
        const CHARS_MAX: usize = 1 << 48;
        self.words.is_consistent()
            && self.numbers.is_consistent()
            && self.stems.is_consistent()
            && matcher.contains_state(&self.phrase_state)
            && self.chars <= CHARS_MAX
            && self.head_bytes <= Self::HEAD_BYTES_MAX
            && self.pending.len() <= Self::PENDING_BYTES_MAX
            && self.tail.len() <= Self::TAIL_CAPACITY
    }

    #[inline]
    pub fn heap_bytes(&self) -> usize {
        self.words.heap_bytes()
            + self.numbers.heap_bytes()
            + self.stems.heap_bytes()
            + self.pending.capacity()
            + self.tail.capacity()
    }
}

/// Appends bytes of a block to a token.
#[inline(always)]
fn push_block_bytes(token: &mut Token, block: &ByteClasses, text: &[u8], bytes: Range<usize>) {
    let (letters, digits) = (
        bit_range(block.letters, &bytes),
        bit_range(block.digits, &bytes),
    );
    token.push_ascii(&text[bytes.start..], bytes.len(), letters, digits);
}

/// The number of tokens that begin in an ASCII text. `in_token`: the text begins within
/// a token.
fn count_token_starts(text: &[u8], in_token: bool) -> u32 {
    let mut after_space = !in_token;
    let begins = text.iter().filter(|byte| {
        let is_space = TokenByte::from_byte(**byte) == TokenByte::Space;
        std::mem::replace(&mut after_space, is_space) && !is_space
    });
    begins.count() as u32
}

/// The longest suffix of at most `bytes_max` bytes that begins at a character boundary.
fn suffix(text: &str, bytes_max: usize) -> &str {
    let from = text.ceil_char_boundary(text.len().saturating_sub(bytes_max));
    &text[from..]
}

/// The upper half of a hash. The lower of two hashes never has the higher upper half.
fn upper_half(hash: &u32) -> u16 {
    (hash >> 16) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::Phrase;

    fn facts(pieces: &[&str]) -> TurnFacts {
        let phrases = ["start over".to_owned(), "hi there".to_owned()].map(Phrase::from);
        let listener = PhraseMatcher::new(&phrases).unwrap();
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
    fn tokens_are_distinct_lower_case_words_and_numbers_are_separate() {
        let made = sketch(&["Batch 12 of 500: the batch, THE batch"]);
        assert_eq!((made.words.len(), made.numbers.len()), (4, 2));
        assert_eq!(made, sketch(&["batch 12 of 500: the batch, the batch"]));
    }

    #[test]
    fn all_words_are_counted_also_without_spaces() {
        assert_eq!(facts(&["the batch, the batch 12"]).words, 5);
        assert_eq!(facts(&["次へ。"]).words, 2);
        assert_eq!(facts(&["作業を続けています。"]).words, 6);
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
    fn only_both_ends_of_a_long_text_are_sketched() {
        let filler = "x ".repeat(100_000);
        let whole = format!("first {filler} middle {filler} last");
        let made = sketch(&[&whole]);
        assert_eq!(made.words.len(), 3, "first, x, last");
        let pieces: Vec<&str> = whole.split_inclusive(' ').collect();
        assert_eq!(made, sketch(&pieces));
    }

    #[test]
    fn only_the_first_32_kib_and_the_last_1_kib_of_a_long_turn_are_sketched() {
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
