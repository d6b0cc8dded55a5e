//! Finds exact periods: the end of the text repeats again and again, with or without
//! regard to digits.
//!
//! Every [`GRID_BYTES`] bytes the hash of the last [`GRID_BYTES`] bytes is stored as an
//! anchor (digits count as equal). A rolling hash of the last [`GRID_BYTES`] bytes is
//! looked up among the anchors at every byte. A hit means that the text may repeat at the
//! distance to that anchor. The distance is verified backwards once, byte by byte, and
//! becomes a run: it is then followed with one comparison per byte until the text differs.
//! A run that reaches a threshold is longer than two grids, so it contains a whole
//! anchor: its period is always followed before it matters, and none is missed.
//!
//! A run computes in advance at which length it can reach its next threshold (`due_at`).
//! Until then nothing but the comparison is done; `thresholds` checks it when it is due.
//!
//! Digits count as equal so that a counter does not hide a loop. In text that is mostly
//! digits every block would then equal every other, so the anchor of a block with more
//! than [`DIGITS_MAX`] digits is an exact hash. Such windows are looked up at the end of
//! each block instead of at each byte. No loop is lost by that: a unit that may repeat
//! with other digits has at most one digit for four letters, so some of its blocks have
//! few digits, and copies of any other unit are equal.
//!
//! Cost: for text without runs one rolling hash step and a filter test per byte, in blocks
//! of at most [`GRID_BYTES`]; with runs one comparison per byte and run, at most
//! [`RUNS_MAX`]. Anchors at a period that a run already covers are not verified. What
//! depends on the text is paid for from a [`PeriodBudget`]: each byte at which a run may
//! end, each anchor that is found and its backward comparison of up to [`RING_BYTES`], each
//! check of the thresholds, the measurement and the report of a unit. An anchor that cannot
//! be paid for is skipped, and so are runs. The alternative, a suffix structure over the
//! window, would cost more memory and time per byte of text that does not repeat, which
//! nearly all text is.

mod comparison;
mod restore;
mod thresholds;

use serde::{Deserialize, Serialize};

use super::{
    anchors::{ANCHORS_MAX, Anchors, may_contain},
    content::{self, UnitStats},
};
use crate::{
    domain::{EscalationLevel, RepetitionSettings},
    text::{
        mixing::GOLDEN_RATIO_32,
        work_budget::{PeriodBudget, steps},
    },
};

/// How much of the text is kept: as far back as there are anchors.
const RING_BYTES: usize = ANCHORS_MAX * GRID_BYTES;
/// The bytes by which the ring grows: most texts are a paragraph or two, and doubling would
/// reserve twice that.
const RING_STEP: usize = 512;
/// Bytes from one anchor to the next, and bytes that an anchor is the hash of.
const GRID_BYTES: usize = 32;
/// The longest period: an anchor must still be in the ring.
pub(super) const PERIOD_MAX: usize = RING_BYTES - 2 * GRID_BYTES;
/// Periods that are followed at a time. A text with more has a shorter period among
/// them.
const RUNS_MAX: usize = 8;
/// The digits of a block whose anchor treats digits as equal.
const DIGITS_MAX: u8 = GRID_BYTES as u8 / 2;

/// Units of work for a byte that may end a run: once, and for each run.
const BYTE_UNITS: u32 = 6;
const BYTE_UNITS_PER_RUN: u32 = 4;
/// The same for an anchor that is found.
const ANCHOR_UNITS: u32 = 2;
const ANCHOR_UNITS_PER_RUN: u32 = 1;
/// Units of work for starting a run, and the bytes that are compared for one unit.
const START_UNITS: u32 = 20;
const COMPARED_BYTES_PER_UNIT: usize = 5;

