use std::{num::NonZeroU64, time::SystemTime};

use super::{MarkerKind, Operation, Outcome};

/// A keyed hash: equal signatures mean equal things, and nobody who does not
/// know the key can make two different things equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sig(NonZeroU64);

impl Sig {
    /// Zero is taken for one, so that `Option<Sig>` costs no more than a `Sig`.
    pub fn new(hash: u64) -> Self {
        Self(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }

    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// What facts make of an event, once, for every detector.
#[derive(Clone, Debug)]
pub struct Observation {
    pub at: Moment,
    pub seen: Seen,
}

/// When an observation was made.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The event's number in its session.
    pub index: i32,
    /// The event's own time, else its arrival.
    pub time: SystemTime,
    /// How often the session had made progress when the event was over. Two
    /// calls with the same number have no progress between them.
    pub progress: u32,
    /// The round it belongs to; `None`: a round of its own.
    pub round: Option<Sig>,
}

#[derive(Clone, Debug)]
pub enum Seen {
    Call(CallFacts),
    /// An agent's turn. Turns of users and systems never reach a detector.
    Turn(TurnFacts),
    Marker {
        kind: MarkerKind,
        context_tokens: i32,
    },
}

/// A tool call that was made (a blocked one never reaches a detector).
#[derive(Clone, Copy, Debug)]
pub struct CallFacts {
    /// Tool and canonical arguments; `None`: the arguments are unknown, and the
    /// call equals no other.
    pub call: Option<Sig>,
    pub operation: Operation,
    /// What it acted on; `None`: unknown.
    pub target: Option<Sig>,
    pub outcome: Option<Outcome>,
    /// All that was sent of the outcome, masked. Equal calls with equal
    /// outcomes repeat.
    pub masked: Sig,
    /// The same, raw: tells an exact repeat from one that is equal only once
    /// times and ids are ignored.
    pub raw: Sig,
    /// The file after a write, or as read; `None`: unknown.
    pub content: Option<Sig>,
    /// The world after the call; `None`: unknown.
    pub state: Option<Sig>,
}

impl CallFacts {
    /// It wrote, and nothing says that it failed.
    pub fn wrote(&self) -> bool {
        matches!(self.operation, Operation::Write | Operation::Edit)
            && !matches!(self.outcome, Some(Outcome::Error | Outcome::Blocked))
    }
}

/// A turn of an agent.
#[derive(Clone, Debug)]
pub struct TurnFacts {
    pub sketch: Sketch,
}

/// The distinct tokens of a turn (lower case, split at white space) as sorted
/// hashes, those with a digit apart. Up to [`Sketch::WORDS_MAX`] the sets are
/// whole and comparisons exact; of a longer turn the smallest hashes are kept,
/// which is a fair sample of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sketch {
    pub words: Box<[u32]>,
    pub numbers: Box<[u32]>,
}

impl Sketch {
    /// 2 KiB a turn. The standard error of the overlap of longer turns is below
    /// two percent.
    pub const WORDS_MAX: usize = 512;
    /// A turn with more numbers than that is a table.
    pub const NUMBERS_MAX: usize = 128;

    pub fn is_empty(&self) -> bool {
        self.words.is_empty() && self.numbers.is_empty()
    }
}
