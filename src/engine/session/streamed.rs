//! Text that comes in pieces, and the turns that come of it.

use std::{sync::Arc, time::SystemTime};

use super::{
    Session, Shown,
    answer::{latched, recorded, stops_text, unheard},
};
use crate::{
    detect::Words,
    domain::{AgentId, Channel, Cost, Delta, Repeated, Seen, Sig, Verdict, text},
    engine::{
        Profile, Recorded, Refused, Shared, Want,
        draft::{Drafts, Piece},
    },
    facts::Facts,
    rules::Ruled,
    telemetry::EventKind,
    text::Key,
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
    key.draft(&delta.turn_id)
}

/// What came of a piece that made a text longer.
pub(in crate::engine) enum Longer {
    /// The session holds what it held.
    AsBefore,
    /// It holds more, or less.
    Grown,
    /// The agent's text was found to repeat itself.
    Repeats(usize, Repeated),
}

/// Takes a piece into an agent's texts: what is found newly to repeat itself.
fn push(
    drafts: &mut Drafts,
    delta: &Delta,
    profile: &Profile,
    shared: &Shared,
) -> Option<Repeated> {
    shared.metrics.delta(delta.text.len());
    #[cfg(test)]
    crate::engine::tests::strike_text(&delta.text);
    let piece = Piece {
        turn: draft_name(delta, shared.facts.key()),
        channel: delta.channel,
        text: &delta.text,
        kept_bytes_max: shared.facts.turn_bytes_kept(shared.rules.turn_bytes()),
    };
    drafts.push(&piece, profile.repeats(), shared.facts)
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

    /// Takes in a piece that is not the end of its text, of an agent and in a
    /// session that nothing is to be asked of; `None`: it is not like that.
    pub fn lengthen(&mut self, delta: &Delta, now: SystemTime, shared: &Shared) -> Option<Longer> {
        let asks = self.setup != shared.setup
            || self.story.is_spared
            || self.story.snoozed_until.is_some()
            || self.story.termination.is_some()
            || self.story.quarantine.is_some()
            || shared.check_bytes(Want::Delta).is_err();
        if asks {
            return None;
        }
        let mut agents = self.agents.iter_mut().enumerate();
        let (position, agent) = agents.find(|(_, agent)| agent.id == delta.agent)?;
        if agent.is_over() {
            return None;
        }
        self.last_seen = now;
        let held = agent.drafts.heap_bytes();
        let repeated = push(&mut agent.drafts, delta, &self.profile, shared);
        Some(match repeated {
            Some(repeated) => Longer::Repeats(position, repeated),
            None if agent.drafts.heap_bytes() == held => Longer::AsBefore,
            None => Longer::Grown,
        })
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
        let heard = std::mem::replace(&mut self.last_seen, now);
        self.wake(now, shared);
        self.adopt(shared);
        if let Some(verdict) = self.ended(&delta.agent) {
            return Ok(Some(latched(verdict)));
        }
        self.check_quarantine()?;
        self.admit(Want::Delta, heard, shared)?;
        let position = self.agent(&delta.agent, shared)?;
        let Some(agent) = self.agents.get_mut(position) else {
            return Ok(None);
        };
        let repeated = push(&mut agent.drafts, delta, &self.profile, shared);
        if !delta.end_of_turn {
            return Ok(repeated.and_then(|r| self.repeats(delta, position, r, now, shared)));
        }
        let key = shared.facts.key();
        let draft = draft_name(delta, key);
        let written = agent.drafts.finish(draft, shared.facts);
        let name = |kind| turn_name(kind, &delta.agent, &delta.turn_id, shared);
        let names = [name(STREAMED), name(WHOLE)];
        let mut known = names.iter().flatten();
        let known = known.find_map(|name| self.seen.index_of(*name));
        let Some((mut facts, beginning)) = written.filter(|_| known.is_none()) else {
            let verdict = repeated.and_then(|r| self.text(delta, position, r, now, shared));
            let answer = known.map_or_else(unheard, |index| self.repeated(index));
            return Ok(Some(Recorded {
                is_news: verdict.is_some(),
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

    /// A text that is being written repeats itself: the answer to its latest
    /// piece, by which it is stopped perhaps.
    pub fn repeats(
        &mut self,
        delta: &Delta,
        agent: usize,
        repeated: Repeated,
        now: SystemTime,
        shared: &Shared,
    ) -> Option<Recorded> {
        let verdict = self.text(delta, agent, repeated, now, shared)?;
        if stops_text(&verdict)
            && let Some(agent) = self.agents.get_mut(agent)
        {
            let draft = draft_name(delta, shared.facts.key());
            agent.drafts.restart(draft);
        }
        Some(Recorded {
            is_news: true,
            verdict: Some(verdict),
            ..unheard()
        })
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