/// The periods of a text. Works on bytes, so UTF-8 may be split anywhere.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct PeriodTracker {
    /// The latest bytes. Grows with the text up to [`RING_BYTES`].
    #[serde(with = "restore::frozen_ring")]
    ring: Vec<u8>,
    /// Bytes read so far.
    total_bytes: u64,
    #[serde(skip)]
    hash: u32,
    #[serde(skip)]
    anchors: Anchors,
    runs: Vec<PeriodRun>,
    /// A run has reached its `due_at`.
    is_due: bool,
    /// The digits of the last complete block.
    #[serde(skip)]
    last_block_digits: u8,
    /// Pays for verifying and measuring periods.
    pub budget: PeriodBudget,
}

/// A period at which the text currently repeats.
#[derive(Serialize, Deserialize)]
struct PeriodRun {
    period: u32,
    /// How many of the last bytes equal those one period earlier.
    exact_len: u32,
    /// The same with all digits treated as equal.
    digit_blind_len: u32,
    /// The `digit_blind_len` at which to check the thresholds again.
    due_at: u32,
    unit: Option<UnitStats>,
    reported: Option<EscalationLevel>,
}

impl PeriodRun {
    /// Whether this run already covers another period: an equal one or a multiple.
    fn covers(&self, period: usize) -> bool {
        // The ring is shorter than 2^32, and a 32-bit division is twice as fast.
        let (own, period) = (self.period, period as u32);
        period == own || (self.exact_len >= period && period.is_multiple_of(own))
    }
}

impl PeriodTracker {
    /// Reads ASCII text of one line from the start of `bytes`, up to where a run is due.
    /// Returns the number of bytes read: 0 if they start with a line end or with a byte
    /// that needs [`Self::push_byte`].
    pub fn push(&mut self, bytes: &[u8], settings: &RepetitionSettings) -> usize {
        let (mut consumed, mut equal_len) = (0, 0);
        while let Some(first) = bytes.get(consumed).filter(|_| !self.is_due) {
            if BYTE_TERMS[usize::from(*first)].0 == NOT_LINE_TEXT {
                break;
            }
            let mut rest = &bytes[consumed..];
            if !self.runs.is_empty() {
                equal_len = if equal_len > 0 {
                    equal_len
                } else {
                    self.equal_prefix_len(rest)
                };
                if equal_len == 0 {
                    self.push_byte(*first, settings);
                    consumed += 1;
                    continue;
                }
                rest = &rest[..equal_len];
            }
            let (length, anchor) = self.scan(rest);
            if length == 0 {
                break;
            }
            for run in &mut self.runs {
                run.exact_len += length as u32;
                run.digit_blind_len += length as u32;
            }
            equal_len = equal_len.saturating_sub(length);
            consumed += length;
            if anchor.is_some_and(|anchor| self.check_anchor(anchor, 0, settings))
                && let Some(new_run) = self.runs.last()
            {
                // What is known of the other runs still holds.
                equal_len = self.run_prefix_len(new_run, &bytes[consumed..], equal_len);
            }
            if self.store_anchor(settings) {
                equal_len = 0;
            }
        }
        consumed
    }

    /// Reads any byte.
    pub fn push_byte(&mut self, byte: u8, settings: &RepetitionSettings) {
        if !self.runs.is_empty() {
            self.extend_affordable_runs(byte);
        }
        self.grow();
        let at = self.total_bytes as usize;
        let leaves = if at >= GRID_BYTES {
            self.ring[(at - GRID_BYTES) % RING_BYTES]
        } else {
            0
        };
        let product = self.hash.wrapping_mul(GOLDEN_RATIO_32);
        self.hash = roll_hash(product, mask_digit(byte).into(), leaves);
        self.ring[at % RING_BYTES] = byte;
        self.total_bytes += 1;
        if let Some(anchor) = self.anchors.find(self.hash) {
            self.check_anchor(anchor, 0, settings);
        }
        self.store_anchor(settings);
    }

