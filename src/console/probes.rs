//! Metrics and health probes. Monitoring systems call them under any host name.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
};

use super::{Console, http_error::HttpError};
use crate::{cluster::ClusterHealth, domain::clock, store::StoreHealth};

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

/// Liveness: always 200, with notes on what is degraded. One line, because some probes
/// show only the first.
pub(super) async fn healthz(State(console): State<Console>) -> String {
    let mut degraded = Vec::new();
    let mut status = "ok";
    // The disk.
    let store = &console.deps.store;
    match store.health() {
        StoreHealth::Healthy => {}
        StoreHealth::InMemory => status = "ok; state is kept in memory only",
        StoreHealth::WriteFailing(why) => degraded.push(format!(
            "the store cannot be written to ({why}): terminations are in force but not durable, \
             resets and snoozes are refused"
        )),
        StoreHealth::Stalled(age) => degraded.push(format!(
            "the disk has not finished a write for {} s: terminations are in force but not \
             durable, resets and snoozes are refused",
            age.as_secs()
        )),
    }
    if store.removed_terminations() > 0 {
        degraded.push(format!(
            "store.bytes_max is too small: a restart lifts {} terminations that are in force",
            store.removed_terminations()
        ));
    }
    // The other replicas.
    let mut is_shared = false;
    if let Some(cluster) = console.deps.api.cluster() {
        match cluster.health() {
            ClusterHealth::Healthy => is_shared = true,
            ClusterHealth::Unreachable(since, why) => degraded.push(format!(
                "redis: unreachable since {}: {why}; sessions are kept in memory",
                jiff::Timestamp::try_from(since).unwrap_or_default()
            )),
            ClusterHealth::Full => {
                degraded.push("redis: full; sessions are kept in memory".to_owned());
            }
        }
    }
    // Detection and access.
    if console.deps.engine.is_any_breaker_open() {
        degraded.push("the breaker is open: detectors warn instead of terminating".to_owned());
    }
    degraded.extend(token_file_note(&console));
    // The clock.
    if let Some(difference) = clock::large_difference() {
        degraded.push(format!(
            "the wall clock differs from the service's time by {} s: times of verdicts and \
             expiry follow it slowly, a restart adopts it",
            difference.as_secs()
        ));
    }
    if let Some(ahead) = store.expiry_clock().held_back() {
        degraded.push(format!(
            "the wall clock was {} days ahead of the last run at the start: nothing expires \
             until it was steady for an hour",
            ahead.as_secs() / (24 * 60 * 60)
        ));
    }
    match &*degraded {
        [] if is_shared => format!("{status}; redis: ok\n"),
        [] => format!("{status}\n"),
        notes => format!("degraded; {}\n", notes.join("; ")),
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
