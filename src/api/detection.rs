use std::{
    future::{Future, poll_fn},
    mem::take,
    pin::pin,
    task::Poll,
    time::{Duration, Instant, SystemTime},
};

use tonic::{Request, Response, Status, Streaming, async_trait};
use tracing::{Instrument, Span};

use super::{Api, InvalidArgument, convert, now, present, termination_pushes::TerminationPushes};
use crate::{
    auth::Caller,
    domain::Verdict,
    engine::RecordOutcome,
    pb::{self, detection_service_server::DetectionService},
    server::{
        admission::authenticated_caller,
        idle_timer::IdleTimer,
        response_queue::{self, ResponseSender, ResponseStream, SendOutcome, StreamResponse},
        scheduler::yield_to_others,
        status,
    },
    telemetry::{Rejection, StreamRpc, traces},
};

#[async_trait]
impl DetectionService for Api {
    async fn record_event(
        &self,
        request: Request<pb::RecordEventRequest>,
    ) -> Result<Response<pb::RecordEventResponse>, Status> {
        let caller = authenticated_caller(&request)?;
        let pb::RecordEventRequest { event } = request.into_inner();
        let mut event = event.unwrap_or_default();
        let recorded = self.record_unary(&caller.tenant, &mut event)?;
        self.yield_to_store_writer();
        let verdict = self.present_recorded_verdict(&recorded).await;
        let (session_id, event_id) = (event.session_id, event.event_id);
        let result = Some(present::build_event_result(
            session_id, event_id, &recorded, verdict,
        ));
        Ok(Response::new(pb::RecordEventResponse { result }))
    }

    type StreamEventsStream = ResponseStream<pb::StreamEventsResponse>;

    async fn stream_events(
        &self,
        request: Request<Streaming<pb::StreamEventsRequest>>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let caller = authenticated_caller(&request)?;
        Ok(self.serve_stream::<EventStreamHandler>(caller, request.into_inner()))
    }

    type StreamDeltasStream = ResponseStream<pb::StreamDeltasResponse>;

    async fn stream_deltas(
        &self,
        request: Request<Streaming<pb::StreamDeltasRequest>>,
    ) -> Result<Response<Self::StreamDeltasStream>, Status> {
        let caller = authenticated_caller(&request)?;
        Ok(self.serve_stream::<DeltaStreamHandler>(caller, request.into_inner()))
    }
}

/// What differs between the two streams.
trait StreamHandler: Send + 'static {
    type Request: Send + 'static;
    type Response: StreamResponse;
    const RPC: StreamRpc;

    /// What to send for a request that came at this time.
    fn handle(
        api: &Api,
        request: Self::Request,
        came: Instant,
        pushes: &TerminationPushes,
    ) -> impl Future<Output = Result<Vec<Self::Response>, InvalidArgument>> + Send;
}

/// How long a stream with much to say is listened to before others have their
/// turn; a message that was begun is looked at to its end. Everybody else, operators
/// too, waits for as long: short beside the millisecond that a termination takes to
/// be on disk, long beside the microsecond that it takes to call the next.
const TIME_SLICE: Duration = Duration::from_micros(100);

struct EventStreamHandler;

impl StreamHandler for EventStreamHandler {
    type Request = pb::StreamEventsRequest;
    type Response = pb::StreamEventsResponse;
    const RPC: StreamRpc = StreamRpc::StreamEvents;

    async fn handle(
        api: &Api,
        request: Self::Request,
        received_at: Instant,
        pushes: &TerminationPushes,
    ) -> Result<Vec<Self::Response>, InvalidArgument> {
        let pb::StreamEventsRequest {
            sequence,
            mut events,
        } = request;
        if sequence < 1 {
            return Err(InvalidArgument::new("sequence", "must be at least 1"));
        }
        api.check_batch_len("events", events.len())?;
        let (now, mut since) = (now(), received_at);
        let mut results = Vec::with_capacity(events.len());
        for event in &mut events {
            results.push(api.answer_event(event, now, &mut since, pushes).await);
        }
        Ok(vec![pb::StreamEventsResponse { sequence, results }])
    }
}

struct DeltaStreamHandler;

impl StreamHandler for DeltaStreamHandler {
    type Request = pb::StreamDeltasRequest;
    type Response = pb::StreamDeltasResponse;
    const RPC: StreamRpc = StreamRpc::StreamDeltas;

    async fn handle(
        api: &Api,
        request: Self::Request,
        _came: Instant,
        pushes: &TerminationPushes,
    ) -> Result<Vec<Self::Response>, InvalidArgument> {
        let pb::StreamDeltasRequest { deltas } = request;
        api.check_batch_len("deltas", deltas.len())?;
        let now = now();
        let mut responses = Vec::new();
        for delta in deltas {
            responses.extend(api.answer_delta(delta, now, pushes).await);
        }
        Ok(responses)
    }
}

