//! Finds text that repeats while it is being written.
//!
//! [`RepetitionTracker::push`] takes the next piece of a text and returns the strongest
//! finding that is new in it. It is a pure state machine over visible characters: how
//! the text is cut into pieces makes no difference, and neither do invisible characters.
//!
//! # The four trackers
//! All read the same characters; each recognises another kind of loop.
//!
//! - `period` finds text that repeats exactly at some distance (its period), digits
//!   optionally ignored. It keeps the last 4 KiB and a hash of every 32-byte block of
//!   them. A rolling hash of the last 32 bytes is compared with these; on a hit the
//!   distance is verified backwards and then followed with one comparison per byte.
//! - `words` finds loops without a period: sentences in changing order, or a word that
//!   varies. It counts grams of three words, and reports when nearly all of the latest
//!   128 grams are old. It also reports text that uses hardly any distinct words.
//! - `sentences` finds whole sentences that come back with new ones between them.
//! - `chunk` reproduces a rule of another product (a chunk of N characters occurs 3 times
//!   in a window). It is off unless `chunk_window` is set.
//!
//! `content` classifies the text, because a loop in code or in a Markdown fence needs
//! more repetitions than one in prose; it also holds the thresholds. `escalation` moves
//! a loop that goes on from soft to hard to final. `unit` formats the repeated unit for a
//! person and normalizes it for the loop's signature.
//!
//! # The order of work
//! A piece is split into runs of ASCII on one line, line ends and other characters. For
//! each run `period` goes first and stops at the byte where a followed period may reach a
//! threshold; then words and sentences read the same bytes, 64 at a time. On one byte a
//! period is reported before a word or a sentence.
//!
//! # Cost
//! Ordinary prose costs a few instructions per byte: one step of the rolling hash with a
//! filter look-up, and one hash step per letter. At most 64 KiB of a piece are read
//! (`END_BYTES_MAX` of each end), and memory is below 11 KiB per text (15 KiB with
//! chunks). No text costs more than a constant per byte:
//! - up to 8 periods are followed at once, each with a comparison per byte;
//! - a gram's count is recounted over 1,024 entries at most once in seven words;
//! - all else that depends on the text is paid for from a `WorkBudget` before it is
//!   done: following, verifying, measuring and reporting periods, comparing 96 words if
//!   few are distinct, comparing a sentence with 128, searching the window of chunks.
//!   Without units left it is skipped.
//!
//! `tests/it/work.rs` searches for the texts that cost most.

mod anchors;
mod chunk;
mod content;
mod escalation;
mod period;
mod reports;
mod restore;
mod sentences;
mod unit;
mod word_hash;
mod words;

use serde::{Deserialize, Serialize};

use super::{
    HashKey,
    simd::{BLOCK_BYTES, ByteClasses, bit_range},
    unicode,
    work_budget::{PeriodBudget, TextBudget},
};
use crate::domain::{EscalationLevel, RepetitionSettings, Sig, TextRepetition, sanitize};
use chunk::ChunkTracker;
use content::{CHAR_CLASSES, CharClass, CodeDetector, FenceTracker};
use period::PeriodTracker;
use restore::{POSITION_MAX, is_ring};
use sentences::SentenceTracker;
use words::WordTracker;

/// The state of one text that is being written.
#[derive(Default, Serialize, Deserialize)]
pub struct RepetitionTracker {
    /// Visible characters so far.
    chars: u64,
    code_detector: CodeDetector,
    fence: FenceTracker,
    /// The last character other than white space ends a sentence.
    at_sentence_end: bool,
    periods: PeriodTracker,
    words: WordTracker,
    sentences: SentenceTracker,
    chunks: ChunkTracker,
    /// Pays for words, sentences, reports and for searching chunks.
    budget: TextBudget,
    /// Bytes at the start of the next piece that `period` has read: the last piece ended
    /// with a finding before them.
    period_ahead: usize,
    /// The loop found last. Words or sentences that recur later belong to it.
    last_found: Option<Sig>,
    /// The loop under which recurring words or sentences were reported. A period found
    /// later belongs to it.
    recurring: Option<Sig>,
}

