mod call_ring;
mod call_row;
mod text_ring;

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use smallvec::SmallVec;

pub use call_ring::CallEntry;
pub use text_ring::CallText;

use super::{NeverFires, heap};
use crate::domain::{
    CallFacts, CallKind, Cost, EventPosition, LoopMember, MarkerKind, Observation, ObservationBody,
    Operation, Sig, Sketch, TimelineStep, TimelineStepKind, TurnFacts, Waste,
};
use call_ring::CallRing;

/// What one agent of a session did lately. There is one a session and agent; no
/// detector keeps a ring of its own.
#[derive(Default)]
pub struct History {
    calls: CallRing,
    /// The latest event that was a wait.
    last_wait: Option<i32>,
    /// What there is beside calls, once there is anything.
    turn_history: Option<Box<TurnHistory>>,
}

#[derive(Default)]
struct TurnHistory {
    turns: VecDeque<TurnEntry>,
    /// Of the last of them.
    sketches: VecDeque<Sketch>,
    /// How many turns there were, empty ones too.
    turn_count: u32,
    /// What else happened. Most often one thing: a user spoke.
    other_events: SmallVec<[OtherEvent; 1]>,
}

/// Something that is neither a call nor a turn of the agent.
struct OtherEvent {
    index: i32,
    time: SystemTime,
    kind: OtherEventKind,
}

#[derive(Clone, Copy)]
enum OtherEventKind {
    User,
    Compaction,
    NewRun,
}

/// Slow polling is patience, not a loop.
const SLOW_POLL_INTERVAL: Duration = Duration::from_secs(120);

/// A turn that was not empty.
pub struct TurnEntry {
    pub at: EventPosition,
    /// Its number among all turns, empty ones too.
    pub number: u32,
    /// Equal for turns of equal words.
    pub tokens: Sig,
    cost: Cost,
}

impl History {
    /// The widest window of any detector is 30.
    pub const CALLS_MAX: usize = 32;
    /// Equal turns are sought among the last 50.
    pub const TURNS_MAX: usize = 50;
    /// Similar turns are sought among the last five.
    pub const SKETCHES_MAX: usize = 5;
    /// More compactions than that tell no more.
    pub const OTHER_EVENTS_MAX: usize = 8;
    /// A verdict quotes no more of a target than that.
    pub const TARGET_BYTES_MAX: usize = 200;

    /// Refuses a window wider than what is kept.
    pub(super) fn check_window(window: u32) -> Result<(), NeverFires> {
        let kept = Self::CALLS_MAX;
        if window as usize <= kept {
            return Ok(());
        }
        let why = format!("{window} calls are more than the {kept} that are kept");
        Err(NeverFires::new("window", why))
    }

    /// The ordinary calls, latest first: polls and outages count for nobody
    /// else.
    pub fn calls(&self) -> impl Iterator<Item = CallEntry> {
        self.calls.ordinary()
    }

    /// The latest ordinary call that equals this one.
    pub fn latest_call(&self, call: Sig) -> Option<CallEntry> {
        self.calls.latest_ordinary(call)
    }

    /// Those of the last `window` ordinary calls that acted on this target, latest
    /// first.
    pub fn calls_on_target(&self, target: Sig, window: usize) -> impl Iterator<Item = CallEntry> {
        self.calls.on_target(target, window)
    }

    /// Whether a call shows patience: an equal one that went well had the same
    /// result, and the agent has waited since, for two minutes or by a wait.
    pub fn is_slow_poll(&self, now: EventPosition, facts: &CallFacts) -> bool {
        let last = facts
            .call
            .and_then(|call| self.calls.latest(call, now.time));
        let Some((index, masked, ago)) = last else {
            return false;
        };
        let waited = ago >= SLOW_POLL_INTERVAL || self.last_wait.is_some_and(|wait| wait > index);
        waited && masked == facts.masked_outcome.tag() && !facts.failed()
    }

    /// The turns that were not empty, latest first.
    pub fn turns(&self) -> impl Iterator<Item = &TurnEntry> {
        self.turn_history
            .iter()
            .flat_map(|history| history.turns.iter().rev())
    }

    /// The last of them, with what they can be compared by.
    pub fn sketches(&self) -> impl Iterator<Item = (&TurnEntry, &Sketch)> {
        let sketches = self
            .turn_history
            .iter()
            .flat_map(|history| history.sketches.iter().rev());
        self.turns().zip(sketches)
    }

    /// Whether the agent has made a call since a user spoke or a run began.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Whether all that was tried since the agent's last turn came to nothing, if
    /// anything was.
    pub fn no_productive_call_since_turn(&self) -> bool {
        let turn = self.turns().next().map_or(i32::MIN, |turn| turn.at.index);
        self.calls.all_unproductive_since(turn)
    }

    /// Whether a call after this event went well and said what none before it had
    /// said.
    pub fn has_new_result_since(&self, since: i32) -> bool {
        self.calls.has_new_result_since(since)
    }

    pub fn turn_count(&self) -> u32 {
        self.turn_history
            .as_ref()
            .map_or(0, |history| history.turn_count)
    }

    /// The event that begins the last `calls` calls, of which the present one is
    /// the last; with 0, any event does.
    pub fn window_start(&self, calls: u32, now: EventPosition) -> i32 {
        let Some(earlier) = (calls as usize).checked_sub(1) else {
            return i32::MIN;
        };
        let oldest = self.calls().take(earlier).last();
        oldest.map_or(now.index, |entry| entry.index)
    }

