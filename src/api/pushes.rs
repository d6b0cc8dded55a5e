use std::{
    borrow::Borrow,
    cell::Cell,
    collections::{HashMap, VecDeque},
    convert::Infallible,
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use smallvec::SmallVec;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::Api;
use crate::{
    domain::{SessionId, Tenant, Verdict, VerdictId},
    engine::Engine,
    store::Store,
    telemetry::Metrics,
};

/// What one stream has carried, and so which terminations it must be told of:
/// those of every session it has carried, unless it was told in an answer. Where
/// these are too many, those carried longest ago are no longer pushed to; the
/// answer to their next event tells of a termination all the same.
pub(super) struct Pushes {
    /// Whose sessions the stream carries.
    tenant: Tenant,
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    carried: Mutex<Sessions>,
}

/// The sessions it has carried. There may be many, on many streams: what few of
/// them have stands apart.
struct Sessions {
    /// With the time when each was carried last, by the stream's own count.
    known: HashMap<Carried, Cell<u64>, Hashing>,
    /// The terminations that the stream was told of.
    told: HashMap<Carried, SmallVec<[VerdictId; 1]>, Hashing>,
    known_max: usize,
    /// How many there may be until those that are over are let go of.
    tidy_at: usize,
    time: u64,
    /// Those of all streams of the tenant together, and how many these may be.
    all: Arc<AtomicUsize>,
    all_max: usize,
}

/// How many sessions all streams of each tenant have carried together, each counted
/// as often as streams know of it.
#[derive(Clone, Default)]
pub(super) struct Carriage(Arc<Mutex<HashMap<Tenant, Arc<AtomicUsize>>>>);

impl Carriage {
    fn of(&self, tenant: &Tenant) -> Arc<AtomicUsize> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.entry(tenant.clone()).or_default().clone()
    }
}

type Hashing = foldhash::quality::RandomState;

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

/// Below this nothing is gained by tidying, and any stream may know of so many.
const CARRIED_MIN: usize = 1_024;
/// All streams together know of no more beside that, some 60 MB, of which each
/// tenant has its share.
const CARRIED_ALL_MAX: usize = 1 << 20;
/// Where there is no room for another, so many make room at a time: all are gone
/// through to find those carried longest ago.
const ROOM_SHARE: usize = 8;
/// Sessions that the engine is asked about before others have the thread.
const ASKED_AT_ONCE: usize = 256;

impl Pushes {
    /// For a stream that begins: none of what happens from now on is missed.
    pub fn new(tenant: Tenant, api: &Api) -> (Self, Terminations) {
        let terminations = Terminations {
            news: api.store.terminations(),
            store: api.store.clone(),
            due: VecDeque::new(),
        };
        let all = api.carriage.of(&tenant);
        let all_max = CARRIED_ALL_MAX / api.server.auth.tenants();
        let sessions = Sessions::new(api.server.limits.stream_sessions_max, all, all_max);
        let pushes = Self {
            tenant,
            engine: api.engine.clone(),
            metrics: api.server.metrics.clone(),
            carried: Mutex::new(sessions),
        };
        (pushes, terminations)
    }

    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// A session that the stream has carried, whose id need not be parsed again.
    pub fn session(&self, id: &str) -> Option<SessionId> {
        let mut sessions = self.sessions();
        sessions.time += 1;
        let (Carried(session), last) = sessions.known.get_key_value(id)?;
        last.set(sessions.time);
        Some(session.clone())
    }