    /// Reads text of one line up to the next anchor position, or to where the rolling hash
    /// equals an anchor. Returns the number of bytes read and that anchor. Every byte of
    /// every text passes through this loop.
    #[inline]
    fn scan(&mut self, bytes: &[u8]) -> (usize, Option<usize>) {
        self.grow();
        let at = self.total_bytes as usize;
        let (cells, _) = self.ring.as_chunks_mut::<GRID_BYTES>();
        let cell = at / GRID_BYTES % ANCHORS_MAX;
        let previous_cell = if at >= GRID_BYTES {
            cells[(cell + ANCHORS_MAX - 1) % ANCHORS_MAX]
        } else {
            [0; GRID_BYTES]
        };
        let from = at % GRID_BYTES;
        // Three slices of one length: the compiler drops the bounds checks in the loop.
        let most = bytes.len().min(GRID_BYTES - from);
        let entering = &bytes[..most];
        let leaving = &previous_cell[from..][..most];
        let slots = &mut cells[cell][from..][..most];
        let filter = self.anchors.filter();
        let (mut hash, mut product) = (self.hash, self.hash.wrapping_mul(GOLDEN_RATIO_32));
        let (mut length, mut anchor) = (0, None);
        while anchor.is_none() {
            let mut is_hit = false;
            while length < most && !is_hit {
                let enters = BYTE_TERMS[usize::from(entering[length])].0;
                if enters == NOT_LINE_TEXT {
                    break;
                }
                hash = roll_hash(product, enters, leaving[length]);
                product = hash.wrapping_mul(GOLDEN_RATIO_32);
                slots[length] = entering[length];
                length += 1;
                is_hit = may_contain(filter, product);
            }
            if !is_hit {
                break;
            }
            // Rare, and mostly a false hit of the filter: then the scan goes on.
            anchor = self.anchors.find(hash);
        }
        self.hash = hash;
        self.total_bytes += length as u64;
        (length, anchor)
    }

    /// Stores the hash at an anchor position. Returns whether a run was started.
    #[inline]
    fn store_anchor(&mut self, settings: &RepetitionSettings) -> bool {
        let at = self.total_bytes as usize;
        at.is_multiple_of(GRID_BYTES) && self.end_block(at / GRID_BYTES, settings)
    }

    /// Stores the anchor of the block that ends here, which has this number. Returns
    /// whether a run was started.
    fn end_block(&mut self, number: usize, settings: &RepetitionSettings) -> bool {
        let digits = count_digits(self.block(number));
        let digits_before = std::mem::replace(&mut self.last_block_digits, digits);
        if digits + digits_before <= DIGITS_MAX {
            self.anchors.insert(number, self.hash);
            return false;
        }
        self.end_digit_block(number, settings)
    }

    /// The same for a block that, perhaps with the one before, has many digits.
    #[cold]
    fn end_digit_block(&mut self, number: usize, settings: &RepetitionSettings) -> bool {
        // Roll an exact hash over the block and look each value up.
        let before = if number > 1 {
            *self.block(number - 1)
        } else {
            [0; GRID_BYTES]
        };
        let block = *self.block(number);
        let mut hash = before
            .iter()
            .fold(0, |hash, byte| roll_exact_hash(hash, *byte, 0));
        let mut starts_run = false;
        for (n, (enters, leaves)) in block.iter().zip(before).enumerate() {
            hash = roll_exact_hash(hash, *enters, leaves);
            if let Some(anchor) = self.anchors.find(hash ^ EXACT_HASH) {
                starts_run |= self.check_anchor(anchor, GRID_BYTES - 1 - n, settings);
            }
        }
        if self.last_block_digits > DIGITS_MAX {
            self.anchors.insert(number, hash ^ EXACT_HASH);
        } else {
            self.anchors.insert(number, self.hash);
        }
        starts_run
    }

    /// The block with this number, counted from 1. It is complete and in the ring.
    fn block(&self, number: usize) -> &[u8; GRID_BYTES] {
        let (blocks, _) = self.ring.as_chunks::<GRID_BYTES>();
        &blocks[(number - 1) % ANCHORS_MAX]
    }

