//! The layer in front of all services. It authenticates the caller once, takes the
//! permits that the rpc table asks for before the message is read, and queues unary
//! calls by tenant under contention.

use std::{
    convert::Infallible,
    mem::take,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
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
    Limits, ServerContext,
    auth_delay::AnswerDelay,
    frame_reader::{FrameReader, MessageLimits, RequestFrames},
    quota::{AddressPermit, AddressQuota, Permit, TenantQuota},
    reserve::{ConnectionInfo, ReserveSlot},
    retain_body,
    rpc::{self, LoadClass, ResponseKind, RpcSpec},
    scheduler::SchedulerHandle,
    status,
    third_party::ThirdPartyStream,
};
use crate::{
    auth::{Access, AuthError, Caller, PeerAddress},
    telemetry::{GaugeGuard, PanicSite, Rejection, StreamRpc},
};

/// Makes the [`AdmissionService`]. `D` is the detection service: events bypass the
/// router, which would match their path as if it could be any and box each body
/// twice.
#[derive(Clone)]
pub struct AdmissionLayer<D> {
    state: Arc<AdmissionState>,
    detection: D,
}

pub struct AdmissionState {
    context: Arc<ServerContext>,
    /// Permits for unary calls, released when the response begins.
    call_quota: TenantQuota,
    /// Permits for pages, released when the page has been sent.
    page_quota: TenantQuota,
    pages_max: usize,
    message_limits: Arc<MessageLimits>,
    /// Permits for streams of the health service, whose clients have no token.
    health_watches: AddressQuota,
    /// Permits for its unary calls, which may never send their message.
    probes: AddressQuota,
}

/// The services behind admission.
#[derive(Clone)]
pub struct AdmissionService<D> {
    admission: AdmissionLayer<D>,
    routes: Routes,
}

impl<D: Clone> Layer<Routes> for AdmissionLayer<D> {
    type Service = AdmissionService<D>;

    fn layer(&self, routes: Routes) -> Self::Service {
        AdmissionService {
            admission: self.clone(),
            routes,
        }
    }
}

/// Up to this many concurrent unary calls run immediately. Above that, if more than
/// one tenant is active, each call waits in its tenant's queue before its body is
/// read: otherwise a tenant would wait for all calls of another. 16 calls take
/// 0.4 ms, less than a termination takes to reach the disk; queueing costs an
/// allocation and a wake-up, a tenth of the throughput.
const UNQUEUED_CALLS_MAX: usize = 16;

/// The largest page. The pages that are not sent yet stay within
/// `limits.unread_bytes_max`.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// The prefix of the detection service's paths.
const DETECTION_PATH_PREFIX: &str = "/unstuck.v1.DetectionService/";

impl<D> Service<HttpRequest<Body>> for AdmissionService<D>
where
    D: Service<
            HttpRequest<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future = BoxFuture<Response<Body>, Infallible>,
        >,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = AdmittedCall;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<HttpRequest<Body>>::poll_ready(&mut self.routes, cx)
    }

    fn call(&mut self, mut request: HttpRequest<Body>) -> AdmittedCall {
        let admitted = match self.admission.state.admit(&mut request) {
            Ok(admitted) => admitted,
            Err(RejectedCall { status, delay }) => {
                let status = Some(status);
                return AdmittedCall::Rejected { status, delay };
            }
        };
        let CallPermits {
            call_permit,
            response_permit,
            third_party,
        } = admitted;
        let response = match third_party {
            _ if request.uri().path().starts_with(DETECTION_PATH_PREFIX) => {
                self.admission.detection.call(request)
            }
            None => Box::pin(self.routes.call(request)),
            Some(stream) => {
                let response = self.routes.call(stream.bound_request(request));
                Box::pin(async move { Ok(stream.bound_response(response.await?)) })
            }
        };
        AdmittedCall::Running {
            state: self.admission.state.clone(),
            call_permit,
            response_permit,
            response,
            deadline: None,
        }
    }
}

