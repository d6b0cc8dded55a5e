//! Text that comes in pieces, and the turns that come of it.

use std::time::SystemTime;

use super::{Session, Shown, latched, recorded, unheard};
use crate::{
    detect::Words,
    domain::{AgentId, Channel, Cost, Delta, Sig},
    engine::{Recorded, Refused, Shared},
    telemetry::EventKind,
};

/// A turn's text came in deltas, or in one piece.
const STREAMED: &str = "streamed";
pub(super) const WHOLE: &str = "whole";

/// The name of a turn; `None`: it has none.
pub(super) fn turn_name(
    kind: &str,
    agent: &AgentId,
    turn_id: &str,
    shared: &Shared,
) -> Option<Sig> {
    let key = shared.facts.key();
    (!turn_id.is_empty()).then(|| key.name(kind, agent.as_str(), turn_id))
}

impl Session {
    /// Takes a piece of text in; the end of a turn counts as one.
    pub fn delta(
        &mut self,
        delta: &Delta,
        now: SystemTime,
        shared: &Shared,
    ) -> Result<Option<Recorded>, Refused> {
        self.last_seen = now;
        self.wake(now);
        if let Some(verdict) = self.ended(&delta.agent) {
            return Ok(Some(latched(verdict)));
        }
        let position = self.agent(&delta.agent, shared)?;
        let key = shared.facts.key();
        let draft = key.name("draft", "", &delta.turn_id);
        let Some(agent) = self.agents.get_mut(position) else {
            return Ok(None);
        };
        shared.metrics.delta(delta.text.len());
        if delta.channel == Channel::Visible {
            agent.drafts.push(draft, &delta.text, key);
        }
        if !delta.end_of_turn {
            return Ok(None);
        }
        // Reasoning that ends is no turn, unless a text was written beside it.
        if delta.channel == Channel::Reasoning && !agent.drafts.holds(draft) {
            return Ok(Some(unheard()));
        }
        let (facts, beginning) = agent.drafts.finish(draft, key);
        let name = |kind| turn_name(kind, &delta.agent, &delta.turn_id, shared);
        let names = [name(STREAMED), name(WHOLE)];
        let mut known = names.iter().flatten();
        if let Some(index) = known.find_map(|name| self.seen.index_of(*name)) {
            return Ok(Some(self.repeated(index)));
        }
        shared.metrics.event(EventKind::Turn);
        let index = self.accept(Cost::default(), [name(STREAMED), None], shared);
        let shown = Shown {
            session: &delta.session,
            agent: position,
            index,
            time: now,
            now,
            round: None,
            cost: Cost::default(),
            words: Words::default(),
            text: &beginning,
        };
        let verdict = self.agent_turn(facts, shown, shared);
        Ok(Some(recorded(index, verdict)))
    }

    /// The number of a turn whose text was streamed before.
    pub(super) fn streamed(&self, agent: &AgentId, turn_id: &str, shared: &Shared) -> Option<i32> {
        let name = turn_name(STREAMED, agent, turn_id, shared)?;
        self.seen.index_of(name)
    }

    /// A turn whose text was streamed counts once; what comes with it for the
    /// first time is its cost, which deltas do not carry.
    pub(super) fn complete(
        &mut self,
        agent: usize,
        index: i32,
        cost: Cost,
        names: [Option<Sig>; 2],
        shared: &Shared,
    ) {
        let [_, whole] = names;
        if whole.is_none_or(|whole| self.seen.index_of(whole).is_none()) {
            self.cost += cost;
            if let Some(agent) = self.agents.get_mut(agent) {
                agent.spend(cost);
            }
        }
        for name in names.into_iter().flatten() {
            self.seen.remember(name, index, shared.limits.event_ids_max);
        }
    }
}
