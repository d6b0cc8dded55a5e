mod carry_over;
mod deltas;
mod maintenance;
mod outcome;
mod timeline;
mod verdict_history;
mod verdicts;
mod view;

use std::{sync::Arc, time::SystemTime};

pub(super) use deltas::AppendOutcome;
use deltas::{WHOLE, turn_key};
use outcome::{new_event_outcome, stops_text, terminated_outcome};
use smallvec::SmallVec;
use verdict_history::LazyVerdictHistory;

use super::{
    EngineContext, MemoryUse, Profile, RecordError, RecordOutcome, agent::Agent,
    event_ids::RecentEventIds, expiry::DeadlineKey,
};
use crate::{
    detect::CallText,
    domain::{
        self, AgentId, Cost, DetectorId, Event, EventBody, Labels, Marker, MarkerKind, Role,
        SessionId, Sig, TextRepetition, ToolCall, Totals, TurnFacts, Verdict, Waste,
    },
    facts::{CallExtract, EventFacts, ProgressCounter},
    rules::RuleOutcomes,
    telemetry::EventKind,
};

/// A live session: the whole of its state.
pub(super) struct Session {
    profile: Arc<Profile>,
    /// The setup that the profile was last taken from.
    config_version: u64,
    labels: Arc<Labels>,
    labels_bytes: usize,
    deadline_key: DeadlineKey,
    created: SystemTime,
    /// When it was last heard of, by the engine's clock.
    last_seen: SystemTime,
    events: i32,
    turns: i32,
    cost: Cost,
    /// What it had used when the detectors last looked.
    last_checked_totals: Totals,
    progress: ProgressCounter,
    /// Most sessions have one.
    agents: SmallVec<[Agent; 1]>,
    event_ids: RecentEventIds,
    abstentions: Vec<(DetectorId, &'static str, u32)>,
    verdict_history: LazyVerdictHistory,
    accounted_bytes: usize,
}

/// How many verdicts a view shows.
const VIEW_VERDICTS_MAX: usize = 8;

/// An event that is to be shown to an agent's detectors.
struct ObservationContext<'a> {
    session: &'a SessionId,
    agent_position: usize,
    index: i32,
    /// The event's own time, else its arrival.
    time: SystemTime,
    now: SystemTime,
    round: Option<Sig>,
    cost: Cost,
    words: CallText<'a>,
    /// What to quote: the text of a turn, or the unit that it repeats.
    quote: &'a str,
    rule_results: RuleOutcomes<'a>,
    /// The character where a text begins to repeat itself.
    repetition_start: u64,
    /// A text is being written; there is no event yet.
    is_partial: bool,
}

impl<'a> ObservationContext<'a> {
    fn with_repetition(self, repeated: &'a TextRepetition) -> Self {
        Self {
            quote: &repeated.unit,
            repetition_start: repeated.start_char,
            ..self
        }
    }
}

impl Session {
    pub fn new(
        profile: Arc<Profile>,
        labels: Arc<Labels>,
        deadline_key: DeadlineKey,
        now: SystemTime,
    ) -> Self {
        Self {
            profile,
            config_version: 0,
            labels_bytes: domain::labels_bytes(&labels),
            labels,
            deadline_key,
            created: now,
            last_seen: now,
            events: 0,
            turns: 0,
            cost: Cost::default(),
            last_checked_totals: Totals::default(),
            progress: ProgressCounter::default(),
            agents: SmallVec::new(),
            event_ids: RecentEventIds::default(),
            abstentions: Vec::new(),
            verdict_history: LazyVerdictHistory::default(),
            accounted_bytes: 0,
        }
    }

    /// Takes another profile and other labels. A text that is being written was
    /// listened to in the old way, and begins anew.
    pub fn set_profile_and_labels(
        &mut self,
        profile: Arc<Profile>,
        labels: Arc<Labels>,
        ctx: &EngineContext,
    ) -> Result<(), RecordError> {
        let labels_bytes = domain::labels_bytes(&labels);
        if labels_bytes > self.labels_bytes {
            ctx.check_memory(MemoryUse::Event)?;
        }
        if self.profile.name != profile.name {
            self.agents
                .iter_mut()
                .for_each(|agent| agent.drafts.clear());
        }
        self.profile = profile;
        self.labels_bytes = labels_bytes;
        self.labels = labels;
        Ok(())
    }