    /// Takes in what the detectors have looked at, and the sketch out of it.
    pub fn push(&mut self, now: &mut Observation, cost: Cost, words: &CallText<'_>) {
        match &mut now.body {
            ObservationBody::Call(facts) => self.push_call(now.at, facts, cost, words),
            ObservationBody::Turn(facts) => self.push_turn(now.at, facts, cost),
            ObservationBody::Marker {
                kind: MarkerKind::Compaction,
                ..
            } => {
                self.consume_reads();
                self.push_other_event(now.at.index, now.at.time, OtherEventKind::Compaction);
            }
            ObservationBody::Marker {
                kind: MarkerKind::NewRun,
                ..
            } => self.push_other_event(now.at.index, now.at.time, OtherEventKind::NewRun),
            ObservationBody::PartialText(_) | ObservationBody::Other => {}
        }
    }

    /// A user spoke.
    pub fn push_user(&mut self, index: i32, time: SystemTime) {
        self.push_other_event(index, time, OtherEventKind::User);
    }

    fn push_other_event(&mut self, index: i32, time: SystemTime, kind: OtherEventKind) {
        let marks = &mut self.turn_history.get_or_insert_default().other_events;
        if marks.len() == Self::OTHER_EVENTS_MAX {
            marks.remove(0);
        }
        marks.push(OtherEvent { index, time, kind });
    }

    /// The context was summarised: what was read or searched may be read again.
    fn consume_reads(&mut self) {
        self.calls.consume(|_, operation| operation.is_read());
    }

    fn push_call(
        &mut self,
        at: EventPosition,
        facts: &CallFacts,
        cost: Cost,
        words: &CallText<'_>,
    ) {
        if facts.kind == CallKind::Poll {
            self.last_wait = Some(at.index);
        }
        self.calls.push(at, facts, cost, words);
    }

    /// An empty turn is no news.
    fn push_turn(&mut self, at: EventPosition, facts: &mut TurnFacts, cost: Cost) {
        let history = self.turn_history.get_or_insert_default();
        history.turn_count = history.turn_count.saturating_add(1);
        if facts.sketch.is_empty() {
            return;
        }
        if history.turns.len() == Self::TURNS_MAX {
            history.turns.pop_front();
        }
        if history.sketches.len() == Self::SKETCHES_MAX {
            history.sketches.pop_front();
        }
        history.turns.push_back(TurnEntry {
            at,
            number: history.turn_count,
            tokens: facts.sketch.signature(),
            cost,
        });
        history
            .sketches
            .push_back(std::mem::take(&mut facts.sketch));
    }

    /// Marks the calls that a verdict cited.
    pub fn consume(&mut self, events: &[i32]) {
        self.calls.consume(|index, _| events.contains(&index));
    }

    /// The latest call that equals this one, in words, and what it did.
    pub fn find_member(&self, call: Sig) -> Option<(LoopMember, Operation)> {
        self.calls.find_member(call)
    }

    /// What the kept events from `index` on have cost.
    pub fn cost_since(&self, index: i32) -> Waste {
        let turn = |turn: &TurnEntry| (turn.at.index, Waste::new(1, turn.cost));
        let turns = self.turns().map(turn);
        let mut waste = Waste::default();
        for (_, cost) in self
            .calls
            .costs()
            .chain(turns)
            .filter(|(at, _)| *at >= index)
        {
            waste += cost;
        }
        waste
    }

    /// Forgets what was done: a user spoke, or the session was started again.
    pub fn clear(&mut self) {
        self.calls.clear();
        if let Some(history) = &mut self.turn_history {
            history.turns.clear();
            history.sketches.clear();
            history.other_events.clear();
        }
    }

    /// What is kept, for a person, each with the signature of its call; in no
    /// order.
    pub fn timeline_steps(&self) -> impl Iterator<Item = (Option<Sig>, TimelineStep)> {
        let history = || self.turn_history.iter();
        let turns = history().flat_map(|history| &history.turns).map(|turn| {
            let kind = TimelineStepKind::AgentTurn;
            (None, timeline_step(turn.at.index, turn.at.time, kind))
        });
        let marks = history()
            .flat_map(|history| &history.other_events)
            .map(|event| {
                let kind = match event.kind {
                    OtherEventKind::User => TimelineStepKind::UserTurn,
                    OtherEventKind::Compaction => TimelineStepKind::Compaction,
                    OtherEventKind::NewRun => TimelineStepKind::NewRun,
                };
                (None, timeline_step(event.index, event.time, kind))
            });
        self.calls.timeline_steps().chain(turns).chain(marks)
    }

    pub fn heap_bytes(&self) -> usize {
        self.calls.heap_bytes()
            + self
                .turn_history
                .as_deref()
                .map_or(0, TurnHistory::memory_bytes)
    }
}

impl TurnHistory {
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.turns.capacity() * size_of::<TurnEntry>()
            + heap::small_vec_bytes(&self.other_events)
            + self.sketches.capacity() * size_of::<Sketch>()
            + self.sketches.iter().map(Sketch::heap_bytes).sum::<usize>()
    }
}

fn timeline_step(index: i32, time: SystemTime, kind: TimelineStepKind) -> TimelineStep {
    TimelineStep { index, time, kind }
}

#[cfg(test)]
mod tests;
