use std::{
    borrow::Borrow,
    collections::{HashMap, VecDeque},
    hash::{Hash, Hasher},
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
    carried: HashMap<Carried, SmallVec<[VerdictId; 1]>, foldhash::quality::RandomState>,
    /// How many it may carry until those that are over are let go of.
    carried_max: usize,
    due: VecDeque<Arc<Verdict>>,
}

/// A session, found by its id alone: those of a stream are all of one tenant.
struct Carried(SessionId);

impl Borrow<str> for Carried {
    fn borrow(&self) -> &str {
        self.0.as_str()
    }
}

impl Hash for Carried {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_str().hash(state);
    }
}

impl PartialEq for Carried {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Carried {}

/// Below this nothing is gained by tidying.
const CARRIED_MIN: usize = 1_024;

impl Pushes {
    pub fn new(tenant: Tenant, engine: Arc<Engine>, store: Arc<Store>) -> Self {
        Self {
            tenant,
            terminations: store.terminations(),
            engine,
            store,
            carried: HashMap::default(),
            carried_max: CARRIED_MIN,
            due: VecDeque::new(),
        }
    }

    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// A session that the stream has carried, whose id need not be parsed again.
    pub fn session(&self, id: &str) -> Option<SessionId> {
        let (Carried(session), _) = self.carried.get_key_value(id)?;
        Some(session.clone())
    }

    /// The stream has carried something of this session and answered with this
    /// verdict.
    pub fn carried(&mut self, session: &SessionId, answered: Option<&Verdict>) {
        if !self.carried.contains_key(session.as_str()) {
            self.tidy();
            let session = Carried(session.clone());
            self.carried.insert(session, SmallVec::new());
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
        let session = Some(&verdict.session).filter(|session| session.is_of(&self.tenant));
        let told = session.and_then(|session| self.carried.get_mut(session.as_str()));
        let Some(told) = told else {
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
            .flat_map(|Carried(session)| self.engine.terminations_of(session))
            .collect()
    }

    /// Lets go of sessions that the engine has forgotten.
    fn tidy(&mut self) {
        if self.carried.len() >= self.carried_max {
            let engine = &self.engine;
            self.carried
                .retain(|Carried(session), _| engine.knows(session));
            self.carried_max = (2 * self.carried.len()).max(CARRIED_MIN);
        }
    }
}
