//! What is kept of calls, some of them at a time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::domain::{CallFacts, Moment, Operation, Outcome, Sig};

/// Calls in a block: what is sought on every event stands side by side.
pub(super) const LANES: usize = 8;

/// Of what is only compared within these calls 32 of the 64 bits of its
/// signature are kept: that two which differ are taken for equal has a chance of
/// 2^-32 a comparison, 31 comparisons a call at most, and nobody can bring it
/// about without the key. What a call is is kept whole, since it names the loop.
pub(super) struct Block {
    pub call_low: [u32; LANES],
    pub call_high: [u32; LANES],
    pub masked: [u32; LANES],
    pub raw: [u32; LANES],
    /// 0 where it is unknown.
    pub target: [u32; LANES],
    pub index: [i32; LANES],
    /// Nanoseconds since 1970: until 2262.
    pub time: [i64; LANES],
    pub operation: [Operation; LANES],
    pub outcome: [Option<Outcome>; LANES],
    /// How long tool, target and event id are.
    pub words_bytes: [[u8; 3]; LANES],
}

// The largest part of a session: think twice before it grows.
const _: () = assert!(size_of::<Block>() == 37 * LANES);

/// What few calls have.
#[derive(Default)]
pub(super) struct Seldom {
    /// The lines that calls asked for, by slot, in the order of the calls.
    pub lines: Vec<(u8, u32, u32)>,
    pub extras: Vec<Extra>,
}

/// What a call had besides.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct Extra {
    pub round: Option<Sig>,
    pub content: Option<Sig>,
    pub tokens: i64,
    pub usd: f64,
}

impl Block {
    pub const EMPTY: Self = Self {
        call_low: [0; LANES],
        call_high: [0; LANES],
        masked: [0; LANES],
        raw: [0; LANES],
        target: [0; LANES],
        index: [0; LANES],
        time: [0; LANES],
        operation: [Operation::Other; LANES],
        outcome: [None; LANES],
        words_bytes: [[0; 3]; LANES],
    };

    pub fn put(&mut self, lane: usize, at: Moment, facts: &CallFacts) {
        let call = facts.call.map_or(0, Sig::get);
        self.call_low[lane] = call as u32;
        self.call_high[lane] = (call >> 32) as u32;
        self.masked[lane] = facts.masked.tag();
        self.raw[lane] = facts.raw.tag();
        self.target[lane] = facts.target.map_or(0, Sig::tag);
        self.index[lane] = at.index;
        self.time[lane] = nanos(at.time);
        self.operation[lane] = facts.operation;
        self.outcome[lane] = facts.outcome;
    }

    pub fn call(&self, lane: usize) -> Option<Sig> {
        let call = u64::from(self.call_high[lane]) << 32 | u64::from(self.call_low[lane]);
        (call != 0).then(|| Sig::new(call))
    }
}

impl Seldom {
    /// Room for the lines of so many more calls at a time.
    const LINES_MORE: usize = 2;

    pub fn lines(&self, slot: usize) -> Option<(u32, u32)> {
        let mut lines = self.lines.iter();
        let of_slot = lines.find(|(of, ..)| usize::from(*of) == slot);
        of_slot.map(|(_, first, last)| (*first, *last))
    }

    pub fn put(&mut self, slot: usize, lines: Option<(u32, u32)>, extra: Extra) {
        // What the oldest call had stands first.
        let oldest = self.lines.first();
        if oldest.is_some_and(|(of, ..)| usize::from(*of) == slot) {
            self.lines.remove(0);
        }
        if let Some((first, last)) = lines {
            if self.lines.len() == self.lines.capacity() {
                self.lines.reserve_exact(Self::LINES_MORE);
            }
            self.lines.push((slot as u8, first, last));
        }
        // As long as it has to be.
        if self.extras.len() <= slot && extra != Extra::default() {
            self.extras.resize(slot + 1, Extra::default());
        }
        if let Some(old) = self.extras.get_mut(slot) {
            *old = extra;
        }
    }
}

/// Times that no clock shows are taken for the nearest that fits.
pub(super) fn nanos(time: SystemTime) -> i64 {
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

pub(super) fn time(nanos: i64) -> SystemTime {
    let span = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 {
        UNIX_EPOCH - span
    } else {
        UNIX_EPOCH + span
    }
}
