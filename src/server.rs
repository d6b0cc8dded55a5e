//! Everything between the socket and a handler: listeners, TLS, HTTP, admission,
//! fair scheduling, quotas, response queues, timers and blocking work.
//!
//! A call passes through these files in this order: [`listener`] accepts the
//! connection ([`tls`] below it, [`reserve`] above its limit), [`admission`] checks the
//! token and takes the permits of [`quota`] that the table in [`rpc`] asks for
//! ([`rate_limit`] and [`auth_delay`] slow down callers that send too much),
//! [`frame_reader`] reads the messages, [`scheduler`] decides when the call's work runs,
//! [`response_queue`] queues the responses of a stream until the client has read them, and
//! [`retain_body`] keeps the permit until they are sent. [`status`] has the server's own
//! errors.
//!
//! Uses: domain, auth, telemetry.

pub mod activity;
pub mod admission;
pub mod auth_delay;
pub mod blocking;
mod fd_limit;
pub mod frame_reader;
pub mod http;
pub mod idle_timer;
pub mod listener;
pub mod quota;
pub mod rate_limit;
pub mod reserve;
pub mod response_queue;
pub mod retain_body;
pub mod rpc;
pub mod scheduler;
mod socket;
pub mod status;
mod third_party;
pub mod tls;

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use serde::Deserialize;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tonic::{Status, transport::Server};

pub use fd_limit::ConnectionLimits;
pub use socket::{BindError, BoundSocket, ListenAddress, ListeningSocket};
pub use tls::{Tls, TlsError, TlsSettings};

use crate::{
    auth::{Auth, AuthError, Caller},
    domain::clock,
    telemetry::{Metrics, PanicSite},
};
use auth_delay::AuthDelays;
use quota::TenantQuota;
use rate_limit::RateLimits;
use reserve::{RESERVE_AGE_MAX, RESERVE_STREAMS_MAX};
use scheduler::FairScheduler;

/// `[server]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub console_hosts: Vec<String>,
    /// Without a slash at its end. Empty: unknown.
    pub console_url: String,
}

/// The keys of `[limits]` for connections, calls and streams.
#[derive(Clone, Debug, Deserialize)]
pub struct Limits {
    pub connections_max: usize,
    pub http_connections_max: usize,
    pub handshake_secs_max: u64,
    pub streams_max: u32,
    pub drain_secs_max: u64,
    pub message_bytes_max: usize,
    pub unread_bytes_max: usize,
    pub batch_max: usize,
    pub open_streams_max: usize,
    pub calls_max: usize,
    pub call_secs_max: u64,
    pub stream_idle_secs_max: u64,
    pub health_watch_secs_max: u64,
    pub events_per_second_max: u32,
    pub stream_sessions_max: usize,
    pub unread_responses_max: usize,
    pub response_bytes_max: usize,
    pub slow_reader_secs_max: u64,
}

/// The state that admission and all handlers share.
pub struct ServerContext {
    pub auth: Arc<Auth>,
    pub metrics: Arc<Metrics>,
    pub limits: Limits,
    pub scheduler: FairScheduler,
    /// Permits for `limits.open_streams_max` open streams.
    pub streams: TenantQuota,
    pub rate_limits: RateLimits,
    pub auth_delays: Arc<AuthDelays>,
    /// Cancelled when the service drains: open streams end.
    pub draining: CancellationToken,
}

impl ServerContext {
    pub fn new(
        auth: Arc<Auth>,
        metrics: Arc<Metrics>,
        limits: Limits,
        draining: CancellationToken,
    ) -> Self {
        Self {
            streams: TenantQuota::new(limits.open_streams_max, auth.clone()),
            rate_limits: RateLimits::new(limits.events_per_second_max),
            auth_delays: Arc::default(),
            scheduler: FairScheduler::new(clock::cores()),
            auth,
            metrics,
            limits,
            draining,
        }
    }

    /// Runs a stream until it ends or its caller's token is revoked.
    pub async fn run_while_authorized(
        &self,
        caller: &Caller,
        stream: impl Future<Output = Result<(), Status>>,
    ) -> Result<(), Status> {
        tokio::select! {
            ended = stream => ended,
            () = self.auth.wait_until_revoked(caller) => Err(AuthError::UnknownToken.into()),
        }
    }

    /// The status for blocking work that did not finish.
    pub fn blocking_failed(&self, error: &JoinError) -> Status {
        if error.is_panic() {
            self.metrics.count_panic(PanicSite::Call);
            return status::internal();
        }
        // Blocking work is cancelled only when the service shuts down.
        status::draining()
    }
}

/// Flow control. h2 charges every unread frame shorter than 256 bytes with the
/// difference, and closes the connection with all its streams when the sum exceeds
/// half the connection window. While a stream's window is full it is reopened by one
/// message at a time; a message seldom fits the rest, so the client sends it in two
/// frames. Therefore streams × (2 × stream window / message × 256 − stream window)
/// must stay below half the connection window: with the smallest valid message,
/// 64 × (2 × 3,277 × 256 − 32 KiB) is 100 of 128 MiB. At most 64 × 32 KiB of payload
/// are ever unread; a larger connection window would only allow more unread frames.
pub const STREAM_WINDOW_BYTES: u32 = 32 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024 * 1024;
/// A delta without text whose session id has one letter: 5 bytes of gRPC framing, 2
/// around the delta, 3 for the id.
pub const MESSAGE_BYTES_MIN: u32 = 10;
/// The most that h2 charges for the unread messages of one stream.
pub const STREAM_OVERHEAD_BYTES: u32 =
    2 * STREAM_WINDOW_BYTES.div_ceil(MESSAGE_BYTES_MIN) * 256 - STREAM_WINDOW_BYTES;
/// The most that h2 may charge on one connection.
pub const OVERHEAD_BYTES_MAX: u32 = CONNECTION_WINDOW_BYTES / 2;
/// tonic sets "no limit" by default.
const LOCAL_ERROR_RESETS_MAX: usize = 1_024;

/// A connection that sends nothing for `interval` is pinged, and closed if the ping
/// is not answered within `timeout`: otherwise a peer that lost its network would keep
/// its permits.
#[derive(Clone, Copy)]
pub struct Keepalive {
    pub interval: Duration,
    pub timeout: Duration,
}

const KEEPALIVE: Keepalive = Keepalive {
    interval: Duration::from_secs(30),
    timeout: Duration::from_secs(10),
};

/// A gRPC server with the transport settings that hold under load.
pub fn grpc_server(limits: &Limits) -> Server {
    grpc_server_with(limits, KEEPALIVE)
}

/// The same for connections above `limits.connections_max`.
pub fn reserve_server(limits: &Limits) -> Server {
    grpc_server(limits)
        .max_concurrent_streams(RESERVE_STREAMS_MAX.min(limits.streams_max))
        .max_connection_age(RESERVE_AGE_MAX)
}

pub fn grpc_server_with(limits: &Limits, Keepalive { interval, timeout }: Keepalive) -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(limits.streams_max)
        .http2_max_local_error_reset_streams(Some(LOCAL_ERROR_RESETS_MAX))
        .http2_keepalive_interval(Some(interval))
        .http2_keepalive_timeout(Some(timeout))
}
