//! Words that are not new: loops that are not periodic, because their
//! sentences are shuffled or a word in them varies.

use super::{
    Stale,
    word::{Word, grown},
};
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
    /// Which of the last [`RECENT`] grams are stale, and how many.
    stale: u128,
    stale_count: u32,
    memory: Option<Box<Memory>>,
    grams: Episode,
    chant: Episode,
}

struct Memory {
    /// By slot, two in a byte: how often its grams stand, at most [`COUNT_MAX`].
    counts: [u8; SLOTS / 2],
    /// The latest grams' slots, in a ring.
    grams: Vec<u16>,
    next: usize,
    /// The latest words, and the characters from the end of the one before to
    /// that of each.
    words: [Word; CHANT],
    gaps: [u16; CHANT],
    /// A bit of each of the latest words, by [`CHANT_STEP`] of them.
    bits: [u64; 3],
    /// Where the latest word ends.
    at: u64,
}

/// Half a byte holds no more.
const COUNT_MAX: u8 = 15;
/// A count below is exact. In a loop one leaves for each that comes, and nothing
/// has to be counted anew.
const EXACT_BELOW: u8 = 8;

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

    /// Takes in a letter or a digit, in lower case.
    pub fn push(&mut self, c: u32, is_digit: bool) {
        self.word = grown(self.word, c);
        self.letters = self.letters.saturating_add(u16::from(!is_digit));
        self.digits = self.digits.saturating_add(u16::from(is_digit));
    }

    /// Takes in letters and digits of ASCII, so many of these.
    #[inline]
    pub fn push_run(&mut self, run: &[u8], digits: u16) {
        // In lower case; digits have the bit anyway.
        let word = run
            .iter()
            .fold(self.word, |word, byte| grown(word, u32::from(byte | 0x20)));
        self.word = word;
        self.letters = self.letters.saturating_add(run.len() as u16 - digits);
        self.digits = self.digits.saturating_add(digits);
    }

    /// No word is being written.
    #[inline]
    pub fn is_between(&self) -> bool {
        self.letters == 0 && self.digits == 0
    }

    /// Letters of the word that is being written.
    #[inline]
    pub fn letters(&self) -> u16 {
        self.letters
    }

    /// The word that ends here; `None`: there is none. A word with a digit in it
    /// is a figure.
    #[inline]
    pub fn end(&mut self) -> Option<Word> {
        if self.is_between() {
            return None;
        }
        let is_mixed = self.letters > 0 && self.digits > 0;
        let is_long = self.letters.saturating_add(self.digits) >= Self::ID_MIN;
        let hash = std::mem::take(&mut self.word);
        let word = Word::new(hash, self.digits > 0, is_mixed && is_long);
        (self.letters, self.digits) = (0, 0);
        Some(word)
    }

    /// Takes a word in that ends at this character.
    pub fn take(&mut self, word: Word, at: u64) -> Option<Stale> {
        let taken = self.taken as usize;
        self.taken = self.taken.wrapping_add(1);
        if self.memory.is_none() {
            if self.taken < Self::ALLOCATED_AT {
                return None;
            }
            self.memory = Some(Memory::new());
        }
        let memory = self.memory.as_mut()?;
        memory.take(taken % CHANT, word, at);
        if word.is_id() {
            return None;
        }
        let gram = self.last[0]
            .rotate_left(10)
            .wrapping_add(self.last[1].rotate_left(5))
            .wrapping_add(word.hash())
            .wrapping_mul(0x9e37_79b1);
        self.last = [self.last[1], word.hash()];
        let count = memory.count((gram >> (32 - SLOTS.ilog2())) as u16);
        // Figures are data, and what differs in them is progress.
        let is_stale = count >= STALE_AT && !word.is_figure();
        self.stale_count += u32::from(is_stale);
        self.stale_count -= (self.stale >> (RECENT - 1)) as u32;
        self.stale = self.stale << 1 | u128::from(is_stale);
        self.judge()
    }

    fn judge(&mut self) -> Option<Stale> {
        let stale = self.stale_count;
        if stale < STALE_END {
            self.grams = Episode::default();
        }
        if stale >= STALE_MIN || self.grams.since.is_some() {
            let found = self.judge_grams();
            if found.is_some() {
                return found;
            }
        }
        if !self.taken.is_multiple_of(CHANT_STEP) {
            return None;
        }
        self.judge_chant()
    }

    #[cold]
    fn judge_grams(&mut self) -> Option<Stale> {
        let bar = self.grams.go_on(1)?;
        let count = self.memory.as_ref()?.latest_count();
        let share = f64::from(self.stale_count) / f64::from(RECENT);
        self.found(bar, count, share)
    }

    #[inline(never)]
    fn judge_chant(&mut self) -> Option<Stale> {
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
        let memory = self.memory.as_ref().filter(|memory| !memory.is_varied())?;
        let mut distinct = [Word::default(); DISTINCT_MAX];
        let (mut known, mut figures) = (0, 0);
        for word in memory.latest(self.taken) {
            // Not yet so many words, or data.
            figures += u32::from(word.is_figure());
            if word == Word::default() || figures > FIGURES_MAX {
                return None;
            }
            if !distinct[..known].contains(&word) {
                *distinct.get_mut(known)? = word;
                known += 1;
            }
        }
        let latest = memory.latest(self.taken).next()?;
        let same = memory.latest(self.taken).filter(|word| *word == latest);
        Some(same.count() as u32)
    }

    fn found(&self, bar: Bar, count: u32, share: f64) -> Option<Stale> {
        let memory = self.memory.as_ref()?;
        let words = memory.words.iter().filter(|word| **word != Word::default());
        Some(Stale {
            bar,
            name: u64::from(words.map(|word| word.hash()).min()?),
            count,
            share,
            began: memory.began(self.taken as usize % CHANT),
        })
    }

    pub fn heap_bytes(&self) -> usize {
        let of = |memory: &Memory| size_of::<Memory>() + memory.grams.capacity() * size_of::<u16>();
        self.memory.as_deref().map_or(0, of)
    }
}

