//! Finds loops that have no period because their sentences are shuffled or a word in
//! them varies: text whose words are not new.
//!
//! Two tests share one history of words:
//! - Stale grams. Every three consecutive words form a gram, which is hashed into one of
//!   2,048 counters over the latest 1,024 grams. A gram counted three times or more is
//!   stale. The tracker reports when 88 % of the latest 128 grams are stale, and the loop
//!   has ended when fewer than 75 % are. Collisions of counters cause an error far below
//!   that margin.
//! - Low variety. Ten or fewer distinct words among the latest 96 are a loop in any
//!   order. It is checked every 8 words, and a 64-bit filter rules it out at once in
//!   ordinary text, where three in four words are distinct.
//!
//! Words with digits are data: a gram that ends in one is never stale. Mixed ids are not
//! part of a gram at all. Cost: a few operations per word; a recount of 1,024 grams when a
//! counter that was saturated falls to 8, so at most once in seven words; 96 words against
//! at most 10, every 8 words, when the filter passes. The last is paid for from the text's
//! budget.

use serde::{Deserialize, Serialize};

use super::{
    Recurrence,
    escalation::{EscalationSteps, LoopEscalation},
    is_ring,
    word_hash::{WordHash, extend_hash},
};
use crate::{
    domain::{EscalationLevel, LazyBox, serde_array},
    text::{
        mixing::GOLDEN_RATIO_32,
        work_budget::{TextBudget, steps},
    },
};

/// How many of the latest grams are counted.
const GRAMS_MAX: usize = 1_024;
/// Counters of grams by hash, twice as many as grams.
const SLOTS: usize = 2_048;
/// A gram that occurs this often is stale.
const STALE_COUNT: u8 = 3;
/// The grams whose staleness is kept, one bit each.
const RECENT_GRAMS: u32 = 128;
/// This many stale grams are a loop.
const STALE_MIN: u32 = (RECENT_GRAMS * 88).div_ceil(100);
/// With fewer stale grams the loop has ended.
const STALE_END: u32 = RECENT_GRAMS * 3 / 4;

/// The most distinct words of a text of low variety.
const DISTINCT_MAX: usize = 10;
/// The latest words among which distinct ones are counted.
const VARIETY_WINDOW: usize = 96;
/// With more words that contain digits, the text is rows of data.
const NUMBERS_MAX: u32 = VARIETY_WINDOW as u32 / 4;
/// Low variety is checked every this many words.
const VARIETY_STEP: u32 = 8;
/// Units of work for checking it.
const VARIETY_UNITS: u32 = 160;

/// In words after the first report.
const STEPS: EscalationSteps = EscalationSteps {
    hard: 128,
    last: 384,
};

/// The words of a text.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct WordTracker {
    /// The hash, letters and digits of the current word.
    word: u32,
    letters: u16,
    digits: u16,
    previous_words: [u32; 2],
    /// Completed words.
    word_count: u32,
    /// Which of the latest [`RECENT_GRAMS`] grams are stale, and how many.
    stale_bits: u128,
    #[serde(skip)]
    stale_count: u32,
    history: LazyBox<WordHistory>,
    stale_grams: LoopEscalation,
    low_variety: LoopEscalation,
}

#[derive(Serialize, Deserialize)]
struct WordHistory {
    /// How many of `grams` fall into each slot, at most [`COUNT_MAX`]; two slots per byte.
    #[serde(skip, default = "no_counts")]
    counts: [u8; SLOTS / 2],
    /// One bit per slot: its count has been [`COUNT_MAX`] since it was last exact.
    #[serde(skip)]
    saturated: [u64; SLOTS / 64],
    /// The slots of the latest grams, in a ring.
    grams: Vec<u16>,
    next: usize,
    /// The latest words, and for each the characters from the end of the previous word to
    /// its own end.
    #[serde(with = "serde_array")]
    words: [WordHash; VARIETY_WINDOW],
    #[serde(with = "serde_array")]
    gaps: [u16; VARIETY_WINDOW],
    /// A filter bit for each of the latest words, in groups of [`VARIETY_STEP`] words.
    bloom_bits: [u64; 3],
    /// The character at which the latest word ends.
    last_word_end: u64,
}

