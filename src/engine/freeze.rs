//! Freezing sessions to bytes and thawing them: for a restart, or another process.
//!
//! One session is frozen at a time, under the lock of its shard and to bytes in memory;
//! they are written without a lock.

use std::{cmp::Reverse, sync::Arc, time::SystemTime};

use dashmap::Entry;

use super::{
    Engine, EngineContext, Profiles, ThawError,
    session::{Dependencies, Session, frozen},
    slot::Slot,
};
use crate::{
    domain::{FrozenSession, SessionId, Verdict, VerdictId},
    text::HashKey,
};

/// How much of a session has been restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThawOutcome {
    /// All of it.
    Whole,
    /// Its head only, because only that was saved, or the window is not usable.
    HeadOnly(Option<ThawError>),
    /// Profile and labels only, because the head is not usable.
    ProfileOnly(ThawError),
    /// Nothing, because the id is in use: the session was terminated, or has begun again.
    Occupied,
    /// Nothing, because the session was idle for too long.
    Expired,
    /// Nothing, because there is no room.
    NoRoom,
}

/// Changes with the key of signatures, the detectors, the rules and the models.
pub(super) fn dependencies(profiles: &Profiles, key: &HashKey) -> Dependencies {
    let names: Vec<&str> = profiles.detector_names().collect();
    let models: Vec<&str> = profiles.model_dirs().into_iter().collect();
    Dependencies {
        key: key.id_signature("frozen", "", ""),
        detectors: key.id_signature("frozen", &names.join("\n"), &models.join("\n")),
    }
}

/// Freezes and thaws the sessions of an engine.
#[derive(Clone, Copy)]
pub struct SessionFreezer<'a> {
    engine: &'a Engine,
}

impl<'a> SessionFreezer<'a> {
    pub(super) fn new(engine: &'a Engine) -> Self {
        Self { engine }
    }

