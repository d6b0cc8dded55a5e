//! Watches a text as it is written for what repeats itself. A pure state machine
//! over characters: how the text is cut makes no difference, and neither do
//! characters that nobody sees.

mod anchors;
mod chunk;
mod content;
mod period;
mod sentences;
mod unit;
mod word_hash;
mod words;

use std::hash::Hasher;

use super::{
    HashKey,
    key::SignatureKind,
    mask::simd_lanes::BLOCK_BYTES,
    simd::{ByteClasses, bit_range},
    unicode,
};
use crate::domain::{LadderRung, RepetitionSettings, Sig, TextRepetition, sanitize};
use chunk::ChunkTracker;
use content::{CHAR_CLASSES, CharClass, CodeDetector, FenceTracker};
use period::PeriodTracker;
use sentences::SentenceTracker;
use unit::{format_unit, smallest_rotation};
use words::WordTracker;

/// Watches one text.
#[derive(Default)]
pub struct RepetitionTracker {
    /// Characters that were seen.
    chars: u64,
    code_detector: CodeDetector,
    fence: FenceTracker,
    /// The last character that is not white space ends a sentence.
    at_sentence_end: bool,
    periods: PeriodTracker,
    words: WordTracker,
    sentences: SentenceTracker,
    chunks: ChunkTracker,
    /// What was found last: what comes back in changing order belongs to it.
    last_found: Option<Sig>,
    /// Words or sentences that were found to come back.
    recurring: Option<Sig>,
}

/// Words or sentences that keep coming back.
struct Recurrence {
    bar: LadderRung,
    /// A name that does not depend on their order.
    name: u64,
    /// How often the latest stand.
    count: u32,
    share: f64,
    /// The character where the latest of them began.
    began: u64,
}

/// What a text is watched by, and the strongest that was found in a piece of it.
struct PushContext<'a> {
    settings: &'a RepetitionSettings,
    key: &'a HashKey,
    /// What was found in the pieces before.
    previous: Option<Sig>,
    strongest: Option<TextRepetition>,
    /// Bytes that the periods have taken in and the words have not.
    bytes_ahead: usize,
}

/// Of a text that is not periodic.
const QUOTED_TAIL_BYTES: usize = 96;
/// How alike copies are that differ in their digits.
const DIGIT_BLIND_SIMILARITY: f64 = 0.9;

