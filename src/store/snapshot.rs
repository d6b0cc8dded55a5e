//! The state recovered from the log: terminations that no reset has lifted, and
//! snoozes.

use std::{cmp::Reverse, collections::HashMap, time::SystemTime};

use prost::Message;

use super::{
    frame::LogEntry,
    record::{RESET, SNOOZED, Subject, TERMINATED, decode},
};
use crate::domain::{AgentId, EncodedRecord, RecoveredState, SessionId, Tenant, VerdictId};

/// The state by session after the applied entries.
#[derive(Default)]
pub(super) struct StateSnapshot {
    sessions: Map<EncodedRecord>,
    agents: Map<Vec<(AgentId, EncodedRecord)>>,
    snoozes: Map<(SystemTime, EncodedRecord)>,
}

type Map<T> = HashMap<SessionId, T, foldhash::fast::RandomState>;

/// An entry that changes the state.
pub(super) struct StateChange {
    kind: u8,
    session: SessionId,
    agent: AgentId,
    snoozed_until: SystemTime,
    record: EncodedRecord,
}

impl StateChange {
    /// Decodes the change. `None`: the entry changes nothing, or a later version of this
    /// program wrote it. It is not damaged, because its hash is valid.
    pub fn from_entry(entry: LogEntry<'_>) -> Option<Self> {
        if ![TERMINATED, RESET, SNOOZED].contains(&entry.kind) {
            return None;
        }
        let subject = Subject::decode(entry.body).ok()?;
        Some(Self {
            kind: entry.kind,
            session: subject.session()?,
            agent: AgentId::new(&subject.agent),
            snoozed_until: subject.snoozed_until(),
            record: EncodedRecord {
                id: entry.id,
                bytes: entry.body.into(),
                decode,
            },
        })
    }
}

impl StateSnapshot {
    /// Applies the next change.
    pub fn apply(&mut self, change: StateChange) {
        let StateChange {
            kind,
            session,
            agent,
            snoozed_until,
            record,
        } = change;
        match kind {
            TERMINATED if agent.is_main() => {
                self.sessions.insert(session, record);
            }
            TERMINATED => {
                let agents = self.agents.entry(session).or_default();
                agents.retain(|(known, _)| *known != agent);
                agents.push((agent, record));
            }
            SNOOZED => {
                self.snoozes.insert(session, (snoozed_until, record));
            }
            _ => {
                self.sessions.remove(&session);
                self.agents.remove(&session);
                self.snoozes.remove(&session);
            }
        }
    }

    /// Removes terminations with an id below `oldest` and snoozes that have ended.
    pub fn retain_unexpired(&mut self, oldest: VerdictId, now: SystemTime) {
        let kept = |record: &EncodedRecord| record.id >= oldest;
        self.sessions.retain(|_, termination| kept(termination));
        self.agents.retain(|_, agents| {
            agents.retain(|(_, termination)| kept(termination));
            !agents.is_empty()
        });
        self.snoozes.retain(|_, (until, _)| *until > now);
    }

    /// Keeps the newest sessions, at most `most` each of terminated sessions, of sessions
    /// with terminated agents, and of snoozed sessions.
    pub fn limit_sessions(&mut self, most: usize) {
        newest(&mut self.sessions, most, |termination| termination.id);
        newest(&mut self.snoozes, most, |(_, snooze)| snooze.id);
        newest(&mut self.agents, most, |agents| {
            // The checkpoint has them in any order.
            let newest = agents.iter().map(|(_, record)| record.id).max();
            newest.unwrap_or_default()
        });
    }

    pub fn entries(&self) -> impl Iterator<Item = LogEntry<'_>> {
        let agents = self.agents.values().flatten().map(|(_, record)| record);
        let terminations = self.sessions.values().chain(agents);
        let snoozes = self.snoozes.values().map(|(_, record)| (SNOOZED, record));
        let all = terminations.map(|record| (TERMINATED, record));
        all.chain(snoozes).map(|(kind, folded)| LogEntry {
            kind,
            id: folded.id,
            body: &folded.bytes,
        })
    }

    pub fn into_recovered_state(self, last: VerdictId) -> RecoveredState {
        let agents = self.agents.into_iter().flat_map(|(session, agents)| {
            let of = move |(agent, record)| (session.clone(), agent, record);
            agents.into_iter().map(of)
        });
        let snoozes = self.snoozes.into_iter();
        RecoveredState {
            sessions: self.sessions.into_iter().collect(),
            agents: agents.collect(),
            snoozes: snoozes.map(|(id, (until, _))| (id, until)).collect(),
            last_verdict: last,
        }
    }
}

/// Keeps the newest `most` sessions. Those of the tenants with the most sessions are
/// removed first, so that no tenant displaces the sessions of another.
fn newest<T>(map: &mut Map<T>, most: usize, id: impl Fn(&T) -> VerdictId) {
    if map.len() <= most {
        return;
    }
    let mut tenants: HashMap<Tenant, Vec<VerdictId>> = HashMap::new();
    for (session, held) in &*map {
        tenants.entry(session.tenant()).or_default().push(id(held));
    }
    let each = each(tenants.values().map(Vec::len).collect(), most);
    // The newest id of each tenant that is not kept.
    let mut first_gone: HashMap<Tenant, VerdictId> = HashMap::new();
    for (tenant, mut ids) in tenants.into_iter().filter(|(_, ids)| ids.len() > each) {
        let (_, first, _) = ids.select_nth_unstable_by_key(each, |id| Reverse(*id));
        first_gone.insert(tenant, *first);
    }
    map.retain(|session, held| {
        let gone = first_gone.get(&session.tenant());
        gone.is_none_or(|gone| id(held) > *gone)
    });
}

/// The most sessions that each tenant may keep so that all tenants together keep at most
/// `most`. What a tenant with fewer sessions leaves unused is shared by the others.
fn each(mut counts: Vec<usize>, most: usize) -> usize {
    counts.sort_unstable();
    let mut left = most;
    for (place, count) in counts.iter().enumerate() {
        let each = left / (counts.len() - place);
        if *count > each {
            return each;
        }
        left -= count;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(held: &[(&str, u128)], most: usize, expected: &[u128]) {
        let of = |tenant: &str, n: u128| {
            let tenant = Tenant::parse(tenant).unwrap();
            SessionId::parse_for_tenant(&tenant, &format!("s{n}")).unwrap()
        };
        let held = held.iter().map(|(tenant, n)| (of(tenant, *n), *n));
        let mut map: Map<u128> = held.collect();
        newest(&mut map, most, |n| VerdictId(*n));
        let mut kept: Vec<u128> = map.into_values().collect();
        kept.sort_unstable();
        assert_eq!(kept, expected);
    }

    #[test]
    fn the_newest_stay_and_no_tenant_pushes_out_anothers() {
        let one = [("a", 1), ("a", 2), ("a", 3)];
        check(&one, 3, &[1, 2, 3]);
        check(&one, 2, &[2, 3]);
        let old_and_few = [("b", 1), ("b", 2), ("a", 3), ("a", 4), ("a", 5), ("a", 6)];
        check(&old_and_few, 5, &[1, 2, 4, 5, 6]);
        check(&old_and_few, 4, &[1, 2, 5, 6]);
        check(&old_and_few, 3, &[2, 6]);
    }
}