    pub(super) fn engine(&self) -> &'a Engine {
        self.engine
    }

    /// Freezes a live session whole. `None`: there is none of this id.
    pub fn freeze(&self, id: &SessionId) -> Option<FrozenSession> {
        let config = self.engine.config.load();
        let dependencies = config.dependencies;
        let matcher = &config.facts.analyzers().phrase_matcher;
        let slot = self.engine.sessions.get(id)?;
        let Slot::Live(session) = &*slot else {
            return None;
        };
        Some(FrozenSession {
            window: Some(frozen::freeze_window(session, dependencies, matcher)),
            ..frozen_head(id, session, dependencies)
        })
    }

    /// The number of events of a live session. `None`: there is none of this id.
    pub fn events_of(&self, id: &SessionId) -> Option<i32> {
        match &*self.engine.sessions.get(id)? {
            Slot::Live(session) => Some(session.events()),
            Slot::Closed(_) => None,
        }
    }

    /// Freezes the head of a live session if it has changed since the last call.
    pub fn freeze_changed_head(&self, id: &SessionId) -> Option<FrozenSession> {
        let dependencies = self.engine.config.load().dependencies;
        let mut slot = self.engine.sessions.get_mut(id)?;
        match &mut *slot {
            Slot::Live(session) if session.is_changed() => {
                session.set_changed(false);
                Some(frozen_head(id, session, dependencies))
            }
            Slot::Live(_) | Slot::Closed(_) => None,
        }
    }

    /// Marks the head of a session as changed, because it could not be saved.
    pub fn mark_changed(&self, id: &SessionId) {
        if let Some(mut slot) = self.engine.sessions.get_mut(id)
            && let Slot::Live(session) = &mut *slot
        {
            session.set_changed(true);
        }
    }

    /// The live sessions whose heads have changed since they were last saved.
    pub fn changed_sessions(&self) -> Vec<SessionId> {
        let sessions = self.engine.sessions.iter();
        let changed = sessions.filter(|entry| match entry.value() {
            Slot::Live(session) => session.is_changed(),
            Slot::Closed(_) => false,
        });
        changed.map(|entry| entry.key().clone()).collect()
    }

    /// The live sessions: those with verdicts first, then the most recently active.
    pub fn sessions_by_importance(&self) -> Vec<SessionId> {
        let sessions = self.engine.sessions.iter();
        let live = sessions.filter_map(|entry| match entry.value() {
            Slot::Live(session) => Some((
                Reverse(session.has_verdicts()),
                Reverse(session.last_seen()),
                entry.key().clone(),
            )),
            Slot::Closed(_) => None,
        });
        let mut sessions: Vec<_> = live.collect();
        sessions.sort_unstable();
        sessions.into_iter().map(|(.., id)| id).collect()
    }

    pub fn is_live(&self, id: &SessionId) -> bool {
        let slot = self.engine.sessions.get(id);
        slot.is_some_and(|slot| !slot.is_closed())
    }

    /// Restores a frozen session, within the limits, unless its id is in use.
    pub fn thaw(&self, frozen: &FrozenSession, now: SystemTime) -> ThawOutcome {
        let id = &frozen.id;
        let deadline = frozen.last_seen + self.engine.idle_max();
        if deadline <= now {
            return ThawOutcome::Expired;
        }
        if self.engine.sessions.contains_key(id) {
            return ThawOutcome::Occupied;
        }
        let tenant = self.engine.tenants.get_or_insert(id);
        let config = self.engine.config.load();
        let key = self.engine.new_deadline_key(deadline);
        let ctx = self.engine.context(&config, &tenant);
        let (session, outcome) = match frozen::thaw(frozen, key, config.dependencies, &ctx) {
            Ok((session, None)) if frozen.window.is_some() => (session, ThawOutcome::Whole),
            Ok((session, window_error)) => (session, ThawOutcome::HeadOnly(window_error)),
            Err(error) => {
                let session = frozen::without_state(frozen, key, &ctx);
                (session, ThawOutcome::ProfileOnly(error))
            }
        };
        if self.engine.reserve_session(&tenant, now).is_err() {
            self.engine.state.restored.add_lost(id, deadline);
            return ThawOutcome::NoRoom;
        }
        let Entry::Vacant(vacant) = self.engine.sessions.entry(id.clone()) else {
            self.engine.state.remove_live_session(&tenant);
            return ThawOutcome::Occupied;
        };
        vacant.insert(register(self.engine, id, session, &ctx));
        outcome
    }

    /// The verdicts of loops with an action in force that a thawed session knows only by
    /// their ids.
    pub fn missing_verdicts(&self, id: &SessionId) -> Vec<VerdictId> {
        let slot = self.engine.sessions.get(id);
        match slot.as_deref() {
            Some(Slot::Live(session)) => frozen::missing_verdicts(session),
            _ => Vec::new(),
        }
    }

    /// Adds verdicts of the log to a thawed session without any, so that its last verdict is
    /// shown and found.
    pub fn add_verdicts(&self, id: &SessionId, mut verdicts: Vec<Arc<Verdict>>) {
        verdicts.sort_by_key(|verdict| verdict.id);
        let tenant = self.engine.tenants.get_or_insert(id);
        let Some(mut slot) = self.engine.sessions.get_mut(id) else {
            return;
        };
        if let Slot::Live(session) = &mut *slot
            && !verdicts.is_empty()
            && !session.has_verdicts()
        {
            frozen::add_verdicts(session, verdicts);
            self.engine.state.update_session_bytes(&tenant, session, id);
        }
    }

    /// Removes a live session without a trace, because another process has it now.
    pub fn release(&self, id: &SessionId) {
        let released = self
            .engine
            .sessions
            .remove_if(id, |_, slot| !slot.is_closed());
        if let Some((_, slot)) = &released {
            self.engine
                .unregister_slot(&self.engine.tenants.get_or_insert(id), slot);
        }
    }
}

/// Registers a thawed session, as a new session is. It is counted among the live ones.
pub(super) fn register(
    engine: &Engine,
    id: &SessionId,
    mut session: Session,
    ctx: &EngineContext,
) -> Slot {
    let tenant = ctx.tenant;
    session.apply_carry_over(tenant.carry_overs.take(id));
    if session.has_verdicts() {
        session.set_queued_with_verdicts();
    }
    session.add_trend_metrics(ctx.metrics);
    ctx.metrics
        .adjust_session_counts(None, Some(session.status()));
    tenant
        .idle_queue(&session)
        .insert(session.deadline_key(), id);
    engine.state.update_session_bytes(tenant, &mut session, id);
    Slot::Live(Box::new(session))
}

fn frozen_head(id: &SessionId, session: &Session, dependencies: Dependencies) -> FrozenSession {
    FrozenSession {
        id: id.clone(),
        profile: session.profile().name.clone(),
        labels: session.labels().clone(),
        last_seen: session.last_seen(),
        head: frozen::freeze_head(session, dependencies),
        window: None,
    }
}

#[cfg(test)]
mod tests;
