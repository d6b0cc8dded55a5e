//! Who calls is asked once, before a call is handed to anybody: every path goes
//! through here, also one that a later version adds. So does every call that there
//! is no room for, before its message is read, and one of many waits for its turn.

use std::{
    convert::Infallible,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Sleep, sleep};
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

use super::{
    Api, Place, Places,
    lasting::{Lasting, Others},
    status,
    turns::{Line, Turns},
    unread,
};
use crate::{
    auth::{self, Auth, Caller, Denied},
    pb::detection_service_server::DetectionServiceServer,
    telemetry::{Metrics, Panicked, Rejection},
};

/// Stands before all services. Clones are one guard: the transport makes one for
/// every call.
#[derive(Clone)]
pub struct Guard {
    post: Arc<Post>,
    /// Events are handed to it past the router, which looks at a path as if it could
    /// be any, and wraps each body twice.
    detection: DetectionServiceServer<Api>,
}

pub struct Post {
    auth: Arc<Auth>,
    metrics: Arc<Metrics>,
    turns: Turns,
    others: Others,
    calls: Places,
    pages: Places,
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

/// So many calls are answered as they come, of whichever tenant. While there are
/// more, and not all of one tenant, each stands in its tenant's line before it is
/// read: else a tenant would wait for all calls of another. As many take 0.4 ms,
/// less than a termination takes to be on disk; to stand in line costs an
/// allocation and to be woken once more, which takes a tenth off what calls are
/// served: few calls need not pay it, and many of one tenant neither.
const CALLS_AS_THEY_COME: usize = 16;

/// What is answered with up to 1 MiB. Nothing but their client says when that is
/// read …
const LARGE: [&str; 3] = [
    "/unstuck.v1.SessionService/GetSession",
    "/unstuck.v1.SessionService/ListSessions",
    "/unstuck.v1.SessionService/ListVerdicts",
];
/// … so there are no more of them at a time, of which each tenant has its share.
const PAGES_MAX: usize = 256;

/// What the paths of its calls begin with.
const DETECTION: &str = "/unstuck.v1.DetectionService/";

impl Service<HttpRequest<Body>> for Guarded {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Call;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<HttpRequest<Body>>::poll_ready(&mut self.routes, cx)
    }

    fn call(&mut self, mut request: HttpRequest<Body>) -> Call {
        let (pass, lasting) = match self.guard.admit(&mut request) {
            Ok(admitted) => admitted,
            Err(refused) => return Call::Refused(Some(refused)),
        };
        let answer = match lasting {
            _ if request.uri().path().starts_with(DETECTION) => self.guard.detection.call(request),
            None => Box::pin(self.routes.call(request)),
            Some(lasting) => {
                let answer = self.routes.call(lasting.asked(request));
                Box::pin(async move { Ok(lasting.answered(answer.await?)) })
            }
        };
        Call::Admitted {
            post: self.guard.post.clone(),
            pass,
            answer,
            deadline: None,
        }
    }
}

/// A call until it is answered. A stream is answered at once, and goes on after
/// that.
pub enum Call {
    Refused(Option<Status>),
    Admitted {
        post: Arc<Post>,
        pass: Option<Pass>,
        answer: BoxFuture<Response<Body>, Infallible>,
        /// Only who has to wait needs one.
        deadline: Option<Pin<Box<Sleep>>>,
    },
}

/// What a call holds that may be refused.
pub struct Pass {
    line: Line,
    place: Place,
    /// Of a call whose answer is large: until it was read.
    page: Option<Place>,
}

type Admitted = (Option<Pass>, Option<Lasting>);

