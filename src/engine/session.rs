mod judged;
mod view;

use std::{collections::VecDeque, sync::Arc, time::SystemTime};

use super::{Profile, Recorded, Refused, Shared, agent::Agent, seen::Seen};
use crate::{
    detect::Words,
    domain::{
        self, AgentId, Body, Channel, Cost, Delta, DetectorId, Event, Labels, Level, Marker,
        MarkerKind, Role, SessionId, Sig, ToolCall, TurnFacts, Verdict, Waste,
    },
    facts::Progress,
    telemetry::EventKind,
};

/// A live session: the whole of its state.
pub(super) struct Session {
    profile: Arc<Profile>,
    labels: Arc<Labels>,
    labels_bytes: usize,
    generation: u64,
    created: SystemTime,
    /// When it was last heard of, by the engine's clock.
    last_seen: SystemTime,
    events: i32,
    turns: i32,
    cost: Cost,
    progress: Progress,
    agents: Vec<Agent>,
    seen: Seen,
    /// Its verdicts, oldest first: the last few, and all that a duplicate may
    /// ask for.
    verdicts: VecDeque<Arc<Verdict>>,
    verdicts_bytes: usize,
    wasted: Waste,
    avoidable: Waste,
    abstentions: Vec<(DetectorId, &'static str, u32)>,
    /// By rank: the level its trend stands at in the metrics.
    levels: Vec<Option<Level>>,
    termination: Option<Arc<Verdict>>,
    accounted_bytes: usize,
}

/// How many verdicts a view shows.
const VERDICTS_SHOWN: usize = 8;

/// An event that is to be shown to an agent's detectors.
struct Shown<'a> {
    session: &'a SessionId,
    agent: usize,
    index: i32,
    /// The event's own time, else its arrival.
    time: SystemTime,
    now: SystemTime,
    round: Option<Sig>,
    cost: Cost,
    words: Words<'a>,
    /// The text of a turn.
    text: &'a str,
}

impl Session {
    pub fn new(
        profile: Arc<Profile>,
        labels: Arc<Labels>,
        generation: u64,
        now: SystemTime,
    ) -> Self {
        Self {
            profile,
            labels_bytes: bytes_of(&labels),
            labels,
            generation,
            created: now,
            last_seen: now,
            events: 0,
            turns: 0,
            cost: Cost::default(),
            progress: Progress::default(),
            agents: Vec::new(),
            seen: Seen::default(),
            verdicts: VecDeque::new(),
            verdicts_bytes: 0,
            wasted: Waste::default(),
            avoidable: Waste::default(),
            abstentions: Vec::new(),
            levels: Vec::new(),
            termination: None,
            accounted_bytes: 0,
        }
    }

    pub fn open(&mut self, profile: Arc<Profile>, labels: Arc<Labels>) {
        self.profile = profile;
        self.labels_bytes = bytes_of(&labels);
        self.labels = labels;
    }

    pub fn record(
        &mut self,
        event: &Event,
        now: SystemTime,
        shared: &Shared,
    ) -> Result<Recorded, Refused> {
        self.last_seen = now;
        let key = shared.facts.key();
        let event_name =
            (!event.event_id.is_empty()).then(|| key.name("event", "", &event.event_id));
        let turn_name = match &event.body {
            Body::Turn(turn) => self.turn_name(&event.agent, &turn.turn_id, shared),
            Body::Call(_) | Body::Marker(_) => None,
        };
        let names = [event_name, turn_name];
        if let Some(verdict) = self.ended(&event.agent) {
            self.avoidable += Waste::of(1, event.cost);
            return Ok(latched(verdict));
        }
        if let Some(index) = names
            .iter()
            .flatten()
            .find_map(|id| self.seen.index_of(*id))
        {
            return Ok(self.repeated(index));
        }
        let agent = self.agent(&event.agent, shared)?;
        let index = self.accept(event.cost, names, shared);
        let shown = Shown {
            session: &event.session,
            agent,
            index,
            time: event.time.unwrap_or(now),
            now,
            round: shared.facts.round(event),
            cost: event.cost,
            words: Words::default(),
            text: "",
        };
        let verdict = match &event.body {
            Body::Call(call) => {
                shared.metrics.event(EventKind::ToolCall);
                self.call(event, call, shown, shared)
            }
            Body::Turn(turn) => {
                shared.metrics.event(EventKind::Turn);
                self.turn(turn, shown, shared)
            }
            Body::Marker(marker) => {
                shared.metrics.event(EventKind::Marker);
                self.marker(*marker, shown, shared)
            }
        };
        Ok(recorded(index, verdict))
    }

