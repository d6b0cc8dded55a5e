//! What the detectors observe: an event with its facts and signatures.

use std::{num::NonZeroU64, sync::Arc, time::SystemTime};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{
    Capacities, MarkerKind, Operation, Outcome, TextRepetition, Totals, TurnFacts, serde_time,
};

/// A keyed hash. Equal signatures mean equal values, and without the key two
/// different values cannot be made to collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "[u8; 8]", from = "[u8; 8]")]
pub struct Sig(NonZeroU64);

impl Sig {
    /// Zero becomes one, so that `Option<Sig>` is as small as `Sig`.
    #[inline]
    pub fn new(hash: u64) -> Self {
        Self(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }

    #[inline]
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// Half of the bits, where full precision is not worth the memory; never 0.
    #[inline]
    pub fn tag(self) -> u32 {
        (self.0.get() as u32).max(1)
    }
}

/// Eight bytes, because a variable-length integer needs ten for most hashes.
impl From<Sig> for [u8; 8] {
    fn from(sig: Sig) -> Self {
        sig.get().to_le_bytes()
    }
}

impl From<[u8; 8]> for Sig {
    fn from(bytes: [u8; 8]) -> Self {
        Self::new(u64::from_le_bytes(bytes))
    }
}

/// An event with its facts, computed once for all detectors.
#[derive(Clone, Debug)]
pub struct Observation {
    pub at: EventPosition,
    pub body: ObservationBody,
    pub usage: UsageDelta,
    /// How often a call had moved to another state of the world: another commit, branch
    /// or cluster. What failed before may fail there for another reason.
    pub world_moves: u32,
    /// How often a call of any agent had returned something new. Counted only while a
    /// session has several agents.
    pub new_results: u16,
    /// Bounds the state of the detectors.
    pub capacities: Capacities,
}

/// When an observation was made, and the session's counters at that time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct EventPosition {
    /// The event's number in its session.
    pub index: i32,
    /// The event's own time, or its time of arrival.
    #[serde(with = "serde_time")]
    pub time: SystemTime,
    /// How often the session had made progress, including this event. Two calls with
    /// the same value have no progress between them.
    pub progress: u32,
    /// How often `state_hash` had changed, on any event.
    pub state_changes: u32,
    /// How many calls all agents had made since the last message of the user or the
    /// start of the run. No call was made between two turns with the same value.
    pub calls: u32,
    /// `None`: the event is a round by itself.
    pub round: Option<Sig>,
}

/// The usage of the session with all its agents.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsageDelta {
    /// At the previous observation.
    pub before: Totals,
    pub now: Totals,
}

impl Observation {
    /// The context was compacted, so the model has lost what it read.
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

    /// The repetition in the observed text, if any.
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

    /// The call, unless it is a poll or an outage, which most detectors skip.
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
    /// An agent's turn. Detectors see turns of users and systems only as `Other`.
    Turn(TurnFacts),
    /// A text that is still being streamed repeats itself. It is not an event; the
    /// complete turn will be one.
    PartialText(TextRepetition),
    Marker {
        kind: MarkerKind,
        context_tokens: i32,
    },
    /// A turn of a user or a system, or a call that was blocked or is exempt. It has no
    /// facts, because only its usage and the operator's rules matter.
    Other,
}

/// The result of evaluating an operator's rule on an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleOutcome {
    /// The rule's index.
    pub rule: u8,
    /// `Some`: the event counts. Events with equal keys are counted together.
    pub group_key: Option<Sig>,
    /// The count restarts before this event.
    pub resets: bool,
    /// The expression that could not be evaluated.
    pub failed_expression: Option<&'static str>,
    /// The rule reads `call_kind`, so polls and outages count for it, too.
    pub uses_call_kind: bool,
}