    pub fn record(
        &mut self,
        event: &Event,
        facts: &mut EventFacts<'_>,
        rule_results: RuleOutcomes<'_>,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> Result<RecordOutcome, RecordError> {
        let previous_last_seen = std::mem::replace(&mut self.last_seen, now);
        self.expire_snooze(now, ctx);
        self.refresh_profile(ctx);
        if let Some(verdict) = self.find_termination(&event.agent) {
            self.verdict_history.avoidable += Waste::new(1, event.cost);
            return Ok(terminated_outcome(verdict));
        }
        self.check_quarantine()?;
        let key = ctx.facts.key();
        let name =
            (!event.event_id.is_empty()).then(|| key.id_signature("event", "", &event.event_id));
        if let Some(index) = name.and_then(|name| self.event_ids.index_of(name)) {
            return Ok(self.duplicate_outcome(index));
        }
        self.admit(MemoryUse::Event, previous_last_seen, ctx)?;
        let agent = self.find_or_add_agent(&event.agent, ctx)?;
        #[cfg(test)]
        super::tests::inject_event_panic(event);
        self.progress.record_state(facts.state());
        let turn = match &event.body {
            EventBody::Turn(turn) if turn.role == Role::Agent => turn.turn_id.as_str(),
            EventBody::Turn(_) | EventBody::Call(_) | EventBody::Marker(_) => "",
        };
        let names = [name, turn_key(WHOLE, &event.agent, turn, ctx)];
        if !turn.is_empty()
            && let Some(index) = self.streamed_turn_index(&event.agent, turn, ctx)
        {
            self.merge_streamed_turn(agent, index, event.cost, names, ctx);
            return Ok(self.duplicate_outcome(index));
        }
        let index = self.register_event(event.cost, names, ctx);
        let obs = ObservationContext {
            session: &event.session,
            agent_position: agent,
            index,
            time: event.time.unwrap_or(now),
            now,
            round: ctx.facts.round_signature(event),
            cost: event.cost,
            words: CallText::default(),
            quote: "",
            rule_results: rule_results,
            repetition_start: 0,
            is_partial: false,
        };
        let verdict = match &event.body {
            EventBody::Call(call) => {
                ctx.metrics.count_event(EventKind::ToolCall);
                self.record_call(event, call, facts, obs, ctx)
            }
            EventBody::Turn(turn) => {
                ctx.metrics.count_event(EventKind::Turn);
                self.record_turn(turn, facts, obs, ctx)
            }
            EventBody::Marker(marker) => {
                ctx.metrics.count_event(EventKind::Marker);
                self.record_marker(*marker, obs, ctx)
            }
        };
        if verdict.as_ref().is_some_and(stops_text)
            && let Some(agent) = self.agents.get_mut(agent)
        {
            agent.drafts.clear();
        }
        Ok(new_event_outcome(index, verdict))
    }

    /// Whether there is memory for it. A session that is refused is not heard of,
    /// and may have to make room.
    fn admit(
        &mut self,
        memory_use: MemoryUse,
        previous_last_seen: SystemTime,
        ctx: &EngineContext,
    ) -> Result<(), RecordError> {
        let checked = ctx.check_memory(memory_use);
        checked.inspect_err(|_| self.last_seen = previous_last_seen)
    }

    /// The answer to an event that was seen before.
    fn duplicate_outcome(&self, index: i32) -> RecordOutcome {
        let verdict = self.verdict_history.verdicts.iter().rev();
        let verdict = verdict.clone().find(|v| v.event_index == Some(index));
        RecordOutcome {
            index: Some(index),
            duplicate: true,
            verdict: verdict.cloned(),
            is_new_verdict: false,
        }
    }

