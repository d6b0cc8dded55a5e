//! What clients send: events and streamed text.

use std::{ops::AddAssign, time::SystemTime};

use serde::{Deserialize, Serialize};

use super::{AgentId, SessionId};

/// An event of a session, parsed and validated.
#[derive(Clone, Debug)]
pub struct Event {
    pub session: SessionId,
    /// Empty: the event is never a duplicate.
    pub event_id: String,
    /// `None`: the time of arrival.
    pub time: Option<SystemTime>,
    pub agent: AgentId,
    /// Empty: the event is a round by itself.
    pub round_id: String,
    /// Empty: unknown.
    pub state_hash: String,
    pub cost: Cost,
    pub body: EventBody,
}

#[derive(Clone, Debug)]
pub enum EventBody {
    Call(ToolCall),
    Turn(Turn),
    Marker(Marker),
}

/// A tool invocation that has finished.
#[derive(Clone, Debug, Default)]
pub struct ToolCall {
    pub tool: String,
    /// `None`: derived from the tool table.
    pub operation: Option<Operation>,
    /// Empty: derived from the arguments.
    pub target: String,
    pub args: Args,
    /// `None`: unknown.
    pub outcome: Option<Outcome>,
    /// Empty: none was sent.
    pub error: String,
    /// `None`: unknown, which differs from an empty result.
    pub result: Option<String>,
    /// If not empty, it replaces the result.
    pub result_hash: String,
    /// Empty: unknown.
    pub content_hash: String,
}

/// A call's arguments. Unknown arguments are equal to nothing, not even to each
/// other.
#[derive(Clone, Debug, Default)]
pub enum Args {
    #[default]
    Unknown,
    /// JSON or any other text.
    Text(String),
    /// A fingerprint that the caller computed.
    Hash(String),
}

impl Args {
    /// The bytes that were sent.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Hash(text) => text.len(),
            Self::Unknown => 0,
        }
    }

    /// The arguments as they were sent; empty if they were not, or only as a hash.
    pub fn as_text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Hash(_) | Self::Unknown => "",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    Read,
    Write,
    Edit,
    Execute,
    Search,
    Other,
}

impl Operation {
    /// Reads or searches: the model loses its result when the context is compacted.
    #[inline]
    pub fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::Search)
    }

    /// The verb in a pattern for a person: "read src/main.rs 3 times".
    pub fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "wrote",
            Self::Edit => "edited",
            Self::Execute => "ran",
            Self::Search => "looked up",
            Self::Other => "called",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Error,
    Blocked,
}

/// A finished message.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Empty: unnamed.
    pub turn_id: String,
    pub role: Role,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Agent,
    User,
    System,
}

#[derive(Clone, Copy, Debug)]
pub struct Marker {
    pub kind: MarkerKind,
    /// 0: unknown.
    pub context_tokens: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerKind {
    Compaction,
    NewRun,
}

/// A piece of text, streamed while the model writes it.
#[derive(Clone, Debug)]
pub struct Delta {
    pub session: SessionId,
    pub agent: AgentId,
    /// Empty: the agent's only unnamed text.
    pub turn_id: String,
    pub channel: Channel,
    pub text: String,
    pub end_of_turn: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    Visible,
    Reasoning,
}

/// Tokens and money that events have cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// The part of the input tokens that was read from the model's cache.
    pub cached_input_tokens: i64,
    pub usd: f64,
}

impl Cost {
    #[inline]
    pub fn tokens(&self) -> i64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_input_tokens = self
            .cached_input_tokens
            .saturating_add(other.cached_input_tokens);
        self.usd += other.usd;
    }
}
