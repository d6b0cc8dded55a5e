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
//! chunks). The parts that can cost more than a constant per byte:
//! - a hit of the rolling hash compares backwards up to 4 KiB (`period::run_lengths`);
//! - up to 8 periods are followed at once, each with a comparison per byte;
//! - a run that first reaches a threshold searches its primitive period by trying every
//!   divisor (`thresholds::measure_unit`), at most once per run;
//! - a gram whose count falls below 8 is recounted over 1,024 entries, every 8th word is
//!   checked against 96 words if few are distinct, and each sentence is compared with 128.

mod anchors;
mod chunk;
mod content;
mod escalation;
mod period;
mod sentences;
mod unit;
mod word_hash;
mod words;

use std::hash::Hasher;

use super::{
    HashKey,
    key::SignatureKind,
    simd::{BLOCK_BYTES, ByteClasses, bit_range},
    unicode,
};
use crate::domain::{LadderRung, RepetitionSettings, Sig, TextRepetition, sanitize};
use chunk::ChunkTracker;
use content::{CHAR_CLASSES, CharClass, CodeDetector, FenceTracker};
use period::PeriodTracker;
use sentences::SentenceTracker;
use unit::{format_unit, smallest_rotation};
use words::WordTracker;

/// The state of one text that is being written.
#[derive(Default)]
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
    /// The loop found last. Words or sentences that recur later belong to it.
    last_found: Option<Sig>,
    /// The loop under which recurring words or sentences were reported. A period found
    /// later belongs to it.
    recurring: Option<Sig>,
}

/// Words or sentences that recur.
struct Recurrence {
    rung: LadderRung,
    /// Identifies the loop; independent of the order in which they recur.
    loop_id: u64,
    /// How often the latest word or sentence occurs.
    count: u32,
    /// The share of the latest ones that recur.
    share: f64,
    /// The character where the oldest of the latest begins.
    start_char: u64,
}

/// The parameters of one push, and the strongest finding so far in it.
struct PushContext<'a> {
    settings: &'a RepetitionSettings,
    key: &'a HashKey,
    /// The loop found last in earlier pieces.
    previous: Option<Sig>,
    strongest: Option<TextRepetition>,
    /// Bytes that `period` has read and the words have not.
    bytes_ahead: usize,
}

/// How much of the text's end a verdict quotes for a loop without a period.
const QUOTED_TAIL_BYTES: usize = 96;
/// The similarity reported for copies that differ in their digits.
const DIGIT_BLIND_SIMILARITY: f64 = 0.9;

impl RepetitionTracker {
    /// Reads the next piece of the text and returns the strongest new finding in it. Of a
    /// piece longer than any model writes at once, or of a whole text, only both ends
    /// are read, so that the cost is bounded.
    pub fn push(
        &mut self,
        piece: &str,
        settings: &RepetitionSettings,
        key: &HashKey,
    ) -> Option<TextRepetition> {
        const END_BYTES_MAX: usize = 32 * 1024;
        let mut context = PushContext {
            settings,
            key,
            previous: self.last_found,
            strongest: None,
            bytes_ahead: 0,
        };
        if piece.len() <= END_BYTES_MAX {
            self.process(piece, &mut context);
            return context.strongest;
        }
        let head = sanitize::prefix(piece, END_BYTES_MAX);
        let rest = &piece[head.len()..];
        let tail_start = rest.ceil_char_boundary(rest.len().saturating_sub(END_BYTES_MAX));
        let (skipped, tail) = rest.split_at(tail_start);
        self.process(head, &mut context);
        if !skipped.is_empty() {
            let chars = self.chars + skipped.chars().count() as u64;
            self.restart();
            self.chars = chars;
        }
        self.process(tail, &mut context);
        context.strongest
    }

    fn process(&mut self, piece: &str, context: &mut PushContext<'_>) {
        if context.settings.chunk_window == 0 {
            return self.process_text(piece, context);
        }
        for (at, c) in piece
            .char_indices()
            .filter(|(_, c)| !sanitize::is_invisible(*c))
        {
            self.push_chunk_char(c, context);
            if context.settings.chunks_only {
                self.chars += 1;
            } else {
                self.process_text(&piece[at..at + c.len_utf8()], context);
            }
        }
    }

