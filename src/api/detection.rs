use std::{
    future::{Future, poll_fn},
    mem::take,
    pin::pin,
    task::Poll,
    time::{Duration, Instant, SystemTime},
};

use tonic::{Request, Response, Status, Streaming, async_trait};
use tracing::{Instrument, Span};

use super::{Api, Invalid, convert, now, present, pushes::Pushes};
use crate::{
    auth::Caller,
    domain::Verdict,
    engine::Recorded,
    pb::{self, detection_service_server::DetectionService},
    server::{
        admission::caller,
        outbound::{self, Outbound, Respond, Responses, Sent},
        silence::Silence,
        status,
        turns::end_turn,
    },
    telemetry::{Rejection, Rpc, traces},
};

#[async_trait]
impl DetectionService for Api {
    async fn record_event(
        &self,
        request: Request<pb::RecordEventRequest>,
    ) -> Result<Response<pb::RecordEventResponse>, Status> {
        let caller = caller(&request)?;
        let pb::RecordEventRequest { event } = request.into_inner();
        let mut event = event.unwrap_or_default();
        let recorded = self.take_single(&caller.tenant, &mut event)?;
        self.make_way();
        let verdict = self.verdict_of(&recorded).await;
        let (session_id, event_id) = (event.session_id, event.event_id);
        let result = Some(present::result(session_id, event_id, &recorded, verdict));
        Ok(Response::new(pb::RecordEventResponse { result }))
    }

    type StreamEventsStream = Outbound<pb::StreamEventsResponse>;

    async fn stream_events(
        &self,
        request: Request<Streaming<pb::StreamEventsRequest>>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let caller = caller(&request)?;
        Ok(self.serve::<Events>(caller, request.into_inner()))
    }

    type StreamDeltasStream = Outbound<pb::StreamDeltasResponse>;

    async fn stream_deltas(
        &self,
        request: Request<Streaming<pb::StreamDeltasRequest>>,
    ) -> Result<Response<Self::StreamDeltasStream>, Status> {
        let caller = caller(&request)?;
        Ok(self.serve::<Deltas>(caller, request.into_inner()))
    }
}

/// What differs between the two streams.
trait Kind: Send + 'static {
    type Request: Send + 'static;
    type Response: Respond;
    const RPC: Rpc;

    /// What to send for a request that came at this time.
    fn answer(
        api: &Api,
        request: Self::Request,
        came: Instant,
        pushes: &Pushes,
    ) -> impl Future<Output = Result<Vec<Self::Response>, Invalid>> + Send;
}

/// How long a stream with much to say is listened to before others have their
/// turn; a message that was begun is looked at to its end. Everybody else, operators
/// too, waits for as long: short beside the millisecond that a termination takes to
/// be on disk, long beside the microsecond that it takes to call the next.
const TURN: Duration = Duration::from_micros(100);

struct Events;

impl Kind for Events {
    type Request = pb::StreamEventsRequest;
    type Response = pb::StreamEventsResponse;
    const RPC: Rpc = Rpc::StreamEvents;

    async fn answer(
        api: &Api,
        request: Self::Request,
        came: Instant,
        pushes: &Pushes,
    ) -> Result<Vec<Self::Response>, Invalid> {
        let pb::StreamEventsRequest {
            sequence,
            mut events,
        } = request;
        if sequence < 1 {
            return Err(Invalid::field("sequence", "must be at least 1"));
        }
        api.check_batch("events", events.len())?;
        let (now, mut since) = (now(), came);
        let mut results = Vec::with_capacity(events.len());
        for event in &mut events {
            results.push(api.result(event, now, &mut since, pushes).await);
        }
        Ok(vec![pb::StreamEventsResponse { sequence, results }])
    }
}

struct Deltas;

impl Kind for Deltas {
    type Request = pb::StreamDeltasRequest;
    type Response = pb::StreamDeltasResponse;
    const RPC: Rpc = Rpc::StreamDeltas;

