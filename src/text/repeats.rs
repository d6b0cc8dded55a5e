//! Watches a text as it is written for what repeats itself. A pure state machine
//! over characters: how the text is cut makes no difference, and neither do
//! characters that nobody sees.

mod anchors;
mod chunk;
mod content;
mod period;
mod sentences;
mod unit;
mod word;
mod words;

use std::hash::Hasher;

use super::{
    Key,
    block::{Block, part},
    key::Tag,
    mask::lanes::BLOCK,
    script,
};
use crate::domain::{Bar, RepeatSettings, Repeated, Sig, text};
use chunk::Chunks;
use content::{CLASSES, Class, Codeness, Fence};
use period::Periods;
use sentences::Sentences;
use unit::{smallest_rotation, unit_text};
use words::Words;

/// Watches one text.
#[derive(Default)]
pub struct Watcher {
    /// Characters that were seen.
    chars: u64,
    codeness: Codeness,
    fence: Fence,
    /// The last character that is not white space ends a sentence.
    stopped: bool,
    periods: Periods,
    words: Words,
    sentences: Sentences,
    chunks: Chunks,
    /// What was found last: what comes back in changing order belongs to it.
    found: Option<Sig>,
    /// Words or sentences that were found to come back.
    loose: Option<Sig>,
}

/// Words or sentences that keep coming back.
struct Stale {
    bar: Bar,
    /// A name that does not depend on their order.
    name: u64,
    /// How often the latest stand.
    count: u32,
    share: f64,
    /// The character where the latest of them began.
    began: u64,
}

/// What a text is watched by, and the strongest that was found in a piece of it.
struct Scene<'a> {
    settings: &'a RepeatSettings,
    key: &'a Key,
    /// What was found in the pieces before.
    before: Option<Sig>,
    strongest: Option<Repeated>,
    /// Bytes that the periods have taken in and the words have not.
    ahead: usize,
}

/// Of a text that is not periodic.
const TAIL_BYTES: usize = 96;
/// How alike copies are that differ in their digits.
const BLIND: f64 = 0.9;

impl Watcher {
    /// Takes a piece of the text in: the strongest that is found newly in it. Of
    /// a piece that is longer than any model writes at once, or a whole text,
    /// both ends are watched, so that its cost has a bound.
    pub fn push(&mut self, piece: &str, settings: &RepeatSettings, key: &Key) -> Option<Repeated> {
        const END_BYTES_MAX: usize = 32 * 1024;
        let mut scene = Scene {
            settings,
            key,
            before: self.found,
            strongest: None,
            ahead: 0,
        };
        if piece.len() <= END_BYTES_MAX {
            self.take(piece, &mut scene);
            return scene.strongest;
        }
        let head = text::prefix(piece, END_BYTES_MAX);
        let rest = &piece[head.len()..];
        let cut = rest.ceil_char_boundary(rest.len().saturating_sub(END_BYTES_MAX));
        let (skipped, tail) = rest.split_at(cut);
        self.take(head, &mut scene);
        if !skipped.is_empty() {
            let chars = self.chars + skipped.chars().count() as u64;
            self.restart();
            self.chars = chars;
        }
        self.take(tail, &mut scene);
        scene.strongest
    }

    fn take(&mut self, piece: &str, scene: &mut Scene<'_>) {
        if scene.settings.chunk_window == 0 {
            return self.take_text(piece, scene);
        }
        for (at, c) in piece.char_indices().filter(|(_, c)| !text::is_unseen(*c)) {
            self.chunk(c, scene);
            match scene.settings.chunks_only {
                true => self.chars += 1,
                false => self.take_text(&piece[at..at + c.len_utf8()], scene),
            }
        }
    }

