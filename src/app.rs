//! The running service: binds the ports, opens the store, serves, and drains on
//! shutdown.
//!
//! Uses: domain, auth, secret, engine, store, cluster, notify, telemetry, server, api, console, hooks, config.

mod http_routes;
mod maintenance;
mod notifications;
mod open_store;
mod reload;
mod resources;
mod session_saver;
mod shared_sessions;
mod systemd;

use std::{future::Future, io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use axum::Router;
use futures_util::{FutureExt, TryFutureExt};
use thiserror::Error;
use tokio::{
    sync::mpsc,
    task::{self, JoinError, JoinSet},
    time::{self, Instant},
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{service::Routes, transport::Server};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    api::{self, Api},
    auth::{Auth, TokensError},
    cluster::{self, Cluster},
    config::Config,
    console,
    domain::clock,
    engine::Engine,
    hooks,
    notify::{Notifier, NotifyError, WebhookKeys},
    pb::detection_service_server::DetectionServiceServer,
    server::{
        self, BindError, BoundSocket, ConnectionLimits, Limits, ListenAddress, ListeningSocket,
        ServerContext, Tls, TlsError,
        activity::Activity,
        admission::AdmissionLayer,
        auth_delay::AuthDelays,
        listener::{Connection, ConnectionTimeouts, Listener},
        reserve::{RESERVE_CONNECTIONS_MAX, Reserve, ReserveLayer},
        tls::MaybeTlsStream,
    },
    store::{self, Store},
    telemetry::{ListenerKind, Metrics, traces},
};
use http_routes::http_routes;
use maintenance::maintain;
use resources::Resources;
use session_saver::SessionSaver;

pub use reload::{ConfigReloadError, Reloader};
pub use resources::{check_startup, find_exposed_key};

/// Why the service does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(
        "{0} is not a loopback address: without [tls] and [auth] anyone who can connect has \
         full access, and the traffic is not encrypted; set both (docs/security.md), listen \
         on 127.0.0.1, or pass --insecure"
    )]
    Exposed(&'static str),
    #[error("cannot use the store ([store] dir): {0}")]
    Store(#[from] store::StoreError),
    #[error("cannot use the tokens ([auth] tokens): {0}")]
    Tokens(#[from] TokensError),
    #[error("cannot use TLS ([tls]): {0}")]
    Tls(#[from] TlsError),
    #[error("cannot create the metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    #[error("invalid `notify`{0}")]
    Notify(#[from] NotifyError),
    #[error("cannot join the cluster ([cluster]): {0}")]
    Cluster(#[from] cluster::JoinError),
    #[error("interrupted while opening the store")]
    Interrupted,
    #[error("cannot create the reflection service: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Why the service stopped without being asked to.
#[derive(Debug, Error)]
pub enum RunError {
    #[error("the gRPC server failed: {0}")]
    Grpc(#[from] tonic::transport::Error),
    /// The message of the panic is left out, because it may quote an agent.
    #[error("a task of the service panicked")]
    Panicked(#[from] JoinError),
}

/// The addresses of a service.
#[derive(Clone)]
pub struct ListenAddresses {
    pub grpc: ListenAddress,
    pub http: ListenAddress,
}

/// A service that listens on its ports and is ready to run.
pub struct App {
    grpc: ListeningSocket,
    http: ListeningSocket,
    activity: Arc<Activity>,
    limits: Limits,
    auth_delays: Arc<AuthDelays>,
    admission: AdmissionLayer<DetectionServiceServer<Api>>,
    is_traced: bool,
    routes: Routes,
    auth: Arc<Auth>,
    console: Router,
    tls: Option<Arc<Tls>>,
    engine: Arc<Engine>,
    store: Arc<Store>,
    saver: SessionSaver,
    cluster: Option<Arc<Cluster>>,
    notifier: Notifier,
    webhook_keys: Arc<WebhookKeys>,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
}

impl App {
    /// Binds the ports, opens the store and restores the state in it. Connections are
    /// refused until that is done.
    pub async fn bind(config: Config) -> Result<Self, StartError> {
        let addresses = ListenAddresses {
            grpc: ListenAddress::Tcp(config.server.grpc),
            http: ListenAddress::Tcp(config.server.http),
        };
        Self::bind_at(addresses, config).await
    }

    /// The same at other addresses than the configured ones.
    pub async fn bind_at(addresses: ListenAddresses, config: Config) -> Result<Self, StartError> {
        // Bind both ports first: a port in use is reported before the store is opened.
        let grpc = BoundSocket::bind("server.grpc", addresses.grpc)?;
        let http = BoundSocket::bind("server.http", addresses.http)?;

        // Load what the configuration refers to, and create the metrics.
        let resources = Resources::new(&config)?;
        let (auth, tls) = (Arc::new(resources.auth), resources.tls.map(Arc::new));
        let notifier = resources.notifier;
        let webhook_keys = Arc::new(notifier.webhook_keys());
        let metrics = Arc::new(create_metrics(&config, &notifier)?);

        // Open the store and restore its state into a new engine.
        let (store, recovered) = open_store::open_and_log(&config).await?;
        let secret = session_saver::load_secret(&config.store);
        // Replicas must compute the same signatures.
        let shared_secret = shared_sessions::load_secret(&config.cluster)?;
        let engine = Arc::new(Engine::new(
            config.profiles,
            config.tools,
            config.engine,
            metrics.clone(),
            session_saver::run_mode(shared_secret.as_ref().or(secret.as_ref())),
            store.verdict_sink(),
        ));
        engine.set_tenant_count(auth.tenant_count());
        engine.restore(recovered, store.expiry_clock().now(), clock::now());
        let saver = SessionSaver::new(
            engine.clone(),
            store.clone(),
            secret.as_ref(),
            &config.store,
        );
        saver.restore().await;
        let parts = (&engine, &store, &metrics);
        let cluster = shared_sessions::join(config.cluster, shared_secret, parts).await?;

        // Listen: from here on, terminations from before a restart are in force.
        let (grpc, http) = (grpc.listen()?, http.listen()?);

        // Build the gRPC services and the console.
        let draining = CancellationToken::new();
        let limits = config.limits.clone();
        let context = ServerContext::new(auth.clone(), metrics.clone(), limits, draining.clone());
        let context = Arc::new(context);
        let api =
            Api::new(engine.clone(), store.clone(), context.clone()).with_cluster(cluster.clone());
        let dependencies = console::ConsoleDependencies {
            auth: auth.clone(),
            api: api.clone(),
            engine: engine.clone(),
            store: store.clone(),
            metrics: metrics.clone(),
            draining: draining.clone(),
        };

        // All parts; `run` starts them.
        let hosts = console::AllowedHosts(config.server.console_hosts);
        Ok(Self {
            grpc,
            http,
            activity: Arc::default(),
            limits: config.limits,
            auth_delays: context.auth_delays.clone(),
            admission: api.admission(),
            is_traced: config.telemetry.is_on(),
            console: http_routes(dependencies, context, config.console, config.hooks, hosts),
            routes: api.routes()?,
            auth,
            tls,
            engine,
            store,
            saver,
            cluster,
            notifier,
            webhook_keys,
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

    /// The directory of the store. `None`: in memory only.
    pub fn store_dir(&self) -> Option<&Path> {
        self.store.dir()
    }

    /// The open connections.
    pub fn activity(&self) -> Arc<Activity> {
        self.activity.clone()
    }

    pub fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// Runs until `shutdown` completes, then drains: new calls are refused, open streams
    /// end with a reason, and calls that are still open at the deadline are dropped.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        // Read before serving starts: notifications begin after this verdict.
        let store = self.store.clone();
        let last_verdict = store.last_verdict_id();
        self.notifier.save_first_cursors(&store, last_verdict).await;
        let (health, health_service) = tonic_health::server::health_reporter();
        set_health(&health, ServingStatus::Serving).await;
        let draining = self.draining.clone();

        // Build the servers: gRPC, gRPC above the limit of connections, HTTP.
        let sockets = Sockets {
            grpc: self.grpc,
            http: self.http,
            activity: self.activity,
        };
        let listeners = limit_connections(sockets, self.tls, &self.limits, &self.metrics);
        let grpc_server = trace_calls(server::grpc_server(&self.limits), self.is_traced);
        let reserve_server = trace_calls(server::reserve_server(&self.limits), self.is_traced);
        let health_service = health_service.max_decoding_message_size(api::PROBE_BYTES_MAX);
        let routes = self.routes.add_service(health_service);
        // Each stops accepting when the service drains.
        let grpc = grpc_server
            .layer(self.admission.clone())
            .add_routes(routes.clone())
            .serve_with_incoming_shutdown(
                listeners.grpc.into_stream(),
                draining.clone().cancelled_owned(),
            );
        let reserve = reserve_server
            .layer(listeners.reserve_layer)
            .layer(self.admission)
            .add_routes(routes)
            .serve_with_incoming_shutdown(
                ReceiverStream::new(listeners.reserve).map(io::Result::Ok),
                draining.clone().cancelled_owned(),
            );
        let http = server::http::serve(
            listeners.http,
            self.console,
            Duration::from_secs(self.limits.handshake_secs_max),
            self.metrics.clone(),
            self.auth_delays,
            draining.clone(),
        );

        // Start the servers and the background tasks.
        let mut tasks = ServiceTasks::new();
        tasks.spawn(grpc.err_into());
        tasks.spawn(reserve.err_into());
        tasks.spawn(http.map(Ok));
        // The background tasks: webhooks, token files, expiry, retention, saved sessions.
        tasks.spawn(notifications::run_notifier(
            self.notifier,
            (store.clone(), self.cluster.clone()),
            last_verdict,
            self.metrics.clone(),
            draining.clone(),
        ));
        let (auth, engine) = (self.auth, self.engine.clone());
        tasks.spawn(reload::watch_tokens(auth, engine, draining.clone()));
        let engine = self.engine;
        maintain(&mut tasks, engine, self.metrics, &store, &draining);
        tasks.spawn(self.saver.clone().save_while_running(draining.clone()));
        // Saved sessions are awaited while the service drains, so it stops after that.
        let sharing = self.cluster.clone().map(|it| task::spawn(it.run()));

        // Serve until shutdown, or until a task ends.
        systemd::notify_ready();
        let ended = wait_for_stop(&mut tasks, shutdown).await;

        // Drain, then save the sessions and write the rest of the log.
        systemd::notify_stopping();
        set_health(&health, ServingStatus::NotServing).await;
        draining.cancel();
        let deadline = Instant::now() + Duration::from_secs(self.limits.drain_secs_max);
        let drained = drain_tasks(tasks, deadline).await;
        shared_sessions::leave(self.cluster, sharing, deadline).await?;
        self.saver.save_at_stop(deadline).await;
        close_and_log(store, deadline).await?;
        ended.and(drained)
    }
}

/// Writes the rest of the log and logs its head.
async fn close_and_log(store: Arc<Store>, deadline: Instant) -> Result<(), RunError> {
    let closing = store.clone();
    close_store(move || closing.close(), deadline).await?;
    maintenance::log_head(&store);
    Ok(())
}

fn create_metrics(config: &Config, notifier: &Notifier) -> Result<Metrics, StartError> {
    let detectors = config.profiles.detector_names();
    let metrics = Metrics::with_names(detectors, notifier.names(), hooks::metric_names())?;
    metrics.set_limits(config.engine.sessions_max, config.engine.state_bytes_max);
    Ok(metrics)
}

fn trace_calls(server: Server, is_traced: bool) -> Server {
    if is_traced {
        server.trace_fn(traces::call_span)
    } else {
        server
    }
}

/// The sockets of the service, and the count of their connections.
struct Sockets {
    grpc: ListeningSocket,
    http: ListeningSocket,
    activity: Arc<Activity>,
}

/// The listeners, with the limits that fit the limit on open files.
struct Listeners {
    grpc: Listener,
    reserve: mpsc::Receiver<Connection<MaybeTlsStream>>,
    http: Listener,
    reserve_layer: ReserveLayer,
}

/// Wraps both sockets in listeners that limit the number and the timeouts of connections.
fn limit_connections(
    sockets: Sockets,
    tls: Option<Arc<Tls>>,
    limits: &Limits,
    metrics: &Arc<Metrics>,
) -> Listeners {
    let Sockets {
        grpc,
        http,
        activity,
    } = sockets;
    // Divide the open files that the process may have.
    let connections_max = ConnectionLimits {
        grpc: limits.connections_max,
        reserve: RESERVE_CONNECTIONS_MAX,
        http: limits.http_connections_max,
    }
    .fit_to_file_limit();
    let ConnectionLimits {
        grpc: grpc_max,
        reserve: reserve_max,
        http: http_max,
    } = connections_max;
    metrics.set_connections_max(ListenerKind::Grpc, grpc_max);
    metrics.set_connections_max(ListenerKind::GrpcReserve, reserve_max);
    metrics.set_connections_max(ListenerKind::Http, http_max);
    // Set the timeouts.
    let handshake = Duration::from_secs(limits.handshake_secs_max);
    // HTTP/2 detects a dead client with pings.
    let grpc_timeouts = ConnectionTimeouts {
        handshake,
        write: None,
    };
    let http_timeouts = ConnectionTimeouts {
        handshake,
        write: Some(Duration::from_secs(limits.slow_reader_secs_max)),
    };
    // Connections above the limit go to the reserve.
    let (reserve, reserve_connections) = Reserve::new(reserve_max, metrics.clone());
    Listeners {
        grpc: Listener::new(
            grpc,
            ListenerKind::Grpc,
            tls.clone(),
            grpc_max,
            grpc_timeouts,
            metrics.clone(),
        )
        .with_reserve(reserve)
        .with_activity(activity.clone()),
        reserve: reserve_connections,
        http: Listener::new(
            http,
            ListenerKind::Http,
            tls,
            http_max,
            http_timeouts,
            metrics.clone(),
        )
        .with_activity(activity),
        reserve_layer: ReserveLayer {
            connections_max: grpc_max,
            metrics: metrics.clone(),
        },
    }
}

async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for service in api::SERVICE_NAMES.into_iter().chain([""]) {
        health.set_service_status(service, status).await;
    }
}

/// The tasks of the service. Each runs until the service drains; the service stops if
/// one of them ends before.
type ServiceTasks = JoinSet<Result<(), RunError>>;

/// Waits for `shutdown`, or for a task that ends before.
async fn wait_for_stop(
    tasks: &mut ServiceTasks,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    tokio::select! {
        () = shutdown => Ok(()),
        Some(ended) = tasks.join_next() => ended?,
    }
}

/// Waits for all tasks until the deadline: with a bidirectional stream open, a graceful
/// shutdown would never end.
async fn drain_tasks(mut tasks: ServiceTasks, deadline: Instant) -> Result<(), RunError> {
    let all_ended = async {
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    };
    time::timeout_at(deadline, all_ended)
        .await
        .unwrap_or_else(|_| {
            tracing::warn!("calls were still open at the drain deadline");
            Ok(())
        })
}

/// Writes the queued verdicts to disk, until the deadline because a disk may hang.
/// Verdicts that have been sent in a response are already on disk.
async fn close_store(
    close: impl FnOnce() + Send + 'static,
    deadline: Instant,
) -> Result<(), RunError> {
    /// The time for the disk if the calls have used all of the drain time.
    const CLOSE_TIMEOUT_MIN: Duration = Duration::from_millis(500);
    let deadline = deadline.max(Instant::now() + CLOSE_TIMEOUT_MIN);
    match time::timeout_at(deadline, task::spawn_blocking(close)).await {
        Ok(closed) => Ok(closed?),
        Err(_) => {
            tracing::warn!(
                "the disk did not respond before the drain deadline; the last verdicts may be lost"
            );
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
