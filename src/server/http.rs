//! Serves HTTP/1.1 with hyper, because axum's own server has no deadline for the head
//! of a request.

use std::{io, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Request, State},
    http::{StatusCode, header::AUTHORIZATION},
    middleware::{self, Next},
    response::Response,
};
use futures_util::{StreamExt, stream};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use super::{auth_delay::AuthDelays, listener::Listener};
use crate::{
    auth::PeerAddress,
    telemetry::{Metrics, Rejection},
};

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
    auth_delays: Arc<AuthDelays>,
    draining: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .max_buf_size(HEAD_BYTES_MAX);
    let routes = routes.layer(middleware::from_fn_with_state(
        (timeout, metrics.clone()),
        limit_body,
    ));
    let routes = routes.layer(middleware::from_fn_with_state(
        auth_delays,
        delay_unknown_tokens,
    ));
    let connections = GracefulShutdown::new();
    while let Some(connection) = draining.run_until_cancelled(listener.accept()).await {
        let peer = connection.connect_info().tcp.remote_addr();
        let peer = peer.map(|address| PeerAddress::new(address.ip()));
        let routes = TowerToHyperService::new(routes.clone());
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(peer);
            routes.call(request)
        });
        let connection = http.serve_connection(TokioIo::new(connection), service);
        let served = connections.watch(connection);
        let metrics = metrics.clone();
        tokio::spawn(async move {
            if let Err(error) = served.await {
                // Answered with 431.
                if error.is_parse_too_large() {
                    metrics.count_rejection(Rejection::MessageBytesMax);
                }
                tracing::debug!(%error, "an HTTP connection ended early");
            }
        });
    }
    drop(listener);
    connections.shutdown().await;
}

/// Delays the answer to a token that was refused.
async fn delay_unknown_tokens(
    State(delays): State<Arc<AuthDelays>>,
    Extension(peer): Extension<Option<PeerAddress>>,
    request: Request,
    next: Next,
) -> Response {
    let has_token = request.headers().contains_key(AUTHORIZATION);
    let response = next.run(request).await;
    if has_token
        && response.status() == StatusCode::UNAUTHORIZED
        && let Some(delay) = delays.count_unknown_token(peer)
    {
        delay.sleep.await;
    }
    response
}

/// Gives the body of a request a deadline. After it the handler's read fails and the
/// connection closes. Counts a body that its handler refuses because it is too large.
async fn limit_body(
    State((timeout, metrics)): State<(Duration, Arc<Metrics>)>,
    request: Request,
    next: Next,
) -> Response {
    let deadline = Instant::now() + timeout;
    let request = request.map(|body| {
        let state = (body.into_data_stream(), metrics.clone());
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
    let response = next.run(request).await;
    if response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        metrics.count_rejection(Rejection::MessageBytesMax);
    }
    response
}