/// A call until its response begins. A stream's response begins at once.
pub enum AdmittedCall {
    Rejected {
        status: Option<Status>,
        /// Before an unknown token is answered.
        delay: Option<AnswerDelay>,
    },
    Running {
        state: Arc<AdmissionState>,
        /// For a call that is limited. Released when the response begins.
        call_permit: Option<CallPermit>,
        /// Released when the response has been sent.
        response_permit: Option<ResponsePermit>,
        response: BoxFuture<Response<Body>, Infallible>,
        /// Created when the call is first pending.
        deadline: Option<Pin<Box<Sleep>>>,
    },
}

/// One of `limits.calls_max`, and the call's handle to the scheduler.
pub struct CallPermit {
    handle: SchedulerHandle,
    permit: Permit,
}

/// One of the pages or streams that may be open at a time.
pub struct ResponsePermit {
    _permit: StreamPermit,
    /// The gauge of open streams.
    _open: Option<GaugeGuard>,
}

/// The holder of a permit is a tenant, or an address without a token.
enum StreamPermit {
    Tenant { _permit: Permit },
    Address { _permit: AddressPermit },
}

/// A call that is answered without a handler.
struct RejectedCall {
    status: Status,
    delay: Option<AnswerDelay>,
}

impl From<Status> for RejectedCall {
    fn from(status: Status) -> Self {
        Self {
            status,
            delay: None,
        }
    }
}

struct CallPermits {
    call_permit: Option<CallPermit>,
    response_permit: Option<ResponsePermit>,
    third_party: Option<ThirdPartyStream>,
}

impl Future for AdmittedCall {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (state, call_permit, response_permit, response, deadline) = match &mut *self {
            Self::Rejected { status, delay } => {
                if let Some(delay) = delay {
                    ready!(delay.sleep.as_mut().poll(cx));
                }
                let rejected = status.take().unwrap_or_else(status::internal);
                return Poll::Ready(Ok(rejected.into_http()));
            }
            Self::Running {
                state,
                call_permit,
                response_permit,
                response,
                deadline,
            } => (state, call_permit, response_permit, response, deadline),
        };
        let metrics = &state.context.metrics;
        let mut poll_response = |cx: &mut Context<'_>| {
            // Uncaught, a panic would close the connection without a status.
            let polled = AssertUnwindSafe(|| response.as_mut().poll(cx));
            panic::catch_unwind(polled).unwrap_or_else(|_| {
                metrics.count_panic(PanicSite::Call);
                Poll::Ready(Ok(status::internal().into_http()))
            })
        };
        // Poll the handler. Under contention the call queues for a scheduler slot.
        let polled = match call_permit {
            Some(CallPermit { handle, permit }) => {
                let is_contended = permit.is_contended(UNQUEUED_CALLS_MAX);
                handle.poll(cx, is_contended, poll_response)
            }
            None => poll_response(cx),
        };
        // Count what tonic rejected, or check the deadline of a pending call.
        let answered = match polled {
            Poll::Ready(answered) => answered.inspect(|answer| {
                if let Some(why) = status::transport_rejection_in(answer.headers()) {
                    metrics.count_rejection(why);
                }
            }),
            Poll::Pending => {
                let secs = state.context.limits.call_secs_max;
                let deadline =
                    deadline.get_or_insert_with(|| Box::pin(sleep(Duration::from_secs(secs))));
                if deadline.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                metrics.count_rejection(Rejection::CallSecsMax);
                Ok(status::call_too_long(secs).into_http())
            }
        };
        // The call's permit is released before the caller gets the response and may
        // call again; the response's permit goes with its body.
        *call_permit = None;
        let permit = response_permit.take();
        Poll::Ready(answered.map(|answer| match permit {
            Some(permit) => answer.map(|body| retain_body::retain(body, permit)),
            None => answer,
        }))
    }
}