    fn process_text(&mut self, piece: &str, context: &mut PushContext<'_>) {
        /// How far `period` may read ahead of the words; its ring holds more.
        const RUN_BYTES_MAX: usize = 512;
        let bytes = piece.as_bytes();
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let run = &bytes[at..bytes.len().min(at + RUN_BYTES_MAX)];
            let length = self.periods.push(run);
            if length > 0 {
                self.process_ascii_run(&run[..length], context);
                at += length;
            } else if *byte == b'\n' {
                self.end_line(context);
                at += 1;
            } else if let Some(c) = piece[at..].chars().next() {
                self.process_char(c, context);
                at += c.len_utf8();
            } else {
                break;
            }
        }
    }

    /// Starts a new text. The loop found last is kept: if it is found again, it is
    /// reported as an extension.
    pub fn restart(&mut self) {
        *self = Self {
            last_found: self.last_found,
            ..Self::default()
        };
    }

    /// Reads a run of ASCII on one line that `period` has already read. If a period is
    /// due, it is due on the last byte, and is reported before a word or a sentence.
    fn process_ascii_run(&mut self, bytes: &[u8], context: &mut PushContext<'_>) {
        self.fence.push(bytes);
        if !self.periods.is_due() {
            return self.process_words(bytes, 0, context);
        }
        let (before, last) = bytes.split_at(bytes.len() - 1);
        self.process_words(before, last.len(), context);
        self.report_period(self.chars + 1, context);
        self.process_words(last, 0, context);
    }

    /// Reads the words and sentences of such a run. `ahead` bytes of it follow later.
    fn process_words(&mut self, bytes: &[u8], ahead: usize, context: &mut PushContext<'_>) {
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
                gaps &= gaps - 1;
            }
            if from < text.len() {
                self.push_word_run(&text[from..], bit_range(block.digits, &(from..text.len())));
            }
            block_start += text.len() as u64;
            left -= text.len();
        }
        self.chars = block_start;
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
        self.periods.push_byte(b'\n');
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
            self.periods.push_byte(byte);
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

    /// Gives the next character to the chunk tracker.
    #[cold]
    fn push_chunk_char(&mut self, c: char, context: &mut PushContext<'_>) {
        let Some(chunk) = self.chunks.push(c, context.settings) else {
            return;
        };
        let unit = chunk.unit.into_bytes();
        let repetition = TextRepetition {
            loop_key: sign_unit(context.key, &smallest_rotation(unit.clone())),
            unit: format_unit(unit).into(),
            count: chunk.count as i32,
            period: chunk.chars as i32,
            start_char: (self.chars + 1).saturating_sub(u64::from(chunk.span)),
            similarity: 1.0,
            rung: chunk.rung,
            extends: false,
        };
        self.record_repetition(repetition, context);
    }

    /// Checks the due periods after `chars` characters of the text.
    #[cold]
    fn report_period(&mut self, chars: u64, context: &mut PushContext<'_>) {
        let fenced = self.fence.is_open();
        let Some(passed) = self.periods.check_due_runs(fenced, context.settings) else {
            return;
        };
        let repetition = TextRepetition {
            loop_key: self.recurring.unwrap_or_else(|| {
                sign_unit(context.key, &smallest_rotation(passed.normalized_unit()))
            }),
            count: passed.count.try_into().unwrap_or(i32::MAX),
            period: passed.chars as i32,
            start_char: chars.saturating_sub(passed.span_chars),
            similarity: if passed.is_exact {
                1.0
            } else {
                DIGIT_BLIND_SIMILARITY
            },
            rung: passed.rung,
            unit: format_unit(passed.unit).into(),
            extends: false,
        };
        self.record_repetition(repetition, context);
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
        if let Some(recurrence) = self.words.push_word(word, self.chars) {
            self.report_recurrence(recurrence, context);
        }
    }

    fn end_sentence(&mut self, context: &mut PushContext<'_>) {
        let has_full_stop = std::mem::take(&mut self.at_sentence_end);
        if self.fence.is_open() {
            return;
        }
        let is_code = self.code_detector.is_code();
        if let Some(recurrence) = self.sentences.end_sentence(has_full_stop, is_code) {
            self.report_recurrence(recurrence, context);
        }
    }

    /// Reports recurring words or sentences. If a loop was found before in this text, they
    /// are part of it.
    #[cold]
    fn report_recurrence(&mut self, recurrence: Recurrence, context: &mut PushContext<'_>) {
        let loop_key = self
            .last_found
            .unwrap_or_else(|| sign_unit(context.key, &recurrence.loop_id.to_le_bytes()));
        self.recurring = Some(loop_key);
        let tail_bytes = self
            .periods
            .tail_before(context.bytes_ahead, QUOTED_TAIL_BYTES);
        let tail = String::from_utf8_lossy(&tail_bytes);
        let first_whole_word = tail.find(char::is_whitespace).unwrap_or(0);
        let repetition = TextRepetition {
            unit: tail[first_whole_word..].trim().into(),
            loop_key,
            count: recurrence.count as i32,
            period: 0,
            start_char: recurrence.start_char,
            similarity: recurrence.share,
            rung: recurrence.rung,
            extends: false,
        };
        self.record_repetition(repetition, context);
    }

    fn record_repetition(&mut self, mut repetition: TextRepetition, context: &mut PushContext<'_>) {
        repetition.extends = context.previous == Some(repetition.loop_key);
        self.last_found = Some(repetition.loop_key);
        let strongest = context.strongest.as_ref();
        if strongest.is_none_or(|other| other.rung < repetition.rung) {
            context.strongest = Some(repetition);
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.periods.heap_bytes()
            + self.words.heap_bytes()
            + self.sentences.heap_bytes()
            + self.chunks.heap_bytes()
    }
}

fn sign_unit(key: &HashKey, unit: &[u8]) -> Sig {
    let mut hasher = key.hasher(SignatureKind::Text);
    hasher.write(unit);
    Sig::new(hasher.finish())
}

#[cfg(test)]
mod tests;
