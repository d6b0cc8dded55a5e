//! `unstuck serve`: runs the service until SIGINT or SIGTERM, and reloads the
//! configuration on SIGHUP.

use std::{
    fs, future,
    io::{self, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time,
};
use tracing_appender::non_blocking::ErrorCounter;

use super::{
    CliError, ConfigArgs, InsecureArg, local_service::LocalDirs, to_local_address, user_file,
};
use crate::{
    app::{self, App, ListenAddresses, Reloader, StartError},
    auth,
    config::{self, Config, ConfigError, Layers, MemoryBudget},
    domain::clock,
    engine,
    server::{self, ListenAddress},
    telemetry::{LogFormat, Metrics, Traces, logs},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// The format of log lines, which go to standard error.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    #[command(flatten)]
    insecure: InsecureArg,
    /// Serve only this user, on two Unix sockets: no port, no tokens. State is in
    /// `$XDG_STATE_HOME/unstuck`; only the user's own configuration is read. It stops
    /// when it has been idle for a while. Hooks start it by themselves.
    #[arg(long, conflicts_with = "insecure")]
    local: bool,
    /// Run in a session without a terminal, as a service that a hook starts does.
    #[arg(long, requires = "local", hide = true)]
    detached: bool,
    /// The directory of the state.
    #[arg(long, value_name = "DIR", requires = "local", hide = true)]
    state: Option<PathBuf>,
}

/// A worker thread polls for network and store events after this many tasks. Under
/// load there is always another task, each may take the scheduler's full slice,
/// and an operator's call waits for that many: tokio's default of 61 makes that
/// milliseconds. A poll costs half a microsecond.
const EVENT_INTERVAL_TASKS: u32 = 4;

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    if args.local {
        return run_local(args);
    }
    // Read the configuration and refuse an unprotected public address.
    let layers = args.config.load_layers()?;
    let config = Config::new(&layers).map_err(CliError::usage)?;
    let exposed = app::find_exposed_key(&config);
    if let Some(key) = exposed.filter(|_| !args.insecure.insecure) {
        return Err(CliError::usage(StartError::Exposed(key)));
    }
    let addresses = ListenAddresses {
        grpc: ListenAddress::Tcp(config.server.grpc),
        http: ListenAddress::Tcp(config.server.http),
    };
    let file = args.config.config.clone();
    Service {
        config,
        layers,
        load_layers: Box::new(move || config::load_layers(file.as_deref())),
        addresses,
        exposed,
        idle_exit: None,
        worker_threads: clock::cores(),
    }
    .serve(args)
}

/// The worker threads of a local service, which serves the agents of one person.
const LOCAL_THREADS: usize = 2;

/// Serves this user only, until there was no connection for a while.
fn run_local(args: &Args) -> Result<ExitCode, CliError> {
    // Only this user may read the files that it writes.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    if args.detached {
        // This fails only for the leader of a process group, which needs no new session.
        let _ = rustix::process::setsid();
    }
    // Allow one service per user: the lock is held until the process ends.
    let no_home = "there is no directory for the state: set XDG_STATE_HOME or HOME";
    let dirs = LocalDirs::find(args.state.as_deref()).ok_or_else(|| CliError::usage(no_home))?;
    let unusable = |error: io::Error| {
        CliError::failed(format!("cannot use {}: {error}", dirs.state.display()))
    };
    dirs.create().map_err(unusable)?;
    let Some(lock) = dirs.lock().map_err(unusable)? else {
        return Err(CliError::failed("the local service runs already"));
    };
    // Read the user's own configuration. Its addresses, tokens and TLS settings do not count.
    let file = user_file(args.config.config.as_deref());
    // A hook names the file even if the user has none.
    let file = file.filter(|file| !args.detached || file.exists());
    let layers = config::load_layers_of(file.as_deref()).map_err(CliError::usage)?;
    let mut config = Config::new(&layers).map_err(CliError::usage)?;
    config.store.dir = dirs.store();
    config.store.key_file = dirs.key_file();
    config.auth = auth::Settings::default();
    config.tls = server::TlsSettings::default();
    let idle_exit = Duration::from_secs(config.hooks.idle_exit_mins.saturating_mul(60));
    let addresses = ListenAddresses {
        grpc: ListenAddress::Unix(dirs.grpc_socket()),
        http: ListenAddress::Unix(dirs.http_socket()),
    };
    let ran = Service {
        config,
        layers,
        load_layers: Box::new(move || config::load_layers_of(file.as_deref())),
        addresses,
        exposed: None,
        idle_exit: Some(idle_exit),
        worker_threads: LOCAL_THREADS,
    }
    .serve(args);
    // Remove the sockets: commands take their existence for a running service.
    for socket in [dirs.grpc_socket(), dirs.http_socket()] {
        let _ = fs::remove_file(socket);
    }
    drop(lock);
    ran
}