/// Words or sentences that recur.
struct Recurrence {
    level: EscalationLevel,
    /// Identifies the loop; independent of the order in which they recur.
    loop_id: u64,
    /// How often the latest word or sentence occurs.
    count: u32,
    /// The share of the latest ones that recur.
    share: f64,
    /// The character where the oldest of the latest begins.
    start_char: u64,
}

/// The parameters of one push, and the finding that ends it.
struct PushContext<'a> {
    settings: &'a RepetitionSettings,
    key: &'a HashKey,
    /// The loop found last in earlier pieces.
    previous: Option<Sig>,
    /// The strongest finding on the character at which the push ends.
    found: Option<TextRepetition>,
    /// Bytes that `period` has read and the words have not.
    bytes_ahead: usize,
}

/// Of a piece that is longer than twice this, only both ends are read.
const END_BYTES_MAX: usize = 32 * 1024;
/// How far `period` may read ahead of the words; its ring holds more.
const RUN_BYTES_MAX: usize = 512;

impl RepetitionTracker {
    /// A longer piece is not read as a whole.
    pub const PIECE_BYTES_MAX: usize = 2 * END_BYTES_MAX;

    /// The most work that a piece of this many bytes can cause, in the units of
    /// [`Self::work_units`].
    pub fn work_units_max(bytes: usize) -> u64 {
        let bytes = bytes as u64;
        u64::from(TextBudget::BURST + PeriodBudget::BURST)
            + bytes * u64::from(TextBudget::PER_BYTE + PeriodBudget::PER_BYTE)
    }

    /// The work so far beyond a constant per byte, in units of a `WorkBudget`.
    pub fn work_units(&self) -> u64 {
        self.budget.consumed() + self.periods.budget.consumed()
    }

    /// Whether any step was skipped since this was last asked, because the text had
    /// caused too much work.
    pub fn take_work_limited(&mut self) -> bool {
        self.budget.take_limited() | self.periods.budget.take_limited()
    }

    /// Reads the next piece of the text and returns the strongest new finding in it. Of a
    /// piece longer than any model writes at once, or of a whole text, only both ends
    /// are read, so that the cost is bounded.
    pub fn push(
        &mut self,
        piece: &str,
        settings: &RepetitionSettings,
        key: &HashKey,
    ) -> Option<TextRepetition> {
        let previous = self.last_found;
        let [head, skipped, tail] = split_ends(piece);
        let in_head = self.push_part(head, previous, settings, key);
        if !skipped.is_empty() {
            let chars = self.chars + skipped.chars().count() as u64;
            self.restart();
            self.chars = chars;
        }
        let in_tail = self.push_part(tail, previous, settings, key);
        stronger(in_head, in_tail)
    }

    /// Reads a part of a piece to its end. Returns the strongest finding in it.
    fn push_part(
        &mut self,
        part: &str,
        previous: Option<Sig>,
        settings: &RepetitionSettings,
        key: &HashKey,
    ) -> Option<TextRepetition> {
        let (mut strongest, mut rest) = (None, part);
        while !rest.is_empty() {
            let (consumed, found) = self.push_from(rest, previous, settings, key);
            strongest = stronger(strongest, found);
            rest = &rest[consumed..];
        }
        strongest
    }

    /// Reads a piece of the text, of at most 64 KiB, up to the first character with a
    /// finding. Returns the bytes read, and the strongest finding on that character. The
    /// next push must continue with the rest of the piece, unless the tracker is
    /// restarted.
    pub fn push_until_found(
        &mut self,
        piece: &str,
        settings: &RepetitionSettings,
        key: &HashKey,
    ) -> (usize, Option<TextRepetition>) {
        self.push_from(piece, self.last_found, settings, key)
    }

    fn push_from(
        &mut self,
        piece: &str,
        previous: Option<Sig>,
        settings: &RepetitionSettings,
        key: &HashKey,
    ) -> (usize, Option<TextRepetition>) {
        let mut context = PushContext {
            settings,
            key,
            previous,
            found: None,
            bytes_ahead: 0,
        };
        let consumed = if settings.chunk_window == 0 {
            self.process_text(piece, &mut context)
        } else {
            self.process_chunks(piece, &mut context)
        };
        (consumed, context.found)
    }

