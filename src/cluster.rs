//! Several equal replicas that share sessions through Redis or Valkey.
//!
//! A session lives in the memory of the replica that had its last event. Its state is saved
//! in Redis before an event is answered, so another replica can take it over with its next
//! event. A replica that has lost a session notices at its next save: the list that it would
//! append to has another name. Terminations, resets and snoozes are on the disk of the
//! replica that gave them, and go to the others through a stream. Redis may lose everything,
//! and nothing that was promised is lost; while it is away each replica goes on by itself.
//!
//! `ownership` decides, without waiting; `saver` saves; `acts` sends and adopts what was
//! decided; `verdict_feed` is the feed of all replicas; `monitor` watches Redis; `replicas`
//! lists the others. `exchange` is what they use of Redis.
//!
//! Uses: domain, secret, engine, store, telemetry.

mod acts;
mod codec;
mod exchange;
mod keys;
mod monitor;
mod ownership;
mod redis_exchange;
mod replicas;
mod saver;
mod seal;
mod settings;
mod status;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod verdict_feed;

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;

pub use codec::{DecodeEvent, EventRecord};
pub use ownership::{Change, RECORD_BYTES_MAX};
pub use replicas::Replica;
pub use saver::{ATTEMPTS_MAX, SaveOutcome, SaveWait};
pub use settings::{RedisUrl, Settings};
pub use status::ClusterHealth;
pub use verdict_feed::{FeedPage, FeedPosition, FeedStart, place};

use crate::{
    domain::{AgentId, CallCheck, SessionDetail, SessionId, ToolCall, VerdictId},
    engine::{Engine, Replayer},
    secret::{KeyFileError, Secret},
    store::Store,
    telemetry::{ClusterCount, Metrics},
};
use acts::Acts;
use codec::Codec;
use exchange::{Exchange, ExchangeError, ExchangeResult};
use keys::Keys;
use ownership::Ownerships;
use redis_exchange::RedisExchange;
use replicas::KnownReplicas;
use saver::SaveQueue;
use seal::ClusterSealer;
use status::ClusterStatus;
use verdict_feed::VerdictFeed;

/// Why a replica cannot join.
#[derive(Debug, Error)]
pub enum JoinError {
    #[error("{0}")]
    Address(String),
    #[error(transparent)]
    Secret(#[from] KeyFileError),
    #[error("no random numbers")]
    Random,
    #[error("the keys in Redis are of another layout, which this version does not know")]
    Layout,
}

/// What a cluster needs of the service.
pub struct ClusterParts {
    pub engine: Arc<Engine>,
    pub store: Arc<Store>,
    pub metrics: Arc<Metrics>,
    /// For replays; never shown.
    pub replay_metrics: Metrics,
    pub decode_event: DecodeEvent,
    pub now: fn() -> SystemTime,
    /// How long a session may be idle, and how long a termination is in force.
    pub idle_max: Duration,
    pub tombstone_age_max: Duration,
}

/// This replica's part of the cluster.
pub struct Cluster {
    me: String,
    settings: Settings,
    now: fn() -> SystemTime,
    wait_max: Duration,
    tombstone_age_max: Duration,
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    codec: Arc<Codec>,
    sessions: Ownerships,
    exchange: Arc<dyn Exchange>,
    queue: SaveQueue,
    status: ClusterStatus,
    acts: Acts,
    feed: VerdictFeed,
    known: KnownReplicas,
    events_per_sec: Mutex<u64>,
    stopped: CancellationToken,
}

/// Reads the secret of the cluster.
pub fn load_secret(settings: &Settings) -> Result<Secret, KeyFileError> {
    Secret::load(&settings.secret_file)
}

/// The name of a replica: another one after each start.
fn replica_name(name: &str, started_at: SystemTime) -> String {
    let host = || {
        let name = rustix::system::uname();
        name.nodename().to_string_lossy().into_owned()
    };
    let name = if name.is_empty() {
        host()
    } else {
        name.to_owned()
    };
    let since = started_at.duration_since(SystemTime::UNIX_EPOCH);
    format!("{name}.{:x}", since.unwrap_or_default().as_millis())
}

impl Cluster {
    /// Joins the cluster. An unreachable Redis is no reason not to start.
    pub async fn join(
        settings: Settings,
        secret: Secret,
        parts: ClusterParts,
    ) -> Result<Arc<Self>, JoinError> {
        settings.warn_of_long_wait();
        let started_at = (parts.now)();
        let me = replica_name(&settings.name, started_at);
        let limits = (parts.idle_max, settings.feed_max);
        let keys = Keys::new(&settings.prefix);
        let exchange = RedisExchange::new(&settings.redis, keys, &me, limits);
        let exchange = exchange.map_err(JoinError::Address)?;
        let status = ClusterStatus::new();
        match exchange.check_layout().await {
            Ok(Some(_)) => {}
            Ok(None) => return Err(JoinError::Layout),
            Err(error) => status.set_away(started_at, &error.to_string(), &parts.metrics),
        }
        let cluster =
            Self::with_exchange(settings, secret, parts, &me, Arc::new(exchange), status)?;
        tracing::info!(
            replica = cluster.me,
            prefix = cluster.settings.prefix,
            "joined the cluster"
        );
        Ok(cluster)
    }

