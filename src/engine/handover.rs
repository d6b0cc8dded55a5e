//! Sessions that another replica has had: putting its state in the place of ours, looking at
//! it without taking it, and adopting what was decided there.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use dashmap::Entry;

use super::{
    Engine, EngineContext, Profile, RecordError, RunMode, SessionFreezer,
    closed::{CarryOver, termination_record},
    freeze::register,
    issuer::VerdictIssuer,
    query,
    restore::update_carry_over,
    session::{Session, frozen},
    slot::Slot,
};
use crate::{
    domain::{
        AgentId, CallCheck, Effect, Event, EventBody, FrozenSession, Role, SessionDetail,
        SessionId, SessionStatus, SessionView, ToolCall, Verdict, VerdictId, VerdictRecord,
    },
    telemetry::Metrics,
};

/// A session as it was saved: its state, and the events since.
#[derive(Clone, Debug, Default)]
pub struct SharedSession {
    /// `None`: it has begun, and nothing else.
    pub frozen: Option<FrozenSession>,
    /// In order, with the times of their arrival.
    pub events: Vec<(Event, SystemTime)>,
}

/// Replays events that were answered before. Verdicts go nowhere, and nothing is counted
/// twice.
pub struct Replayer {
    issuer: VerdictIssuer,
    metrics: Metrics,
    verdicts: Arc<AtomicU64>,
}

impl Replayer {
    /// The metrics are never shown.
    pub fn new(metrics: Metrics) -> Self {
        let verdicts = Arc::<AtomicU64>::default();
        let count = verdicts.clone();
        let sink = Box::new(move |_| {
            count.fetch_add(1, Relaxed);
        });
        Self {
            issuer: VerdictIssuer::new(RunMode::Replay, sink),
            metrics,
            verdicts,
        }
    }

    /// The verdicts that replays have given although the events had none, as with another
    /// configuration.
    pub fn verdicts(&self) -> u64 {
        self.verdicts.load(Relaxed)
    }
}

/// What a session of another replica needs of the engine.
#[derive(Clone, Copy)]
pub struct SessionHandover<'a> {
    engine: &'a Engine,
}

impl<'a> SessionHandover<'a> {
    pub(super) fn new(engine: &'a Engine) -> Self {
        Self { engine }
    }

    /// All verdicts issued from now on have greater ids.
    pub fn continue_after(&self, id: VerdictId) {
        self.engine.state.issuer.continue_after(id);
    }

    /// Whether the session has a tombstone because it was terminated.
    pub fn is_terminated(&self, id: &SessionId) -> bool {
        let status = self.engine.sessions.view(id, |_, slot| slot.status());
        status == Some(SessionStatus::Terminated)
    }

    /// Applies a termination, reset or snooze of another replica. Returns whether it was
    /// news: the newest stands.
    pub fn adopt(&self, record: &VerdictRecord, now: SystemTime) -> bool {
        let verdict = &record.verdict;
        self.continue_after(verdict.id);
        match record.effect {
            Effect::Terminated if verdict.agent.is_main() => self.adopt_termination(record, now),
            Effect::Terminated => self.adopt_agent_termination(verdict, now),
            Effect::Reset => {
                self.engine.apply_reset(&verdict.session, verdict, now);
                true
            }
            Effect::Snoozed(until) => {
                self.engine.apply_snooze(&verdict.session, until);
                if !self.engine.contains(&verdict.session) && until > now {
                    update_carry_over(self.engine, &verdict.session, |carry_over| {
                        carry_over.snoozed_until = Some(until);
                    });
                }
                true
            }
            Effect::None | Effect::Disobeyed | Effect::Rated { .. } => false,
        }
    }

    fn adopt_termination(&self, record: &VerdictRecord, now: SystemTime) -> bool {
        let verdict = &record.verdict;
        let id = &verdict.session;
        let entry = self.engine.sessions.entry(id.clone());
        let mut view = match &entry {
            Entry::Occupied(occupied) => occupied.get().view(id),
            Entry::Vacant(_) => SessionView {
                labels: record.labels.clone(),
                ..SessionView::unknown(id, &record.profile, now)
            },
        };
        if view.termination.is_some_and(|known| known.id >= verdict.id) {
            return false;
        }
        view.termination = Some(verdict.clone());
        view.status = SessionStatus::Terminated;
        let slot = match &entry {
            Entry::Occupied(occupied) => Some(occupied.get()),
            Entry::Vacant(_) => None,
        };
        let tombstone = self
            .engine
            .close(&self.engine.tenants.get_or_insert(id), slot, view, now);
        entry.insert(tombstone);
        true
    }