    fn take_text(&mut self, piece: &str, scene: &mut Scene<'_>) {
        /// So far the periods are ahead of the words: what they have of the text
        /// holds more.
        const STRETCH_MAX: usize = 512;
        let bytes = piece.as_bytes();
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let stretch = &bytes[at..bytes.len().min(at + STRETCH_MAX)];
            let length = self.periods.push(stretch);
            if length > 0 {
                self.stretch(&stretch[..length], scene);
                at += length;
            } else if *byte == b'\n' {
                self.end_line(scene);
                at += 1;
            } else if let Some(c) = piece[at..].chars().next() {
                self.other(c, scene);
                at += c.len_utf8();
            } else {
                break;
            }
        }
    }

    /// The text begins anew. What was found in it is remembered: it goes on when
    /// it is found again.
    pub fn restart(&mut self) {
        *self = Self {
            found: self.found,
            ..Self::default()
        };
    }

    /// A stretch of ASCII on a line, after the periods have taken it in. Where a
    /// run is due it is so on the last byte, of which a period is said before a
    /// word or a sentence.
    fn stretch(&mut self, bytes: &[u8], scene: &mut Scene<'_>) {
        self.fence.push(bytes);
        if !self.periods.is_due() {
            return self.read(bytes, 0, scene);
        }
        let (before, last) = bytes.split_at(bytes.len() - 1);
        self.read(before, last.len(), scene);
        self.period(self.chars + 1, scene);
        self.read(last, 0, scene);
    }

    /// The words and sentences of such a stretch, `ahead` bytes of which are yet
    /// to come.
    fn read(&mut self, bytes: &[u8], ahead: usize, scene: &mut Scene<'_>) {
        let (mut begin, mut left) = (self.chars, bytes.len() + ahead);
        for text in bytes.chunks(BLOCK) {
            let block = Block::of(text);
            let mut gaps = block.others(block.letters | block.digits);
            let mut from = 0;
            while gaps != 0 {
                let at = gaps.trailing_zeros() as usize;
                self.push_word(&text[from..at], part(block.digits, &(from..at)));
                let class = CLASSES[usize::from(text[at])];
                self.codeness.push(class);
                from = at + 1;
                self.chars = begin + from as u64;
                scene.ahead = left - from;
                self.word(scene);
                match class {
                    Class::Stop => self.stopped = true,
                    Class::Space if self.stopped => self.sentence(scene),
                    _ => {}
                }
                gaps &= gaps - 1;
            }
            if from < text.len() {
                self.push_word(&text[from..], part(block.digits, &(from..text.len())));
            }
            begin += text.len() as u64;
            left -= text.len();
        }
        self.chars = begin;
    }

    /// Letters and digits of ASCII, perhaps none; bits say which are digits.
    #[inline]
    fn push_word(&mut self, run: &[u8], digits: u64) {
        if run.is_empty() {
            return;
        }
        // Nearly always there are none to count.
        let digits = match digits {
            0 => 0,
            digits => digits.count_ones() as u16,
        };
        self.words.push_run(run, digits);
        self.codeness.push_others(run.len() as u32);
    }

    fn end_line(&mut self, scene: &mut Scene<'_>) {
        self.chars += 1;
        self.periods.push_byte(b'\n');
        if self.fence.end_line() {
            self.periods.look_again();
        }
        if self.periods.is_due() {
            self.period(self.chars, scene);
        }
        scene.ahead = 0;
        self.word(scene);
        self.sentence(scene);
    }

    /// Any other character, perhaps one that nobody sees.
    fn other(&mut self, c: char, scene: &mut Scene<'_>) {
        if text::is_unseen(c) {
            return;
        }
        self.chars += 1;
        self.codeness.push(Class::Other);
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            self.periods.push_byte(byte);
            self.fence.push(&[byte]);
            if self.periods.is_due() {
                self.period(self.chars, scene);
            }
        }
        let is_figure = script::is_figure(c);
        if is_figure || script::is_letter(c) {
            self.words.push(script::first_lower(c).into(), is_figure);
            return;
        }
        scene.ahead = 0;
        self.word(scene);
        // These need no white space behind them.
        self.stopped |= matches!(c, '。' | '！' | '？');
        if self.stopped {
            self.sentence(scene);
        }
    }

    /// The next character, for the chunk tier.
    #[cold]
    fn chunk(&mut self, c: char, scene: &mut Scene<'_>) {
        let Some(chunk) = self.chunks.push(c, scene.settings) else {
            return;
        };
        let unit = chunk.unit.into_bytes();
        let repeated = Repeated {
            name: signed(scene.key, &smallest_rotation(unit.clone())),
            unit: unit_text(unit).into(),
            count: chunk.count as i32,
            period: chunk.chars as i32,
            began: (self.chars + 1).saturating_sub(u64::from(chunk.span)),
            similarity: 1.0,
            bar: chunk.bar,
            goes_on: false,
        };
        self.found(repeated, scene);
    }

    /// A run is due after so many characters.
    #[cold]
    fn period(&mut self, chars: u64, scene: &mut Scene<'_>) {
        let fenced = self.fence.is_open();
        let Some(passed) = self.periods.passed(fenced, scene.settings) else {
            return;
        };
        let own = || signed(scene.key, &smallest_rotation(passed.folded()));
        let repeated = Repeated {
            name: self.loose.unwrap_or_else(own),
            count: passed.count.try_into().unwrap_or(i32::MAX),
            period: passed.chars as i32,
            began: chars.saturating_sub(passed.span_chars),
            similarity: if passed.exact { 1.0 } else { BLIND },
            bar: passed.bar,
            unit: unit_text(passed.unit).into(),
            goes_on: false,
        };
        self.found(repeated, scene);
    }

    /// The word ends that is being written, if any.
    #[inline]
    fn word(&mut self, scene: &mut Scene<'_>) {
        if !self.words.is_between() {
            self.end_word(scene);
        }
    }

    /// In code words say nothing.
    fn end_word(&mut self, scene: &mut Scene<'_>) {
        let letters = self.words.letters();
        let Some(word) = self.words.end() else {
            return;
        };
        self.stopped = false;
        if self.fence.is_open() {
            return;
        }
        if !word.is_id() {
            self.sentences.push(word.hash(), letters, self.chars);
        }
        if self.codeness.is_code() {
            return;
        }
        if let Some(stale) = self.words.take(word, self.chars) {
            self.returning(stale, scene);
        }
    }

    fn sentence(&mut self, scene: &mut Scene<'_>) {
        let stopped = std::mem::take(&mut self.stopped);
        if self.fence.is_open() {
            return;
        }
        let code = self.codeness.is_code();
        if let Some(stale) = self.sentences.end(stopped, code) {
            self.returning(stale, scene);
        }
    }

    /// What comes back in changing order, in a text in which something may have
    /// been found to repeat itself before.
    #[cold]
    fn returning(&mut self, stale: Stale, scene: &mut Scene<'_>) {
        let own = || signed(scene.key, &stale.name.to_le_bytes());
        let name = self.found.unwrap_or_else(own);
        self.loose = Some(name);
        let tail = self.periods.tail_before(scene.ahead, TAIL_BYTES);
        let tail = String::from_utf8_lossy(&tail).into_owned();
        // From the first whole word on.
        let begin = tail.find(char::is_whitespace).unwrap_or(0);
        let repeated = Repeated {
            unit: tail[begin..].trim().into(),
            name,
            count: stale.count as i32,
            period: 0,
            began: stale.began,
            similarity: stale.share,
            bar: stale.bar,
            goes_on: false,
        };
        self.found(repeated, scene);
    }

    fn found(&mut self, mut repeated: Repeated, scene: &mut Scene<'_>) {
        repeated.goes_on = scene.before == Some(repeated.name);
        self.found = Some(repeated.name);
        let strongest = scene.strongest.as_ref();
        if strongest.is_none_or(|other| other.bar < repeated.bar) {
            scene.strongest = Some(repeated);
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.periods.heap_bytes()
            + self.words.heap_bytes()
            + self.sentences.heap_bytes()
            + self.chunks.heap_bytes()
    }
}

fn signed(key: &Key, unit: &[u8]) -> Sig {
    let mut hasher = key.hasher(Tag::Text);
    hasher.write(unit);
    Sig::new(hasher.finish())
}

#[cfg(test)]
mod tests;
