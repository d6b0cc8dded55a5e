//! What Redis does for replicas, as a map in memory: for tests.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tonic::async_trait;

use super::{
    codec::ACT_HEADER_BYTES,
    exchange::{
        ActCommand, ActReply, Exchange, ExchangeResult, KIND_TERMINATION, PreviousOwner, SaveBody,
        SaveCommand, SaveReply, SharedStream, StreamEntry, TakeReply,
    },
};
use crate::domain::SessionId;

/// The server. All replicas share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryServer {
    owners: HashMap<SessionId, PreviousOwner>,
    /// By session, epoch and owner.
    lists: HashMap<(SessionId, u64, String), Vec<Vec<u8>>>,
    acts: HashMap<SessionId, BTreeMap<String, Vec<u8>>>,
    pub act_stream: Vec<(String, Vec<u8>)>,
    feed: Vec<(String, Vec<u8>)>,
    cursors: HashMap<String, String>,
}

/// The id in the value of an act, as its digits.
fn act_id(value: &[u8]) -> &[u8] {
    value.get(1..ACT_HEADER_BYTES).unwrap_or_default()
}

impl MemoryServer {
    pub fn take(&mut self, session: &SessionId, me: &str, ttl_only: bool) -> TakeReply {
        let acts = self.acts.get(session).cloned().unwrap_or_default();
        let is_terminated = acts
            .get("s")
            .is_some_and(|it| it.first() == Some(&KIND_TERMINATION));
        let acts: Vec<Vec<u8>> = acts.into_values().collect();
        let previous = self.owners.get(session).cloned();
        let epoch = previous.as_ref().map_or(0, |it| it.epoch);
        let key = |it: &PreviousOwner| (session.clone(), it.epoch, it.name.clone());
        if ttl_only {
            let list = previous
                .as_ref()
                .and_then(|it| self.lists.get(&key(it)))
                .cloned();
            let list = list.unwrap_or_default();
            return TakeReply {
                epoch,
                previous,
                list,
                acts,
            };
        }
        if is_terminated {
            return TakeReply {
                acts,
                ..TakeReply::default()
            };
        }
        let owner = PreviousOwner {
            epoch: epoch + 1,
            name: me.to_owned(),
        };
        let moved = previous.as_ref().and_then(|it| self.lists.remove(&key(it)));
        let list = moved.unwrap_or_else(|| vec![Vec::new()]);
        self.lists.insert(key(&owner), list.clone());
        self.owners.insert(session.clone(), owner);
        TakeReply {
            epoch: epoch + 1,
            previous,
            list,
            acts,
        }
    }

    pub fn save(&mut self, command: &SaveCommand, me: &str) -> SaveReply {
        let key = (command.session.clone(), command.epoch, me.to_owned());
        let Some(list) = self.lists.get_mut(&key) else {
            return SaveReply::Fenced;
        };
        match &command.body {
            SaveBody::State(state) => *list = vec![state.clone()],
            SaveBody::Records(records) => list.extend(records.iter().cloned()),
        }
        SaveReply::Saved
    }

    pub fn end(&mut self, session: &SessionId) {
        if let Some(owner) = self.owners.get_mut(session) {
            let key = (session.clone(), owner.epoch, owner.name.clone());
            self.lists.remove(&key);
            owner.epoch += 1;
            owner.name = PreviousOwner::NOBODY.to_owned();
        }
    }

    pub fn act(&mut self, command: &ActCommand, me: &str) -> ActReply {
        let id = format!("{:032x}", command.id.0).into_bytes();
        let acts = self.acts.entry(command.session.clone()).or_default();
        for field in ["s", &command.field] {
            if let Some(value) = acts.get(field).filter(|value| act_id(value) > &*id) {
                return ActReply::Overruled(value.clone());
            }
        }
        let is_known = acts
            .get(&command.field)
            .is_some_and(|value| act_id(value) == id);
        if !is_known {
            if command.field == "s" {
                acts.retain(|_, value| act_id(value) >= &*id);
            }
            acts.insert(command.field.clone(), command.value.clone());
            if command.field == "s" {
                self.end(&command.session);
            }
        }
        self.act_stream.push((me.to_owned(), command.value.clone()));
        ActReply::Stands
    }