    fn adopt_agent_termination(&self, verdict: &Arc<Verdict>, now: SystemTime) -> bool {
        let id = &verdict.session;
        let is_older = |known: &Arc<Verdict>| known.agent == verdict.agent && known.id < verdict.id;
        let carry_over = CarryOver {
            agent_terminations: vec![verdict.clone()],
            snoozed_until: None,
        };
        let tenant = self.engine.tenants.get_or_insert(id);
        let Some(mut slot) = self
            .engine
            .sessions
            .get_mut(id)
            .filter(|slot| !slot.is_closed())
        else {
            let mut is_new = false;
            update_carry_over(self.engine, id, |known| {
                let terminations = &mut known.agent_terminations;
                terminations.retain(|known| !is_older(known));
                is_new = terminations.iter().all(|it| it.agent != verdict.agent);
                terminations.extend(is_new.then(|| verdict.clone()));
            });
            return is_new;
        };
        let known = slot.terminations(id);
        let of_agent = known.iter().find(|known| known.agent == verdict.agent);
        if of_agent.is_some_and(|known| !is_older(known)) {
            return false;
        }
        let adopted = self
            .engine
            .with_accounting(id, &tenant, &mut slot, now, |slot| {
                if let Slot::Live(session) = slot {
                    session.apply_carry_over(carry_over);
                }
                Ok::<_, RecordError>(())
            });
        adopted.is_ok()
    }

    /// Forgets what a reset of another replica has lifted, for a session that begins here.
    pub fn lift_carried_over(&self, id: &SessionId, reset: VerdictId) {
        let carry_overs = &self.engine.tenants.get_or_insert(id).carry_overs;
        if carry_overs.contains(id) {
            let left = carry_overs.take(id).after_reset(reset);
            self.engine.save_carry_over(id, left);
        }
    }

    /// The sessions with a termination in force, of their own or of a sub-agent.
    pub fn sessions_with_terminations(&self) -> Vec<SessionId> {
        let sessions = self.engine.sessions.iter();
        let terminated = sessions.filter(|slot| match slot.value() {
            Slot::Live(session) => !session.terminations().is_empty(),
            Slot::Closed(_) => slot.status() == SessionStatus::Terminated,
        });
        let mut ids: Vec<_> = terminated.map(|slot| slot.key().clone()).collect();
        for tenant in self.engine.tenants.all() {
            let carried = tenant.carry_overs.agent_terminations();
            ids.extend(carried.iter().map(|verdict| verdict.session.clone()));
        }
        ids
    }

    /// The terminations in force of a session and its sub-agents, as they were issued.
    pub fn termination_records_of(&self, id: &SessionId) -> Vec<VerdictRecord> {
        let found = self.engine.sessions.view(id, |_, slot| match slot {
            Slot::Live(session) => {
                let (labels, profile) = (session.labels(), &session.profile().name);
                let terminations = session.terminations().into_iter();
                let records = terminations.map(|it| termination_record(it, labels, profile));
                records.collect()
            }
            Slot::Closed(tombstone) => tombstone.decoded_termination().into_iter().collect(),
        });
        let mut records: Vec<VerdictRecord> = found.unwrap_or_default();
        let (labels, profile) = (Arc::default(), self.engine.default_profile());
        let carried = self.engine.tenants.get_or_insert(id).carry_overs.get(id);
        let terminations = carried.agent_terminations.into_iter();
        records.extend(terminations.map(|it| termination_record(it, &labels, &profile)));
        records
    }

