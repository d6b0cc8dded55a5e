use std::{
    borrow::Borrow,
    cell::Cell,
    collections::{HashMap, VecDeque},
    convert::Infallible,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use parking_lot::{Mutex, MutexGuard};

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
pub(super) struct TerminationPushes {
    /// Whose sessions the stream carries.
    tenant: Tenant,
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    sessions: Mutex<TrackedSessions>,
}

/// The sessions it has carried. There may be many, on many streams: what few of
/// them have stands apart.
struct TrackedSessions {
    /// With the time when each was carried last, by the stream's own count.
    last_active: HashMap<SessionKey, Cell<u64>, SessionKeyHasher>,
    /// The terminations that the stream was told of.
    delivered: HashMap<SessionKey, SmallVec<[VerdictId; 1]>, SessionKeyHasher>,
    sessions_max: usize,
    /// How many there may be until those that are over are let go of.
    evict_at: usize,
    clock: u64,
    /// Those of all streams of the tenant together, and how many these may be.
    tenant_total: Arc<AtomicUsize>,
    tenant_total_max: usize,
}

/// How many sessions all streams of each tenant have carried together, each counted
/// as often as streams know of it.
#[derive(Clone, Default)]
pub(super) struct TenantSessionCounts(Arc<Mutex<HashMap<Tenant, Arc<AtomicUsize>>>>);

impl TenantSessionCounts {
    fn counter_for(&self, tenant: &Tenant) -> Arc<AtomicUsize> {
        let mut counts = self.0.lock();
        counts.entry(tenant.clone()).or_default().clone()
    }
}

type SessionKeyHasher = foldhash::quality::RandomState;

/// The terminations as they come, of whichever session.
pub(super) struct TerminationReceiver {
    store: Arc<Store>,
    receiver: Receiver<Arc<Verdict>>,
    pending: VecDeque<Arc<Verdict>>,
}

/// A session, found by its id alone: those of a stream are all of one tenant.
struct SessionKey(SessionId);

impl Borrow<str> for SessionKey {
    fn borrow(&self) -> &str {
        self.0.as_str()
    }
}

impl Hash for SessionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_str().hash(state);
    }
}

impl PartialEq for SessionKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for SessionKey {}

/// Below this nothing is gained by tidying, and any stream may know of so many.
const TRACKED_MIN: usize = 1_024;
/// All streams together know of no more beside that, some 60 MB, of which each
/// tenant has its share.
const TRACKED_TOTAL_MAX: usize = 1 << 20;
/// Where there is no room for another, so many make room at a time: all are gone
/// through to find those carried longest ago.
const EVICTED_FRACTION: usize = 8;
/// Sessions that the engine is asked about before others have the thread.
const LOOKUP_BATCH: usize = 256;

impl TerminationPushes {
    /// For a stream that begins: none of what happens from now on is missed.
    pub fn new(tenant: Tenant, api: &Api) -> (Self, TerminationReceiver) {
        let terminations = TerminationReceiver {
            receiver: api.store.subscribe_terminations(),
            store: api.store.clone(),
            pending: VecDeque::new(),
        };
        let tenant_total = api.session_counts.counter_for(&tenant);
        let tenant_total_max = TRACKED_TOTAL_MAX / api.server.auth.tenant_count();
        let sessions = TrackedSessions::new(
            api.server.limits.stream_sessions_max,
            tenant_total,
            tenant_total_max,
        );
        let pushes = Self {
            tenant,
            engine: api.engine.clone(),
            metrics: api.server.metrics.clone(),
            sessions: Mutex::new(sessions),
        };
        (pushes, terminations)
    }

    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// A session that the stream has carried, whose id need not be parsed again.
    pub fn find_session(&self, id: &str) -> Option<SessionId> {
        let mut sessions = self.lock_sessions();
        sessions.clock += 1;
        let (SessionKey(session), last) = sessions.last_active.get_key_value(id)?;
        last.set(sessions.clock);
        Some(session.clone())
    }

