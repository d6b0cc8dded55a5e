//! Recording events and deltas. An event and a delta are classified in the same
//! way; a delta that only extends a text takes a fast path.

use std::{sync::Arc, time::SystemTime};

use uuid::Uuid;

use super::{
    Session,
    deltas::{AppendOutcome, FoundRepetition, STREAMED, WHOLE, draft_key, push_delta, turn_key},
    refusals::record_refusal,
    verdicts::{ObservationContext, stops_text, stronger_verdict},
};
use crate::{
    detect::CallText,
    domain::{
        AgentId, Capacities, Cost, Delta, Event, EventBody, Marker, MarkerKind, ObservationBody,
        Outcome, Role, Sig, TextRepetition, ToolCall, Turn, TurnFacts, Verdict, Waste,
    },
    engine::{EngineContext, RecordError, RecordOutcome, agent::Agent, eviction::MemoryUse},
    facts::{CallExtract, EventFacts},
    rules::RuleOutcomes,
    telemetry::EventKind,
};

/// How a session treats an input of one of its agents.
enum InputClass<'a> {
    /// The session or the agent is terminated by this verdict, and every answer
    /// says so, also that to a duplicate.
    Terminated(&'a Arc<Verdict>),
    /// The session panicked before.
    Quarantined(Uuid),
    /// The input is recorded for the agent at this position.
    KnownAgent(usize),
    /// The input is recorded if there is room for another agent.
    NewAgent,
}

