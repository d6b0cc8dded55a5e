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
    expiry::{DeadlineKey, DeadlineQueue},
    slot::{self, Slot, Tombstone},
};
use crate::domain::{
    EncodedRecord, RecoveredState, SessionId, SessionStatus, Tenant, Verdict, VerdictId,
};

/// What a session leaves to the next of its id.
#[derive(Clone, Default)]
pub(super) struct CarryOver {
    /// The verdicts that ended its sub-agents.
    pub agent_terminations: Vec<Arc<Verdict>>,
    pub snoozed_until: Option<SystemTime>,
}

/// Those that wait for a session of their id to begin.
#[derive(Default)]
pub(super) struct CarryOverCache {
    by_session: DashMap<SessionId, (DeadlineKey, CarryOver), foldhash::quality::RandomState>,
    deadlines: DeadlineQueue,
    bytes: AtomicUsize,
}

impl CarryOver {
    fn is_empty(&self) -> bool {
        self.agent_terminations.is_empty() && self.snoozed_until.is_none()
    }

    fn bytes(&self, id: &SessionId) -> usize {
        let verdicts = self
            .agent_terminations
            .iter()
            .map(|verdict| verdict.memory_bytes());
        slot::slot_bytes(id, size_of::<Self>() + verdicts.sum::<usize>())
    }

    /// Without what a reset with this id forgets.
    pub fn after_reset(mut self, reset: VerdictId) -> Self {
        self.agent_terminations.retain(|verdict| verdict.id > reset);
        self.snoozed_until = None;
        self
    }
}

impl CarryOverCache {
    pub fn len(&self) -> usize {
        self.deadlines.len()
    }

    pub fn contains(&self, id: &SessionId) -> bool {
        self.by_session.contains_key(id)
    }

    pub fn take(&self, id: &SessionId) -> CarryOver {
        // Nearly always, and then no session pays for it when it begins.
        if self.by_session.is_empty() {
            return CarryOver::default();
        }
        let removed = self.by_session.remove(id);
        removed.map_or_else(CarryOver::default, |(_, (key, carry_over))| {
            self.deadlines.remove(key);
            self.bytes.fetch_sub(carry_over.bytes(id), Relaxed);
            carry_over
        })
    }