    async fn answer(
        api: &Api,
        request: Self::Request,
        _came: Instant,
        pushes: &Pushes,
    ) -> Result<Vec<Self::Response>, Invalid> {
        let pb::StreamDeltasRequest { deltas } = request;
        api.check_batch("deltas", deltas.len())?;
        let now = now();
        let mut responses = Vec::new();
        for delta in deltas {
            responses.extend(api.response(delta, now, pushes).await);
        }
        Ok(responses)
    }
}

/// What came next on a stream.
struct Heard<T> {
    /// `None`: nothing, for too long.
    request: Option<Result<Option<T>, Status>>,
    /// It was not there yet.
    waited: bool,
}

/// The next request. Most are there already: only who waits looks at the clock.
async fn next<T>(inbound: &mut Streaming<T>, silence: &mut Silence) -> Heard<T> {
    let mut waited = false;
    let mut message = pin!(inbound.message());
    let mut lasts = pin!(silence.lasts());
    let request = poll_fn(|cx| match message.as_mut().poll(cx) {
        Poll::Ready(request) => Poll::Ready(Some(request)),
        Poll::Pending => {
            waited = true;
            lasts.as_mut().poll(cx).map(|()| None)
        }
    });
    let request = request.await;
    Heard { request, waited }
}

impl Api {
    /// The verdict of an answer, durable where it must be.
    async fn verdict_of(&self, recorded: &Recorded) -> Option<pb::Verdict> {
        match recorded.verdict.as_deref() {
            Some(verdict) => Some(self.answered(verdict).await),
            None => None,
        }
    }

    fn check_batch(&self, field: &str, len: usize) -> Result<(), Invalid> {
        let batch_max = self.server.limits.batch_max;
        if (1..=batch_max).contains(&len) {
            return Ok(());
        }
        let why = format!("has {len} entries, not 1 to {batch_max}");
        Err(Invalid::field(field, why))
    }

    /// The result of one event of many: a bad one harms nobody else.
    async fn result(
        &self,
        event: &mut pb::Event,
        now: SystemTime,
        since: &mut Instant,
        pushes: &Pushes,
    ) -> pb::EventResult {
        let recorded = self.take_event(event, now, since, pushes);
        let (session_id, event_id) = (take(&mut event.session_id), take(&mut event.event_id));
        let recorded = match recorded {
            Ok(recorded) => recorded,
            Err(error) => return present::refused(session_id, event_id, error),
        };
        let verdict = self.verdict_of(&recorded).await;
        if verdict.is_some() {
            // What it waited for the disk is none of the next one's.
            *since = Instant::now();
        }
        present::result(session_id, event_id, &recorded, verdict)
    }

