//! The gRPC services: messages in, messages out. Handlers parse at the edge,
//! call the engine, and await with no lock held.
//!
//! Uses: domain, auth, server, engine, store, feed, telemetry.

mod convert;
mod detection;
mod invalid_argument;
mod present;
mod response;
mod sessions;
mod status;
mod termination_pushes;
mod verdicts;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tonic::{Status, service::Routes};

pub use invalid_argument::InvalidArgument;
pub use present::{verdict_to_json, verdict_to_pb as present_verdict};
pub use status::to_http_error;

use crate::{
    domain::{Action, Delta, Event, SessionView, Tenant, Verdict, clock::now},
    engine::{Engine, RecordError, RecordOutcome},
    pb::{
        self, FILE_DESCRIPTOR_SET, detection_service_server::DetectionServiceServer,
        session_service_server::SessionServiceServer,
    },
    server::{
        self, ServerContext,
        admission::AdmissionLayer,
        response_queue::{StreamClosed, StreamContext},
    },
    store::Store,
    telemetry::Rejection,
};
use termination_pushes::TenantSessionCounts;

/// What every handler needs.
#[derive(Clone)]
pub struct Api {
    engine: Arc<Engine>,
    store: Arc<Store>,
    server: Arc<ServerContext>,
    /// The sessions that streams carry.
    session_counts: TenantSessionCounts,
}

/// Names for health checks.
pub const SERVICE_NAMES: [&str; 2] = ["unstuck.v1.DetectionService", "unstuck.v1.SessionService"];

/// The largest message of a probe, which is the name of a service. Anybody may
/// send one, and so many at a time as there are connections for.
pub const PROBE_BYTES_MAX: usize = 1_024;

impl Api {
    pub fn new(engine: Arc<Engine>, store: Arc<Store>, server: Arc<ServerContext>) -> Self {
        Self {
            engine,
            store,
            server,
            session_counts: TenantSessionCounts::default(),
        }
    }

    /// The layer in front of all services; it also routes DetectionService itself.
    pub fn admission(&self) -> AdmissionLayer<DetectionServiceServer<Self>> {
        let detection = DetectionServiceServer::new(self.clone())
            .max_decoding_message_size(self.server.limits.message_bytes_max);
        AdmissionLayer::new(self.server.clone(), detection)
    }

    /// The services but for that of events, with reflection.
    pub fn routes(self) -> Result<Routes, tonic_reflection::server::Error> {
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let bytes_max = self.server.limits.message_bytes_max;
        let sessions = SessionServiceServer::new(self).max_decoding_message_size(bytes_max);
        let v1 = reflection().build_v1()?;
        let v1alpha = reflection().build_v1alpha()?;
        Ok(Routes::new(sessions)
            .add_service(v1.max_decoding_message_size(bytes_max))
            .add_service(v1alpha.max_decoding_message_size(bytes_max)))
    }

    /// Records an event, and counts what it took or why it was refused. `since` is
    /// when the last one was over, and then this one: to read the clock costs as
    /// much as a detector.
    fn record(
        &self,
        event: &Event,
        now: SystemTime,
        last_finished_at: &mut Instant,
    ) -> Result<RecordOutcome, RecordError> {
        let recorded = self.engine.record(event, now);
        let finished_at = Instant::now();
        self.server
            .metrics
            .record_event_duration(finished_at - *last_finished_at);
        *last_finished_at = finished_at;
        let recorded = recorded.inspect(log_verdict);
        recorded.inspect_err(|refused| self.server.metrics.count_rejection(refused.rejection()))
    }

    /// Takes the event of a single call in, and leaves its ids in the message.
    fn record_unary(
        &self,
        tenant: &Tenant,
        event: &mut pb::Event,
    ) -> Result<RecordOutcome, Status> {
        let parsed = convert::parse_session_id(tenant, &event.session_id)
            .and_then(|session| convert::parse_event(session, event))
            .map_err(|invalid| self.count_rejected(invalid))?;
        let recorded = self.record(&parsed, now(), &mut Instant::now());
        event.event_id = parsed.event_id;
        Ok(recorded?)
    }

