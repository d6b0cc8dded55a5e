//! What outlives a session that is neither live nor terminated: its sub-agents
//! that are over stay so, and a snooze goes on.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::SystemTime,
};

use dashmap::DashMap;

use super::{
    Engine,
    expiry::{Place, Queue},
    slot::{self, Slot, Tombstone},
};
use crate::domain::{Folded, SessionId, Standing, Status, Tenant, Verdict, VerdictId};

/// What a session leaves to the next of its id.
#[derive(Clone, Default)]
pub(super) struct Legacy {
    /// The verdicts that ended its sub-agents.
    pub agents: Vec<Arc<Verdict>>,
    pub snoozed_until: Option<SystemTime>,
}

/// Those that wait for a session of their id to begin.
#[derive(Default)]
pub(super) struct Legacies {
    waiting: DashMap<SessionId, (Place, Legacy), foldhash::quality::RandomState>,
    due: Queue,
    bytes: AtomicUsize,
}

impl Legacy {
    fn is_empty(&self) -> bool {
        self.agents.is_empty() && self.snoozed_until.is_none()
    }

    fn bytes(&self, id: &SessionId) -> usize {
        let verdicts = self.agents.iter().map(|verdict| verdict.bytes());
        slot::bytes_with(id, size_of::<Self>() + verdicts.sum::<usize>())
    }

    /// Without what a reset with this id forgets.
    pub fn since(mut self, reset: VerdictId) -> Self {
        self.agents.retain(|verdict| verdict.id > reset);
        self.snoozed_until = None;
        self
    }
}

impl Legacies {
    pub fn len(&self) -> usize {
        self.due.len()
    }

    pub fn knows(&self, id: &SessionId) -> bool {
        self.waiting.contains_key(id)
    }

    pub fn take(&self, id: &SessionId) -> Legacy {
        // Nearly always, and then no session pays for it when it begins.
        if self.waiting.is_empty() {
            return Legacy::default();
        }
        let taken = self.waiting.remove(id);
        taken.map_or_else(Legacy::default, |(_, (place, legacy))| {
            self.due.remove(place);
            self.bytes.fetch_sub(legacy.bytes(id), Relaxed);
            legacy
        })
    }

    fn put(&self, id: &SessionId, place: Place, legacy: Legacy) {
        self.due.insert(place, id);
        self.bytes.fetch_add(legacy.bytes(id), Relaxed);
        let before = self.waiting.insert(id.clone(), (place, legacy));
        if let Some((place, before)) = before {
            self.due.remove(place);
            self.bytes.fetch_sub(before.bytes(id), Relaxed);
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Lets go of up to `most` whose time is over, or that are too many.
    pub fn sweep(&self, now: SystemTime, are_many: impl Fn(usize) -> bool, most: usize) {
        for _ in 0..most {
            let crowded = are_many(self.due.len());
            let Some((place, id)) = self.due.pop(|place| crowded || place.deadline <= now) else {
                break;
            };
            let is_it = |_: &SessionId, (known, _): &(Place, Legacy)| *known == place;
            if let Some((_, (_, legacy))) = self.waiting.remove_if(&id, is_it) {
                self.bytes.fetch_sub(legacy.bytes(&id), Relaxed);
            }
        }
    }
}

impl Engine {
    /// Keeps what a session leaves when it is laid to rest.
    pub(super) fn bequeath(&self, id: &SessionId, slot: &Slot) {
        if let Slot::Live(session) = slot {
            self.leave(id, session.legacy());
        }
    }

    pub(super) fn leave(&self, id: &SessionId, legacy: Legacy) {
        if legacy.is_empty() {
            return;
        }
        let terminated = legacy.agents.iter().map(|verdict| verdict.id.time());
        let until = terminated.max().map(|time| time + self.tombstone_age());
        let Some(deadline) = until.max(legacy.snoozed_until) else {
            return;
        };
        let legacies = &self.tenants.of(id).legacies;
        legacies.put(id, self.place(deadline), legacy);
    }

    /// Takes up what held when the process before ended.
    pub fn restore(&self, standing: Standing, now: SystemTime) {
        let Standing {
            sessions,
            agents,
            snoozes,
            last,
        } = standing;
        self.shared.outbox.follow(last);
        self.stand(self.lay_all(sessions, now));
        for (id, _, folded) in agents {
            let verdict = folded.open().map(|issued| issued.verdict);
            let holds = folded.id.time() + self.tombstone_age() > now;
            let mut legacy = self.tenants.of(&id).legacies.take(&id);
            legacy.agents.extend(verdict.filter(|_| holds));
            self.leave(&id, legacy);
        }
        for (id, until) in snoozes.into_iter().filter(|(_, until)| *until > now) {
            let mut legacy = self.tenants.of(&id).legacies.take(&id);
            legacy.snoozed_until = Some(until);
            self.leave(&id, legacy);
        }
    }

    /// Lays the tombstones of sessions that were terminated before, in several
    /// threads: there may be a million, and the service waits for them.
    fn lay_all(&self, mut sessions: Graves, now: SystemTime) -> Vec<(Place, SessionId)> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let each = sessions.len().div_ceil(threads);
        thread::scope(|scope| {
            let mut laying = Vec::new();
            while !sessions.is_empty() {
                let some = sessions.split_off(sessions.len().saturating_sub(each));
                laying.push(scope.spawn(move || {
                    let laid = some.into_iter().filter_map(|one| self.lay_one(one, now));
                    laid.collect::<Vec<_>>()
                }));
            }
            let laid = laying.into_iter().filter_map(|laid| laid.join().ok());
            laid.flatten().collect()
        })
    }

    /// Puts tombstones into the queues of their tenants.
    fn stand(&self, laid: Vec<(Place, SessionId)>) {
        let mut apart: HashMap<Tenant, Vec<(Place, SessionId)>> = HashMap::new();
        for (place, id) in laid {
            match apart.get_mut(id.tenant_key().as_str()) {
                Some(known) => known.push((place, id)),
                None => drop(apart.insert(id.tenant(), vec![(place, id)])),
            }
        }
        for laid in apart.into_values() {
            if let Some((_, id)) = laid.first() {
                self.tenants.of(&id.clone()).terminated.fill(laid);
            }
        }
    }

    fn lay_one(
        &self,
        (id, folded): (SessionId, Folded),
        now: SystemTime,
    ) -> Option<(Place, SessionId)> {
        let place = self.place(folded.id.time() + self.tombstone_age());
        if place.deadline <= now {
            return None;
        }
        let tombstone = Tombstone::folded(&id, folded, place);
        self.shared.metrics.session(None, Some(Status::Terminated));
        let held = self.tenants.of(&id);
        self.count_tombstone(&held, Status::Terminated, 0, tombstone.bytes());
        let slot = Slot::Gone(Box::new(tombstone));
        self.sessions.insert(id.clone(), slot);
        Some((place, id))
    }
}

type Graves = Vec<(SessionId, Folded)>;