/// The maximum of half a byte.
const COUNT_MAX: u8 = 15;
/// A count that was saturated may be too low, so it is recounted when it falls to this. In
/// a loop a gram enters for each that leaves, so no recount is needed. From here to
/// [`COUNT_MAX`] it takes seven words, so no text needs a recount for each word.
const RECOUNT_AT: u8 = 8;

impl WordTracker {
    /// A shorter text cannot be reported and gets no history.
    const ALLOCATE_AT_WORDS: u32 = 16;
    /// A word of letters and digits with at least this length is an id.
    const ID_CHARS_MIN: u16 = 6;

    /// Adds a lower-case letter or a digit to the current word.
    pub fn push_char(&mut self, c: u32, is_digit: bool) {
        self.word = extend_hash(self.word, c);
        self.letters = self.letters.saturating_add(u16::from(!is_digit));
        self.digits = self.digits.saturating_add(u16::from(is_digit));
    }

    /// Adds ASCII letters and digits to the current word; `digits` is the number of digits.
    #[inline]
    pub fn push_ascii(&mut self, run: &[u8], digits: u16) {
        // The bit makes letters lower case; digits have it anyway.
        self.word = run.iter().fold(self.word, |word, byte| {
            extend_hash(word, u32::from(byte | 0x20))
        });
        self.letters = self.letters.saturating_add(run.len() as u16 - digits);
        self.digits = self.digits.saturating_add(digits);
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.letters == 0 && self.digits == 0
    }

    /// The letters of the current word.
    #[inline]
    pub fn letters(&self) -> u16 {
        self.letters
    }

    /// Ends the current word, if there is one.
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

    /// Adds a completed word that ends at character `at`.
    pub fn push_word(
        &mut self,
        word: WordHash,
        at: u64,
        budget: &mut TextBudget,
    ) -> Option<Recurrence> {
        let index = self.word_count as usize;
        self.word_count = self.word_count.wrapping_add(1);
        if self.history.get().is_none() && self.word_count < Self::ALLOCATE_AT_WORDS {
            return None;
        }
        let history = self.history.get_or_insert_with(WordHistory::new);
        history.push_word(index % VARIETY_WINDOW, word, at);
        if word.is_id() {
            return None;
        }
        let gram = self.previous_words[0]
            .rotate_left(10)
            .wrapping_add(self.previous_words[1].rotate_left(5))
            .wrapping_add(word.hash())
            .wrapping_mul(GOLDEN_RATIO_32);
        self.previous_words = [self.previous_words[1], word.hash()];
        let count = history.insert_gram((gram >> (32 - SLOTS.ilog2())) as u16);
        // Numbers are data, and text that differs in them is progress.
        let is_stale = count >= STALE_COUNT && !word.has_digit();
        self.stale_count += u32::from(is_stale);
        self.stale_count -= (self.stale_bits >> (RECENT_GRAMS - 1)) as u32;
        self.stale_bits = self.stale_bits << 1 | u128::from(is_stale);
        self.check(at, budget)
    }

    fn check(&mut self, at: u64, budget: &mut TextBudget) -> Option<Recurrence> {
        if self.stale_count < STALE_END {
            self.stale_grams = LoopEscalation::default();
        }
        if self.stale_count >= STALE_MIN || self.stale_grams.is_active() {
            let found = self.check_stale_grams();
            if found.is_some() {
                return found;
            }
        }
        if !self.word_count.is_multiple_of(VARIETY_STEP) {
            return None;
        }
        let may_be_low = self
            .history
            .get()
            .is_some_and(|history| !history.has_many_distinct());
        if may_be_low && !budget.consume(at, VARIETY_UNITS) {
            // Whether a loop goes on is not known.
            return None;
        }
        self.check_low_variety()
    }

