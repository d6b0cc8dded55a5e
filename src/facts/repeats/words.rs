//! Words that are not new: loops that are not periodic, because their
//! sentences are shuffled or a word in them varies.

use super::Stale;
use crate::domain::Bar;

/// Grams of three words among which one is sought.
const GRAMS: usize = 1_024;
/// Counters of grams by their hash. Twice as many as grams: the error stays far
/// below what it takes to fire.
const SLOTS: usize = 2_048;
/// A gram that stands so often is stale.
const STALE_AT: u8 = 3;
/// Of the last 128 grams, as bits …
const RECENT: u32 = 128;
/// … 88 in 100 are stale: it fires.
const STALE_MIN: u32 = (RECENT * 88).div_ceil(100);
/// Three in four: it has ended.
const STALE_END: u32 = RECENT * 3 / 4;

/// So few distinct words …
const DISTINCT_MAX: usize = 10;
/// … in so many are a chant, however they are shuffled.
const CHANT: usize = 96;
/// Rows of figures are no chant.
const FIGURES_MAX: u32 = CHANT as u32 / 4;
/// A chant is looked for once in so many words.
const CHANT_STEP: u32 = 8;

/// Words after the first bar that make the next ones.
const MORE: [(u32, Bar); 2] = [(384, Bar::Last), (128, Bar::Hard)];

/// Watches the words of a text.
#[derive(Default)]
pub(super) struct Words {
    /// The word that is being written: its hash, letters and digits.
    word: u32,
    letters: u16,
    digits: u16,
    last: [u32; 2],
    /// Words that were taken in.
    taken: u32,
    stale: u128,
    memory: Option<Box<Memory>>,
    grams: Episode,
    chant: Episode,
}

struct Memory {
    /// A counter that has reached its end stays there.
    counts: [u8; SLOTS],
    /// The latest grams' counters, in a ring.
    grams: Vec<u16>,
    next: usize,
    /// The latest words and the character each began with.
    words: [(Word, u32); CHANT],
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Word {
    /// 0: none.
    pub hash: u32,
    is_figure: bool,
    pub is_id: bool,
}

/// A loop that is being watched: how many words it has gone on for.
#[derive(Default)]
struct Episode {
    since: Option<u32>,
    said: Option<Bar>,
}

impl Words {
    /// Short texts are not worth the memory, and cannot fire.
    const ALLOCATED_AT: u32 = 16;
    /// Letters and digits mixed, and so long: an id, which says nothing.
    const ID_MIN: u16 = 6;

    pub fn push(&mut self, c: u32, is_digit: bool) {
        self.word = (self.word ^ c).wrapping_mul(0x0100_0193).rotate_left(5);
        self.letters += u16::from(!is_digit);
        self.digits += u16::from(is_digit);
    }

    /// Letters of the word that is being written.
    pub fn letters(&self) -> u16 {
        self.letters
    }

    /// The word that ends here; `None`: there is none. A word with a digit in it
    /// is a figure.
    pub fn end(&mut self) -> Option<Word> {
        if self.letters == 0 && self.digits == 0 {
            return None;
        }
        let is_mixed = self.letters > 0 && self.digits > 0;
        let word = Word {
            hash: std::mem::take(&mut self.word) | 1,
            is_figure: self.digits > 0,
            is_id: is_mixed && self.letters + self.digits >= Self::ID_MIN,
        };
        (self.letters, self.digits) = (0, 0);
        Some(word)
    }

    /// Takes a word in that ends at this character.
    pub fn take(&mut self, word: Word, at: u64) -> Option<Stale> {
        let taken = self.taken as usize;
        self.taken = self.taken.wrapping_add(1);
        if self.memory.is_none() && self.taken < Self::ALLOCATED_AT {
            return None;
        }
        let memory = self.memory.get_or_insert_with(Memory::new);
        memory.words[taken % CHANT] = (word, at as u32);
        if word.is_id {
            return None;
        }
        let gram = self.last[0]
            .rotate_left(10)
            .wrapping_add(self.last[1].rotate_left(5))
            .wrapping_add(word.hash)
            .wrapping_mul(0x9e37_79b1);
        self.last = [self.last[1], word.hash];
        let count = memory.count((gram >> (32 - SLOTS.ilog2())) as u16);
        // Figures are data, and what differs in them is progress.
        let is_stale = count >= STALE_AT && !word.is_figure;
        self.stale = self.stale << 1 | u128::from(is_stale);
        self.judge(u32::from(count))
    }

