use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Action, AgentId, Cost, Labels, LoopId, SessionId, VerdictId};

/// The detector's name in verdicts that record what an operator did.
pub const OPERATOR: &str = "operator";

/// What Unstuck says about an event. Immutable once given, so it is shared.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub id: VerdictId,
    pub session: SessionId,
    pub agent: AgentId,
    pub time: SystemTime,
    /// `None`: an operator acted, or a text was being written; there was no event.
    pub event_index: Option<i32>,
    /// `None`: the record of an act that asks for nothing, such as a reset.
    pub action: Option<Action>,
    pub detector: Arc<str>,
    pub other_detectors: Vec<Arc<str>>,
    pub pattern: String,
    pub reason: String,
    pub confidence: f64,
    pub correction: String,
    /// `None`: no loop, an operator acted.
    pub loop_id: Option<LoopId>,
    pub members: Vec<LoopMember>,
    pub trend: Option<Trend>,
    pub evidence: Evidence,
    pub wasted: Waste,
    pub retry_after: Option<Duration>,
    /// It was read from the disk. One that was given since is asked for by id.
    pub durable: bool,
    pub shadow: bool,
    /// Who acted; empty where a detector did.
    pub operator: String,
}

impl Verdict {
    /// What a broker is to do now: nothing in shadow mode.
    pub fn effective_action(&self) -> Option<Action> {
        self.action.filter(|_| !self.shadow)
    }

    /// What it takes in memory.
    pub fn memory_bytes(&self) -> usize {
        let Self {
            other_detectors: also,
            pattern,
            reason,
            correction,
            members,
            evidence,
            operator,
            ..
        } = self;
        let member = |member: &LoopMember| {
            size_of::<LoopMember>()
                + member.tool.len()
                + member.target.len()
                + member.event_id.len()
        };
        size_of::<Self>()
            + also.len() * size_of::<Arc<str>>()
            + [pattern, reason, correction, operator, &evidence.excerpt]
                .map(String::len)
                .iter()
                .sum::<usize>()
            + evidence.event_indexes.len() * size_of::<i32>()
            + members.iter().map(member).sum::<usize>()
    }

    /// It ends its session or sub-agent for good.
    pub fn terminates(&self) -> bool {
        self.effective_action() == Some(Action::Terminate)
    }
}

/// A verdict that was given, with what watchers filter by and what outlives the
/// session.
#[derive(Clone, Debug)]
pub struct VerdictRecord {
    pub verdict: Arc<Verdict>,
    pub labels: Arc<Labels>,
    /// The profile that the session is watched with.
    pub profile: Arc<str>,
    pub effect: Effect,
}

/// What a verdict changes for good, so that it must outlive the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is only said.
    None,
    /// The session or sub-agent is over.
    Terminated,
    /// The session may begin anew.
    Reset,
    /// Its verdicts are `shadow` until then.
    Snoozed(SystemTime),
}

/// Takes verdicts as they are given, in the order of their ids. Called with
/// locks held, so it must not wait.
pub type VerdictSink = Box<dyn Fn(VerdictRecord) + Send + Sync>;

/// A termination as it is kept on disk: small, and opened when it is asked for.
/// There may be a million of them.
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

/// What held when the process ended, and holds again.
#[derive(Debug, Default)]
pub struct RecoveredState {
    /// Sessions that are over.
    pub sessions: Vec<(SessionId, EncodedRecord)>,
    /// Sub-agents that are over, of sessions that are not.
    pub agents: Vec<(SessionId, AgentId, EncodedRecord)>,
    /// Until when a session's verdicts are `shadow`.
    pub snoozes: Vec<(SessionId, SystemTime)>,
    /// The last verdict that was given.
    pub last_verdict: VerdictId,
}

/// A distinct call in a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopMember {
    pub tool: String,
    pub target: String,
    pub event_id: String,
}

/// How a detector has been finding lately.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    pub ema: f64,
    pub level: Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    pub count: i32,
    pub period: i32,
    pub similarity: f64,
    pub event_indexes: Vec<i32>,
    pub excerpt: String,
}

/// What a loop has cost since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waste {
    pub events: i64,
    pub tokens: i64,
    pub usd: f64,
}

impl Waste {
    #[inline]
    pub fn new(events: i64, cost: Cost) -> Self {
        Self {
            events,
            tokens: cost.tokens(),
            usd: cost.usd,
        }
    }

    /// What came on top of an earlier reading.
    pub fn saturating_sub(self, earlier: Self) -> Self {
        Self {
            events: (self.events - earlier.events).max(0),
            tokens: (self.tokens - earlier.tokens).max(0),
            usd: (self.usd - earlier.usd).max(0.0),
        }
    }
}

impl std::ops::AddAssign for Waste {
    fn add_assign(&mut self, other: Self) {
        self.events = self.events.saturating_add(other.events);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.usd += other.usd;
    }
}
