//! Calls without messages, for the other entry points of the process. They are counted,
//! limited and logged like the rpcs.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tonic::Status;

use super::{Api, convert, now};
use crate::{
    auth::Caller,
    domain::{AgentId, CallCheck, Delta, Event, Labels, SessionId, ToolCall, Verdict},
    engine::{OpenError, RecordOutcome},
};

/// How long an answer waits for a termination to reach the disk. The caller is an agent
/// that waits for the answer, and the termination is in force already.
const SETTLE_TIME_MAX: Duration = Duration::from_millis(100);

impl Api {
    /// A clone that counts each event against the rate of this caller.
    pub fn for_caller(&self, caller: &Caller) -> Self {
        self.for_stream_of(caller)
    }

    /// Takes a session before calls about it, if replicas share it.
    pub async fn take_session(&self, session: &SessionId) {
        self.own(session).await;
    }

    /// Saves a session after calls about it, if replicas share it.
    pub async fn save_session(&self, session: &SessionId) {
        self.save_changed(session).await;
    }

    pub fn record_event(&self, event: &Event) -> Result<RecordOutcome, Status> {
        Ok(self.record(event, now(), &mut Instant::now())?)
    }

    pub fn record_text(&self, delta: &Delta) -> Result<Option<RecordOutcome>, Status> {
        Ok(self.record_delta(delta, now())?)
    }

    /// Whether a call would be refused. It counts against the caller's rate.
    pub fn check(
        &self,
        session: &SessionId,
        agent: &AgentId,
        call: &ToolCall,
    ) -> Result<CallCheck, Status> {
        self.check_event_rate()
            .inspect_err(|error| self.server.metrics.count_rejection(error.rejection()))?;
        Ok(self.engine.check_call(session, agent, call))
    }

    /// Adds labels to a session, which is created if it is new. Its present labels and
    /// profile stay. A terminated session is not changed, nor is one that would have too
    /// many labels or too long ones: it is watched without them.
    pub fn add_labels(&self, session: &SessionId, labels: &Labels) -> Result<(), Status> {
        let known = self.engine.get(session);
        let (profile, mut all) = known.map_or_else(Default::default, |view| {
            (view.profile.to_string(), (*view.labels).clone())
        });
        for (key, value) in labels {
            all.entry(key.clone()).or_insert_with(|| value.clone());
        }
        let Ok(checked) =
            convert::parse_labels(all).map_err(|invalid| self.count_rejected(invalid))
        else {
            return Ok(());
        };
        match self.engine.open_session(session, &profile, checked, now()) {
            Ok(_) | Err(OpenError::Terminated) => Ok(()),
            Err(error) => {
                self.count_open_error(&error);
                Err(error.into())
            }
        }
    }

    /// Ends a session, if there is one.
    pub fn end(&self, session: &SessionId) {
        if self.engine.end_session(session, now()).is_some() {
            self.store.remove_session(session.clone());
        }
    }

    /// Waits until a termination is durable, at most `SETTLE_TIME_MAX`, before it is sent.
    pub async fn settle(&self, verdict: &Verdict) {
        if verdict.terminates() {
            let settled = self.store.wait_until_settled_or_timeout(verdict.id);
            // The agent gets the termination in any case.
            let _ = timeout(SETTLE_TIME_MAX, settled).await;
        }
    }
}
