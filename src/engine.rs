//! Owns the sessions: a DashMap of 256 shards, a session's whole state under
//! one entry. Only sync methods: a shard is locked for microseconds and nobody
//! waits for anything while it is.
//!
//! Uses: domain, text, facts, detect, policy, rules, telemetry.

mod agent;
mod breaker;
mod carry_over;
mod context;
mod deltas;
mod draft;
mod error;
mod event_ids;
mod expiry;
mod fleet;
mod issuer;
mod operator_actions;
mod post_mortem;
mod pressure;
mod profile;
mod quarantine;
mod query;
mod session;
mod slot;
mod tenants;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use dashmap::{DashMap, Entry};
use serde::Deserialize;

pub use breaker::BreakerSettings;
pub use context::EngineReloadError;
pub use error::{OpenError, RecordError};
pub use fleet::{FleetFilter, RankedSessions};
pub use issuer::RunMode;
pub use operator_actions::{OperatorRequest, SnoozeError};
pub use profile::{Profile, Profiles};
pub use query::SessionFilter;

use crate::{
    domain::{
        Event, EventBody, Labels, Role, SessionId, SessionStatus, SessionView,
        Verdict, VerdictSink,
    },
    facts::{EventFacts, ToolRules},
    rules::RuleOutcomes,
    telemetry::Metrics,
    text::HashKey,
};
use carry_over::CarryOver;
use context::{EngineConfig, EngineContext};
use expiry::DeadlineKey;
use issuer::VerdictIssuer;
use pressure::MemoryUse;
use session::Session;
use slot::{Slot, Tombstone};
use tenants::{TenantState, Tenants};

/// `[limits]`: the bounds of the engine.
#[derive(Clone, Debug, Deserialize)]
pub struct Limits {
    pub sessions_max: usize,
    pub state_bytes_max: usize,
    pub idle_secs_max: u64,
    pub pressure_idle_secs_min: u64,
    pub agents_max: usize,
    pub event_ids_max: usize,
    pub tombstones_max: usize,
    pub tombstone_secs_max: u64,
    pub tombstone_bytes_max: usize,
    pub post_mortem_bytes_max: usize,
    /// `[breaker]`; `None`: it never opens.
    #[serde(skip)]
    pub breaker: Option<BreakerSettings>,
}

/// Detects, for all sessions.
pub struct Engine {
    sessions: DashMap<SessionId, Slot, foldhash::quality::RandomState>,
    config: ArcSwap<EngineConfig>,
    state: EngineState,
    tenants: Tenants,
}

/// What stays while the engine runs.
struct EngineState {
    issuer: VerdictIssuer,
    metrics: Arc<Metrics>,
    live_sessions: AtomicUsize,
    /// What all sessions and the tombstones of those that ended hold, by our own
    /// count.
    state_bytes: AtomicUsize,
}

/// The answer to an event.
#[derive(Clone, Debug)]
pub struct RecordOutcome {
    /// `None`: it was not counted, since the session or agent is terminated, or
    /// it was a piece of a text or the end of mere reasoning.
    pub index: Option<i32>,
    pub duplicate: bool,
    pub verdict: Option<Arc<Verdict>>,
    /// The verdict was given now, and not before.
    pub is_new_verdict: bool,
}

/// With 256 shards a walk over all sessions stalls a reader for a quarter of a
/// millisecond at most; with the default of 4 per core, for 4 ms.
const SHARDS: usize = 256;

impl Engine {
    pub fn new(
        profiles: Profiles,
        tools: ToolRules,
        mut limits: Limits,
        metrics: Arc<Metrics>,
        run_mode: RunMode,
        sink: VerdictSink,
    ) -> Self {
        let key = match run_mode {
            RunMode::Live => HashKey::random(),
            // It ends nobody, and must say the same of the same trace.
            RunMode::Replay => {
                limits.breaker = None;
                HashKey::fixed()
            }
        };
        Self {
            sessions: DashMap::with_hasher_and_shard_amount(Default::default(), SHARDS),
            config: ArcSwap::from_pointee(EngineConfig::new(key, profiles, tools, limits)),
            state: EngineState {
                issuer: VerdictIssuer::new(run_mode, sink),
                metrics,
                live_sessions: AtomicUsize::new(0),
                state_bytes: AtomicUsize::new(0),
            },
            tenants: Tenants::default(),
        }
    }