    #[cold]
    fn check_stale_grams(&mut self) -> Option<Recurrence> {
        let level = self.stale_grams.advance(1, STEPS);
        if !self.stale_grams.report(level) {
            return None;
        }
        let count = self.history.get()?.latest_count();
        let share = f64::from(self.stale_count) / f64::from(RECENT_GRAMS);
        self.recurrence(level, count, share)
    }

    #[inline(never)]
    fn check_low_variety(&mut self) -> Option<Recurrence> {
        let Some(count) = self.low_variety_count() else {
            self.low_variety = LoopEscalation::default();
            return None;
        };
        let level = self.low_variety.advance(VARIETY_STEP, STEPS);
        if !self.low_variety.report(level) {
            return None;
        }
        self.recurrence(level, count, 1.0)
    }

    /// How often the latest word occurs in the window, if the window has few distinct
    /// words.
    fn low_variety_count(&self) -> Option<u32> {
        let history = self
            .history
            .get()
            .filter(|history| !history.has_many_distinct())?;
        let mut distinct = [WordHash::default(); DISTINCT_MAX];
        let (mut distinct_count, mut numbers) = (0, 0);
        for word in history.words {
            // The window is not full yet, or it is data.
            numbers += u32::from(word.has_digit());
            if word == WordHash::default() || numbers > NUMBERS_MAX {
                return None;
            }
            steps::count(1 + distinct_count / 4);
            if !distinct[..distinct_count].contains(&word) {
                *distinct.get_mut(distinct_count)? = word;
                distinct_count += 1;
            }
        }
        let latest = (self.word_count as usize + VARIETY_WINDOW - 1) % VARIETY_WINDOW;
        let latest = history.words[latest];
        let copies = history.words.iter().filter(|word| **word == latest);
        Some(copies.count() as u32)
    }

    /// Describes the loop; the smallest hash of the latest words names it.
    fn recurrence(&self, level: EscalationLevel, count: u32, share: f64) -> Option<Recurrence> {
        let history = self.history.get()?;
        let words = history
            .words
            .iter()
            .filter(|word| **word != WordHash::default());
        Some(Recurrence {
            level,
            loop_id: u64::from(words.map(|word| word.hash()).min()?),
            count,
            share,
            start_char: history.start_offset(self.word_count as usize % VARIETY_WINDOW),
        })
    }

    /// Computes what is not frozen. Returns false if the frozen part is inconsistent.
    pub fn restore(&mut self) -> bool {
        self.stale_count = self.stale_bits.count_ones();
        self.history.get_mut().is_none_or(WordHistory::restore)
    }

    pub fn heap_bytes(&self) -> usize {
        self.history
            .heap_bytes(|history| history.grams.capacity() * size_of::<u16>())
    }
}

fn no_counts() -> [u8; SLOTS / 2] {
    [0; SLOTS / 2]
}

impl WordHistory {
    #[cold]
    fn new() -> Box<Self> {
        Box::new(Self {
            counts: no_counts(),
            saturated: [0; SLOTS / 64],
            grams: Vec::new(),
            next: 0,
            words: [WordHash::default(); VARIETY_WINDOW],
            gaps: [0; VARIETY_WINDOW],
            bloom_bits: [0; 3],
            last_word_end: 0,
        })
    }

    /// Counts the grams. A count that had been saturated is now exact; both are at least
    /// [`RECOUNT_AT`], which is stale in any case.
    fn restore(&mut self) -> bool {
        let slots_are_known = self.grams.iter().all(|gram| usize::from(*gram) < SLOTS);
        if !slots_are_known || !is_ring(self.grams.len(), self.next, GRAMS_MAX) {
            return false;
        }
        for n in 0..self.grams.len() {
            self.increment(self.grams[n]);
        }
        true
    }

    /// Stores a word that ends at character `at`.
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

    /// The character at which the oldest word ends: the one that the `next` word replaces,
    /// or the first filled slot after it.
    fn start_offset(&self, next: usize) -> u64 {
        let mut slots = (next..VARIETY_WINDOW).chain(0..next);
        let oldest = slots.find(|slot| self.words[*slot] != WordHash::default());
        let oldest_gap = oldest.map_or(0, |slot| self.gaps[slot]);
        let total: u64 = self.gaps.iter().map(|gap| u64::from(*gap)).sum();
        self.last_word_end
            .saturating_sub(total - u64::from(oldest_gap))
    }

