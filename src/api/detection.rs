//! DetectionService: records the events and deltas of unary calls and streams.
//!
//! A stream is served by one task. `serve_stream` starts it, `serve_requests` reads
//! one request after another and queues the responses, and [`TerminationPushes`]
//! runs beside it and sends terminations that were decided elsewhere.

use std::{
    future::{Future, poll_fn},
    mem::take,
    pin::pin,
    task::Poll,
    time::{Instant, SystemTime},
};

use tonic::{Request, Response, Status, Streaming, async_trait};
use tracing::{Instrument, Span};

use super::{Api, InvalidArgument, convert, now, present, terminations::TerminationPushes};
use crate::{
    auth::Caller,
    domain::Verdict,
    engine::RecordOutcome,
    pb::{self, detection_service_server::DetectionService},
    server::{
        admission::authenticated_caller,
        idle_timer::IdleTimer,
        response_queue::{self, ResponseSender, ResponseStream, SendOutcome, StreamResponse},
        scheduler::{TIME_SLICE, yield_to_others},
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
        let result = Some(present::build_event_result(
            event.session_id,
            event.event_id,
            &recorded,
            verdict,
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

/// What differs between StreamEvents and StreamDeltas.
trait StreamHandler: Send + 'static {
    type Request: Send + 'static;
    type Response: StreamResponse;
    const RPC: StreamRpc;

    /// The responses to a request that was received at this time.
    fn handle(
        api: &Api,
        request: Self::Request,
        received_at: Instant,
        pushes: &TerminationPushes,
    ) -> impl Future<Output = Result<Vec<Self::Response>, InvalidArgument>> + Send;
}

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
        let (now, mut last_finished_at) = (now(), received_at);
        let mut results = Vec::with_capacity(events.len());
        for event in &mut events {
            results.push(
                api.answer_event(event, now, &mut last_finished_at, pushes)
                    .await,
            );
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
        _received_at: Instant,
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

/// The result of waiting for a stream's next request.
struct NextRequest<T> {
    /// `None`: the stream was idle for too long.
    request: Option<Result<Option<T>, Status>>,
    /// The request had not arrived yet.
    has_waited: bool,
}

/// Waits for the next request. The idle timer is polled only if it has not arrived
/// yet; most have.
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
    })
    .await;
    NextRequest {
        request,
        has_waited,
    }
}

impl Api {
    /// The verdict of a response. A termination is settled first.
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

    /// The result of one event of a batch. An error affects only this event.
    async fn answer_event(
        &self,
        event: &mut pb::Event,
        now: SystemTime,
        last_finished_at: &mut Instant,
        pushes: &TerminationPushes,
    ) -> pb::EventResult {
        let result = self.record_stream_event(event, now, last_finished_at, pushes);
        let (session_id, event_id) = (take(&mut event.session_id), take(&mut event.event_id));
        let recorded = match result {
            Ok(recorded) => recorded,
            Err(error) => return present::build_error_result(session_id, event_id, error),
        };
        let verdict = self.present_recorded_verdict(&recorded).await;
        if verdict.is_some() {
            // Do not charge the wait for the disk to the next event's duration.
            *last_finished_at = Instant::now();
        }
        present::build_event_result(session_id, event_id, &recorded, verdict)
    }

    /// Records an event of a stream. The ids that may be sent back stay in the
    /// message. (A separate function, because a future stores everything that lives
    /// across an await, and the parsed event is half a kilobyte.)
    fn record_stream_event(
        &self,
        event: &mut pb::Event,
        now: SystemTime,
        last_finished_at: &mut Instant,
        pushes: &TerminationPushes,
    ) -> Result<RecordOutcome, pb::Error> {
        let (parsed, is_tracked) = pushes
            .resolve_session(&event.session_id)
            .and_then(|(session, is_tracked)| {
                Ok((convert::parse_event(session, event)?, is_tracked))
            })
            .map_err(|invalid| {
                // Only fields that passed the checks are sent back.
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
        let result = self.record(&parsed, now, last_finished_at);
        event.event_id = parsed.event_id;
        let recorded = result?;
        pushes.track_response(&parsed.session, is_tracked, recorded.verdict.as_deref());
        Ok(recorded)
    }

    /// The response to a delta, if it needs one.
    async fn answer_delta(
        &self,
        mut delta: pb::Delta,
        now: SystemTime,
        pushes: &TerminationPushes,
    ) -> Option<pb::StreamDeltasResponse> {
        let resolved = pushes.resolve_session(&delta.session_id);
        let (parsed, is_tracked) = match resolved.and_then(|(session, is_tracked)| {
            Ok((convert::parse_delta(session, &mut delta)?, is_tracked))
        }) {
            Ok(parsed) => parsed,
            Err(invalid) => return Some(self.reject_delta(delta, invalid)),
        };
        match self.record_delta(&parsed, now) {
            Ok(recorded) => {
                let verdict = recorded.as_ref().and_then(|r| r.verdict.as_deref());
                pushes.track_response(&parsed.session, is_tracked, verdict);
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

    /// The response to an invalid delta. Only fields that passed the checks are sent
    /// back.
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
        let api = self.for_stream_of(&caller);
        let call = Span::current();
        let served = response_queue::serve(self.stream_context(), |responses| async move {
            let requests = api.serve_requests_and_pushes::<K>(&caller, inbound, responses);
            let conversation = api.server.run_while_authorized(&caller, requests);
            conversation.instrument(call).await
        });
        Response::new(served)
    }

    /// Pushes terminations without a scheduler slot, and serves requests with one.
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

    /// Serves requests until the client closes the stream, disconnects, is idle for
    /// too long or does not read, or until a request is invalid as a whole.
    async fn serve_requests<K: StreamHandler>(
        &self,
        mut inbound: Streaming<K::Request>,
        responses: &ResponseSender<K::Response>,
        pushes: &TerminationPushes,
    ) -> Result<(), Status> {
        let mut idle_timer = IdleTimer::new(self.server.limits.stream_idle_secs_max);
        // Since when every request had arrived before it was polled for.
        let mut busy_since = None;
        loop {
            // Wait for a request.
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
            let message = request.inspect_err(|status| {
                if let Some(rejection) = status::transport_rejection(status.code()) {
                    self.server.metrics.count_rejection(rejection);
                }
            })?;
            let Some(message) = message else {
                return Ok(());
            };
            // Yield at the end of the time slice.
            let now = idle_timer.reset();
            if now - *busy_since.get_or_insert(now) >= TIME_SLICE {
                busy_since = None;
                yield_to_others().await;
            }
            // Handle it.
            let answers = K::handle(self, message, now.into_std(), pushes)
                .instrument(traces::message_span(K::RPC))
                .await
                .map_err(|invalid| self.count_rejected(invalid))?;
            self.yield_to_store_writer();
            // Queue the responses, and read on when the client has room for them.
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
