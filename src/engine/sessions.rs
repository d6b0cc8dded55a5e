//! The session map: finding, creating, changing, closing and removing a slot,
//! with the totals kept right around each of them.
//!
//! A panic in one session affects that session only. The session is quarantined
//! with a reference and the others go on. Its state may be half changed, so none
//! of it is used again. An operator who has read the log resets the session; once
//! it has ended, a new session may use its id.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use dashmap::{DashMap, Entry};
use uuid::Uuid;

use super::{
    Engine, EngineState, LateInput, RecordError,
    closed::{CarryOver, Tombstone, termination_record},
    disobedience,
    eviction::{DeadlineKey, MemoryUse},
    session::Session,
    slot::Slot,
    tenant::TenantState,
};
use crate::{
    domain::{
        Labels, RestoredSummary, SessionId, SessionStatus, SessionView, Verdict, VerdictId,
        VerdictRecord,
    },
    telemetry::PanicSite,
};

pub(super) type SessionMap = DashMap<SessionId, Slot, foldhash::quality::RandomState>;

/// With 256 shards, iterating over all sessions stalls a reader for a quarter of
/// a millisecond at most; with the default of 4 shards per core, for 4 ms.
pub(super) const SHARDS: usize = 256;

impl Engine {
    /// Runs `change` on the session's slot. The slot is live unless the session is
    /// terminated: a session that is new or had ended is created, within the
    /// limits.
    pub(super) fn with_slot<T, E: From<RecordError>>(
        &self,
        id: &SessionId,
        tenant: &TenantState,
        now: SystemTime,
        change: impl FnOnce(&mut Slot) -> Result<T, E>,
    ) -> Result<T, E> {
        if let Some(mut slot) = self.sessions.get_mut(id)
            && !slot.is_ended()
        {
            return self.with_accounting(id, tenant, &mut slot, now, change);
        }
        self.reserve_session(tenant, now)?;
        let create =
            || self.create_session(id, "", Arc::default(), tenant.carry_overs.take(id), now);
        let mut slot = match self.sessions.entry(id.clone()) {
            Entry::Vacant(vacant) => vacant.insert(create()),
            Entry::Occupied(mut occupied) if occupied.get().is_ended() => {
                self.unregister_slot(tenant, &occupied.insert(create()));
                occupied.into_ref()
            }
            // Another thread created it in the meantime.
            Entry::Occupied(occupied) => {
                self.state.remove_live_session(tenant);
                occupied.into_ref()
            }
        };
        self.with_accounting(id, tenant, &mut slot, now, change)
    }

    /// Counts one more live session, within the limits.
    pub(super) fn reserve_session(
        &self,
        tenant: &TenantState,
        now: SystemTime,
    ) -> Result<(), RecordError> {
        let config = self.config.load();
        let ctx = self.context(&config, tenant);
        self.make_room_for(MemoryUse::SessionOrAgent, now, &ctx);
        ctx.check_memory(MemoryUse::SessionOrAgent)?;
        let sessions_max = ctx.limits.sessions_max;
        try_increment(&tenant.live_sessions, ctx.tenant_share(sessions_max))?;
        try_increment(ctx.live_sessions, sessions_max).inspect_err(|_| {
            tenant.live_sessions.fetch_sub(1, Relaxed);
        })
    }

    /// Creates a session that is already counted among the live ones.
    pub(super) fn create_session(
        &self,
        id: &SessionId,
        profile: &str,
        labels: Arc<Labels>,
        carry_over: CarryOver,
        now: SystemTime,
    ) -> Slot {
        let profile = self.config.load().profiles.get_or_default(profile);
        let key = self.new_deadline_key(now + self.idle_max());
        let mut session = Session::new(profile, labels, key, now);
        session.apply_carry_over(carry_over);
        if self.state.restored.take_lost(id, now) {
            session.set_state_lost();
        }
        let tenant = self.tenants.get_or_insert(id);
        tenant.without_verdicts.insert(key, id);
        let metrics = &self.state.metrics;
        metrics.adjust_session_counts(None, Some(SessionStatus::Active));
        Slot::Live(Box::new(session))
    }

    /// An equal id whose memory is shared with the session map, for callers that
    /// store the id.
    pub fn shared_id(&self, id: &SessionId) -> SessionId {
        let stored = self.sessions.view(id, |stored, _| stored.clone());
        stored.unwrap_or_else(|| id.clone())
    }

    /// Whether the session is live or has a tombstone.
    pub fn contains(&self, id: &SessionId) -> bool {
        self.sessions.contains_key(id)
    }

    pub fn get(&self, id: &SessionId) -> Option<SessionView> {
        let view = self.sessions.view(id, |id, slot| slot.view(id))?;
        Some(SessionView {
            disobeyed: self
                .state
                .disobedience
                .total(id, view.termination.as_deref()),
            ..view
        })
    }

    /// Counts an input after a termination. Returns a report if it is due; its action
    /// is that of the termination.
    pub fn count_late_input(&self, input: &LateInput<'_>) -> Option<Arc<Verdict>> {
        disobedience::count_late_input(self, input)
    }

