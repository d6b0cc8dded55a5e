//! For those who watch the service itself: they come without a browser, by any
//! name.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
};

use super::{Console, refusal::Refusal};
use crate::{
    store::{Health, Stats},
    telemetry::StoreFigures,
};

pub(super) async fn metrics_page(
    State(console): State<Console>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Refusal> {
    const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    console.admit(&headers, "/metrics")?;
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
    Ok(([(header::CONTENT_TYPE, FORMAT)], console.metrics.render()))
}

/// The process runs. It also says what it does not do.
pub(super) async fn healthy(State(console): State<Console>) -> String {
    let store = stored(&console);
    match console.engine.breaker_is_open() {
        true => format!("{store}ok; the breaker is open: detectors warn instead of terminating\n"),
        false => store,
    }
}

fn stored(console: &Console) -> String {
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
pub(super) async fn ready(State(console): State<Console>) -> (StatusCode, &'static str) {
    if console.draining.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}
