mod answer;
mod judged;
mod legacy;
mod story;
mod streamed;
mod timeline;
mod upkeep;
mod view;

use std::{sync::Arc, time::SystemTime};

use answer::{latched, recorded, stops_text};
use smallvec::SmallVec;
use story::Untold;
pub(super) use streamed::Longer;
use streamed::{WHOLE, turn_name};

use super::{Profile, Recorded, Refused, Shared, Want, agent::Agent, expiry::Place, seen::Seen};
use crate::{
    detect::Words,
    domain::{
        self, AgentId, Body, Cost, DetectorId, Event, Labels, Marker, MarkerKind, Repeated, Role,
        SessionId, Sig, ToolCall, Totals, TurnFacts, Verdict, Waste,
    },
    facts::{EventFacts, Made, Progress},
    rules::Ruled,
    telemetry::EventKind,
};

/// A live session: the whole of its state.
pub(super) struct Session {
    profile: Arc<Profile>,
    /// The setup that the profile was last taken from.
    setup: u64,
    labels: Arc<Labels>,
    labels_bytes: usize,
    place: Place,
    created: SystemTime,
    /// When it was last heard of, by the engine's clock.
    last_seen: SystemTime,
    events: i32,
    turns: i32,
    cost: Cost,
    /// What it had used when the detectors last looked.
    looked_at: Totals,
    progress: Progress,
    /// Most sessions have one.
    agents: SmallVec<[Agent; 1]>,
    seen: Seen,
    abstentions: Vec<(DetectorId, &'static str, u32)>,
    story: Untold,
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
    /// What to quote: the text of a turn, or the unit that it repeats.
    text: &'a str,
    rules: Ruled<'a>,
    /// The character where a text begins to repeat itself.
    began: u64,
    /// A text is being written; there is no event yet.
    unfinished: bool,
}

impl<'a> Shown<'a> {
    fn quoting(self, repeated: &'a Repeated) -> Self {
        Self {
            text: &repeated.unit,
            began: repeated.began,
            ..self
        }
    }
}

impl Session {
    pub fn new(profile: Arc<Profile>, labels: Arc<Labels>, place: Place, now: SystemTime) -> Self {
        Self {
            profile,
            setup: 0,
            labels_bytes: domain::labels_bytes(&labels),
            labels,
            place,
            created: now,
            last_seen: now,
            events: 0,
            turns: 0,
            cost: Cost::default(),
            looked_at: Totals::default(),
            progress: Progress::default(),
            agents: SmallVec::new(),
            seen: Seen::default(),
            abstentions: Vec::new(),
            story: Untold::default(),
            accounted_bytes: 0,
        }
    }

    /// Takes another profile and other labels. A text that is being written was
    /// listened to in the old way, and begins anew.
    pub fn open(
        &mut self,
        profile: Arc<Profile>,
        labels: Arc<Labels>,
        shared: &Shared,
    ) -> Result<(), Refused> {
        let labels_bytes = domain::labels_bytes(&labels);
        if labels_bytes > self.labels_bytes {
            shared.check_bytes(Want::Event)?;
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
        ruled: Ruled<'_>,
        now: SystemTime,
        shared: &Shared,
    ) -> Result<Recorded, Refused> {
        let heard = std::mem::replace(&mut self.last_seen, now);
        self.wake(now, shared);
        self.adopt(shared);
        if let Some(verdict) = self.ended(&event.agent) {
            self.story.avoidable += Waste::of(1, event.cost);
            return Ok(latched(verdict));
        }
        self.check_quarantine()?;
        let key = shared.facts.key();
        let name = (!event.event_id.is_empty()).then(|| key.name("event", "", &event.event_id));
        if let Some(index) = name.and_then(|name| self.seen.index_of(name)) {
            return Ok(self.repeated(index));
        }
        self.admit(Want::Event, heard, shared)?;
        let agent = self.agent(&event.agent, shared)?;
        #[cfg(test)]
        super::tests::strike(event);
        self.progress.see_state(facts.state());
        let turn = match &event.body {
            Body::Turn(turn) if turn.role == Role::Agent => turn.turn_id.as_str(),
            Body::Turn(_) | Body::Call(_) | Body::Marker(_) => "",
        };
        let names = [name, turn_name(WHOLE, &event.agent, turn, shared)];
        if !turn.is_empty()
            && let Some(index) = self.streamed(&event.agent, turn, shared)
        {
            self.complete(agent, index, event.cost, names, shared);
            return Ok(self.repeated(index));
        }
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
            rules: ruled,
            began: 0,
            unfinished: false,
        };
        let verdict = match &event.body {
            Body::Call(call) => {
                shared.metrics.event(EventKind::ToolCall);
                self.call(event, call, facts, shown, shared)
            }
            Body::Turn(turn) => {
                shared.metrics.event(EventKind::Turn);
                self.turn(turn, facts, shown, shared)
            }
            Body::Marker(marker) => {
                shared.metrics.event(EventKind::Marker);
                self.marker(*marker, shown, shared)
            }
        };
        if verdict.as_ref().is_some_and(stops_text)
            && let Some(agent) = self.agents.get_mut(agent)
        {
            agent.drafts.clear();
        }
        Ok(recorded(index, verdict))
    }

