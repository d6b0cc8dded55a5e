//! Text as it is written. Nearly every piece only makes it longer, so that what a
//! session's totals go by is as it was: they are gone over for the others alone.

use std::{
    panic::{self, AssertUnwindSafe},
    time::SystemTime,
};

use super::{
    Engine, EngineContext, MemoryUse, RecordError, RecordOutcome, session::AppendOutcome,
    slot::Slot,
};
use crate::{domain::Delta, facts::FactExtractor};

impl Engine {
    /// Takes a piece of text in. `None`: there is nothing to say.
    pub fn record_delta(
        &self,
        delta: &Delta,
        now: SystemTime,
    ) -> Result<Option<RecordOutcome>, RecordError> {
        let (config, tenant) = (
            self.config.load(),
            self.tenants.get_or_insert(&delta.session),
        );
        let ctx = self.context(&config, &tenant);
        self.make_room_for(MemoryUse::Delta, now, &ctx);
        if let Some(answer) = self.append_delta(delta, now, &ctx) {
            return answer;
        }
        let vector =
            self.prepare_catching_panic(&delta.session, now, || self.embed_turn(delta, ctx.facts))?;
        self.with_slot(&delta.session, &tenant, now, |slot| match slot {
            Slot::Closed(tombstone) => Ok(Some(tombstone.terminated_outcome(&delta.session))),
            Slot::Live(session) => session.record_delta(delta, vector, now, &ctx),
        })
    }

    /// Takes in a piece that makes a text longer, and does nothing else; `None`:
    /// it is not such a piece, or not such a session, and nothing was done.
    fn append_delta(
        &self,
        delta: &Delta,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> Option<Result<Option<RecordOutcome>, RecordError>> {
        if delta.end_of_turn {
            return None;
        }
        let mut slot = self.sessions.get_mut(&delta.session)?;
        let Slot::Live(session) = &mut *slot else {
            return None;
        };
        let append = AssertUnwindSafe(|| session.append_delta(delta, now, ctx));
        let appended = match panic::catch_unwind(append) {
            Ok(longer) => Ok(longer?),
            Err(panic) => Err(panic),
        };
        if matches!(appended, Ok(AppendOutcome::SameSize)) {
            return Some(Ok(None));
        }
        Some(
            self.with_accounting(&delta.session, ctx.tenant, &mut slot, now, |slot| {
                match (appended, slot) {
                    (Ok(AppendOutcome::Repeats(agent, repeated)), Slot::Live(session)) => {
                        Ok(session.record_repetition(delta, agent, repeated, now, ctx))
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
    fn embed_turn(&self, delta: &Delta, facts: &FactExtractor) -> Box<[f32]> {
        if !delta.end_of_turn || facts.analyzers().model.is_none() {
            return Box::default();
        }
        let slot = self.sessions.get(&delta.session);
        let draft_text = slot.map(|slot| slot.draft_text(delta, facts.key()));
        facts.embed(&draft_text.unwrap_or_else(|| delta.text.clone()))
    }
}