/// What came next on a stream.
struct NextRequest<T> {
    /// `None`: nothing, for too long.
    request: Option<Result<Option<T>, Status>>,
    /// It was not there yet.
    has_waited: bool,
}

/// The next request. Most are there already: only who waits looks at the clock.
async fn next_request<T>(inbound: &mut Streaming<T>, idle_timer: &mut IdleTimer) -> NextRequest<T> {
    let mut has_waited = false;
    let mut message = pin!(inbound.message());
    let mut expired = pin!(idle_timer.expired());
    let request = poll_fn(|cx| match message.as_mut().poll(cx) {
        Poll::Ready(request) => Poll::Ready(Some(request)),
        Poll::Pending => {
            has_waited = true;
            expired.as_mut().poll(cx).map(|()| None)
        }
    });
    let request = request.await;
    NextRequest {
        request,
        has_waited,
    }
}

impl Api {
    /// The verdict of an answer, durable where it must be.
    async fn present_recorded_verdict(&self, recorded: &RecordOutcome) -> Option<pb::Verdict> {
        match recorded.verdict.as_deref() {
            Some(verdict) => Some(self.present_settled_verdict(verdict).await),
            None => None,
        }
    }

    fn check_batch_len(&self, field: &str, len: usize) -> Result<(), InvalidArgument> {
        let batch_max = self.server.limits.batch_max;
        if (1..=batch_max).contains(&len) {
            return Ok(());
        }
        let why = format!("has {len} entries, not 1 to {batch_max}");
        Err(InvalidArgument::new(field, why))
    }

    /// The result of one event of many: a bad one harms nobody else.
    async fn answer_event(
        &self,
        event: &mut pb::Event,
        now: SystemTime,
        since: &mut Instant,
        pushes: &TerminationPushes,
    ) -> pb::EventResult {
        let recorded = self.record_stream_event(event, now, since, pushes);
        let (session_id, event_id) = (take(&mut event.session_id), take(&mut event.event_id));
        let recorded = match recorded {
            Ok(recorded) => recorded,
            Err(error) => return present::build_error_result(session_id, event_id, error),
        };
        let verdict = self.present_recorded_verdict(&recorded).await;
        if verdict.is_some() {
            // What it waited for the disk is none of the next one's.
            *since = Instant::now();
        }
        present::build_event_result(session_id, event_id, &recorded, verdict)
    }

    /// Takes an event of a stream in. Of its ids those are left in the message that
    /// may be sent back. (Apart from what waits for the disk: a future copies all
    /// that it holds, and this is half a kilobyte.)
    fn record_stream_event(
        &self,
        event: &mut pb::Event,
        now: SystemTime,
        since: &mut Instant,
        pushes: &TerminationPushes,
    ) -> Result<RecordOutcome, pb::Error> {
        let known = pushes.find_session(&event.session_id);
        let is_known = known.is_some();
        let parse = || convert::parse_session_id(pushes.tenant(), &event.session_id);
        let session = known.map_or_else(parse, Ok);
        let parsed = session
            .and_then(|session| convert::parse_event(session, event))
            .map_err(|invalid| {
                // Only what passed the checks is sent back.
                match invalid.field.as_str() {
                    "session_id" => {
                        event.session_id.clear();
                        event.event_id.clear();
                    }
                    "event_id" => event.event_id.clear(),
                    _ => {}
                }
                self.count_rejected(invalid)
            })?;
        let recorded = self.record(&parsed, now, since);
        event.event_id = parsed.event_id;
        let recorded = recorded?;
        let verdict = recorded.verdict.as_deref();
        if !is_known || verdict.is_some() {
            pushes.track_session(&parsed.session, verdict);
        }
        Ok(recorded)
    }

