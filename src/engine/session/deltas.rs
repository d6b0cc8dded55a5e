//! Text that comes in pieces, and the turns that come of it.

use std::{sync::Arc, time::SystemTime};

use super::{
    ObservationContext, Session,
    outcome::{new_event_outcome, no_event_outcome, stops_text, terminated_outcome},
};
use crate::{
    detect::CallText,
    domain::{
        AgentId, Channel, Cost, Delta, ObservationBody, Sig, TextRepetition, Verdict, sanitize,
    },
    engine::{
        EngineContext, MemoryUse, Profile, RecordError, RecordOutcome,
        draft::{DraftChunk, Drafts},
    },
    facts::FactExtractor,
    rules::RuleOutcomes,
    telemetry::EventKind,
    text::HashKey,
};

/// A turn's text came in deltas, or in one piece.
const STREAMED: &str = "streamed";
pub(super) const WHOLE: &str = "whole";

/// The name of a turn; `None`: it has none.
#[inline]
pub(super) fn turn_key(
    kind: &str,
    agent: &AgentId,
    turn_id: &str,
    ctx: &EngineContext,
) -> Option<Sig> {
    let key = ctx.facts.key();
    (!turn_id.is_empty()).then(|| key.id_signature(kind, agent.as_str(), turn_id))
}

fn draft_key(delta: &Delta, key: &HashKey) -> Sig {
    key.draft_signature(&delta.turn_id)
}

/// What came of a piece that made a text longer.
pub(in crate::engine) enum AppendOutcome {
    /// The session holds what it held.
    SameSize,
    /// It holds more, or less.
    SizeChanged,
    /// The agent's text was found to repeat itself.
    Repeats(usize, TextRepetition),
}

/// Takes a piece into an agent's texts: what is found newly to repeat itself.
fn push_delta(
    drafts: &mut Drafts,
    delta: &Delta,
    profile: &Profile,
    ctx: &EngineContext,
) -> Option<TextRepetition> {
    ctx.metrics.count_delta_bytes(delta.text.len());
    #[cfg(test)]
    crate::engine::tests::inject_text_panic(&delta.text);
    let chunk = DraftChunk {
        turn_key: draft_key(delta, ctx.facts.key()),
        channel: delta.channel,
        text: &delta.text,
        prefix_bytes_max: ctx.facts.turn_bytes_kept(ctx.rules.turn_bytes()),
    };
    drafts.push(&chunk, profile.repeat_settings(), ctx.facts)
}

impl Session {
    /// The beginning of the text that this piece is the end of.
    pub fn draft_text(&self, delta: &Delta, key: &HashKey) -> String {
        let agent = self.agents.iter().find(|agent| agent.id == delta.agent);
        let beginning = agent.map_or("", |agent| agent.drafts.prefix(draft_key(delta, key)));
        let chunk = match delta.channel {
            Channel::Visible => sanitize::prefix(&delta.text, FactExtractor::EMBEDDED_BYTES_MAX),
            Channel::Reasoning => "",
        };
        format!("{beginning}{chunk}")
    }

