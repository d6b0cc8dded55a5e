//! The gRPC handlers. A handler parses the message into domain types, calls the
//! engine, and awaits with no lock held.
//!
//! `detection` records events and deltas, `sessions` has the calls about one or all sessions,
//! `direct` the calls without messages for the hooks route, `verdicts` lists and watches the
//! audit log, `ratings` records operators' ratings of verdicts, and `terminations` pushes
//! terminations to streams. `shared` takes and saves the sessions that replicas share. `convert` decodes and parses messages, `present` builds them,
//! `status` maps errors to gRPC codes, `stream_response` says how unread responses of a
//! stream are coalesced, and `waiting_responses` keeps those that wait for the disk.
//!
//! Uses: domain, auth, server, engine, store, cluster, feed, telemetry.

mod convert;
mod deltas;
mod detection;
mod direct;
mod fleet;
mod paging;
mod peers;
mod present;
mod ratings;
mod sessions;
mod shared;
mod status;
mod stream_response;
mod terminations;
mod verdict_lookup;
mod verdicts;
mod waiting_responses;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use prost::Message;
use tonic::{Status, service::Routes};

pub use convert::{InvalidArgument, LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX};
pub use present::{
    timeline_entry_to_pb as present_timeline_entry, verdict_to_json,
    verdict_to_pb as present_verdict,
};
pub use shared::decode_shared_event;
pub use status::to_http_error;

use crate::{
    auth::Caller,
    cluster::Cluster,
    domain::{
        Action, BUDGET, Cost, Delta, Event, SessionView, Tenant, Verdict, VerdictId, clock::now,
    },
    engine::{Engine, LateInput, RecordError, RecordOutcome},
    pb::{
        self, FILE_DESCRIPTOR_SET, detection_service_server::DetectionServiceServer,
        session_service_server::SessionServiceServer,
    },
    server::{
        self, ServerContext,
        admission::AdmissionLayer,
        rate_limit::CallerRate,
        response_queue::{StreamClosed, StreamContext},
    },
    store::Store,
    telemetry::Rejection,
};
use terminations::TenantSessionCounts;

/// The state that all handlers share.
#[derive(Clone)]
pub struct Api {
    engine: Arc<Engine>,
    store: Arc<Store>,
    server: Arc<ServerContext>,
    /// `None`: one process.
    cluster: Option<Arc<Cluster>>,
    /// How many sessions the streams of each tenant track.
    session_counts: TenantSessionCounts,
    /// The rate of the caller whose stream this clone serves. Admission counts unary
    /// calls, so there is no limit in the others.
    event_rate: CallerRate,
}

/// The service names that health checks may ask about.
pub const SERVICE_NAMES: [&str; 2] = ["unstuck.v1.DetectionService", "unstuck.v1.SessionService"];

/// The largest message of a health check, which is the name of a service. It needs
/// no token.
pub const PROBE_BYTES_MAX: usize = 1_024;

/// The largest message of reflection, which is the name of a service or a type. tonic
/// keeps a buffer of this size for as long as the stream lives.
const REFLECTION_BYTES_MAX: usize = 16 * 1_024;

impl Api {
    pub fn new(engine: Arc<Engine>, store: Arc<Store>, server: Arc<ServerContext>) -> Self {
        Self {
            engine,
            store,
            server,
            cluster: None,
            session_counts: TenantSessionCounts::default(),
            event_rate: CallerRate::default(),
        }
    }

