//! Exact periods: the text at the tail stands again and again, digits apart.
//!
//! Every [`GRID`] bytes the hash of the last [`GRID`] bytes is kept, an anchor.
//! At each byte the same hash is looked up among them: a match says that the
//! text may repeat itself at that distance, which is checked once, backwards,
//! and then followed with one comparison a byte. A run that reaches a bar is
//! longer than two grids and holds a whole anchor, so its period is followed
//! before it counts.

mod bars;

use super::{
    anchors::{ANCHORS, Anchors, FACTOR, may_hold},
    content::Unit,
};
use crate::domain::Bar;

/// What is kept of the text, as long as there are anchors in it.
const RING: usize = ANCHORS * GRID;
/// Bytes from one anchor to the next, and those that it is the hash of.
const GRID: usize = 32;
/// The longest period: an anchor must still be in the ring.
pub(super) const PERIOD_MAX: usize = RING - 2 * GRID;
/// Distances that are followed at a time. A text with more has a shorter period
/// among them.
const FOLLOWED_MAX: usize = 8;

/// Watches for periods. The text is bytes here: safe at any split of UTF-8.
#[derive(Default)]
pub(super) struct Periods {
    /// Grows ahead of the text up to [`RING`].
    ring: Vec<u8>,
    /// How many bytes there were.
    at: u64,
    hash: u32,
    anchors: Anchors,
    followed: Vec<Followed>,
    /// A followed run has come to where it is due.
    is_due: bool,
}

/// A distance at which the text repeats itself.
struct Followed {
    period: u32,
    /// How many last bytes equal those a period before.
    exact: u32,
    /// The same, all digits being alike.
    blind: u32,
    /// The blind run at which to look at the bars again.
    due: u32,
    unit: Option<Unit>,
    said: Option<Bar>,
}

impl Followed {
    /// Following it is following the other period too.
    fn covers(&self, period: usize) -> bool {
        // No ring is longer, and half of a division's width is half of its time.
        let (own, period) = (self.period, period as u32);
        period == own || (self.exact >= period && period.is_multiple_of(own))
    }
}