impl<D> AdmissionLayer<D> {
    pub fn new(context: Arc<ServerContext>, detection: D) -> Self {
        let (limits, auth) = (&context.limits, &context.auth);
        let pages_max = (limits.unread_bytes_max / PAGE_BYTES_MAX).max(1);
        let message_limits = MessageLimits::new(
            limits.message_bytes_max,
            limits.unread_bytes_max,
            |blocks| TenantQuota::new(blocks, auth.clone()),
            context.metrics.clone(),
        );
        let state = Arc::new(AdmissionState {
            call_quota: TenantQuota::new(limits.calls_max, auth.clone()),
            page_quota: TenantQuota::new(pages_max, auth.clone()),
            pages_max,
            message_limits: Arc::new(message_limits),
            health_watches: health_watch_quota(limits),
            probes: AddressQuota::new(limits.calls_max, (limits.calls_max / 2).max(1)),
            context,
        });
        Self { state, detection }
    }
}

impl AdmissionState {
    /// Authenticates the caller, inserts it into the request's extensions, and takes
    /// the permits that the call needs.
    fn admit(&self, request: &mut HttpRequest<Body>) -> Result<CallPermits, RejectedCall> {
        let spec = rpc::find(request.uri().path());
        let header = request.headers().get(AUTHORIZATION);
        let (context, peer) = (&self.context, peer_address(request));
        let caller = context
            .auth
            .authorize(header.map(|value| value.as_bytes()), spec.access)
            .map_err(|denied| {
                context.metrics.count_rejection(denied.rejection());
                let is_unknown = denied == AuthError::UnknownToken;
                RejectedCall {
                    status: denied.into(),
                    delay: is_unknown
                        .then(|| context.auth_delays.count_unknown_token(peer))
                        .flatten(),
                }
            })?
            .with_peer(peer);
        self.check_rate(spec, &caller)?;
        if let Some(slot) = reserve_slot(request) {
            slot.set_authorized(spec.access);
        }
        let admitted = CallPermits {
            call_permit: self.call_permit(spec, &caller)?,
            response_permit: self.response_permit(spec, &caller, peer)?,
            third_party: ThirdPartyStream::new(spec.response, &caller, context),
        };
        self.read_frames(spec, &caller, request);
        request.extensions_mut().insert(caller);
        Ok(admitted)
    }

    /// Puts a frame reader in front of the body, or in its place for the handlers of
    /// events and deltas. A probe's message is at most 1 KiB and needs none.
    fn read_frames(&self, spec: &RpcSpec, caller: &Caller, request: &mut HttpRequest<Body>) {
        if spec.access == Access::Public {
            return;
        }
        let body = take(request.body_mut());
        let tenant = caller.tenant.clone();
        let reader = FrameReader::new(body, self.message_limits.clone(), tenant);
        match spec.response {
            ResponseKind::Stream(StreamRpc::StreamEvents | StreamRpc::StreamDeltas) => {
                request.extensions_mut().insert(RequestFrames::new(reader));
            }
            _ => *request.body_mut() = Body::new(reader),
        }
    }

    /// Counts a unary call against the caller's rate. The events of a stream are
    /// counted one by one.
    fn check_rate(&self, spec: &RpcSpec, caller: &Caller) -> Result<(), Status> {
        if spec.load == LoadClass::Exempt {
            return Ok(());
        }
        let rate = self.context.rate_limits.caller_rate(caller);
        rate.check().map_err(|exceeded| {
            let metrics = &self.context.metrics;
            metrics.count_rejection(Rejection::EventsPerSecondMax);
            status::rate_exceeded(exceeded.to_string(), exceeded.retry_after)
        })
    }

