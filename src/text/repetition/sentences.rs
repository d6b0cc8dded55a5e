//! Sentences that come back, in changing order and with fresh ones between.

use super::Recurrence;
use crate::domain::LadderRung;

/// Sentences among which one is sought.
const RECENT_MAX: usize = 128;
/// Shorter ones ("Done.", a heading) come back in any text.
const LETTERS_MIN: u16 = 12;
/// One that was seen so often before is stale.
const STALE_COUNT: usize = 2;
/// Fires when so many of the last are stale: 70 % of 20. Where they look like
/// code or are lines of a list, all of 40: those come from a form or a template.
const PROSE_STALE_MIN: (u32, u32) = (14, 20);
const LINES_STALE_MIN: (u32, u32) = (40, 40);
/// Sentences after the first bar that make the next ones.
const ESCALATION: [(u32, LadderRung); 2] = [(60, LadderRung::Final), (20, LadderRung::Hard)];

/// Watches the sentences of a text.
#[derive(Default)]
pub(super) struct SentenceTracker {
    /// The sentence that is being written, as the hash of its words: neither
    /// case nor white space nor punctuation counts.
    hash: u64,
    letters: u16,
    started_at: u64,
    /// Hash and beginning of the latest, in a ring.
    recent: Vec<(u32, u32)>,
    next: usize,
    /// The latest as bits: stale ones, and those that are lines without a full
    /// stop.
    stale_bits: u64,
    line_bits: u64,
    sentences_since: Option<u32>,
    reported: Option<LadderRung>,
}

impl SentenceTracker {
    /// Takes a word in that ends at this character.
    #[inline]
    pub fn push(&mut self, word: u32, letters: u16, at: u64) {
        if self.letters == 0 && self.hash == 0 {
            self.started_at = at.saturating_sub(u64::from(letters));
        }
        self.hash =
            (self.hash.rotate_left(5) ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.letters = self.letters.saturating_add(letters);
    }

    /// The sentence ends, with a full stop or as a line.
    pub fn end_sentence(&mut self, has_full_stop: bool, code: bool) -> Option<Recurrence> {
        let (hash, letters) = (
            std::mem::take(&mut self.hash),
            std::mem::take(&mut self.letters),
        );
        if hash == 0 {
            return None;
        }
        let hash = (hash >> 32) as u32;
        let seen_count = self
            .recent
            .iter()
            .filter(|(known, _)| *known == hash)
            .count();
        let short = letters < LETTERS_MIN;
        // A short one is news where it is new, and nothing where it is not.
        if short && seen_count > 0 {
            return None;
        }
        let stale = !short && seen_count >= STALE_COUNT;
        self.insert(hash);
        self.stale_bits = self.stale_bits << 1 | u64::from(stale);
        self.line_bits = self.line_bits << 1 | u64::from(!has_full_stop);
        self.check_staleness(hash, seen_count as u32 + 1, code)
    }

    fn insert(&mut self, hash: u32) {
        let sentence = (hash, self.started_at as u32);
        match self.recent.get_mut(self.next % RECENT_MAX) {
            Some(slot) => *slot = sentence,
            None => self.recent.push(sentence),
        }
        self.next = (self.next + 1) % RECENT_MAX;
    }

    /// The kept ones, latest first.
    fn latest(&self) -> impl Iterator<Item = &(u32, u32)> {
        let (older, newer) = (self.recent.get(self.next..), self.recent.get(..self.next));
        let newer = newer.unwrap_or_default().iter().rev();
        newer.chain(older.unwrap_or_default().iter().rev())
    }

    fn check_staleness(&mut self, hash: u32, count: u32, code: bool) -> Option<Recurrence> {
        let count_latest = |bits: u64, last: u32| (bits & ((1 << last) - 1)).count_ones();
        let is_strict =
            code || count_latest(self.line_bits, PROSE_STALE_MIN.1) * 2 > PROSE_STALE_MIN.1;
        let (least, last) = if is_strict {
            LINES_STALE_MIN
        } else {
            PROSE_STALE_MIN
        };
        let stale = count_latest(self.stale_bits, last);
        if stale < least {
            (self.sentences_since, self.reported) = (None, None);
            return None;
        }
        let since = self.sentences_since.map_or(0, |since| since + 1);
        self.sentences_since = Some(since);
        let more = ESCALATION.iter().find(|(more, _)| since >= *more);
        let bar = more.map_or(LadderRung::Soft, |(_, bar)| *bar);
        // A fresh one between is not what comes back.
        if Some(bar) <= self.reported || self.stale_bits & 1 == 0 {
            return None;
        }
        self.reported = Some(bar);
        let window = || self.latest().take(last as usize);
        let repeated = |(sentence, _): &&(u32, u32)| {
            self.recent
                .iter()
                .filter(|(other, _)| other == sentence)
                .count()
                > STALE_COUNT
        };
        Some(Recurrence {
            bar,
            name: window()
                .filter(repeated)
                .map(|(sentence, _)| *sentence)
                .min()
                .map_or(u64::from(hash), u64::from),
            count,
            share: f64::from(stale) / f64::from(last),
            began: window()
                .map(|(_, began)| u64::from(*began))
                .min()
                .unwrap_or_default(),
        })
    }

    pub fn heap_bytes(&self) -> usize {
        self.recent.capacity() * size_of::<(u32, u32)>()
    }
}
