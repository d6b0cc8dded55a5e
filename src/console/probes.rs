//! Metrics and health probes. Monitoring systems call them under any host name.

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
    let metrics = &console.deps.metrics;
    metrics.set_store_stats(&console.deps.store.stats());
    Ok(([(header::CONTENT_TYPE, FORMAT)], metrics.render()))
}

/// Liveness: always ok, with notes on what is degraded.
pub(super) async fn healthz(State(console): State<Console>) -> String {
    let mut text = describe_store_health(&console);
    if console.deps.engine.is_any_breaker_open() {
        text += "ok; the breaker is open: detectors warn instead of terminating\n";
    }
    if let Some(note) = token_file_note(&console) {
        text += &format!("ok; {note}\n");
    }
    text
}

fn describe_store_health(console: &Console) -> String {
    match console.deps.store.health() {
        StoreHealth::Healthy => "ok\n".to_owned(),
        StoreHealth::InMemory => "ok; state is kept in memory only\n".to_owned(),
        StoreHealth::DamagedTail(file) => {
            let file = file.display();
            format!("ok; a damaged tail of the audit log was moved to {file}\n")
        }
        StoreHealth::WriteFailing => {
            "ok; the store cannot be written to: terminations are not durable, \
             resets are refused\n"
                .to_owned()
        }
    }
}

fn token_file_note(console: &Console) -> Option<String> {
    let problem = console.deps.auth.file_problem()?;
    Some(format!(
        "the token file {problem}: the tokens loaded before stay in force"
    ))
}

/// Readiness: whether the service accepts calls.
pub(super) async fn readyz(State(console): State<Console>) -> (StatusCode, &'static str) {
    if console.deps.draining.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}