    fn with_exchange(
        settings: Settings,
        secret: Secret,
        parts: ClusterParts,
        me: &str,
        exchange: Arc<dyn Exchange>,
        status: ClusterStatus,
    ) -> Result<Arc<Self>, JoinError> {
        let sealer = ClusterSealer::new(secret).ok_or(JoinError::Random)?;
        let codec = Arc::new(Codec::new(sealer, parts.decode_event));
        let sessions = Ownerships::new(
            parts.engine,
            codec.clone(),
            parts.metrics.clone(),
            Replayer::new(parts.replay_metrics),
            me,
            (settings.tail_max, settings.state_bytes_max),
        );
        Ok(Arc::new(Self {
            me: me.to_owned(),
            wait_max: Duration::from_millis(settings.wait_ms),
            settings,
            now: parts.now,
            tombstone_age_max: parts.tombstone_age_max,
            acts: Acts::new(parts.store.last_verdict_id()),
            store: parts.store,
            metrics: parts.metrics,
            codec,
            sessions,
            exchange,
            queue: SaveQueue::default(),
            status,
            feed: VerdictFeed::default(),
            known: KnownReplicas::default(),
            events_per_sec: Mutex::default(),
            stopped: CancellationToken::new(),
        }))
    }

    /// Runs until `stop`. The service stops when it ends before.
    pub async fn run(self: Arc<Self>) {
        tokio::join!(
            self.run_saver(&self.stopped),
            self.run_monitor(&self.stopped),
            self.send_verdicts(&self.stopped),
            self.read_acts(&self.stopped),
            self.read_feed(&self.stopped),
            self.run_beats(&self.stopped),
        );
    }

    /// Saves what is not saved, until the deadline, and ends the tasks.
    pub async fn stop(&self, deadline: Instant) {
        if !self.status.is_away() {
            let saved = async {
                self.save_whole(self.sessions.unsaved());
                while !self.queue.is_idle() || !self.acts.is_sent(self.store.last_verdict_id()) {
                    time::sleep(Duration::from_millis(2)).await;
                }
            };
            if time::timeout_at(deadline, saved).await.is_err() {
                tracing::warn!("some sessions were not saved in redis before the drain deadline");
            }
        }
        self.stopped.cancel();
    }

    pub fn health(&self) -> ClusterHealth {
        self.status.health()
    }

    /// The name of this replica.
    pub fn name(&self) -> &str {
        &self.me
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes the sessions that this replica does not have. If that takes too long, it goes on
    /// with what it has.
    /// Returns whether it had to.
    pub async fn own<'a>(&self, sessions: impl IntoIterator<Item = &'a SessionId>) -> bool {
        let mut missing: Vec<SessionId> = Vec::new();
        for session in sessions {
            if self.sessions.needs_take(session) && !missing.contains(session) {
                missing.push(session.clone());
            }
        }
        if missing.is_empty() || !self.status.is_usable() {
            return false;
        }
        let taken = time::timeout(self.wait_max, self.take_now(&missing)).await;
        if taken.is_err() {
            self.metrics.count_cluster(ClusterCount::Late, 1);
        }
        true
    }

    /// Counts something in the copy of a session, and returns the copy.
    pub fn count_in_copy<T>(&self, session: &SessionId, count: impl FnOnce() -> T) -> (T, u64) {
        self.sessions.count_in_copy(session, count)
    }

    /// Saves a session that was changed by something else than an event.
    pub async fn save_changed(&self, session: &SessionId) {
        let ((), copy) = self.sessions.count_in_copy(session, || ());
        let change = Change {
            copy,
            records: Default::default(),
            is_whole: true,
            through: 0,
        };
        if let Some(mut wait) = self.save([(session.clone(), change)]) {
            let outcome = wait.wait().await;
            self.count_late(&outcome);
        }
    }

