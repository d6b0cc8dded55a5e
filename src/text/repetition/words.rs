//! Words that are not new: loops that are not periodic, because their
//! sentences are shuffled or a word in them varies.

use super::{
    Recurrence,
    word_hash::{WordHash, extend_hash},
};
use crate::domain::LadderRung;

/// Grams of three words among which one is sought.
const GRAMS_MAX: usize = 1_024;
/// Counters of grams by their hash. Twice as many as grams: the error stays far
/// below what it takes to fire.
const SLOTS: usize = 2_048;
/// A gram that stands so often is stale.
const STALE_COUNT: u8 = 3;
/// Of the last 128 grams, as bits …
const RECENT_GRAMS: u32 = 128;
/// … 88 in 100 are stale: it fires.
const STALE_MIN: u32 = (RECENT_GRAMS * 88).div_ceil(100);
/// Three in four: it has ended.
const STALE_END: u32 = RECENT_GRAMS * 3 / 4;

/// So few distinct words …
const DISTINCT_MAX: usize = 10;
/// … in so many are a chant, however they are shuffled.
const VARIETY_WINDOW: usize = 96;
/// Rows of figures are no chant.
const NUMBERS_MAX: u32 = VARIETY_WINDOW as u32 / 4;
/// A chant is looked for once in so many words.
const VARIETY_STEP: u32 = 8;

/// Words after the first bar that make the next ones.
const ESCALATION: [(u32, LadderRung); 2] = [(384, LadderRung::Final), (128, LadderRung::Hard)];

/// Watches the words of a text.
#[derive(Default)]
pub(super) struct WordTracker {
    /// The word that is being written: its hash, letters and digits.
    word: u32,
    letters: u16,
    digits: u16,
    previous_words: [u32; 2],
    /// Words that were taken in.
    word_count: u32,
    /// Which of the last [`RECENT`] grams are stale, and how many.
    stale_bits: u128,
    stale_count: u32,
    history: Option<Box<WordHistory>>,
    stale_episode: LoopEpisode,
    low_variety_episode: LoopEpisode,
}

struct WordHistory {
    /// By slot, two in a byte: how often its grams stand, at most [`COUNT_MAX`].
    counts: [u8; SLOTS / 2],
    /// The latest grams' slots, in a ring.
    grams: Vec<u16>,
    next: usize,
    /// The latest words, and the characters from the end of the one before to
    /// that of each.
    words: [WordHash; VARIETY_WINDOW],
    gaps: [u16; VARIETY_WINDOW],
    /// A bit of each of the latest words, by [`CHANT_STEP`] of them.
    bloom_bits: [u64; 3],
    /// Where the latest word ends.
    last_word_end: u64,
}

/// Half a byte holds no more.
const COUNT_MAX: u8 = 15;
/// A count below is exact. In a loop one leaves for each that comes, and nothing
/// has to be counted anew.
const EXACT_BELOW: u8 = 8;

/// A loop that is being watched: how many words it has gone on for.
#[derive(Default)]
struct LoopEpisode {
    words: Option<u32>,
    reported: Option<LadderRung>,
}

impl WordTracker {
    /// Short texts are not worth the memory, and cannot fire.
    const ALLOCATE_AT_WORDS: u32 = 16;
    /// Letters and digits mixed, and so long: an id, which says nothing.
    const ID_CHARS_MIN: u16 = 6;

    /// Takes in a letter or a digit, in lower case.
    pub fn push_char(&mut self, c: u32, is_digit: bool) {
        self.word = extend_hash(self.word, c);
        self.letters = self.letters.saturating_add(u16::from(!is_digit));
        self.digits = self.digits.saturating_add(u16::from(is_digit));
    }

    /// Takes in letters and digits of ASCII, so many of these.
    #[inline]
    pub fn push_ascii(&mut self, run: &[u8], digits: u16) {
        // In lower case; digits have the bit anyway.
        let word = run.iter().fold(self.word, |word, byte| {
            extend_hash(word, u32::from(byte | 0x20))
        });
        self.word = word;
        self.letters = self.letters.saturating_add(run.len() as u16 - digits);
        self.digits = self.digits.saturating_add(digits);
    }