    /// What the start has restored. `None`: nothing was to be restored.
    pub fn restored_summary(&self) -> Option<RestoredSummary> {
        *self.state.restored.summary.lock()
    }

    /// Notes that the sessions of the previous process could not be read: those that begin
    /// may be among them, until they would have expired.
    pub fn note_unreadable_sessions(&self, now: SystemTime) {
        self.state.restored.add_any_lost(now + self.idle_max());
    }

    /// Notes how many live sessions the start has restored.
    pub fn set_restored_sessions(&self, whole: usize, partial: usize, lost: usize) {
        if let Some(summary) = &mut *self.state.restored.summary.lock() {
            (summary.whole, summary.partial, summary.lost) = (whole, partial, lost);
            if lost > 0 {
                summary.data_since = summary.started_at;
            }
        }
    }

    /// The terminations in force since the given one, of sessions and of sub-agents, in no
    /// order. It walks over all sessions.
    pub fn terminations_since(&self, since: VerdictId) -> Vec<VerdictRecord> {
        let mut found = Vec::new();
        for slot in self.sessions.iter() {
            match slot.value() {
                Slot::Live(session) => {
                    let (labels, profile) = (session.labels(), &session.profile().name);
                    let terminations = session.terminations().into_iter();
                    found.extend(terminations.map(|v| termination_record(v, labels, profile)));
                }
                Slot::Closed(tombstone) => found.extend(tombstone.termination_record()),
            }
        }
        let (labels, profile) = (Arc::default(), self.default_profile());
        for tenant in self.tenants.all() {
            let terminations = tenant.carry_overs.agent_terminations().into_iter();
            found.extend(terminations.map(|v| termination_record(v, &labels, &profile)));
        }
        found.retain(|issued| issued.verdict.id >= since);
        found
    }

    /// A verdict with its text, if its session still has it.
    pub fn known_verdict(&self, session: &SessionId, id: VerdictId) -> Option<Arc<Verdict>> {
        let slot = self.sessions.get(session)?;
        let known = match &*slot {
            Slot::Live(session) => session.verdict(id),
            Slot::Closed(_) => {
                let generation = slot.generation();
                drop(slot);
                let tenant = self.tenants.get_or_insert(session);
                tenant.post_mortems.get(generation)?.verdict(id)
            }
        };
        // A session that was restored from its head has its verdicts without text.
        known.filter(|verdict| !verdict.pattern.is_empty())
    }

    /// Runs `change` on a slot, updates the totals afterwards, and closes the
    /// session if the change terminated it.
    pub(super) fn with_accounting<T, E: From<RecordError>>(
        &self,
        id: &SessionId,
        tenant: &TenantState,
        slot: &mut Slot,
        now: SystemTime,
        change: impl FnOnce(&mut Slot) -> Result<T, E>,
    ) -> Result<T, E> {
        let before = slot.status();
        let result = self.apply_catching_panic(id, slot, change);
        if let Slot::Live(session) = slot {
            session.set_changed(true);
            if session.has_verdicts() && !session.is_queued_with_verdicts() {
                tenant.without_verdicts.remove(session.deadline_key());
                session.set_queued_with_verdicts();
                tenant.with_verdicts.insert(session.deadline_key(), id);
            }
            self.state.update_session_bytes(tenant, session, id);
            let after = session.status();
            self.state.metrics.record_status_change(before, after);
            if after == SessionStatus::Terminated {
                let view = session.view(id);
                *slot = self.close(tenant, Some(slot), view, now);
            }
        }
        result
    }

    /// Closes a session: saves its post-mortem, takes its slot out of the totals,
    /// and returns the tombstone that replaces the slot. `slot` is `None` if an
    /// operator terminates a session that the engine does not know.
    pub(super) fn close(
        &self,
        tenant: &TenantState,
        slot: Option<&Slot>,
        view: SessionView,
        now: SystemTime,
    ) -> Slot {
        let key = self.new_deadline_key(now + self.tombstone_retention());
        match slot {
            Some(Slot::Live(session)) => {
                let config = self.config.load();
                let ctx = self.context(&config, tenant);
                tenant.save_post_mortem(session, &view, key.generation, &ctx);
            }
            Some(Slot::Closed(tombstone)) => {
                let earlier = tombstone.deadline_key().generation;
                tenant
                    .post_mortems
                    .change_generation(earlier, key.generation);
            }
            None => {}
        }
        if let Some(slot) = slot {
            self.unregister_slot(tenant, slot);
        }
        tenant.tombstones(view.status).insert(key, &view.id);
        let tombstone = Tombstone::new(view, key);
        self.state.register_tombstone(tenant, tombstone)
    }

    /// Takes a slot out of the totals and out of its queue.
    pub(super) fn unregister_slot(&self, tenant: &TenantState, slot: &Slot) {
        let state = &self.state;
        match slot {
            Slot::Live(session) => {
                session.remove_trend_metrics(&state.metrics);
                state.remove_live_session(tenant);
                tenant.idle_queue(session).remove(session.deadline_key());
                state.update_state_bytes(tenant, slot.bytes(), 0);
            }
            Slot::Closed(tombstone) => {
                let key = tombstone.deadline_key();
                tenant.tombstones(slot.status()).remove(key);
                tenant.evict_post_mortem(key.generation, &state.state_bytes);
                state.update_tombstone_bytes(tenant, slot.status(), slot.bytes(), 0);
            }
        }
        let metrics = &state.metrics;
        metrics.adjust_session_counts(Some(slot.status()), None);
    }

