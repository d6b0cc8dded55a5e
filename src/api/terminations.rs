//! Pushes terminations to the streams of a session.
//!
//! Each stream tracks the sessions that it has carried. A termination of one of them
//! is pushed to the stream once its write has succeeded or failed, or has taken
//! `store.sync_secs_max`, unless a response of the stream has already reported it. While
//! writes fail or hang, the pushed verdict says `durable = false`.

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

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::{Api, InvalidArgument, convert};
use crate::{
    domain::{SessionId, Tenant, Verdict, VerdictId},
    engine::Engine,
    store::Store,
    telemetry::Metrics,
};

/// The sessions that one stream has carried, and the terminations it has received.
/// If there are too many sessions, the least recently active are no longer tracked:
/// a termination of these is not pushed, but the response to their next event still
/// reports it.
pub(super) struct TerminationPushes {
    tenant: Tenant,
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    sessions: Mutex<TrackedSessions>,
}

/// Kept small because there are many per stream; the rarely used list of delivered
/// terminations is a separate map.
struct TrackedSessions {
    /// The value of `clock` when each session was last active.
    last_active: HashMap<SessionKey, Cell<u64>, SessionKeyHasher>,
    /// The terminations that the stream has received.
    delivered: HashMap<SessionKey, SmallVec<[VerdictId; 1]>, SessionKeyHasher>,
    sessions_max: usize,
    /// The number of sessions at which closed ones are evicted.
    evict_at: usize,
    /// Counts the look-ups.
    clock: u64,
    /// The tracked sessions of all streams of the tenant, and their limit.
    tenant_total: Arc<AtomicUsize>,
    tenant_total_max: usize,
}

/// The number of sessions that all streams of each tenant track. A session counts
/// once per stream that tracks it.
#[derive(Clone, Default)]
pub(super) struct TenantSessionCounts(Arc<Mutex<HashMap<Tenant, Arc<AtomicUsize>>>>);

impl TenantSessionCounts {
    fn counter_for(&self, tenant: &Tenant) -> Arc<AtomicUsize> {
        self.0.lock().entry(tenant.clone()).or_default().clone()
    }
}

type SessionKeyHasher = foldhash::quality::RandomState;

/// Receives the terminations of all sessions.
pub(super) struct TerminationReceiver {
    store: Arc<Store>,
    receiver: Receiver<Arc<Verdict>>,
    pending: VecDeque<Arc<Verdict>>,
}

/// A session that is looked up by its id alone: all sessions of a stream belong to
/// one tenant.
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

/// Every stream may track this many sessions. Below it eviction gains nothing.
const TRACKED_MIN: usize = 1_024;
/// The limit over all streams, above `TRACKED_MIN` each: about 60 MB. Each tenant
/// has an equal share.
const TRACKED_TOTAL_MAX: usize = 1 << 20;
/// One in this many is evicted at a time, because finding the least recently active
/// needs a scan of all.
const EVICTED_FRACTION: usize = 8;
/// The number of sessions looked up in the engine before the task yields.
const LOOKUP_BATCH: usize = 256;

impl TerminationPushes {
    /// For a new stream. It receives every termination from now on.
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

    /// The session of an id, and whether the stream already tracks it. The id of a
    /// tracked session is not parsed again.
    pub fn resolve_session(&self, id: &str) -> Result<(SessionId, bool), InvalidArgument> {
        match self.find_session(id) {
            Some(session) => Ok((session, true)),
            None => Ok((convert::parse_session_id(&self.tenant, id)?, false)),
        }
    }

    fn find_session(&self, id: &str) -> Option<SessionId> {
        let mut sessions = self.sessions.lock();
        sessions.clock += 1;
        let (SessionKey(session), last) = sessions.last_active.get_key_value(id)?;
        last.set(sessions.clock);
        Some(session.clone())
    }

    /// Tracks a session whose event was recorded, and notes a termination that the
    /// response reports. `is_tracked` is the result of `resolve_session`.
    pub fn track_response(&self, session: &SessionId, is_tracked: bool, verdict: Option<&Verdict>) {
        if !is_tracked || verdict.is_some() {
            self.track_session(session, verdict);
        }
    }

    fn track_session(&self, session: &SessionId, verdict: Option<&Verdict>) {
        let mut sessions = self.sessions.lock();
        if !sessions.last_active.contains_key(session.as_str()) {
            let evicted = sessions.evict(|session| self.engine.contains(session));
            if evicted > 0 {
                self.metrics.count_evicted_push_sessions(evicted);
            }
            // All streams share the allocation of the id with the engine.
            sessions.insert(self.engine.shared_id(session));
        }
        if let Some(verdict) = verdict.filter(|verdict| verdict.terminates()) {
            sessions.mark_delivered(verdict);
        }
    }

    /// Pushes each termination that the stream has not received. Not cancel-safe: it
    /// may be dropped only when the stream ends.
    pub async fn push_terminations(
        &self,
        mut terminations: TerminationReceiver,
        mut push: impl FnMut(Arc<Verdict>),
    ) -> Infallible {
        loop {
            let verdict = terminations.next(self).await;
            let is_own_tenant = verdict.session.belongs_to(&self.tenant);
            if is_own_tenant && self.sessions.lock().mark_delivered(&verdict) {
                push(verdict);
            }
        }
    }