    /// Makes room for the bytes up to the next anchor.
    #[inline]
    fn grow(&mut self) {
        let len = self.ring.len();
        if self.total_bytes as usize == len && len < RING_BYTES {
            self.ring.reserve_exact(RING_STEP);
            self.ring.resize(len + RING_STEP, 0);
        }
    }

    /// Extends the runs if there are units left for it, and otherwise drops them.
    fn extend_affordable_runs(&mut self, byte: u8) {
        let units = BYTE_UNITS + BYTE_UNITS_PER_RUN * self.runs.len() as u32;
        if self.budget.consume(self.total_bytes, units) {
            self.extend_runs(byte);
        } else {
            self.runs.clear();
        }
    }

    /// Extends the runs that the byte continues and drops the others.
    fn extend_runs(&mut self, byte: u8) {
        let (ring, at) = (&self.ring, self.total_bytes as usize);
        let is_due = &mut self.is_due;
        steps::count(self.runs.len());
        self.runs.retain_mut(|run| {
            let before = ring[(at - run.period as usize) % RING_BYTES];
            if before == byte {
                run.exact_len += 1;
            } else if before.is_ascii_digit() && byte.is_ascii_digit() {
                run.exact_len = 0;
            } else {
                return false;
            }
            run.digit_blind_len += 1;
            *is_due |= run.digit_blind_len >= run.due_at;
            true
        });
    }

    /// The hash of the window that ends `back` bytes before here equals an anchor. Returns
    /// whether that starts a new run.
    fn check_anchor(&mut self, anchor: usize, back: usize, settings: &RepetitionSettings) -> bool {
        // Anchors are numbered by their end position, modulo the ring.
        let now = self.total_bytes as usize;
        let end = anchor * GRID_BYTES;
        let period = (now - back + RING_BYTES - end % RING_BYTES) % RING_BYTES;
        if period == 0 || period > PERIOD_MAX || period >= now {
            return false;
        }
        steps::count(self.runs.len());
        let units = ANCHOR_UNITS + ANCHOR_UNITS_PER_RUN * self.runs.len() as u32;
        if !self.budget.consume(self.total_bytes, units)
            || self.runs.iter().any(|run| run.covers(period))
        {
            return false;
        }
        self.start_run(period, settings)
    }

    /// Verifies a possible period. Returns whether it is followed from now on.
    #[cold]
    fn start_run(&mut self, period: usize, settings: &RepetitionSettings) -> bool {
        let available = (self.total_bytes as usize).min(RING_BYTES) - period;
        if available < GRID_BYTES {
            return false;
        }
        // A multiple of a run's period is new only if it is exact where the run differs in
        // its digits. The last bytes nearly always show that it is not.
        let mut runs = self.runs.iter();
        let is_multiple = runs.any(|run| period.is_multiple_of(run.period as usize));
        if is_multiple && !self.ends_with_copy(period, GRID_BYTES.min(period)) {
            return false;
        }
        // Pay for the longest comparison, and take back what it did not need.
        let reserved = START_UNITS + (available / COMPARED_BYTES_PER_UNIT) as u32;
        if !self.budget.consume(self.total_bytes, reserved) {
            return false;
        }
        let (exact, blind) = self.run_lengths(period);
        let used = START_UNITS + (blind as usize / COMPARED_BYTES_PER_UNIT) as u32;
        self.budget.refund(reserved - used);
        if (blind as usize) < GRID_BYTES || (is_multiple && (exact as usize) < period) {
            return false;
        }
        let due_at = content::required_span_min(period as u32, settings) - period as u32;
        let run = PeriodRun {
            period: period as u32,
            exact_len: exact,
            digit_blind_len: blind,
            due_at,
            unit: None,
            reported: None,
        };
        if self.runs.len() == RUNS_MAX {
            // The shortest, of those that are not measured if there are any: a run that is
            // may be about to fire, and would be found and measured again.
            let replaced = (0..RUNS_MAX).min_by_key(|n| {
                let run = &self.runs[*n];
                (run.unit.is_some(), run.digit_blind_len)
            });
            self.runs.swap_remove(replaced.unwrap_or_default());
        }
        self.runs.push(run);
        self.is_due |= blind >= due_at;
        true
    }

