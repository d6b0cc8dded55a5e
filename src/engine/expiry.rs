use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use parking_lot::{Mutex, MutexGuard};

use super::{Engine, EngineContext, MemoryUse, slot::Slot};
use crate::{domain::SessionId, telemetry::EvictionReason};

/// Sessions or tombstones by when they are due to be looked at again. Nobody
/// walks the map for it: each stands here once, and leaves with its slot.
#[derive(Default)]
pub(super) struct DeadlineQueue {
    entries: Mutex<BTreeMap<DeadlineKey, SessionId>>,
}

/// Where a slot stands in its queue. The generation tells it from an earlier or
/// later slot of the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeadlineKey {
    pub deadline: SystemTime,
    pub generation: u64,
}

impl DeadlineQueue {
    pub fn insert(&self, key: DeadlineKey, id: &SessionId) {
        self.lock().insert(key, id.clone());
    }

    /// Takes many in at once, in no order.
    pub fn insert_all(&self, entries: Vec<(DeadlineKey, SessionId)>) {
        let mut entries = entries.into_iter().collect();
        self.lock().append(&mut entries);
    }

    pub fn remove(&self, key: DeadlineKey) {
        self.lock().remove(&key);
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Takes the first out, where it is due. The lock is not held while its
    /// slot is looked at: whoever holds a shard may want to insert.
    pub fn pop_if(
        &self,
        is_due: impl Fn(&DeadlineKey) -> bool,
    ) -> Option<(DeadlineKey, SessionId)> {
        let mut entries = self.lock();
        let first = entries.first_entry().filter(|first| is_due(first.key()))?;
        Some(first.remove_entry())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DeadlineKey, SessionId>> {
        self.entries.lock()
    }
}

impl Engine {
    /// Lets go of up to `most` sessions that were idle for too long and of as
    /// many tombstones of each kind, and looks whether a breaker may close.
    /// Called often, so that no call is long. Says whether there may be more to do.
    pub fn evict_expired(&self, now: SystemTime, max: usize) -> bool {
        let config = self.config.load();
        let mut more = false;
        for tenant in self.tenants.all() {
            more |= self.evict_expired_of_tenant(&self.context(&config, &tenant), now, max);
        }
        self.update_breakers(now);
        more
    }

    fn evict_expired_of_tenant(&self, ctx: &EngineContext, now: SystemTime, max: usize) -> bool {
        let (idle_max, tenant) = (self.idle_max(), ctx.tenant);
        let is_drained = |queue| {
            self.evict_first_if_idle(queue, idle_max, EvictionReason::Idle, now)
                .is_none()
        };
        let mut more = false;
        for queue in [&tenant.without_verdicts, &tenant.with_verdicts] {
            more |= !(0..max).any(|_| is_drained(queue));
        }
        // As it makes room, there is less to press for.
        more |= !(0..max).any(|_| {
            let idle = ctx.current_idle_max();
            idle >= idle_max
                || self
                    .evict_first_if_idle(
                        &tenant.without_verdicts,
                        idle,
                        EvictionReason::Pressure,
                        now,
                    )
                    .is_none()
        });
        let tombstones = || {
            tenant.ended_tombstones.len()
                + tenant.carry_overs.len()
                + tenant.terminated_tombstones.len()
        };
        let before = tombstones();
        self.evict_tombstones(ctx, now, max);
        more || before.saturating_sub(tombstones()) >= max
    }

    /// Looks at the first of a queue and forgets it where it was idle for so
    /// long. `None`: nobody was. The queue is in the order of the time when each
    /// would have been idle for `idle_secs_max`, as far as it is known.
    pub(super) fn evict_first_if_idle(
        &self,
        queue: &DeadlineQueue,
        idle: Duration,
        cause: EvictionReason,
        now: SystemTime,
    ) -> Option<()> {
        let due = now + self.idle_max().saturating_sub(idle);
        let (key, id) = queue.pop_if(|key| key.deadline <= due)?;
        if !self.requeue_if_active(&id, key, idle, now)
            && self.remove_if_idle(&id, key.generation, idle, now)
        {
            self.state.metrics.count_session_eviction(cause);
        }
        Some(())
    }

    /// The tombstones of sessions that ended go first, where there are too many
    /// or memory is short: a termination must hold. Those have a budget of their
    /// own; where it is full, what ended sub-agents goes before what ended
    /// sessions.
    pub(super) fn evict_tombstones(&self, ctx: &EngineContext, now: SystemTime, max: usize) {
        let tenant = ctx.tenant;
        let tombstones_max = ctx.tenant_share(ctx.limits.tombstones_max);
        let is_over_limit = || {
            tenant.ended_tombstones.len() + tenant.terminated_tombstones.len() > tombstones_max
                || ctx.check_memory(MemoryUse::SessionOrAgent).is_err()
        };
        for _ in 0..max {
            let over_limit = is_over_limit();
            let expired = tenant
                .ended_tombstones
                .pop_if(|key| over_limit || key.deadline <= now);
            let Some((key, id)) = expired else { break };
            self.evict_tombstone(&id, key, now);
        }
        let bytes_max = ctx.tenant_share(ctx.limits.tombstone_bytes_max);
        let is_full = || tenant.tombstone_bytes() > bytes_max;
        let exceeds_limits = |len: usize| len > tombstones_max || is_full();
        tenant.carry_overs.evict(now, exceeds_limits, max);
        for _ in 0..max {
            let over_limit = tenant.terminated_tombstones.len() > tombstones_max
                || tenant.carry_overs.len() == 0 && is_full();
            let expired = tenant
                .terminated_tombstones
                .pop_if(|key| over_limit || key.deadline <= now);
            let Some((key, id)) = expired else { break };
            self.evict_tombstone(&id, key, now);
        }
    }

    fn evict_tombstone(&self, id: &SessionId, key: DeadlineKey, now: SystemTime) {
        if self.remove_if_idle(id, key.generation, Duration::ZERO, now) {
            self.state
                .metrics
                .count_session_eviction(EvictionReason::Tombstone);
        }
    }

    /// Puts a session that was heard of since back into the queue.
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
        let deadline = session.last_seen() + self.idle_max();
        let key = DeadlineKey { deadline, ..key };
        session.set_deadline_key(key);
        let tenant = self.tenants.get_or_insert(id);
        tenant.idle_queue(session).insert(key, id);
        true
    }

    /// Removes a slot, unless it has another generation or came alive meanwhile.
    fn remove_if_idle(
        &self,
        id: &SessionId,
        generation: u64,
        idle: Duration,
        now: SystemTime,
    ) -> bool {
        let removed = self.sessions.remove_if(id, |_, slot| {
            let is_active = match slot {
                Slot::Live(session) => session.last_seen() + idle > now,
                Slot::Closed(_) => false,
            };
            let is_removed = slot.generation() == generation && !is_active;
            if is_removed {
                self.save_slot_carry_over(id, slot);
            }
            is_removed
        });
        if let Some((_, slot)) = &removed {
            self.unregister_slot(id, slot);
        }
        removed.is_some()
    }

    pub(super) fn idle_max(&self) -> Duration {
        Duration::from_secs(self.config.load().limits.idle_secs_max)
    }
}
