//! Who calls is asked once, before a call is handed to anybody: every path goes
//! through here, also one that a later version adds. So does every call that there
//! is no room for, before its message is read.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request as HttpRequest, State},
    http::header::AUTHORIZATION,
    middleware::{self, Next},
    response::Response,
};
use tonic::{Request, Status, service::Routes};

use super::{Limits, Place, Places, status};
use crate::{
    auth::{self, Auth, Caller, Denied},
    telemetry::{Metrics, Rejection},
};

/// Stands before all services.
#[derive(Clone)]
pub struct Guard {
    auth: Arc<Auth>,
    metrics: Arc<Metrics>,
    calls: Places,
    calls_max: usize,
    call_secs_max: u64,
}

async fn admit(State(guard): State<Guard>, mut request: HttpRequest, next: Next) -> Response {
    let authorization = request.headers().get(AUTHORIZATION);
    let authorization = authorization.map(|value| value.as_bytes());
    let path = request.uri().path();
    let admitted = guard.auth.admit(authorization, path);
    let admitted = admitted.map_err(|denied| {
        guard.metrics.rejected(denied.rejection());
        Status::from(denied)
    });
    let admitted = admitted.and_then(|caller| Ok((guard.place(&caller, path)?, caller)));
    let (_place, caller) = match admitted {
        Ok(admitted) => admitted,
        Err(refused) => return refused.into_http(),
    };
    request.extensions_mut().insert(caller);
    // A stream is answered at once, and goes on after that.
    let answer = next.run(request);
    let most = Duration::from_secs(guard.call_secs_max);
    let Ok(answer) = tokio::time::timeout(most, answer).await else {
        guard.metrics.rejected(Rejection::CallSecsMax);
        return status::call_too_long(guard.call_secs_max).into_http();
    };
    if let Some(why) = status::unread_in(answer.headers()) {
        guard.metrics.rejected(why);
    }
    answer
}

impl Guard {
    pub(super) fn new(auth: Arc<Auth>, metrics: Arc<Metrics>, limits: &Limits) -> Self {
        Self {
            calls: Places::new(limits.calls_max, auth.clone()),
            calls_max: limits.calls_max,
            call_secs_max: limits.call_secs_max,
            auth,
            metrics,
        }
    }

    /// The services, for those who may.
    pub fn before(self, routes: Routes) -> Routes {
        let guarded = middleware::from_fn_with_state(self, admit);
        Routes::from(routes.into_axum_router().layer(guarded))
    }

    /// A place for a call, while it is answered. What operators do needs none,
    /// and neither do probes: they must get through.
    fn place(&self, caller: &Caller, path: &str) -> Result<Option<Place>, Status> {
        if !auth::may_be_refused(path) {
            return Ok(None);
        }
        let place = self.calls.take(&caller.tenant).map_err(|share| {
            self.metrics.rejected(Rejection::CallsMax);
            status::too_many_calls(self.calls_max, share)
        })?;
        Ok(Some(place))
    }
}

/// Who calls, as was found before.
pub(super) fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    // Nobody comes here unasked; if somebody did, it is better to refuse.
    Ok(caller.ok_or(Denied::NoToken)?)
}