impl RepetitionTracker {
    /// Takes a piece of the text in: the strongest that is found newly in it. Of
    /// a piece that is longer than any model writes at once, or a whole text,
    /// both ends are watched, so that its cost has a bound.
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
            match context.settings.chunks_only {
                true => self.chars += 1,
                false => self.process_text(&piece[at..at + c.len_utf8()], context),
            }
        }
    }

    fn process_text(&mut self, piece: &str, context: &mut PushContext<'_>) {
        /// So far the periods are ahead of the words: what they have of the text
        /// holds more.
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

    /// The text begins anew. What was found in it is remembered: it goes on when
    /// it is found again.
    pub fn restart(&mut self) {
        *self = Self {
            last_found: self.last_found,
            ..Self::default()
        };
    }

    /// A stretch of ASCII on a line, after the periods have taken it in. Where a
    /// run is due it is so on the last byte, of which a period is said before a
    /// word or a sentence.
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

    /// The words and sentences of such a stretch, `ahead` bytes of which are yet
    /// to come.
    fn process_words(&mut self, bytes: &[u8], ahead: usize, context: &mut PushContext<'_>) {
        let (mut begin, mut left) = (self.chars, bytes.len() + ahead);
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
                self.chars = begin + from as u64;
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
            begin += text.len() as u64;
            left -= text.len();
        }
        self.chars = begin;
    }

    /// Letters and digits of ASCII, perhaps none; bits say which are digits.
    #[inline]
    fn push_word_run(&mut self, run: &[u8], digits: u64) {
        if run.is_empty() {
            return;
        }
        // Nearly always there are none to count.
        let digits = match digits {
            0 => 0,
            digits => digits.count_ones() as u16,
        };
        self.words.push_ascii(run, digits);
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

    /// Any other character, perhaps one that nobody sees.
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
        // These need no white space behind them.
        self.at_sentence_end |= matches!(c, '。' | '！' | '？');
        if self.at_sentence_end {
            self.end_sentence(context);
        }
    }

    /// The next character, for the chunk tier.
    #[cold]
    fn push_chunk_char(&mut self, c: char, context: &mut PushContext<'_>) {
        let Some(chunk) = self.chunks.push(c, context.settings) else {
            return;
        };
        let unit = chunk.unit.into_bytes();
        let repeated = TextRepetition {
            loop_key: sign_unit(context.key, &smallest_rotation(unit.clone())),
            unit: format_unit(unit).into(),
            count: chunk.count as i32,
            period: chunk.chars as i32,
            start_char: (self.chars + 1).saturating_sub(u64::from(chunk.span)),
            similarity: 1.0,
            rung: chunk.bar,
            extends: false,
        };
        self.record_repetition(repeated, context);
    }

    /// A run is due after so many characters.
    #[cold]
    fn report_period(&mut self, chars: u64, context: &mut PushContext<'_>) {
        let fenced = self.fence.is_open();
        let Some(exceeded) = self.periods.check_due_runs(fenced, context.settings) else {
            return;
        };
        let own = || sign_unit(context.key, &smallest_rotation(exceeded.normalized_unit()));
        let repeated = TextRepetition {
            loop_key: self.recurring.unwrap_or_else(own),
            count: exceeded.count.try_into().unwrap_or(i32::MAX),
            period: exceeded.chars as i32,
            start_char: chars.saturating_sub(exceeded.span_chars),
            similarity: if exceeded.is_exact {
                1.0
            } else {
                DIGIT_BLIND_SIMILARITY
            },
            rung: exceeded.bar,
            unit: format_unit(exceeded.unit).into(),
            extends: false,
        };
        self.record_repetition(repeated, context);
    }

    /// The word ends that is being written, if any.
    #[inline]
    fn end_open_word(&mut self, context: &mut PushContext<'_>) {
        if !self.words.is_empty() {
            self.end_word(context);
        }
    }

    /// In code words say nothing.
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
        let stopped = std::mem::take(&mut self.at_sentence_end);
        if self.fence.is_open() {
            return;
        }
        let code = self.code_detector.is_code();
        if let Some(recurrence) = self.sentences.end_sentence(stopped, code) {
            self.report_recurrence(recurrence, context);
        }
    }

    /// What comes back in changing order, in a text in which something may have
    /// been found to repeat itself before.
    #[cold]
    fn report_recurrence(&mut self, recurrence: Recurrence, context: &mut PushContext<'_>) {
        let own = || sign_unit(context.key, &recurrence.name.to_le_bytes());
        let name = self.last_found.unwrap_or_else(own);
        self.recurring = Some(name);
        let tail = self
            .periods
            .tail_before(context.bytes_ahead, QUOTED_TAIL_BYTES);
        let tail = String::from_utf8_lossy(&tail).into_owned();
        // From the first whole word on.
        let begin = tail.find(char::is_whitespace).unwrap_or(0);
        let repeated = TextRepetition {
            unit: tail[begin..].trim().into(),
            loop_key: name,
            count: recurrence.count as i32,
            period: 0,
            start_char: recurrence.began,
            similarity: recurrence.share,
            rung: recurrence.bar,
            extends: false,
        };
        self.record_repetition(repeated, context);
    }

    fn record_repetition(&mut self, mut repeated: TextRepetition, context: &mut PushContext<'_>) {
        repeated.extends = context.previous == Some(repeated.loop_key);
        self.last_found = Some(repeated.loop_key);
        let strongest = context.strongest.as_ref();
        if strongest.is_none_or(|other| other.rung < repeated.rung) {
            context.strongest = Some(repeated);
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