    /// Counts an answer that left before its sessions were saved.
    pub fn count_late(&self, outcome: &SaveOutcome) {
        if outcome.is_late {
            self.metrics.count_cluster(ClusterCount::Late, 1);
        }
    }

    /// Counts an event that is answered from a copy that could not be saved.
    pub fn count_conflict(&self) {
        self.metrics.count_cluster(ClusterCount::Conflict, 1);
    }

    /// Notes that a session has ended.
    pub async fn end(&self, session: &SessionId) {
        self.sessions.forget(session);
        if self.status.is_away() {
            return;
        }
        let ended = time::timeout(self.wait_max, self.exchange.end(session)).await;
        if let Ok(Err(error)) = ended {
            self.note_error(&error);
        }
    }

    /// Applies a reset of this replica, and waits until the others know it.
    pub async fn reset(&self, session: &SessionId, verdict: VerdictId, reset: impl FnOnce()) {
        self.sessions.reset(session, reset);
        self.wait_until_acted(verdict).await;
        self.sessions.confirm_reset(session);
        self.save_changed(session).await;
    }

    /// Whether a call would be refused, for a session that another replica may have. `None`:
    /// this replica has it.
    pub async fn check_call(
        &self,
        session: &SessionId,
        agent: &AgentId,
        call: &ToolCall,
    ) -> Option<CallCheck> {
        let shared = self.look(session).await?;
        let engine = self.sessions.engine();
        let replayer = self.sessions.replayer();
        let call = (agent, call);
        Some(
            engine
                .handover()
                .check_call_of(session, &shared, call, replayer, (self.now)()),
        )
    }

    /// A session that another replica has. `None`: this replica has it, or it is unknown.
    pub async fn detail(&self, session: &SessionId) -> Option<SessionDetail> {
        let shared = self.look(session).await?;
        let engine = self.sessions.engine();
        engine
            .handover()
            .detail_of(session, &shared, self.sessions.replayer(), (self.now)())
    }

    /// Reads a session without taking it, and adopts what stands against it.
    async fn look(&self, session: &SessionId) -> Option<crate::engine::SharedSession> {
        if !self.sessions.needs_take(session) || self.status.is_away() {
            return None;
        }
        let looked = time::timeout(self.wait_max, self.exchange.look(session)).await;
        let reply = looked
            .ok()?
            .inspect_err(|error| self.note_error(error))
            .ok()?;
        let now = (self.now)();
        let mut is_terminated = false;
        for value in &reply.acts {
            if let Some(act) = self.codec.decode_act(value) {
                is_terminated |= act.verdict.terminates() && act.verdict.agent.is_main();
                self.adopt_standing(&act, now);
            }
        }
        let saved = self.codec.decode_list(session, &reply.list);
        (saved.has_state && !is_terminated).then_some(saved.shared)
    }

    /// Waits until what this verdict decided is known to the cluster, or for `wait_ms`.
    pub async fn wait_until_acted(&self, verdict: VerdictId) {
        let id = verdict.min(self.store.last_verdict_id());
        if self.status.is_away() || self.acts.is_sent(id) {
            return;
        }
        let acted = time::timeout(self.wait_max, self.acts.wait_until_sent(id)).await;
        if acted.is_err() {
            self.metrics.count_cluster(ClusterCount::Late, 1);
        }
    }

    /// Whether `wait_until_acted` would return at once.
    pub fn is_acted(&self, verdict: VerdictId) -> bool {
        let id = verdict.min(self.store.last_verdict_id());
        self.status.is_away() || self.acts.is_sent(id)
    }

    /// Ends a wait for Redis when it is away.
    async fn unless_away<T>(
        &self,
        waiting: impl Future<Output = ExchangeResult<T>>,
    ) -> ExchangeResult<T> {
        tokio::select! {
            done = waiting => done,
            () = self.status.wait_until_away() => {
                Err(ExchangeError::Unreachable("it does not answer".to_owned()))
            }
        }
    }

    fn note_error(&self, error: &ExchangeError) {
        self.metrics.count_cluster(ClusterCount::Error, 1);
        match error {
            ExchangeError::Full(_) => self.status.set_full(true, &self.metrics),
            ExchangeError::Unreachable(_) => self.status.note_broken(),
            ExchangeError::Refused(why) => {
                tracing::warn!(error = why, "redis has refused a command");
            }
        }
    }
}
