use std::{net::SocketAddr, process::ExitCode};

use tokio::signal::unix::{SignalKind, signal};

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
        announce(grpc, http);
        app.run(asked_to_stop()).await.map_err(Failure::failed)
    });
    traces.end();
    ended.map(|()| ExitCode::SUCCESS)
}

fn announce(grpc: SocketAddr, http: SocketAddr) {
    anstream::println!("unstuck: gRPC on {grpc}");
    anstream::println!("unstuck: HTTP on {http}");
    anstream::println!("unstuck: state is kept in memory only; Ctrl-C stops");
    // As one types them in a clone, where `cargo run --release` was typed.
    let (grpc, http) = (reachable(grpc), reachable(http));
    anstream::println!("try: cargo run --release -- replay examples/read-loop.ndjson");
    anstream::println!("     UNSTUCK_SERVER={grpc} python3 examples/broker.py");
    anstream::println!("     curl http://{http}/metrics");
}

/// SIGINT or SIGTERM.
async fn asked_to_stop() {
    let asked = |kind| async move {
        match signal(kind) {
            Ok(mut signals) => {
                signals.recv().await;
            }
            Err(error) => {
                tracing::error!(%error, "cannot listen for a signal");
                std::future::pending().await
            }
        }
    };
    tokio::select! {
        () = asked(SignalKind::interrupt()) => {}
        () = asked(SignalKind::terminate()) => {}
    }
    tracing::info!("draining");
}
