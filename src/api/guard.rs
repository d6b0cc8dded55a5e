//! Who calls is asked once, before a call is handed to anybody: every path goes
//! through here, also one that a later version adds.

use std::sync::Arc;

use axum::{
    extract::{Request as HttpRequest, State},
    http::header::AUTHORIZATION,
    middleware::{self, Next},
    response::Response,
};
use tonic::{Request, Status, service::Routes};

use crate::{
    auth::{Auth, Caller, Denied},
    telemetry::Metrics,
};

#[derive(Clone)]
struct Guard {
    auth: Arc<Auth>,
    metrics: Arc<Metrics>,
}

/// The services, for those who may.
pub fn guarded(routes: Routes, auth: Arc<Auth>, metrics: Arc<Metrics>) -> Routes {
    let guard = Guard { auth, metrics };
    let guarded = middleware::from_fn_with_state(guard, admit);
    Routes::from(routes.into_axum_router().layer(guarded))
}

async fn admit(State(guard): State<Guard>, mut request: HttpRequest, next: Next) -> Response {
    let authorization = request.headers().get(AUTHORIZATION);
    let authorization = authorization.map(|value| value.as_bytes());
    match guard.auth.admit(authorization, request.uri().path()) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(denied) => {
            guard.metrics.rejected(denied.rejection());
            Status::from(denied).into_http()
        }
    }
}

/// Who calls, as was found before.
pub(super) fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    // Nobody comes here unasked; if somebody did, it is better to refuse.
    Ok(caller.ok_or(Denied::NoToken)?)
}
