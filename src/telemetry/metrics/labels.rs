//! The closed sets of label values. A variant and its label are declared together.

/// Declares an enum with `ALL`, its variants in order, and `name`, the label value.
/// A variant is also the index of its series in an array made from `ALL`.
macro_rules! labels {
    ($($(#[$attribute:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $variant:ident => $label:literal,)+
    })+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)+
                }
            }
        }
    )+};
}

labels! {
    /// The kind of an accepted event.
    pub enum EventKind {
        ToolCall => "tool_call",
        /// A call that a guard refused.
        RefusedCall => "refused_call",
        Turn => "turn",
        Marker => "marker",
    }

    /// Why something was rejected. A limit has the name of its key.
    pub enum Rejection {
        InvalidArgument => "invalid_argument",
        /// A message is larger than the limit.
        MessageBytesMax => "message_bytes_max",
        /// The bytes cannot be decoded as a message.
        Undecodable => "undecodable",
        /// Too many bytes of messages that have arrived in part.
        UnreadBytesMax => "unread_bytes_max",
        SessionsMax => "sessions_max",
        StateBytesMax => "state_bytes_max",
        AgentsMax => "agents_max",
        Quarantined => "quarantined",
        ConnectionsMax => "connections_max",
        /// The process may open no more files, so no connection can be accepted.
        FileDescriptors => "file_descriptors",
        HandshakeSecsMax => "handshake_secs_max",
        OpenStreamsMax => "open_streams_max",
        CallsMax => "calls_max",
        CallSecsMax => "call_secs_max",
        StreamIdleSecsMax => "stream_idle_secs_max",
        /// A health watch beyond the share of its address, or of all.
        HealthWatchesMax => "health_watches_max",
        EventsPerSecondMax => "events_per_second_max",
        SlowReaderSecsMax => "slow_reader_secs_max",
        /// A watcher did not read, and more verdicts came than are buffered for it.
        WatcherTooSlow => "watcher_too_slow",
        /// The token is missing or unknown.
        Unauthenticated => "unauthenticated",
        /// The role of the token does not allow the call.
        PermissionDenied => "permission_denied",
        ConsoleWatchersMax => "console_watchers_max",
        /// The client spoke plain text to a TLS port.
        TlsPlainText => "tls_plain_text",
        /// The client does not trust the authority of our certificate, or we do not trust its.
        TlsUnknownCa => "tls_unknown_ca",
        /// The TLS handshake failed in another way, or the client sent no certificate.
        TlsHandshake => "tls_handshake",
    }

    /// What the reply to an agent's hook does.
    pub enum HookReplyKind {
        /// The agent goes on.
        None => "none",
        /// The person or the agent gets a text.
        Notified => "notified",
        /// A person is asked about the call.
        Asked => "asked",
        /// The call is refused.
        Refused => "refused",
        /// The run ends.
        Stopped => "stopped",
    }

    /// Why a session or its tombstone is evicted.
    pub enum EvictionReason {
        /// The session was idle for `idle_secs_max`.
        Idle => "idle",
        /// The session was idle for less, and memory was short.
        Pressure => "pressure",
        /// The tombstone expired, or was evicted to make room.
        Tombstone => "tombstone",
    }

    /// What skips a step on an input that causes too much work.
    pub enum WorkPart {
        /// The search for repetitions in a text.
        Repetition => "repetition",
        /// The operator's rules, on an event.
        Rules => "rules",
    }

    /// What is evicted from a bounded collection of a live session or stream.
    pub enum EntryKind {
        Path => "path",
        Command => "command",
        Loop => "loop",
        /// A session whose termination is no longer pushed to a stream.
        StreamSession => "stream_session",
    }

    /// An rpc whose stream stays open.
    pub enum StreamRpc {
        StreamEvents => "StreamEvents",
        StreamDeltas => "StreamDeltas",
        WatchVerdicts => "WatchVerdicts",
        /// `Watch` of `grpc.health.v1`.
        HealthWatch => "Watch",
        ServerReflectionInfo => "ServerReflectionInfo",
    }

    /// The listener that accepted a connection.
    pub enum ListenerKind {
        Grpc => "grpc",
        /// Of the gRPC listener, above its limit.
        GrpcReserve => "grpc_reserve",
        Http => "http",
    }

    /// Where a panic was contained.
    pub enum PanicSite {
        /// In a session, which is quarantined.
        Session => "session",
        /// In a stream's task, which ends with INTERNAL.
        Stream => "stream",
        /// In any other call, which is answered with INTERNAL.
        Call => "call",
    }

    /// The result of a configuration reload.
    pub enum ConfigReloadOutcome {
        Applied => "applied",
        /// The new configuration is invalid; the old one stays in use.
        Refused => "refused",
    }

    /// What is counted of a cluster. Each has a metric of its own.
    pub enum ClusterCount {
        /// A session was taken or begun.
        Take => "unstuck_cluster_takes_total",
        /// Of these: from another replica.
        Move => "unstuck_cluster_moves_total",
        /// A save was refused: another replica has the session.
        Fenced => "unstuck_cluster_fenced_total",
        /// An event was answered from a copy that could not be saved.
        Conflict => "unstuck_cluster_conflicts_total",
        /// An answer left before its sessions were saved.
        Late => "unstuck_cluster_late_total",
        SavedRecords => "unstuck_cluster_saved_records_total",
        SavedState => "unstuck_cluster_saved_states_total",
        /// A command failed.
        Error => "unstuck_cluster_errors_total",
        /// A session was too large to be saved.
        Oversized => "unstuck_cluster_oversized_total",
        /// Something in Redis could not be read.
        Unreadable => "unstuck_cluster_unreadable_total",
        ReplayVerdict => "unstuck_cluster_replay_verdicts_total",
        SentAct => "unstuck_cluster_acts_sent_total",
        AdoptedAct => "unstuck_cluster_acts_adopted_total",
    }

    /// The final result of a notification.
    pub enum NotificationOutcome {
        Delivered => "delivered",
        Refused => "refused",
        Expired => "expired",
    }
}
