//! DetectionService: records the events and deltas of unary calls and streams.
//!
//! A stream is served by one task. `serve_stream` starts it, `serve_requests` reads
//! one request after another and queues the responses, and [`TerminationPushes`]
//! runs beside it and sends terminations that were decided elsewhere. A response with a
//! termination that is not on disk yet waits in [`WaitingResponses`]; later ones
//! overtake it.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    task::Poll,
    time::{Instant, SystemTime},
};

use prost::{Message, bytes::Bytes};
use tonic::{Request, Response, Status, Streaming, async_trait};
use tracing::{Instrument, Span};

use super::{
    Api, InvalidArgument,
    convert::{self, DecodedEntry, EncodedDeltasRequest, EncodedEventsRequest, decode_entry},
    now, present,
    shared::UnsavedEvent,
    terminations::TerminationPushes,
    waiting_responses::{Answer, CountAgain, WaitingResponses},
};
use crate::{
    auth::Caller,
    domain::VerdictId,
    engine::RecordOutcome,
    pb::{self, detection_service_server::DetectionService},
    server::{
        admission::{authenticated_caller, request_frames},
        frame_reader::FrameReader,
        idle_timer::IdleTimer,
        response_queue::{self, ResponseSender, ResponseStream},
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
        let recorded = self.record_unary(&caller.tenant, &mut event).await?;
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

    async fn check_call(
        &self,
        request: Request<pb::CheckCallRequest>,
    ) -> Result<Response<pb::CheckCallResponse>, Status> {
        let caller = authenticated_caller(&request)?;
        let (session, agent, call) =
            convert::parse_check_call(&caller.tenant, request.into_inner())
                .map_err(|invalid| self.count_rejected(invalid))?;
        let elsewhere = match &self.cluster {
            Some(cluster) => cluster.check_call(&session, &agent, &call).await,
            None => None,
        };
        let check = elsewhere.unwrap_or_else(|| self.engine.check_call(&session, &agent, &call));
        let verdict = check.verdict.as_deref().map(|v| self.present_verdict(v));
        Ok(Response::new(present::build_check_response(
            &check, verdict,
        )))
    }

    type StreamEventsStream = ResponseStream<pb::StreamEventsResponse>;

    async fn stream_events(
        &self,
        request: Request<Streaming<pb::StreamEventsRequest>>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let caller = authenticated_caller(&request)?;
        let frames = request_frames(&request)?;
        Ok(self.serve_stream::<EventStreamHandler>(caller, frames))
    }

    type StreamDeltasStream = ResponseStream<pb::StreamDeltasResponse>;

    async fn stream_deltas(
        &self,
        request: Request<Streaming<pb::StreamDeltasRequest>>,
    ) -> Result<Response<Self::StreamDeltasStream>, Status> {
        let caller = authenticated_caller(&request)?;
        let frames = request_frames(&request)?;
        Ok(self.serve_stream::<DeltaStreamHandler>(caller, frames))
    }
}

/// The part of a stream's service that differs between StreamEvents and StreamDeltas.
trait StreamHandler: Send + 'static {
    type Request: Message + Default + 'static;
    type Response: CountAgain;
    const RPC: StreamRpc;

    /// The encoded entries of a request.
    fn entries(request: &Self::Request) -> &[Bytes];

    /// The responses to a request that was received at this time.
    fn handle(
        api: &Api,
        request: Self::Request,
        received_at: Instant,
        pushes: &TerminationPushes,
    ) -> Result<Vec<Answer<Self::Response>>, InvalidArgument>;
}

struct EventStreamHandler;

impl StreamHandler for EventStreamHandler {
    type Request = EncodedEventsRequest;
    type Response = pb::StreamEventsResponse;
    const RPC: StreamRpc = StreamRpc::StreamEvents;

    fn entries(request: &Self::Request) -> &[Bytes] {
        &request.events
    }

    fn handle(
        api: &Api,
        request: Self::Request,
        received_at: Instant,
        pushes: &TerminationPushes,
    ) -> Result<Vec<Answer<Self::Response>>, InvalidArgument> {
        let EncodedEventsRequest { sequence, events } = request;
        if sequence < 1 {
            return Err(InvalidArgument::new("sequence", "must be at least 1"));
        }
        api.check_batch_len("events", events.len())?;
        let (now, mut last_finished_at) = (now(), received_at);
        let mut results = Vec::with_capacity(events.len());
        let mut unsettled = None;
        let mut counted = api.cluster.is_some().then(Vec::new);
        for (position, event) in events.into_iter().enumerate() {
            let place = (position, now, counted.as_mut());
            let recorded = api.record_stream_event(place, event, &mut last_finished_at, pushes);
            let (result, verdict) = api.answer_event(recorded);
            results.push(result);
            unsettled = unsettled.max(verdict);
        }
        Ok(vec![Answer {
            response: pb::StreamEventsResponse { sequence, results },
            unsettled,
            shared: counted.and_then(|counted| api.save_counted(counted)),
        }])
    }
}