    /// Whether there is memory for it. A session that is refused is not heard of,
    /// and may have to make room.
    fn admit(&mut self, want: Want, heard: SystemTime, shared: &Shared) -> Result<(), Refused> {
        let admitted = shared.check_bytes(want);
        admitted.inspect_err(|_| self.last_seen = heard)
    }

    /// The answer to an event that was seen before.
    fn repeated(&self, index: i32) -> Recorded {
        let verdict = self.story.verdicts.iter().rev();
        let verdict = verdict.clone().find(|v| v.event_index == Some(index));
        Recorded {
            index: Some(index),
            duplicate: true,
            verdict: verdict.cloned(),
            is_news: false,
        }
    }

    /// The position of an agent, which is new perhaps.
    fn agent(&mut self, id: &AgentId, shared: &Shared) -> Result<usize, Refused> {
        if let Some(position) = self.agents.iter().position(|agent| agent.id == *id) {
            return Ok(position);
        }
        shared.check_bytes(Want::New)?;
        let agents_max = shared.limits.agents_max;
        // The main agent has its place, whoever came before it.
        if self.agents.len() >= agents_max && !id.is_main() {
            return Err(Refused::Agents(agents_max));
        }
        self.agents.push(Agent::new(id.clone()));
        Ok(self.agents.len() - 1)
    }

    /// The verdict that ended the session or the agent, if any. It answers a
    /// duplicate too: once terminated, terminated in every answer.
    fn ended(&self, id: &AgentId) -> Option<Arc<Verdict>> {
        let of_agent = || {
            let agent = self.agents.iter().find(|agent| agent.id == *id)?;
            agent.terminated.clone()
        };
        self.story.termination.clone().or_else(of_agent)
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
        facts: &mut EventFacts<'_>,
        shown: Shown<'_>,
        shared: &Shared,
    ) -> Option<Arc<Verdict>> {
        self.agents.get_mut(shown.agent)?.drafts.clear();
        if call.outcome != Some(domain::Outcome::Blocked) {
            self.progress.act();
        }
        // It is moved once, since it is large.
        let EventFacts::Call(Made { facts, target }) = facts.take() else {
            return self.show_aside(shown, shared);
        };
        let rooms = domain::Rooms::from(shared.limits.remembered);
        self.progress.note(&facts, &rooms.paths);
        shared.metrics.forgot(&rooms);
        let words = Words {
            tool: &call.tool,
            target: &target,
            event_id: &event.event_id,
        };
        let shown = Shown { words, ..shown };
        self.show(domain::Seen::Call(facts), shown, shared)
    }

    fn turn(
        &mut self,
        turn: &domain::Turn,
        facts: &mut EventFacts<'_>,
        shown: Shown<'_>,
        shared: &Shared,
    ) -> Option<Arc<Verdict>> {
        match (turn.role, facts.take()) {
            (Role::User, _) => {
                self.start_anew();
                let agent = self.agents.get_mut(shown.agent)?;
                agent.history.push_user(shown.index, shown.time);
                self.show_aside(shown, shared)
            }
            (Role::Agent, EventFacts::Turn(facts, _)) => {
                let text = &turn.text;
                self.agent_turn(facts, Shown { text, ..shown }, shared)
            }
            (Role::Agent | Role::System, _) => self.show_aside(shown, shared),
        }
    }

    fn agent_turn(
        &mut self,
        facts: TurnFacts,
        shown: Shown<'_>,
        shared: &Shared,
    ) -> Option<Arc<Verdict>> {
        self.turns = self.turns.saturating_add(1);
        let repeated = facts.repeated.clone();
        let shown = match &repeated {
            Some(repeated) => shown.quoting(repeated),
            None => shown,
        };
        self.show(domain::Seen::Turn(facts), shown, shared)
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
        self.show(seen, shown, shared)
    }

    fn start_anew(&mut self) {
        self.progress.start_anew();
        self.agents.iter_mut().for_each(Agent::reset);
    }

    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    pub fn labels(&self) -> &Arc<Labels> {
        &self.labels
    }

    pub fn place(&self) -> Place {
        self.place
    }

    pub fn set_place(&mut self, place: Place) {
        self.place = place;
    }

    pub fn last_seen(&self) -> SystemTime {
        self.last_seen
    }
}