    /// The position of an agent, which is new perhaps.
    fn find_or_add_agent(
        &mut self,
        id: &AgentId,
        ctx: &EngineContext,
    ) -> Result<usize, RecordError> {
        if let Some(position) = self.agents.iter().position(|agent| agent.id == *id) {
            return Ok(position);
        }
        ctx.check_memory(MemoryUse::SessionOrAgent)?;
        let agents_max = ctx.limits.agents_max;
        // The main agent has its place, whoever came before it.
        if self.agents.len() >= agents_max && !id.is_main() {
            return Err(RecordError::AgentsMax(agents_max));
        }
        self.agents.push(Agent::new(id.clone()));
        Ok(self.agents.len() - 1)
    }

    /// The verdict that ended the session or the agent, if any. It answers a
    /// duplicate too: once terminated, terminated in every answer.
    fn find_termination(&self, id: &AgentId) -> Option<Arc<Verdict>> {
        let agent_termination = || {
            let agent = self.agents.iter().find(|agent| agent.id == *id)?;
            agent.termination.clone()
        };
        self.verdict_history
            .termination
            .clone()
            .or_else(agent_termination)
    }

    /// Gives an event its number.
    fn register_event(&mut self, cost: Cost, names: [Option<Sig>; 2], ctx: &EngineContext) -> i32 {
        let index = self.events;
        self.events = self.events.saturating_add(1);
        self.cost += cost;
        for name in names.into_iter().flatten() {
            self.event_ids.insert(name, index, ctx.limits.event_ids_max);
        }
        index
    }

    fn record_call(
        &mut self,
        event: &Event,
        call: &ToolCall,
        facts: &mut EventFacts<'_>,
        obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        self.agents.get_mut(obs.agent_position)?.drafts.clear();
        if call.outcome != Some(domain::Outcome::Blocked) {
            self.progress.record_call();
        }
        // It is moved once, since it is large.
        let EventFacts::Call(CallExtract { facts, target }) = facts.take() else {
            return self.run_budget_and_rules(obs, ctx);
        };
        let rooms = domain::Capacities::default();
        self.progress.record_write(&facts, &rooms.paths);
        ctx.metrics.count_capacity_evictions(&rooms);
        let words = CallText {
            tool: &call.tool,
            target: &target,
            event_id: &event.event_id,
        };
        let obs = ObservationContext { words, ..obs };
        self.run_detectors(domain::ObservationBody::Call(facts), obs, ctx)
    }

    fn record_turn(
        &mut self,
        turn: &domain::Turn,
        facts: &mut EventFacts<'_>,
        obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        match (turn.role, facts.take()) {
            (Role::User, _) => {
                self.start_new_run();
                let agent = self.agents.get_mut(obs.agent_position)?;
                agent.history.push_user(obs.index, obs.time);
                self.run_budget_and_rules(obs, ctx)
            }
            (Role::Agent, EventFacts::Turn(facts, _)) => {
                let text = &turn.text;
                self.record_agent_turn(facts, ObservationContext { quote: text, ..obs }, ctx)
            }
            (Role::Agent | Role::System, _) => self.run_budget_and_rules(obs, ctx),
        }
    }

    fn record_agent_turn(
        &mut self,
        facts: TurnFacts,
        obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        self.turns = self.turns.saturating_add(1);
        let repeated = facts.repetition.clone();
        let obs = match &repeated {
            Some(repeated) => obs.with_repetition(repeated),
            None => obs,
        };
        self.run_detectors(domain::ObservationBody::Turn(facts), obs, ctx)
    }

    fn record_marker(
        &mut self,
        marker: Marker,
        obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        if marker.kind == MarkerKind::NewRun {
            self.start_new_run();
        }
        let seen = domain::ObservationBody::Marker {
            kind: marker.kind,
            context_tokens: marker.context_tokens,
        };
        self.run_detectors(seen, obs, ctx)
    }

    fn start_new_run(&mut self) {
        self.progress.start_new_work();
        self.agents.iter_mut().for_each(Agent::reset);
    }

    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    pub fn labels(&self) -> &Arc<Labels> {
        &self.labels
    }

    pub fn deadline_key(&self) -> DeadlineKey {
        self.deadline_key
    }

    pub fn set_deadline_key(&mut self, key: DeadlineKey) {
        self.deadline_key = key;
    }

    pub fn last_seen(&self) -> SystemTime {
        self.last_seen
    }
}
