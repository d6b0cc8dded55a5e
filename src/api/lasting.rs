//! Streams of services that are not ours, health and reflection: they have a
//! place, and end with a reason, as ours do.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::body::Frame;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Bytes,
        http::{HeaderMap, Request, Response},
    },
};

use super::{Api, Place, Places, status, unread};
use crate::{
    auth::{Caller, Denied, HEALTH_WATCH, REFLECTION},
    telemetry::{Metrics, Open, Rejection, Rpc},
};

/// Where their streams get their places.
pub(super) struct Others {
    api: Api,
    /// Who watches health has shown no token, and so takes nobody else's place.
    watchers: Places,
}

/// One of their streams.
pub(super) struct Lasting {
    /// What it ends with, when it does.
    why: Pin<Box<dyn Future<Output = Status> + Send>>,
    idle: Option<Idle>,
    over: CancellationToken,
    place: (Place, Open),
}

/// Nothing was answered, and so nothing asked, for too long.
struct Idle {
    longest: Duration,
    alarm: Pin<Box<Sleep>>,
    metrics: Arc<Metrics>,
}

impl Others {
    pub fn new(api: &Api) -> Self {
        Self {
            watchers: Places::unshared(api.limits.open_streams_max),
            api: api.clone(),
        }
    }

    /// A place for one of their streams. `None`: this is none.
    pub fn begin(&self, caller: &Caller, path: &str) -> Result<Option<Lasting>, Status> {
        let api = &self.api;
        let (draining, auth) = (api.draining.clone(), api.auth.clone());
        if path == HEALTH_WATCH {
            let why = async move {
                draining.cancelled().await;
                status::draining()
            };
            return Ok(Some(Lasting {
                why: Box::pin(why),
                // Health may stay as it is for years.
                idle: None,
                over: CancellationToken::new(),
                place: api.place_among(&self.watchers, caller, Rpc::Watch)?,
            }));
        }
        if !REFLECTION.contains(&path) {
            return Ok(None);
        }
        let place = api.place(caller, Rpc::ServerReflectionInfo)?;
        let caller = caller.clone();
        let why = async move {
            tokio::select! {
                () = draining.cancelled() => status::draining(),
                () = auth.revoked(&caller) => Denied::UnknownToken.into(),
            }
        };
        let longest = Duration::from_secs(api.limits.stream_idle_secs_max);
        Ok(Some(Lasting {
            why: Box::pin(why),
            idle: Some(Idle {
                longest,
                alarm: Box::pin(sleep(longest)),
                metrics: api.metrics.clone(),
            }),
            over: CancellationToken::new(),
            place,
        }))
    }
}

impl Lasting {
    /// What the client sends ends with the stream: the service may still listen.
    pub fn asked(&self, request: Request<Body>) -> Request<Body> {
        let over = Box::pin(self.over.clone().cancelled_owned());
        request.map(|body| Body::new(Asked { body, over }))
    }

    pub fn answered(self, response: Response<Body>) -> Response<Body> {
        let Self {
            why,
            idle,
            over,
            place,
        } = self;
        response.map(|body| {
            let answered = Answered {
                body,
                why,
                idle,
                has_ended: false,
                _over: over.drop_guard(),
            };
            unread::with(Body::new(answered), Arc::new(place))
        })
    }
}

struct Asked {
    body: Body,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl hyper::body::Body for Asked {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.over.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => Pin::new(&mut self.body).poll_frame(cx),
        }
    }
}

struct Answered {
    body: Body,
    why: Pin<Box<dyn Future<Output = Status> + Send>>,
    idle: Option<Idle>,
    has_ended: bool,
    _over: DropGuard,
}

impl hyper::body::Body for Answered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.has_ended {
            return Poll::Ready(None);
        }
        // First what there is to say: that health has changed, before a drain.
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if let Some(idle) = &mut this.idle {
                idle.alarm.as_mut().reset(Instant::now() + idle.longest);
            }
            return Poll::Ready(frame);
        }
        let why = match (this.why.as_mut().poll(cx), &mut this.idle) {
            (Poll::Ready(why), _) => why,
            (Poll::Pending, Some(idle)) => {
                ready!(idle.alarm.as_mut().poll(cx));
                idle.metrics.rejected(Rejection::StreamIdleSecsMax);
                status::idle()
            }
            (Poll::Pending, None) => return Poll::Pending,
        };
        this.has_ended = true;
        let mut trailers = HeaderMap::new();
        why.add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.body.is_end_stream()
    }
}