    /// The stream has carried something of this session and answered with this
    /// verdict.
    pub fn track_session(&self, session: &SessionId, answer: Option<&Verdict>) {
        let mut sessions = self.lock_sessions();
        if !sessions.last_active.contains_key(session.as_str()) {
            let evicted = sessions.evict(|session| self.engine.contains(session));
            if evicted > 0 {
                self.metrics.count_evicted_push_sessions(evicted);
            }
            // All streams of a session share its name with the engine.
            sessions.insert(self.engine.shared_id(session));
        }
        if let Some(verdict) = answer.filter(|verdict| verdict.terminates()) {
            sessions.mark_delivered(verdict);
        }
    }

    /// Tells the stream of each termination that is news to it. May be dropped
    /// only when the stream ends.
    pub async fn push_terminations(
        &self,
        mut terminations: TerminationReceiver,
        mut push: impl FnMut(Arc<Verdict>),
    ) -> Infallible {
        loop {
            let verdict = terminations.next(self).await;
            let is_ours = verdict.session.belongs_to(&self.tenant);
            if is_ours && self.lock_sessions().mark_delivered(&verdict) {
                push(verdict);
            }
        }
    }

    async fn collect_terminations(&self) -> VecDeque<Arc<Verdict>> {
        let ids = self.lock_sessions().ids();
        let mut terminated = VecDeque::new();
        for batch in ids.chunks(LOOKUP_BATCH) {
            let terminations = |session| self.engine.terminations_of(session);
            terminated.extend(batch.iter().flat_map(terminations));
            tokio::task::yield_now().await;
        }
        terminated
    }

    fn lock_sessions(&self) -> MutexGuard<'_, TrackedSessions> {
        self.sessions.lock()
    }
}

impl TrackedSessions {
    fn new(sessions_max: usize, tenant_total: Arc<AtomicUsize>, tenant_total_max: usize) -> Self {
        Self {
            last_active: HashMap::default(),
            delivered: HashMap::default(),
            sessions_max,
            evict_at: TRACKED_MIN.min(sessions_max),
            clock: 0,
            tenant_total,
            tenant_total_max,
        }
    }

    fn insert(&mut self, session: SessionId) {
        let previous = self
            .last_active
            .insert(SessionKey(session), Cell::new(self.clock));
        if previous.is_none() {
            self.tenant_total.fetch_add(1, Relaxed);
        }
    }

    fn ids(&self) -> Vec<SessionId> {
        let keys = self.last_active.keys();
        keys.map(|SessionKey(session)| session.clone()).collect()
    }

    /// Whether this is news to the stream; from now on it is not.
    fn mark_delivered(&mut self, verdict: &Verdict) -> bool {
        let Some((SessionKey(session), _)) =
            self.last_active.get_key_value(verdict.session.as_str())
        else {
            return false;
        };
        let delivered = self
            .delivered
            .entry(SessionKey(session.clone()))
            .or_default();
        let is_new = !delivered.contains(&verdict.id);
        if is_new {
            delivered.push(verdict.id);
        }
        is_new
    }

    /// All streams know of too many, and this one of more than any may.
    fn is_over_tenant_share(&self) -> bool {
        self.last_active.len() >= TRACKED_MIN
            && self.tenant_total.load(Relaxed) >= self.tenant_total_max
    }

    /// Lets go of sessions that the engine has forgotten, and where that is not
    /// enough, of those carried longest ago: how many of these.
    fn evict(&mut self, is_live: impl Fn(&SessionId) -> bool) -> usize {
        let before = self.last_active.len();
        if before < self.evict_at && !self.is_over_tenant_share() {
            return 0;
        }
        self.last_active
            .retain(|SessionKey(session), _| is_live(session));
        let left = self.last_active.len();
        self.tenant_total.fetch_sub(before - left, Relaxed);
        let is_crowded = self.is_over_tenant_share();
        if left >= self.sessions_max || is_crowded {
            let mut times: Vec<u64> = self.last_active.values().map(Cell::get).collect();
            let (_, latest, _) = times.select_nth_unstable(left / EVICTED_FRACTION);
            let latest = *latest;
            self.last_active.retain(|_, last| last.get() > latest);
        }
        if is_crowded {
            self.last_active.shrink_to_fit();
        }
        let remaining = &self.last_active;
        self.tenant_total.fetch_sub(left - remaining.len(), Relaxed);
        self.delivered
            .retain(|session, _| remaining.contains_key(session));
        self.evict_at = (2 * self.last_active.len())
            .clamp(TRACKED_MIN.min(self.sessions_max), self.sessions_max);
        left - self.last_active.len()
    }
}

