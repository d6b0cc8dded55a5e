//! Binds the listeners, runs the service, drains it.
//!
//! Uses: domain, auth, engine, store, notify, telemetry, server, api, console, config.

mod maintenance;
mod notifications;
mod open_store;
mod reload;
mod resources;
mod systemd;

use std::{future::Future, io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use axum::Router;
use thiserror::Error;
use tokio::{
    net::TcpListener,
    task::{self, JoinError, JoinSet},
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    api::{self, Api},
    auth::{Auth, TokensError},
    config::Config,
    console,
    domain::clock,
    engine::{Engine, RunMode},
    notify::{Notifier, NotifyError},
    pb::detection_service_server::DetectionServiceServer,
    server::{
        self, BindError, BoundSocket, ConnectionLimits, Limits, ServerContext, Tls, TlsError,
        admission::AdmissionLayer,
        listener::{ConnectionTimeouts, Listener},
    },
    store::{self, Store},
    telemetry::{ListenerKind, Metrics, traces},
};
use maintenance::{enforce_retention, sweep_sessions};
use resources::Resources;

pub use reload::{ConfigReloadError, Reloader};
pub use resources::{check_startup, find_exposed_key};

/// Why the service does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(
        "{0} is not a loopback address, so other machines reach the service, and without \
         [tls] and [auth] they could do all and read along: set both (docs/security.md), \
         listen on 127.0.0.1, or say --insecure"
    )]
    Exposed(&'static str),
    #[error("cannot use the store ([store] dir): {0}")]
    Store(#[from] store::StoreError),
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
    admission: AdmissionLayer<DetectionServiceServer<Api>>,
    is_traced: bool,
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
        let grpc = BoundSocket::bind("server.grpc", config.server.grpc)?;
        let http = BoundSocket::bind("server.http", config.server.http)?;
        let Resources {
            auth,
            tls,
            notifier,
        } = Resources::new(&config)?;
        let (auth, tls) = (Arc::new(auth), tls.map(Arc::new));
        let detectors = config.profiles.detector_names();
        let metrics = Arc::new(Metrics::with_receivers(detectors, notifier.names())?);
        metrics.set_limits(config.engine.sessions_max, config.engine.state_bytes_max);
        let (store, recovered) = open_store::open_and_log(&config).await?;
        let engine = Arc::new(Engine::new(
            config.profiles,
            config.tools,
            config.engine,
            metrics.clone(),
            RunMode::Live,
            store.verdict_sink(),
        ));
        engine.set_tenant_count(auth.tenant_count());
        engine.restore(recovered, clock::now());
        let (grpc, http) = (grpc.listen()?, http.listen()?);
        let draining = CancellationToken::new();
        let limits = config.limits.clone();
        let context = ServerContext::new(auth.clone(), metrics.clone(), limits, draining.clone());
        let api = Api::new(engine.clone(), store.clone(), Arc::new(context));
        let dependencies = console::ConsoleDependencies {
            auth: auth.clone(),
            api: api.clone(),
            engine: engine.clone(),
            store: store.clone(),
            metrics: metrics.clone(),
            draining: draining.clone(),
        };
        let hosts = console::AllowedHosts(config.server.console_hosts);
        Ok(Self {
            grpc,
            http,
            limits: config.limits,
            admission: api.admission(),
            is_traced: config.telemetry.is_on(),
            console: console::routes(dependencies, config.console, hosts),
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
        let last_verdict = self.store.last_verdict_id();
        let (health, health_service) = tonic_health::server::health_reporter();
        set_health(&health, ServingStatus::Serving).await;
        let draining = self.draining.clone();
        let mut server = server::grpc_server(&self.limits);
        if self.is_traced {
            server = server.trace_fn(traces::call_span);
        }
        let handshake_timeout = Duration::from_secs(self.limits.handshake_secs_max);
        let places = ConnectionLimits {
            grpc: self.limits.connections_max,
            http: self.limits.http_connections_max,
        };
        let connection_limits = places.fit_to_file_limit();
        let write_timeout = Duration::from_secs(self.limits.slow_reader_secs_max);
        let make_listener = |listener, side, connections_max, write_timeout| {
            let (tls, handshake) = (self.tls.clone(), handshake_timeout);
            let timeouts = ConnectionTimeouts {
                handshake,
                write: write_timeout,
            };
            Listener::new(
                listener,
                side,
                tls,
                connections_max,
                timeouts,
                self.metrics.clone(),
            )
        };
        let health_service = health_service.max_decoding_message_size(api::PROBE_BYTES_MAX);
        let routes = self.routes.add_service(health_service);
        let routes = server.layer(self.admission).add_routes(routes);
        let grpc = routes.serve_with_incoming_shutdown(
            make_listener(self.grpc, ListenerKind::Grpc, connection_limits.grpc, None)
                .into_stream(),
            draining.clone().cancelled_owned(),
        );
        let http = server::http::serve(
            make_listener(
                self.http,
                ListenerKind::Http,
                connection_limits.http,
                Some(write_timeout),
            ),
            self.console,
            handshake_timeout,
            self.metrics.clone(),
            draining.clone(),
        );

        let mut tasks = ServiceTasks::new();
        tasks.spawn(async move { Ok(grpc.await?) });
        tasks.spawn(async move {
            http.await;
            Ok(())
        });
        tasks.spawn(notifications::run_notifier(
            self.notifier,
            self.store.clone(),
            last_verdict,
            self.metrics.clone(),
            draining.clone(),
        ));
        tasks.spawn(reload::watch_tokens(
            self.auth,
            self.engine.clone(),
            draining.clone(),
        ));
        tasks.spawn(sweep_sessions(self.engine, self.metrics, draining.clone()));
        tasks.spawn(enforce_retention(self.store.clone(), draining.clone()));
        systemd::notify_ready();
        let ended = wait_for_stop(&mut tasks, shutdown).await;
        systemd::notify_stopping();
        set_health(&health, ServingStatus::NotServing).await;
        draining.cancel();
        let deadline = Instant::now() + Duration::from_secs(self.limits.drain_secs_max);
        let drained = drain_tasks(tasks, deadline).await;
        let store = self.store;
        close_store(move || store.close(), deadline).await?;
        ended.and(drained)
    }
}

async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for service in api::SERVICE_NAMES.into_iter().chain([""]) {
        health.set_service_status(service, status).await;
    }
}

/// What runs as long as the service does. Without any of them it is no service.
type ServiceTasks = JoinSet<Result<(), RunError>>;

/// Waits to be asked to stop, or for a part that ends by itself.
async fn wait_for_stop(
    tasks: &mut ServiceTasks,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    tokio::select! {
        () = shutdown => Ok(()),
        Some(ended) = tasks.join_next() => ended?,
    }
}

/// Waits for all parts, but not for ever: with one bidi stream open a graceful
/// shutdown would never end by itself.
async fn drain_tasks(mut tasks: ServiceTasks, deadline: Instant) -> Result<(), RunError> {
    let all = async {
        while let Some(ended) = tasks.join_next().await {
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
async fn close_store(
    close: impl FnOnce() + Send + 'static,
    deadline: Instant,
) -> Result<(), RunError> {
    /// What the disk is given, also where calls took all of the time.
    const CLOSE_TIMEOUT_MIN: Duration = Duration::from_millis(500);
    let deadline = deadline.max(Instant::now() + CLOSE_TIMEOUT_MIN);
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