    /// What is to be said about a delta, if anything.
    async fn answer_delta(
        &self,
        mut delta: pb::Delta,
        now: SystemTime,
        pushes: &TerminationPushes,
    ) -> Option<pb::StreamDeltasResponse> {
        let known = pushes.find_session(&delta.session_id);
        let is_known = known.is_some();
        let parse = || convert::parse_session_id(pushes.tenant(), &delta.session_id);
        let session = known.map_or_else(parse, Ok);
        let parsed = match session.and_then(|session| convert::parse_delta(session, &mut delta)) {
            Ok(parsed) => parsed,
            Err(invalid) => return Some(self.reject_delta(delta, invalid)),
        };
        match self.record_delta(&parsed, now) {
            Ok(recorded) => {
                let verdict = recorded.as_ref().and_then(|r| r.verdict.as_deref());
                if !is_known || verdict.is_some() {
                    pushes.track_session(&parsed.session, verdict);
                }
                let recorded = recorded?;
                let action = recorded
                    .verdict
                    .as_deref()
                    .and_then(Verdict::effective_action);
                Some(pb::StreamDeltasResponse {
                    action: present::action_to_pb(action).into(),
                    verdict: self.present_recorded_verdict(&recorded).await,
                    ..present::build_delta_response(delta.session_id, parsed)
                })
            }
            Err(refused) => Some(pb::StreamDeltasResponse {
                error: Some(refused.into()),
                ..present::build_delta_response(delta.session_id, parsed)
            }),
        }
    }

    /// The answer to a delta that cannot be taken: only what passed the checks is
    /// sent back.
    fn reject_delta(&self, delta: pb::Delta, invalid: InvalidArgument) -> pb::StreamDeltasResponse {
        let mut response = pb::StreamDeltasResponse {
            session_id: delta.session_id,
            agent_id: delta.agent_id,
            turn_id: delta.turn_id,
            end_of_turn: delta.end_of_turn,
            ..pb::StreamDeltasResponse::default()
        };
        match invalid.field.as_str() {
            "session_id" => response = pb::StreamDeltasResponse::default(),
            "agent_id" => response.agent_id.clear(),
            "turn_id" => response.turn_id.clear(),
            _ => {}
        }
        response.error = Some(self.count_rejected(invalid).into());
        response
    }

    fn serve_stream<K: StreamHandler>(
        &self,
        caller: Caller,
        inbound: Streaming<K::Request>,
    ) -> Response<ResponseStream<K::Response>> {
        let api = self.clone();
        let call = Span::current();
        let served = response_queue::serve(self.stream_context(), |responses| async move {
            let requests = api.serve_requests_and_pushes::<K>(&caller, inbound, responses);
            let conversation = api.server.run_while_authorized(&caller, requests);
            conversation.instrument(call).await
        });
        Response::new(served)
    }

    /// Tells of terminations without waiting for a turn, and all else by turns.
    async fn serve_requests_and_pushes<K: StreamHandler>(
        &self,
        caller: &Caller,
        inbound: Streaming<K::Request>,
        responses: ResponseSender<K::Response>,
    ) -> Result<(), Status> {
        let tenant = caller.tenant.clone();
        let (pushes, terminations) = TerminationPushes::new(tenant.clone(), self);
        let requests = self.serve_requests::<K>(inbound, &responses, &pushes);
        tokio::select! {
            biased;
            never = pushes.push_terminations(terminations, |verdict| responses.send_urgent(verdict)) => match never {},
            ended = self.server.scheduler.schedule(tenant, requests) => ended,
        }
    }

    /// Goes on until the client is done, gone, silent for too long or reads
    /// nothing, or a message breaks the rules of the stream itself.
    async fn serve_requests<K: StreamHandler>(
        &self,
        mut inbound: Streaming<K::Request>,
        responses: &ResponseSender<K::Response>,
        pushes: &TerminationPushes,
    ) -> Result<(), Status> {
        let mut idle_timer = IdleTimer::new(self.server.limits.stream_idle_secs_max);
        // Since when there was always something to read.
        let mut busy_since = None;
        loop {
            let received = next_request(&mut inbound, &mut idle_timer).await;
            if received.has_waited {
                busy_since = None;
            }
            let Some(request) = received.request else {
                self.server
                    .metrics
                    .count_rejection(Rejection::StreamIdleSecsMax);
                return Err(status::idle());
            };
            let request = request.inspect_err(|status| {
                let why = status::unread(status.code());
                why.into_iter()
                    .for_each(|why| self.server.metrics.count_rejection(why));
            });
            let Some(request) = request? else {
                return Ok(());
            };
            let now = idle_timer.reset();
            if now - *busy_since.get_or_insert(now) >= TIME_SLICE {
                busy_since = None;
                yield_to_others().await;
            }
            let answers = K::handle(self, request, now.into_std(), pushes)
                .instrument(traces::message_span(K::RPC))
                .await
                .map_err(|invalid| self.count_rejected(invalid))?;
            self.yield_to_store_writer();
            for answer in answers {
                if responses.send(answer) == SendOutcome::Coalesced {
                    self.server.metrics.count_coalesced_response();
                }
            }
            if let Err(closed) = responses.wait_until_within_limit().await {
                return self.close_status(closed);
            }
        }
    }
}
