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
    config::Config,
    domain::clock,
    telemetry::{LogFormat, Metrics, Traces, logs},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// How log lines look; they go to standard error.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    #[command(flatten)]
    insecure: InsecureArg,
}

/// After so many tasks a thread looks whether something has come over the network
/// or from the store. Under load there is always another task, each takes up to
/// `api`'s turn, and an operator waits for as many: tokio's own 61 made that
/// milliseconds. A look costs half a microsecond.
const EVENT_INTERVAL_TASKS: u32 = 4;

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let layers = args.config.load_layers()?;
    let config = Config::new(&layers).map_err(CliError::usage)?;
    let exposed = app::find_exposed_key(&config);
    if let Some(key) = exposed.filter(|_| !args.insecure.insecure) {
        return Err(CliError::usage(StartError::Exposed(key)));
    }
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
        tracing::warn!(key, "everybody who reaches this address may do all");
    }
    let scheme = if config.tls.is_on() { "https" } else { "http" };
    let result = runtime.block_on(async {
        // Before the store is read, which may take a while: unheeded, it would end
        // the process.
        let hangups = signal(SignalKind::hangup()).map_err(CliError::failed)?;
        let app = App::bind(config).await.map_err(CliError::usage)?;
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
    // What hangs by now, as a disk can, is waited for no longer.
    runtime.shutdown_background();
    logs.shutdown();
    result.map(|()| ExitCode::SUCCESS)
}

fn print_addresses(scheme: &str, grpc: SocketAddr, http: SocketAddr, store: Option<&Path>) {
    anstream::println!("unstuck: gRPC on {grpc}");
    anstream::println!("unstuck: HTTP on {http}");
    match store {
        Some(dir) => anstream::println!("unstuck: store in {}; Ctrl-C stops", dir.display()),
        None => anstream::println!("unstuck: state is kept in memory only; Ctrl-C stops"),
    }
    // As one types them in a clone, where `cargo run --release` was typed.
    let (grpc, http) = (to_local_address(grpc), to_local_address(http));
    anstream::println!("try: cargo run --release -- replay examples/read-loop.ndjson");
    anstream::println!("     UNSTUCK_SERVER={grpc} python3 examples/broker.py");
    anstream::println!("     curl {scheme}://{http}/metrics");
    anstream::println!("     the console, in a browser: {scheme}://{http}/");
}

/// Reads the configuration anew on each SIGHUP.
async fn reload_on_sighup(mut hangups: Signal, reloader: Reloader, file: Option<PathBuf>) {
    let reloader = Arc::new(Mutex::new(reloader));
    while hangups.recv().await.is_some() {
        let (reloader, file) = (reloader.clone(), file.clone());
        let reloaded = tokio::task::spawn_blocking(move || {
            let mut reloader = reloader.lock();
            reloader.reload(crate::config::load_layers(file.as_deref()));
        });
        // A panic ends this reload and no other; the log has its place.
        if reloaded.await.is_err_and(|error| error.is_cancelled()) {
            return;
        }
    }
}

/// Says every second how many log lines were let go of.
async fn export_dropped_log_lines(dropped: ErrorCounter, metrics: Arc<Metrics>) {
    let mut ticks = time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        metrics.set_dropped_log_lines(dropped.dropped_lines());
    }
}

/// SIGINT or SIGTERM. Both are heeded from the call on, not only once somebody
/// waits: who was told that the service runs may end it.
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
