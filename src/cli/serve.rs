use std::{net::SocketAddr, path::Path, process::ExitCode};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{ConfigArgs, Failure, reachable};
use crate::{
    app::App,
    telemetry::{LogFormat, Traces, logs},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// How log lines look; they go to standard error.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    let traces = {
        let _runtime = runtime.enter();
        Traces::new(&config.telemetry).map_err(Failure::usage)?
    };
    logs::init(args.log_format, &traces);
    logs::log_panics();
    let ended = runtime.block_on(async {
        let app = App::bind(config).await.map_err(Failure::usage)?;
        let grpc = app.grpc_address().map_err(Failure::failed)?;
        let http = app.http_address().map_err(Failure::failed)?;
        // Before anybody is told where it listens: who may stop it by then is heeded.
        let asked = asked_to_stop();
        announce(grpc, http, app.store_dir());
        app.run(asked).await.map_err(Failure::failed)
    });
    traces.end();
    ended.map(|()| ExitCode::SUCCESS)
}

fn announce(grpc: SocketAddr, http: SocketAddr, store: Option<&Path>) {
    anstream::println!("unstuck: gRPC on {grpc}");
    anstream::println!("unstuck: HTTP on {http}");
    match store {
        Some(dir) => anstream::println!("unstuck: store in {}; Ctrl-C stops", dir.display()),
        None => anstream::println!("unstuck: state is kept in memory only; Ctrl-C stops"),
    }
    // As one types them in a clone, where `cargo run --release` was typed.
    let (grpc, http) = (reachable(grpc), reachable(http));
    anstream::println!("try: cargo run --release -- replay examples/read-loop.ndjson");
    anstream::println!("     UNSTUCK_SERVER={grpc} python3 examples/broker.py");
    anstream::println!("     curl http://{http}/metrics");
}

/// SIGINT or SIGTERM, from now on.
fn asked_to_stop() -> impl Future<Output = ()> {
    let [mut interrupt, mut terminate] =
        [SignalKind::interrupt(), SignalKind::terminate()].map(|kind| {
            signal(kind)
                .inspect_err(|error| tracing::error!(%error, "cannot listen for a signal"))
                .ok()
        });
    async move {
        tokio::select! {
            () = given(&mut interrupt) => {}
            () = given(&mut terminate) => {}
        }
        tracing::info!("draining");
    }
}

/// Waits for a signal; for ever, where it cannot be listened for.
async fn given(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}
