//! What was not accepted, or cut short.

use metrics::Counter;

/// Why something was not accepted. A limit has the name of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    InvalidArgument,
    /// A message larger than that.
    MessageBytesMax,
    /// Bytes that are no message.
    Undecodable,
    SessionsMax,
    StateBytesMax,
    AgentsMax,
    Quarantined,
    ConnectionsMax,
    /// The process may open no more files, so that no connection can be taken.
    FileDescriptors,
    HandshakeSecsMax,
    OpenStreamsMax,
    CallsMax,
    CallSecsMax,
    StreamIdleSecsMax,
    SlowReaderSecsMax,
    /// More verdicts came than are held for who watches and does not read.
    WatcherTooSlow,
    /// No token, or one that is not known.
    Unauthenticated,
    /// A token whose role may not.
    PermissionDenied,
    ConsoleWatchersMax,
    /// It was not agreed on how to talk, or the client showed no certificate.
    TlsHandshake,
}

impl Rejection {
    pub const ALL: [Self; 20] = [
        Self::InvalidArgument,
        Self::MessageBytesMax,
        Self::Undecodable,
        Self::SessionsMax,
        Self::StateBytesMax,
        Self::AgentsMax,
        Self::Quarantined,
        Self::ConnectionsMax,
        Self::FileDescriptors,
        Self::HandshakeSecsMax,
        Self::OpenStreamsMax,
        Self::CallsMax,
        Self::CallSecsMax,
        Self::StreamIdleSecsMax,
        Self::SlowReaderSecsMax,
        Self::WatcherTooSlow,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::ConsoleWatchersMax,
        Self::TlsHandshake,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::MessageBytesMax => "message_bytes_max",
            Self::Undecodable => "undecodable",
            Self::SessionsMax => "sessions_max",
            Self::StateBytesMax => "state_bytes_max",
            Self::AgentsMax => "agents_max",
            Self::Quarantined => "quarantined",
            Self::ConnectionsMax => "connections_max",
            Self::FileDescriptors => "file_descriptors",
            Self::HandshakeSecsMax => "handshake_secs_max",
            Self::OpenStreamsMax => "open_streams_max",
            Self::CallsMax => "calls_max",
            Self::CallSecsMax => "call_secs_max",
            Self::StreamIdleSecsMax => "stream_idle_secs_max",
            Self::SlowReaderSecsMax => "slow_reader_secs_max",
            Self::WatcherTooSlow => "watcher_too_slow",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission_denied",
            Self::ConsoleWatchersMax => "console_watchers_max",
            Self::TlsHandshake => "tls_handshake",
        }
    }
}

/// Why a session is forgotten.
#[derive(Clone, Copy, Debug)]
pub enum EvictionReason {
    /// It was idle for `idle_secs_max`.
    Idle,
    /// It was idle, and memory was short.
    Pressure,
    /// It is over, and its tombstone has expired or made room.
    Tombstone,
}

impl EvictionReason {
    pub(super) const NAMES: [&'static str; 3] = ["idle", "pressure", "tombstone"];
}

pub(super) type RejectionCounters = [Counter; Rejection::ALL.len()];

#[expect(
    clippy::disallowed_macros,
    reason = "a part of the one place where metrics are made"
)]
pub(super) fn register() -> RejectionCounters {
    Rejection::ALL.map(|reason| {
        let counter = metrics::counter!("unstuck_rejected_total", "reason" => reason.name());
        counter.absolute(0);
        counter
    })
}
