use super::{
    listener::{Hearing, Listener},
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

    pub fn push(&mut self, piece: &str, listener: &Listener) {
        self.chars += piece.chars().count();
        // Once a character goes to the tail all others do, so that the parts do
        // not depend on how the text is cut.
        let room = if self.tail.is_empty() && !self.gap {
            Self::HEAD_BYTES_MAX - self.head_bytes
        } else {
            0
        };
        let head = text::prefix(piece, room);
        self.take(head, listener);
        self.head_bytes += head.len();
        if head.len() < piece.len() {
            self.keep(&piece[head.len()..]);
        }
    }

    /// Keeps the end of what comes after the beginning.
    fn keep(&mut self, rest: &str) {
        // Twice as much as is needed, so that moving it is rare.
        const ROOM: usize = 2 * Sketcher::TAIL_BYTES_MAX;
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
            chars: self.chars,
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
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let (length, kinds) = Token::plain_run(rest);
            if length > 0 {
                self.begin_token();
                self.token.push_run(rest, length, kinds);
                listener.hear(&rest[..length], self.tokens, &mut self.hearing);
                at += length;
            } else if Kind::of(rest[0]) == Kind::Space {
                self.end_token();
                listener.hear(&rest[..1], self.tokens, &mut self.hearing);
                at += 1;
            } else {
                let Some(c) = piece[at..].chars().next() else {
                    break;
                };
                c.to_lowercase().for_each(|c| self.take_lower(c, listener));
                at += c.len_utf8();
            }
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
        listener.hear(bytes, self.tokens, &mut self.hearing);
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
        if token.has_digit() {
            self.numbers.push(token.hash());
        } else {
            self.words.push(token.hash());
            if let Some(stem) = token.stem() {
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

/// The upper half of a hash: of two hashes the lower has no higher one.
fn half(hash: &u32) -> u16 {
    (hash >> 16) as u16
}

/// The `N` lowest distinct hashes of all that are pushed: all of them where
/// there are no more than `N`, else a fair sample. Room for an eighth more makes
/// the sorting rare; what is higher than the highest of `N` needs none.
struct Lowest<const N: usize> {
    seen: Vec<u32>,
    /// None above it is among the lowest.
    highest: u32,
}

impl<const N: usize> Default for Lowest<N> {
    fn default() -> Self {
        Self {
            seen: Vec::new(),
            highest: u32::MAX,
        }
    }
}

impl<const N: usize> Lowest<N> {
    const ROOM: usize = N + N / 8;

    fn push(&mut self, hash: u32) {
        if hash > self.highest {
            return;
        }
        if self.seen.len() == self.seen.capacity() {
            self.grow();
        }
        self.seen.push(hash);
    }

    #[cold]
    fn grow(&mut self) {
        /// The words of a short turn.
        const FIRST: usize = 64;
        /// In a longer one many come again: more room only for those that do not.
        const MANY: usize = 256;
        if self.seen.len() >= MANY.min(N) {
            self.settle();
        }
        let more = self.seen.len().max(FIRST).min(Self::ROOM - self.seen.len());
        if self.seen.capacity() < self.seen.len() + more / 2 {
            self.seen.reserve_exact(more);
        }
    }

    fn settle(&mut self) {
        self.seen.sort_unstable();
        self.seen.dedup();
        self.seen.truncate(N);
        if let Some(highest) = self.seen.get(N - 1) {
            self.highest = *highest;
        }
    }

    /// All that were pushed, in any order and some more than once perhaps, where
    /// there are no more than `N`.
    fn finish_unsorted(mut self) -> Vec<u32> {
        if self.seen.len() > N {
            self.settle();
        }
        self.seen
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
