use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use smallvec::SmallVec;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::{
    domain::{SessionId, Tenant, Verdict, VerdictId},
    engine::Engine,
    store::Store,
};

/// The terminations that one stream must be told of: those of every session it
/// has carried, unless it was told in an answer.
pub(super) struct Pushes {
    /// Whose sessions the stream carries.
    tenant: Tenant,
    engine: Arc<Engine>,
    store: Arc<Store>,
    terminations: Receiver<Arc<Verdict>>,
    /// The sessions it has carried, with the terminations it was told of.
    carried: HashMap<SessionId, SmallVec<[VerdictId; 1]>>,
    /// How many it may carry until those that are over are let go of.
    carried_max: usize,
    due: VecDeque<Arc<Verdict>>,
}

/// Below this nothing is gained by tidying.
const CARRIED_MIN: usize = 1_024;

impl Pushes {
    pub fn new(tenant: Tenant, engine: Arc<Engine>, store: Arc<Store>) -> Self {
        Self {
            tenant,
            terminations: store.terminations(),
            engine,
            store,
            carried: HashMap::new(),
            carried_max: CARRIED_MIN,
            due: VecDeque::new(),
        }
    }

    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// The stream has carried something of this session and answered with this
    /// verdict.
    pub fn carried(&mut self, session: &SessionId, answered: Option<&Verdict>) {
        if !self.carried.contains_key(session) {
            self.tidy();
            self.carried.insert(session.clone(), SmallVec::new());
        }
        if let Some(verdict) = answered.filter(|verdict| verdict.terminates()) {
            self.tell(verdict);
        }
    }

    /// The next termination to push. May be dropped and called again.
    pub async fn next(&mut self) -> Arc<Verdict> {
        loop {
            if let Some(verdict) = self.due.front() {
                // One that the engine was asked about may still be on its way to
                // the disk, and nobody may hear of what a crash could undo.
                self.store.settled(verdict.id).await;
                let Some(verdict) = self.due.pop_front() else {
                    continue;
                };
                if self.tell(&verdict) {
                    return verdict;
                }
                continue;
            }
            match self.terminations.recv().await {
                Ok(verdict) => self.due.push_back(verdict),
                // So many at once that some were overwritten: ask about every
                // session, so that none is missed.
                Err(RecvError::Lagged(_)) => self.due = self.all_terminated(),
                // The engine outlives its streams.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    /// Whether this is news to the stream; from now on it is not.
    fn tell(&mut self, verdict: &Verdict) -> bool {
        let Some(told) = self.carried.get_mut(&verdict.session) else {
            return false;
        };
        let news = !told.contains(&verdict.id);
        if news {
            told.push(verdict.id);
        }
        news
    }

    fn all_terminated(&self) -> VecDeque<Arc<Verdict>> {
        let sessions = self.carried.keys();
        sessions
            .flat_map(|session| self.engine.terminations_of(session))
            .collect()
    }

    /// Lets go of sessions that the engine has forgotten.
    fn tidy(&mut self) {
        if self.carried.len() >= self.carried_max {
            let engine = &self.engine;
            self.carried.retain(|session, _| engine.knows(session));
            self.carried_max = (2 * self.carried.len()).max(CARRIED_MIN);
        }
    }
}