    /// The terminations of all tracked sessions, from the engine.
    async fn collect_terminations(&self) -> VecDeque<Arc<Verdict>> {
        let ids = self.sessions.lock().ids();
        let mut terminated = VecDeque::new();
        for batch in ids.chunks(LOOKUP_BATCH) {
            for session in batch {
                terminated.extend(self.engine.terminations_of(session));
            }
            tokio::task::yield_now().await;
        }
        terminated
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

    /// Marks a termination as received. Returns false if it already was, or if the
    /// session is not tracked.
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

    /// The tenant's streams track too many sessions, and this one more than
    /// `TRACKED_MIN`.
    fn is_over_tenant_share(&self) -> bool {
        self.last_active.len() >= TRACKED_MIN
            && self.tenant_total.load(Relaxed) >= self.tenant_total_max
    }

    /// Evicts sessions that the engine no longer has, and if that is not enough, the
    /// least recently active. Returns the number of the latter.
    fn evict(&mut self, is_live: impl Fn(&SessionId) -> bool) -> usize {
        let before = self.last_active.len();
        if before < self.evict_at && !self.is_over_tenant_share() {
            return 0;
        }
        self.last_active
            .retain(|SessionKey(session), _| is_live(session));
        let left = self.last_active.len();
        self.tenant_total.fetch_sub(before - left, Relaxed);
        let is_over_share = self.is_over_tenant_share();
        if left >= self.sessions_max || is_over_share {
            let mut times: Vec<u64> = self.last_active.values().map(Cell::get).collect();
            let (_, cutoff, _) = times.select_nth_unstable(left / EVICTED_FRACTION);
            self.last_active.retain(|_, last| last.get() > *cutoff);
        }
        if is_over_share {
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
    /// The next termination. It is on disk, or its write has failed or takes too long.
    async fn next(&mut self, pushes: &TerminationPushes) -> Arc<Verdict> {
        loop {
            if let Some(verdict) = self.pending.pop_front() {
                // The write of a termination from the engine may still be pending. The
                // push waits until it has succeeded or failed, so that `durable` is
                // false only if a crash can undo the termination.
                self.store.wait_until_settled_or_timeout(verdict.id).await;
                return verdict;
            }
            match self.receiver.recv().await {
                Ok(verdict) => self.pending.push_back(verdict),
                // Some terminations were overwritten: look up every session, so that
                // none is missed.
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
    fn beyond_stream_sessions_max_the_least_recently_active_are_evicted() {
        const SESSIONS_MAX: usize = 2_048;
        let mut sessions = TrackedSessions::new(SESSIONS_MAX, Arc::default(), TRACKED_TOTAL_MAX);
        let mut evicted = 0;
        for n in 0..10 * SESSIONS_MAX {
            evicted += sessions.evict(|_| true);
            sessions.clock += 1;
            sessions.insert(session(n));
            // A session that is always active.
            sessions.last_active["s0"].set(sessions.clock);
            assert!(sessions.last_active.len() <= SESSIONS_MAX);
        }
        assert_eq!(sessions.last_active.len() + evicted, 10 * SESSIONS_MAX);
        let kept_min = SESSIONS_MAX - SESSIONS_MAX / EVICTED_FRACTION - 1;
        assert!(
            sessions.last_active.len() >= kept_min,
            "more sessions were evicted than necessary"
        );
        let newest = 10 * SESSIONS_MAX - kept_min..10 * SESSIONS_MAX;
        for n in newest.chain([0]) {
            assert!(
                sessions.last_active.contains_key(session(n).as_str()),
                "{n}"
            );
        }
    }

    #[test]
    fn a_stream_evicts_its_own_sessions_when_the_tenants_streams_track_too_many() {
        let total = TenantSessionCounts::default().counter_for(&Tenant::default());
        let mut sessions = TrackedSessions::new(1 << 14, total.clone(), TRACKED_TOTAL_MAX);
        let mut track = |n: usize| {
            let evicted = sessions.evict(|_| true);
            sessions.clock += 1;
            sessions.insert(session(n));
            (evicted, sessions.last_active.len())
        };
        (0..4 * TRACKED_MIN).for_each(|n| assert_eq!(track(n).0, 0));
        assert_eq!(total.load(Relaxed), 4 * TRACKED_MIN);
        // Other streams use up the whole limit.
        total.fetch_add(TRACKED_TOTAL_MAX, Relaxed);
        let peak = (0..TRACKED_MIN).map(|n| track(n + (1 << 20)).1).max();
        assert!(peak.unwrap() <= 4 * TRACKED_MIN);
        let (_, left) = track(0);
        assert!(left <= TRACKED_MIN, "{left}");
        assert_eq!(total.load(Relaxed), TRACKED_TOTAL_MAX + left);
        // Closed sessions are evicted first; then there may be none left.
        (0..TRACKED_MIN).for_each(|n| sessions.insert(session(n + (1 << 30))));
        assert_eq!(sessions.evict(|_| false), 0);
        assert_eq!(total.load(Relaxed), TRACKED_TOTAL_MAX);
        drop(sessions);
        assert_eq!(total.load(Relaxed), TRACKED_TOTAL_MAX);
    }

    #[test]
    fn closed_sessions_are_evicted_first_and_a_limit_of_one_is_exact() {
        let mut sessions = TrackedSessions::new(1, Arc::default(), TRACKED_TOTAL_MAX);
        for n in 0..3 {
            assert_eq!(sessions.evict(|_| false), 0);
            sessions.insert(session(n));
        }
        assert_eq!(sessions.evict(|_| true), 1);
        assert!(sessions.last_active.is_empty());
    }
}