impl Periods {
    /// Takes in the text on a line that `bytes` begin with, up to where a run is
    /// due: how many of them. 0: they begin with the end of a line, or with what
    /// [`Self::push_byte`] is for.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let (mut taken, mut equal) = (0, 0);
        while let Some(first) = bytes.get(taken).filter(|_| !self.is_due) {
            let mut rest = &bytes[taken..];
            if !self.followed.is_empty() {
                equal = if equal > 0 { equal } else { self.equal(rest) };
                if equal == 0 && BYTES[usize::from(*first)].0 != STOPS {
                    self.push_byte(*first);
                    taken += 1;
                    continue;
                }
                rest = &rest[..equal];
            }
            let (length, anchor) = self.scan(rest);
            if length == 0 {
                break;
            }
            for run in &mut self.followed {
                run.exact += length as u32;
                run.blind += length as u32;
            }
            equal = equal.saturating_sub(length);
            taken += length;
            if anchor.is_some_and(|anchor| self.meet(anchor)) {
                equal = 0;
            }
            self.anchor();
        }
        taken
    }

    /// Takes any byte in.
    pub fn push_byte(&mut self, byte: u8) {
        if !self.followed.is_empty() {
            self.follow(byte);
        }
        self.grow();
        let at = self.at as usize;
        let leaves = match at >= GRID {
            true => self.ring[(at - GRID) % RING],
            false => 0,
        };
        let product = self.hash.wrapping_mul(FACTOR);
        self.hash = rolled(product, blind(byte).into(), leaves);
        self.ring[at % RING] = byte;
        self.at += 1;
        self.look_up();
        self.anchor();
    }

    /// Takes in text on a line, at most to the next anchor or to where there is one
    /// with the hash of what came last: how many bytes, and that one. The loop that
    /// every byte of every text goes through.
    #[inline]
    fn scan(&mut self, bytes: &[u8]) -> (usize, Option<usize>) {
        self.grow();
        let at = self.at as usize;
        let (cells, _) = self.ring.as_chunks_mut::<GRID>();
        let cell = at / GRID % ANCHORS;
        let before = match at >= GRID {
            true => cells[(cell + ANCHORS - 1) % ANCHORS],
            false => [0; GRID],
        };
        let from = at % GRID;
        // All three are as long as that: one counter will do.
        let most = bytes.len().min(GRID - from);
        let bytes = &bytes[..most];
        let (leaving, places) = (&before[from..][..most], &mut cells[cell][from..][..most]);
        let filter = self.anchors.filter();
        let (mut hash, mut product) = (self.hash, self.hash.wrapping_mul(FACTOR));
        let (mut length, mut anchor) = (0, None);
        while anchor.is_none() {
            let mut is_hit = false;
            while length < most && !is_hit {
                let enters = BYTES[usize::from(bytes[length])].0;
                if enters == STOPS {
                    break;
                }
                hash = rolled(product, enters, leaving[length]);
                product = hash.wrapping_mul(FACTOR);
                places[length] = bytes[length];
                length += 1;
                is_hit = may_hold(filter, product);
            }
            if !is_hit {
                break;
            }
            // Seldom, and seldom rightly: where there is none it goes on.
            anchor = self.anchors.find(hash);
        }
        self.hash = hash;
        self.at += length as u64;
        (length, anchor)
    }

    /// Looks for an anchor with the hash of the last bytes: whether another run is
    /// followed for it.
    fn look_up(&mut self) -> bool {
        let anchor = self.anchors.find(self.hash);
        anchor.is_some_and(|anchor| self.meet(anchor))
    }

    /// Keeps the hash where an anchor is due.
    #[inline]
    fn anchor(&mut self) {
        let at = self.at as usize;
        if at.is_multiple_of(GRID) {
            self.anchors.store(at / GRID, self.hash);
        }
    }

    /// Makes room for the bytes up to the next anchor.
    #[inline]
    fn grow(&mut self) {
        /// Most texts are a paragraph or two: doubling would hold twice that.
        const STEP: usize = 512;
        let held = self.ring.len();
        if self.at as usize == held && held < RING {
            self.ring.reserve_exact(STEP);
            self.ring.resize(held + STEP, 0);
        }
    }

    /// How many of these bytes, at most to the next anchor, equal those a period
    /// before in every run that is followed, and leave none due.
    fn equal(&self, bytes: &[u8]) -> usize {
        let at = self.at as usize;
        let mut most = bytes.len().min(GRID - at % GRID);
        for run in &self.followed {
            let period = run.period as usize;
            let wait = run.due.saturating_sub(run.blind).saturating_sub(1);
            most = most.min(wait as usize);
            let is_equal = |n: &usize| {
                let before = match n.checked_sub(period) {
                    Some(n) => bytes[n],
                    None => self.ring[(at + n - period) % RING],
                };
                bytes[*n] == before
            };
            most = (0..most).find(|n| !is_equal(n)).unwrap_or(most);
        }
        most
    }

    /// Goes on with every run that goes on.
    fn follow(&mut self, byte: u8) {
        let (ring, at) = (&self.ring, self.at as usize);
        let is_due = &mut self.is_due;
        self.followed.retain_mut(|run| {
            let before = ring[(at - run.period as usize) % RING];
            if before == byte {
                run.exact += 1;
            } else if before.is_ascii_digit() && byte.is_ascii_digit() {
                run.exact = 0;
            } else {
                return false;
            }
            run.blind += 1;
            *is_due |= run.blind >= run.due;
            true
        });
    }

    /// The last bytes have the hash of an anchor: whether it is the first of a run.
    fn meet(&mut self, anchor: usize) -> bool {
        // Anchors are numbered by their end, modulo what the ring holds.
        let now = self.at as usize;
        let end = anchor * GRID;
        let period = (now + RING - end % RING) % RING;
        if period == 0 || period > PERIOD_MAX || period >= now {
            return false;
        }
        if self.followed.iter().any(|run| run.covers(period)) {
            return false;
        }
        self.begin(period)
    }

    /// The text may repeat itself at this distance: whether it does, and is
    /// followed from now on.
    #[cold]
    fn begin(&mut self, period: usize) -> bool {
        let (exact, blind) = self.runs(period);
        // A multiple of what differs in its digits is news where it does not.
        let is_multiple = |run: &Followed| period.is_multiple_of(run.period as usize);
        let is_news = exact as usize >= period || !self.followed.iter().any(is_multiple);
        if (blind as usize) < GRID || !is_news {
            return false;
        }
        let run = Followed {
            period: period as u32,
            exact,
            blind,
            due: 0,
            unit: None,
            said: None,
        };
        if self.followed.len() == FOLLOWED_MAX {
            let shortest = (0..FOLLOWED_MAX).min_by_key(|n| self.followed[*n].blind);
            self.followed.swap_remove(shortest.unwrap_or_default());
        }
        self.followed.push(run);
        self.is_due = true;
        true
    }

    /// How many last bytes equal those a period before; digits being alike.
    fn runs(&self, period: usize) -> (u32, u32) {
        let at = self.at as usize;
        let kept = at.min(RING) - period;
        let (mut exact, mut run) = (None, 0);
        while run < kept {
            let now = self.ring[(at - 1 - run) % RING];
            let before = self.ring[(at - 1 - run - period) % RING];
            if now != before {
                exact = exact.or(Some(run as u32));
                if blind(now) != blind(before) {
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
    pub fn look_again(&mut self) {
        for run in &mut self.followed {
            run.due = 0;
            self.is_due = true;
        }
    }

    fn tail(&self, bytes: usize) -> Vec<u8> {
        self.tail_before(0, bytes)
    }

    /// The last bytes of the text before the last `ahead`, as many as there are
    /// of these; both together are in the ring.
    pub fn tail_before(&self, ahead: usize, bytes: usize) -> Vec<u8> {
        let at = self.at as usize - ahead;
        let bytes = bytes.min(at).min(RING);
        (at - bytes..at).map(|n| self.ring[n % RING]).collect()
    }

    pub fn heap_bytes(&self) -> usize {
        self.ring.capacity()
            + self.anchors.heap_bytes()
            + self.followed.capacity() * size_of::<Followed>()
    }
}

/// Digits are alike.
const fn blind(byte: u8) -> u8 {
    if byte.is_ascii_digit() { b'0' } else { byte }
}

/// FACTOR to the power of GRID, for the byte that leaves.
const FACTOR_GRID: u32 = {
    let (mut power, mut n) = (1u32, 0);
    while n < GRID {
        power = power.wrapping_mul(FACTOR);
        n += 1;
    }
    power
};

/// What a byte does to the hash, digits being alike: what it adds when it enters,
/// and what it takes away when it leaves. One that is no text on a line does not
/// enter.
const BYTES: [(u32, u32); 256] = {
    let mut bytes = [(STOPS, 0); 256];
    let mut byte = 0;
    while byte < bytes.len() {
        let alike = blind(byte as u8) as u32;
        if matches!(byte as u8, b' '..=b'~' | b'\t' | b'\r') {
            bytes[byte].0 = alike;
        }
        bytes[byte].1 = alike.wrapping_mul(FACTOR_GRID);
        byte += 1;
    }
    bytes
};
const STOPS: u32 = u32::MAX;

/// A polynomial over the last [`GRID`] bytes, from the product of that before and
/// its factor. It needs no key: a match is compared byte by byte before it counts.
#[inline]
fn rolled(product: u32, enters: u32, leaves: u8) -> u32 {
    product
        .wrapping_add(enters)
        .wrapping_sub(BYTES[usize::from(leaves)].1)
}