    /// No word is being written.
    #[inline]
    pub fn is_empty(&self) -> bool {
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
    pub fn end_word(&mut self) -> Option<WordHash> {
        if self.is_empty() {
            return None;
        }
        let is_mixed = self.letters > 0 && self.digits > 0;
        let is_long = self.letters.saturating_add(self.digits) >= Self::ID_CHARS_MIN;
        let hash = std::mem::take(&mut self.word);
        let word = WordHash::new(hash, self.digits > 0, is_mixed && is_long);
        (self.letters, self.digits) = (0, 0);
        Some(word)
    }

    /// Takes a word in that ends at this character.
    pub fn push_word(&mut self, word: WordHash, at: u64) -> Option<Recurrence> {
        let taken = self.word_count as usize;
        self.word_count = self.word_count.wrapping_add(1);
        if self.history.is_none() {
            if self.word_count < Self::ALLOCATE_AT_WORDS {
                return None;
            }
            self.history = Some(WordHistory::new());
        }
        let memory = self.history.as_mut()?;
        memory.push_word(taken % VARIETY_WINDOW, word, at);
        if word.is_id() {
            return None;
        }
        let gram = self.previous_words[0]
            .rotate_left(10)
            .wrapping_add(self.previous_words[1].rotate_left(5))
            .wrapping_add(word.hash())
            .wrapping_mul(0x9e37_79b1);
        self.previous_words = [self.previous_words[1], word.hash()];
        let count = memory.insert_gram((gram >> (32 - SLOTS.ilog2())) as u16);
        // Figures are data, and what differs in them is progress.
        let is_stale = count >= STALE_COUNT && !word.has_digit();
        self.stale_count += u32::from(is_stale);
        self.stale_count -= (self.stale_bits >> (RECENT_GRAMS - 1)) as u32;
        self.stale_bits = self.stale_bits << 1 | u128::from(is_stale);
        self.check()
    }

    fn check(&mut self) -> Option<Recurrence> {
        let stale = self.stale_count;
        if stale < STALE_END {
            self.stale_episode = LoopEpisode::default();
        }
        if stale >= STALE_MIN || self.stale_episode.words.is_some() {
            let found = self.check_stale_grams();
            if found.is_some() {
                return found;
            }
        }
        if !self.word_count.is_multiple_of(VARIETY_STEP) {
            return None;
        }
        self.check_low_variety()
    }

    #[cold]
    fn check_stale_grams(&mut self) -> Option<Recurrence> {
        let bar = self.stale_episode.advance(1)?;
        let count = self.history.as_ref()?.latest_count();
        let share = f64::from(self.stale_count) / f64::from(RECENT_GRAMS);
        self.recurrence(bar, count, share)
    }

    #[inline(never)]
    fn check_low_variety(&mut self) -> Option<Recurrence> {
        let Some(count) = self.low_variety_count() else {
            self.low_variety_episode = LoopEpisode::default();
            return None;
        };
        let bar = self.low_variety_episode.advance(VARIETY_STEP)?;
        self.recurrence(bar, count, 1.0)
    }

    /// How often the latest word stands in the latest, where these are but a few
    /// distinct ones.
    fn low_variety_count(&self) -> Option<u32> {
        let memory = self
            .history
            .as_ref()
            .filter(|memory| !memory.has_many_distinct())?;
        let mut distinct = [WordHash::default(); DISTINCT_MAX];
        let (mut known, mut figures) = (0, 0);
        for word in memory.latest(self.word_count) {
            // Not yet so many words, or data.
            figures += u32::from(word.has_digit());
            if word == WordHash::default() || figures > NUMBERS_MAX {
                return None;
            }
            if !distinct[..known].contains(&word) {
                *distinct.get_mut(known)? = word;
                known += 1;
            }
        }
        let latest = memory.latest(self.word_count).next()?;
        let same = memory
            .latest(self.word_count)
            .filter(|word| *word == latest);
        Some(same.count() as u32)
    }

    fn recurrence(&self, bar: LadderRung, count: u32, share: f64) -> Option<Recurrence> {
        let memory = self.history.as_ref()?;
        let words = memory
            .words
            .iter()
            .filter(|word| **word != WordHash::default());
        Some(Recurrence {
            bar,
            name: u64::from(words.map(|word| word.hash()).min()?),
            count,
            share,
            began: memory.start_offset(self.word_count as usize % VARIETY_WINDOW),
        })
    }

    pub fn heap_bytes(&self) -> usize {
        let of = |memory: &WordHistory| {
            size_of::<WordHistory>() + memory.grams.capacity() * size_of::<u16>()
        };
        self.history.as_deref().map_or(0, of)
    }
}

impl WordHistory {
    #[cold]
    fn new() -> Box<Self> {
        Box::new(Self {
            counts: [0; SLOTS / 2],
            grams: Vec::new(),
            next: 0,
            words: [WordHash::default(); VARIETY_WINDOW],
            gaps: [0; VARIETY_WINDOW],
            bloom_bits: [0; 3],
            last_word_end: 0,
        })
    }

    /// Takes a word in that ends at this character.
    #[inline]
    fn push_word(&mut self, slot: usize, word: WordHash, at: u64) {
        let gap = at.saturating_sub(self.last_word_end);
        self.words[slot] = word;
        self.gaps[slot] = gap.try_into().unwrap_or(u16::MAX);
        self.last_word_end = at;
        if slot.is_multiple_of(VARIETY_STEP as usize) {
            self.bloom_bits = [0, self.bloom_bits[0], self.bloom_bits[1]];
        }
        self.bloom_bits[0] |= word.bloom_bit();
    }

