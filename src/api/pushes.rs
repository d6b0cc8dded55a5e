use std::{
    borrow::Borrow,
    collections::{HashMap, VecDeque},
    convert::Infallible,
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use smallvec::SmallVec;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::{
    domain::{SessionId, Tenant, Verdict, VerdictId},
    engine::Engine,
    store::Store,
};

/// What one stream has carried, and so which terminations it must be told of:
/// those of every session it has carried, unless it was told in an answer.
pub(super) struct Pushes {
    /// Whose sessions the stream carries.
    tenant: Tenant,
    engine: Arc<Engine>,
    carried: Mutex<Sessions>,
}

/// The sessions it has carried, with the terminations it was told of.
struct Sessions {
    known: HashMap<Carried, SmallVec<[VerdictId; 1]>, foldhash::quality::RandomState>,
    /// How many there may be until those that are over are let go of.
    known_max: usize,
}

/// The terminations as they come, of whichever session.
pub(super) struct Terminations {
    store: Arc<Store>,
    news: Receiver<Arc<Verdict>>,
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
    /// For a stream that begins: none of what happens from now on is missed.
    pub fn new(tenant: Tenant, engine: Arc<Engine>, store: Arc<Store>) -> (Self, Terminations) {
        let terminations = Terminations {
            news: store.terminations(),
            store,
            due: VecDeque::new(),
        };
        let pushes = Self {
            tenant,
            engine,
            carried: Mutex::new(Sessions {
                known: HashMap::default(),
                known_max: CARRIED_MIN,
            }),
        };
        (pushes, terminations)
    }

    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// A session that the stream has carried, whose id need not be parsed again.
    pub fn session(&self, id: &str) -> Option<SessionId> {
        let sessions = self.sessions();
        let (Carried(session), _) = sessions.known.get_key_value(id)?;
        Some(session.clone())
    }

    /// The stream has carried something of this session and answered with this
    /// verdict.
    pub fn carried(&self, session: &SessionId, answered: Option<&Verdict>) {
        let mut sessions = self.sessions();
        if !sessions.known.contains_key(session.as_str()) {
            sessions.tidy(&self.engine);
            let session = Carried(session.clone());
            sessions.known.insert(session, SmallVec::new());
        }
        if let Some(verdict) = answered.filter(|verdict| verdict.terminates()) {
            sessions.tell(verdict);
        }
    }

    /// Tells the stream of each termination that is news to it. May be dropped
    /// only when the stream ends.
    pub async fn tell_each(
        &self,
        mut terminations: Terminations,
        mut tell: impl FnMut(Arc<Verdict>),
    ) -> Infallible {
        loop {
            let verdict = terminations.next(self).await;
            let is_ours = verdict.session.is_of(&self.tenant);
            if is_ours && self.sessions().tell(&verdict) {
                tell(verdict);
            }
        }
    }

    fn all_terminated(&self) -> VecDeque<Arc<Verdict>> {
        let sessions = self.sessions();
        sessions
            .known
            .keys()
            .flat_map(|Carried(session)| self.engine.terminations_of(session))
            .collect()
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// Whether this is news to the stream; from now on it is not.
    fn tell(&mut self, verdict: &Verdict) -> bool {
        let Some(told) = self.known.get_mut(verdict.session.as_str()) else {
            return false;
        };
        let news = !told.contains(&verdict.id);
        if news {
            told.push(verdict.id);
        }
        news
    }

    /// Lets go of sessions that the engine has forgotten.
    fn tidy(&mut self, engine: &Engine) {
        if self.known.len() >= self.known_max {
            self.known
                .retain(|Carried(session), _| engine.knows(session));
            self.known_max = (2 * self.known.len()).max(CARRIED_MIN);
        }
    }
}

impl Terminations {
    /// The next one, on disk or known not to be.
    async fn next(&mut self, pushes: &Pushes) -> Arc<Verdict> {
        loop {
            if let Some(verdict) = self.due.pop_front() {
                // One that the engine was asked about may still be on its way to
                // the disk, and nobody may hear of what a crash could undo.
                self.store.settled(verdict.id).await;
                return verdict;
            }
            match self.news.recv().await {
                Ok(verdict) => self.due.push_back(verdict),
                // So many at once that some were overwritten: ask about every
                // session, so that none is missed.
                Err(RecvError::Lagged(_)) => self.due = pushes.all_terminated(),
                // The engine outlives its streams.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}
