//! The HTTP side: metrics and probes.
//!
//! Uses: auth, store, telemetry.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::{Auth, Caller, Denied},
    store::{Health, Stats, Store},
    telemetry::{Metrics, StoreFigures},
};

#[derive(Clone)]
struct Console {
    auth: Arc<Auth>,
    metrics: Arc<Metrics>,
    store: Arc<Store>,
    draining: CancellationToken,
}

pub fn routes(
    auth: Arc<Auth>,
    metrics: Arc<Metrics>,
    store: Arc<Store>,
    draining: CancellationToken,
) -> Router {
    Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .with_state(Console {
            auth,
            metrics,
            store,
            draining,
        })
}

impl Console {
    /// Who asks, where they may do this: a path of `auth::TABLE`, which for what
    /// an rpc answers too is the rpc's. Else the answer to give.
    fn admit(&self, headers: &HeaderMap, deed: &str) -> Result<Caller, Refusal> {
        let authorization = headers.get(header::AUTHORIZATION);
        let authorization = authorization.map(|value| value.as_bytes());
        self.auth.admit(authorization, deed).map_err(|denied| {
            self.metrics.rejected(denied.rejection());
            Refusal(denied)
        })
    }
}

/// What they hear who may not.
struct Refusal(Denied);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let why = format!("{}\n", self.0);
        match self.0 {
            Denied::NoToken | Denied::UnknownToken => {
                let asked = [(header::WWW_AUTHENTICATE, "Bearer")];
                (StatusCode::UNAUTHORIZED, asked, why).into_response()
            }
            Denied::Role(_) => (StatusCode::FORBIDDEN, why).into_response(),
        }
    }
}

async fn metrics_page(
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
