//! Text that comes in pieces, and the turns that come of it.

use std::{sync::Arc, time::SystemTime};

use super::{
    Session, Shown,
    answer::{latched, recorded, stops_text, unheard},
};
use crate::{
    detect::Words,
    domain::{AgentId, Channel, Cost, Delta, Repeated, Seen, Sig, Verdict, text},
    engine::{Recorded, Refused, Shared, Want, draft::Piece},
    facts::{Facts, Key, Ruled},
    telemetry::EventKind,
};

/// A turn's text came in deltas, or in one piece.
const STREAMED: &str = "streamed";
pub(super) const WHOLE: &str = "whole";

/// The name of a turn; `None`: it has none.
#[inline]
pub(super) fn turn_name(
    kind: &str,
    agent: &AgentId,
    turn_id: &str,
    shared: &Shared,
) -> Option<Sig> {
    let key = shared.facts.key();
    (!turn_id.is_empty()).then(|| key.name(kind, agent.as_str(), turn_id))
}

fn draft_name(delta: &Delta, key: &Key) -> Sig {
    key.name("draft", "", &delta.turn_id)
}

impl Session {
    /// The beginning of the text that this piece is the end of.
    pub fn written(&self, delta: &Delta, key: &Key) -> String {
        let agent = self.agents.iter().find(|agent| agent.id == delta.agent);
        let beginning = agent.map_or("", |agent| agent.drafts.beginning(draft_name(delta, key)));
        let piece = match delta.channel {
            Channel::Visible => text::prefix(&delta.text, Facts::EMBEDDED_BYTES_MAX),
            Channel::Reasoning => "",
        };
        format!("{beginning}{piece}")
    }

    /// Takes a piece of text in; the end of a turn counts as one, and `vector` is
    /// what a model makes of it.
    pub fn delta(
        &mut self,
        delta: &Delta,
        vector: Box<[f32]>,
        now: SystemTime,
        shared: &Shared,
    ) -> Result<Option<Recorded>, Refused> {
        self.last_seen = now;
        self.wake(now, shared);
        self.adopt(shared);
        if let Some(verdict) = self.ended(&delta.agent) {
            return Ok(Some(latched(verdict)));
        }
        self.check_quarantine()?;
        shared.check_bytes(Want::Delta)?;
        let position = self.agent(&delta.agent, shared)?;
        let key = shared.facts.key();
        let draft = draft_name(delta, key);
        let Some(agent) = self.agents.get_mut(position) else {
            return Ok(None);
        };
        shared.metrics.delta(delta.text.len());
        let piece = Piece {
            turn: draft,
            channel: delta.channel,
            text: &delta.text,
            kept_bytes_max: shared.facts.kept_of_a_turn(shared.rules),
        };
        let repeats = self.profile.repeats();
        let repeated = agent.drafts.push(&piece, repeats, shared.facts);
        if !delta.end_of_turn {
            let verdict = repeated.and_then(|r| self.text(delta, position, r, now, shared));
            if verdict.as_ref().is_some_and(stops_text)
                && let Some(agent) = self.agents.get_mut(position)
            {
                agent.drafts.restart(draft);
            }
            return Ok(verdict.map(latched));
        }
        let written = agent.drafts.finish(draft, shared.facts);
        let name = |kind| turn_name(kind, &delta.agent, &delta.turn_id, shared);
        let names = [name(STREAMED), name(WHOLE)];
        let mut known = names.iter().flatten();
        let known = known.find_map(|name| self.seen.index_of(*name));
        let Some((mut facts, beginning)) = written.filter(|_| known.is_none()) else {
            let verdict = repeated.and_then(|r| self.text(delta, position, r, now, shared));
            let answer = known.map_or_else(unheard, |index| self.repeated(index));
            return Ok(Some(Recorded {
                verdict: verdict.or(answer.verdict),
                ..answer
            }));
        };
        facts.repeated = repeated;
        facts.sketch.vector = vector;
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
            rules: shared.rules.look_at_turn(&delta.agent, &beginning, key),
            began: 0,
            unfinished: false,
        };
        let verdict = self.agent_turn(facts, shown, shared);
        Ok(Some(recorded(index, verdict)))
    }

    /// A text that is being written has repeated itself.
    fn text(
        &mut self,
        delta: &Delta,
        agent: usize,
        repeated: Repeated,
        now: SystemTime,
        shared: &Shared,
    ) -> Option<Arc<Verdict>> {
        let quoted = repeated.clone();
        let shown = Shown {
            session: &delta.session,
            agent,
            index: self.events,
            time: now,
            now,
            round: None,
            cost: Cost::default(),
            words: Words::default(),
            text: "",
            rules: Ruled::default(),
            began: 0,
            unfinished: true,
        };
        self.show(Seen::Text(repeated), shown.quoting(&quoted), shared)
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