    /// Takes an event in. `now` is the time of its arrival.
    pub fn record(&self, event: &Event, now: SystemTime) -> Result<RecordOutcome, RecordError> {
        let (config, tenant) = (
            self.config.load(),
            self.tenants.get_or_insert(&event.session),
        );
        let ctx = self.context(&config, &tenant);
        self.make_room_for(MemoryUse::Event, now, &ctx);
        // The costly part, with no lock held.
        // What is large stays in its place, since closures are handed on and on.
        let (facts, rule_results) = (&mut EventFacts::Other(None), &mut RuleOutcomes::default());
        self.prepare_catching_panic(&event.session, now, || {
            let profile = self.profile_for_turn(event, &config.profiles);
            let repeats = profile.as_deref().and_then(Profile::repeat_settings);
            *facts = ctx.facts.extract(event, repeats);
            *rule_results = ctx.rules.evaluate(event, facts, ctx.facts.key());
        })?;
        self.with_slot(&event.session, &tenant, now, |slot| match slot {
            Slot::Closed(tombstone) => Ok(tombstone.reject_event(&event.session, event.cost)),
            Slot::Live(session) => {
                session.record(event, facts, std::mem::take(rule_results), now, &ctx)
            }
        })
    }

    /// The profile by which an agent's turn is looked at; `None`: it is none.
    fn profile_for_turn(&self, event: &Event, profiles: &Profiles) -> Option<Arc<Profile>> {
        let EventBody::Turn(turn) = &event.body else {
            return None;
        };
        let session_profile = || {
            let slot = self.sessions.get(&event.session)?;
            profiles.get(&slot.profile()?.name)
        };
        let default_profile = || profiles.default().clone();
        (turn.role == Role::Agent).then(|| session_profile().unwrap_or_else(default_profile))
    }

    /// Sets a session's profile and labels, beginning it where it is new.
    pub fn open_session(
        &self,
        id: &SessionId,
        profile: &str,
        labels: Labels,
        now: SystemTime,
    ) -> Result<SessionView, OpenError> {
        let config = self.config.load();
        let profile = config.profiles.get(profile);
        let profile = profile.ok_or_else(|| OpenError::NoProfile(config.profiles.join_names()))?;
        let tenant = self.tenants.get_or_insert(id);
        let ctx = self.context(&config, &tenant);
        self.make_room_for(MemoryUse::Event, now, &ctx);
        self.with_slot(id, &tenant, now, |slot| match slot {
            Slot::Closed(_) => Err(OpenError::Terminated),
            Slot::Live(session) => {
                session.set_profile_and_labels(profile, Arc::new(labels), &ctx)?;
                Ok(session.view(id))
            }
        })
    }

    /// How many sessions are live.
    pub fn live_sessions(&self) -> usize {
        self.state.live_sessions.load(Relaxed)
    }

    /// Some tenant's detectors warn instead of terminating: they would end too
    /// many.
    pub fn is_any_breaker_open(&self) -> bool {
        let all = self.tenants.all();
        all.iter().any(|tenant| tenant.breaker.is_open())
    }

    /// How many bytes of state they hold.
    pub fn state_bytes(&self) -> usize {
        self.state.state_bytes.load(Relaxed)
    }

    /// How many bytes terminations hold.
    pub fn tombstone_bytes(&self) -> usize {
        let tenants = self.tenants.all();
        tenants.iter().map(|tenant| tenant.tombstone_bytes()).sum()
    }

    /// Runs `with` on the session's slot, which is live unless the session is
    /// terminated: one that is new or had ended begins, within the limits.
    fn with_slot<T, E: From<RecordError>>(
        &self,
        id: &SessionId,
        tenant: &TenantState,
        now: SystemTime,
        with: impl FnOnce(&mut Slot) -> Result<T, E>,
    ) -> Result<T, E> {
        if let Some(mut slot) = self.sessions.get_mut(id)
            && !slot.is_ended()
        {
            return self.with_accounting(id, tenant, &mut slot, now, with);
        }
        self.reserve_session(tenant, now)?;
        let create =
            || self.create_session(id, "", Arc::default(), tenant.carry_overs.take(id), now);
        let mut slot = match self.sessions.entry(id.clone()) {
            Entry::Vacant(vacant) => vacant.insert(create()),
            Entry::Occupied(mut occupied) if occupied.get().is_ended() => {
                self.unregister_slot(id, &occupied.insert(create()));
                occupied.into_ref()
            }
            // Somebody else began it in the meantime.
            Entry::Occupied(occupied) => {
                self.update_live_sessions(tenant, false);
                occupied.into_ref()
            }
        };
        self.with_accounting(id, tenant, &mut slot, now, with)
    }

    /// Takes a place among the live sessions.
    fn reserve_session(&self, tenant: &TenantState, now: SystemTime) -> Result<(), RecordError> {
        let config = self.config.load();
        let ctx = self.context(&config, tenant);
        self.make_room_for(MemoryUse::SessionOrAgent, now, &ctx);
        ctx.check_memory(MemoryUse::SessionOrAgent)?;
        let sessions_max = ctx.limits.sessions_max;
        let tenant_max = ctx.tenant_share(sessions_max);
        let try_increment = |counter: &AtomicUsize, max: usize| {
            let incremented = counter.try_update(Relaxed, Relaxed, |n| (n < max).then_some(n + 1));
            incremented
                .map(drop)
                .map_err(|_| RecordError::SessionsMax(max))
        };
        try_increment(&tenant.live_sessions, tenant_max)?;
        try_increment(ctx.live_sessions, sessions_max).inspect_err(|_| {
            tenant.live_sessions.fetch_sub(1, Relaxed);
        })
    }

