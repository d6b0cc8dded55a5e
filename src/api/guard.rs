//! Who calls is asked once, before a call is handed to anybody: every path goes
//! through here, also one that a later version adds. So does every call that there
//! is no room for, before its message is read.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tonic::{
    Request, Status,
    body::Body,
    codegen::{
        BoxFuture, Service,
        http::{Request as HttpRequest, Response, header::AUTHORIZATION},
    },
    service::Routes,
};
use tower_layer::Layer;

use super::{Limits, Place, Places, status};
use crate::{
    auth::{self, Auth, Caller, Denied},
    telemetry::{Metrics, Rejection},
};

/// Stands before all services. Clones are one guard: the transport makes one for
/// every call.
#[derive(Clone)]
pub struct Guard(Arc<Post>);

struct Post {
    auth: Arc<Auth>,
    metrics: Arc<Metrics>,
    calls: Places,
    calls_max: usize,
    call_secs_max: u64,
}

/// The services, for those who may.
#[derive(Clone)]
pub struct Guarded {
    guard: Guard,
    routes: Routes,
}

impl Layer<Routes> for Guard {
    type Service = Guarded;

    fn layer(&self, routes: Routes) -> Guarded {
        let guard = self.clone();
        Guarded { guard, routes }
    }
}

impl Service<HttpRequest<Body>> for Guarded {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<HttpRequest<Body>>::poll_ready(&mut self.routes, cx)
    }

    fn call(&mut self, mut request: HttpRequest<Body>) -> Self::Future {
        let place = match self.guard.admit(&mut request) {
            Ok(place) => place,
            Err(refused) => return Box::pin(async move { Ok(refused.into_http()) }),
        };
        let guard = self.guard.clone();
        let answer = self.routes.call(request);
        Box::pin(async move {
            let _place = place;
            // A stream is answered at once, and goes on after that.
            let secs = guard.0.call_secs_max;
            let in_time = tokio::time::timeout(Duration::from_secs(secs), answer).await;
            let Ok(answer) = in_time else {
                guard.0.metrics.rejected(Rejection::CallSecsMax);
                return Ok(status::call_too_long(secs).into_http());
            };
            answer.inspect(|answer| {
                let why = status::unread_in(answer.headers());
                why.into_iter()
                    .for_each(|why| guard.0.metrics.rejected(why));
            })
        })
    }
}

impl Guard {
    pub(super) fn new(auth: Arc<Auth>, metrics: Arc<Metrics>, limits: &Limits) -> Self {
        Self(Arc::new(Post {
            calls: Places::new(limits.calls_max, auth.clone()),
            calls_max: limits.calls_max,
            call_secs_max: limits.call_secs_max,
            auth,
            metrics,
        }))
    }

    /// Finds out who calls, and notes it in the request; a place for the call.
    fn admit(&self, request: &mut HttpRequest<Body>) -> Result<Option<Place>, Status> {
        let authorization = request.headers().get(AUTHORIZATION);
        let authorization = authorization.map(|value| value.as_bytes());
        let path = request.uri().path();
        let caller = self.0.auth.admit(authorization, path).map_err(|denied| {
            self.0.metrics.rejected(denied.rejection());
            Status::from(denied)
        })?;
        let place = self.place(&caller, path)?;
        request.extensions_mut().insert(caller);
        Ok(place)
    }

    /// A place for a call, while it is answered. What operators do needs none,
    /// and neither do probes: they must get through.
    fn place(&self, caller: &Caller, path: &str) -> Result<Option<Place>, Status> {
        if !auth::may_be_refused(path) {
            return Ok(None);
        }
        let place = self.0.calls.take(&caller.tenant).map_err(|share| {
            self.0.metrics.rejected(Rejection::CallsMax);
            status::too_many_calls(self.0.calls_max, share)
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