    /// Adds a gram. Returns how often it occurs, as far as that is counted.
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
        // A gram that replaces itself occurs as often as before.
        if evicted == Some(slot) {
            return self.count_of(slot);
        }
        if let Some(oldest) = evicted {
            self.decrement(oldest);
        }
        self.increment(slot)
    }

    /// Increments a saturating count and returns it.
    #[inline]
    fn increment(&mut self, slot: u16) -> u8 {
        let shift = slot % 2 * 4;
        let both = &mut self.counts[usize::from(slot / 2)];
        let count = *both >> shift & COUNT_MAX;
        if count == COUNT_MAX {
            self.saturated[usize::from(slot / 64)] |= 1 << (slot % 64);
            return count;
        }
        *both += 1 << shift;
        count + 1
    }

    /// Decrements a count. That of a slot that was saturated is recounted at
    /// [`RECOUNT_AT`], because the true number may be higher.
    #[inline]
    fn decrement(&mut self, slot: u16) {
        let mut count = self.count_of(slot).saturating_sub(1);
        if count + 1 == RECOUNT_AT && self.saturated[usize::from(slot / 64)] >> (slot % 64) & 1 != 0
        {
            count = self.recount(slot);
        }
        self.set_count(slot, count);
    }

    /// Counts the grams of a slot whose count is not exact.
    #[cold]
    fn recount(&mut self, slot: u16) -> u8 {
        let count = self.count_in_ring(slot);
        if count <= COUNT_MAX.into() {
            self.saturated[usize::from(slot / 64)] &= !(1 << (slot % 64));
        }
        count.min(COUNT_MAX.into()) as u8
    }

    /// How often the latest gram occurs.
    fn latest_count(&self) -> u32 {
        let latest = (self.next + GRAMS_MAX - 1) % GRAMS_MAX;
        self.grams
            .get(latest)
            .map_or(0, |slot| self.count_in_ring(*slot))
    }

    #[cold]
    fn count_in_ring(&self, slot: u16) -> u32 {
        steps::count(self.grams.len() / 16);
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

    /// Whether the filter proves that more than [`DISTINCT_MAX`] of the latest words are
    /// distinct.
    #[inline]
    fn has_many_distinct(&self) -> bool {
        let bits = self.bloom_bits.iter().fold(0, |all, bits| all | bits);
        bits.count_ones() as usize > DISTINCT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grams_are_counted_as_they_enter_and_leave() {
        let mut history = WordHistory::new();
        let mut seen: Vec<u16> = Vec::new();
        // A few frequent grams among many rare ones.
        for n in 0..5_000u32 {
            let slot = match n % 5 {
                0 | 1 => n / 1_300 % 3,
                2 if n > 2_000 => 7,
                _ => n.wrapping_mul(2_654_435_761) >> 21,
            } as u16;
            seen.push(slot);
            let window = &seen[seen.len().saturating_sub(GRAMS_MAX)..];
            let expected = window.iter().filter(|known| **known == slot).count();
            let count = usize::from(history.insert_gram(slot));
            assert!(
                count == expected || (8..=expected).contains(&count),
                "at {n}"
            );
            assert_eq!(history.latest_count() as usize, expected);
        }
    }

    #[test]
    fn a_loop_starts_at_the_oldest_word_kept() {
        let mut words = WordTracker::default();
        for n in 1..=300u64 {
            words.push_char(u32::from(b'a') + n as u32, false);
            if let Some(word) = words.end_word() {
                words.push_word(word, 10 * n, &mut TextBudget::default());
            }
            let next = words.word_count as usize % VARIETY_WINDOW;
            let oldest = if n < 16 + VARIETY_WINDOW as u64 {
                16
            } else {
                n - 95
            };
            let start = words
                .history
                .get()
                .map(|history| history.start_offset(next));
            assert_eq!(start, (n >= 16).then_some(10 * oldest), "{n}");
        }
    }
}
