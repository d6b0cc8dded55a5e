//! Exact periods: the text at the tail stands again and again, digits apart.
//!
//! Every [`GRID`] bytes the hash of the last [`GRID`] bytes is kept, an anchor.
//! At each byte the same hash is looked up among them: a match says that the
//! text may repeat itself at that distance, which is checked once, backwards,
//! and then followed with one comparison a byte. A run that reaches a bar is
//! longer than two grids and holds a whole anchor, so its period is followed
//! before it counts.

mod thresholds;

use super::{
    anchors::{ANCHORS_MAX, Anchors, FACTOR, may_contain},
    content::UnitStats,
};
use crate::domain::LadderRung;

/// What is kept of the text, as long as there are anchors in it.
const RING_BYTES: usize = ANCHORS_MAX * GRID_BYTES;
/// Bytes from one anchor to the next, and those that it is the hash of.
const GRID_BYTES: usize = 32;
/// The longest period: an anchor must still be in the ring.
pub(super) const PERIOD_MAX: usize = RING_BYTES - 2 * GRID_BYTES;
/// Distances that are followed at a time. A text with more has a shorter period
/// among them.
const RUNS_MAX: usize = 8;

/// Watches for periods. The text is bytes here: safe at any split of UTF-8.
#[derive(Default)]
pub(super) struct PeriodTracker {
    /// Grows ahead of the text up to [`RING`].
    ring: Vec<u8>,
    /// How many bytes there were.
    total_bytes: u64,
    hash: u32,
    anchors: Anchors,
    runs: Vec<PeriodRun>,
    /// A followed run has come to where it is due.
    is_due: bool,
}

/// A distance at which the text repeats itself.
struct PeriodRun {
    period: u32,
    /// How many last bytes equal those a period before.
    exact_len: u32,
    /// The same, all digits being alike.
    digit_blind_len: u32,
    /// The blind run at which to look at the bars again.
    due_at: u32,
    unit: Option<UnitStats>,
    reported: Option<LadderRung>,
}

impl PeriodRun {
    /// Following it is following the other period too.
    fn covers(&self, period: usize) -> bool {
        // No ring is longer, and half of a division's width is half of its time.
        let (own, period) = (self.period, period as u32);
        period == own || (self.exact_len >= period && period.is_multiple_of(own))
    }
}

