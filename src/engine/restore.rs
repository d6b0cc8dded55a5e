//! Restores the terminations and snoozes that were in force when the previous
//! process stopped.

use std::{collections::HashMap, thread, time::SystemTime};

use super::{
    Engine,
    closed::{CarryOver, Tombstone},
    eviction::DeadlineKey,
};
use crate::domain::{EncodedRecord, RecoveredState, RestoredSummary, SessionId, Tenant};

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
    } = recovered;
    engine.state.issuer.continue_after(last_verdict);
    *engine.state.restored.lock() = Some(RestoredSummary {
        started_at,
        data_since: data_since.unwrap_or(started_at),
        whole: 0,
        partial: 0,
        lost: 0,
    });
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

fn update_carry_over(engine: &Engine, id: &SessionId, change: impl FnOnce(&mut CarryOver)) {
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