    /// A new session; its place among the live ones is already taken.
    fn create_session(
        &self,
        id: &SessionId,
        profile: &str,
        labels: Arc<Labels>,
        carry_over: CarryOver,
        now: SystemTime,
    ) -> Slot {
        let profile = self.config.load().profiles.get_or_default(profile);
        let key = self.new_deadline_key(now + self.idle_max());
        let mut session = Session::new(profile, labels, key, now);
        session.apply_carry_over(carry_over);
        self.tenants
            .get_or_insert(id)
            .without_verdicts
            .insert(key, id);
        self.state
            .metrics
            .adjust_session_counts(None, Some(SessionStatus::Active));
        Slot::Live(Box::new(session))
    }

    /// Keeps the totals right around a change of a session, and lays it to rest
    /// where the change ended it.
    fn with_accounting<T, E: From<RecordError>>(
        &self,
        id: &SessionId,
        tenant: &TenantState,
        slot: &mut Slot,
        now: SystemTime,
        with: impl FnOnce(&mut Slot) -> Result<T, E>,
    ) -> Result<T, E> {
        let before = slot.status();
        let answer = self.apply_catching_panic(id, slot, with);
        if let Slot::Live(session) = slot {
            if session.has_verdicts() && !session.is_queued_with_verdicts() {
                tenant.without_verdicts.remove(session.deadline_key());
                session.set_queued_with_verdicts();
                tenant.with_verdicts.insert(session.deadline_key(), id);
            }
            self.update_memory_usage(tenant, slot, id);
            let after = slot.status();
            self.state.metrics.record_status_change(before, after);
            if after == SessionStatus::Terminated {
                let view = slot.view(id);
                self.close_session(slot, view, now);
            }
        }
        answer
    }

    /// Counts what a session holds.
    fn update_memory_usage(&self, tenant: &TenantState, slot: &mut Slot, id: &SessionId) {
        if let Slot::Live(session) = slot {
            let (before, after) = session.update_accounted_bytes(id);
            self.update_state_bytes(tenant, before, after);
        }
    }

    /// Puts a tombstone in a session's place.
    fn close_session(&self, slot: &mut Slot, view: SessionView, now: SystemTime) {
        let (id, status) = (view.id.clone(), view.status);
        let key = self.new_deadline_key(now + self.tombstone_retention());
        self.save_post_mortem(slot, &view, key.generation);
        self.unregister_slot(&id, slot);
        *slot = self.register_tombstone(&id, status, key, Tombstone::new(view, key));
    }

    /// Takes a tombstone into the totals and its queue.
    fn register_tombstone(
        &self,
        id: &SessionId,
        status: SessionStatus,
        key: DeadlineKey,
        tombstone: Tombstone,
    ) -> Slot {
        self.state.metrics.adjust_session_counts(None, Some(status));
        let tenant = self.tenants.get_or_insert(id);
        tenant.tombstones(status).insert(key, id);
        self.update_tombstone_bytes(&tenant, status, 0, tombstone.bytes());
        Slot::Closed(Box::new(tombstone))
    }

    fn tombstone_retention(&self) -> Duration {
        Duration::from_secs(self.config.load().limits.tombstone_secs_max)
    }

    /// Takes a slot out of the totals and its queue.
    fn unregister_slot(&self, id: &SessionId, slot: &Slot) {
        let tenant = self.tenants.get_or_insert(id);
        match slot {
            Slot::Live(session) => {
                session.remove_trend_metrics(&self.state.metrics);
                self.update_live_sessions(&tenant, false);
                tenant.idle_queue(session).remove(session.deadline_key());
                self.update_state_bytes(&tenant, slot.bytes(), 0);
            }
            Slot::Closed(tombstone) => {
                tenant
                    .tombstones(slot.status())
                    .remove(tombstone.deadline_key());
                self.evict_post_mortem(&tenant, slot.generation());
                self.update_tombstone_bytes(&tenant, slot.status(), slot.bytes(), 0);
            }
        }
        self.state
            .metrics
            .adjust_session_counts(Some(slot.status()), None);
    }

    fn new_deadline_key(&self, deadline: SystemTime) -> DeadlineKey {
        DeadlineKey {
            deadline,
            generation: self.state.issuer.next_generation(),
        }
    }
}

#[cfg(test)]
mod tests;