impl Future for Call {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (post, pass, answer, deadline) = match &mut *self {
            Self::Refused(refused) => {
                let refused = refused.take().unwrap_or_else(status::internal);
                return Poll::Ready(Ok(refused.into_http()));
            }
            Self::Admitted {
                post,
                pass,
                answer,
                deadline,
            } => (post, pass, answer, deadline),
        };
        let mut answer = |cx: &mut Context<'_>| {
            // Unheeded, a panic would end the connection, and nobody would know why.
            let polled = AssertUnwindSafe(|| answer.as_mut().poll(cx));
            panic::catch_unwind(polled).unwrap_or_else(|_| {
                post.metrics.panicked(Panicked::Call);
                Poll::Ready(Ok(status::internal().into_http()))
            })
        };
        let answered = match pass {
            Some(pass) => {
                let is_crowd = pass.place.is_in_crowd(CALLS_AS_THEY_COME);
                pass.line.poll(cx, is_crowd, answer)
            }
            None => answer(cx),
        };
        let answered = match answered {
            Poll::Ready(answered) => answered.inspect(|answer| {
                let why = status::unread_in(answer.headers());
                why.into_iter().for_each(|why| post.metrics.rejected(why));
            }),
            Poll::Pending => {
                let secs = post.call_secs_max;
                let begin = || Box::pin(sleep(Duration::from_secs(secs)));
                let deadline = deadline.get_or_insert_with(begin);
                if deadline.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                post.metrics.rejected(Rejection::CallSecsMax);
                Ok(status::call_too_long(secs).into_http())
            }
        };
        // The call's place is free before the caller hears of it, and calls again.
        let page = pass.take().and_then(|pass| pass.page);
        Poll::Ready(answered.map(|mut answer| {
            let stream = answer.extensions_mut().remove::<unread::OfStream>();
            match (stream, page) {
                (Some(stream), _) => answer.map(|body| unread::with(body, stream.0)),
                (None, Some(page)) => answer.map(|body| unread::with(body, Arc::new(page))),
                (None, None) => answer,
            }
        }))
    }
}

impl Guard {
    pub(super) fn new(api: &Api) -> Self {
        let (limits, auth) = (&api.limits, &api.auth);
        let post = Arc::new(Post {
            calls: Places::new(limits.calls_max, auth.clone()),
            pages: Places::new(PAGES_MAX, auth.clone()),
            calls_max: limits.calls_max,
            call_secs_max: limits.call_secs_max,
            turns: api.turns.clone(),
            others: Others::new(api),
            auth: auth.clone(),
            metrics: api.metrics.clone(),
        });
        let detection = DetectionServiceServer::new(api.clone())
            .max_decoding_message_size(limits.message_bytes_max);
        Self { post, detection }
    }

    /// Finds out who calls, and notes it in the request; a pass for the call, or
    /// what one of the streams that are not ours has.
    fn admit(&self, request: &mut HttpRequest<Body>) -> Result<Admitted, Status> {
        let authorization = request.headers().get(AUTHORIZATION);
        let authorization = authorization.map(|value| value.as_bytes());
        let path = request.uri().path();
        let caller = self
            .post
            .auth
            .admit(authorization, path)
            .map_err(|denied| {
                self.post.metrics.rejected(denied.rejection());
                Status::from(denied)
            })?;
        let pass = self.pass(&caller, path)?;
        let lasting = self.post.others.begin(&caller, path)?;
        request.extensions_mut().insert(caller);
        Ok((pass, lasting))
    }

    /// A place for a call, while it is answered, and where it waits for its turn.
    /// What operators do needs neither, nor do probes: they must get through.
    fn pass(&self, caller: &Caller, path: &str) -> Result<Option<Pass>, Status> {
        if !auth::may_be_refused(path) {
            return Ok(None);
        }
        let place = self.post.calls.take(&caller.tenant).map_err(|share| {
            self.post.metrics.rejected(Rejection::CallsMax);
            status::too_many_calls(self.post.calls_max, share)
        })?;
        let is_large = LARGE.contains(&path);
        let page = is_large.then(|| self.post.pages.take(&caller.tenant));
        let page = page.transpose().map_err(|share| {
            self.post.metrics.rejected(Rejection::CallsMax);
            status::too_many_pages(PAGES_MAX, share)
        })?;
        let line = self.post.turns.line(caller.tenant.clone());
        Ok(Some(Pass { line, place, page }))
    }
}

/// Who calls, as was found before.
pub(super) fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    // Nobody comes here unasked; if somebody did, it is better to refuse.
    Ok(caller.ok_or(Denied::NoToken)?)
}

#[cfg(test)]
mod tests {
    use std::{io::Write, sync::Mutex};

