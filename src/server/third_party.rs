//! Streams of tonic's own services, health and reflection. They do not know our
//! limits, so their request and response bodies are wrapped: the stream ends with
//! a status when the service drains, the token is revoked or nothing is sent.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::{Body as _, Frame};
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Bytes,
        http::{HeaderMap, Request, Response},
    },
};

use super::{ServerContext, rpc::ResponseKind, status};
use crate::{
    auth::{AuthError, Caller},
    telemetry::{Metrics, Rejection},
};

/// How one of these streams is bounded.
pub(super) struct ThirdPartyStream {
    /// The status it ends with, once it must end.
    end: Pin<Box<dyn Future<Output = Status> + Send>>,
    idle: Option<IdleLimit>,
    /// Cancelled when the response is dropped.
    closed: CancellationToken,
}

/// A stream without a response for this long ends.
struct IdleLimit {
    max: Duration,
    metrics: Arc<Metrics>,
}

impl ThirdPartyStream {
    /// `None`: the call is not one of these streams.
    pub fn new(kind: ResponseKind, caller: &Caller, context: &ServerContext) -> Option<Self> {
        let (draining, auth) = (context.draining.clone(), context.auth.clone());
        match kind {
            ResponseKind::HealthStream => {
                let secs_max = context.limits.health_watch_secs_max;
                Some(Self {
                    end: Box::pin(async move {
                        let lifetime = sleep(Duration::from_secs(secs_max));
                        tokio::select! {
                            () = draining.cancelled() => status::draining(),
                            // No watch may hold its permit for ever.
                            () = lifetime => status::health_watch_too_old(secs_max),
                        }
                    }),
                    // Health may stay the same for years.
                    idle: None,
                    closed: CancellationToken::new(),
                })
            }
            ResponseKind::ReflectionStream => {
                let caller = caller.clone();
                Some(Self {
                    end: Box::pin(async move {
                        tokio::select! {
                            () = draining.cancelled() => status::draining(),
                            () = auth.wait_until_revoked(&caller) => AuthError::UnknownToken.into(),
                        }
                    }),
                    idle: Some(IdleLimit {
                        max: Duration::from_secs(context.limits.stream_idle_secs_max),
                        metrics: context.metrics.clone(),
                    }),
                    closed: CancellationToken::new(),
                })
            }
            ResponseKind::Small | ResponseKind::Page | ResponseKind::Stream(_) => None,
        }
    }

    /// A request body that ends when the response is dropped. Otherwise the service
    /// would continue to read it.
    pub fn bound_request(&self, request: Request<Body>) -> Request<Body> {
        let closed = self.closed.clone().cancelled_owned();
        request.map(|body| Body::new(StreamBody::new(BodyStream::new(body).take_until(closed))))
    }

    pub fn bound_response(self, response: Response<Body>) -> Response<Body> {
        response.map(|body| {
            // A rejection has its status in the headers and no body.
            if body.is_end_stream() {
                return body;
            }
            let open = OpenResponse {
                body,
                end: self.end,
                idle: self.idle,
                _closed: self.closed.drop_guard(),
            };
            let frames = stream::unfold(Some(open), |open| async move { open?.next().await });
            Body::new(StreamBody::new(frames))
        })
    }
}

struct OpenResponse {
    body: Body,
    end: Pin<Box<dyn Future<Output = Status> + Send>>,
    idle: Option<IdleLimit>,
    _closed: DropGuard,
}

/// A frame, and the response unless that was the last one.
type NextFrame = (Result<Frame<Bytes>, Status>, Option<OpenResponse>);

impl OpenResponse {
    async fn next(mut self) -> Option<NextFrame> {
        let status = tokio::select! {
            // A change of health is sent before the drain that caused it.
            biased;
            frame = self.body.frame() => return frame.map(|frame| (frame, Some(self))),
            status = &mut self.end => status,
            () = idle(self.idle.as_ref()) => status::idle(),
        };
        let mut headers = HeaderMap::new();
        let trailers = status
            .add_header(&mut headers)
            .map(|()| Frame::trailers(headers));
        Some((trailers, None))
    }
}

async fn idle(limit: Option<&IdleLimit>) {
    let Some(IdleLimit { max, metrics }) = limit else {
        return std::future::pending().await;
    };
    sleep(*max).await;
    metrics.count_rejection(Rejection::StreamIdleSecsMax);
}
