//! Describes what the trackers have found, and pays for each finding.

use std::hash::Hasher;

use super::{
    PushContext, Recurrence, RepetitionTracker,
    unit::{format_unit, smallest_rotation},
};
use crate::{
    domain::{Sig, TextRepetition},
    text::{HashKey, key::SignatureKind},
};

/// How much of the text's end a verdict quotes for a loop without a period.
const QUOTED_TAIL_BYTES: usize = 96;
/// The similarity reported for copies that differ in their digits.
const DIGIT_BLIND_SIMILARITY: f64 = 0.9;

/// Units of work for a finding: describing it, and what the caller does with it.
const FINDING_UNITS: u32 = 1_024;

impl RepetitionTracker {
    /// Gives the next character to the chunk tracker.
    #[cold]
    pub(super) fn push_chunk_char(&mut self, c: char, context: &mut PushContext<'_>) {
        let position = self.chars;
        let chunk = self.chunks.push(c, context.settings, |units| {
            self.budget.consume(position, units)
        });
        let Some(chunk) = chunk else {
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
            level: chunk.level,
            extends: false,
        };
        self.record_repetition(repetition, context);
    }

    /// Checks the due periods after `chars` characters of the text.
    #[cold]
    pub(super) fn report_period(&mut self, chars: u64, context: &mut PushContext<'_>) {
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
            level: passed.level,
            unit: format_unit(passed.unit).into(),
            extends: false,
        };
        self.record_repetition(repetition, context);
    }

    /// Reports recurring words or sentences. If a loop was found before in this text, they
    /// are part of it.
    #[cold]
    pub(super) fn report_recurrence(
        &mut self,
        recurrence: Recurrence,
        context: &mut PushContext<'_>,
    ) {
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
            level: recurrence.level,
            extends: false,
        };
        self.record_repetition(repetition, context);
    }

    fn record_repetition(&mut self, mut repetition: TextRepetition, context: &mut PushContext<'_>) {
        if !self.budget.consume(self.chars, FINDING_UNITS) {
            return;
        }
        repetition.extends = context.previous == Some(repetition.loop_key);
        self.last_found = Some(repetition.loop_key);
        let known = context.found.as_ref();
        if known.is_none_or(|other| other.level < repetition.level) {
            context.found = Some(repetition);
        }
    }
}

fn sign_unit(key: &HashKey, unit: &[u8]) -> Sig {
    let mut hasher = key.hasher(SignatureKind::Text);
    hasher.write(unit);
    Sig::new(hasher.finish())
}
