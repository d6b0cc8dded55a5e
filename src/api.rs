//! The gRPC services: messages in, messages out. Handlers parse at the edge,
//! call the engine, and await with no lock held.
//!
//! Uses: domain, auth, server, engine, store, feed, telemetry.

mod convert;
mod detection;
mod invalid;
mod present;
mod pushes;
mod respond;
mod sessions;
mod status;
mod verdicts;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tonic::{Status, service::Routes};

pub use invalid::Invalid;
pub use present::{shown, verdict as present_verdict};
pub use status::as_http;

use crate::{
    domain::{Action, Delta, Event, SessionView, Tenant, Verdict, clock::now},
    engine::{Engine, Recorded, Refused},
    pb::{
        self, FILE_DESCRIPTOR_SET, detection_service_server::DetectionServiceServer,
        session_service_server::SessionServiceServer,
    },
    server::{
        self, ServerContext,
        admission::AdmissionLayer,
        outbound::{Over, Terms},
    },
    store::Store,
    telemetry::Rejection,
};
use pushes::Carriage;

/// What every handler needs.
#[derive(Clone)]
pub struct Api {
    engine: Arc<Engine>,
    store: Arc<Store>,
    server: Arc<ServerContext>,
    /// The sessions that streams carry.
    carriage: Carriage,
}

/// Names for health checks.
pub const SERVICES: [&str; 2] = ["unstuck.v1.DetectionService", "unstuck.v1.SessionService"];

/// The largest message of a probe, which is the name of a service. Anybody may
/// send one, and so many at a time as there are connections for.
pub const PROBE_BYTES_MAX: usize = 1_024;

impl Api {
    pub fn new(engine: Arc<Engine>, store: Arc<Store>, server: Arc<ServerContext>) -> Self {
        Self {
            engine,
            store,
            server,
            carriage: Carriage::default(),
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
        since: &mut Instant,
    ) -> Result<Recorded, Refused> {
        let recorded = self.engine.record(event, now);
        let over = Instant::now();
        self.server.metrics.event_duration(over - *since);
        *since = over;
        let recorded = recorded.inspect(log);
        recorded.inspect_err(|refused| self.server.metrics.rejected(refused.rejection()))
    }

    /// Takes the event of a single call in, and leaves its ids in the message.
    fn take_single(&self, tenant: &Tenant, event: &mut pb::Event) -> Result<Recorded, Status> {
        let taken = convert::session_id(tenant, &event.session_id)
            .and_then(|session| convert::event(session, event))
            .map_err(|invalid| self.reject(invalid))?;
        let recorded = self.record(&taken, now(), &mut Instant::now());
        event.event_id = taken.event_id;
        Ok(recorded?)
    }

    /// Takes a piece of text in, and counts why it was refused.
    fn take_in(&self, delta: &Delta, now: SystemTime) -> Result<Option<Recorded>, Refused> {
        let recorded = self.engine.delta(delta, now);
        let recorded = recorded.inspect(|recorded| recorded.iter().for_each(log));
        recorded.inspect_err(|refused| self.server.metrics.rejected(refused.rejection()))
    }

    /// A verdict as an event is answered with. One that ends something is on
    /// disk before the answer leaves, or known not to be; no other waits for the
    /// disk, and so a duplicate is answered as the first was.
    async fn answered(&self, verdict: &Verdict) -> pb::Verdict {
        if verdict.terminates() {
            self.store.settled(verdict.id).await;
            self.shown(verdict)
        } else {
            present::verdict(verdict)
        }
    }

    /// A verdict as it stands by now.
    pub fn shown(&self, verdict: &Verdict) -> pb::Verdict {
        let mut shown = present::verdict(verdict);
        shown.durable |= self.store.is_durable(verdict.id);
        shown
    }

    /// A session as it is answered with: what ended it or agents of it is
    /// durable like any other answer.
    pub async fn session(&self, view: &SessionView) -> pb::Session {
        let mut session = present::session(view);
        session.last_verdicts.clear();
        for verdict in &view.verdicts {
            if verdict.terminates() {
                self.store.settled(verdict.id).await;
            }
            session.last_verdicts.push(self.shown(verdict));
        }
        if let Some(verdict) = &view.termination {
            session.termination = Some(self.answered(verdict).await);
        }
        session
    }

    /// How a stream is served.
    fn terms(&self) -> Terms {
        let api = self.clone();
        let ServerContext {
            limits,
            draining,
            metrics,
            ..
        } = &*self.server;
        Terms {
            responses_max: limits.responses_max,
            response_bytes_max: limits.response_bytes_max,
            patience: Duration::from_secs(limits.slow_reader_secs_max),
            show: Box::new(move |verdict| api.shown(verdict)),
            draining: draining.clone(),
            metrics: metrics.clone(),
        }
    }

    /// How a stream ends to which nothing more can be sent.
    fn over(&self, over: Over) -> Result<(), Status> {
        match over {
            Over::Gone => Ok(()),
            Over::Slow => {
                self.server.metrics.rejected(Rejection::SlowReaderSecsMax);
                Err(server::status::slow_reader())
            }
        }
    }

    /// Lets the store's thread have the core where somebody waits for it. The system
    /// would leave the core to a thread that is busy for milliseconds.
    fn make_way(&self) {
        if self.store.is_awaited() {
            std::thread::yield_now();
        }
    }

    fn reject(&self, invalid: Invalid) -> Invalid {
        self.server.metrics.rejected(Rejection::InvalidArgument);
        invalid
    }
}

/// A line for a verdict that somebody may have to answer for. Names and numbers
/// only: its pattern, excerpt, correction and targets quote the agent.
fn log(recorded: &Recorded) {
    // An answer that is given again is no news, and a session that goes on after
    // its termination would fill the log.
    let Some(verdict) = recorded.verdict.as_deref().filter(|_| recorded.is_news) else {
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
