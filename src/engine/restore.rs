//! Restores the terminations and snoozes that were in force when the previous
//! process stopped.

use std::{
    collections::{HashMap, HashSet},
    thread,
    time::SystemTime,
};

use parking_lot::Mutex;

use super::{
    Engine,
    closed::{CarryOver, Tombstone},
    eviction::DeadlineKey,
};
use crate::domain::{EncodedRecord, RecoveredState, RestoredSummary, SessionId, Tenant};

/// Sessions without room that are remembered. If there are more, each session that begins
/// may be one of them.
const LOST_MAX: usize = if cfg!(test) { 16 } else { 65_536 };

/// The sessions that the start has restored, and those that it could not.
#[derive(Default)]
pub(super) struct RestoreLog {
    pub summary: Mutex<Option<RestoredSummary>>,
    lost: Mutex<LostSessions>,
}

/// Sessions that were open when the previous process stopped and could not be restored.
#[derive(Default)]
struct LostSessions {
    /// Sessions for which there was no room, until they begin again.
    ids: HashSet<SessionId>,
    /// Until then each session that begins may be one that was lost: the saved sessions
    /// could not be read, or some were removed.
    any_until: Option<SystemTime>,
}

impl RestoreLog {
    /// Notes a session without room. `expiry` is when it would have expired.
    pub fn add_lost(&self, id: &SessionId, expiry: SystemTime) {
        let mut lost = self.lost.lock();
        if lost.ids.len() < LOST_MAX {
            lost.ids.insert(id.clone());
        } else {
            lost.any_until = lost.any_until.max(Some(expiry));
        }
    }

    /// Notes that any session may be lost that begins until then.
    pub fn add_any_lost(&self, until: SystemTime) {
        let mut lost = self.lost.lock();
        lost.any_until = lost.any_until.max(Some(until));
    }

    /// Whether the state of a session that begins was lost, or may have been.
    pub fn take_lost(&self, id: &SessionId, now: SystemTime) -> bool {
        let mut lost = self.lost.lock();
        // Nearly always empty, so that a new session does not pay for a lookup.
        let is_known = !lost.ids.is_empty() && lost.ids.remove(id);
        is_known || lost.any_until.is_some_and(|until| now < until)
    }
}

pub(super) fn restore(
    engine: &Engine,
    recovered: RecoveredState,
    now: SystemTime,
    started_at: SystemTime,
) {
    let RecoveredState {
        sessions,
        agents,
        snoozes,
        last_verdict,
        disobeyed,
        data_since,
        last_run: _,
        sessions_removed,
    } = recovered;
    // Note what was lost, and since when there are data.
    if let Some(removed) = sessions_removed {
        let restored = &engine.state.restored;
        restored.add_any_lost(removed + engine.idle_max());
    }
    engine.state.issuer.continue_after(last_verdict);
    *engine.state.restored.summary.lock() = Some(RestoredSummary {
        started_at,
        data_since: data_since.unwrap_or(started_at),
        whole: 0,
        partial: 0,
        lost: 0,
    });
    // Restore the terminations, what was sent after them, and the snoozes.
    enqueue_tombstones(engine, restore_tombstones(engine, sessions, now));
    for (id, _, encoded) in agents {
        let verdict = encoded.decode().map(|record| record.verdict);
        let is_retained = encoded.id.time() + engine.tombstone_retention() > now;
        update_carry_over(engine, &id, |carry_over| {
            let terminations = &mut carry_over.agent_terminations;
            terminations.extend(verdict.filter(|_| is_retained));
        });
    }
    for (id, agent, termination, waste) in disobeyed {
        let log = &engine.state.disobedience;
        log.restore(&id, agent, termination, waste);
    }
    for (id, until) in snoozes.into_iter().filter(|(_, until)| *until > now) {
        update_carry_over(engine, &id, |carry_over| {
            carry_over.snoozed_until = Some(until);
        });
    }
}

pub(super) fn update_carry_over(
    engine: &Engine,
    id: &SessionId,
    change: impl FnOnce(&mut CarryOver),
) {
    let mut carry_over = engine.tenants.get_or_insert(id).carry_overs.take(id);
    change(&mut carry_over);
    engine.save_carry_over(id, carry_over);
}

/// Inserts the tombstones of terminated sessions into the map, in several threads:
/// there may be a million, and the service starts only afterwards.
fn restore_tombstones(
    engine: &Engine,
    mut sessions: Vec<(SessionId, EncodedRecord)>,
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
                    .filter_map(|(id, encoded)| restore_tombstone(engine, id, encoded, now));
                restored.collect::<Vec<_>>()
            }));
        }
        let restored = handles.into_iter().filter_map(|handle| handle.join().ok());
        restored.flatten().collect()
    })
}

/// `None`: the tombstone has expired.
fn restore_tombstone(
    engine: &Engine,
    id: SessionId,
    encoded: EncodedRecord,
    now: SystemTime,
) -> Option<(DeadlineKey, SessionId)> {
    let key = engine.new_deadline_key(encoded.id.time() + engine.tombstone_retention());
    if key.deadline <= now {
        return None;
    }
    let tombstone = Tombstone::from_encoded(&id, encoded, key);
    let tenant = engine.tenants.get_or_insert(&id);
    let slot = engine.state.register_tombstone(&tenant, tombstone);
    engine.sessions.insert(id.clone(), slot);
    Some((key, id))
}

/// Inserts tombstones into the queues of their tenants, a tenant at a time:
/// building a queue at once is much faster than inserting one by one.
fn enqueue_tombstones(engine: &Engine, tombstones: Vec<(DeadlineKey, SessionId)>) {
    let mut by_tenant: HashMap<Tenant, Vec<(DeadlineKey, SessionId)>> = HashMap::new();
    for (key, id) in tombstones {
        match by_tenant.get_mut(id.tenant_key().as_str()) {
            Some(known) => known.push((key, id)),
            None => drop(by_tenant.insert(id.tenant(), vec![(key, id)])),
        }
    }
    for tombstones in by_tenant.into_values() {
        if let Some((_, id)) = tombstones.first() {
            let tenant = engine.tenants.get_or_insert(id);
            tenant.terminated_tombstones.insert_all(tombstones);
        }
    }
}