    fn call_permit(&self, spec: &RpcSpec, caller: &Caller) -> Result<Option<CallPermit>, Status> {
        if spec.load == LoadClass::Exempt {
            return Ok(None);
        }
        let context = &self.context;
        let permit = self
            .call_quota
            .try_acquire(&caller.tenant)
            .map_err(|share| {
                context.metrics.count_rejection(Rejection::CallsMax);
                status::too_many_calls(context.limits.calls_max, share)
            })?;
        let handle = context.scheduler.handle(caller.tenant.clone());
        Ok(Some(CallPermit { handle, permit }))
    }

    fn response_permit(
        &self,
        spec: &RpcSpec,
        caller: &Caller,
        peer: Option<PeerAddress>,
    ) -> Result<Option<ResponsePermit>, Status> {
        let streams = &self.context.streams;
        let permit = match spec.response {
            ResponseKind::Small if spec.access == Access::Public => self.probe(peer)?,
            ResponseKind::Small => return Ok(None),
            ResponseKind::Page => self.page(caller)?,
            ResponseKind::Stream(rpc) => self.stream(streams, rpc, caller)?,
            ResponseKind::ReflectionStream => {
                self.stream(streams, StreamRpc::ServerReflectionInfo, caller)?
            }
            ResponseKind::HealthStream => self.health_watch(peer)?,
        };
        Ok(Some(permit))
    }

    fn page(&self, caller: &Caller) -> Result<ResponsePermit, Status> {
        let permit = self
            .page_quota
            .try_acquire(&caller.tenant)
            .map_err(|share| {
                self.context.metrics.count_rejection(Rejection::CallsMax);
                status::too_many_pages(self.pages_max, share)
            })?;
        Ok(ResponsePermit {
            _permit: StreamPermit::Tenant { _permit: permit },
            _open: None,
        })
    }

    fn probe(&self, peer: Option<PeerAddress>) -> Result<ResponsePermit, Status> {
        let permit = self.probes.try_acquire(peer).map_err(|share| {
            self.context.metrics.count_rejection(Rejection::CallsMax);
            status::too_many_probes(self.probes.limit(), share)
        })?;
        Ok(ResponsePermit {
            _permit: StreamPermit::Address { _permit: permit },
            _open: None,
        })
    }

    fn health_watch(&self, peer: Option<PeerAddress>) -> Result<ResponsePermit, Status> {
        let metrics = &self.context.metrics;
        let permit = self.health_watches.try_acquire(peer).map_err(|share| {
            metrics.count_rejection(Rejection::HealthWatchesMax);
            status::too_many_health_watches(self.health_watches.limit(), share)
        })?;
        Ok(ResponsePermit {
            _permit: StreamPermit::Address { _permit: permit },
            _open: Some(metrics.track_stream(StreamRpc::HealthWatch)),
        })
    }

    fn stream(
        &self,
        quota: &TenantQuota,
        rpc: StreamRpc,
        caller: &Caller,
    ) -> Result<ResponsePermit, Status> {
        let context = &self.context;
        let permit = quota.try_acquire(&caller.tenant).map_err(|share| {
            context.metrics.count_rejection(Rejection::OpenStreamsMax);
            status::too_many_streams(context.limits.open_streams_max, share)
        })?;
        Ok(ResponsePermit {
            _permit: StreamPermit::Tenant { _permit: permit },
            _open: Some(context.metrics.track_stream(rpc)),
        })
    }
}

/// Health watches need no token, and each may hold a connection. They may hold half of
/// them, and one address half of these: the rest is left for brokers and for probes
/// that call `Check`.
fn health_watch_quota(limits: &Limits) -> AddressQuota {
    let total = (limits.connections_max / 2).clamp(1, limits.open_streams_max);
    AddressQuota::new(total, (total / 2).max(1))
}

/// The address of the connection that a request came from.
fn peer_address<B>(request: &HttpRequest<B>) -> Option<PeerAddress> {
    let connection = request.extensions().get::<ConnectionInfo>()?;
    Some(PeerAddress::new(connection.tcp.remote_addr()?.ip()))
}