    use prost::Message;
    use tokio::task::JoinSet;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        api::cores,
        auth::{Entry, Role, Secret},
        config::{Config, DEFAULTS, Layers},
        domain::Tenant,
        engine::{Clockwork, Engine},
        pb,
        store::{Opening, Store},
    };

    /// The services, and what brokers of these tenants send to be let in.
    fn guarded(tenants: [&str; 2]) -> (Guarded, [String; 2]) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let headers = tenants.map(|tenant| {
            let (tenant, secret) = (Tenant::parse(tenant).unwrap(), Secret::new().unwrap());
            let entry = Entry::new(tenant.name(), Role::Broker, &tenant, &secret).unwrap();
            writeln!(file, "{entry}").unwrap();
            format!("Bearer {}", secret.reveal())
        });
        let tokens = file.path().to_owned();
        let auth = Arc::new(Auth::new(&auth::Settings { tokens }).unwrap());
        let memory = ("UNSTUCK__STORE__DIR".to_owned(), String::new());
        let layers = Layers::load(DEFAULTS, &[], None, [memory]).unwrap();
        let config = Config::new(&layers).unwrap();
        let (store, _) = Store::open(Opening::in_a_test(&config)).unwrap();
        let metrics = Arc::new(Metrics::new([]).unwrap());
        let engine = Engine::new(
            config.profiles,
            config.tools,
            config.engine,
            metrics.clone(),
            Clockwork::Live,
            store.outlet(),
        );
        let (engine, store) = (Arc::new(engine), Arc::new(store));
        let draining = CancellationToken::new();
        let api = Api::new(auth, engine, store, metrics, config.api, draining);
        (api.guard().layer(api.routes().unwrap()), headers)
    }

    fn record(authorization: &str) -> HttpRequest<Body> {
        let marker = pb::event::Body::Marker(pb::Marker {
            kind: pb::MarkerKind::NewRun.into(),
            ..pb::Marker::default()
        });
        let event = Some(pb::Event {
            session_id: "s".to_owned(),
            body: Some(marker),
            ..pb::Event::default()
        });
        let message = pb::RecordEventRequest { event }.encode_to_vec();
        // Not compressed, and so long.
        let mut body = vec![0];
        body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        body.extend(message);
        HttpRequest::post("/unstuck.v1.DetectionService/RecordEvent")
            .header(AUTHORIZATION, authorization)
            .body(Body::new(axum::body::Body::from(body)))
            .unwrap()
    }

    #[tokio::test]
    async fn a_panic_in_a_call_is_answered_with_a_reference_and_counted() {
        let (mut services, [token, _]) = guarded(["t", "u"]);
        let Call::Admitted {
            post,
            pass,
            deadline,
            ..
        } = services.call(record(&token))
        else {
            panic!("the token is known");
        };
        let metrics = post.metrics.clone();
        let call = Call::Admitted {
            post,
            pass,
            answer: Box::pin(async { panic!("said by an agent") }),
            deadline,
        };
        let answer = call.await.unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(status.code(), tonic::Code::Internal);
        assert!(status.message().contains("reference"), "{status:?}");
        assert!(!format!("{status:?}").contains("agent"), "{status:?}");
        let counted = "unstuck_panics_total{where=\"call\"} 1";
        assert!(metrics.render().contains(counted));
    }

    #[tokio::test]
    async fn a_call_waits_for_few_calls_of_another_tenant_however_many_there_are() {
        let (mut services, [many, few]) = guarded(["many", "few"]);
        let answered = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for (of, count) in [(&many, 500), (&few, 1)] {
            for _ in 0..count {
                let (call, answered) = (services.call(record(of)), answered.clone());
                let is_few = *of == few;
                tasks.spawn(async move {
                    let answer = call.await.unwrap();
                    assert!(!answer.headers().contains_key(Status::GRPC_STATUS));
                    answered.lock().unwrap().push(is_few);
                });
            }
        }
        tasks.join_all().await;
        let answered = answered.lock().unwrap();
        assert_eq!(answered.len(), 501);
        let before = answered.iter().position(|is_few| *is_few).unwrap();
        // Those that came first, and for each turn one that was called by then.
        let most = CALLS_AS_THEY_COME + 2 * cores();
        assert!(before <= most, "{before} of theirs before the one");
    }
}