    fn judge(&mut self, count: u32) -> Option<Stale> {
        let stale = self.stale.count_ones();
        if stale < STALE_END {
            self.grams = Episode::default();
        }
        if stale >= STALE_MIN || self.grams.since.is_some() {
            let passed = self.grams.go_on(1);
            if let Some(bar) = passed {
                return self.found(bar, count, f64::from(stale) / f64::from(RECENT));
            }
        }
        if !self.taken.is_multiple_of(CHANT_STEP) {
            return None;
        }
        let Some(count) = self.chanted() else {
            self.chant = Episode::default();
            return None;
        };
        let bar = self.chant.go_on(CHANT_STEP)?;
        self.found(bar, count, 1.0)
    }

    /// How often the latest word stands in the latest, where these are but a few
    /// distinct ones.
    fn chanted(&self) -> Option<u32> {
        let memory = self.memory.as_ref()?;
        let mut distinct = [0; DISTINCT_MAX];
        let (mut known, mut figures) = (0, 0);
        for word in memory.latest(self.taken) {
            // Not yet so many words, or data.
            figures += u32::from(word.is_figure);
            if word.hash == 0 || figures > FIGURES_MAX {
                return None;
            }
            if !distinct[..known].contains(&word.hash) {
                *distinct.get_mut(known)? = word.hash;
                known += 1;
            }
        }
        let latest = memory.latest(self.taken).next()?;
        let same = memory.latest(self.taken).filter(|word| *word == latest);
        Some(same.count() as u32)
    }

    fn found(&self, bar: Bar, count: u32, share: f64) -> Option<Stale> {
        let memory = self.memory.as_ref()?;
        let words = || memory.words.iter().filter(|(word, _)| word.hash != 0);
        Some(Stale {
            bar,
            name: u64::from(words().map(|(word, _)| word.hash).min()?),
            count,
            share,
            began: words().map(|(_, at)| u64::from(*at)).min()?,
        })
    }

    pub fn heap_bytes(&self) -> usize {
        let of = |memory: &Memory| size_of::<Memory>() + memory.grams.capacity() * size_of::<u16>();
        self.memory.as_deref().map_or(0, of)
    }
}

impl Memory {
    fn new() -> Box<Self> {
        Box::new(Self {
            counts: [0; SLOTS],
            grams: Vec::new(),
            next: 0,
            words: [(Word::default(), 0); CHANT],
        })
    }

    /// Takes a gram in: how often it stands.
    fn count(&mut self, slot: u16) -> u8 {
        if self.grams.len() < GRAMS {
            self.grams.push(slot);
        } else {
            let leaves = std::mem::replace(&mut self.grams[self.next], slot);
            let count = &mut self.counts[usize::from(leaves)];
            *count -= u8::from(*count < u8::MAX);
        }
        self.next = (self.next + 1) % GRAMS;
        let count = &mut self.counts[usize::from(slot)];
        *count = count.saturating_add(1);
        *count
    }

    /// The words, latest first.
    fn latest(&self, taken: u32) -> impl Iterator<Item = Word> + '_ {
        let taken = taken as usize;
        (1..=CHANT).map(move |back| self.words[(taken + CHANT * GRAMS - back) % CHANT].0)
    }
}

impl Episode {
    /// Goes on by so many words: the bar that is passed newly.
    fn go_on(&mut self, words: u32) -> Option<Bar> {
        let since = self.since.map_or(0, |since| since.saturating_add(words));
        self.since = Some(since);
        let more = MORE.iter().find(|(more, _)| since >= *more);
        let bar = more.map_or(Bar::Soft, |(_, bar)| *bar);
        let is_new = Some(bar) > self.said;
        self.said = self.said.max(Some(bar));
        is_new.then_some(bar)
    }
}
