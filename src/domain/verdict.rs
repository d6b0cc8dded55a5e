//! Verdicts, and what is recorded of them.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize, Serializer};

use super::{
    Action, AgentId, CallKey, Cost, Labels, LoopId, Rating, SessionId, VerdictId, serde_time,
};

/// The detector's name in verdicts that record what an operator did.
pub const OPERATOR: &str = "operator";

/// The detector of a session's budget, whose verdicts are about the session and not about
/// a loop.
pub const BUDGET: &str = "budget";

/// What Unstuck decides about an event. Shared, because it never changes after it is
/// issued. Serialized only as part of a frozen session, which has its id.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    pub id: VerdictId,
    #[serde(skip, default = "SessionId::placeholder")]
    pub session: SessionId,
    pub agent: AgentId,
    #[serde(with = "serde_time")]
    pub time: SystemTime,
    /// `None`: there was no event, because an operator acted or a text was being
    /// streamed.
    pub event_index: Option<i32>,
    /// `None`: it records an operator's act that asks for nothing, such as a reset.
    pub action: Option<Action>,
    pub detector: Arc<str>,
    pub other_detectors: Vec<Arc<str>>,
    pub pattern: String,
    pub reason: String,
    pub confidence: f64,
    pub correction: String,
    /// `None`: an operator acted, there is no loop.
    pub loop_id: Option<LoopId>,
    pub members: Vec<LoopMember>,
    pub trend: Option<Trend>,
    pub evidence: Evidence,
    pub wasted: Waste,
    pub retry_after: Option<Duration>,
    /// It was read from disk. Whether a verdict issued by this process is durable is
    /// looked up by its id.
    pub durable: bool,
    /// Another replica issued it, and `durable` is what that one knew.
    #[serde(skip)]
    pub is_foreign: bool,
    pub shadow: bool,
    /// The operator who acted; empty for a detector's verdict.
    pub operator: String,
}

impl Verdict {
    /// A verdict about the session itself: without a loop, an action and texts.
    pub fn without_loop(session: SessionId, detector: Arc<str>, time: SystemTime) -> Self {
        Self {
            id: VerdictId::default(),
            session,
            agent: AgentId::default(),
            time,
            event_index: None,
            action: None,
            detector,
            other_detectors: Vec::new(),
            pattern: String::new(),
            reason: String::new(),
            confidence: 1.0,
            correction: String::new(),
            loop_id: None,
            members: Vec::new(),
            trend: None,
            evidence: Evidence::default(),
            wasted: Waste::default(),
            retry_after: None,
            durable: false,
            is_foreign: false,
            shadow: false,
            operator: String::new(),
        }
    }

    /// The action that a broker must take; `None` in shadow mode.
    pub fn effective_action(&self) -> Option<Action> {
        self.action.filter(|_| !self.shadow)
    }

    /// Bytes that the verdict uses in memory.
    pub fn memory_bytes(&self) -> usize {
        let Self {
            other_detectors,
            pattern,
            reason,
            correction,
            members,
            evidence,
            operator,
            ..
        } = self;
        size_of::<Self>()
            + other_detectors.len() * size_of::<Arc<str>>()
            + [pattern, reason, correction, operator, &evidence.excerpt]
                .map(String::len)
                .iter()
                .sum::<usize>()
            + evidence.event_indexes.len() * size_of::<i32>()
            + members.iter().map(LoopMember::memory_bytes).sum::<usize>()
    }

    /// Whether the verdict ends its session or sub-agent.
    pub fn terminates(&self) -> bool {
        self.effective_action() == Some(Action::Terminate)
    }
}

/// An issued verdict, with what subscribers filter by and what it changes durably.
#[derive(Clone, Debug)]
pub struct VerdictRecord {
    pub verdict: Arc<Verdict>,
    pub labels: Arc<Labels>,
    /// The session's profile.
    pub profile: Arc<str>,
    pub effect: Effect,
    /// The position of the record in the audit log. `None`: it is not on disk.
    pub position: Option<ChainHead>,
}

/// A record of the audit log. Its hash covers the record and all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChainHead {
    /// Counts from 1.
    pub record: u64,
    pub hash: ChainHash,
}

/// A BLAKE3 hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChainHash(pub [u8; 32]);

impl fmt::Display for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ChainHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The state change of a verdict that must survive a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    None,
    /// The session or sub-agent has ended.
    Terminated,
    /// The session's state was cleared and its termination lifted.
    Reset,
    /// The session's verdicts are `shadow` until then.
    Snoozed(SystemTime),
    /// The session or sub-agent went on after its termination; the record's `wasted` has
    /// what was sent since.
    Disobeyed,
    /// An operator said whether this verdict was right. The record's `other_detectors` has
    /// its detector.
    Rated {
        verdict: VerdictId,
        rating: Rating,
    },
}

