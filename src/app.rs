//! Binds the listeners, runs the service, drains it.
//!
//! Uses: domain, auth, engine, store, notify, telemetry, api, console, config.

mod files;
mod http;
mod incoming;
mod made;
mod notices;
mod opening;
mod port;
mod reload;
mod supervisor;
mod tls;
mod upkeep;

use std::{future::Future, io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use axum::Router;
use serde::Deserialize;
use thiserror::Error;
use tokio::{
    net::TcpListener,
    task::{self, JoinError, JoinSet},
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tonic::{service::Routes, transport::Server};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    api::{self, Api},
    auth::{Auth, TokensError},
    config::Config,
    console,
    engine::{Clockwork, Engine},
    notify::{Notifier, NotifyError},
    store::{self, Store},
    telemetry::{Metrics, Side, traces},
};
use files::Places;
use incoming::{Door, Patience};
use made::Made;
use port::Port;
use tls::Tls;
use upkeep::{sweep, tidy};

pub use made::{check, exposed};
pub use reload::{ReloadError, Reloader};
pub use tls::{TlsError, TlsSettings};

/// `[server]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub console_hosts: Vec<String>,
}

/// The transport's keys of `[limits]`.
#[derive(Clone, Debug, Deserialize)]
pub struct Limits {
    pub connections_max: usize,
    pub http_connections_max: usize,
    pub handshake_secs_max: u64,
    pub slow_reader_secs_max: u64,
    pub streams_max: u32,
    pub drain_secs_max: u64,
}

/// Flow control. h2 counts what unread frames lack of 256 bytes against half the
/// connection's window and, beyond it, ends the connection with all its streams.
/// While a stream's window is full it is opened a message at a time, and since a
/// message seldom fits what is left, the client sends it in two frames. So
/// streams × (2 × stream window / message × 256 − stream window) must stay below
/// half the connection's window: with the smallest valid message, 64 × (2 × 3,277
/// × 256 − 32 KiB) is 100 of 128 MiB. No more than 64 × 32 KiB of payload are
/// ever unread; a larger connection's window would only let more frames lie.
const STREAM_WINDOW_BYTES: u32 = 32 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024 * 1024;
/// A delta of a session with a name of one letter and no text: 5 bytes of
/// gRPC's, 2 around the delta, 3 for the name.
pub const MESSAGE_BYTES_MIN: u32 = 10;
/// What h2 counts for the unread messages of one stream, at worst.
pub const STREAM_OVERHEAD_BYTES: u32 =
    2 * STREAM_WINDOW_BYTES.div_ceil(MESSAGE_BYTES_MIN) * 256 - STREAM_WINDOW_BYTES;