    /// The sessions are shared with other replicas.
    pub fn with_cluster(self, cluster: Option<Arc<Cluster>>) -> Self {
        Self { cluster, ..self }
    }

    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref()
    }

    /// Whether a termination need not be awaited: it is on disk, and the cluster knows it.
    fn is_settled(&self, id: VerdictId) -> bool {
        let is_acted = self.cluster.as_ref().is_none_or(|it| it.is_acted(id));
        self.store.is_settled(id) && is_acted
    }

    /// Waits until a termination is on disk and the cluster knows it, within limits.
    async fn wait_until_settled(&self, id: VerdictId) {
        self.store.wait_until_settled_or_timeout(id).await;
        if let Some(cluster) = &self.cluster {
            cluster.wait_until_acted(id).await;
        }
    }

    /// A clone that counts each event against the rate of this caller.
    fn for_stream_of(&self, caller: &Caller) -> Self {
        Self {
            event_rate: self.server.rate_limits.caller_rate(caller),
            ..self.clone()
        }
    }

    fn check_event_rate(&self) -> Result<(), RecordError> {
        let checked = self.event_rate.check();
        checked.map_err(|exceeded| RecordError::EventsPerSecondMax {
            per_second_max: exceeded.per_second_max,
            retry_after: exceeded.retry_after,
        })
    }

    /// The layer in front of all services; it also routes DetectionService itself.
    pub fn admission(&self) -> AdmissionLayer<DetectionServiceServer<Self>> {
        let detection = DetectionServiceServer::new(self.clone())
            .max_decoding_message_size(self.server.limits.message_bytes_max);
        AdmissionLayer::new(self.server.clone(), detection)
    }

    /// All services except DetectionService, with reflection.
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
            .add_service(v1.max_decoding_message_size(REFLECTION_BYTES_MAX))
            .add_service(v1alpha.max_decoding_message_size(REFLECTION_BYTES_MAX)))
    }

    /// Records an event and counts its duration or its rejection. The duration is
    /// measured from `last_finished_at`, which is then set to the end of this event:
    /// reading the clock costs as much as a detector, so it is read once per event.
    fn record(
        &self,
        event: &Event,
        now: SystemTime,
        last_finished_at: &mut Instant,
    ) -> Result<RecordOutcome, RecordError> {
        let checked = self.check_event_rate();
        let recorded = checked.and_then(|()| self.engine.record(event, now));
        let finished_at = Instant::now();
        self.server
            .metrics
            .record_event_duration(finished_at - *last_finished_at);
        *last_finished_at = finished_at;
        recorded
            .inspect(log_verdict)
            .inspect(|outcome| self.count_late_input(outcome, event.cost, now))
            .inspect_err(|error| self.server.metrics.count_rejection(error.rejection()))
    }

    /// Counts what was sent to a terminated session or sub-agent.
    fn count_late_input(&self, outcome: &RecordOutcome, cost: Cost, now: SystemTime) {
        let Some(termination) = outcome
            .verdict
            .as_deref()
            .filter(|_| outcome.after_termination)
        else {
            return;
        };
        let report = self.engine.count_late_input(&LateInput {
            session: &termination.session,
            termination,
            cost,
            may_be_sent: self.store.may_be_sent(termination.id, now),
            now,
        });
        if let Some(report) = report {
            tracing::warn!(
                session = ?report.session,
                detector = &*report.detector,
                events = report.wasted.events,
                cost_usd = report.wasted.usd,
                tenant = ?report.session.tenant(),
                "session goes on after its termination"
            );
        }
    }

    /// Records the event of a unary call. Its ids stay in the message.
    async fn record_unary(
        &self,
        tenant: &Tenant,
        event: &mut pb::Event,
    ) -> Result<RecordOutcome, Status> {
        let bytes = self.cluster.as_ref().map(|_| event.encode_to_vec().into());
        let parsed = convert::parse_session_id(tenant, &event.session_id)
            .and_then(|session| convert::parse_event(session, event))
            .map_err(|invalid| self.count_rejected(invalid))?;
        let recorded = match (&self.cluster, bytes) {
            (Some(cluster), Some(bytes)) => self.record_and_save(cluster, &parsed, bytes).await,
            _ => Ok(self.record(&parsed, now(), &mut Instant::now())?),
        };
        event.event_id = parsed.event_id;
        recorded
    }

    /// Records a delta and counts its rejection.
    fn record_delta(
        &self,
        delta: &Delta,
        now: SystemTime,
    ) -> Result<Option<RecordOutcome>, RecordError> {
        self.check_event_rate()
            .and_then(|()| self.engine.record_delta(delta, now))
            .inspect(|recorded| recorded.iter().for_each(log_verdict))
            .inspect(|recorded| {
                // A text counts once, at its end.
                let ended = recorded.iter().filter(|_| delta.end_of_turn);
                ended.for_each(|outcome| self.count_late_input(outcome, Cost::default(), now));
            })
            .inspect_err(|error| self.server.metrics.count_rejection(error.rejection()))
    }

    /// The verdict in the response to an event. A termination is sent only after
    /// it is on disk or its write has failed. Other verdicts do not wait for the disk,
    /// so a duplicate event gets the same response as the first.
    async fn present_settled_verdict(&self, verdict: &Verdict) -> pb::Verdict {
        if verdict.terminates() {
            self.wait_until_settled(verdict.id).await;
            self.present_verdict(verdict)
        } else {
            present::verdict_to_pb(verdict)
        }
    }

    /// A verdict with its current durability.
    pub fn present_verdict(&self, verdict: &Verdict) -> pb::Verdict {
        let mut message = present::verdict_to_pb(verdict);
        message.durable |= !verdict.is_foreign && self.store.is_durable(verdict.id);
        message
    }

    /// Builds the response for a session. Waits until every termination in it is on
    /// disk or its write has failed.
    pub async fn present_session(&self, view: &SessionView) -> pb::Session {
        let mut session = present::session_to_pb(view);
        session.last_verdicts.clear();
        for verdict in &view.verdicts {
            if verdict.terminates() {
                self.store.wait_until_settled_or_timeout(verdict.id).await;
            }
            session.last_verdicts.push(self.present_verdict(verdict));
        }
        if let Some(verdict) = &view.termination {
            session.termination = Some(self.present_settled_verdict(verdict).await);
        }
        session
    }

    /// The limits and dependencies of a response stream.
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
            slow_reader_timeout: Duration::from_secs(limits.slow_reader_secs_max),
            render: Box::new(move |verdict| api.present_verdict(verdict)),
            draining: draining.clone(),
            metrics: metrics.clone(),
        }
    }

    /// The status of a stream to which nothing more can be sent.
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

    /// Gives up the core if a call waits for the store's writer thread. The kernel
    /// would leave the core to this busy thread for milliseconds.
    fn yield_to_store_writer(&self) {
        if self.store.has_waiters() {
            std::thread::yield_now();
        }
    }

    fn count_rejected(&self, invalid: InvalidArgument) -> InvalidArgument {
        let rejection = if invalid.reason == convert::UNDECODABLE {
            Rejection::Undecodable
        } else {
            Rejection::InvalidArgument
        };
        self.server.metrics.count_rejection(rejection);
        invalid
    }
}