    /// The stream has carried something of this session and answered with this
    /// verdict.
    pub fn carried(&self, session: &SessionId, answered: Option<&Verdict>) {
        let mut sessions = self.sessions();
        if !sessions.known.contains_key(session.as_str()) {
            let forgotten = sessions.make_room(|session| self.engine.knows(session));
            if forgotten > 0 {
                self.metrics.pushes_forgotten(forgotten);
            }
            // All streams of a session share its name with the engine.
            sessions.add(self.engine.own(session));
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

    async fn all_terminated(&self) -> VecDeque<Arc<Verdict>> {
        let known = self.sessions().all();
        let mut terminated = VecDeque::new();
        for some in known.chunks(ASKED_AT_ONCE) {
            let terminations = |session| self.engine.terminations_of(session);
            terminated.extend(some.iter().flat_map(terminations));
            tokio::task::yield_now().await;
        }
        terminated
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    fn new(known_max: usize, all: Arc<AtomicUsize>, all_max: usize) -> Self {
        Self {
            known: HashMap::default(),
            told: HashMap::default(),
            known_max,
            tidy_at: CARRIED_MIN.min(known_max),
            time: 0,
            all,
            all_max,
        }
    }

    fn add(&mut self, session: SessionId) {
        let known = self.known.insert(Carried(session), Cell::new(self.time));
        if known.is_none() {
            self.all.fetch_add(1, Relaxed);
        }
    }

    fn all(&self) -> Vec<SessionId> {
        let known = self.known.keys();
        known.map(|Carried(session)| session.clone()).collect()
    }

    /// Whether this is news to the stream; from now on it is not.
    fn tell(&mut self, verdict: &Verdict) -> bool {
        let Some((Carried(session), _)) = self.known.get_key_value(verdict.session.as_str()) else {
            return false;
        };
        let told = self.told.entry(Carried(session.clone())).or_default();
        let news = !told.contains(&verdict.id);
        if news {
            told.push(verdict.id);
        }
        news
    }

    /// All streams know of too many, and this one of more than any may.
    fn is_crowded(&self) -> bool {
        self.known.len() >= CARRIED_MIN && self.all.load(Relaxed) >= self.all_max
    }

    /// Lets go of sessions that the engine has forgotten, and where that is not
    /// enough, of those carried longest ago: how many of these.
    fn make_room(&mut self, knows: impl Fn(&SessionId) -> bool) -> usize {
        let before = self.known.len();
        if before < self.tidy_at && !self.is_crowded() {
            return 0;
        }
        self.known.retain(|Carried(session), _| knows(session));
        let left = self.known.len();
        self.all.fetch_sub(before - left, Relaxed);
        let is_crowded = self.is_crowded();
        if left >= self.known_max || is_crowded {
            let mut times: Vec<u64> = self.known.values().map(Cell::get).collect();
            let (_, latest, _) = times.select_nth_unstable(left / ROOM_SHARE);
            let latest = *latest;
            self.known.retain(|_, last| last.get() > latest);
        }
        if is_crowded {
            self.known.shrink_to_fit();
        }
        let known = &self.known;
        self.all.fetch_sub(left - known.len(), Relaxed);
        self.told.retain(|session, _| known.contains_key(session));
        self.tidy_at =
            (2 * self.known.len()).clamp(CARRIED_MIN.min(self.known_max), self.known_max);
        left - self.known.len()
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.all.fetch_sub(self.known.len(), Relaxed);
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
                Err(RecvError::Lagged(_)) => {
                    self.due = pushes.all_terminated().await;
                }
                // The engine outlives its streams.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(n: usize) -> SessionId {
        SessionId::parse(&format!("s{n}")).unwrap()
    }

    #[test]
    fn beyond_stream_sessions_max_those_carried_longest_ago_are_forgotten() {
        const MOST: usize = 2_048;
        let mut sessions = Sessions::new(MOST, Arc::default(), CARRIED_ALL_MAX);
        let mut forgotten = 0;
        for n in 0..10 * MOST {
            forgotten += sessions.make_room(|_| true);
            sessions.time += 1;
            sessions.add(session(n));
            // One that is carried all the time.
            sessions.known["s0"].set(sessions.time);
            assert!(sessions.known.len() <= MOST);
        }
        assert_eq!(sessions.known.len() + forgotten, 10 * MOST);
        let least = MOST - MOST / ROOM_SHARE - 1;
        assert!(sessions.known.len() >= least, "no more than has to");
        let newest = 10 * MOST - least..10 * MOST;
        for n in newest.chain([0]) {
            assert!(sessions.known.contains_key(session(n).as_str()), "{n}");
        }
    }

    #[test]
    fn where_all_streams_know_of_too_many_one_makes_room_for_its_own() {
        let carriage = Carriage::default();
        let all = carriage.of(&Tenant::default());
        let held = |all: &AtomicUsize| all.load(Relaxed);
        let mut sessions = Sessions::new(1 << 14, all.clone(), CARRIED_ALL_MAX);
        let mut carry = |n: usize| {
            let forgotten = sessions.make_room(|_| true);
            sessions.time += 1;
            sessions.add(session(n));
            (forgotten, sessions.known.len())
        };
        (0..4 * CARRIED_MIN).for_each(|n| assert_eq!(carry(n).0, 0));
        assert_eq!(held(&all), 4 * CARRIED_MIN);
        // Others have come to know of as many as there may be.
        all.fetch_add(CARRIED_ALL_MAX, Relaxed);
        let most = (0..CARRIED_MIN).map(|n| carry(n + (1 << 20)).1).max();
        assert!(most.unwrap() <= 4 * CARRIED_MIN);
        let (_, left) = carry(0);
        assert!(left <= CARRIED_MIN, "{left}");
        assert_eq!(held(&all), CARRIED_ALL_MAX + left);
        // Those that are over go first, and then there may be none left to choose.
        (0..CARRIED_MIN).for_each(|n| sessions.add(session(n + (1 << 30))));
        assert_eq!(sessions.make_room(|_| false), 0);
        assert_eq!(held(&all), CARRIED_ALL_MAX);
        drop(sessions);
        assert_eq!(held(&all), CARRIED_ALL_MAX);
    }

    #[test]
    fn who_is_over_makes_room_first_and_a_bound_of_one_is_one() {
        let mut sessions = Sessions::new(1, Arc::default(), CARRIED_ALL_MAX);
        for n in 0..3 {
            assert_eq!(sessions.make_room(|_| false), 0);
            sessions.add(session(n));
        }
        assert_eq!(sessions.make_room(|_| true), 1);
        assert!(sessions.known.is_empty());
    }
}