    #[inline]
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// Bytes read so far.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Makes all runs due, because the kind of text has changed.
    pub fn recheck_runs(&mut self) {
        for run in &mut self.runs {
            run.due_at = 0;
            self.is_due = true;
        }
    }

    fn tail(&self, bytes: usize) -> Vec<u8> {
        self.tail_before(0, bytes)
    }

    /// The `bytes` bytes before the last `ahead`, or as many as there are. Both together
    /// fit into the ring.
    pub fn tail_before(&self, ahead: usize, bytes: usize) -> Vec<u8> {
        let at = self.total_bytes as usize - ahead;
        let bytes = bytes.min(at).min(RING_BYTES);
        // The end of what is before the ring's start, and what is after it.
        let end = at % RING_BYTES;
        let [older, newer] = [bytes.saturating_sub(end), bytes.min(end)];
        let [older_end, newer_start] = [self.ring.len(), end - newer];
        [
            &self.ring[older_end - older..older_end],
            &self.ring[newer_start..end],
        ]
        .concat()
    }

    pub fn heap_bytes(&self) -> usize {
        self.ring.capacity()
            + self.anchors.heap_bytes()
            + self.runs.capacity() * size_of::<PeriodRun>()
    }
}

fn count_digits(block: &[u8; GRID_BYTES]) -> u8 {
    let is_digit = |byte: &u8| u8::from(byte.wrapping_sub(b'0') < 10);
    block.iter().map(is_digit).sum()
}

/// Treats all digits as equal.
const fn mask_digit(byte: u8) -> u8 {
    if byte.is_ascii_digit() { b'0' } else { byte }
}

/// [`GOLDEN_RATIO_32`] to the power of [`GRID_BYTES`]: the weight of the leaving byte.
const LEAVING_WEIGHT: u32 = {
    let (mut power, mut n) = (1u32, 0);
    while n < GRID_BYTES {
        power = power.wrapping_mul(GOLDEN_RATIO_32);
        n += 1;
    }
    power
};

/// For each byte, digits treated as equal: what it adds to the hash when it enters, and
/// what it subtracts when it leaves. [`NOT_LINE_TEXT`] for a byte that is not ASCII text
/// of a line.
const BYTE_TERMS: [(u32, u32); 256] = {
    let mut bytes = [(NOT_LINE_TEXT, 0); 256];
    let mut byte = 0;
    while byte < bytes.len() {
        let masked = mask_digit(byte as u8) as u32;
        if matches!(byte as u8, b' '..=b'~' | b'\t' | b'\r') {
            bytes[byte].0 = masked;
        }
        bytes[byte].1 = masked.wrapping_mul(LEAVING_WEIGHT);
        byte += 1;
    }
    bytes
};
const NOT_LINE_TEXT: u32 = u32::MAX;

/// The next value of the polynomial hash over the last [`GRID_BYTES`] bytes, from the
/// product of the previous value and [`GOLDEN_RATIO_32`]. It needs no key: a match is
/// compared byte by byte before it counts.
#[inline]
fn roll_hash(product: u32, enters: u32, leaves: u8) -> u32 {
    product
        .wrapping_add(enters)
        .wrapping_sub(BYTE_TERMS[usize::from(leaves)].1)
}

/// Distinguishes the exact hashes among the anchors.
const EXACT_HASH: u32 = 0x5bd1_e995;

/// The same with digits distinguished. It is not mixed up with the others: see
/// [`EXACT_HASH`].
fn roll_exact_hash(hash: u32, enters: u8, leaves: u8) -> u32 {
    hash.wrapping_mul(GOLDEN_RATIO_32)
        .wrapping_add(enters.into())
        .wrapping_sub(u32::from(leaves).wrapping_mul(LEAVING_WEIGHT))
}