/// The facts of a tool call. Detectors see a blocked call only as
/// `ObservationBody::Other`, without facts.
#[derive(Clone, Debug)]
pub struct CallFacts {
    pub kind: CallKind,
    /// The agent waited in the call, by its tool or its command, or before it.
    pub is_wait: bool,
    /// Identifies a poll whose arguments say how long to wait, without that time.
    pub poll_key: Option<Sig>,
    /// What a poll asks about has failed or ended, and will not go on by itself.
    pub is_dead: bool,
    /// Tool and canonical arguments; `None`: the arguments are unknown, and the
    /// call equals no other.
    pub call: Option<Sig>,
    pub tool: Sig,
    pub operation: Operation,
    /// A command that also changes a file: `sed -i … && pytest`.
    pub also_writes: bool,
    /// The call moves to another state of the world: another commit, branch, cluster.
    pub moves_world: bool,
    /// What the call acted on; `None`: unknown.
    pub target: Option<Sig>,
    /// The directory to which a command line changes, unless it is the one in which the
    /// agent works.
    pub directory: Option<Sig>,
    /// The requested lines of the target, first and last, from 1; `None`: all.
    pub lines: Option<(u32, u32)>,
    /// An argument beside the target and its lines may choose a part of it: pages, a
    /// question about it.
    pub may_read_part: bool,
    /// The arguments without their numbers and without the order of their words.
    pub loose_args: Option<Sig>,
    /// The arguments without the order of their words.
    pub unordered_args: Option<Sig>,
    /// The words of the arguments. Empty unless there are enough for two calls to
    /// differ in one word and still overlap by nine tenths.
    pub arg_words: WordHashes,
    /// The words of a program whose answer is a short datum or that finds nothing, or of a
    /// call whose answer those about other objects may share; empty for other calls.
    pub program: ProgramWords,
    /// The distinct words of a search query, sorted; `None`: no query, or a short one.
    pub query_words: Option<Arc<[u32]>>,
    pub outcome: Option<Outcome>,
    /// Everything that was sent of the outcome, masked. Equal calls with equal
    /// outcomes repeat.
    pub masked_outcome: Sig,
    /// The same without masking. It distinguishes an exact repeat from one that is
    /// equal only if times and ids are ignored.
    pub raw_outcome: Sig,
    /// The result, or else the error; raw except for media. `None` if nothing was
    /// sent or it says nothing (empty, ok, done, the response of a write).
    pub response: Option<Sig>,
    /// The masked error of a failed call.
    pub error: Option<Sig>,
    /// The counts and measurements in the error of a failed call.
    pub figures: SmallVec<[f32; 4]>,
    /// A figure has moved on since the same call failed before: progress, although the
    /// error is the same.
    pub has_moved_figure: bool,
    pub answer: AnswerKind,
    /// A short answer that does not say that all is well: a score, a difference.
    pub leaves_open: bool,
    /// A run, no search, whose answer is no hits or an empty list.
    pub found_nothing: bool,
    /// The call failed or returned no more than a line or two. False if the result
    /// was not sent, or only as a hash, because it may be long.
    pub unproductive: bool,
    /// The answer only acknowledges the call, or none was sent.
    pub is_acknowledged: bool,
    /// The answer of a write says that it changed nothing.
    pub changed_nothing: bool,
    /// The call rewrites the agent's own plan or todo list, which is no progress, and
    /// this many steps of it are marked as done.
    pub plan_steps_done: Option<u16>,
    /// By the tool's name it reads and changes nothing: `get_text`,
    /// `browser_snapshot`.
    pub is_read_only: bool,
    /// By the tool's name it acts on something: `click`, `send_mail`.
    pub may_act: bool,
    /// The content of the file after a write, or as read; `None`: unknown.
    pub content: Option<Sig>,
    /// The `state_hash` after the call; `None`: unknown.
    pub state: Option<Sig>,
}

/// The words of a command line, a statement or a script, to tell whether two of them ask the
/// same in other words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramWords {
    /// A bit for each word; 0: no program, or a long one.
    pub words: u128,
    /// The sum of the numbers' hashes.
    pub numbers: u64,
}

impl ProgramWords {
    /// Whether all words of one program are words of the other, so that both are about the
    /// same thing. Another word may name another thing, and so may another number.
    pub fn asks_the_same(self, other: Self) -> bool {
        const WORDS_MIN: u32 = 4;
        let differs_in_numbers_only = self.words == other.words && self.numbers != other.numbers;
        (self.words & other.words).count_ones() >= WORDS_MIN
            && (self.is_part_of(other) || other.is_part_of(self))
            && !differs_in_numbers_only
    }