    /// Takes a piece of text in, and counts why it was refused.
    fn record_delta(
        &self,
        delta: &Delta,
        now: SystemTime,
    ) -> Result<Option<RecordOutcome>, RecordError> {
        let recorded = self.engine.record_delta(delta, now);
        let recorded = recorded.inspect(|recorded| recorded.iter().for_each(log_verdict));
        recorded.inspect_err(|refused| self.server.metrics.count_rejection(refused.rejection()))
    }

    /// A verdict as an event is answered with. One that ends something is on
    /// disk before the answer leaves, or known not to be; no other waits for the
    /// disk, and so a duplicate is answered as the first was.
    async fn present_settled_verdict(&self, verdict: &Verdict) -> pb::Verdict {
        if verdict.terminates() {
            self.store.wait_until_settled(verdict.id).await;
            self.present_verdict(verdict)
        } else {
            present::verdict_to_pb(verdict)
        }
    }

    /// A verdict as it stands by now.
    pub fn present_verdict(&self, verdict: &Verdict) -> pb::Verdict {
        let mut message = present::verdict_to_pb(verdict);
        message.durable |= self.store.is_durable(verdict.id);
        message
    }

    /// A session as it is answered with: what ended it or agents of it is
    /// durable like any other answer.
    pub async fn present_session(&self, view: &SessionView) -> pb::Session {
        let mut session = present::session_to_pb(view);
        session.last_verdicts.clear();
        for verdict in &view.verdicts {
            if verdict.terminates() {
                self.store.wait_until_settled(verdict.id).await;
            }
            session.last_verdicts.push(self.present_verdict(verdict));
        }
        if let Some(verdict) = &view.termination {
            session.termination = Some(self.present_settled_verdict(verdict).await);
        }
        session
    }

    /// How a stream is served.
    fn stream_context(&self) -> StreamContext {
        let api = self.clone();
        let ServerContext {
            limits,
            draining,
            metrics,
            ..
        } = &*self.server;
        StreamContext {
            unread_responses_max: limits.unread_responses_max,
            response_bytes_max: limits.response_bytes_max,
            read_timeout: Duration::from_secs(limits.slow_reader_secs_max),
            render: Box::new(move |verdict| api.present_verdict(verdict)),
            draining: draining.clone(),
            metrics: metrics.clone(),
        }
    }

    /// How a stream ends to which nothing more can be sent.
    fn close_status(&self, closed: StreamClosed) -> Result<(), Status> {
        match closed {
            StreamClosed::Disconnected => Ok(()),
            StreamClosed::SlowReader => {
                self.server
                    .metrics
                    .count_rejection(Rejection::SlowReaderSecsMax);
                Err(server::status::slow_reader())
            }
        }
    }

    /// Lets the store's thread have the core where somebody waits for it. The system
    /// would leave the core to a thread that is busy for milliseconds.
    fn yield_to_store_writer(&self) {
        if self.store.has_waiters() {
            std::thread::yield_now();
        }
    }

    fn count_rejected(&self, invalid: InvalidArgument) -> InvalidArgument {
        self.server
            .metrics
            .count_rejection(Rejection::InvalidArgument);
        invalid
    }
}

/// A line for a verdict that somebody may have to answer for. Names and numbers
/// only: its pattern, excerpt, correction and targets quote the agent.
fn log_verdict(recorded: &RecordOutcome) {
    // An answer that is given again is no news, and a session that goes on after
    // its termination would fill the log.
    let Some(verdict) = recorded
        .verdict
        .as_deref()
        .filter(|_| recorded.is_new_verdict)
    else {
        return;
    };
    let Some(action) = verdict.action else {
        return;
    };
    let tenant = verdict.session.tenant();
    let (session, detector, shadow) = (&verdict.session, &*verdict.detector, verdict.shadow);
    let (event_index, action_name) = (verdict.event_index, action.name());
    if action >= Action::Escalate {
        tracing::warn!(
            ?session,
            detector,
            action = action_name,
            event_index,
            shadow,
            ?tenant,
            "session is looping"
        );
    } else if action >= Action::Throttle {
        tracing::debug!(
            ?session,
            detector,
            action = action_name,
            event_index,
            shadow,
            ?tenant,
            "session is looping"
        );
    }
}
