//! The HTTP side: the console, metrics and probes.
//!
//! The page asks what any client may ask: its questions and acts are the calls
//! of `api`, as JSON. What no other client needs, the fleet sorted by how badly
//! it is stuck, verdicts a minute, the policy in force, is made here.
//!
//! Uses: domain, auth, engine, store, feed, telemetry, server, api.

mod browser_guard;
mod calls;
mod files;
mod fleet;
mod http_error;
mod live;
mod policy;
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

/// What it shows, and acts on.
pub struct ConsoleDependencies {
    pub auth: Arc<Auth>,
    pub api: Api,
    pub engine: Arc<Engine>,
    pub store: Arc<Store>,
    pub metrics: Arc<Metrics>,
    pub draining: CancellationToken,
}

#[derive(Clone)]
struct Console {
    auth: Arc<Auth>,
    api: Api,
    engine: Arc<Engine>,
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
    watcher_quota: TenantQuota,
    verdict_counts: Arc<Mutex<VerdictCounts>>,
}

/// A question is a few filters, an act a reason of 1 KiB.
const BODY_BYTES_MAX: usize = 16 * 1024;

pub fn routes(dependencies: ConsoleDependencies, limits: Limits, hosts: AllowedHosts) -> Router {
    let ConsoleDependencies {
        auth,
        api,
        engine,
        store,
        metrics,
        draining,
    } = dependencies;
    let console = Console {
        watcher_quota: TenantQuota::new(limits.console_watchers_max, auth.clone()),
        auth,
        api,
        engine,
        store,
        metrics,
        draining,
        verdict_counts: Arc::default(),
    };
    let hosts = Arc::new(hosts);
    let calls = Router::new()
        .route("/api/get_session", post(calls::get_session))
        .route("/api/list_verdicts", post(calls::list_verdicts))
        .route("/api/terminate_session", post(calls::terminate_session))
        .route("/api/reset_session", post(calls::reset_session))
        .route("/api/snooze_session", post(calls::snooze_session))
        .route("/api/watch_verdicts", post(live::watch_verdicts))
        .route("/api/me", post(calls::get_caller))
        .route("/api/fleet", post(fleet::list_fleet))
        .route("/api/pulse", post(verdict_counts::verdicts_per_minute))
        .route("/api/policy", post(policy::get_policy))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .route_layer(middleware::from_fn(browser_guard::require_same_origin));
    let page = files::routes()
        .merge(calls)
        .route_layer(middleware::from_fn_with_state(
            hosts,
            browser_guard::require_allowed_host,
        ))
        .layer(middleware::from_fn(browser_guard::add_security_headers));
    Router::new()
        .route("/metrics", get(probes::render_metrics))
        .route("/healthz", get(probes::healthz))
        .route("/readyz", get(probes::readyz))
        .merge(page)
        .with_state(console)
}

impl Console {
    /// The caller, where it may call this path of the rpc table. A route that
    /// answers what an rpc answers needs the same role.
    fn admit(&self, headers: &HeaderMap, path: &str) -> Result<Caller, HttpError> {
        let authorization = headers.get(header::AUTHORIZATION);
        let authorization = authorization.map(|value| value.as_bytes());
        let access = rpc::facts(path).access;
        self.auth
            .authorize(authorization, access)
            .map_err(|denied| {
                self.metrics.count_rejection(denied.rejection());
                tonic::Status::from(denied).into()
            })
    }
}