    /// Takes an event of a stream in. Of its ids those are left in the message that
    /// may be sent back. (Apart from what waits for the disk: a future copies all
    /// that it holds, and this is half a kilobyte.)
    fn take_event(
        &self,
        event: &mut pb::Event,
        now: SystemTime,
        since: &mut Instant,
        pushes: &Pushes,
    ) -> Result<Recorded, pb::Error> {
        let known = pushes.session(&event.session_id);
        let is_known = known.is_some();
        let parse = || convert::session_id(pushes.tenant(), &event.session_id);
        let session = known.map_or_else(parse, Ok);
        let taken = session
            .and_then(|session| convert::event(session, event))
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
                self.reject(invalid)
            })?;
        let recorded = self.record(&taken, now, since);
        event.event_id = taken.event_id;
        let recorded = recorded?;
        let verdict = recorded.verdict.as_deref();
        if !is_known || verdict.is_some() {
            pushes.carried(&taken.session, verdict);
        }
        Ok(recorded)
    }

    /// What is to be said about a delta, if anything.
    async fn response(
        &self,
        mut delta: pb::Delta,
        now: SystemTime,
        pushes: &Pushes,
    ) -> Option<pb::StreamDeltasResponse> {
        let known = pushes.session(&delta.session_id);
        let is_known = known.is_some();
        let parse = || convert::session_id(pushes.tenant(), &delta.session_id);
        let session = known.map_or_else(parse, Ok);
        let taken = match session.and_then(|session| convert::delta(session, &mut delta)) {
            Ok(taken) => taken,
            Err(invalid) => return Some(self.refused(delta, invalid)),
        };
        match self.take_in(&taken, now) {
            Ok(recorded) => {
                let verdict = recorded.as_ref().and_then(|r| r.verdict.as_deref());
                if !is_known || verdict.is_some() {
                    pushes.carried(&taken.session, verdict);
                }
                let recorded = recorded?;
                let action = recorded.verdict.as_deref().and_then(Verdict::acted);
                Some(pb::StreamDeltasResponse {
                    action: present::action(action).into(),
                    verdict: self.verdict_of(&recorded).await,
                    ..present::answered(delta.session_id, taken)
                })
            }
            Err(refused) => Some(pb::StreamDeltasResponse {
                error: Some(refused.into()),
                ..present::answered(delta.session_id, taken)
            }),
        }
    }

    /// The answer to a delta that cannot be taken: only what passed the checks is
    /// sent back.
    fn refused(&self, delta: pb::Delta, invalid: Invalid) -> pb::StreamDeltasResponse {
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
        response.error = Some(self.reject(invalid).into());
        response
    }

    fn serve<K: Kind>(
        &self,
        caller: Caller,
        inbound: Streaming<K::Request>,
    ) -> Response<Outbound<K::Response>> {
        let api = self.clone();
        let call = Span::current();
        let served = outbound::serve(self.terms(), |responses| async move {
            let conversation = api.listen_and_tell::<K>(&caller, inbound, responses);
            let conversation = api.server.run_while_authorized(&caller, conversation);
            conversation.instrument(call).await
        });
        Response::new(served)
    }

    /// Tells of terminations without waiting for a turn, and all else by turns.
    async fn listen_and_tell<K: Kind>(
        &self,
        caller: &Caller,
        inbound: Streaming<K::Request>,
        responses: Responses<K::Response>,
    ) -> Result<(), Status> {
        let tenant = caller.tenant.clone();
        let (pushes, terminations) = Pushes::new(tenant.clone(), self);
        let conversation = self.converse::<K>(inbound, &responses, &pushes);
        tokio::select! {
            biased;
            never = pushes.tell_each(terminations, |verdict| responses.urge(verdict)) => match never {},
            ended = self.server.scheduler.take(tenant, conversation) => ended,
        }
    }

    /// Goes on until the client is done, gone, silent for too long or reads
    /// nothing, or a message breaks the rules of the stream itself.
    async fn converse<K: Kind>(
        &self,
        mut inbound: Streaming<K::Request>,
        responses: &Responses<K::Response>,
        pushes: &Pushes,
    ) -> Result<(), Status> {
        let mut silence = Silence::new(self.server.limits.stream_idle_secs_max);
        // Since when there was always something to read.
        let mut busy_since = None;
        loop {
            let heard = next(&mut inbound, &mut silence).await;
            if heard.waited {
                busy_since = None;
            }
            let Some(request) = heard.request else {
                self.server.metrics.rejected(Rejection::StreamIdleSecsMax);
                return Err(status::idle());
            };
            let request = request.inspect_err(|status| {
                let why = status::unread(status.code());
                why.into_iter()
                    .for_each(|why| self.server.metrics.rejected(why));
            });
            let Some(request) = request? else {
                return Ok(());
            };
            let now = silence.broken();
            if now - *busy_since.get_or_insert(now) >= TURN {
                busy_since = None;
                end_turn().await;
            }
            let answers = K::answer(self, request, now.into_std(), pushes)
                .instrument(traces::message(K::RPC))
                .await
                .map_err(|invalid| self.reject(invalid))?;
            self.make_way();
            for answer in answers {
                if responses.send(answer) == Sent::Absorbed {
                    self.server.metrics.coalesced();
                }
            }
            if let Err(over) = responses.fit().await {
                return self.over(over);
            }
        }
    }
}
