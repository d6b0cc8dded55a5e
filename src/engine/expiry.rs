use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use super::{Engine, Shared, Want, slot::Slot};
use crate::{domain::SessionId, telemetry::Eviction};

/// Sessions or tombstones by when they are due to be looked at again. Nobody
/// walks the map for it: each stands here once, and leaves with its slot.
#[derive(Default)]
pub(super) struct Queue {
    due: Mutex<BTreeMap<Place, SessionId>>,
}

/// Where a slot stands in its queue. The generation tells it from an earlier or
/// later slot of the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub deadline: SystemTime,
    pub generation: u64,
}

impl Queue {
    pub fn insert(&self, place: Place, id: &SessionId) {
        self.lock().insert(place, id.clone());
    }

    /// Takes many in at once, in no order.
    pub fn fill(&self, many: Vec<(Place, SessionId)>) {
        let mut many = many.into_iter().collect();
        self.lock().append(&mut many);
    }

    pub fn remove(&self, place: Place) {
        self.lock().remove(&place);
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Takes the first out, where it is due. The lock is not held while its
    /// slot is looked at: whoever holds a shard may want to insert.
    pub fn pop(&self, is_due: impl Fn(&Place) -> bool) -> Option<(Place, SessionId)> {
        let mut due = self.lock();
        let first = due.first_entry().filter(|first| is_due(first.key()))?;
        Some(first.remove_entry())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Place, SessionId>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Lets go of up to `most` sessions that were idle for too long and of as
    /// many tombstones of each kind, and looks whether a breaker may close.
    /// Called often, so that no call is long. Says whether there may be more to do.
    pub fn sweep(&self, now: SystemTime, most: usize) -> bool {
        let setup = self.setup.load();
        let mut more = false;
        for held in self.tenants.all() {
            more |= self.sweep_tenant(&self.shared(&setup, &held), now, most);
        }
        self.look_at_breakers(now);
        more
    }

    fn sweep_tenant(&self, shared: &Shared, now: SystemTime, most: usize) -> bool {
        let (idle_max, held) = (self.idle_max(), shared.held);
        let spent = |queue| self.expire(queue, idle_max, Eviction::Idle, now).is_none();
        let mut more = false;
        for queue in [&held.idle, &held.told] {
            more |= !(0..most).any(|_| spent(queue));
        }
        // As it makes room, there is less to press for.
        more |= !(0..most).any(|_| {
            let idle = shared.idle_now();
            idle >= idle_max
                || self
                    .expire(&held.idle, idle, Eviction::Pressure, now)
                    .is_none()
        });
        let tombstones = || held.ended.len() + held.legacies.len() + held.terminated.len();
        let before = tombstones();
        self.sweep_tombstones(shared, now, most);
        more || before.saturating_sub(tombstones()) >= most
    }

    /// Looks at the first of a queue and forgets it where it was idle for so
    /// long. `None`: nobody was. The queue is in the order of the time when each
    /// would have been idle for `idle_secs_max`, as far as it is known.
    pub(super) fn expire(
        &self,
        queue: &Queue,
        idle: Duration,
        why: Eviction,
        now: SystemTime,
    ) -> Option<()> {
        let due = now + self.idle_max().saturating_sub(idle);
        let (place, id) = queue.pop(|place| place.deadline <= due)?;
        if !self.still_alive(&id, place, idle, now) && self.forget(&id, place.generation, idle, now)
        {
            self.shared.metrics.evicted(why);
        }
        Some(())
    }

    /// The tombstones of sessions that ended go first, where there are too many
    /// or memory is short: a termination must hold. Those have a budget of their
    /// own; where it is full, what ended sub-agents goes before what ended
    /// sessions.
    pub(super) fn sweep_tombstones(&self, shared: &Shared, now: SystemTime, most: usize) {
        let held = shared.held;
        let tombstones_max = shared.share(shared.limits.tombstones_max);
        let excess = || {
            held.ended.len() + held.terminated.len() > tombstones_max
                || shared.check_bytes(Want::New).is_err()
        };
        for _ in 0..most {
            let crowded = excess();
            let ended = held.ended.pop(|place| crowded || place.deadline <= now);
            let Some((place, id)) = ended else { break };
            self.forget_tombstone(&id, place, now);
        }
        let bytes_max = shared.share(shared.limits.tombstone_bytes_max);
        let is_full = || held.tombstone_bytes() > bytes_max;
        let are_many = |len: usize| len > tombstones_max || is_full();
        held.legacies.sweep(now, are_many, most);
        for _ in 0..most {
            let crowded =
                held.terminated.len() > tombstones_max || held.legacies.len() == 0 && is_full();
            let terminated = held
                .terminated
                .pop(|place| crowded || place.deadline <= now);
            let Some((place, id)) = terminated else { break };
            self.forget_tombstone(&id, place, now);
        }
    }

    fn forget_tombstone(&self, id: &SessionId, place: Place, now: SystemTime) {
        if self.forget(id, place.generation, Duration::ZERO, now) {
            self.shared.metrics.evicted(Eviction::Tombstone);
        }
    }

    /// Puts a session that was heard of since back into the queue.
    fn still_alive(&self, id: &SessionId, place: Place, idle: Duration, now: SystemTime) -> bool {
        let Some(mut slot) = self.sessions.get_mut(id) else {
            return false;
        };
        let Slot::Live(session) = &mut *slot else {
            return false;
        };
        if session.place() != place || session.last_seen() + idle <= now {
            return false;
        }
        let deadline = session.last_seen() + self.idle_max();
        let place = Place { deadline, ..place };
        session.set_place(place);
        let held = self.tenants.of(id);
        held.queue_of(session).insert(place, id);
        true
    }

    /// Removes a slot, unless it has another generation or came alive meanwhile.
    fn forget(&self, id: &SessionId, generation: u64, idle: Duration, now: SystemTime) -> bool {
        let removed = self.sessions.remove_if(id, |_, slot| {
            let alive = match slot {
                Slot::Live(session) => session.last_seen() + idle > now,
                Slot::Gone(_) => false,
            };
            let goes = slot.generation() == generation && !alive;
            if goes {
                self.bequeath(id, slot);
            }
            goes
        });
        if let Some((_, slot)) = &removed {
            self.discount(id, slot);
        }
        removed.is_some()
    }

    pub(super) fn idle_max(&self) -> Duration {
        Duration::from_secs(self.setup.load().limits.idle_secs_max)
    }
}
