//! How memory is freed: sessions and tombstones expire, and they are evicted
//! earlier when memory is short.
//!
//! The budget is `limits.state_bytes_max`. Below it there are four steps, so that
//! what matters least goes first:
//!
//! 1. From 75 % on, idle sessions expire sooner.
//! 2. From 90 % on, a new session or agent replaces one that has been idle; if
//!    there is none, it is rejected.
//! 3. From 95 % on, deltas are rejected.
//! 4. At 100 %, events are rejected.
//!
//! Sessions with verdicts are evicted after all others; terminations stay.

use std::{
    collections::BTreeMap,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;

use super::{Engine, EngineContext, RecordError, breaker, slot::Slot, tenant::TenantState};
use crate::{domain::SessionId, telemetry::EvictionReason};

/// Sessions or tombstones by the time when they have to be checked again. Expiry
/// reads this queue instead of iterating over the map. Each slot has one entry,
/// which is removed with the slot.
#[derive(Default)]
pub(super) struct DeadlineQueue {
    entries: Mutex<BTreeMap<DeadlineKey, SessionId>>,
}

/// The position of a slot in its queue. The generation tells it from an earlier or
/// later slot of the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeadlineKey {
    pub deadline: SystemTime,
    pub generation: u64,
}

impl DeadlineQueue {
    pub fn insert(&self, key: DeadlineKey, id: &SessionId) {
        self.entries.lock().insert(key, id.clone());
    }

    /// Inserts many entries at once, in any order.
    pub fn insert_all(&self, entries: Vec<(DeadlineKey, SessionId)>) {
        let mut sorted = entries.into_iter().collect();
        self.entries.lock().append(&mut sorted);
    }

    pub fn remove(&self, key: DeadlineKey) {
        self.entries.lock().remove(&key);
    }

    pub fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// Removes and returns the first entry if it is due. The queue is not locked
    /// while its slot is checked: a thread that holds a shard may have to insert.
    pub fn pop_if(
        &self,
        is_due: impl Fn(&DeadlineKey) -> bool,
    ) -> Option<(DeadlineKey, SessionId)> {
        let mut entries = self.entries.lock();
        let first = entries.first_entry().filter(|first| is_due(first.key()))?;
        Some(first.remove_entry())
    }
}

/// The reason for which memory is needed. It decides which share of the budget may be in
/// use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryUse {
    SessionOrAgent,
    Delta,
    Event,
}

impl MemoryUse {
    fn budget_percent(self) -> usize {
        match self {
            Self::SessionOrAgent => 90,
            Self::Delta => 95,
            Self::Event => 100,
        }
    }
}

/// Above this share of the memory budget idle sessions expire sooner.
const EARLY_EVICTION_PERCENT: usize = 75;

/// The number of slots checked to make room for one input, so that it does not
/// wait long. More than one, because the new state may be larger than the evicted.
const EVICTION_CHECKS_MAX: usize = 64;

impl EngineContext<'_> {
    /// A tenant's share of a limit.
    pub fn tenant_share(&self, limit: usize) -> usize {
        match self.tenant_count {
            // This runs on every event, and a division costs more than all else here.
            1 => limit.max(1),
            tenants => (limit / tenants).max(1),
        }
    }

    fn is_over_share(&self, tenant: &TenantState) -> bool {
        tenant.live_sessions.load(Relaxed) > self.tenant_share(self.limits.sessions_max)
            || tenant.state_bytes.load(Relaxed) > self.tenant_share(self.limits.state_bytes_max)
    }

    pub fn check_memory(&self, memory_use: MemoryUse) -> Result<(), RecordError> {
        let bytes_max = self.limits.state_bytes_max;
        let engine_bytes = self.state_bytes.load(Relaxed);
        // No tenant has more bytes than the engine, so this check nearly always
        // suffices. It runs on every delta.
        if engine_bytes.saturating_mul(self.tenant_count) < bytes_max / 2 {
            return Ok(());
        }
        let tenant_bytes = self.tenant.state_bytes.load(Relaxed);
        let tenant_max = self.tenant_share(bytes_max);
        for (bytes, bytes_max) in [(engine_bytes, bytes_max), (tenant_bytes, tenant_max)] {
            if bytes >= percent_of(bytes_max, memory_use.budget_percent()) {
                return Err(RecordError::StateBytesMax(bytes_max));
            }
        }
        Ok(())
    }

    /// The idle time after which a session expires at the current memory usage:
    /// `idle_secs_max` up to 75 %, falling to `pressure_idle_secs_min` at 90 %.
    pub fn current_idle_max(&self) -> Duration {
        let (longest, shortest) = (self.limits.idle_secs_max, self.idle_min().as_secs());
        let max = self.limits.state_bytes_max;
        let from = percent_of(max, EARLY_EVICTION_PERCENT);
        let to = percent_of(max, MemoryUse::SessionOrAgent.budget_percent());
        // A tenant that has filled its share counts as if all had filled theirs.
        let tenant_bytes = self.tenant.state_bytes.load(Relaxed);
        let scaled_tenant_bytes = tenant_bytes.saturating_mul(self.tenant_count);
        let engine_bytes = self.state_bytes.load(Relaxed);
        let bytes = engine_bytes.max(scaled_tenant_bytes).clamp(from, to);
        let left = (to - bytes) as f64 / (to - from).max(1) as f64;
        Duration::from_secs_f64(shortest as f64 + left * (longest - shortest) as f64)
    }

    fn has_room(&self, memory_use: MemoryUse) -> bool {
        let is_out_of_sessions = memory_use == MemoryUse::SessionOrAgent && self.sessions_full();
        !is_out_of_sessions && self.check_memory(memory_use).is_ok()
    }

    fn sessions_full(&self) -> bool {
        let sessions_max = self.limits.sessions_max;
        self.live_sessions.load(Relaxed) >= sessions_max
            || self.tenant.live_sessions.load(Relaxed) >= self.tenant_share(sessions_max)
    }

    fn idle_min(&self) -> Duration {
        let limits = self.limits;
        Duration::from_secs(limits.pressure_idle_secs_min.min(limits.idle_secs_max))
    }
}

