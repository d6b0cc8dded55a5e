//! The HTTP side: the console, metrics and probes.
//!
//! The page asks what any client may ask: its questions and acts are the calls
//! of `api`, as JSON. What no other client needs, the fleet sorted by how badly
//! it is stuck, verdicts a minute, the policy in force, is made here.
//!
//! Uses: domain, auth, engine, store, feed, telemetry, server, api.

mod calls;
mod files;
mod fleet;
mod guard;
mod live;
mod policy;
mod probes;
mod refusal;
mod tally;

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

pub use guard::Hosts;

use crate::{
    api::Api,
    auth::{Auth, Caller},
    engine::Engine,
    server::{places::Places, rpc},
    store::Store,
    telemetry::Metrics,
};
use refusal::Refusal;
use tally::Tally;

/// The console's keys of `[limits]`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Limits {
    pub console_watchers_max: usize,
}

/// What it shows, and acts on.
pub struct Parts {
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
    watchers: Places,
    tally: Arc<Mutex<Tally>>,
}

/// A question is a few filters, an act a reason of 1 KiB.
const BODY_BYTES_MAX: usize = 16 * 1024;

pub fn routes(parts: Parts, limits: Limits, hosts: Hosts) -> Router {
    let Parts {
        auth,
        api,
        engine,
        store,
        metrics,
        draining,
    } = parts;
    let console = Console {
        watchers: Places::new(limits.console_watchers_max, auth.clone()),
        auth,
        api,
        engine,
        store,
        metrics,
        draining,
        tally: Arc::default(),
    };
    let hosts = Arc::new(hosts);
    let calls = Router::new()
        .route("/api/get_session", post(calls::get_session))
        .route("/api/list_verdicts", post(calls::list_verdicts))
        .route("/api/terminate_session", post(calls::terminate_session))
        .route("/api/reset_session", post(calls::reset_session))
        .route("/api/snooze_session", post(calls::snooze_session))
        .route("/api/watch_verdicts", post(live::watch_verdicts))
        .route("/api/me", post(calls::me))
        .route("/api/fleet", post(fleet::fleet))
        .route("/api/pulse", post(tally::pulse))
        .route("/api/policy", post(policy::policy))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .route_layer(middleware::from_fn(guard::same_origin));
    let page = files::routes()
        .merge(calls)
        .route_layer(middleware::from_fn_with_state(hosts, guard::known_host))
        .layer(middleware::from_fn(guard::sealed));
    Router::new()
        .route("/metrics", get(probes::metrics_page))
        .route("/healthz", get(probes::healthy))
        .route("/readyz", get(probes::ready))
        .merge(page)
        .with_state(console)
}

impl Console {
    /// The caller, where it may call this path of the rpc table. A route that
    /// answers what an rpc answers needs the same role.
    fn admit(&self, headers: &HeaderMap, path: &str) -> Result<Caller, Refusal> {
        let authorization = headers.get(header::AUTHORIZATION);
        let authorization = authorization.map(|value| value.as_bytes());
        let access = rpc::facts(path).access;
        self.auth.admit(authorization, access).map_err(|denied| {
            self.metrics.rejected(denied.rejection());
            tonic::Status::from(denied).into()
        })
    }
}
