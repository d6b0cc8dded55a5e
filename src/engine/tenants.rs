//! What each tenant holds. All have an equal share of the limits, so that none
//! takes what is another's: who has more than its share makes way.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use dashmap::DashMap;

use super::{
    Engine, EngineContext, breaker::Breaker, carry_over::CarryOverCache, expiry::DeadlineQueue,
    post_mortem::PostMortemCache, session::Session,
};
use crate::domain::{SessionId, SessionStatus, Tenant};

#[derive(Default)]
pub(super) struct TenantState {
    /// Live sessions by when they would have been idle for too long: those that
    /// were told nothing yet, and those that were, which memory lets go of last.
    pub without_verdicts: DeadlineQueue,
    pub with_verdicts: DeadlineQueue,
    /// Tombstones by when they expire: a session that ended must never push out
    /// one that was terminated.
    pub ended_tombstones: DeadlineQueue,
    pub terminated_tombstones: DeadlineQueue,
    pub carry_overs: CarryOverCache,
    /// What led to the end of some of those that are over.
    pub post_mortems: PostMortemCache,
    /// Keeps detectors from ending a large share of its sessions.
    pub breaker: Breaker,
    pub live_sessions: AtomicUsize,
    /// What its sessions and the tombstones of those that ended hold, by our own
    /// count.
    pub state_bytes: AtomicUsize,
    /// What the tombstones of terminated ones hold: apart, since they must hold
    /// and can make no room for sessions.
    pub terminated_bytes: AtomicUsize,
}

impl TenantState {
    /// Where a live session stands.
    pub fn idle_queue(&self, session: &Session) -> &DeadlineQueue {
        match session.is_queued_with_verdicts() {
            true => &self.with_verdicts,
            false => &self.without_verdicts,
        }
    }

    /// What its terminations hold, those of sub-agents too.
    pub fn tombstone_bytes(&self) -> usize {
        self.terminated_bytes.load(Relaxed) + self.carry_overs.bytes()
    }

    pub fn tombstones(&self, status: SessionStatus) -> &DeadlineQueue {
        match status {
            SessionStatus::Terminated => &self.terminated_tombstones,
            SessionStatus::Active
            | SessionStatus::Looping
            | SessionStatus::Ended
            | SessionStatus::Quarantined => &self.ended_tombstones,
        }
    }
}

pub(super) struct Tenants {
    /// Apart, since where no tokens are asked for it is the only one.
    default: TenantState,
    others: DashMap<Tenant, Arc<TenantState>, foldhash::quality::RandomState>,
    /// Among how many the limits are shared.
    count: AtomicUsize,
}

/// What a tenant holds, while something is done to it.
pub(super) enum TenantRef<'a> {
    Default(&'a TenantState),
    Other(Arc<TenantState>),
}

impl Deref for TenantRef<'_> {
    type Target = TenantState;

    fn deref(&self) -> &TenantState {
        match self {
            Self::Default(state) => state,
            Self::Other(state) => state,
        }
    }
}

impl Default for Tenants {
    fn default() -> Self {
        Self {
            default: TenantState::default(),
            others: DashMap::default(),
            count: AtomicUsize::new(1),
        }
    }
}

impl Tenants {
    /// What the tenant of this session holds.
    pub fn get_or_insert(&self, id: &SessionId) -> TenantRef<'_> {
        if id.is_of_default_tenant() {
            return TenantRef::Default(&self.default);
        }
        let tenant = id.tenant_key();
        if let Some(known) = self.others.get(tenant.as_str()) {
            return TenantRef::Other(known.clone());
        }
        TenantRef::Other(self.others.entry(id.tenant()).or_default().clone())
    }

    pub fn all(&self) -> Vec<TenantRef<'_>> {
        let named = self.all_named().into_iter();
        named.map(|(_, state)| state).collect()
    }

    pub fn all_named(&self) -> Vec<(Tenant, TenantRef<'_>)> {
        let default = (Tenant::default(), TenantRef::Default(&self.default));
        let named = |(tenant, state): (&Tenant, &Arc<TenantState>)| {
            (tenant.clone(), TenantRef::Other(state.clone()))
        };
        let others = self.others.iter().map(|other| named(other.pair()));
        std::iter::once(default).chain(others).collect()
    }

    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }
}

impl EngineContext<'_> {
    /// A tenant's part of a limit.
    pub fn tenant_share(&self, limit: usize) -> usize {
        match self.tenant_count {
            // On every event, and a division costs more than all else here.
            1 => limit.max(1),
            tenants => (limit / tenants).max(1),
        }
    }

    /// Whether somebody holds more than is theirs.
    pub fn is_over_share(&self, tenant: &TenantState) -> bool {
        tenant.live_sessions.load(Relaxed) > self.tenant_share(self.limits.sessions_max)
            || tenant.state_bytes.load(Relaxed) > self.tenant_share(self.limits.state_bytes_max)
    }
}

impl Engine {
    /// Shares the limits among so many tenants.
    pub fn set_tenant_count(&self, tenants: usize) {
        self.tenants.count.store(tenants.max(1), Relaxed);
    }

    /// Another live session, or one less.
    pub(super) fn update_live_sessions(&self, tenant: &TenantState, more: bool) {
        for counter in [&self.state.live_sessions, &tenant.live_sessions] {
            match more {
                true => counter.fetch_add(1, Relaxed),
                false => counter.fetch_sub(1, Relaxed),
            };
        }
    }

    /// A tombstone is laid, or removed.
    pub(super) fn update_tombstone_bytes(
        &self,
        tenant: &TenantState,
        status: SessionStatus,
        before: usize,
        after: usize,
    ) {
        if status == SessionStatus::Terminated {
            let more = after.wrapping_sub(before);
            tenant.terminated_bytes.fetch_add(more, Relaxed);
        } else {
            self.update_state_bytes(tenant, before, after);
        }
    }

    /// Something that held so many bytes holds so many now.
    pub(super) fn update_state_bytes(&self, tenant: &TenantState, before: usize, after: usize) {
        if before != after {
            // Atomics wrap, and so a difference below zero is subtracted.
            let more = after.wrapping_sub(before);
            self.state.state_bytes.fetch_add(more, Relaxed);
            tenant.state_bytes.fetch_add(more, Relaxed);
        }
    }
}
