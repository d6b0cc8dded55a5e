//! What is kept of a call.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wide::u8x16;

use super::History;
use crate::domain::{CallFacts, EventPosition, Operation, Sig};

/// A call that was made. Of what is only compared within the window 32 of the 64
/// bits of its signature are kept: that two which differ are taken for equal has
/// a chance of 2^-32 a comparison, 31 comparisons a call at most, and nobody can
/// bring it about without the key. What a call is is kept whole, since it names
/// the loop.
///
/// It stands in one place: to take a call in touches a line or two of memory, and
/// of a million sessions no line is in a cache.
#[derive(Clone, Copy)]
#[repr(Rust, packed(4))]
pub(super) struct CallRow {
    /// 0 where it is unknown, as is the target.
    call: u64,
    /// Nanoseconds since 1970: until 2262.
    pub time: i64,
    pub masked_outcome: u32,
    pub raw_outcome: u32,
    pub target: u32,
    pub index: i32,
    pub operation: Operation,
    /// How long tool, target and event id are.
    pub text_bytes: [u8; 3],
}

// There are 32 a session: think twice before it grows.
const _: () = assert!(size_of::<CallRow>() == 36);

/// What few calls have.
#[derive(Default)]
pub(super) struct RareFields {
    /// The lines that calls asked for, by slot, in the order of the calls.
    pub lines: Vec<(u8, u32, u32)>,
    pub extras: Vec<CallExtra>,
}

/// What a call had besides.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct CallExtra {
    pub round: Option<Sig>,
    pub content: Option<Sig>,
    pub tokens: i64,
    pub usd: f64,
}

impl CallRow {
    pub fn new(at: EventPosition, facts: &CallFacts, words_bytes: [u8; 3]) -> Self {
        Self {
            call: facts.call.map_or(0, Sig::get),
            time: to_nanos(at.time),
            masked_outcome: facts.masked_outcome.tag(),
            raw_outcome: facts.raw_outcome.tag(),
            target: facts.target.map_or(0, Sig::tag),
            index: at.index,
            operation: facts.operation,
            text_bytes: words_bytes,
        }
    }

    pub fn call(&self) -> Option<Sig> {
        (self.call != 0).then(|| Sig::new(self.call))
    }
}

/// Eight bits of a signature of each call, side by side: nearly always they tell
/// that no call has it, and no row need be looked at.
#[derive(Default)]
pub(super) struct Fingerprints([u8; History::CALLS_MAX]);

impl Fingerprints {
    pub fn set(&mut self, slot: usize, of: u64) {
        self.0[slot] = of as u8;
    }

    /// The slots that may have it.
    pub fn slots_matching(&self, wanted: u64) -> u32 {
        let wanted = u8x16::splat(wanted as u8);
        let (lanes, _) = self.0.as_chunks();
        let bits = lanes.iter().rev().map(|lane| {
            let equal = u8x16::new(*lane).simd_eq(wanted);
            equal.to_bitmask()
        });
        bits.fold(0, |slots, bits| slots << 16 | bits)
    }
}

impl RareFields {
    /// Room for the lines of so many more calls at a time.
    const LINES_GROWTH: usize = 2;

    pub fn lines(&self, slot: usize) -> Option<(u32, u32)> {
        let mut lines = self.lines.iter();
        let of_slot = lines.find(|(of, ..)| usize::from(*of) == slot);
        of_slot.map(|(_, first, last)| (*first, *last))
    }

    pub fn insert(&mut self, slot: usize, lines: Option<(u32, u32)>, extra: CallExtra) {
        // What the oldest call had stands first.
        let oldest = self.lines.first();
        if oldest.is_some_and(|(of, ..)| usize::from(*of) == slot) {
            self.lines.remove(0);
        }
        if let Some((first, last)) = lines {
            if self.lines.len() == self.lines.capacity() {
                self.lines.reserve_exact(Self::LINES_GROWTH);
            }
            self.lines.push((slot as u8, first, last));
        }
        // As long as it has to be.
        if self.extras.len() <= slot && extra != CallExtra::default() {
            self.extras.resize(slot + 1, CallExtra::default());
        }
        if let Some(old) = self.extras.get_mut(slot) {
            *old = extra;
        }
    }
}

/// Times that no clock shows are taken for the nearest that fits.
pub(super) fn to_nanos(time: SystemTime) -> i64 {
    let fits = |span: Duration| {
        let secs = i64::try_from(span.as_secs()).ok();
        let nanos = secs.and_then(|secs| secs.checked_mul(1_000_000_000));
        let nanos = nanos.and_then(|nanos| nanos.checked_add(span.subsec_nanos().into()));
        nanos.unwrap_or(i64::MAX)
    };
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => fits(since),
        Err(before) => -fits(before.duration()),
    }
}

pub(super) fn from_nanos(nanos: i64) -> SystemTime {
    let span = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 {
        UNIX_EPOCH - span
    } else {
        UNIX_EPOCH + span
    }
}