    /// Takes in a piece that is not the end of its text, of an agent and in a
    /// session that nothing is to be asked of; `None`: it is not like that.
    pub fn append_delta(
        &mut self,
        delta: &Delta,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> Option<AppendOutcome> {
        let needs_full_path = self.config_version != ctx.config_version
            || self.verdict_history.is_termination_withheld
            || self.verdict_history.snoozed_until.is_some()
            || self.verdict_history.termination.is_some()
            || self.verdict_history.quarantine.is_some()
            || ctx.check_memory(MemoryUse::Delta).is_err();
        if needs_full_path {
            return None;
        }
        let mut agents = self.agents.iter_mut().enumerate();
        let (position, agent) = agents.find(|(_, agent)| agent.id == delta.agent)?;
        if agent.is_terminated() {
            return None;
        }
        self.last_seen = now;
        let bytes_before = agent.drafts.heap_bytes();
        let repeated = push_delta(&mut agent.drafts, delta, &self.profile, ctx);
        Some(match repeated {
            Some(repeated) => AppendOutcome::Repeats(position, repeated),
            None if agent.drafts.heap_bytes() == bytes_before => AppendOutcome::SameSize,
            None => AppendOutcome::SizeChanged,
        })
    }

    /// Takes a piece of text in; the end of a turn counts as one, and `vector` is
    /// what a model makes of it.
    pub fn record_delta(
        &mut self,
        delta: &Delta,
        vector: Box<[f32]>,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> Result<Option<RecordOutcome>, RecordError> {
        let previous_last_seen = std::mem::replace(&mut self.last_seen, now);
        self.expire_snooze(now, ctx);
        self.refresh_profile(ctx);
        if let Some(verdict) = self.find_termination(&delta.agent) {
            return Ok(Some(terminated_outcome(verdict)));
        }
        self.check_quarantine()?;
        self.admit(MemoryUse::Delta, previous_last_seen, ctx)?;
        let position = self.find_or_add_agent(&delta.agent, ctx)?;
        let Some(agent) = self.agents.get_mut(position) else {
            return Ok(None);
        };
        let repeated = push_delta(&mut agent.drafts, delta, &self.profile, ctx);
        if !delta.end_of_turn {
            return Ok(repeated.and_then(|r| self.record_repetition(delta, position, r, now, ctx)));
        }
        let key = ctx.facts.key();
        let draft = draft_key(delta, key);
        let finished = agent.drafts.finish(draft, ctx.facts);
        let key_for = |kind| turn_key(kind, &delta.agent, &delta.turn_id, ctx);
        let turn_keys = [key_for(STREAMED), key_for(WHOLE)];
        let mut known_keys = turn_keys.iter().flatten();
        let known_index = known_keys.find_map(|name| self.event_ids.index_of(*name));
        let Some((mut facts, prefix)) = finished.filter(|_| known_index.is_none()) else {
            let verdict =
                repeated.and_then(|r| self.check_repetition(delta, position, r, now, ctx));
            let answer =
                known_index.map_or_else(no_event_outcome, |index| self.duplicate_outcome(index));
            return Ok(Some(RecordOutcome {
                is_new_verdict: verdict.is_some(),
                verdict: verdict.or(answer.verdict),
                ..answer
            }));
        };
        facts.repetition = repeated;
        facts.sketch.vector = vector;
        ctx.metrics.count_event(EventKind::Turn);
        let index = self.register_event(Cost::default(), [key_for(STREAMED), None], ctx);
        let obs = ObservationContext {
            session: &delta.session,
            agent_position: position,
            index,
            time: now,
            now,
            round: None,
            cost: Cost::default(),
            words: CallText::default(),
            quote: &prefix,
            rule_results: ctx.rules.evaluate_turn(&delta.agent, &prefix, key),
            repetition_start: 0,
            is_partial: false,
        };
        let verdict = self.record_agent_turn(facts, obs, ctx);
        Ok(Some(new_event_outcome(index, verdict)))
    }

    /// A text that is being written repeats itself: the answer to its latest
    /// piece, by which it is stopped perhaps.
    pub fn record_repetition(
        &mut self,
        delta: &Delta,
        agent: usize,
        repeated: TextRepetition,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> Option<RecordOutcome> {
        let verdict = self.check_repetition(delta, agent, repeated, now, ctx)?;
        if stops_text(&verdict)
            && let Some(agent) = self.agents.get_mut(agent)
        {
            let draft = draft_key(delta, ctx.facts.key());
            agent.drafts.restart(draft);
        }
        Some(RecordOutcome {
            is_new_verdict: true,
            verdict: Some(verdict),
            ..no_event_outcome()
        })
    }

    /// A text that is being written has repeated itself.
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
            session: &delta.session,
            agent_position: agent,
            index: self.events,
            time: now,
            now,
            round: None,
            cost: Cost::default(),
            words: CallText::default(),
            quote: "",
            rule_results: RuleOutcomes::default(),
            repetition_start: 0,
            is_partial: true,
        };
        self.run_detectors(
            ObservationBody::PartialText(repeated),
            obs.with_repetition(&quoted),
            ctx,
        )
    }

    /// The number of a turn whose text was streamed before.
    pub(super) fn streamed_turn_index(
        &self,
        agent: &AgentId,
        turn_id: &str,
        ctx: &EngineContext,
    ) -> Option<i32> {
        let name = turn_key(STREAMED, agent, turn_id, ctx)?;
        self.event_ids.index_of(name)
    }

    /// A turn whose text was streamed counts once; what comes with it for the
    /// first time is its cost, which deltas do not carry.
    pub(super) fn merge_streamed_turn(
        &mut self,
        agent: usize,
        index: i32,
        cost: Cost,
        names: [Option<Sig>; 2],
        ctx: &EngineContext,
    ) {
        let [_, whole] = names;
        if whole.is_none_or(|whole| self.event_ids.index_of(whole).is_none()) {
            self.cost += cost;
            if let Some(agent) = self.agents.get_mut(agent) {
                agent.add_cost(cost);
            }
        }
        for name in names.into_iter().flatten() {
            self.event_ids.insert(name, index, ctx.limits.event_ids_max);
        }
    }
}