impl Memory {
    #[cold]
    fn new() -> Box<Self> {
        Box::new(Self {
            counts: [0; SLOTS / 2],
            grams: Vec::new(),
            next: 0,
            words: [Word::default(); CHANT],
            gaps: [0; CHANT],
            bits: [0; 3],
            at: 0,
        })
    }

    /// Takes a word in that ends at this character.
    #[inline]
    fn take(&mut self, place: usize, word: Word, at: u64) {
        let gap = at.saturating_sub(self.at);
        self.words[place] = word;
        self.gaps[place] = gap.try_into().unwrap_or(u16::MAX);
        self.at = at;
        if place.is_multiple_of(CHANT_STEP as usize) {
            self.bits = [0, self.bits[0], self.bits[1]];
        }
        self.bits[0] |= word.bit();
    }

    /// Where the oldest word ends: that which the `next` one takes the place of,
    /// or the first behind it.
    fn began(&self, next: usize) -> u64 {
        let mut places = (next..CHANT).chain(0..next);
        let oldest = places.find(|place| self.words[*place] != Word::default());
        let before = oldest.map_or(0, |place| self.gaps[place]);
        let all: u64 = self.gaps.iter().map(|gap| u64::from(*gap)).sum();
        self.at.saturating_sub(all - u64::from(before))
    }

    /// Takes a gram in: how often it stands, as far as that is counted.
    #[inline]
    fn count(&mut self, slot: u16) -> u8 {
        let leaves = match self.grams.get_mut(self.next) {
            Some(oldest) => Some(std::mem::replace(oldest, slot)),
            None => {
                self.grams.push(slot);
                None
            }
        };
        self.next = (self.next + 1) % GRAMS;
        // One that takes its own place stands as often as before.
        if leaves == Some(slot) {
            return self.known(slot);
        }
        if let Some(leaves) = leaves {
            self.let_go(leaves);
        }
        self.count_one(slot)
    }

