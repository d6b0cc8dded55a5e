//! `unstuck serve`: runs the service until SIGINT or SIGTERM, and reloads the
//! configuration on SIGHUP.

use std::{
    io,
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

use super::{CliError, ConfigArgs, InsecureArg, to_local_address};
use crate::{
    app::{self, App, Reloader, StartError},
    config::{Config, MemoryBudget},
    domain::clock,
    engine, server,
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
}

/// A worker thread polls for network and store events after this many tasks. Under
/// load there is always another task, each may take the scheduler's full slice,
/// and an operator's call waits for that many: tokio's default of 61 makes that
/// milliseconds. A poll costs half a microsecond.
const EVENT_INTERVAL_TASKS: u32 = 4;

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    // Read the configuration and refuse an unprotected public address.
    let layers = args.config.load_layers()?;
    let config = Config::new(&layers).map_err(CliError::usage)?;
    let exposed = app::find_exposed_key(&config);
    if let Some(key) = exposed.filter(|_| !args.insecure.insecure) {
        return Err(CliError::usage(StartError::Exposed(key)));
    }
    // Start the runtime, then logs and traces.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(clock::cores())
        .event_interval(EVENT_INTERVAL_TASKS)
        .global_queue_interval(EVENT_INTERVAL_TASKS)
        .enable_all()
        .build()
        .map_err(CliError::failed)?;
    let traces = {
        let _runtime = runtime.enter();
        Traces::new(&config.telemetry).map_err(CliError::usage)?
    };
    let logs = logs::init(args.log_format, &traces);
    logs::install_panic_hook();
    if let Some(key) = exposed {
        tracing::warn!(
            key,
            "no authentication or encryption: anyone who can connect has full access"
        );
    }
    let memory_budget = layers.memory().cloned();
    let limits = (config.engine.clone(), config.limits.clone());
    // Serve until shutdown.
    let scheme = if config.tls.is_on() { "https" } else { "http" };
    let result = runtime.block_on(async {
        // Registered before the store is read, which may take a while: an
        // unhandled SIGHUP ends the process.
        let hangups = signal(SignalKind::hangup()).map_err(CliError::failed)?;
        let app = App::bind(config).await.map_err(start_error)?;
        if let Some(memory) = &memory_budget {
            log_memory_limits(memory, &limits.0, &limits.1);
        }
        let grpc = app.grpc_address().map_err(CliError::failed)?;
        let http = app.http_address().map_err(CliError::failed)?;
        let shutdown = shutdown_signal().map_err(CliError::failed)?;
        let file = args.config.config.clone();
        let insecure = args.insecure.insecure;
        tokio::spawn(reload_on_sighup(
            hangups,
            app.reloader(layers, insecure),
            file,
        ));
        tokio::spawn(export_dropped_log_lines(
            logs.dropped_lines(),
            app.metrics(),
        ));
        print_addresses(scheme, grpc, http, app.store_dir());
        app.run(shutdown).await.map_err(CliError::failed)
    });
    traces.shutdown();
    // Blocked threads, for example on a hanging disk, are not waited for.
    runtime.shutdown_background();
    logs.shutdown();
    result.map(|()| ExitCode::SUCCESS)
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
async fn reload_on_sighup(mut hangups: Signal, reloader: Reloader, file: Option<PathBuf>) {
    let reloader = Arc::new(Mutex::new(reloader));
    while hangups.recv().await.is_some() {
        let (reloader, file) = (reloader.clone(), file.clone());
        let reloaded = tokio::task::spawn_blocking(move || {
            let mut reloader = reloader.lock();
            reloader.reload(crate::config::load_layers(file.as_deref()));
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
        tracing::info!("draining");
    })
}
