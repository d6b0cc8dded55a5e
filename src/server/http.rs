//! Serves HTTP/1.1 with hyper, because axum's own server has no deadline for the head
//! of a request.

use std::{io, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
};
use futures_util::{StreamExt, stream};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::listener::Listener;
use crate::telemetry::{Metrics, Rejection};

/// The console's requests have heads of a few hundred bytes; hyper's default would
/// accept 400 KiB on every connection.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Serves until the service drains, then finishes open requests. `timeout` is for
/// the head of each request and, separately, for its body.
pub async fn serve(
    mut listener: Listener,
    routes: Router,
    timeout: Duration,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .max_buf_size(HEAD_BYTES_MAX);
    let routes = routes.layer(middleware::from_fn_with_state(
        (timeout, metrics),
        limit_body_time,
    ));
    let connections = GracefulShutdown::new();
    while let Some(connection) = draining.run_until_cancelled(listener.accept()).await {
        let service = TowerToHyperService::new(routes.clone());
        let connection = http.serve_connection(TokioIo::new(connection), service);
        let served = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, "an HTTP connection ended early");
            }
        });
    }
    drop(listener);
    connections.shutdown().await;
}

/// Gives the body of a request a deadline. After it the handler's read fails and the
/// connection closes.
async fn limit_body_time(
    State((timeout, metrics)): State<(Duration, Arc<Metrics>)>,
    request: Request,
    next: Next,
) -> Response {
    let deadline = Instant::now() + timeout;
    let request = request.map(|body| {
        let state = (body.into_data_stream(), metrics);
        Body::from_stream(stream::unfold(
            state,
            move |(mut chunks, metrics)| async move {
                let chunk = match timeout_at(deadline, chunks.next()).await {
                    Ok(chunk) => chunk?.map_err(io::Error::other),
                    Err(_) => {
                        metrics.count_rejection(Rejection::HandshakeSecsMax);
                        Err(io::ErrorKind::TimedOut.into())
                    }
                };
                Some((chunk, (chunks, metrics)))
            },
        ))
    });
    next.run(request).await
}
