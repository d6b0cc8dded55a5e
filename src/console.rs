//! The HTTP side: metrics and probes.
//!
//! Uses: domain, store, telemetry.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio_util::sync::CancellationToken;

use crate::{
    store::{Health, Stats, Store},
    telemetry::{Metrics, StoreFigures},
};

#[derive(Clone)]
struct Console {
    metrics: Arc<Metrics>,
    store: Arc<Store>,
    draining: CancellationToken,
}

pub fn routes(metrics: Arc<Metrics>, store: Arc<Store>, draining: CancellationToken) -> Router {
    Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .with_state(Console {
            metrics,
            store,
            draining,
        })
}

async fn metrics_page(State(console): State<Console>) -> impl IntoResponse {
    const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    let Stats {
        commits,
        failures,
        shed,
        queue,
        bytes,
        failing,
    } = console.store.stats();
    console.metrics.store(&StoreFigures {
        commits,
        failures,
        shed,
        queue,
        bytes,
        failing,
    });
    ([(header::CONTENT_TYPE, FORMAT)], console.metrics.render())
}

/// The process runs. It also says what it does not do.
async fn healthy(State(console): State<Console>) -> String {
    match console.store.health() {
        Health::Fine => "ok\n".to_owned(),
        Health::Memory => "ok; state is kept in memory only\n".to_owned(),
        Health::SetAside(aside) => {
            let aside = aside.display();
            format!("ok; a damaged tail of the audit log was set aside in {aside}\n")
        }
        Health::Failing => "ok; the store cannot be written to: terminations are not durable, \
                            resets are refused\n"
            .to_owned(),
    }
}

/// The process takes calls.
async fn ready(State(console): State<Console>) -> (StatusCode, &'static str) {
    if console.draining.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}
