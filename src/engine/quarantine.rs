//! A panic in one session is that session's: it is set aside with a reference,
//! and all others go on. What it had learned may be half changed, so none of it
//! is used again. An operator who has read the log resets it; once it has ended,
//! whatever begins under its name is another session.

use std::{
    panic::{self, AssertUnwindSafe},
    time::SystemTime,
};

use uuid::Uuid;

use super::{Engine, RecordError, session::Session, slot::Slot};
use crate::{domain::SessionId, telemetry::PanicSite};

impl Engine {
    /// Runs what may panic before its session is looked up.
    pub(super) fn prepare_catching_panic<T>(
        &self,
        id: &SessionId,
        now: SystemTime,
        prepare: impl FnOnce() -> T,
    ) -> Result<T, RecordError> {
        match panic::catch_unwind(AssertUnwindSafe(prepare)) {
            Ok(prepared) => Ok(prepared),
            Err(_) => self.with_slot(
                id,
                &self.tenants.get_or_insert(id),
                now,
                |slot| match slot {
                    // It is over; there is nothing to set aside.
                    Slot::Closed(_) => Err(RecordError::Quarantined(self.report_panic(id))),
                    Slot::Live(session) => Err(self.quarantine_session(id, session)),
                },
            ),
        }
    }

    /// Runs what changes a session.
    pub(super) fn apply_catching_panic<T, E: From<RecordError>>(
        &self,
        id: &SessionId,
        slot: &mut Slot,
        with: impl FnOnce(&mut Slot) -> Result<T, E>,
    ) -> Result<T, E> {
        let answer = panic::catch_unwind(AssertUnwindSafe(|| with(slot)));
        answer.unwrap_or_else(|_| match slot {
            Slot::Closed(_) => Err(RecordError::Quarantined(self.report_panic(id)).into()),
            Slot::Live(session) => Err(self.quarantine_session(id, session).into()),
        })
    }

    fn quarantine_session(&self, id: &SessionId, session: &mut Box<Session>) -> RecordError {
        let reference = self.report_panic(id);
        session.remove_trend_metrics(&self.state.metrics);
        **session = session.to_quarantined(reference);
        RecordError::Quarantined(reference)
    }

    /// Says that something panicked. What it was stands in the log already,
    /// without the words of the panic: they may quote an agent.
    fn report_panic(&self, session: &SessionId) -> Uuid {
        let reference = Uuid::now_v7();
        self.state.metrics.count_panic(PanicSite::Session);
        tracing::error!(
            ?session,
            %reference,
            "a bug: a session panicked and is set aside until it is reset or ends"
        );
        reference
    }
}