/// A service to run: its configuration and addresses.
struct Service {
    layers: Layers,
    config: Config,
    /// Reads the configuration again, for a reload.
    load_layers: Box<dyn Fn() -> Result<Layers, ConfigError> + Send>,
    addresses: ListenAddresses,
    /// The key of an address that is not protected.
    exposed: Option<&'static str>,
    /// The service stops after this time without a connection.
    idle_exit: Option<Duration>,
    worker_threads: usize,
}

impl Service {
    fn serve(self, args: &Args) -> Result<ExitCode, CliError> {
        // Start the runtime, then logs and traces.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.worker_threads)
            .event_interval(EVENT_INTERVAL_TASKS)
            .global_queue_interval(EVENT_INTERVAL_TASKS)
            .enable_all()
            .build()
            .map_err(CliError::failed)?;
        let traces = {
            let _runtime = runtime.enter();
            Traces::new(&self.config.telemetry).map_err(CliError::usage)?
        };
        let logs = logs::init(args.log_format, &traces);
        logs::install_panic_hook();
        if let Some(key) = self.exposed {
            tracing::warn!(
                key,
                "no authentication or encryption: anyone who can connect has full access"
            );
        }
        // Serve until shutdown.
        let result = runtime.block_on(self.run(args, logs.dropped_lines()));
        traces.shutdown();
        // Blocked threads, for example on a hanging disk, are not waited for.
        runtime.shutdown_background();
        logs.shutdown();
        result.map(|()| ExitCode::SUCCESS)
    }

    async fn run(self, args: &Args, dropped_lines: ErrorCounter) -> Result<(), CliError> {
        let memory_budget = self.layers.memory().cloned();
        let engine_limits = self.config.engine.clone();
        let server_limits = self.config.limits.clone();
        let scheme = if self.config.tls.is_on() {
            "https"
        } else {
            "http"
        };
        // Register the handler before the store is read, which may take a while: an
        // unhandled SIGHUP ends the process.
        let hangups = signal(SignalKind::hangup()).map_err(CliError::failed)?;
        let sockets = self.addresses.clone();
        let app = App::bind_at(self.addresses, self.config).await;
        let app = app.map_err(start_error)?;
        if let Some(memory) = &memory_budget {
            log_memory_limits(memory, &engine_limits, &server_limits);
        }
        let shutdown = shutdown_signal().map_err(CliError::failed)?;
        // Only this user can connect to a local service.
        let insecure = args.insecure.insecure || self.idle_exit.is_some();
        tokio::spawn(reload_on_sighup(
            hangups,
            app.reloader(self.layers, insecure),
            self.load_layers,
        ));
        tokio::spawn(export_dropped_log_lines(dropped_lines, app.metrics()));
        // Print the addresses, and serve.
        match &sockets.http {
            ListenAddress::Tcp(_) => {
                let grpc = app.grpc_address().map_err(CliError::failed)?;
                let http = app.http_address().map_err(CliError::failed)?;
                print_addresses(scheme, grpc, http, app.store_dir());
            }
            ListenAddress::Unix(_) => print_sockets(&sockets),
        }
        let activity = app.activity();
        let idle = async {
            match self.idle_exit {
                Some(time) => activity.wait_until_idle(time).await,
                None => future::pending().await,
            }
            tracing::info!("no connection for hooks.idle_exit_mins, stopping");
        };
        let stopped = async {
            tokio::select! {
                () = shutdown => {}
                () = idle => {}
            }
            tracing::info!("draining");
        };
        app.run(stopped).await.map_err(CliError::failed)
    }
}

