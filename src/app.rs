//! Binds the listeners, runs the service, drains it.
//!
//! Uses: detect (its names), engine, telemetry, api, console, config.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use serde::Deserialize;
use thiserror::Error;
use tokio::{net::TcpListener, task::JoinSet, time};
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{Server, server::TcpIncoming},
};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    api::{self, Api},
    config::Config,
    console, detect,
    engine::{Clockwork, Engine},
    telemetry::Metrics,
};

/// `[server]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
}

/// The transport's keys of `[limits]`.
#[derive(Clone, Debug, Deserialize)]
pub struct Limits {
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
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle sessions are looked for every second, a slice at a time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const SWEEP_SESSIONS_MAX: usize = 20_000;

/// Why the service does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot listen on {address} ({key}): {source}")]
    Bind {
        key: &'static str,
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot make the metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    #[error("cannot make the reflection service: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Why the service stopped by itself.
#[derive(Debug, Error)]
pub enum RunError {
    #[error("the gRPC server failed: {0}")]
    Grpc(#[from] tonic::transport::Error),
    #[error("the HTTP server failed: {0}")]
    Http(#[from] io::Error),
}

/// A service that listens and is ready to run.
pub struct App {
    grpc: TcpListener,
    http: TcpListener,
    limits: Limits,
    routes: Routes,
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
}

impl App {
    pub async fn bind(config: Config) -> Result<Self, StartError> {
        let grpc = listen("server.grpc", config.server.grpc).await?;
        let http = listen("server.http", config.server.http).await?;
        let metrics = Arc::new(Metrics::new(detect::NAMES.iter().copied())?);
        let engine = Arc::new(Engine::new(
            config.profiles,
            config.tools,
            config.engine,
            metrics.clone(),
            Clockwork::Live,
        ));
        let draining = CancellationToken::new();
        let api = Api::new(
            engine.clone(),
            metrics.clone(),
            config.api,
            draining.clone(),
        );
        Ok(Self {
            grpc,
            http,
            limits: config.app,
            routes: api.routes()?,
            engine,
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

    /// Runs until `shutdown`, then drains: no new calls, open streams end with
    /// a reason, and what is still open after the deadline is dropped.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let (health, health_service) = tonic_health::server::health_reporter();
        set_health(&health, ServingStatus::Serving).await;
        let draining = self.draining.clone();
        let grpc = server(&self.limits)
            .add_routes(self.routes.add_service(health_service))
            .serve_with_incoming_shutdown(
                TcpIncoming::from(self.grpc).with_nodelay(Some(true)),
                draining.clone().cancelled_owned(),
            );
        let http = axum::serve(
            self.http,
            console::routes(self.metrics.clone(), draining.clone()),
        )
        .with_graceful_shutdown(draining.clone().cancelled_owned());

        let mut servers: JoinSet<Result<(), RunError>> = JoinSet::new();
        servers.spawn(async move { Ok(grpc.await?) });
        servers.spawn(async move { Ok(http.await?) });
        let sweeper = tokio::spawn(sweep(self.engine, self.metrics));
        let ended = tokio::select! {
            () = shutdown => None,
            ended = servers.join_next() => ended,
        };
        sweeper.abort();
        set_health(&health, ServingStatus::NotServing).await;
        draining.cancel();
        if let Some(Ok(result)) = ended {
            result?;
        }
        drain(servers, Duration::from_secs(self.limits.drain_secs_max)).await
    }
}

/// A server with the transport settings that hold under load.
pub fn server(limits: &Limits) -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(limits.streams_max)
        .http2_max_local_error_reset_streams(Some(LOCAL_ERROR_RESETS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}

async fn listen(key: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| StartError::Bind {
        key,
        address,
        source,
    })
}

async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for service in api::SERVICES.into_iter().chain([""]) {
        health.set_service_status(service, status).await;
    }
}

async fn sweep(engine: Arc<Engine>, metrics: Arc<Metrics>) {
    let mut ticks = time::interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        engine.sweep(api::now(), SWEEP_SESSIONS_MAX);
        metrics.tidy();
    }
}

/// Waits for the servers, but not for ever: with one bidi stream open a graceful
/// shutdown would never end by itself.
async fn drain(
    mut servers: JoinSet<Result<(), RunError>>,
    deadline: Duration,
) -> Result<(), RunError> {
    let all = async {
        while let Some(ended) = servers.join_next().await {
            if let Ok(result) = ended {
                result?;
            }
        }
        Ok(())
    };
    time::timeout(deadline, all).await.unwrap_or_else(|_| {
        tracing::warn!(
            secs = deadline.as_secs(),
            "calls were still open at the drain deadline"
        );
        Ok(())
    })
}
