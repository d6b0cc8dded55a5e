//! The stored fields of a call.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use wide::u8x16;

use super::History;
use crate::domain::{CallFacts, EventPosition, Operation, Sig};

/// A call. Signatures that are only compared within the window are stored as 32 of
/// their 64 bits. Two different values are then taken for equal with a probability
/// of 2^-32 per comparison, with at most 31 comparisons per call, and an agent
/// cannot provoke it without the hash key. The signature of the call itself is
/// stored in full, because it identifies the loop.
///
/// The fields are one packed struct and not a list per field, so that adding a call
/// touches one or two cache lines: with a million sessions none is in the cache.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[repr(Rust, packed(4))]
pub(super) struct CallRow {
    /// 0 if unknown, like the target.
    call: u64,
    /// Nanoseconds since 1970, which fit until 2262.
    pub time: i64,
    pub masked_outcome: u32,
    pub raw_outcome: u32,
    pub target: u32,
    pub index: i32,
    pub operation: Operation,
    /// The lengths of tool, target and event id.
    pub text_bytes: [u8; 3],
}

// There are 32 rows per agent, so each byte costs 32.
const _: () = assert!(size_of::<CallRow>() == 36);

/// Fields that few calls have.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct RareFields {
    /// Slot, first and last requested line, in the order of the calls.
    pub lines: Vec<(u8, u32, u32)>,
    pub extras: Vec<CallExtra>,
}

/// The rare fields of one call other than its lines.
#[derive(Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct CallExtra {
    pub round: Option<Sig>,
    pub content: Option<Sig>,
    pub tokens: u32,
    pub cached_tokens: u32,
    pub usd: f64,
}

impl CallRow {
    pub fn new(at: EventPosition, facts: &CallFacts, text_bytes: [u8; 3]) -> Self {
        Self {
            call: facts.call.map_or(0, Sig::get),
            time: to_nanos(at.time),
            masked_outcome: facts.masked_outcome.tag(),
            raw_outcome: facts.raw_outcome.tag(),
            target: facts.target.map_or(0, Sig::tag),
            index: at.index,
            operation: facts.operation,
            text_bytes,
        }
    }

    pub fn call(&self) -> Option<Sig> {
        (self.call != 0).then(|| Sig::new(self.call))
    }
}

/// Eight bits of a signature per call, side by side. They nearly always show that
/// no call has a signature, so that no row must be read.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Fingerprints([u8; History::CALLS_MAX]);

impl Fingerprints {
    pub fn set(&mut self, slot: usize, signature: u64) {
        self.0[slot] = signature as u8;
    }

    /// The slots that may have this signature.
    pub fn slots_matching(&self, signature: u64) -> u32 {
        let wanted = u8x16::splat(signature as u8);
        let (lanes, _) = self.0.as_chunks();
        lanes
            .iter()
            .rev()
            .map(|lane| u8x16::new(*lane).simd_eq(wanted).to_bitmask())
            .fold(0, |slots, bits| slots << 16 | bits)
    }
}

impl RareFields {
    /// The list of lines grows by this many calls.
    const LINES_GROWTH: usize = 2;

    pub fn lines(&self, slot: usize) -> Option<(u32, u32)> {
        self.lines
            .iter()
            .find(|(of_slot, ..)| usize::from(*of_slot) == slot)
            .map(|(_, first, last)| (*first, *last))
    }

    pub fn insert(&mut self, slot: usize, lines: Option<(u32, u32)>, extra: CallExtra) {
        // The new call replaces the oldest, whose lines are the first.
        let oldest = self.lines.first();
        if oldest.is_some_and(|(of_slot, ..)| usize::from(*of_slot) == slot) {
            self.lines.remove(0);
        }
        if let Some((first, last)) = lines {
            if self.lines.len() == self.lines.capacity() {
                self.lines.reserve_exact(Self::LINES_GROWTH);
            }
            self.lines.push((slot as u8, first, last));
        }
        // The list is only as long as the last slot with an extra.
        if self.extras.len() <= slot && extra != CallExtra::default() {
            self.extras.resize(slot + 1, CallExtra::default());
        }
        if let Some(old) = self.extras.get_mut(slot) {
            *old = extra;
        }
    }
}

/// Times out of range saturate.
pub(super) fn to_nanos(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => saturating_nanos(since),
        Err(before) => -saturating_nanos(before.duration()),
    }
}

fn saturating_nanos(span: Duration) -> i64 {
    i64::try_from(span.as_secs())
        .ok()
        .and_then(|secs| secs.checked_mul(1_000_000_000))
        .and_then(|nanos| nanos.checked_add(span.subsec_nanos().into()))
        .unwrap_or(i64::MAX)
}

pub(super) fn from_nanos(nanos: i64) -> SystemTime {
    let span = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 {
        UNIX_EPOCH - span
    } else {
        UNIX_EPOCH + span
    }
}