/// Prints where a local service listens. A closed pipe is no reason to stop.
fn print_sockets(addresses: &ListenAddresses) {
    let mut out = io::stdout();
    let _ = writeln!(out, "unstuck: gRPC on {}", addresses.grpc);
    let _ = writeln!(out, "unstuck: HTTP on {}", addresses.http);
}

/// Exit code 1 if a restart may help, because the disk failed, else 2.
fn start_error(error: StartError) -> CliError {
    match error {
        StartError::Store(store) if store.is_disk_failure() => {
            CliError::failed(StartError::Store(store))
        }
        error => CliError::usage(error),
    }
}

/// Logs the limits in effect, which depend on the memory that the process may use.
fn log_memory_limits(memory: &MemoryBudget, engine: &engine::Limits, server: &server::Limits) {
    tracing::info!(
        memory_bytes = memory.memory_bytes,
        state_bytes_max = engine.state_bytes_max,
        tombstone_bytes_max = engine.tombstone_bytes_max,
        unread_bytes_max = server.unread_bytes_max,
        connections_max = server.connections_max,
        open_streams_max = server.open_streams_max,
        "memory limits"
    );
}

fn print_addresses(scheme: &str, grpc: SocketAddr, http: SocketAddr, store: Option<&Path>) {
    anstream::println!("unstuck: gRPC on {grpc}");
    anstream::println!("unstuck: HTTP on {http}");
    match store {
        Some(dir) => {
            anstream::println!("unstuck: store in {}; press Ctrl-C to stop", dir.display());
        }
        None => anstream::println!("unstuck: state is in memory only; press Ctrl-C to stop"),
    }
    // Commands for a clone of the repository.
    let (local_grpc, local_http) = (to_local_address(grpc), to_local_address(http));
    anstream::println!("try: cargo run --release -- replay examples/read-loop.ndjson");
    anstream::println!("     UNSTUCK_SERVER={local_grpc} python3 examples/broker.py");
    anstream::println!("     curl {scheme}://{local_http}/metrics");
    anstream::println!("     open the console in a browser: {scheme}://{local_http}/");
}

/// Reloads the configuration on each SIGHUP.
async fn reload_on_sighup(
    mut hangups: Signal,
    reloader: Reloader,
    load_layers: Box<dyn Fn() -> Result<Layers, ConfigError> + Send>,
) {
    let reloader = Arc::new(Mutex::new((reloader, load_layers)));
    while hangups.recv().await.is_some() {
        let reloader = reloader.clone();
        let reloaded = tokio::task::spawn_blocking(move || {
            let (reloader, load_layers) = &mut *reloader.lock();
            reloader.reload(load_layers());
        });
        // A panic fails only this reload; the panic hook logs it.
        if reloaded.await.is_err_and(|error| error.is_cancelled()) {
            return;
        }
    }
}

/// Updates the metric of dropped log lines every second.
async fn export_dropped_log_lines(dropped: ErrorCounter, metrics: Arc<Metrics>) {
    let mut ticks = time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        metrics.set_dropped_log_lines(dropped.dropped_lines());
    }
}

/// Completes on SIGINT or SIGTERM. The handlers are registered by the call, not by
/// the first poll, so that a signal right after the start is not missed.
fn shutdown_signal() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
