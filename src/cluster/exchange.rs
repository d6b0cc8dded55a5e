//! What replicas use of Redis. One implementation speaks to Redis, the other is a map in
//! memory for tests.

use thiserror::Error;
use tonic::async_trait;

use crate::domain::{SessionId, VerdictId};

/// Why a command has failed. It never has a password or a session.
#[derive(Clone, Debug, Error)]
pub enum ExchangeError {
    #[error("{0}")]
    Unreachable(String),
    /// Redis has no memory left.
    #[error("{0}")]
    Full(String),
    #[error("{0}")]
    Refused(String),
}

/// The owner of a session before it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousOwner {
    pub epoch: u64,
    /// `-`: no replica, because the session ended or was reset.
    pub name: String,
}

impl PreviousOwner {
    pub const NOBODY: &'static str = "-";

    /// Parses `<epoch> <name>`.
    pub fn parse(text: &str) -> Option<Self> {
        let (epoch, name) = text.split_once(' ')?;
        Some(Self {
            epoch: epoch.parse().ok()?,
            name: name.to_owned(),
        })
    }
}

/// What a session had when it was taken.
#[derive(Clone, Debug, Default)]
pub struct TakeReply {
    /// 0: not taken, because the session is terminated.
    pub epoch: u64,
    pub previous: Option<PreviousOwner>,
    /// The state and the events since, sealed.
    pub list: Vec<Vec<u8>>,
    /// The acts that stand, by their field.
    pub acts: Vec<Vec<u8>>,
}

/// What is saved of a session.
#[derive(Clone, Debug)]
pub enum SaveBody {
    /// The whole state, which replaces all before it.
    State(Vec<u8>),
    /// Events since.
    Records(Vec<Vec<u8>>),
}

#[derive(Clone, Debug)]
pub struct SaveCommand {
    pub session: SessionId,
    /// With which the session was taken.
    pub epoch: u64,
    pub body: SaveBody,
    /// The owner's key expires later too.
    pub extends_owner: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveReply {
    Saved,
    /// The session is another replica's now.
    Fenced,
    Full,
    Failed,
}

/// A termination, reset or snooze as it is stored: its kind, the 32 hexadecimal digits of
/// its id, and the sealed record.
#[derive(Clone, Debug)]
pub struct ActCommand {
    pub session: SessionId,
    /// `s`: of the session; `z`: a snooze; `g:<agent>`: of a sub-agent.
    pub field: String,
    pub id: VerdictId,
    pub value: Vec<u8>,
    pub ttl_millis: u64,
}

/// The kinds of acts, the first byte of their value.
pub const KIND_TERMINATION: u8 = b'T';
pub const KIND_RESET: u8 = b'R';
pub const KIND_SNOOZE: u8 = b'Z';
pub const KIND_AGENT: u8 = b'G';
pub const FIELD_SESSION: &str = "s";
pub const FIELD_SNOOZE: &str = "z";

#[derive(Clone, Debug)]
pub enum ActReply {
    /// It stands now, or stood before.
    Stands,
    /// This act is newer and stands.
    Overruled(Vec<u8>),
}

/// An entry of a stream.
#[derive(Clone, Debug)]
pub struct StreamEntry {
    /// Its place in the stream.
    pub position: String,
    /// The replica that wrote it.
    pub by: String,
    /// Sealed.
    pub value: Vec<u8>,
}

/// The streams that all replicas read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedStream {
    Acts,
    Feed,
}

pub(super) type ExchangeResult<T> = Result<T, ExchangeError>;

#[async_trait]
pub trait Exchange: Send + Sync {
    /// Takes sessions over; one reply each, in order.
    async fn take(&self, sessions: &[SessionId]) -> ExchangeResult<Vec<TakeReply>>;

    /// The same without taking it; the epoch is that of the owner.
    async fn look(&self, session: &SessionId) -> ExchangeResult<TakeReply>;

    /// The owners of sessions.
    async fn owners(&self, sessions: &[SessionId]) -> ExchangeResult<Vec<Option<PreviousOwner>>>;

    /// Saves sessions; one reply each, in order.
    async fn save(&self, commands: &[SaveCommand]) -> ExchangeResult<Vec<SaveReply>>;

    /// Notes that a session has ended.
    async fn end(&self, session: &SessionId) -> ExchangeResult<()>;

    /// Acts on sessions; one reply each, in order. Each that stands is appended to the
    /// stream of acts.
    async fn act(&self, commands: &[ActCommand]) -> ExchangeResult<Vec<ActReply>>;

    /// Appends verdicts to the feed.
    async fn publish(&self, verdicts: &[Vec<u8>]) -> ExchangeResult<()>;

    /// The position of the last entry.
    async fn last_position(&self, stream: SharedStream) -> ExchangeResult<String>;

    /// The entries after a position, oldest first. Waits for one if `wait` is set.
    async fn read(
        &self,
        stream: SharedStream,
        after: &str,
        count: usize,
        wait: bool,
    ) -> ExchangeResult<Vec<StreamEntry>>;

    /// Checks that the server answers and returns what identifies its data.
    async fn ping(&self) -> ExchangeResult<String>;

    /// Makes this replica known for a while.
    async fn beat(&self, description: &str) -> ExchangeResult<()>;

    /// The descriptions of the replicas that are known.
    async fn replicas(&self) -> ExchangeResult<Vec<String>>;

    /// Whether this replica holds the lease of this name, which it asks for.
    async fn hold_lease(&self, name: &str) -> ExchangeResult<bool>;

    async fn cursor(&self, name: &str) -> ExchangeResult<Option<String>>;

    async fn set_cursor(&self, name: &str, value: &str) -> ExchangeResult<()>;
}