impl Engine {
    /// Removes at most `max` idle sessions and as many tombstones of each kind for
    /// each tenant, and closes breakers that may close. It is called often, so that
    /// no call is long. Returns whether there may be more to remove.
    pub fn evict_expired(&self, now: SystemTime, max: usize) -> bool {
        let config = self.config.load();
        let mut more = false;
        for tenant in self.tenants.all() {
            more |= self.evict_expired_of_tenant(&self.context(&config, &tenant), now, max);
        }
        let breaker = config.limits.breaker.as_ref();
        breaker::update_breakers(&self.tenants, breaker, &self.state.metrics, now);
        more
    }

    fn evict_expired_of_tenant(&self, ctx: &EngineContext, now: SystemTime, max: usize) -> bool {
        let (idle_max, tenant) = (self.idle_max(), ctx.tenant);
        let mut more = false;
        for queue in [&tenant.without_verdicts, &tenant.with_verdicts] {
            more |= (0..max)
                .all(|_| self.evict_first_if_idle(queue, idle_max, EvictionReason::Idle, now));
        }
        // Each eviction lowers the memory usage, so the idle time is read each time.
        more |= (0..max).all(|_| {
            let idle = ctx.current_idle_max();
            let queue = &tenant.without_verdicts;
            idle < idle_max && self.evict_first_if_idle(queue, idle, EvictionReason::Pressure, now)
        });
        let before = closed_entries(tenant);
        self.evict_tombstones(ctx, now, max);
        more || before.saturating_sub(closed_entries(tenant)) >= max
    }

    /// Checks the first session of a queue and removes it if it was idle for this
    /// long. Returns false if there is none to check. The queue is ordered by the time
    /// when each session will have been idle for `idle_secs_max`, as of its last check.
    fn evict_first_if_idle(
        &self,
        queue: &DeadlineQueue,
        idle: Duration,
        reason: EvictionReason,
        now: SystemTime,
    ) -> bool {
        let due = now + self.idle_max().saturating_sub(idle);
        let Some((key, id)) = queue.pop_if(|key| key.deadline <= due) else {
            return false;
        };
        if !self.requeue_if_active(&id, key, idle, now)
            && self.remove_if_idle(&id, key.generation, idle, now)
        {
            self.state.metrics.count_session_eviction(reason);
        }
        true
    }

    /// Removes tombstones that have expired or exceed the limits. Tombstones of
    /// ended sessions go first if there are too many or memory is short, because a
    /// termination must stay in force. Terminations have a byte budget of their
    /// own; if it is full, those of sub-agents go before those of sessions.
    fn evict_tombstones(&self, ctx: &EngineContext, now: SystemTime, max: usize) {
        let tenant = ctx.tenant;
        let tombstones_max = ctx.tenant_share(ctx.limits.tombstones_max);
        let bytes_max = ctx.tenant_share(ctx.limits.tombstone_bytes_max);
        self.evict_from_queue(&tenant.ended_tombstones, now, max, || {
            tenant.ended_tombstones.len() + tenant.terminated_tombstones.len() > tombstones_max
                || ctx.check_memory(MemoryUse::SessionOrAgent).is_err()
        });
        let exceeds_limits = |len| len > tombstones_max || tenant.tombstone_bytes() > bytes_max;
        tenant.carry_overs.evict(now, exceeds_limits, max);
        self.evict_from_queue(&tenant.terminated_tombstones, now, max, || {
            tenant.terminated_tombstones.len() > tombstones_max
                || tenant.carry_overs.len() == 0 && tenant.tombstone_bytes() > bytes_max
        });
    }