    /// The lists of a session: more than one has two owners.
    pub fn lists_of(&self, session: &SessionId) -> usize {
        self.lists.keys().filter(|(id, ..)| id == session).count()
    }

    pub fn is_terminated(&self, session: &SessionId) -> bool {
        let acts = self.acts.get(session).and_then(|acts| acts.get("s"));
        acts.is_some_and(|it| it.first() == Some(&KIND_TERMINATION))
    }

    pub fn owner(&self, session: &SessionId) -> Option<PreviousOwner> {
        self.owners.get(session).cloned()
    }
}

/// One replica's connection.
pub struct MemoryExchange {
    pub server: Arc<Mutex<MemoryServer>>,
    pub me: String,
}

impl MemoryExchange {
    fn entries(&self, stream: SharedStream) -> Vec<StreamEntry> {
        let server = self.server.lock();
        let entries = match stream {
            SharedStream::Acts => &server.act_stream,
            SharedStream::Feed => &server.feed,
        };
        let numbered = (1..).zip(entries);
        let entries = numbered.map(|(position, (by, value)): (u64, _)| StreamEntry {
            position: format!("{position:020}"),
            by: by.clone(),
            value: value.clone(),
        });
        entries.collect()
    }
}

#[async_trait]
impl Exchange for MemoryExchange {
    async fn take(&self, sessions: &[SessionId]) -> ExchangeResult<Vec<TakeReply>> {
        let mut server = self.server.lock();
        Ok(sessions
            .iter()
            .map(|it| server.take(it, &self.me, false))
            .collect())
    }

    async fn look(&self, session: &SessionId) -> ExchangeResult<TakeReply> {
        Ok(self.server.lock().take(session, &self.me, true))
    }

    async fn owners(&self, sessions: &[SessionId]) -> ExchangeResult<Vec<Option<PreviousOwner>>> {
        let server = self.server.lock();
        Ok(sessions.iter().map(|it| server.owner(it)).collect())
    }

    async fn save(&self, commands: &[SaveCommand]) -> ExchangeResult<Vec<SaveReply>> {
        let mut server = self.server.lock();
        Ok(commands
            .iter()
            .map(|it| server.save(it, &self.me))
            .collect())
    }

    async fn end(&self, session: &SessionId) -> ExchangeResult<()> {
        self.server.lock().end(session);
        Ok(())
    }

    async fn act(&self, commands: &[ActCommand]) -> ExchangeResult<Vec<ActReply>> {
        let mut server = self.server.lock();
        Ok(commands.iter().map(|it| server.act(it, &self.me)).collect())
    }

    async fn publish(&self, verdicts: &[Vec<u8>]) -> ExchangeResult<()> {
        let own = verdicts.iter().map(|it| (self.me.clone(), it.clone()));
        self.server.lock().feed.extend(own);
        Ok(())
    }

    async fn last_position(&self, stream: SharedStream) -> ExchangeResult<String> {
        let last = self.entries(stream).pop();
        Ok(last.map_or_else(String::new, |entry| entry.position))
    }

    async fn read(
        &self,
        stream: SharedStream,
        after: &str,
        count: usize,
        wait: bool,
    ) -> ExchangeResult<Vec<StreamEntry>> {
        let mut entries = self.entries(stream);
        entries.retain(|entry| &*entry.position > after);
        entries.truncate(count);
        if entries.is_empty() && wait {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        Ok(entries)
    }

    async fn ping(&self) -> ExchangeResult<String> {
        Ok("memory".to_owned())
    }

    async fn beat(&self, _description: &str) -> ExchangeResult<()> {
        Ok(())
    }

    async fn replicas(&self) -> ExchangeResult<Vec<String>> {
        Ok(Vec::new())
    }

    async fn hold_lease(&self, _name: &str) -> ExchangeResult<bool> {
        Ok(true)
    }

    async fn cursor(&self, name: &str) -> ExchangeResult<Option<String>> {
        Ok(self.server.lock().cursors.get(name).cloned())
    }

    async fn set_cursor(&self, name: &str, value: &str) -> ExchangeResult<()> {
        let mut server = self.server.lock();
        server.cursors.insert(name.to_owned(), value.to_owned());
        Ok(())
    }
}