struct DeltaStreamHandler;

impl StreamHandler for DeltaStreamHandler {
    type Request = EncodedDeltasRequest;
    type Response = pb::StreamDeltasResponse;
    const RPC: StreamRpc = StreamRpc::StreamDeltas;

    fn entries(request: &Self::Request) -> &[Bytes] {
        &request.deltas
    }

    fn handle(
        api: &Api,
        request: Self::Request,
        _received_at: Instant,
        pushes: &TerminationPushes,
    ) -> Result<Vec<Answer<Self::Response>>, InvalidArgument> {
        let EncodedDeltasRequest { deltas } = request;
        api.check_batch_len("deltas", deltas.len())?;
        let now = now();
        let answers = deltas
            .into_iter()
            .enumerate()
            .map(|(position, delta)| decode_entry("deltas", position, delta))
            .filter_map(|decoded| api.answer_delta(decoded, now, pushes));
        Ok(answers.collect())
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
async fn next_request<T: Message + Default>(
    frames: &mut FrameReader,
    idle_timer: &mut IdleTimer,
) -> NextRequest<T> {
    let mut has_waited = false;
    let mut message = pin!(frames.next_message());
    let mut expired = pin!(idle_timer.expired());
    let received = poll_fn(|cx| match message.as_mut().poll(cx) {
        Poll::Ready(received) => Poll::Ready(Some(received)),
        Poll::Pending => {
            has_waited = true;
            expired.as_mut().poll(cx).map(|()| None)
        }
    })
    .await;
    let decode = |bytes| T::decode(bytes).map_err(|error| status::undecodable_message(&error));
    NextRequest {
        request: received.map(|message| message?.map(decode).transpose()),
        has_waited,
    }
}

/// An event of a batch after it was recorded or rejected, with the ids to send back.
struct RecordedEvent {
    session_id: String,
    event_id: String,
    result: Result<RecordOutcome, pb::Error>,
}

impl Api {
    /// The verdict of a response, and its id if it is a termination whose write has
    /// neither succeeded nor failed yet.
    pub(super) fn present_unsettled_verdict(
        &self,
        recorded: &RecordOutcome,
    ) -> (Option<pb::Verdict>, Option<VerdictId>) {
        let Some(verdict) = recorded.verdict.as_deref() else {
            return (None, None);
        };
        if !verdict.terminates() {
            return (Some(present::verdict_to_pb(verdict)), None);
        }
        let unsettled = Some(verdict.id).filter(|id| !self.is_settled(*id));
        (Some(self.present_verdict(verdict)), unsettled)
    }

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

    /// The result of one event of a batch, and the verdict in it that is not settled yet.
    /// An error affects only this event.
    fn answer_event(&self, event: RecordedEvent) -> (pb::EventResult, Option<VerdictId>) {
        let RecordedEvent {
            session_id,
            event_id,
            result,
        } = event;
        let recorded = match result {
            Ok(recorded) => recorded,
            Err(error) => {
                let result = present::build_error_result(session_id, event_id, error);
                return (result, None);
            }
        };
        let (verdict, unsettled) = self.present_unsettled_verdict(&recorded);
        let result = present::build_event_result(session_id, event_id, &recorded, verdict);
        (result, unsettled)
    }

    /// Decodes and records the event at this position of its batch.
    fn record_stream_event(
        &self,
        (position, now, counted): (usize, SystemTime, Option<&mut Vec<UnsavedEvent>>),
        bytes: Bytes,
        last_finished_at: &mut Instant,
        pushes: &TerminationPushes,
    ) -> RecordedEvent {
        // In a cluster the bytes are saved.
        let shared = counted.map(|counted| (counted, bytes.clone()));
        let mut event = decode_entry("events", position, bytes);
        let place = (position, now, shared);
        let result = self.record_decoded_event(&mut event, place, last_finished_at, pushes);
        RecordedEvent {
            session_id: event.message.session_id,
            event_id: event.message.event_id,
            result,
        }
    }

    /// The ids that may be sent back stay in the message.
    fn record_decoded_event(
        &self,
        DecodedEntry { message, result }: &mut DecodedEntry<pb::Event>,
        (position, now, shared): (usize, SystemTime, Option<(&mut Vec<UnsavedEvent>, Bytes)>),
        last_finished_at: &mut Instant,
        pushes: &TerminationPushes,
    ) -> Result<RecordOutcome, pb::Error> {
        let parsed = mem::replace(result, Ok(()))
            .and_then(|()| pushes.resolve_session(&message.session_id))
            .and_then(|(session, is_tracked)| {
                Ok((convert::parse_event(session, message)?, is_tracked))
            });
        let (parsed, is_tracked) = match parsed {
            Ok(parsed) => parsed,
            Err(invalid) => {
                // Only ids that are valid are sent back.
                if pushes.resolve_session(&message.session_id).is_err() {
                    message.session_id.clear();
                    message.event_id.clear();
                } else if convert::check_event_id(&message.event_id).is_err() {
                    message.event_id.clear();
                }
                return Err(self.count_rejected(invalid).into());
            }
        };
        let result = match (&self.cluster, shared) {
            (Some(cluster), Some((counted, bytes))) => {
                let place = (position, now);
                let (result, event) =
                    self.count_shared(cluster, &parsed, bytes, place, last_finished_at);
                counted.extend(event);
                result
            }
            _ => self.record(&parsed, now, last_finished_at),
        };
        message.event_id = parsed.event_id;
        let recorded = result?;
        pushes.track_response(&parsed.session, is_tracked, recorded.verdict.as_deref());
        Ok(recorded)
    }

    fn serve_stream<K: StreamHandler>(
        &self,
        caller: Caller,
        frames: FrameReader,
    ) -> Response<ResponseStream<K::Response>> {
        let api = self.for_stream_of(&caller);
        let call = Span::current();
        let served = response_queue::serve(self.stream_context(), |responses| async move {
            let requests = api.serve_requests_and_pushes::<K>(&caller, frames, responses);
            let conversation = api.server.run_while_authorized(&caller, requests);
            conversation.instrument(call).await
        });
        Response::new(served)
    }

    /// Pushes terminations without a scheduler slot, and serves requests with one.
    async fn serve_requests_and_pushes<K: StreamHandler>(
        &self,
        caller: &Caller,
        frames: FrameReader,
        responses: ResponseSender<K::Response>,
    ) -> Result<(), Status> {
        let tenant = caller.tenant.clone();
        let (pushes, terminations) = TerminationPushes::new(tenant.clone(), self);
        let requests = self.serve_requests::<K>(frames, &responses, &pushes);
        tokio::select! {
            biased;
            never = pushes.push_terminations(terminations, |verdict| responses.send_urgent(verdict)) => match never {},
            ended = self.server.scheduler.schedule(tenant, requests) => ended,
        }
    }

    /// Serves requests until the client closes the stream, disconnects, is idle for
    /// too long or does not read, or until a request is invalid as a whole. What waits for
    /// the disk then is sent before the stream ends.
    async fn serve_requests<K: StreamHandler>(
        &self,
        frames: FrameReader,
        responses: &ResponseSender<K::Response>,
        pushes: &TerminationPushes,
    ) -> Result<(), Status> {
        let mut waiting = WaitingResponses::new(self, responses);
        let ended = self
            .serve_each_request::<K>(frames, &mut waiting, pushes)
            .await;
        waiting.send_all().await;
        ended
    }

    async fn serve_each_request<K: StreamHandler>(
        &self,
        mut frames: FrameReader,
        waiting: &mut WaitingResponses<'_, K::Response>,
        pushes: &TerminationPushes,
    ) -> Result<(), Status> {
        let mut idle_timer = IdleTimer::new(self.server.limits.stream_idle_secs_max);
        // Since when every request had arrived before it was polled for.
        let mut busy_since = None;
        loop {
            // Wait for a request, and send what waits for the disk meanwhile.
            let received = tokio::select! {
                biased;
                () = waiting.send_settled() => continue,
                received = next_request(&mut frames, &mut idle_timer) => received,
            };
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
            if let Some(cluster) = &self.cluster {
                let taken = self.own_entries(cluster, K::entries(&message), pushes);
                // What was counted in a copy that was replaced is counted again first.
                if taken.await || waiting.has_moved() {
                    waiting.finish_saving().await;
                }
            }
            let answers = traces::message_span(K::RPC)
                .in_scope(|| K::handle(self, message, now.into_std(), pushes))
                .map_err(|invalid| self.count_rejected(invalid))?;
            self.yield_to_store_writer();
            // Queue the responses, and read on when the client has room for them.
            for answer in answers {
                waiting.send(answer);
            }
            if let Err(closed) = waiting.wait_until_within_limit().await {
                return self.close_status(closed);
            }
        }
    }
}
