//! Sentences that come back, in changing order and with fresh ones between.

use super::Stale;
use crate::domain::Bar;

/// Sentences among which one is sought.
const KEPT: usize = 128;
/// Shorter ones ("Done.", a heading) come back in any text.
const LETTERS_MIN: u16 = 12;
/// One that was seen so often before is stale.
const STALE_AT: usize = 2;
/// Fires when so many of the last are stale: 70 % of 20. Where they look like
/// code or are lines of a list, all of 40: those come from a form or a template.
const PROSE: (u32, u32) = (14, 20);
const LINES: (u32, u32) = (40, 40);
/// Sentences after the first bar that make the next ones.
const MORE: [(u32, Bar); 2] = [(60, Bar::Last), (20, Bar::Hard)];

/// Watches the sentences of a text.
#[derive(Default)]
pub(super) struct Sentences {
    /// The sentence that is being written, as the hash of its words: neither
    /// case nor white space nor punctuation counts.
    hash: u64,
    letters: u16,
    began: u64,
    /// Hash and beginning of the latest, in a ring.
    kept: Vec<(u32, u32)>,
    next: usize,
    /// The latest as bits: stale ones, and those that are lines without a full
    /// stop.
    stale: u64,
    lines: u64,
    since: Option<u32>,
    said: Option<Bar>,
}

impl Sentences {
    /// Takes a word in that ends at this character.
    #[inline]
    pub fn push(&mut self, word: u32, letters: u16, at: u64) {
        if self.letters == 0 && self.hash == 0 {
            self.began = at.saturating_sub(u64::from(letters));
        }
        self.hash =
            (self.hash.rotate_left(5) ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.letters = self.letters.saturating_add(letters);
    }

    /// The sentence ends, with a full stop or as a line.
    pub fn end(&mut self, stopped: bool, code: bool) -> Option<Stale> {
        let (hash, letters) = (
            std::mem::take(&mut self.hash),
            std::mem::take(&mut self.letters),
        );
        if hash == 0 {
            return None;
        }
        let hash = (hash >> 32) as u32;
        let seen = self.kept.iter().filter(|(known, _)| *known == hash).count();
        let short = letters < LETTERS_MIN;
        // A short one is news where it is new, and nothing where it is not.
        if short && seen > 0 {
            return None;
        }
        let stale = !short && seen >= STALE_AT;
        self.keep(hash);
        self.stale = self.stale << 1 | u64::from(stale);
        self.lines = self.lines << 1 | u64::from(!stopped);
        self.judge(hash, seen as u32 + 1, code)
    }

    fn keep(&mut self, hash: u32) {
        let sentence = (hash, self.began as u32);
        match self.kept.get_mut(self.next % KEPT) {
            Some(slot) => *slot = sentence,
            None => self.kept.push(sentence),
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// The kept ones, latest first.
    fn latest(&self) -> impl Iterator<Item = &(u32, u32)> {
        let (older, newer) = (self.kept.get(self.next..), self.kept.get(..self.next));
        let newer = newer.unwrap_or_default().iter().rev();
        newer.chain(older.unwrap_or_default().iter().rev())
    }

    fn judge(&mut self, hash: u32, count: u32, code: bool) -> Option<Stale> {
        let of = |bits: u64, last: u32| (bits & ((1 << last) - 1)).count_ones();
        let strict = code || of(self.lines, PROSE.1) * 2 > PROSE.1;
        let (least, last) = if strict { LINES } else { PROSE };
        let stale = of(self.stale, last);
        if stale < least {
            (self.since, self.said) = (None, None);
            return None;
        }
        let since = self.since.map_or(0, |since| since + 1);
        self.since = Some(since);
        let more = MORE.iter().find(|(more, _)| since >= *more);
        let bar = more.map_or(Bar::Soft, |(_, bar)| *bar);
        // A fresh one between is not what comes back.
        if Some(bar) <= self.said || self.stale & 1 == 0 {
            return None;
        }
        self.said = Some(bar);
        let window = || self.latest().take(last as usize);
        let repeated = |(sentence, _): &&(u32, u32)| {
            self.kept
                .iter()
                .filter(|(other, _)| other == sentence)
                .count()
                > STALE_AT
        };
        Some(Stale {
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
        self.kept.capacity() * size_of::<(u32, u32)>()
    }
}
