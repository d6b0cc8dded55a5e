//! The HTTP side: metrics and probes.
//!
//! Uses: domain, telemetry.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio_util::sync::CancellationToken;

use crate::telemetry::Metrics;

#[derive(Clone)]
struct Console {
    metrics: Arc<Metrics>,
    draining: CancellationToken,
}

pub fn routes(metrics: Arc<Metrics>, draining: CancellationToken) -> Router {
    Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .with_state(Console { metrics, draining })
}

async fn metrics_page(State(console): State<Console>) -> impl IntoResponse {
    const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, FORMAT)], console.metrics.render())
}

/// The process runs. It also says what it does not do.
async fn healthy() -> &'static str {
    "ok; state is kept in memory only\n"
}

/// The process takes calls.
async fn ready(State(console): State<Console>) -> (StatusCode, &'static str) {
    if console.draining.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}