    /// One more: how often it stands now.
    #[inline]
    fn count_one(&mut self, slot: u16) -> u8 {
        let shift = slot % 2 * 4;
        let both = &mut self.counts[usize::from(slot / 2)];
        let count = *both >> shift & COUNT_MAX;
        if count == COUNT_MAX {
            return count;
        }
        *both += 1 << shift;
        count + 1
    }

    /// A gram has left. From [`EXACT_BELOW`] on it stands at least so often; where
    /// it may be fewer, they are counted anew.
    #[inline]
    fn let_go(&mut self, slot: u16) {
        let mut count = self.known(slot).saturating_sub(1);
        if count + 1 == EXACT_BELOW {
            count = self.stand(slot).min(COUNT_MAX.into()) as u8;
        }
        self.set(slot, count);
    }

    /// How often the latest gram stands.
    fn latest_count(&self) -> u32 {
        let latest = (self.next + GRAMS - 1) % GRAMS;
        self.grams.get(latest).map_or(0, |slot| self.stand(*slot))
    }

    #[cold]
    fn stand(&self, slot: u16) -> u32 {
        self.grams.iter().map(|gram| u32::from(*gram == slot)).sum()
    }

    #[inline]
    fn known(&self, slot: u16) -> u8 {
        self.counts[usize::from(slot / 2)] >> (slot % 2 * 4) & COUNT_MAX
    }

    #[inline]
    fn set(&mut self, slot: u16, count: u8) {
        let shift = slot % 2 * 4;
        let both = &mut self.counts[usize::from(slot / 2)];
        *both = *both & !(COUNT_MAX << shift) | count << shift;
    }

    /// The latest words are too many distinct ones for a chant, as a bit of each
    /// tells; nearly always so, as three in four are distinct in most texts.
    #[inline]
    fn is_varied(&self) -> bool {
        let bits = self.bits.iter().fold(0, |all, bits| all | bits);
        bits.count_ones() as usize > DISTINCT_MAX
    }

    /// The words, latest first.
    fn latest(&self, taken: u32) -> impl Iterator<Item = Word> + '_ {
        let taken = taken as usize;
        (1..=CHANT).map(move |back| self.words[(taken + CHANT - back) % CHANT])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grams_are_counted_exactly_as_they_come_and_go() {
        let mut memory = Memory::new();
        let mut seen: Vec<u16> = Vec::new();
        // A few that stand often, among many that do not.
        for n in 0..5_000u32 {
            let slot = match n % 5 {
                0 | 1 => n / 1_300 % 3,
                2 if n > 2_000 => 7,
                _ => n.wrapping_mul(2_654_435_761) >> 21,
            } as u16;
            seen.push(slot);
            let window = &seen[seen.len().saturating_sub(GRAMS)..];
            let stand = window.iter().filter(|known| **known == slot).count();
            let count = usize::from(memory.count(slot));
            assert!(count == stand || (8..=stand).contains(&count), "at {n}");
            assert_eq!(memory.latest_count() as usize, stand);
        }
    }

    #[test]
    fn the_oldest_word_is_where_it_began() {
        let mut words = Words::default();
        for n in 1..=300u64 {
            words.push(u32::from(b'a') + n as u32, false);
            if let Some(word) = words.end() {
                words.take(word, 10 * n);
            }
            let next = words.taken as usize % CHANT;
            let oldest = if n < 16 + CHANT as u64 { 16 } else { n - 95 };
            let began = words.memory.as_ref().map(|memory| memory.began(next));
            assert_eq!(began, (n >= 16).then_some(10 * oldest), "{n}");
        }
    }
}