    /// Reads a piece for all trackers. Returns the bytes read.
    fn process_chunks(&mut self, piece: &str, context: &mut PushContext<'_>) -> usize {
        for (at, c) in piece.char_indices() {
            let end = at + c.len_utf8();
            if sanitize::is_invisible(c) {
                continue;
            }
            self.push_chunk_char(c, context);
            if context.settings.chunks_only {
                self.chars += 1;
            } else {
                self.process_text(&piece[at..end], context);
            }
            if context.found.is_some() {
                return end;
            }
        }
        piece.len()
    }

    /// Reads a piece for all trackers but that of chunks. Returns the bytes read.
    fn process_text(&mut self, piece: &str, context: &mut PushContext<'_>) -> usize {
        let bytes = piece.as_bytes();
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let run = &bytes[at..bytes.len().min(at + RUN_BYTES_MAX)];
            let length = match std::mem::take(&mut self.period_ahead) {
                0 => self.periods.push(run, context.settings),
                ahead => ascii_prefix_len(run, ahead),
            };
            if length > 0 {
                at += self.process_ascii_run(&run[..length], context);
            } else if *byte == b'\n' {
                self.end_line(context);
                at += 1;
            } else if let Some(c) = piece[at..].chars().next() {
                self.process_char(c, context);
                at += c.len_utf8();
            } else {
                break;
            }
            if context.found.is_some() {
                break;
            }
        }
        at
    }

    /// Starts a new text. The loop found last is kept: if it is found again, it is
    /// reported as an extension.
    pub fn restart(&mut self) {
        let (mut budget, mut period_budget) = (self.budget, self.periods.budget);
        budget.restart();
        period_budget.restart();
        *self = Self {
            last_found: self.last_found,
            budget,
            ..Self::default()
        };
        self.periods.budget = period_budget;
    }

    /// Reads a run of ASCII on one line that `period` has already read, up to the first
    /// finding. If a period is due, it is due on the last byte, and is reported before a
    /// word or a sentence. Returns the bytes read.
    fn process_ascii_run(&mut self, bytes: &[u8], context: &mut PushContext<'_>) -> usize {
        let before_due = bytes.len() - usize::from(self.periods.is_due());
        let read = self.process_words(&bytes[..before_due], bytes.len() - before_due, context);
        if read < before_due || before_due == bytes.len() || context.found.is_some() {
            self.period_ahead = bytes.len() - read;
            self.fence.push(&bytes[..read]);
            return read;
        }
        self.fence.push(bytes);
        self.report_period(self.chars + 1, context);
        self.process_words(&bytes[before_due..], 0, context);
        bytes.len()
    }

    /// Reads the words and sentences of such a run, up to the first finding. `ahead` bytes
    /// of it follow later. Returns the bytes read.
    fn process_words(
        &mut self,
        bytes: &[u8],
        ahead: usize,
        context: &mut PushContext<'_>,
    ) -> usize {
        let (mut block_start, mut left) = (self.chars, bytes.len() + ahead);
        for text in bytes.chunks(BLOCK_BYTES) {
            let block = ByteClasses::classify(text);
            let mut gaps = block.complement(block.letters | block.digits);
            let mut from = 0;
            while gaps != 0 {
                let at = gaps.trailing_zeros() as usize;
                self.push_word_run(&text[from..at], bit_range(block.digits, &(from..at)));
                let class = CHAR_CLASSES[usize::from(text[at])];
                self.code_detector.push(class);
                from = at + 1;
                self.chars = block_start + from as u64;
                context.bytes_ahead = left - from;
                self.end_open_word(context);
                match class {
                    CharClass::SentenceEnd => self.at_sentence_end = true,
                    CharClass::Space if self.at_sentence_end => self.end_sentence(context),
                    _ => {}
                }
                if context.found.is_some() {
                    return bytes.len() + ahead - context.bytes_ahead;
                }
                gaps &= gaps - 1;
            }
            if from < text.len() {
                self.push_word_run(&text[from..], bit_range(block.digits, &(from..text.len())));
            }
            block_start += text.len() as u64;
            left -= text.len();
        }
        self.chars = block_start;
        bytes.len()
    }

    /// Reads ASCII letters and digits, perhaps none. The bits of `digits` say which bytes
    /// are digits.
    #[inline]
    fn push_word_run(&mut self, run: &[u8], digits: u64) {
        if run.is_empty() {
            return;
        }
        // Nearly always there is none: the branch saves the bit count.
        let digit_count = if digits == 0 {
            0
        } else {
            digits.count_ones() as u16
        };
        self.words.push_ascii(run, digit_count);
        self.code_detector.push_others(run.len() as u32);
    }

    fn end_line(&mut self, context: &mut PushContext<'_>) {
        self.chars += 1;
        self.periods.push_byte(b'\n', context.settings);
        if self.fence.end_line() {
            self.periods.recheck_runs();
        }
        if self.periods.is_due() {
            self.report_period(self.chars, context);
        }
        context.bytes_ahead = 0;
        self.end_open_word(context);
        self.end_sentence(context);
    }

    /// Reads any other character; invisible ones are skipped.
    fn process_char(&mut self, c: char, context: &mut PushContext<'_>) {
        if sanitize::is_invisible(c) {
            return;
        }
        self.chars += 1;
        self.code_detector.push(CharClass::Other);
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            self.periods.push_byte(byte, context.settings);
            self.fence.push(&[byte]);
            if self.periods.is_due() {
                self.report_period(self.chars, context);
            }
        }
        let is_numeric = unicode::is_numeric(c);
        if is_numeric || unicode::is_letter(c) {
            self.words
                .push_char(unicode::first_lowercase(c).into(), is_numeric);
            return;
        }
        context.bytes_ahead = 0;
        self.end_open_word(context);
        // These end a sentence without white space after them.
        self.at_sentence_end |= matches!(c, '。' | '！' | '？');
        if self.at_sentence_end {
            self.end_sentence(context);
        }
    }

    /// Ends the current word, if there is one.
    #[inline]
    fn end_open_word(&mut self, context: &mut PushContext<'_>) {
        if !self.words.is_empty() {
            self.end_word(context);
        }
    }

    /// Words inside a Markdown fence are ignored; words of code only count towards
    /// their sentence.
    fn end_word(&mut self, context: &mut PushContext<'_>) {
        let letters = self.words.letters();
        let Some(word) = self.words.end_word() else {
            return;
        };
        self.at_sentence_end = false;
        if self.fence.is_open() {
            return;
        }
        if !word.is_id() {
            self.sentences.push(word.hash(), letters, self.chars);
        }
        if self.code_detector.is_code() {
            return;
        }
        let found = self.words.push_word(word, self.chars, &mut self.budget);
        if let Some(recurrence) = found {
            self.report_recurrence(recurrence, context);
        }
    }

    fn end_sentence(&mut self, context: &mut PushContext<'_>) {
        let has_full_stop = std::mem::take(&mut self.at_sentence_end);
        if self.fence.is_open() {
            return;
        }
        let is_code = self.code_detector.is_code();
        let found =
            self.sentences
                .end_sentence(has_full_stop, is_code, self.chars, &mut self.budget);
        if let Some(recurrence) = found {
            self.report_recurrence(recurrence, context);
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.periods.heap_bytes()
            + self.words.heap_bytes()
            + self.sentences.heap_bytes()
            + self.chunks.heap_bytes()
    }
}

/// The number of leading bytes, at most `most`, that are ASCII. All are, unless the state
/// was thawed and another text follows than before.
#[cold]
fn ascii_prefix_len(bytes: &[u8], most: usize) -> usize {
    let prefix = &bytes[..most.min(bytes.len())];
    prefix.iter().take_while(|byte| byte.is_ascii()).count()
}

/// The finding with the higher level, the earlier of equals.
fn stronger(
    earlier: Option<TextRepetition>,
    later: Option<TextRepetition>,
) -> Option<TextRepetition> {
    match (&earlier, &later) {
        (Some(known), Some(new)) if new.level > known.level => later,
        _ => earlier.or(later),
    }
}

/// The parts of a piece: its start, what is skipped, and its end. A short piece is all
/// start.
fn split_ends(piece: &str) -> [&str; 3] {
    if piece.len() <= END_BYTES_MAX {
        return [piece, "", ""];
    }
    let (head, rest) = piece.split_at(sanitize::prefix(piece, END_BYTES_MAX).len());
    let tail_start = rest.ceil_char_boundary(rest.len().saturating_sub(END_BYTES_MAX));
    let (skipped, tail) = rest.split_at(tail_start);
    [head, skipped, tail]
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod work_tests;
