//! A panic in one session is that session's: it is set aside with a reference,
//! and all others go on. What it had learned may be half changed, so none of it
//! is used again. An operator who has read the log resets it; once it has ended,
//! whatever begins under its name is another session.

use std::{
    panic::{self, AssertUnwindSafe},
    time::SystemTime,
};

use uuid::Uuid;

use super::{Engine, Refused, session::Session, slot::Slot};
use crate::{domain::SessionId, telemetry::Panicked};

impl Engine {
    /// Runs what may panic before its session is looked up.
    pub(super) fn prepared<T>(
        &self,
        id: &SessionId,
        now: SystemTime,
        prepare: impl FnOnce() -> T,
    ) -> Result<T, Refused> {
        match panic::catch_unwind(AssertUnwindSafe(prepare)) {
            Ok(prepared) => Ok(prepared),
            Err(_) => self.with_slot(id, &self.tenants.of(id), now, |slot| match slot {
                // It is over; there is nothing to set aside.
                Slot::Gone(_) => Err(Refused::Quarantined(self.panicked(id))),
                Slot::Live(session) => Err(self.set_aside(id, session)),
            }),
        }
    }

    /// Runs what changes a session.
    pub(super) fn contained<T, E: From<Refused>>(
        &self,
        id: &SessionId,
        slot: &mut Slot,
        with: impl FnOnce(&mut Slot) -> Result<T, E>,
    ) -> Result<T, E> {
        let answer = panic::catch_unwind(AssertUnwindSafe(|| with(slot)));
        answer.unwrap_or_else(|_| match slot {
            Slot::Gone(_) => Err(Refused::Quarantined(self.panicked(id)).into()),
            Slot::Live(session) => Err(self.set_aside(id, session).into()),
        })
    }

    fn set_aside(&self, id: &SessionId, session: &mut Box<Session>) -> Refused {
        let reference = self.panicked(id);
        session.leave_trends(&self.shared.metrics);
        **session = session.quarantined(reference);
        Refused::Quarantined(reference)
    }

    /// Says that something panicked. What it was stands in the log already,
    /// without the words of the panic: they may quote an agent.
    fn panicked(&self, session: &SessionId) -> Uuid {
        let reference = Uuid::now_v7();
        self.shared.metrics.panicked(Panicked::Session);
        tracing::error!(
            ?session,
            %reference,
            "a bug: a session panicked and is set aside until it is reset or ends"
        );
        reference
    }
}