    /// Removes at most `max` tombstones of one queue.
    fn evict_from_queue(
        &self,
        queue: &DeadlineQueue,
        now: SystemTime,
        max: usize,
        exceeds_limits: impl Fn() -> bool,
    ) {
        for _ in 0..max {
            let over_limit = exceeds_limits();
            let Some((key, id)) = queue.pop_if(|key| over_limit || key.deadline <= now) else {
                break;
            };
            if self.remove_if_idle(&id, key.generation, Duration::ZERO, now) {
                let metrics = &self.state.metrics;
                metrics.count_session_eviction(EvictionReason::Tombstone);
            }
        }
    }

    /// Puts a session that was active since the last check back into its queue.
    fn requeue_if_active(
        &self,
        id: &SessionId,
        key: DeadlineKey,
        idle: Duration,
        now: SystemTime,
    ) -> bool {
        let Some(mut slot) = self.sessions.get_mut(id) else {
            return false;
        };
        let Slot::Live(session) = &mut *slot else {
            return false;
        };
        if session.deadline_key() != key || session.last_seen() + idle <= now {
            return false;
        }
        let new_key = DeadlineKey {
            deadline: session.last_seen() + self.idle_max(),
            ..key
        };
        session.set_deadline_key(new_key);
        let tenant = self.tenants.get_or_insert(id);
        tenant.idle_queue(session).insert(new_key, id);
        true
    }

    /// Removes a slot, unless it has another generation or was active meanwhile.
    fn remove_if_idle(
        &self,
        id: &SessionId,
        generation: u64,
        idle: Duration,
        now: SystemTime,
    ) -> bool {
        let removed = self.sessions.remove_if(id, |_, slot| {
            if slot.generation() != generation {
                return false;
            }
            if let Slot::Live(session) = slot {
                if session.last_seen() + idle > now {
                    return false;
                }
                self.save_carry_over(id, session.carry_over());
            }
            true
        });
        if let Some((_, slot)) = &removed {
            self.unregister_slot(&self.tenants.get_or_insert(id), slot);
        }
        removed.is_some()
    }

    /// Makes room if memory or sessions are short. Post-mortems and tombstones go
    /// first, then idle sessions without verdicts, then idle ones with verdicts. The
    /// caller must not hold a lock on the map.
    pub(super) fn make_room_for(
        &self,
        memory_use: MemoryUse,
        now: SystemTime,
        ctx: &EngineContext,
    ) {
        if ctx.has_room(memory_use) {
            return;
        }
        // Tenants above their share are evicted from first.
        if ctx.tenant_count > 1 && !ctx.is_over_share(ctx.tenant) {
            let others = self.tenants.all().into_iter();
            for other in others.filter(|other| ctx.is_over_share(other)) {
                self.evict_from_tenant(memory_use, &other, now, ctx);
            }
        }
        self.evict_from_tenant(memory_use, ctx.tenant, now, ctx);
    }

    /// Evicts state of `tenant` until there is room for the tenant of `ctx`.
    fn evict_from_tenant(
        &self,
        memory_use: MemoryUse,
        tenant: &TenantState,
        now: SystemTime,
        ctx: &EngineContext,
    ) {
        if ctx.has_room(memory_use) {
            return;
        }
        if ctx.check_memory(memory_use).is_err() {
            tenant.clear_post_mortems(ctx.state_bytes);
        }
        let tenant_ctx = EngineContext { tenant, ..*ctx };
        self.evict_tombstones(&tenant_ctx, now, EVICTION_CHECKS_MAX);
        let idle = ctx.idle_min();
        for queue in [&tenant.without_verdicts, &tenant.with_verdicts] {
            for _ in 0..EVICTION_CHECKS_MAX {
                if ctx.has_room(memory_use) {
                    return;
                }
                if !self.evict_first_if_idle(queue, idle, EvictionReason::Pressure, now) {
                    break;
                }
            }
        }
    }
}

fn closed_entries(tenant: &TenantState) -> usize {
    tenant.ended_tombstones.len() + tenant.carry_overs.len() + tenant.terminated_tombstones.len()
}

/// Rounded down, without overflow.
fn percent_of(total: usize, percent: usize) -> usize {
    // This runs on every event, and divisions cost most.
    if percent == 100 {
        return total;
    }
    total / 100 * percent + total % 100 * percent / 100
}