    /// Takes a piece of text in; the end of a turn counts as one.
    pub fn delta(
        &mut self,
        delta: &Delta,
        now: SystemTime,
        shared: &Shared,
    ) -> Result<Option<Recorded>, Refused> {
        self.last_seen = now;
        if let Some(verdict) = self.ended(&delta.agent) {
            return Ok(Some(latched(verdict)));
        }
        let position = self.agent(&delta.agent, shared)?;
        let draft = shared.facts.key().name("draft", "", &delta.turn_id);
        let Some(agent) = self.agents.get_mut(position) else {
            return Ok(None);
        };
        shared.metrics.delta(delta.text.len());
        if delta.channel == Channel::Visible {
            agent.drafts.push(draft, &delta.text, shared.facts.key());
        }
        if !delta.end_of_turn {
            return Ok(None);
        }
        // Reasoning that ends is no turn, unless a text was written beside it.
        if delta.channel == Channel::Reasoning && !agent.drafts.holds(draft) {
            return Ok(Some(unheard()));
        }
        let (facts, beginning) = agent.drafts.finish(draft);
        let name = self.turn_name(&delta.agent, &delta.turn_id, shared);
        if let Some(index) = name.and_then(|name| self.seen.index_of(name)) {
            return Ok(Some(self.repeated(index)));
        }
        shared.metrics.event(EventKind::Turn);
        let index = self.accept(Cost::default(), [name, None], shared);
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

    /// The name under which a turn counts once, whether streamed or sent whole.
    fn turn_name(&self, agent: &AgentId, turn_id: &str, shared: &Shared) -> Option<Sig> {
        let key = shared.facts.key();
        (!turn_id.is_empty()).then(|| key.name("turn", agent.as_str(), turn_id))
    }

    /// The answer to an event that was seen before.
    fn repeated(&self, index: i32) -> Recorded {
        let verdict = self.verdicts.iter().rev();
        let verdict = verdict.clone().find(|v| v.event_index == Some(index));
        Recorded {
            index: Some(index),
            duplicate: true,
            verdict: verdict.cloned(),
        }
    }

    /// The position of an agent, which is new perhaps.
    fn agent(&mut self, id: &AgentId, shared: &Shared) -> Result<usize, Refused> {
        if let Some(position) = self.agents.iter().position(|agent| agent.id == *id) {
            return Ok(position);
        }
        let agents_max = shared.limits.agents_max;
        if self.agents.len() >= agents_max {
            return Err(Refused::Agents(agents_max));
        }
        self.agents.push(Agent::new(id.clone(), &self.profile));
        Ok(self.agents.len() - 1)
    }

    /// The verdict that ended the session or the agent, if any. It answers a
    /// duplicate too: once terminated, terminated in every answer.
    fn ended(&self, id: &AgentId) -> Option<Arc<Verdict>> {
        let of_agent = || {
            let agent = self.agents.iter().find(|agent| agent.id == *id)?;
            agent.terminated.clone()
        };
        self.termination.clone().or_else(of_agent)
    }

    /// Gives an event its number.
    fn accept(&mut self, cost: Cost, names: [Option<Sig>; 2], shared: &Shared) -> i32 {
        let index = self.events;
        self.events = self.events.saturating_add(1);
        self.cost += cost;
        for name in names.into_iter().flatten() {
            self.seen.remember(name, index, shared.limits.event_ids_max);
        }
        index
    }

    fn call(
        &mut self,
        event: &Event,
        call: &ToolCall,
        shown: Shown<'_>,
        shared: &Shared,
    ) -> Option<Arc<Verdict>> {
        self.agents.get_mut(shown.agent)?.drafts.clear();
        if call.outcome == Some(domain::Outcome::Blocked) {
            return None;
        }
        let made = shared.facts.call(event, call)?;
        self.progress.note(&made.facts);
        let words = Words {
            tool: &call.tool,
            target: &made.target,
            event_id: &event.event_id,
        };
        let shown = Shown { words, ..shown };
        self.show(domain::Seen::Call(made.facts), &shown, shared)
    }

    fn turn(
        &mut self,
        turn: &domain::Turn,
        shown: Shown<'_>,
        shared: &Shared,
    ) -> Option<Arc<Verdict>> {
        match turn.role {
            Role::System => None,
            Role::User => {
                self.start_anew();
                None
            }
            Role::Agent => {
                let facts = shared.facts.turn(&turn.text);
                let text = &turn.text;
                self.agent_turn(facts, Shown { text, ..shown }, shared)
            }
        }
    }

    fn agent_turn(
        &mut self,
        facts: TurnFacts,
        shown: Shown<'_>,
        shared: &Shared,
    ) -> Option<Arc<Verdict>> {
        self.turns = self.turns.saturating_add(1);
        self.show(domain::Seen::Turn(facts), &shown, shared)
    }

    fn marker(
        &mut self,
        marker: Marker,
        shown: Shown<'_>,
        shared: &Shared,
    ) -> Option<Arc<Verdict>> {
        if marker.kind == MarkerKind::NewRun {
            self.start_anew();
        }
        let seen = domain::Seen::Marker {
            kind: marker.kind,
            context_tokens: marker.context_tokens,
        };
        self.show(seen, &shown, shared)
    }

    fn start_anew(&mut self) {
        self.progress.advance();
        self.agents.iter_mut().for_each(Agent::reset);
    }

    /// What it was last said to hold in bytes, and what it holds now.
    pub fn account(&mut self) -> (usize, usize) {
        let agents: usize = self.agents.iter().map(Agent::heap_bytes).sum();
        let bytes = size_of::<Self>()
            + agents
            + self.agents.capacity() * size_of::<Agent>()
            + self.progress.heap_bytes()
            + self.seen.heap_bytes()
            + self.verdicts_bytes
            + self.labels_bytes;
        (std::mem::replace(&mut self.accounted_bytes, bytes), bytes)
    }

    pub fn accounted_bytes(&self) -> usize {
        self.accounted_bytes
    }

    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn last_seen(&self) -> SystemTime {
        self.last_seen
    }
}

fn bytes_of(labels: &Labels) -> usize {
    let entry =
        |(key, value): (&String, &String)| 2 * size_of::<String>() + key.len() + value.len();
    labels.iter().map(entry).sum()
}

fn recorded(index: i32, verdict: Option<Arc<Verdict>>) -> Recorded {
    Recorded {
        index: Some(index),
        duplicate: false,
        verdict,
    }
}

/// The answer to what is no event.
fn unheard() -> Recorded {
    Recorded {
        index: None,
        duplicate: false,
        verdict: None,
    }
}

fn latched(verdict: Arc<Verdict>) -> Recorded {
    Recorded {
        index: None,
        duplicate: false,
        verdict: Some(verdict),
    }
}