impl Session {
    /// Classifies an input of an agent. The session must not be stale.
    fn classify(&self, id: &AgentId) -> InputClass<'_> {
        let history = &*self.verdict_history;
        let mut agents = self.agents.iter().enumerate();
        let known = agents.find(|(_, agent)| agent.id == *id);
        let agent_termination = known.and_then(|(_, agent)| agent.termination.as_ref());
        if let Some(verdict) = history.termination.as_ref().or(agent_termination) {
            InputClass::Terminated(verdict)
        } else if let Some(reference) = history.quarantine {
            InputClass::Quarantined(reference)
        } else if let Some((position, _)) = known {
            InputClass::KnownAgent(position)
        } else {
            InputClass::NewAgent
        }
    }

    pub fn record(
        &mut self,
        event: &Event,
        facts: &mut EventFacts,
        rule_results: RuleOutcomes<'_>,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> Result<RecordOutcome, RecordError> {
        // Classify the event.
        let previous_last_seen = std::mem::replace(&mut self.last_seen, now);
        self.refresh(now, ctx);
        let event_key = (!event.event_id.is_empty())
            .then(|| ctx.facts.key().id_signature("event", "", &event.event_id));
        let known_index = event_key.and_then(|key| self.event_ids.index_of(key));
        let known_agent = match self.classify(&event.agent) {
            InputClass::Terminated(verdict) => {
                let outcome = RecordOutcome::terminated(Some(verdict.clone()));
                // An event that is sent again was counted the first time.
                if known_index.is_some() {
                    return Ok(outcome.sent_again());
                }
                self.verdict_history.avoidable += Waste::new(1, event.cost);
                return Ok(outcome);
            }
            InputClass::Quarantined(reference) => return Err(RecordError::Quarantined(reference)),
            InputClass::KnownAgent(position) => Some(position),
            InputClass::NewAgent => None,
        };
        // Answer a duplicate, also if memory is full.
        if let Some(index) = known_index {
            let outcome = self.duplicate_outcome(index);
            return Ok(outcome.with_standing(known_agent.and_then(|agent| self.standing(agent))));
        }
        // Check the limits and find the agent.
        self.check_memory(MemoryUse::Event, previous_last_seen, ctx)?;
        let agent = self.agent_position(known_agent, &event.agent, ctx)?;
        #[cfg(test)]
        crate::engine::tests::inject_event_panic(event);
        self.progress.record_state(facts.state());
        // A turn whose text was streamed before is already counted.
        let turn_id = match &event.body {
            EventBody::Turn(turn) if turn.role == Role::Agent => turn.turn_id.as_str(),
            EventBody::Turn(_) | EventBody::Call(_) | EventBody::Marker(_) => "",
        };
        let keys = [event_key, turn_key(WHOLE, &event.agent, turn_id, ctx)];
        let streamed = turn_key(STREAMED, &event.agent, turn_id, ctx);
        if let Some(index) = streamed.and_then(|key| self.event_ids.index_of(key)) {
            self.merge_streamed_turn(agent, index, event.cost, keys, ctx);
            let standing = self.standing(agent);
            return Ok(self.duplicate_outcome(index).with_standing(standing));
        }
        // Count the event and run the detectors.
        let index = self.register_event(event.cost, keys, ctx);
        let round = |agent: &mut Agent| agent.round_of(event, index, ctx.facts);
        let obs = ObservationContext {
            time: event.time.unwrap_or(now),
            round: self.agents.get_mut(agent).and_then(round),
            cost: event.cost,
            rule_results,
            ..ObservationContext::new(&event.session, agent, index, now)
        };
        let verdict = self.record_body(event, facts, obs, ctx);
        if verdict.as_ref().is_some_and(stops_text)
            && let Some(agent) = self.agents.get_mut(agent)
        {
            agent.drafts.clear();
        }
        let standing = self.update_standing(agent);
        Ok(RecordOutcome::new_event(index, verdict).with_standing(standing))
    }

    fn record_body(
        &mut self,
        event: &Event,
        facts: &mut EventFacts,
        obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        match &event.body {
            EventBody::Call(call) => self.record_call(event, call, facts, obs, ctx),
            EventBody::Turn(turn) => {
                ctx.metrics.count_event(EventKind::Turn);
                self.record_turn(turn, facts, obs, ctx)
            }
            EventBody::Marker(marker) => {
                ctx.metrics.count_event(EventKind::Marker);
                self.record_marker(*marker, obs, ctx)
            }
        }
    }

    /// Checks that there is memory. A rejected input does not count as activity,
    /// so that the session can still expire.
    fn check_memory(
        &mut self,
        memory_use: MemoryUse,
        previous_last_seen: SystemTime,
        ctx: &EngineContext,
    ) -> Result<(), RecordError> {
        let checked = ctx.check_memory(memory_use);
        checked.inspect_err(|_| self.last_seen = previous_last_seen)
    }

    /// The answer to an event that was recorded before.
    fn duplicate_outcome(&self, index: i32) -> RecordOutcome {
        let mut latest_first = self.verdict_history.verdicts.iter().rev();
        let verdict = latest_first.find(|verdict| verdict.event_index == Some(index));
        RecordOutcome::duplicate(index, verdict.cloned())
    }

    /// The position of an agent, which is added if it is new.
    fn agent_position(
        &mut self,
        known: Option<usize>,
        id: &AgentId,
        ctx: &EngineContext,
    ) -> Result<usize, RecordError> {
        if let Some(position) = known {
            return Ok(position);
        }
        ctx.check_memory(MemoryUse::SessionOrAgent)?;
        let agents_max = ctx.limits.agents_max;
        // The main agent is added even above the limit.
        if self.agents.len() >= agents_max && !id.is_main() {
            return Err(RecordError::AgentsMax(agents_max));
        }
        self.agents.push(Agent::new(id.clone()));
        Ok(self.agents.len() - 1)
    }

    /// Counts an event and returns its index.
    fn register_event(&mut self, cost: Cost, keys: [Option<Sig>; 2], ctx: &EngineContext) -> i32 {
        let index = self.events;
        self.events = self.events.saturating_add(1);
        self.cost += cost;
        self.insert_event_keys(keys, index, ctx);
        index
    }

    fn insert_event_keys(&mut self, keys: [Option<Sig>; 2], index: i32, ctx: &EngineContext) {
        for key in keys.into_iter().flatten() {
            self.event_ids.insert(key, index, ctx.limits.event_ids_max);
        }
    }

    /// A turn whose text was streamed counts once. Its event adds the cost, which
    /// deltas do not have, the first time it arrives.
    fn merge_streamed_turn(
        &mut self,
        agent: usize,
        index: i32,
        cost: Cost,
        keys: [Option<Sig>; 2],
        ctx: &EngineContext,
    ) {
        let [_, whole] = keys;
        if whole.is_none_or(|whole| self.event_ids.index_of(whole).is_none()) {
            self.cost += cost;
            if let Some(agent) = self.agents.get_mut(agent) {
                agent.add_cost(cost);
            }
        }
        self.insert_event_keys(keys, index, ctx);
    }

    fn record_call(
        &mut self,
        event: &Event,
        call: &ToolCall,
        facts: &mut EventFacts,
        obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        // Count it. A call ends the turn whose text was streamed.
        self.agents.get_mut(obs.agent_position)?.drafts.clear();
        if call.outcome == Some(Outcome::Blocked) {
            ctx.metrics.count_event(EventKind::RefusedCall);
        } else {
            ctx.metrics.count_event(EventKind::ToolCall);
            self.progress.record_call();
        }
        let words = CallText {
            tool: &call.tool,
            event_id: &event.event_id,
            args: call.args.as_text(),
            ..CallText::default()
        };
        // Take the facts, which are large, once. No detector observes a refused call.
        let (mut facts, target) = match facts.take() {
            EventFacts::Call(CallExtract { facts, target }) => (facts, target),
            EventFacts::Refused(refused) => {
                self.learn_call_key(obs.agent_position, refused.call, &words);
                let obs = ObservationContext { words, ..obs };
                return record_refusal(self, refused, obs, ctx);
            }
            EventFacts::Turn(..) | EventFacts::Other(_) => {
                return self.run_budget_and_rules(obs, ctx);
            }
        };
        let capacities = Capacities::default();
        self.progress.record_write(&facts, &capacities.paths);
        self.progress.record_figures(&mut facts);
        ctx.metrics.count_capacity_evictions(&capacities);
        // Run the detectors.
        let agent = self.agents.get_mut(obs.agent_position)?;
        agent.locate_call(&mut facts);
        let target = &*target;
        let obs = ObservationContext {
            words: CallText { target, ..words },
            call: facts.call,
            directory: facts.directory,
            ..obs
        };
        self.learn_call_key(obs.agent_position, obs.call, &obs.words);
        self.run_detectors(ObservationBody::Call(facts), obs, ctx)
    }

    fn record_turn(
        &mut self,
        turn: &Turn,
        facts: &mut EventFacts,
        obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        match (turn.role, facts.take()) {
            (Role::User, _) => {
                self.start_new_run(Agent::reset_for_user);
                let agent = self.agents.get_mut(obs.agent_position)?;
                agent.history.push_user(obs.index, obs.time);
                self.run_budget_and_rules(obs, ctx)
            }
            (Role::Agent, EventFacts::Turn(facts, _)) => {
                let quote = turn.text.as_str();
                self.record_agent_turn(facts, ObservationContext { quote, ..obs }, ctx)
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
        let repetition = facts.repetition.clone();
        let turn_obs = match &repetition {
            Some(repeated) => obs.with_repetition(repeated),
            None => obs,
        };
        self.run_detectors(ObservationBody::Turn(facts), turn_obs, ctx)
    }

    fn record_marker(
        &mut self,
        marker: Marker,
        obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        if marker.kind == MarkerKind::NewRun {
            self.start_new_run(Agent::reset);
        }
        let body = ObservationBody::Marker {
            kind: marker.kind,
            context_tokens: marker.context_tokens,
        };
        self.run_detectors(body, obs, ctx)
    }

    /// Starts new work in all agents, each reset in this way.
    fn start_new_run(&mut self, reset: fn(&mut Agent)) {
        self.progress.start_new_work();
        self.state_lost_answers = 0;
        self.agents.iter_mut().for_each(reset);
    }

    /// The fast path of a delta that does not end its turn: the session is up to date, the
    /// agent is known, and there is memory. `None`: it needs the full path; nothing was done.
    pub fn append_delta(
        &mut self,
        delta: &Delta,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> Option<AppendOutcome> {
        if self.is_stale(now, ctx) || ctx.check_memory(MemoryUse::Delta).is_err() {
            return None;
        }
        let InputClass::KnownAgent(position) = self.classify(&delta.agent) else {
            return None;
        };
        let agent = self.agents.get_mut(position)?;
        self.last_seen = now;
        let bytes_before = agent.drafts.heap_bytes();
        let found = push_delta(&mut agent.drafts, delta, 0, &self.profile, ctx);
        Some(match found {
            Some(found) => AppendOutcome::Repeats(position, found),
            None if agent.drafts.heap_bytes() == bytes_before => AppendOutcome::SameSize,
            None => AppendOutcome::SizeChanged,
        })
    }

    /// Records a delta. The end of a turn is an event; `vector` is the turn's embedding.
    pub fn record_delta(
        &mut self,
        delta: &Delta,
        vector: Box<[f32]>,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> Result<Option<RecordOutcome>, RecordError> {
        // Classify the delta, check the limits and find the agent.
        let previous_last_seen = std::mem::replace(&mut self.last_seen, now);
        self.refresh(now, ctx);
        let known_agent = match self.classify(&delta.agent) {
            InputClass::Terminated(verdict) => {
                return Ok(Some(RecordOutcome::terminated(Some(verdict.clone()))));
            }
            InputClass::Quarantined(reference) => return Err(RecordError::Quarantined(reference)),
            InputClass::KnownAgent(position) => Some(position),
            InputClass::NewAgent => None,
        };
        self.check_memory(MemoryUse::Delta, previous_last_seen, ctx)?;
        let position = self.agent_position(known_agent, &delta.agent, ctx)?;
        let Some(agent) = self.agents.get_mut(position) else {
            return Ok(None);
        };
        // Append the text, and report what repeats in it.
        let found = push_delta(&mut agent.drafts, delta, 0, &self.profile, ctx);
        if !delta.end_of_turn {
            return Ok(
                found.and_then(|found| self.record_repetitions(delta, position, found, now, ctx))
            );
        }
        let (verdict, at_end) = self.check_repetitions(delta, position, found, now, ctx);
        if self.is_terminated(position) {
            return Ok(Some(RecordOutcome::not_counted(verdict)));
        }
        // End the turn. It counts unless it was counted before or had no text.
        let key = ctx.facts.key();
        let finished = self
            .agents
            .get_mut(position)
            .and_then(|agent| agent.drafts.finish(draft_key(delta, key), ctx.facts));
        let [streamed, whole] =
            [STREAMED, WHOLE].map(|prefix| turn_key(prefix, &delta.agent, &delta.turn_id, ctx));
        let mut turn_keys = [streamed, whole].into_iter().flatten();
        let known_index = turn_keys.find_map(|key| self.event_ids.index_of(key));
        let Some((mut facts, prefix)) = finished.filter(|_| known_index.is_none()) else {
            let verdict_at_end =
                at_end.and_then(|r| self.check_repetition(delta, position, r, now, ctx));
            let outcome = match known_index {
                Some(index) => self.duplicate_outcome(index),
                None => RecordOutcome::not_counted(None),
            };
            let strongest = stronger_verdict(verdict, verdict_at_end);
            return Ok(Some(outcome.with_new_verdict(strongest)));
        };
        // Count the turn and run the detectors.
        facts.repetition = at_end;
        facts.sketch.vector = vector;
        ctx.metrics.count_event(EventKind::Turn);
        let index = self.register_event(Cost::default(), [streamed, None], ctx);
        let obs = ObservationContext {
            quote: &prefix,
            rule_results: ctx.rules.evaluate_turn(&delta.agent, &prefix, key),
            ..ObservationContext::new(&delta.session, position, index, now)
        };
        let verdict_of_turn = self.record_agent_turn(facts, obs, ctx);
        let strongest = stronger_verdict(verdict, verdict_of_turn);
        Ok(Some(RecordOutcome::new_event(index, strongest)))
    }

    /// Runs the detectors on the repetitions of a text in progress, from the first in
    /// this delta on. The answer has the strongest verdict, the latest of equals.
    pub fn record_repetitions(
        &mut self,
        delta: &Delta,
        agent: usize,
        first: FoundRepetition,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> Option<RecordOutcome> {
        let (verdict, _) = self.check_repetitions(delta, agent, Some(first), now, ctx);
        verdict.map(|verdict| RecordOutcome::not_counted(Some(verdict)))
    }

    /// Runs the detectors on each repetition of a delta at the character where it is
    /// complete, as if the delta ended there, and then reads on. A verdict may stop the
    /// text, which then starts again at that character. Returns the strongest verdict, and
    /// a repetition on the last character of a turn, which belongs to the turn.
    fn check_repetitions(
        &mut self,
        delta: &Delta,
        position: usize,
        first: Option<FoundRepetition>,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> (Option<Arc<Verdict>>, Option<TextRepetition>) {
        let (mut strongest, mut next) = (None, first);
        while let Some(FoundRepetition { repetition, end }) = next {
            if delta.end_of_turn && end == delta.text.len() {
                return (strongest, Some(repetition));
            }
            let verdict = self.check_repetition(delta, position, repetition, now, ctx);
            let is_stopped = verdict.as_ref().is_some_and(stops_text);
            strongest = stronger_verdict(strongest, verdict);
            if self.is_terminated(position) {
                break;
            }
            let Some(agent) = self.agents.get_mut(position) else {
                break;
            };
            if is_stopped {
                agent.drafts.restart(draft_key(delta, ctx.facts.key()));
            }
            next = push_delta(&mut agent.drafts, delta, end, &self.profile, ctx);
        }
        (strongest, None)
    }

    /// Whether the session or the agent at this position is terminated.
    fn is_terminated(&self, position: usize) -> bool {
        let agent = self.agents.get(position);
        self.verdict_history.termination.is_some() || agent.is_some_and(Agent::is_terminated)
    }

    fn check_repetition(
        &mut self,
        delta: &Delta,
        agent: usize,
        repeated: TextRepetition,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        let quoted = repeated.clone();
        let obs = ObservationContext {
            is_partial: true,
            ..ObservationContext::new(&delta.session, agent, self.events, now)
        };
        self.run_detectors(
            ObservationBody::PartialText(repeated),
            obs.with_repetition(&quoted),
            ctx,
        )
    }
}
