//! For those who watch the service itself: they come without a browser, by any
//! name.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
};

use super::{Console, http_error::HttpError};
use crate::store::StoreHealth;

pub(super) async fn render_metrics(
    State(console): State<Console>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, HttpError> {
    const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    console.admit(&headers, "/metrics")?;
    console.metrics.set_store_stats(&console.store.stats());
    Ok(([(header::CONTENT_TYPE, FORMAT)], console.metrics.render()))
}

/// The process runs. It also says what it does not do.
pub(super) async fn healthz(State(console): State<Console>) -> String {
    let store = describe_store_health(&console);
    match console.engine.is_any_breaker_open() {
        true => format!("{store}ok; the breaker is open: detectors warn instead of terminating\n"),
        false => store,
    }
}

fn describe_store_health(console: &Console) -> String {
    match console.store.health() {
        StoreHealth::Healthy => "ok\n".to_owned(),
        StoreHealth::InMemory => "ok; state is kept in memory only\n".to_owned(),
        StoreHealth::DamagedTail(aside) => {
            let aside = aside.display();
            format!("ok; a damaged tail of the audit log was set aside in {aside}\n")
        }
        StoreHealth::WriteFailing => {
            "ok; the store cannot be written to: terminations are not durable, \
                            resets are refused\n"
                .to_owned()
        }
    }
}

/// The process takes calls.
pub(super) async fn readyz(State(console): State<Console>) -> (StatusCode, &'static str) {
    if console.draining.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}