    /// Where the oldest word ends: that which the `next` one takes the place of,
    /// or the first behind it.
    fn start_offset(&self, next: usize) -> u64 {
        let mut slots = (next..VARIETY_WINDOW).chain(0..next);
        let oldest = slots.find(|slot| self.words[*slot] != WordHash::default());
        let before = oldest.map_or(0, |slot| self.gaps[slot]);
        let all: u64 = self.gaps.iter().map(|gap| u64::from(*gap)).sum();
        self.last_word_end.saturating_sub(all - u64::from(before))
    }

    /// Takes a gram in: how often it stands, as far as that is counted.
    #[inline]
    fn insert_gram(&mut self, slot: u16) -> u8 {
        let evicted = match self.grams.get_mut(self.next) {
            Some(oldest) => Some(std::mem::replace(oldest, slot)),
            None => {
                self.grams.push(slot);
                None
            }
        };
        self.next = (self.next + 1) % GRAMS_MAX;
        // One that takes its own place stands as often as before.
        if evicted == Some(slot) {
            return self.count_of(slot);
        }
        if let Some(leaves) = evicted {
            self.decrement(leaves);
        }
        self.increment(slot)
    }

    /// One more: how often it stands now.
    #[inline]
    fn increment(&mut self, slot: u16) -> u8 {
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
    fn decrement(&mut self, slot: u16) {
        let mut count = self.count_of(slot).saturating_sub(1);
        if count + 1 == EXACT_BELOW {
            count = self.count_in_ring(slot).min(COUNT_MAX.into()) as u8;
        }
        self.set_count(slot, count);
    }

    /// How often the latest gram stands.
    fn latest_count(&self) -> u32 {
        let latest = (self.next + GRAMS_MAX - 1) % GRAMS_MAX;
        self.grams
            .get(latest)
            .map_or(0, |slot| self.count_in_ring(*slot))
    }

    #[cold]
    fn count_in_ring(&self, slot: u16) -> u32 {
        self.grams.iter().map(|gram| u32::from(*gram == slot)).sum()
    }

    #[inline]
    fn count_of(&self, slot: u16) -> u8 {
        self.counts[usize::from(slot / 2)] >> (slot % 2 * 4) & COUNT_MAX
    }

    #[inline]
    fn set_count(&mut self, slot: u16, count: u8) {
        let shift = slot % 2 * 4;
        let both = &mut self.counts[usize::from(slot / 2)];
        *both = *both & !(COUNT_MAX << shift) | count << shift;
    }

    /// The latest words are too many distinct ones for a chant, as a bit of each
    /// tells; nearly always so, as three in four are distinct in most texts.
    #[inline]
    fn has_many_distinct(&self) -> bool {
        let bits = self.bloom_bits.iter().fold(0, |all, bits| all | bits);
        bits.count_ones() as usize > DISTINCT_MAX
    }

    /// The words, latest first.
    fn latest(&self, taken: u32) -> impl Iterator<Item = WordHash> + '_ {
        let taken = taken as usize;
        (1..=VARIETY_WINDOW)
            .map(move |back| self.words[(taken + VARIETY_WINDOW - back) % VARIETY_WINDOW])
    }
}

impl LoopEpisode {
    /// Goes on by so many words: the bar that is passed newly.
    fn advance(&mut self, words: u32) -> Option<LadderRung> {
        let since = self.words.map_or(0, |since| since.saturating_add(words));
        self.words = Some(since);
        let more = ESCALATION.iter().find(|(more, _)| since >= *more);
        let bar = more.map_or(LadderRung::Soft, |(_, bar)| *bar);
        let is_new = Some(bar) > self.reported;
        self.reported = self.reported.max(Some(bar));
        is_new.then_some(bar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grams_are_counted_exactly_as_they_come_and_go() {
        let mut memory = WordHistory::new();
        let mut seen: Vec<u16> = Vec::new();
        // A few that stand often, among many that do not.
        for n in 0..5_000u32 {
            let slot = match n % 5 {
                0 | 1 => n / 1_300 % 3,
                2 if n > 2_000 => 7,
                _ => n.wrapping_mul(2_654_435_761) >> 21,
            } as u16;
            seen.push(slot);
            let window = &seen[seen.len().saturating_sub(GRAMS_MAX)..];
            let stand = window.iter().filter(|known| **known == slot).count();
            let count = usize::from(memory.insert_gram(slot));
            assert!(count == stand || (8..=stand).contains(&count), "at {n}");
            assert_eq!(memory.latest_count() as usize, stand);
        }
    }

    #[test]
    fn the_oldest_word_is_where_it_began() {
        let mut words = WordTracker::default();
        for n in 1..=300u64 {
            words.push_char(u32::from(b'a') + n as u32, false);
            if let Some(word) = words.end_word() {
                words.push_word(word, 10 * n);
            }
            let next = words.word_count as usize % VARIETY_WINDOW;
            let oldest = if n < 16 + VARIETY_WINDOW as u64 {
                16
            } else {
                n - 95
            };
            let began = words
                .history
                .as_ref()
                .map(|memory| memory.start_offset(next));
            assert_eq!(began, (n >= 16).then_some(10 * oldest), "{n}");
        }
    }
}
