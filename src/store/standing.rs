//! What the log leaves standing: terminations that no reset has lifted, and
//! snoozes.

use std::{collections::HashMap, time::SystemTime};

use prost::Message;

use super::{
    frame::Entry,
    record::{RESET, SNOOZED, Subject, TERMINATED, unfold},
};
use crate::domain::{AgentId, Folded, SessionId, Standing, VerdictId};

/// By session, as it stands after the entries that were shown to it.
#[derive(Default)]
pub(super) struct Ledger {
    sessions: Map<Folded>,
    agents: Map<Vec<(AgentId, Folded)>>,
    snoozes: Map<(SystemTime, Folded)>,
}

type Map<T> = HashMap<SessionId, T, foldhash::fast::RandomState>;

/// An entry that changes something for good.
pub(super) struct Lasting {
    kind: u8,
    session: SessionId,
    agent: AgentId,
    snoozed_until: SystemTime,
    record: Folded,
}

impl Lasting {
    /// `None`: the entry was only said. Its hash was right, so it is what this
    /// program or a later one wrote.
    pub fn of(entry: Entry<'_>) -> Option<Self> {
        if ![TERMINATED, RESET, SNOOZED].contains(&entry.kind) {
            return None;
        }
        let subject = Subject::decode(entry.body).ok()?;
        Some(Self {
            kind: entry.kind,
            session: subject.session()?,
            agent: AgentId::new(&subject.agent),
            snoozed_until: subject.snoozed_until(),
            record: Folded {
                id: entry.id,
                record: entry.body.into(),
                unfold,
            },
        })
    }
}

impl Ledger {
    /// Takes the next one into account.
    pub fn show(&mut self, lasting: Lasting) {
        let Lasting {
            kind,
            session,
            agent,
            snoozed_until,
            record,
        } = lasting;
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

    /// Leaves only what is not over by now. A termination from before `oldest`
    /// is.
    pub fn keep(&mut self, oldest: VerdictId, now: SystemTime) {
        let kept = |record: &Folded| record.id >= oldest;
        self.sessions.retain(|_, termination| kept(termination));
        for agents in self.agents.values_mut() {
            agents.retain(|(_, termination)| kept(termination));
        }
        self.snoozes.retain(|_, (until, _)| *until > now);
    }

    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        let agents = self.agents.values().flatten().map(|(_, record)| record);
        let terminations = self.sessions.values().chain(agents);
        let snoozes = self.snoozes.values().map(|(_, record)| (SNOOZED, record));
        let all = terminations.map(|record| (TERMINATED, record));
        all.chain(snoozes).map(|(kind, folded)| Entry {
            kind,
            id: folded.id,
            body: &folded.record,
        })
    }

    pub fn into_standing(self, last: VerdictId) -> Standing {
        let agents = self.agents.into_iter().flat_map(|(session, agents)| {
            let of = move |(agent, record)| (session.clone(), agent, record);
            agents.into_iter().map(of)
        });
        let snoozes = self.snoozes.into_iter();
        Standing {
            sessions: self.sessions.into_iter().collect(),
            agents: agents.collect(),
            snoozes: snoozes.map(|(id, (until, _))| (id, until)).collect(),
            last,
        }
    }
}
