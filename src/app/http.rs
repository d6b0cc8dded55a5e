//! Serves HTTP: axum's own server has no deadline for the head of a request.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio_util::sync::CancellationToken;

use super::incoming::Door;

/// Serves until the service drains, and then what was begun. `patience` is for
/// the head of each request.
pub(super) async fn serve(
    mut door: Door,
    routes: Router,
    patience: Duration,
    draining: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience);
    let open = GracefulShutdown::new();
    while let Some(connection) = draining.run_until_cancelled(door.accept()).await {
        let service = TowerToHyperService::new(routes.clone());
        let connection = http.serve_connection(TokioIo::new(connection), service);
        let served = open.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, "an HTTP connection ended early");
            }
        });
    }
    drop(door);
    open.shutdown().await;
}
