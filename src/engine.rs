//! The engine keeps the state of every session in a DashMap of 256 shards. All
//! methods are synchronous: a shard is locked for microseconds, and nothing
//! waits while it is locked.
//!
//! This file is the API. `sessions` holds the map operations and the accounting,
//! `session` one live session, `closed` the tombstone, post-mortem and carry-over of
//! a closed one, `eviction` the rules by which memory is freed.
//!
//! Uses: domain, text, tools, facts, detect, policy, rules, telemetry.

mod agent;
mod batch;
mod breaker;
mod closed;
mod disobedience;
mod draft;
mod error;
mod event_ids;
mod eviction;
mod freeze;
mod handover;
mod issuer;
mod limits;
mod members;
mod operator_actions;
mod outcome;
mod profile;
mod query;
mod restore;
mod session;
mod sessions;
mod slot;
mod standing;
mod tenant;

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::SystemTime,
};

use arc_swap::ArcSwap;
use dashmap::DashMap;

pub use breaker::BreakerSettings;
pub use disobedience::LateInput;
pub use error::{EngineReloadError, OpenError, RecordError};
pub use freeze::{SessionFreezer, ThawOutcome};
pub use handover::{Replayer, SessionHandover, SharedSession};
pub use issuer::RunMode;
pub use limits::Limits;
pub use operator_actions::{OperatorRequest, SnoozeError, TerminationOutcome};
pub use outcome::RecordOutcome;
pub use profile::{Profile, Profiles};
pub use query::{FleetFilter, ListFilter, RankedSessions};
pub use session::ThawError;

use crate::{
    domain::{
        AgentId, CallCheck, Delta, Event, EventBody, Labels, RecoveredState, Role, SessionDetail,
        SessionId, SessionView, ToolCall, Verdict, VerdictSink,
    },
    facts::{EventFacts, FactExtractor},
    rules::{RuleOutcomes, Rules},
    telemetry::{Metrics, WorkPart},
    text::HashKey,
    tools::ToolRules,
};
use disobedience::DisobedienceLog;
use eviction::MemoryUse;
use issuer::VerdictIssuer;
use restore::RestoreLog;
use session::{AppendOutcome, Dependencies};
use sessions::{SHARDS, SessionMap};
use slot::Slot;
use tenant::{TenantState, Tenants};

/// Detects loops in all sessions.
pub struct Engine {
    sessions: SessionMap,
    config: ArcSwap<EngineConfig>,
    state: EngineState,
    tenants: Tenants,
}

/// The part of the engine that a reload does not replace, apart from the sessions.
struct EngineState {
    issuer: VerdictIssuer,
    metrics: Arc<Metrics>,
    live_sessions: AtomicUsize,
    /// Bytes of all live sessions, of the tombstones of ended sessions and of the
    /// post-mortems, by the engine's own accounting.
    state_bytes: AtomicUsize,
    disobedience: DisobedienceLog,
    restored: RestoreLog,
}

/// The part of the engine that a reload replaces, all at once.
struct EngineConfig {
    /// The number of reloads so far. A session with another version fetches its
    /// profile again.
    version: u64,
    profiles: Arc<Profiles>,
    facts: FactExtractor,
    rules: Arc<Rules>,
    limits: Limits,
    /// The settings that frozen sessions depend on.
    dependencies: Dependencies,
}

/// The parts of the engine that a session uses during one call.
struct EngineContext<'a> {
    config_version: u64,
    profiles: &'a Profiles,
    facts: &'a FactExtractor,
    rules: &'a Rules,
    limits: &'a Limits,
    issuer: &'a VerdictIssuer,
    metrics: &'a Metrics,
    live_sessions: &'a AtomicUsize,
    state_bytes: &'a AtomicUsize,
    /// The number of tenants that share the limits.
    tenant_count: usize,
    /// The tenant of the session.
    tenant: &'a TenantState,
    /// The events were answered before by another replica, so no verdict is acted on.
    is_replay: bool,
}