impl Drop for TrackedSessions {
    fn drop(&mut self) {
        self.tenant_total.fetch_sub(self.last_active.len(), Relaxed);
    }
}

impl TerminationReceiver {
    /// The next one, on disk or known not to be.
    async fn next(&mut self, pushes: &TerminationPushes) -> Arc<Verdict> {
        loop {
            if let Some(verdict) = self.pending.pop_front() {
                // One that the engine was asked about may still be on its way to
                // the disk, and nobody may hear of what a crash could undo.
                self.store.wait_until_settled(verdict.id).await;
                return verdict;
            }
            match self.receiver.recv().await {
                Ok(verdict) => self.pending.push_back(verdict),
                // So many at once that some were overwritten: ask about every
                // session, so that none is missed.
                Err(RecvError::Lagged(_)) => {
                    self.pending = pushes.collect_terminations().await;
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
        let mut sessions = TrackedSessions::new(MOST, Arc::default(), TRACKED_TOTAL_MAX);
        let mut forgotten = 0;
        for n in 0..10 * MOST {
            forgotten += sessions.evict(|_| true);
            sessions.clock += 1;
            sessions.insert(session(n));
            // One that is carried all the time.
            sessions.last_active["s0"].set(sessions.clock);
            assert!(sessions.last_active.len() <= MOST);
        }
        assert_eq!(sessions.last_active.len() + forgotten, 10 * MOST);
        let least = MOST - MOST / EVICTED_FRACTION - 1;
        assert!(sessions.last_active.len() >= least, "no more than has to");
        let newest = 10 * MOST - least..10 * MOST;
        for n in newest.chain([0]) {
            assert!(
                sessions.last_active.contains_key(session(n).as_str()),
                "{n}"
            );
        }
    }

    #[test]
    fn where_all_streams_know_of_too_many_one_makes_room_for_its_own() {
        let carriage = TenantSessionCounts::default();
        let all = carriage.counter_for(&Tenant::default());
        let held = |all: &AtomicUsize| all.load(Relaxed);
        let mut sessions = TrackedSessions::new(1 << 14, all.clone(), TRACKED_TOTAL_MAX);
        let mut carry = |n: usize| {
            let forgotten = sessions.evict(|_| true);
            sessions.clock += 1;
            sessions.insert(session(n));
            (forgotten, sessions.last_active.len())
        };
        (0..4 * TRACKED_MIN).for_each(|n| assert_eq!(carry(n).0, 0));
        assert_eq!(held(&all), 4 * TRACKED_MIN);
        // Others have come to know of as many as there may be.
        all.fetch_add(TRACKED_TOTAL_MAX, Relaxed);
        let most = (0..TRACKED_MIN).map(|n| carry(n + (1 << 20)).1).max();
        assert!(most.unwrap() <= 4 * TRACKED_MIN);
        let (_, left) = carry(0);
        assert!(left <= TRACKED_MIN, "{left}");
        assert_eq!(held(&all), TRACKED_TOTAL_MAX + left);
        // Those that are over go first, and then there may be none left to choose.
        (0..TRACKED_MIN).for_each(|n| sessions.insert(session(n + (1 << 30))));
        assert_eq!(sessions.evict(|_| false), 0);
        assert_eq!(held(&all), TRACKED_TOTAL_MAX);
        drop(sessions);
        assert_eq!(held(&all), TRACKED_TOTAL_MAX);
    }

    #[test]
    fn who_is_over_makes_room_first_and_a_bound_of_one_is_one() {
        let mut sessions = TrackedSessions::new(1, Arc::default(), TRACKED_TOTAL_MAX);
        for n in 0..3 {
            assert_eq!(sessions.evict(|_| false), 0);
            sessions.insert(session(n));
        }
        assert_eq!(sessions.evict(|_| true), 1);
        assert!(sessions.last_active.is_empty());
    }
}
