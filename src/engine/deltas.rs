//! Text as it is written. Nearly every piece only makes it longer, so that what a
//! session's totals go by is as it was: they are gone over for the others alone.

use std::{
    panic::{self, AssertUnwindSafe},
    time::SystemTime,
};

use super::{Engine, Recorded, Refused, Shared, Want, session::Longer, slot::Slot};
use crate::{domain::Delta, facts::Facts};

impl Engine {
    /// Takes a piece of text in. `None`: there is nothing to say.
    pub fn delta(&self, delta: &Delta, now: SystemTime) -> Result<Option<Recorded>, Refused> {
        let (setup, held) = (self.setup.load(), self.tenants.of(&delta.session));
        let shared = self.shared(&setup, &held);
        self.press(Want::Delta, now, &shared);
        if let Some(answer) = self.lengthen(delta, now, &shared) {
            return answer;
        }
        let vector = self.prepared(&delta.session, now, || self.vector(delta, shared.facts))?;
        self.with_slot(&delta.session, &held, now, |slot| match slot {
            Slot::Gone(tombstone) => Ok(Some(tombstone.latched(&delta.session))),
            Slot::Live(session) => session.delta(delta, vector, now, &shared),
        })
    }

    /// Takes in a piece that makes a text longer, and does nothing else; `None`:
    /// it is not such a piece, or not such a session, and nothing was done.
    fn lengthen(
        &self,
        delta: &Delta,
        now: SystemTime,
        shared: &Shared,
    ) -> Option<Result<Option<Recorded>, Refused>> {
        if delta.end_of_turn {
            return None;
        }
        let mut slot = self.sessions.get_mut(&delta.session)?;
        let Slot::Live(session) = &mut *slot else {
            return None;
        };
        let lengthen = AssertUnwindSafe(|| session.lengthen(delta, now, shared));
        let longer = match panic::catch_unwind(lengthen) {
            Ok(longer) => Ok(longer?),
            Err(panic) => Err(panic),
        };
        if matches!(longer, Ok(Longer::AsBefore)) {
            return Some(Ok(None));
        }
        Some(
            self.accounted(&delta.session, shared.held, &mut slot, now, |slot| {
                match (longer, slot) {
                    (Ok(Longer::Repeats(agent, repeated)), Slot::Live(session)) => {
                        Ok(session.repeats(delta, agent, repeated, now, shared))
                    }
                    (Ok(_), _) => Ok(None),
                    // To where a session in which this happens is set aside.
                    (Err(panic), _) => panic::resume_unwind(panic),
                }
            }),
        )
    }

    /// What the model, where there is one, makes of a text that ends with this
    /// piece. The text is copied, so that no lock is held meanwhile.
    fn vector(&self, delta: &Delta, facts: &Facts) -> Box<[f32]> {
        if !delta.end_of_turn || facts.reader().model.is_none() {
            return Box::default();
        }
        let slot = self.sessions.get(&delta.session);
        let written = slot.map(|slot| slot.written(delta, facts.key()));
        facts.vector(&written.unwrap_or_else(|| delta.text.clone()))
    }
}