/// What it may count on one connection.
pub const OVERHEAD_BYTES_MAX: u32 = CONNECTION_WINDOW_BYTES / 2;
/// tonic passes "no limit" on unless told otherwise.
const LOCAL_ERROR_RESETS_MAX: usize = 1_024;
/// A connection on which nothing comes for so long is asked whether anybody is
/// there, and closed when there is no answer: a peer that lost its network says
/// no good-bye, and would hold its places.
const KEEPALIVE: Keepalive = Keepalive {
    interval: Duration::from_secs(30),
    timeout: Duration::from_secs(10),
};
/// Why the service does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot listen on {address} ({key}): {source}")]
    Bind {
        key: &'static str,
        address: SocketAddr,
        source: io::Error,
    },
    #[error(
        "{0} is not a loopback address, so other machines reach the service, and without \
         [tls] and [auth] they could do all and read along: set both (docs/security.md), \
         listen on 127.0.0.1, or say --insecure"
    )]
    Exposed(&'static str),
    #[error("cannot use the store ([store] dir): {0}")]
    Store(#[from] store::Fault),
    #[error("cannot use the tokens ([auth] tokens): {0}")]
    Tokens(#[from] TokensError),
    #[error("cannot use TLS ([tls]): {0}")]
    Tls(#[from] TlsError),
    #[error("cannot make the metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    #[error("invalid `notify`{0}")]
    Notify(#[from] NotifyError),
    #[error("interrupted while the store was opened")]
    Interrupted,
    #[error("cannot make the reflection service: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Why the service stopped by itself.
#[derive(Debug, Error)]
pub enum RunError {
    #[error("the gRPC server failed: {0}")]
    Grpc(#[from] tonic::transport::Error),
    /// What the panic said is not repeated: it may quote an agent.
    #[error("a part of the service panicked")]
    Panicked(#[from] JoinError),
}

/// A service that listens and is ready to run.
pub struct App {
    grpc: TcpListener,
    http: TcpListener,
    limits: Limits,
    guard: api::Guard,
    traced: bool,
    routes: Routes,
    auth: Arc<Auth>,
    console: Router,
    tls: Option<Arc<Tls>>,
    engine: Arc<Engine>,
    store: Arc<Store>,
    notifier: Notifier,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
}

impl App {
    pub async fn bind(config: Config) -> Result<Self, StartError> {
        let grpc = Port::take("server.grpc", config.server.grpc)?;
        let http = Port::take("server.http", config.server.http)?;
        let Made {
            auth,
            tls,
            notifier,
        } = Made::new(&config)?;
        let (auth, tls) = (Arc::new(auth), tls.map(Arc::new));
        let detectors = config.profiles.detectors();
        let metrics = Arc::new(Metrics::with_receivers(detectors, notifier.names())?);
        metrics.limits(config.engine.sessions_max, config.engine.state_bytes_max);
        let (store, standing) = opening::open_store(&config).await?;
        let engine = Arc::new(Engine::new(
            config.profiles,
            config.tools,
            config.engine,
            metrics.clone(),
            Clockwork::Live,
            store.outlet(),
        ));
        engine.share_among(auth.tenants());
        engine.restore(standing, api::now());
        let (grpc, http) = (grpc.open()?, http.open()?);
        let draining = CancellationToken::new();
        let api = Api::new(
            auth.clone(),
            engine.clone(),
            store.clone(),
            metrics.clone(),
            config.api,
            draining.clone(),
        );
        let parts = console::Parts {
            auth: auth.clone(),
            api: api.clone(),
            engine: engine.clone(),
            store: store.clone(),
            metrics: metrics.clone(),
            draining: draining.clone(),
        };
        let hosts = console::Hosts(config.server.console_hosts);
        Ok(Self {
            grpc,
            http,
            limits: config.app,
            guard: api.guard(),
            traced: config.telemetry.is_on(),
            console: console::routes(parts, config.console, hosts),
            routes: api.routes()?,
            auth,
            tls,
            engine,
            store,
            notifier,
            metrics,
            draining,
        })
    }

    pub fn grpc_address(&self) -> io::Result<SocketAddr> {
        self.grpc.local_addr()
    }

    pub fn http_address(&self) -> io::Result<SocketAddr> {
        self.http.local_addr()
    }

    /// Where the store is. `None`: in memory only.
    pub fn store_dir(&self) -> Option<&Path> {
        self.store.dir()
    }

    pub fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// Runs until `shutdown`, then drains: no new calls, open streams end with
    /// a reason, and what is still open after the deadline is dropped.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        // Before anybody is served: what is given from now on is told.
        let told = self.store.last();
        let (health, health_service) = tonic_health::server::health_reporter();
        set_health(&health, ServingStatus::Serving).await;
        let draining = self.draining.clone();
        let mut server = server(&self.limits);
        if self.traced {
            server = server.trace_fn(traces::call);
        }
        let patience = Duration::from_secs(self.limits.handshake_secs_max);
        let places = Places {
            grpc: self.limits.connections_max,
            http: self.limits.http_connections_max,
        };
        let places = places.within_limit();
        let reading = Duration::from_secs(self.limits.slow_reader_secs_max);
        let door = |listener, side, places, reading| {
            let (tls, first_bytes) = (self.tls.clone(), patience);
            let patience = Patience {
                first_bytes,
                reading,
            };
            Door::new(listener, side, tls, places, patience, self.metrics.clone())
        };
        let health_service = health_service.max_decoding_message_size(api::PROBE_BYTES_MAX);
        let routes = self.routes.add_service(health_service);
        let routes = server.layer(self.guard).add_routes(routes);
        let grpc = routes.serve_with_incoming_shutdown(
            door(self.grpc, Side::Grpc, places.grpc, None).into_stream(),
            draining.clone().cancelled_owned(),
        );
        let http = http::serve(
            door(self.http, Side::Http, places.http, Some(reading)),
            self.console,
            patience,
            self.metrics.clone(),
            draining.clone(),
        );

        let mut parts = Parts::new();
        parts.spawn(async move { Ok(grpc.await?) });
        parts.spawn(async move {
            http.await;
            Ok(())
        });
        parts.spawn(notices::tell(
            self.notifier,
            self.store.clone(),
            told,
            self.metrics.clone(),
            draining.clone(),
        ));
        parts.spawn(reload::watch_tokens(
            self.auth,
            self.engine.clone(),
            draining.clone(),
        ));
        parts.spawn(sweep(self.engine, self.metrics, draining.clone()));
        parts.spawn(tidy(self.store.clone(), draining.clone()));
        supervisor::ready();
        let ended = first_end(&mut parts, shutdown).await;
        supervisor::stopping();
        set_health(&health, ServingStatus::NotServing).await;
        draining.cancel();
        let deadline = Instant::now() + Duration::from_secs(self.limits.drain_secs_max);
        let drained = drain(parts, deadline).await;
        let store = self.store;
        finish(move || store.close(), deadline).await?;
        ended.and(drained)
    }
}

/// When a silent connection is asked, and how long it may take to answer.
#[derive(Clone, Copy)]
struct Keepalive {
    interval: Duration,
    timeout: Duration,
}

/// A server with the transport settings that hold under load.
pub fn server(limits: &Limits) -> Server {
    server_asking(limits, KEEPALIVE)
}

fn server_asking(limits: &Limits, Keepalive { interval, timeout }: Keepalive) -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(limits.streams_max)
        .http2_max_local_error_reset_streams(Some(LOCAL_ERROR_RESETS_MAX))
        .http2_keepalive_interval(Some(interval))
        .http2_keepalive_timeout(Some(timeout))
}

async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for service in api::SERVICES.into_iter().chain([""]) {
        health.set_service_status(service, status).await;
    }
}

/// What runs as long as the service does. Without any of them it is no service.
type Parts = JoinSet<Result<(), RunError>>;

/// Waits to be asked to stop, or for a part that ends by itself.
async fn first_end(parts: &mut Parts, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    tokio::select! {
        () = shutdown => Ok(()),
        Some(ended) = parts.join_next() => ended?,
    }
}

/// Waits for all parts, but not for ever: with one bidi stream open a graceful
/// shutdown would never end by itself.
async fn drain(mut parts: Parts, deadline: Instant) -> Result<(), RunError> {
    let all = async {
        while let Some(ended) = parts.join_next().await {
            ended??;
        }
        Ok(())
    };
    time::timeout_at(deadline, all).await.unwrap_or_else(|_| {
        tracing::warn!("calls were still open at the drain deadline");
        Ok(())
    })
}

/// Waits for the disk to take what nobody was answered for yet, but not for ever: a
/// disk may hang. What was answered is on it.
async fn finish(close: impl FnOnce() + Send + 'static, deadline: Instant) -> Result<(), RunError> {
    /// What the disk is given, also where calls took all of the time.
    const LEAST: Duration = Duration::from_millis(500);
    let deadline = deadline.max(Instant::now() + LEAST);
    match time::timeout_at(deadline, task::spawn_blocking(close)).await {
        Ok(closed) => Ok(closed?),
        Err(_) => {
            tracing::warn!("the disk hung at the drain deadline; its last verdicts may be lost");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
