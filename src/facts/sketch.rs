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
        self.chars += piece.chars().count();
        let bytes = piece.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            at += self.take_plain(&bytes[at..], listener);
            if let Some(c) = piece[at..].chars().next() {
                c.to_lowercase().for_each(|c| self.take_lower(c, listener));
                at += c.len_utf8();
            }
        }
    }

    /// Takes in the ASCII that a text begins with: how many bytes.
    fn take_plain(&mut self, text: &[u8], listener: &Listener) -> usize {
        let (before, within) = (self.tokens, !self.token.is_empty());
        let mut at = 0;
        while let Some(byte) = text.get(at) {
            if Kind::of(*byte) == Kind::Space {
                self.end_token();
                at += 1;
                continue;
            }
            let rest = &text[at..];
            let (length, kinds) = Token::plain_run(rest);
            if length == 0 {
                break;
            }
            at += length;
            if self.token.is_empty() && at < text.len() && Kind::of(text[at]) == Kind::Space {
                // A whole one, as nearly all are.
                let mut token = Token::default();
                token.push_run(rest, length, kinds);
                self.tokens = self.tokens.saturating_add(1);
                self.note(&token);
                at += 1;
            } else {
                self.begin_token();
                self.token.push_run(rest, length, kinds);
            }
        }
        let text = &text[..at];
        listener.hear(text, &mut self.hearing, |n| {
            before.saturating_add(begun(&text[..=n], within))
        });
        at
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

    #[inline]
    fn note(&mut self, token: &Token) {
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
        hashes.sum::<usize>() + self.unread.capacity() + self.tail.capacity()
    }
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

/// The `N` lowest distinct hashes of all that are pushed: all of them where
/// there are no more than `N`, else a fair sample. Room for an eighth more makes
/// the sorting rare; once there are `N` they stay sorted, and hardly any comes
/// among them.
struct Lowest<const N: usize> {
    seen: Vec<u32>,
    /// None above it is among the lowest; the highest there is: there are fewer
    /// than `N`.
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

    #[inline]
    fn push(&mut self, hash: u32) {
        if self.seen.len() == self.seen.capacity() && self.highest == u32::MAX {
            self.grow();
        }
        if hash > self.highest {
            return;
        }
        match self.highest {
            u32::MAX => self.seen.push(hash),
            _ => self.insert(hash),
        }
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

    /// Takes the place of the highest of `N`.
    fn insert(&mut self, hash: u32) {
        let at = self.seen.partition_point(|known| *known < hash);
        if self.seen.get(at).is_some_and(|known| *known != hash) {
            self.seen.pop();
            self.seen.insert(at, hash);
            self.highest = self.seen.last().copied().unwrap_or(self.highest);
        }
    }

    fn settle(&mut self) {
        sort(&mut self.seen);
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

/// Sorts hashes. They are spread evenly, so that the top bits say where nearly
/// each belongs: a third of what comparing costs.
fn sort(hashes: &mut [u32]) {
    /// The room of the words' hashes.
    const MOST: usize = Lowest::<{ Sketch::WORDS_MAX }>::ROOM;
    const BUCKETS: usize = 256;
    /// A frequent word stands in one often, and costs nothing there. Who makes other
    /// words for one bucket gets them compared from here on.
    const IN_ONE_MAX: u16 = 64;
    let bucket = |hash: u32| (hash >> (32 - BUCKETS.ilog2())) as usize;
    let mut counts = [0u16; BUCKETS];
    let is_few = hashes.len() <= BUCKETS / 8 || hashes.len() > MOST;
    if !is_few {
        hashes.iter().for_each(|hash| counts[bucket(*hash)] += 1);
    }
    if is_few || counts.iter().any(|count| *count > IN_ONE_MAX) {
        return hashes.sort_unstable();
    }
    let mut begin = 0;
    for count in &mut counts {
        begin += std::mem::replace(count, begin);
    }
    let mut sorted = [0; MOST];
    for hash in &*hashes {
        let place = &mut counts[bucket(*hash)];
        sorted[usize::from(*place)] = *hash;
        *place += 1;
    }
    hashes.copy_from_slice(&sorted[..hashes.len()]);
    for n in 1..hashes.len() {
        let (hash, mut at) = (hashes[n], n);
        while at > 0 && hashes[at - 1] > hash {
            hashes[at] = hashes[at - 1];
            at -= 1;
        }
        hashes[at] = hash;
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