    fn insert(&self, id: &SessionId, key: DeadlineKey, carry_over: CarryOver) {
        self.deadlines.insert(key, id);
        self.bytes.fetch_add(carry_over.bytes(id), Relaxed);
        let before = self.by_session.insert(id.clone(), (key, carry_over));
        if let Some((key, before)) = before {
            self.deadlines.remove(key);
            self.bytes.fetch_sub(before.bytes(id), Relaxed);
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Lets go of up to `most` whose time is over, or that are too many.
    pub fn evict(&self, now: SystemTime, exceeds_limits: impl Fn(usize) -> bool, max: usize) {
        for _ in 0..max {
            let over_limit = exceeds_limits(self.deadlines.len());
            let Some((key, id)) = self
                .deadlines
                .pop_if(|key| over_limit || key.deadline <= now)
            else {
                break;
            };
            let is_same = |_: &SessionId, (known, _): &(DeadlineKey, CarryOver)| *known == key;
            if let Some((_, (_, carry_over))) = self.by_session.remove_if(&id, is_same) {
                self.bytes.fetch_sub(carry_over.bytes(&id), Relaxed);
            }
        }
    }
}

impl Engine {
    /// Keeps what a session leaves when it is laid to rest.
    pub(super) fn save_slot_carry_over(&self, id: &SessionId, slot: &Slot) {
        if let Slot::Live(session) = slot {
            self.save_carry_over(id, session.carry_over());
        }
    }

    pub(super) fn save_carry_over(&self, id: &SessionId, carry_over: CarryOver) {
        if carry_over.is_empty() {
            return;
        }
        let terminated = carry_over
            .agent_terminations
            .iter()
            .map(|verdict| verdict.id.time());
        let retained_until = terminated
            .max()
            .map(|time| time + self.tombstone_retention());
        let Some(deadline) = retained_until.max(carry_over.snoozed_until) else {
            return;
        };
        let legacies = &self.tenants.get_or_insert(id).carry_overs;
        legacies.insert(id, self.new_deadline_key(deadline), carry_over);
    }

    /// Takes up what held when the process before ended.
    pub fn restore(&self, recovered: RecoveredState, now: SystemTime) {
        let RecoveredState {
            sessions,
            agents,
            snoozes,
            last_verdict: last,
        } = recovered;
        self.state.issuer.continue_after(last);
        self.enqueue_tombstones(self.restore_tombstones(sessions, now));
        for (id, _, encoded) in agents {
            let verdict = encoded.decode().map(|issued| issued.verdict);
            let is_retained = encoded.id.time() + self.tombstone_retention() > now;
            let mut carry_over = self.tenants.get_or_insert(&id).carry_overs.take(&id);
            carry_over
                .agent_terminations
                .extend(verdict.filter(|_| is_retained));
            self.save_carry_over(&id, carry_over);
        }
        for (id, until) in snoozes.into_iter().filter(|(_, until)| *until > now) {
            let mut carry_over = self.tenants.get_or_insert(&id).carry_overs.take(&id);
            carry_over.snoozed_until = Some(until);
            self.save_carry_over(&id, carry_over);
        }
    }

    /// Lays the tombstones of sessions that were terminated before, in several
    /// threads: there may be a million, and the service waits for them.
    fn restore_tombstones(
        &self,
        mut sessions: EncodedTerminations,
        now: SystemTime,
    ) -> Vec<(DeadlineKey, SessionId)> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let chunk_len = sessions.len().div_ceil(threads);
        thread::scope(|scope| {
            let mut handles = Vec::new();
            while !sessions.is_empty() {
                let chunk = sessions.split_off(sessions.len().saturating_sub(chunk_len));
                handles.push(scope.spawn(move || {
                    let restored = chunk
                        .into_iter()
                        .filter_map(|one| self.restore_tombstone(one, now));
                    restored.collect::<Vec<_>>()
                }));
            }
            let restored = handles.into_iter().filter_map(|handle| handle.join().ok());
            restored.flatten().collect()
        })
    }

    /// Puts tombstones into the queues of their tenants.
    fn enqueue_tombstones(&self, tombstones: Vec<(DeadlineKey, SessionId)>) {
        let mut by_tenant: HashMap<Tenant, Vec<(DeadlineKey, SessionId)>> = HashMap::new();
        for (key, id) in tombstones {
            match by_tenant.get_mut(id.tenant_key().as_str()) {
                Some(known) => known.push((key, id)),
                None => drop(by_tenant.insert(id.tenant(), vec![(key, id)])),
            }
        }
        for tombstones in by_tenant.into_values() {
            if let Some((_, id)) = tombstones.first() {
                self.tenants
                    .get_or_insert(&id.clone())
                    .terminated_tombstones
                    .insert_all(tombstones);
            }
        }
    }

    fn restore_tombstone(
        &self,
        (id, encoded): (SessionId, EncodedRecord),
        now: SystemTime,
    ) -> Option<(DeadlineKey, SessionId)> {
        let key = self.new_deadline_key(encoded.id.time() + self.tombstone_retention());
        if key.deadline <= now {
            return None;
        }
        let tombstone = Tombstone::from_encoded(&id, encoded, key);
        self.state
            .metrics
            .adjust_session_counts(None, Some(SessionStatus::Terminated));
        let tenant = self.tenants.get_or_insert(&id);
        self.update_tombstone_bytes(&tenant, SessionStatus::Terminated, 0, tombstone.bytes());
        let slot = Slot::Closed(Box::new(tombstone));
        self.sessions.insert(id.clone(), slot);
        Some((key, id))
    }
}

type EncodedTerminations = Vec<(SessionId, EncodedRecord)>;