/// Logs a new verdict that acts. Only names and numbers: the pattern, excerpt,
/// correction and targets quote the agent.
fn log_verdict(recorded: &RecordOutcome) {
    // A repeated verdict is not logged: a session that continues after its
    // termination would fill the log.
    let Some(verdict) = recorded
        .verdict
        .as_deref()
        .filter(|_| recorded.is_new_verdict)
    else {
        return;
    };
    let message = match verdict.action {
        Some(Action::Terminate) if verdict.shadow => "session would be terminated, but is shadowed",
        Some(Action::Terminate) if verdict.agent.is_main() => "session is terminated",
        Some(Action::Terminate) => "sub-agent is terminated",
        _ if &*verdict.detector == BUDGET => "session has reached a share of its budget",
        _ => "session is looping",
    };
    macro_rules! log {
        ($level:ident, $action:expr) => {
            tracing::$level!(
                session = ?verdict.session,
                detector = &*verdict.detector,
                action = $action.name(),
                event_index = verdict.event_index,
                shadow = verdict.shadow,
                tenant = ?verdict.session.tenant(),
                "{message}"
            )
        };
    }
    match verdict.action {
        Some(action) if action >= Action::Escalate => log!(warn, action),
        Some(action) if action >= Action::Throttle => log!(debug, action),
        _ => {}
    }
}