/// The slot of a connection above `limits.connections_max`.
fn reserve_slot<B>(request: &HttpRequest<B>) -> Option<&ReserveSlot> {
    let connection = request.extensions().get::<ConnectionInfo>()?;
    connection.reserve_slot.as_deref()
}

/// The caller, as admission found it.
pub fn authenticated_caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    // Every request passes through admission; without it, refuse.
    Ok(caller.ok_or(AuthError::NoToken)?)
}

/// The reader of a stream's request body.
pub fn request_frames<T>(request: &Request<T>) -> Result<FrameReader, Status> {
    let frames = request.extensions().get::<RequestFrames>();
    frames
        .and_then(RequestFrames::take)
        .ok_or_else(status::internal)
}

#[cfg(test)]
mod tests {
    use std::{io::Write, sync::Mutex};

    use prost::Message;
    use tokio::task::JoinSet;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        api::Api,
        auth::{self, Auth, TokenLine, TokenRole, TokenSecret},
        domain::{Tenant, clock::cores},
        engine::RunMode,
        pb,
        telemetry::Metrics,
        testing,
    };

    type Services = AdmissionService<pb::detection_service_server::DetectionServiceServer<Api>>;

    /// The services behind admission, and the authorization headers of a broker of
    /// each tenant.
    fn admission_service(tenants: [&str; 2]) -> (Services, [String; 2]) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let headers = tenants.map(|tenant| {
            let (tenant, secret) = (Tenant::parse(tenant).unwrap(), TokenSecret::new().unwrap());
            let entry = TokenLine::new(tenant.name(), TokenRole::Broker, &tenant, &secret).unwrap();
            writeln!(file, "{entry}").unwrap();
            format!("Bearer {}", secret.reveal())
        });
        let tokens = file.path().to_owned();
        let auth = Arc::new(Auth::new(&auth::Settings { tokens }).unwrap());
        let config = testing::config(&[]);
        let limits = config.limits.clone();
        let store = Arc::new(testing::store(&config));
        let engine = Arc::new(testing::engine(config, RunMode::Live, store.verdict_sink()));
        let metrics = Arc::new(Metrics::new([]).unwrap());
        let context = ServerContext::new(auth, metrics, limits, CancellationToken::new());
        let api = Api::new(engine, store, Arc::new(context));
        (api.admission().layer(api.routes().unwrap()), headers)
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
        // The gRPC frame: not compressed, then the length.
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
        let (mut services, [token, _]) = admission_service(["t", "u"]);
        let AdmittedCall::Running {
            state,
            call_permit,
            response_permit,
            deadline,
            ..
        } = services.call(record(&token))
        else {
            panic!("the token is known");
        };
        let metrics = state.context.metrics.clone();
        let call = AdmittedCall::Running {
            state,
            call_permit,
            response_permit,
            response: Box::pin(async { panic!("said by an agent") }),
            deadline,
        };
        let answer = call.await.unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(status.code(), tonic::Code::Internal);
        assert!(status.message().contains("reference"), "{status:?}");
        assert!(!format!("{status:?}").contains("agent"), "{status:?}");
        let counted = "unstuck_panics_total{site=\"call\"} 1";
        assert!(metrics.render().contains(counted));
    }

    #[tokio::test]
    async fn a_call_waits_for_few_calls_of_another_tenant_however_many_there_are() {
        let (mut services, [many, few]) = admission_service(["many", "few"]);
        let answered = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for (header, count) in [(&many, 500), (&few, 1)] {
            for _ in 0..count {
                let (call, answered) = (services.call(record(header)), answered.clone());
                let is_few = *header == few;
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
        // The calls that were not queued, and for each slot one that ran and one that
        // was granted by then.
        let max = UNQUEUED_CALLS_MAX + 2 * cores();
        assert!(before <= max, "{before} calls of `many` ran before `few`");
    }
}
