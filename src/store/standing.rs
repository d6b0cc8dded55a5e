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
    sessions: Map<Kept>,
    agents: Map<Vec<(String, Kept)>>,
    snoozes: Map<(SystemTime, Kept)>,
}

type Map<T> = HashMap<String, T, foldhash::fast::RandomState>;

struct Kept {
    id: VerdictId,
    body: Box<[u8]>,
}

impl Ledger {
    /// Takes the next entry into account.
    pub fn show(&mut self, entry: Entry<'_>) {
        if ![TERMINATED, RESET, SNOOZED].contains(&entry.kind) {
            return;
        }
        // Its hash was right, so it is what this program or a later one wrote.
        let Ok(subject) = Subject::decode(entry.body) else {
            return;
        };
        let kept = Kept {
            id: entry.id,
            body: entry.body.into(),
        };
        match entry.kind {
            TERMINATED if subject.agent.is_empty() => {
                self.sessions.insert(subject.session, kept);
            }
            TERMINATED => {
                let agents = self.agents.entry(subject.session).or_default();
                agents.retain(|(agent, _)| *agent != subject.agent);
                agents.push((subject.agent, kept));
            }
            SNOOZED => {
                let until = subject.snoozed_until();
                self.snoozes.insert(subject.session, (until, kept));
            }
            _ => {
                self.sessions.remove(&subject.session);
                self.agents.remove(&subject.session);
                self.snoozes.remove(&subject.session);
            }
        }
    }

    /// Leaves only what the anchor has to carry on: what came from records up to
    /// `last`, and is not over by now. A termination from before `oldest` is.
    pub fn keep(&mut self, oldest: VerdictId, last: VerdictId, now: SystemTime) {
        let kept = |kept: &Kept| (oldest..=last).contains(&kept.id);
        self.sessions.retain(|_, termination| kept(termination));
        for agents in self.agents.values_mut() {
            agents.retain(|(_, termination)| kept(termination));
        }
        let snoozed = |(until, snooze): &mut (SystemTime, Kept)| *until > now && snooze.id <= last;
        self.snoozes.retain(|_, snooze| snoozed(snooze));
    }

    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        let agents = self.agents.values().flatten().map(|(_, kept)| kept);
        let terminations = self.sessions.values().chain(agents);
        let snoozes = self.snoozes.values().map(|(_, kept)| (SNOOZED, kept));
        let all = terminations.map(|kept| (TERMINATED, kept)).chain(snoozes);
        all.map(|(kind, kept)| Entry {
            kind,
            id: kept.id,
            body: &kept.body,
        })
    }

    pub fn into_standing(self, last: VerdictId) -> Standing {
        let folded = |kept: Kept| Folded {
            id: kept.id,
            record: kept.body,
            unfold,
        };
        let named = |session: &str| SessionId::parse(session).ok();
        let sessions = self.sessions.into_iter();
        let agents = self.agents.into_iter().flat_map(|(session, agents)| {
            let of = move |(agent, kept)| (session.clone(), agent, kept);
            agents.into_iter().map(of)
        });
        let snoozes = self.snoozes.into_iter();
        Standing {
            sessions: sessions
                .filter_map(|(session, kept)| Some((named(&session)?, folded(kept))))
                .collect(),
            agents: agents
                .filter_map(|(session, agent, kept): (String, String, Kept)| {
                    Some((named(&session)?, AgentId::new(&agent), folded(kept)))
                })
                .collect(),
            snoozes: snoozes
                .filter_map(|(session, (until, _))| Some((named(&session)?, until)))
                .collect(),
            last,
        }
    }
}