impl PeriodTracker {
    /// Takes in the text on a line that `bytes` begin with, up to where a run is
    /// due: how many of them. 0: they begin with the end of a line, or with what
    /// [`Self::push_byte`] is for.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let (mut consumed, mut equal_len) = (0, 0);
        while let Some(first) = bytes.get(consumed).filter(|_| !self.is_due) {
            let mut rest = &bytes[consumed..];
            if !self.runs.is_empty() {
                equal_len = if equal_len > 0 {
                    equal_len
                } else {
                    self.equal_prefix_len(rest)
                };
                if equal_len == 0 && BYTE_TERMS[usize::from(*first)].0 != NOT_LINE_TEXT {
                    self.push_byte(*first);
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
            if anchor.is_some_and(|anchor| self.check_anchor(anchor)) {
                equal_len = 0;
            }
            self.store_anchor();
        }
        consumed
    }

    /// Takes any byte in.
    pub fn push_byte(&mut self, byte: u8) {
        if !self.runs.is_empty() {
            self.extend_runs(byte);
        }
        self.grow();
        let at = self.total_bytes as usize;
        let leaves = match at >= GRID_BYTES {
            true => self.ring[(at - GRID_BYTES) % RING_BYTES],
            false => 0,
        };
        let product = self.hash.wrapping_mul(FACTOR);
        self.hash = roll_hash(product, mask_digit(byte).into(), leaves);
        self.ring[at % RING_BYTES] = byte;
        self.total_bytes += 1;
        self.find_anchor();
        self.store_anchor();
    }

    /// Takes in text on a line, at most to the next anchor or to where there is one
    /// with the hash of what came last: how many bytes, and that one. The loop that
    /// every byte of every text goes through.
    #[inline]
    fn scan(&mut self, bytes: &[u8]) -> (usize, Option<usize>) {
        self.grow();
        let at = self.total_bytes as usize;
        let (cells, _) = self.ring.as_chunks_mut::<GRID_BYTES>();
        let cell = at / GRID_BYTES % ANCHORS_MAX;
        let before = match at >= GRID_BYTES {
            true => cells[(cell + ANCHORS_MAX - 1) % ANCHORS_MAX],
            false => [0; GRID_BYTES],
        };
        let from = at % GRID_BYTES;
        // All three are as long as that: one counter will do.
        let most = bytes.len().min(GRID_BYTES - from);
        let bytes = &bytes[..most];
        let (leaving, slots) = (&before[from..][..most], &mut cells[cell][from..][..most]);
        let filter = self.anchors.filter();
        let (mut hash, mut product) = (self.hash, self.hash.wrapping_mul(FACTOR));
        let (mut length, mut anchor) = (0, None);
        while anchor.is_none() {
            let mut is_hit = false;
            while length < most && !is_hit {
                let enters = BYTE_TERMS[usize::from(bytes[length])].0;
                if enters == NOT_LINE_TEXT {
                    break;
                }
                hash = roll_hash(product, enters, leaving[length]);
                product = hash.wrapping_mul(FACTOR);
                slots[length] = bytes[length];
                length += 1;
                is_hit = may_contain(filter, product);
            }
            if !is_hit {
                break;
            }
            // Seldom, and seldom rightly: where there is none it goes on.
            anchor = self.anchors.find(hash);
        }
        self.hash = hash;
        self.total_bytes += length as u64;
        (length, anchor)
    }

    /// Looks for an anchor with the hash of the last bytes: whether another run is
    /// followed for it.
    fn find_anchor(&mut self) -> bool {
        let anchor = self.anchors.find(self.hash);
        anchor.is_some_and(|anchor| self.check_anchor(anchor))
    }

    /// Keeps the hash where an anchor is due.
    #[inline]
    fn store_anchor(&mut self) {
        let at = self.total_bytes as usize;
        if at.is_multiple_of(GRID_BYTES) {
            self.anchors.insert(at / GRID_BYTES, self.hash);
        }
    }

    /// Makes room for the bytes up to the next anchor.
    #[inline]
    fn grow(&mut self) {
        /// Most texts are a paragraph or two: doubling would hold twice that.
        const STEP: usize = 512;
        let len = self.ring.len();
        if self.total_bytes as usize == len && len < RING_BYTES {
            self.ring.reserve_exact(STEP);
            self.ring.resize(len + STEP, 0);
        }
    }

    /// How many of these bytes, at most to the next anchor, equal those a period
    /// before in every run that is followed, and leave none due.
    fn equal_prefix_len(&self, bytes: &[u8]) -> usize {
        let at = self.total_bytes as usize;
        let mut most = bytes.len().min(GRID_BYTES - at % GRID_BYTES);
        for run in &self.runs {
            let period = run.period as usize;
            let wait = run
                .due_at
                .saturating_sub(run.digit_blind_len)
                .saturating_sub(1);
            most = most.min(wait as usize);
            let is_equal = |n: &usize| {
                let before = match n.checked_sub(period) {
                    Some(n) => bytes[n],
                    None => self.ring[(at + n - period) % RING_BYTES],
                };
                bytes[*n] == before
            };
            most = (0..most).find(|n| !is_equal(n)).unwrap_or(most);
        }
        most
    }

    /// Goes on with every run that goes on.
    fn extend_runs(&mut self, byte: u8) {
        let (ring, at) = (&self.ring, self.total_bytes as usize);
        let is_due = &mut self.is_due;
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

    /// The last bytes have the hash of an anchor: whether it is the first of a run.
    fn check_anchor(&mut self, anchor: usize) -> bool {
        // Anchors are numbered by their end, modulo what the ring holds.
        let now = self.total_bytes as usize;
        let end = anchor * GRID_BYTES;
        let period = (now + RING_BYTES - end % RING_BYTES) % RING_BYTES;
        if period == 0 || period > PERIOD_MAX || period >= now {
            return false;
        }
        if self.runs.iter().any(|run| run.covers(period)) {
            return false;
        }
        self.start_run(period)
    }

    /// The text may repeat itself at this distance: whether it does, and is
    /// followed from now on.
    #[cold]
    fn start_run(&mut self, period: usize) -> bool {
        let (exact, blind) = self.run_lengths(period);
        // A multiple of what differs in its digits is news where it does not.
        let is_multiple = |run: &PeriodRun| period.is_multiple_of(run.period as usize);
        let is_new = exact as usize >= period || !self.runs.iter().any(is_multiple);
        if (blind as usize) < GRID_BYTES || !is_new {
            return false;
        }
        let run = PeriodRun {
            period: period as u32,
            exact_len: exact,
            digit_blind_len: blind,
            due_at: 0,
            unit: None,
            reported: None,
        };
        if self.runs.len() == RUNS_MAX {
            let shortest = (0..RUNS_MAX).min_by_key(|n| self.runs[*n].digit_blind_len);
            self.runs.swap_remove(shortest.unwrap_or_default());
        }
        self.runs.push(run);
        self.is_due = true;
        true
    }

    /// How many last bytes equal those a period before; digits being alike.
    fn run_lengths(&self, period: usize) -> (u32, u32) {
        let at = self.total_bytes as usize;
        let available = at.min(RING_BYTES) - period;
        let (mut exact, mut run) = (None, 0);
        while run < available {
            let now = self.ring[(at - 1 - run) % RING_BYTES];
            let before = self.ring[(at - 1 - run - period) % RING_BYTES];
            if now != before {
                exact = exact.or(Some(run as u32));
                if mask_digit(now) != mask_digit(before) {
                    break;
                }
            }
            run += 1;
        }
        (exact.unwrap_or(run as u32), run as u32)
    }

    /// A run has come to where it is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// The kind of text has changed: look at all runs.
    pub fn recheck_runs(&mut self) {
        for run in &mut self.runs {
            run.due_at = 0;
            self.is_due = true;
        }
    }

    fn tail(&self, bytes: usize) -> Vec<u8> {
        self.tail_before(0, bytes)
    }

    /// The last bytes of the text before the last `ahead`, as many as there are
    /// of these; both together are in the ring.
    pub fn tail_before(&self, ahead: usize, bytes: usize) -> Vec<u8> {
        let at = self.total_bytes as usize - ahead;
        let bytes = bytes.min(at).min(RING_BYTES);
        (at - bytes..at)
            .map(|n| self.ring[n % RING_BYTES])
            .collect()
    }

    pub fn heap_bytes(&self) -> usize {
        self.ring.capacity()
            + self.anchors.heap_bytes()
            + self.runs.capacity() * size_of::<PeriodRun>()
    }
}

/// Digits are alike.
const fn mask_digit(byte: u8) -> u8 {
    if byte.is_ascii_digit() { b'0' } else { byte }
}

/// FACTOR to the power of GRID, for the byte that leaves.
const FACTOR_POW_GRID: u32 = {
    let (mut power, mut n) = (1u32, 0);
    while n < GRID_BYTES {
        power = power.wrapping_mul(FACTOR);
        n += 1;
    }
    power
};

/// What a byte does to the hash, digits being alike: what it adds when it enters,
/// and what it takes away when it leaves. One that is no text on a line does not
/// enter.
const BYTE_TERMS: [(u32, u32); 256] = {
    let mut bytes = [(NOT_LINE_TEXT, 0); 256];
    let mut byte = 0;
    while byte < bytes.len() {
        let alike = mask_digit(byte as u8) as u32;
        if matches!(byte as u8, b' '..=b'~' | b'\t' | b'\r') {
            bytes[byte].0 = alike;
        }
        bytes[byte].1 = alike.wrapping_mul(FACTOR_POW_GRID);
        byte += 1;
    }
    bytes
};
const NOT_LINE_TEXT: u32 = u32::MAX;

/// A polynomial over the last [`GRID`] bytes, from the product of that before and
/// its factor. It needs no key: a match is compared byte by byte before it counts.
#[inline]
fn roll_hash(product: u32, enters: u32, leaves: u8) -> u32 {
    product
        .wrapping_add(enters)
        .wrapping_sub(BYTE_TERMS[usize::from(leaves)].1)
}
