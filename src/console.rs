//! The HTTP server: the console, metrics and probes.
//!
//! The page's queries and actions are the calls of `api`, as JSON. Only what no
//! other client needs is computed here: the fleet ordered by severity, verdicts
//! per minute, precision, and the policy in force.
//!
//! Uses: domain, auth, ingest, engine, store, cluster, feed, telemetry, server, api.

pub mod browser_guard;
mod calls;
mod files;
mod fleet;
pub mod http_error;
mod live;
mod policy;
mod precision;
mod probes;
mod verdict_counts;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{HeaderMap, header},
    middleware,
    routing::{get, post},
};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

pub use browser_guard::AllowedHosts;

use crate::{
    api::Api,
    auth::{Auth, Caller},
    engine::Engine,
    server::{quota::TenantQuota, rpc},
    store::Store,
    telemetry::Metrics,
};
use http_error::HttpError;
use verdict_counts::VerdictCounts;

/// The console's keys of `[limits]`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Limits {
    pub console_watchers_max: usize,
}

/// The parts of the service that the console uses.
#[derive(Clone)]
pub struct ConsoleDependencies {
    pub auth: Arc<Auth>,
    pub api: Api,
    pub engine: Arc<Engine>,
    pub store: Arc<Store>,
    pub metrics: Arc<Metrics>,
    pub draining: CancellationToken,
}

/// The state of all handlers.
#[derive(Clone)]
struct Console {
    deps: ConsoleDependencies,
    watcher_quota: TenantQuota,
    verdict_counts: Arc<Mutex<VerdictCounts>>,
}

/// A query is a few filters, an action has a reason of at most 1 KiB.
const BODY_BYTES_MAX: usize = 16 * 1024;

pub fn routes(deps: ConsoleDependencies, limits: Limits, hosts: AllowedHosts) -> Router {
    let console = Console {
        watcher_quota: TenantQuota::new(limits.console_watchers_max, deps.auth.clone()),
        deps,
        verdict_counts: Arc::default(),
    };
    // Calls of the page: only from pages of this service.
    let calls = Router::new()
        .route("/api/get_session", post(calls::get_session))
        .route("/api/list_verdicts", post(calls::list_verdicts))
        .route("/api/terminate_session", post(calls::terminate_session))
        .route("/api/reset_session", post(calls::reset_session))
        .route("/api/snooze_session", post(calls::snooze_session))
        .route("/api/rate_verdict", post(calls::rate_verdict))
        .route("/api/verdict", post(calls::get_verdict))
        .route("/api/watch_verdicts", post(live::watch_verdicts))
        .route("/api/me", post(calls::get_caller))
        .route("/api/fleet", post(fleet::list_fleet))
        .route(
            "/api/verdicts_per_minute",
            post(verdict_counts::verdicts_per_minute),
        )
        .route("/api/policy", post(policy::get_policy))
        .route("/api/precision", post(precision::get_precision))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .route_layer(middleware::from_fn(browser_guard::require_same_origin));
    // The page and its calls: only under a known host name.
    let page = files::routes()
        .merge(calls)
        .route_layer(middleware::from_fn_with_state(
            Arc::new(hosts),
            browser_guard::require_allowed_host,
        ))
        .layer(middleware::from_fn(browser_guard::add_security_headers));
    // Metrics and probes: under any name.
    Router::new()
        .route("/metrics", get(probes::render_metrics))
        .route("/healthz", get(probes::healthz))
        .route("/readyz", get(probes::readyz))
        .merge(page)
        .with_state(console)
}

impl Console {
    /// The caller, if it may call this path of the rpc table. A route requires the
    /// role of the rpc that returns the same.
    fn admit(&self, headers: &HeaderMap, path: &str) -> Result<Caller, HttpError> {
        let authorization = headers
            .get(header::AUTHORIZATION)
            .map(|value| value.as_bytes());
        let access = rpc::find(path).access;
        self.deps
            .auth
            .authorize(authorization, access)
            .map_err(|denied| {
                self.deps.metrics.count_rejection(denied.rejection());
                tonic::Status::from(denied).into()
            })
    }
}
