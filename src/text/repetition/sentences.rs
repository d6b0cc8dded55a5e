//! Finds sentences that recur, in changing order and with new ones between them.
//!
//! Each sentence is reduced to a hash of its words. A sentence is stale if it occurs at
//! least twice among the latest 128. The tracker reports when most of the latest
//! sentences are stale; one bit per sentence keeps that history. Cost: a comparison with
//! 128 hashes at the end of each sentence, paid for from the text's budget. A sentence that
//! cannot be paid for is ignored.

use serde::{Deserialize, Serialize};

use super::{
    Recurrence,
    escalation::{EscalationSteps, LoopEscalation},
    is_ring,
};
use crate::text::{
    mixing::GOLDEN_RATIO_64,
    work_budget::{TextBudget, steps},
};

/// How many of the latest sentences are kept.
const RECENT_MAX: usize = 128;
/// Units of work for comparing a sentence with them.
const SENTENCE_UNITS: u32 = 24;
/// Shorter sentences ("Done.", a heading) recur in any text.
const LETTERS_MIN: u16 = 12;
/// A sentence is stale if it was seen this often before.
const STALE_COUNT: usize = 2;
/// How many of how many latest sentences must be stale: 70 % of 20. For code and for
/// lines of a list all of 40, because a form or a template repeats its lines.
const PROSE_STALE_MIN: (u32, u32) = (14, 20);
const LINES_STALE_MIN: (u32, u32) = (40, 40);
/// In sentences after the first report.
const STEPS: EscalationSteps = EscalationSteps { hard: 20, last: 60 };

/// The sentences of a text.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct SentenceTracker {
    /// The hash of the current sentence's words; case, white space and punctuation do not
    /// count.
    hash: u64,
    letters: u16,
    started_at: u64,
    /// Hash and first character of the latest sentences, in a ring.
    recent: Vec<(u32, u32)>,
    next: usize,
    /// One bit for each of the latest sentences, newest lowest: whether it is stale, and
    /// whether it is a line without a full stop.
    stale_bits: u64,
    line_bits: u64,
    escalation: LoopEscalation,
}

impl SentenceTracker {
    /// Adds a word that ends at character `at`.
    #[inline]
    pub fn push(&mut self, word: u32, letters: u16, at: u64) {
        if self.letters == 0 && self.hash == 0 {
            self.started_at = at.saturating_sub(u64::from(letters));
        }
        self.hash = (self.hash.rotate_left(5) ^ u64::from(word)).wrapping_mul(GOLDEN_RATIO_64);
        self.letters = self.letters.saturating_add(letters);
    }

    /// Ends the sentence at character `at`, with a full stop or at the end of its line.
    pub fn end_sentence(
        &mut self,
        has_full_stop: bool,
        is_code: bool,
        at: u64,
        budget: &mut TextBudget,
    ) -> Option<Recurrence> {
        let (full_hash, letters) = (
            std::mem::take(&mut self.hash),
            std::mem::take(&mut self.letters),
        );
        if full_hash == 0 || !budget.consume(at, SENTENCE_UNITS) {
            return None;
        }
        let hash = (full_hash >> 32) as u32;
        let seen_count = self.occurrences(hash);
        let is_short = letters < LETTERS_MIN;
        // A short sentence counts as new text the first time, and not at all later.
        if is_short && seen_count > 0 {
            return None;
        }
        let is_stale = !is_short && seen_count >= STALE_COUNT;
        self.insert(hash);
        self.stale_bits = self.stale_bits << 1 | u64::from(is_stale);
        self.line_bits = self.line_bits << 1 | u64::from(!has_full_stop);
        self.check_staleness(hash, seen_count as u32 + 1, is_code)
    }

    fn insert(&mut self, hash: u32) {
        let sentence = (hash, self.started_at as u32);
        match self.recent.get_mut(self.next % RECENT_MAX) {
            Some(slot) => *slot = sentence,
            None => self.recent.push(sentence),
        }
        self.next = (self.next + 1) % RECENT_MAX;
    }

    /// The kept sentences, latest first.
    fn latest(&self) -> impl Iterator<Item = &(u32, u32)> {
        let (older, newer) = (self.recent.get(self.next..), self.recent.get(..self.next));
        let newer = newer.unwrap_or_default().iter().rev();
        newer.chain(older.unwrap_or_default().iter().rev())
    }

    /// Whether enough of the latest sentences are stale, after one with this hash that
    /// occurs `count` times.
    fn check_staleness(&mut self, hash: u32, count: u32, is_code: bool) -> Option<Recurrence> {
        // Choose the threshold by the kind of text.
        let lines = count_latest(self.line_bits, PROSE_STALE_MIN.1);
        let (stale_min, window) = if is_code || lines * 2 > PROSE_STALE_MIN.1 {
            LINES_STALE_MIN
        } else {
            PROSE_STALE_MIN
        };
        let stale = count_latest(self.stale_bits, window);
        if stale < stale_min {
            self.escalation = LoopEscalation::default();
            return None;
        }
        let level = self.escalation.advance(1, STEPS);
        // A new sentence in between does not recur: the next stale one reports.
        let is_stale = self.stale_bits & 1 != 0;
        if !is_stale || !self.escalation.report(level) {
            return None;
        }
        // Describe the window: the smallest hash of a recurring sentence names the loop.
        let (mut loop_id, mut start_char) = (None, None);
        for (sentence, start) in self.latest().take(window as usize) {
            start_char = Some(start_char.map_or(*start, |first: u32| first.min(*start)));
            if self.occurrences(*sentence) > STALE_COUNT {
                loop_id = Some(loop_id.map_or(*sentence, |least: u32| least.min(*sentence)));
            }
        }
        Some(Recurrence {
            level,
            loop_id: loop_id.unwrap_or(hash).into(),
            count,
            share: f64::from(stale) / f64::from(window),
            start_char: start_char.unwrap_or_default().into(),
        })
    }

    fn occurrences(&self, sentence: u32) -> usize {
        steps::count(self.recent.len() / 6);
        self.recent
            .iter()
            .filter(|(other, _)| *other == sentence)
            .count()
    }

    /// Whether the thawed ring is one that sentences were added to.
    pub fn is_consistent(&self) -> bool {
        is_ring(self.recent.len(), self.next, RECENT_MAX)
    }

    pub fn heap_bytes(&self) -> usize {
        self.recent.capacity() * size_of::<(u32, u32)>()
    }
}

/// How many of the lowest `window` bits are set.
fn count_latest(bits: u64, window: u32) -> u32 {
    (bits & ((1 << window) - 1)).count_ones()
}