impl EngineConfig {
    fn new(key: HashKey, profiles: Profiles, tools: ToolRules, limits: Limits) -> Self {
        Self {
            version: 0,
            dependencies: freeze::dependencies(&profiles, &key),
            facts: FactExtractor::new(key, tools, profiles.analyzers().clone()),
            rules: profiles.rules().clone(),
            profiles: Arc::new(profiles),
            limits,
        }
    }
}

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
            RunMode::Resumed(seeds) => HashKey::from_seeds(seeds),
            // A replay terminates no real session, and must give the same output
            // for the same trace.
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
                disobedience: DisobedienceLog::default(),
                restored: RestoreLog::default(),
            },
            tenants: Tenants::default(),
        }
    }

    /// Replaces the profiles, the tool rules and the limits for all sessions. The
    /// state of the sessions stays, but texts in progress are discarded. The
    /// retention of tombstones does not change, because the store uses it too.
    pub fn reload(
        &self,
        profiles: Profiles,
        tools: ToolRules,
        limits: Limits,
    ) -> Result<(), EngineReloadError> {
        let current = self.config.load();
        let current_names = current.profiles.detector_names();
        if !current_names.eq(profiles.detector_names()) {
            return Err(EngineReloadError::RulesChanged);
        }
        if current.profiles.model_dirs() != profiles.model_dirs() {
            return Err(EngineReloadError::ModelChanged);
        }
        let limits = Limits {
            tombstone_secs_max: current.limits.tombstone_secs_max,
            ..limits
        };
        let (sessions_max, state_bytes_max) = (limits.sessions_max, limits.state_bytes_max);
        self.state.metrics.set_limits(sessions_max, state_bytes_max);
        let key = current.facts.key().clone();
        self.config.store(Arc::new(EngineConfig {
            version: current.version + 1,
            ..EngineConfig::new(key, profiles, tools, limits)
        }));
        Ok(())
    }

    /// Freezes and thaws sessions.
    pub fn freezer(&self) -> SessionFreezer<'_> {
        SessionFreezer::new(self)
    }

    /// Takes sessions over from other replicas.
    pub fn handover(&self) -> SessionHandover<'_> {
        SessionHandover::new(self)
    }

    /// Restores the terminations and snoozes that were in force when the previous
    /// process stopped. `now` decides what has expired; it is behind `started_at` while the
    /// clock is not trusted.
    pub fn restore(&self, recovered: RecoveredState, now: SystemTime, started_at: SystemTime) {
        restore::restore(self, recovered, now, started_at);
    }

    /// Sets the number of tenants that share the limits.
    pub fn set_tenant_count(&self, tenants: usize) {
        self.tenants.set_count(tenants);
    }

    /// Records an event. `now` is the time of its arrival.
    pub fn record(&self, event: &Event, now: SystemTime) -> Result<RecordOutcome, RecordError> {
        let (config, tenant) = (
            self.config.load(),
            self.tenants.get_or_insert(&event.session),
        );
        let ctx = self.context(&config, &tenant);
        self.make_room_for(MemoryUse::Event, now, &ctx);
        // The expensive part runs without a lock. Large values are written in
        // place, because the closures pass through several calls.
        let (facts, rule_results) = (&mut EventFacts::Other(None), &mut RuleOutcomes::default());
        self.prepare_catching_panic(&event.session, now, || {
            let profile = self.profile_for_turn(event, &config.profiles);
            let repeats = profile.as_deref().and_then(Profile::repeat_settings);
            *facts = ctx.facts.extract(event, repeats);
            *rule_results = ctx.rules.evaluate(event, facts, ctx.facts.key());
        })?;
        if matches!(facts, EventFacts::Turn(turn, _) if turn.is_work_limited) {
            ctx.metrics.count_work_limited(WorkPart::Repetition);
        }
        self.with_slot(&event.session, &tenant, now, |slot| match slot {
            Slot::Closed(tombstone) => Ok(tombstone.reject_event(&event.session, event.cost)),
            Slot::Live(session) => {
                let state_lost = session.take_state_lost();
                let results = std::mem::take(rule_results);
                let outcome = session.record(event, facts, results, now, &ctx)?;
                Ok(RecordOutcome {
                    state_lost,
                    ..outcome
                })
            }
        })
    }

    /// The profile for an agent's turn; `None`: the event is not an agent's turn.
    fn profile_for_turn(&self, event: &Event, profiles: &Profiles) -> Option<Arc<Profile>> {
        let EventBody::Turn(turn) = &event.body else {
            return None;
        };
        if turn.role != Role::Agent {
            return None;
        }
        let slot = self.sessions.get(&event.session);
        let profile = slot.and_then(|slot| profiles.get(&slot.profile()?.name));
        Some(profile.unwrap_or_else(|| profiles.default().clone()))
    }

    /// Records a piece of a text. `None`: there is nothing to answer.
    pub fn record_delta(
        &self,
        delta: &Delta,
        now: SystemTime,
    ) -> Result<Option<RecordOutcome>, RecordError> {
        let (config, tenant) = (
            self.config.load(),
            self.tenants.get_or_insert(&delta.session),
        );
        let ctx = self.context(&config, &tenant);
        self.make_room_for(MemoryUse::Delta, now, &ctx);
        if let Some(outcome) = self.append_delta(delta, now, &ctx) {
            return outcome;
        }
        let vector =
            self.prepare_catching_panic(&delta.session, now, || self.embed_turn(delta, ctx.facts))?;
        self.with_slot(&delta.session, &tenant, now, |slot| match slot {
            Slot::Closed(tombstone) => Ok(Some(tombstone.terminated_outcome(&delta.session))),
            Slot::Live(session) => {
                let outcome = session.record_delta(delta, vector, now, &ctx)?;
                Ok(match outcome {
                    Some(outcome) if delta.end_of_turn => Some(RecordOutcome {
                        state_lost: session.take_state_lost(),
                        ..session.add_standing(outcome, &delta.agent)
                    }),
                    other => other,
                })
            }
        })
    }

    /// The fast path of a delta, which nearly all of them take: the delta only
    /// extends a text, so the session's totals are updated only if its size
    /// changed. `None`: the delta needs the full path, and nothing was done.
    fn append_delta(
        &self,
        delta: &Delta,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> Option<Result<Option<RecordOutcome>, RecordError>> {
        if delta.end_of_turn {
            return None;
        }
        let mut slot = self.sessions.get_mut(&delta.session)?;
        let Slot::Live(session) = &mut *slot else {
            return None;
        };
        let append = AssertUnwindSafe(|| session.append_delta(delta, now, ctx));
        let appended = match panic::catch_unwind(append) {
            Ok(outcome) => Ok(outcome?),
            Err(panic) => Err(panic),
        };
        if matches!(appended, Ok(AppendOutcome::SameSize)) {
            return Some(Ok(None));
        }
        Some(
            self.with_accounting(&delta.session, ctx.tenant, &mut slot, now, |slot| {
                match (appended, slot) {
                    (Ok(AppendOutcome::Repeats(agent, found)), Slot::Live(session)) => {
                        Ok(session.record_repetitions(delta, agent, found, now, ctx))
                    }
                    (Ok(_), _) => Ok(None),
                    // `with_accounting` catches it and quarantines the session.
                    (Err(panic), _) => panic::resume_unwind(panic),
                }
            }),
        )
    }

    /// Runs the embedding model, if there is one, on the text that this delta
    /// ends. The text is copied so that no lock is held meanwhile.
    fn embed_turn(&self, delta: &Delta, facts: &FactExtractor) -> Box<[f32]> {
        if !delta.end_of_turn || facts.analyzers().model.is_none() {
            return Box::default();
        }
        let slot = self.sessions.get(&delta.session);
        let draft_text = slot.map(|slot| slot.draft_text(delta, facts.key()));
        facts.embed(&draft_text.unwrap_or_else(|| delta.text.clone()))
    }

    /// Sets a session's profile and labels. Creates the session if it is new.
    pub fn open_session(
        &self,
        id: &SessionId,
        profile: &str,
        labels: Labels,
        now: SystemTime,
    ) -> Result<SessionView, OpenError> {
        let config = self.config.load();
        let Some(profile) = config.profiles.get(profile) else {
            return Err(OpenError::NoProfile(config.profiles.join_names()));
        };
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

    /// The number of live sessions.
    pub fn live_sessions(&self) -> usize {
        self.state.live_sessions.load(Relaxed)
    }

    /// Whether the detectors of any tenant warn instead of terminating, because
    /// they would terminate too many sessions.
    pub fn is_any_breaker_open(&self) -> bool {
        let tenants = self.tenants.all();
        tenants.iter().any(|tenant| tenant.breaker.is_open())
    }

    /// Bytes of state: sessions, tombstones of ended sessions and post-mortems.
    pub fn state_bytes(&self) -> usize {
        self.state.state_bytes.load(Relaxed)
    }

    /// Bytes of terminations.
    pub fn tombstone_bytes(&self) -> usize {
        let tenants = self.tenants.all();
        tenants.iter().map(|tenant| tenant.tombstone_bytes()).sum()
    }

    /// The current profiles.
    pub fn profiles(&self) -> Arc<Profiles> {
        self.config.load().profiles.clone()
    }

    /// Whether a call would be refused. Changes nothing.
    pub fn check_call(&self, id: &SessionId, agent: &AgentId, call: &ToolCall) -> CallCheck {
        let planned = self.config.load().facts.planned_call(call);
        let checked = self.sessions.view(id, |id, slot| match slot {
            Slot::Closed(tombstone) => tombstone.check_call(id),
            Slot::Live(session) => session.check_call(agent, planned),
        });
        checked.unwrap_or_default()
    }

    /// A session with its latest events and an explanation of its detectors.
    pub fn detail(&self, id: &SessionId) -> Option<SessionDetail> {
        let (view, timeline, generation) = self.sessions.view(id, |id, slot| {
            (slot.view(id), slot.timeline(), slot.generation())
        })?;
        let mut detail = SessionDetail {
            view,
            timeline,
            explanations: Vec::new(),
        };
        let tenant = self.tenants.get_or_insert(id);
        if let Some(post_mortem) = tenant.post_mortems.get(generation) {
            post_mortem.attach_to(&mut detail);
        }
        let termination = detail.view.termination.as_deref();
        detail.view.disobeyed = self.state.disobedience.total(id, termination);
        let profile = self
            .config
            .load()
            .profiles
            .get_or_default(&detail.view.profile);
        detail.explanations = query::explanations(&profile, &detail.view);
        Some(detail)
    }

    /// The verdicts that terminated the session or agents of it.
    pub fn terminations_of(&self, id: &SessionId) -> Vec<Arc<Verdict>> {
        let terminations = self.sessions.view(id, |id, slot| slot.terminations(id));
        terminations.unwrap_or_default()
    }

    /// One page of sessions in the order of their ids: at most `limit` with ids
    /// greater than `after`. The second value is the last id of the page, if there
    /// are more sessions.
    pub fn list_sessions(
        &self,
        filter: &ListFilter,
        after: Option<&str>,
        limit: usize,
    ) -> (Vec<SessionView>, Option<SessionId>) {
        let (ids, last) = query::list_ids(&self.sessions, filter, after, limit);
        (ids.iter().filter_map(|id| self.get(id)).collect(), last)
    }

    /// At most `limit` sessions, the most severe first, after the first `skip`.
    pub fn rank_sessions(&self, filter: &FleetFilter, skip: usize, limit: usize) -> RankedSessions {
        let (ids, counts) = query::rank_ids(self, filter, skip, limit);
        RankedSessions {
            sessions: ids.iter().filter_map(|id| self.get(id)).collect(),
            counts,
        }
    }

    fn context<'a>(
        &'a self,
        config: &'a EngineConfig,
        tenant: &'a TenantState,
    ) -> EngineContext<'a> {
        EngineContext {
            config_version: config.version,
            profiles: &config.profiles,
            facts: &config.facts,
            rules: &config.rules,
            limits: &config.limits,
            issuer: &self.state.issuer,
            metrics: &self.state.metrics,
            live_sessions: &self.state.live_sessions,
            state_bytes: &self.state.state_bytes,
            tenant_count: self.tenants.count(),
            tenant,
            is_replay: false,
        }
    }
}

#[cfg(test)]
mod tests;