    /// Whether a call would be refused in a session that another replica has.
    pub fn check_call_of(
        &self,
        id: &SessionId,
        shared: &SharedSession,
        (agent, call): (&AgentId, &ToolCall),
        replayer: &Replayer,
        now: SystemTime,
    ) -> CallCheck {
        let planned = self.engine.config.load().facts.planned_call(call);
        let session = self.build_detached(id, shared, replayer, now);
        session.map_or_else(CallCheck::default, |(session, _)| {
            session.check_call(agent, planned)
        })
    }

    /// A session that another replica has, with its latest events and explanations.
    pub fn detail_of(
        &self,
        id: &SessionId,
        shared: &SharedSession,
        replayer: &Replayer,
        now: SystemTime,
    ) -> Option<SessionDetail> {
        let (session, _) = self.build_detached(id, shared, replayer, now)?;
        let view = session.view(id);
        Some(SessionDetail {
            timeline: session.timeline(),
            explanations: query::explanations(session.profile(), &view),
            view,
        })
    }

    /// Builds a session that is not in the map. The second value is the number of events
    /// that could be replayed. `None`: it panicked.
    fn build_detached(
        &self,
        id: &SessionId,
        shared: &SharedSession,
        replayer: &Replayer,
        now: SystemTime,
    ) -> Option<(Session, usize)> {
        let (config, tenant) = (
            self.engine.config.load(),
            self.engine.tenants.get_or_insert(id),
        );
        let ctx = EngineContext {
            issuer: &replayer.issuer,
            metrics: &replayer.metrics,
            is_replay: true,
            ..self.engine.context(&config, &tenant)
        };
        let key = self.engine.new_deadline_key(now + self.engine.idle_max());
        let build = || {
            let mut session = match &shared.frozen {
                Some(state) => match frozen::thaw(state, key, config.dependencies, &ctx) {
                    Ok((session, _)) => session,
                    Err(_) => frozen::without_state(state, key, &ctx),
                },
                None => {
                    let profile = config.profiles.default().clone();
                    Session::new(profile, Arc::default(), key, now)
                }
            };
            let before = replayer.verdicts();
            let mut events = shared.events.iter();
            let failed = events.position(|(event, at)| replay(&mut session, event, *at, &ctx));
            if replayer.verdicts() != before {
                session.clear_unenforced_terminations();
            }
            (session, failed.unwrap_or(shared.events.len()))
        };
        panic::catch_unwind(AssertUnwindSafe(build)).ok()
    }
}

/// Records an event again. Returns whether that failed.
fn replay(session: &mut Session, event: &Event, at: SystemTime, ctx: &EngineContext) -> bool {
    let is_agent_turn = matches!(&event.body, EventBody::Turn(turn) if turn.role == Role::Agent);
    let profile = session.profile().clone();
    let repeats = is_agent_turn.then(|| Profile::repeat_settings(&profile));
    let mut facts = ctx.facts.extract(event, repeats.flatten());
    let results = ctx.rules.evaluate(event, &facts, ctx.facts.key());
    session.record(event, &mut facts, results, at, ctx).is_err()
}

impl SessionFreezer<'_> {
    /// Puts the saved state of a session in the place of ours. Returns how many events it
    /// has and whether all were replayed. `None`: there is no room, the state cannot be used,
    /// or the session is terminated here.
    pub fn replace(
        &self,
        id: &SessionId,
        shared: &SharedSession,
        replayer: &Replayer,
        now: SystemTime,
    ) -> Option<(i32, bool)> {
        let engine = self.engine();
        let (session, replayed) = engine
            .handover()
            .build_detached(id, shared, replayer, now)?;
        self.release(id);
        let tenant = engine.tenants.get_or_insert(id);
        engine.reserve_session(&tenant, now).ok()?;
        let events = session.events();
        let config = engine.config.load();
        let ctx = engine.context(&config, &tenant);
        match engine.sessions.entry(id.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(register(engine, id, session, &ctx));
            }
            Entry::Occupied(occupied) if occupied.get().status() == SessionStatus::Terminated => {
                engine.state.remove_live_session(&tenant);
                return None;
            }
            // It had ended, or another call has begun it meanwhile.
            Entry::Occupied(mut occupied) => {
                engine.unregister_slot(&tenant, occupied.get());
                occupied.insert(register(engine, id, session, &ctx));
            }
        }
        Some((events, replayed == shared.events.len()))
    }
}
