use std::{num::NonZeroU64, time::SystemTime};

use smallvec::SmallVec;

use super::{Capacities, MarkerKind, Operation, Outcome, TextRepetition, Totals, TurnFacts};

/// A keyed hash: equal signatures mean equal things, and nobody who does not
/// know the key can make two different things equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sig(NonZeroU64);

impl Sig {
    /// Zero is taken for one, so that `Option<Sig>` costs no more than a `Sig`.
    #[inline]
    pub fn new(hash: u64) -> Self {
        Self(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }

    #[inline]
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// Half of it, where the other half would not be worth its bytes; never 0.
    #[inline]
    pub fn tag(self) -> u32 {
        (self.0.get() as u32).max(1)
    }
}

/// What facts make of an event, once, for every detector.
#[derive(Clone, Debug)]
pub struct Observation {
    pub at: EventPosition,
    pub body: ObservationBody,
    pub usage: UsageDelta,
    /// How much detectors may remember.
    pub capacities: Capacities,
}

/// When an observation was made.
#[derive(Clone, Copy, Debug)]
pub struct EventPosition {
    /// The event's number in its session.
    pub index: i32,
    /// The event's own time, else its arrival.
    pub time: SystemTime,
    /// How often the session had made progress when the event was over. Two
    /// calls with the same number have no progress between them.
    pub progress: u32,
    /// How often the state of the world had been seen to change, on any event.
    pub state_changes: u32,
    /// How many calls the session had made since a user spoke or a run began,
    /// whichever agent made them: between two turns with the same number nothing
    /// was done.
    pub calls: u32,
    /// The round it belongs to; `None`: a round of its own.
    pub round: Option<Sig>,
}

/// What the whole session has used, all agents together.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsageDelta {
    /// When an observation was made last.
    pub before: Totals,
    pub now: Totals,
}

impl Observation {
    /// The context was summarised: the model has lost what it read.
    #[inline]
    pub fn is_compaction(&self) -> bool {
        matches!(
            self.body,
            ObservationBody::Marker {
                kind: MarkerKind::Compaction,
                ..
            }
        )
    }

    /// How the text repeats itself.
    #[inline]
    pub fn repetition(&self) -> Option<&TextRepetition> {
        match &self.body {
            ObservationBody::PartialText(repeated) => Some(repeated),
            ObservationBody::Turn(turn) => turn.repetition.as_ref(),
            ObservationBody::Call(_) | ObservationBody::Marker { .. } | ObservationBody::Other => {
                None
            }
        }
    }

    /// The call, where it is one that most detectors look at.
    #[inline]
    pub fn ordinary_call(&self) -> Option<&CallFacts> {
        match &self.body {
            ObservationBody::Call(facts) => (facts.kind == CallKind::Ordinary).then_some(facts),
            ObservationBody::Turn(_)
            | ObservationBody::PartialText(_)
            | ObservationBody::Marker { .. }
            | ObservationBody::Other => None,
        }
    }
}

#[derive(Clone, Debug)]
pub enum ObservationBody {
    Call(CallFacts),
    /// An agent's turn. Turns of users and systems never reach a detector.
    Turn(TurnFacts),
    /// A text that is being written has repeated itself. No event: the turn will
    /// be one when it is complete.
    PartialText(TextRepetition),
    Marker {
        kind: MarkerKind,
        context_tokens: i32,
    },
    /// Somebody else's turn, or a call that was blocked or is exempt: of no
    /// account but for what it used, and what the operator's rules make of it.
    Other,
}

/// What a rule of the operator's makes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleOutcome {
    /// The rule's place among the rules.
    pub rule: u8,
    /// `Some`: the event counts, and this is what it is the same as.
    pub group_key: Option<Sig>,
    /// The count starts anew, before this event.
    pub resets: bool,
    /// The expression that could not be evaluated.
    pub failed_expression: Option<&'static str>,
    /// It tells polls and outages apart itself, so it sees them too.
    pub uses_call_kind: bool,
}

/// A tool call that was made (a blocked one never reaches a detector).
#[derive(Clone, Debug)]
pub struct CallFacts {
    /// What the call counts as.
    pub kind: CallKind,
    /// Tool and canonical arguments; `None`: the arguments are unknown, and the
    /// call equals no other.
    pub call: Option<Sig>,
    pub tool: Sig,
    pub operation: Operation,
    /// A run that changed a file besides: `sed -i … && pytest`.
    pub also_writes: bool,
    /// What it acted on; `None`: unknown.
    pub target: Option<Sig>,
    /// The lines of the target it asked for, first and last from 1; `None`: all.
    pub lines: Option<(u32, u32)>,
    /// The arguments without their numbers and the order of their words.
    pub loose_args: Option<Sig>,
    /// The arguments' words, where there are so many that two calls can differ in
    /// one and still overlap by nine tenths.
    pub arg_words: WordHashes,
    pub outcome: Option<Outcome>,
    /// All that was sent of the outcome, masked. Equal calls with equal
    /// outcomes repeat.
    pub masked_outcome: Sig,
    /// The same, raw: tells an exact repeat from one that is equal only once
    /// times and ids are ignored.
    pub raw_outcome: Sig,
    /// What the call said: its result, else its error, raw but for media. `None`
    /// where nothing was sent, or nothing that says anything (empty, ok, done,
    /// a write's answer).
    pub response: Option<Sig>,
    /// The masked error of a call that failed.
    pub error: Option<Sig>,
    /// It failed, or brought back no more than a line or two. What was not sent,
    /// or only as a hash, may be much.
    pub unproductive: bool,
    /// By its name it looks and changes nothing: `get_text`, `browser_snapshot`.
    pub is_read_only: bool,
    /// The file after a write, or as read; `None`: unknown.
    pub content: Option<Sig>,
    /// The world after the call; `None`: unknown.
    pub state: Option<Sig>,
}

/// Hashes of words as they come, since hardly any are ever compared: as many as
/// most arguments have without an allocation.
pub type WordHashes = SmallVec<[u32; 32]>;

/// What a call counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    Ordinary,
    /// A wait, or a look whether something has changed: `polling` alone looks.
    Poll,
    /// It met a rate limit, a server's fault or a dead connection:
    /// `infra_outage` alone looks.
    Outage,
}

impl CallFacts {
    #[inline]
    pub fn failed(&self) -> bool {
        self.outcome == Some(Outcome::Error)
    }

    #[inline]
    pub fn is_change(&self) -> bool {
        matches!(self.operation, Operation::Write | Operation::Edit)
    }

    /// It wrote, and nothing says that it failed.
    #[inline]
    pub fn wrote(&self) -> bool {
        self.is_change() && !matches!(self.outcome, Some(Outcome::Error | Outcome::Blocked))
    }
}