    /// The words with those of the tool's name.
    pub fn with_tool(self, tool: Sig) -> Self {
        let [first, second] = [tool.get() & 127, tool.get() >> 7 & 127];
        Self {
            words: self.words | 1 << first | 1 << second,
            ..self
        }
    }

    /// Whether two calls that share words name different objects: each has a few words of
    /// its own, as many as the other, or another number.
    pub fn names_another_object(self, other: Self) -> bool {
        const SHARED_MIN: u32 = 2;
        const OWN_MAX: u32 = 3;
        let shared = self.words & other.words;
        let own = [self, other].map(|program| (program.words & !shared).count_ones());
        shared.count_ones() >= SHARED_MIN
            && match own {
                [0, 0] => self.numbers != other.numbers,
                [here, there] => here == there && here <= OWN_MAX,
            }
    }

    pub fn is_part_of(self, other: Self) -> bool {
        self.words & other.words == self.words
    }

    /// Whether the programs differ in one word or in numbers, so that each is about an object
    /// of its own: `check('a.md')`, `check('b.md')`.
    pub fn names_another(self, other: Self) -> bool {
        let shared = self.words & other.words;
        let only_here = (self.words & !shared).count_ones();
        let only_there = (other.words & !shared).count_ones();
        shared != 0
            && match (only_here, only_there) {
                (0, 0) => self.numbers != other.numbers,
                (1, 1) => true,
                _ => false,
            }
    }
}

/// Hashes of words in their order, because few are ever compared. `None`: there are none,
/// as in most calls.
pub type WordHashes = Option<Arc<[u32]>>;

/// What an answer says, apart from its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerKind {
    /// It was not sent, or only as a hash.
    #[default]
    Unknown,
    /// Nothing came back: no output, an empty list.
    Empty,
    /// The call failed, or what it asked for was not found.
    Negative,
    /// A line or two, which the answers for different objects may share: "valid".
    Brief,
    /// More text than the answers for different objects would share.
    Substantial,
}

/// Which detectors count a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    Ordinary,
    /// A wait or a check for changes. Only `polling` counts it.
    Poll,
    /// The call met a rate limit, a server error or a dead connection. Only
    /// `infra_outage` counts it.
    Outage,
}

impl CallFacts {
    /// Whether different calls with this answer are stuck, rather than at work on
    /// different objects: the answer is no, or more text than different objects share.
    pub fn answer_shows_no_effect(&self) -> bool {
        match self.answer {
            AnswerKind::Negative => true,
            // A silent run has succeeded; a silent search has found nothing.
            AnswerKind::Empty => self.operation != Operation::Execute,
            // Different files may have the same content.
            AnswerKind::Substantial => self.operation != Operation::Read,
            // Looking in different ways at the same thing.
            AnswerKind::Brief => self.operation == Operation::Search,
            // Only a hash was sent.
            AnswerKind::Unknown => true,
        }
    }

    #[inline]
    pub fn failed(&self) -> bool {
        self.outcome == Some(Outcome::Error)
    }

    #[inline]
    pub fn is_change(&self) -> bool {
        matches!(self.operation, Operation::Write | Operation::Edit)
    }

    /// The call failed or brought nothing.
    #[inline]
    pub fn is_fruitless(&self) -> bool {
        self.failed() || matches!(self.answer, AnswerKind::Empty | AnswerKind::Negative)
    }

    /// The call acted, and nothing is known of what that changed.
    #[inline]
    pub fn acts_silently(&self) -> bool {
        self.operation == Operation::Other
            && self.is_acknowledged
            && !self.is_read_only
            && !self.failed()
            && self.state.is_none()
    }

    /// Distinguishes the outcome from that of the same command in another directory. The
    /// same failure there is the same failure.
    pub fn mark_directory(&mut self) {
        let Some(directory) = self.directory.filter(|_| !self.failed()) else {
            return;
        };
        for outcome in [&mut self.masked_outcome, &mut self.raw_outcome] {
            *outcome = Sig::new(outcome.get() ^ directory.get().rotate_left(1));
        }
    }

    /// A write or edit that is not known to have failed.
    #[inline]
    pub fn wrote(&self) -> bool {
        self.is_change() && !matches!(self.outcome, Some(Outcome::Error | Outcome::Blocked))
    }
}