/// Receives issued verdicts in the order of their ids. Called with locks held, so it
/// must not block. In the server this is `Store::verdict_sink`.
pub type VerdictSink = Box<dyn Fn(VerdictRecord) + Send + Sync>;

/// A termination in its encoded form on disk. Decoded only on request, because there
/// may be a million of them.
#[derive(Clone, Debug)]
pub struct EncodedRecord {
    pub id: VerdictId,
    pub bytes: Box<[u8]>,
    pub decode: fn(VerdictId, &[u8]) -> Option<VerdictRecord>,
}

impl EncodedRecord {
    pub fn decode(&self) -> Option<VerdictRecord> {
        (self.decode)(self.id, &self.bytes)
    }
}

/// The durable state that is restored at startup.
#[derive(Debug, Default)]
pub struct RecoveredState {
    /// Terminated sessions.
    pub sessions: Vec<(SessionId, EncodedRecord)>,
    /// Terminated sub-agents of sessions that are not terminated.
    pub agents: Vec<(SessionId, AgentId, EncodedRecord)>,
    /// Snoozed sessions, and until when.
    pub snoozes: Vec<(SessionId, SystemTime)>,
    /// The cost of events after terminations that are in force, with their ids.
    pub disobeyed: Vec<(SessionId, AgentId, VerdictId, Waste)>,
    /// There are no data from before this time. `None`: nothing was restored.
    pub data_since: Option<SystemTime>,
    /// When the previous process last ran. `None`: there was none.
    pub last_run: Option<SystemTime>,
    /// When saved sessions were last removed because the files were too large. `None`:
    /// never.
    pub sessions_removed: Option<SystemTime>,
    /// The last issued verdict.
    pub last_verdict: VerdictId,
}

/// A distinct call in a loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopMember {
    pub tool: String,
    pub target: String,
    pub event_id: String,
    /// `None`: the arguments are not JSON, only hashed, too long or no longer stored.
    pub call_key: Option<CallKey>,
    /// The arguments in which it differs from the loop's other calls, for a person.
    pub args: String,
}

impl LoopMember {
    /// The call, for a person: `read_file src/main.rs`, `get_order(order_id=5)`.
    pub fn label(&self) -> String {
        let Self {
            tool, target, args, ..
        } = self;
        match (target.is_empty(), args.is_empty()) {
            (true, true) => tool.clone(),
            (false, true) => [tool, " ", target].concat(),
            (true, false) => [tool, "(", args, ")"].concat(),
            (false, false) => [tool, " ", target, " (", args, ")"].concat(),
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.tool.len()
            + self.target.len()
            + self.event_id.len()
            + self.args.len()
    }
}

/// How often a detector has matched recently, as a moving average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trend {
    pub ema: f64,
    pub level: Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    Blip,
    Trend,
    Chronic,
}

impl Level {
    pub const ALL: [Self; 3] = [Self::Blip, Self::Trend, Self::Chronic];

    pub fn name(self) -> &'static str {
        match self {
            Self::Blip => "blip",
            Self::Trend => "trend",
            Self::Chronic => "chronic",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    pub count: i32,
    pub period: i32,
    pub similarity: f64,
    pub event_indexes: Vec<i32>,
    pub excerpt: String,
}

/// The cost of a loop since its first event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waste {
    pub events: i64,
    pub tokens: i64,
    /// The part of `tokens` that was read from the model's cache.
    pub cached_tokens: i64,
    pub usd: f64,
}

impl Waste {
    #[inline]
    pub fn new(events: i64, cost: Cost) -> Self {
        Self {
            events,
            tokens: cost.tokens(),
            cached_tokens: cost.cached_input_tokens,
            usd: cost.usd,
        }
    }

    /// The increase since an earlier value.
    pub fn saturating_sub(self, earlier: Self) -> Self {
        Self {
            events: (self.events - earlier.events).max(0),
            tokens: (self.tokens - earlier.tokens).max(0),
            cached_tokens: (self.cached_tokens - earlier.cached_tokens).max(0),
            usd: (self.usd - earlier.usd).max(0.0),
        }
    }
}

impl std::ops::AddAssign for Waste {
    fn add_assign(&mut self, other: Self) {
        self.events = self.events.saturating_add(other.events);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.usd += other.usd;
    }
}
