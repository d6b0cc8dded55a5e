//! The state of each tenant. All tenants have an equal share of the limits, so
//! that none uses up another's: a tenant above its share is evicted from first.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use dashmap::DashMap;

use super::{
    breaker::Breaker,
    closed::{CarryOverCache, PostMortemCache},
    eviction::DeadlineQueue,
    session::Session,
};
use crate::domain::{SessionId, SessionStatus, Tenant};

#[derive(Default)]
pub(super) struct TenantState {
    /// Live sessions by idle deadline. Sessions with verdicts are in a second
    /// queue and are evicted last.
    pub without_verdicts: DeadlineQueue,
    pub with_verdicts: DeadlineQueue,
    /// Tombstones by expiry. Two queues, because an ended session must never push
    /// out a terminated one.
    pub ended_tombstones: DeadlineQueue,
    pub terminated_tombstones: DeadlineQueue,
    pub carry_overs: CarryOverCache,
    pub post_mortems: PostMortemCache,
    /// Keeps detectors from terminating a large share of the tenant's sessions.
    pub breaker: Breaker,
    pub live_sessions: AtomicUsize,
    /// Bytes of live sessions, of tombstones of ended sessions and of post
    /// mortems, by the engine's own accounting.
    pub state_bytes: AtomicUsize,
    /// Bytes of the tombstones of terminated sessions. Counted separately, because
    /// they must stay and cannot be evicted in favour of sessions.
    pub terminated_bytes: AtomicUsize,
}

impl TenantState {
    /// The queue that a live session is in.
    pub fn idle_queue(&self, session: &Session) -> &DeadlineQueue {
        if session.is_queued_with_verdicts() {
            &self.with_verdicts
        } else {
            &self.without_verdicts
        }
    }

    /// Bytes of terminations, those of sub-agents included.
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

    /// Replaces `before` bytes by `after` bytes in the tenant's total and in the
    /// engine's.
    pub fn update_state_bytes(&self, engine_bytes: &AtomicUsize, before: usize, after: usize) {
        if before != after {
            // Atomics wrap, so adding a wrapped negative difference subtracts it.
            let change = after.wrapping_sub(before);
            engine_bytes.fetch_add(change, Relaxed);
            self.state_bytes.fetch_add(change, Relaxed);
        }
    }
}

pub(super) struct Tenants {
    /// The only tenant without tokens, so it is not in the map.
    default: TenantState,
    others: DashMap<Tenant, Arc<TenantState>, foldhash::quality::RandomState>,
    /// The number of tenants that share the limits.
    count: AtomicUsize,
}

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
    /// The tenant of this session.
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
        let others = self
            .others
            .iter()
            .map(|other| (other.key().clone(), TenantRef::Other(other.value().clone())));
        std::iter::once(default).chain(others).collect()
    }

    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    pub fn set_count(&self, tenants: usize) {
        self.count.store(tenants.max(1), Relaxed);
    }
}