    /// Saves what a session leaves to the next session of its id.
    pub(super) fn save_carry_over(&self, id: &SessionId, carry_over: CarryOver) {
        if let Some(deadline) = carry_over.deadline(self.tombstone_retention()) {
            let carry_overs = &self.tenants.get_or_insert(id).carry_overs;
            carry_overs.insert(id, self.new_deadline_key(deadline), carry_over);
        }
    }

    pub(super) fn new_deadline_key(&self, deadline: SystemTime) -> DeadlineKey {
        DeadlineKey {
            deadline,
            generation: self.state.issuer.next_generation(),
        }
    }

    /// How long a termination is in force.
    pub fn tombstone_retention(&self) -> Duration {
        Duration::from_secs(self.config.load().limits.tombstone_secs_max)
    }

    /// How long a session may be idle.
    pub fn idle_max(&self) -> Duration {
        Duration::from_secs(self.config.load().limits.idle_secs_max)
    }

    /// Runs code that may panic before its session is looked up.
    pub(super) fn prepare_catching_panic<T>(
        &self,
        id: &SessionId,
        now: SystemTime,
        prepare: impl FnOnce() -> T,
    ) -> Result<T, RecordError> {
        panic::catch_unwind(AssertUnwindSafe(prepare)).or_else(|_| {
            let tenant = self.tenants.get_or_insert(id);
            self.with_slot(id, &tenant, now, |slot| Err(self.quarantine(id, slot)))
        })
    }

    /// Runs code that changes a session and may panic.
    fn apply_catching_panic<T, E: From<RecordError>>(
        &self,
        id: &SessionId,
        slot: &mut Slot,
        change: impl FnOnce(&mut Slot) -> Result<T, E>,
    ) -> Result<T, E> {
        let result = panic::catch_unwind(AssertUnwindSafe(|| change(slot)));
        result.unwrap_or_else(|_| Err(self.quarantine(id, slot).into()))
    }

    /// Quarantines a session after a panic. A closed session has nothing to
    /// quarantine; the panic is only reported.
    fn quarantine(&self, id: &SessionId, slot: &mut Slot) -> RecordError {
        // The panic itself is in the log already, without its message: that may
        // quote an agent.
        let reference = Uuid::now_v7();
        self.state.metrics.count_panic(PanicSite::Session);
        tracing::error!(
            session = ?id,
            %reference,
            "bug: a session panicked and is quarantined until it is reset or ends"
        );
        if let Slot::Live(session) = slot {
            session.remove_trend_metrics(&self.state.metrics);
            **session = session.to_quarantined(reference);
        }
        RecordError::Quarantined(reference)
    }
}

impl EngineState {
    pub fn add_live_session(&self, tenant: &TenantState) {
        self.live_sessions.fetch_add(1, Relaxed);
        tenant.live_sessions.fetch_add(1, Relaxed);
    }

    pub fn remove_live_session(&self, tenant: &TenantState) {
        self.live_sessions.fetch_sub(1, Relaxed);
        tenant.live_sessions.fetch_sub(1, Relaxed);
    }

    /// Measures a live session again.
    pub fn update_session_bytes(
        &self,
        tenant: &TenantState,
        session: &mut Session,
        id: &SessionId,
    ) {
        let (before, after) = session.update_accounted_bytes(id);
        self.update_state_bytes(tenant, before, after);
    }

    /// Adds a tombstone to the totals.
    pub fn register_tombstone(&self, tenant: &TenantState, tombstone: Tombstone) -> Slot {
        let (status, bytes) = (tombstone.status(), tombstone.bytes());
        self.metrics.adjust_session_counts(None, Some(status));
        self.update_tombstone_bytes(tenant, status, 0, bytes);
        Slot::Closed(Box::new(tombstone))
    }

    fn update_tombstone_bytes(
        &self,
        tenant: &TenantState,
        status: SessionStatus,
        before: usize,
        after: usize,
    ) {
        if status == SessionStatus::Terminated {
            let change = after.wrapping_sub(before);
            tenant.terminated_bytes.fetch_add(change, Relaxed);
        } else {
            self.update_state_bytes(tenant, before, after);
        }
    }

    /// Replaces `before` bytes by `after` bytes in the totals.
    pub fn update_state_bytes(&self, tenant: &TenantState, before: usize, after: usize) {
        tenant.update_state_bytes(&self.state_bytes, before, after);
    }
}

fn try_increment(counter: &AtomicUsize, max: usize) -> Result<(), RecordError> {
    let incremented = counter.try_update(Relaxed, Relaxed, |n| (n < max).then_some(n + 1));
    incremented
        .map(drop)
        .map_err(|_| RecordError::SessionsMax(max))
}
