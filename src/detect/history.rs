//! The recent events of one agent, shared by all detectors.

mod args_ring;
mod call_ring;
mod call_row;
mod text_ring;

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

pub use call_ring::CallEntry;
pub use text_ring::CallText;

use super::{NeverFires, heap};
use crate::domain::{
    CallFacts, CallKind, Cost, EventPosition, LazyBox, LoopMember, MarkerKind, Observation,
    ObservationBody, Operation, Outcome, Sig, Sketch, TimelineStep, TimelineStepKind, TurnFacts,
    Waste, serde_time,
};
use call_ring::CallRing;

/// What one agent of a session did recently. There is one history per agent, so
/// that no detector stores its own ring of calls.
#[derive(Default, Serialize, Deserialize)]
pub struct History {
    calls: CallRing,
    /// The latest event that was a wait.
    last_wait: Option<i32>,
    /// Everything but calls. Allocated by the first such event.
    turn_history: LazyBox<TurnHistory>,
}

#[derive(Default, Serialize, Deserialize)]
struct TurnHistory {
    turns: VecDeque<TurnEntry>,
    /// The sketches of the latest turns.
    sketches: VecDeque<Sketch>,
    /// The number of turns so far, including empty ones.
    turn_count: u32,
    /// Usually one event: a message of the user.
    other_events: SmallVec<[OtherEvent; 1]>,
    /// The latest calls that were refused, oldest first.
    refused_calls: VecDeque<RefusedCall>,
}

/// A call that a guard refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefusedCall {
    pub index: i32,
    #[serde(with = "serde_time")]
    pub time: SystemTime,
    /// `None`: its arguments are unknown.
    pub call: Option<Sig>,
    pub tool: String,
    pub target: String,
    pub operation: Operation,
    pub cost: Cost,
}

/// An event that is neither a call nor a turn of the agent.
#[derive(Serialize, Deserialize)]
struct OtherEvent {
    index: i32,
    #[serde(with = "serde_time")]
    time: SystemTime,
    kind: OtherEventKind,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum OtherEventKind {
    User,
    Compaction,
    NewRun,
}

/// Calls repeated after at least this interval are polls, not a loop.
const SLOW_POLL_INTERVAL: Duration = Duration::from_secs(120);

/// A non-empty turn.
#[derive(Serialize, Deserialize)]
pub struct TurnEntry {
    pub at: EventPosition,
    /// Its number among all turns, including empty ones.
    pub number: u32,
    /// Equal for turns with equal words.
    pub tokens: Sig,
    /// It contains an action.
    pub acted: bool,
    /// [`Observation::new_results`] at the turn.
    pub new_results: u16,
    cost: Cost,
}

impl History {
    /// Calls stored. The widest window of any detector is 30.
    pub const CALLS_MAX: usize = 32;
    /// Turns stored. `similar_turns` searches for equal turns among the last 50.
    pub const TURNS_MAX: usize = 50;
    /// Sketches stored. `similar_turns` compares with the last five turns.
    pub const SKETCHES_MAX: usize = 5;
    /// Other events stored; a person learns nothing from more compactions.
    pub const OTHER_EVENTS_MAX: usize = 8;
    /// Refused calls stored, for the timeline.
    pub const REFUSED_CALLS_MAX: usize = 16;
    /// Bytes of a target that a verdict quotes.
    pub const TARGET_BYTES_MAX: usize = 200;

    /// Rejects a window of more calls than are stored.
    pub(super) fn check_window(window: u32) -> Result<(), NeverFires> {
        let calls_max = Self::CALLS_MAX;
        if window as usize <= calls_max {
            return Ok(());
        }
        let why = format!("{window} calls, at most {calls_max} are stored");
        Err(NeverFires::new("window", why))
    }

    /// The ordinary calls, latest first. Polls and outages belong to detectors of
    /// their own.
    pub fn calls(&self) -> impl Iterator<Item = CallEntry> {
        self.calls.ordinary()
    }

    /// The latest ordinary call that equals this one.
    pub fn latest_call(&self, call: Sig) -> Option<CallEntry> {
        self.calls.latest_ordinary(call)
    }

    /// The calls on this target among the last `window` ordinary calls, latest
    /// first.
    pub fn calls_on_target(&self, target: Sig, window: usize) -> impl Iterator<Item = CallEntry> {
        self.calls.on_target(target, window)
    }

    /// Whether a successful call repeats an equal one with the same result after
    /// the agent has waited, for two minutes or by a wait.
    pub fn is_slow_poll(&self, now: EventPosition, facts: &CallFacts) -> bool {
        let last = facts
            .call
            .and_then(|call| self.calls.latest(call, now.time));
        let Some((index, masked_outcome, ago)) = last else {
            return false;
        };
        let waited = ago >= SLOW_POLL_INTERVAL || self.last_wait.is_some_and(|wait| wait > index);
        waited && masked_outcome == facts.masked_outcome.tag() && !facts.failed()
    }

    /// The non-empty turns, latest first.
    pub fn turns(&self) -> impl Iterator<Item = &TurnEntry> {
        self.turn_history
            .get()
            .into_iter()
            .flat_map(|history| history.turns.iter().rev())
    }

    /// The latest non-empty turns with their sketches, latest first.
    pub fn sketches(&self) -> impl Iterator<Item = (&TurnEntry, &Sketch)> {
        let sketches = self
            .turn_history
            .get()
            .into_iter()
            .flat_map(|history| history.sketches.iter().rev());
        self.turns().zip(sketches)
    }

    /// Whether the agent has made a call since the last message of the user or the
    /// start of the run.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Whether all calls since the agent's last turn were unproductive; true
    /// without calls.
    pub fn no_productive_call_since_turn(&self) -> bool {
        let turn = self.turns().next().map_or(i32::MIN, |turn| turn.at.index);
        self.calls.all_unproductive_since(turn)
    }

    /// Whether a call after this event failed or brought nothing.
    pub fn has_fruitless_call_since(&self, since: i32) -> bool {
        self.calls.has_fruitless_since(since)
    }

    /// Whether a command failed after this event.
    pub fn has_failed_run_since(&self, since: i32) -> bool {
        self.calls.has_failed_run_since(since)
    }

    /// Whether a call after this event succeeded with a result that no earlier call
    /// had returned.
    pub fn has_new_result_since(&self, since: i32) -> bool {
        self.calls.has_new_result_since(since)
    }

    pub fn turn_count(&self) -> u32 {
        self.turn_history
            .get()
            .map_or(0, |history| history.turn_count)
    }

    /// The first event of the last `calls` calls, including the present one. With 0
    /// the window is unlimited.
    pub fn window_start(&self, calls: u32, now: EventPosition) -> i32 {
        let Some(earlier) = (calls as usize).checked_sub(1) else {
            return i32::MIN;
        };
        let oldest = self.calls().take(earlier).last();
        oldest.map_or(now.index, |entry| entry.index)
    }

    /// Adds an observation after the detectors have run. Takes the sketch of a turn
    /// out of it.
    pub fn push(&mut self, now: &mut Observation, cost: Cost, text: &CallText<'_>) {
        match &mut now.body {
            ObservationBody::Call(facts) => self.push_call(now.at, facts, cost, text),
            ObservationBody::Turn(facts) => {
                self.push_turn(now.at, now.new_results, facts, cost);
            }
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

    /// Adds a message of the user.
    pub fn push_user(&mut self, index: i32, time: SystemTime) {
        self.push_other_event(index, time, OtherEventKind::User);
    }

    /// Adds a refused call. No detector sees it.
    pub fn push_refused(&mut self, mut refused: RefusedCall) {
        let text = CallText {
            tool: &refused.tool,
            target: &refused.target,
            ..CallText::default()
        };
        let [tool, target, _] = text.truncated().map(str::to_owned);
        (refused.tool, refused.target) = (tool, target);
        let calls = &mut self.turn_history.get_or_insert_default().refused_calls;
        if calls.len() == Self::REFUSED_CALLS_MAX {
            calls.pop_front();
        }
        calls.push_back(refused);
    }

    fn refused_calls(&self) -> impl Iterator<Item = &RefusedCall> {
        let history = self.turn_history.get().into_iter();
        history.flat_map(|history| &history.refused_calls)
    }

    fn push_other_event(&mut self, index: i32, time: SystemTime, kind: OtherEventKind) {
        let events = &mut self.turn_history.get_or_insert_default().other_events;
        if events.len() == Self::OTHER_EVENTS_MAX {
            events.remove(0);
        }
        events.push(OtherEvent { index, time, kind });
    }

    /// On a compaction, marks reads and searches as consumed: the model has lost
    /// their results and may repeat them.
    fn consume_reads(&mut self) {
        self.calls.consume(|_, operation| operation.is_read());
    }

    fn push_call(&mut self, at: EventPosition, facts: &CallFacts, cost: Cost, text: &CallText<'_>) {
        // A look at something that is under way is no wait.
        if facts.kind == CallKind::Poll && facts.is_wait {
            self.last_wait = Some(at.index);
        }
        self.calls.push(at, facts, cost, text);
    }

    /// Empty turns are only counted.
    fn push_turn(
        &mut self,
        at: EventPosition,
        new_results: u16,
        facts: &mut TurnFacts,
        cost: Cost,
    ) {
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
            acted: facts.acts,
            new_results,
            cost,
        });
        history
            .sketches
            .push_back(std::mem::take(&mut facts.sketch));
    }

    /// Marks the calls that a verdict cites.
    pub fn consume(&mut self, events: &[i32]) {
        self.calls.consume(|index, _| events.contains(&index));
    }

    /// The names, the operation and the arguments of the latest call with this
    /// signature.
    pub fn find_member(&self, call: Sig) -> Option<(LoopMember, Operation, String)> {
        self.calls.find_member(call)
    }

    /// The cost of the stored events from `index` on.
    pub fn cost_since(&self, index: i32) -> Waste {
        let turns = self
            .turns()
            .map(|turn| (turn.at.index, Waste::new(1, turn.cost)));
        let mut waste = Waste::default();
        let refused = self
            .refused_calls()
            .map(|call| (call.index, Waste::new(1, call.cost)));
        for (event, cost) in self.calls.costs().chain(turns).chain(refused) {
            if event >= index {
                waste += cost;
            }
        }
        waste
    }

    /// Removes all events, on a message of the user or a new run.
    pub fn clear(&mut self) {
        self.calls.clear();
        if let Some(history) = self.turn_history.get_mut() {
            history.turns.clear();
            history.sketches.clear();
            history.other_events.clear();
            history.refused_calls.clear();
        }
    }

    /// The stored events for a person, each with the signature of its call, in no
    /// particular order.
    pub fn timeline_steps(&self) -> impl Iterator<Item = (Option<Sig>, TimelineStep)> {
        let turns = self
            .turn_history
            .get()
            .into_iter()
            .flat_map(|history| &history.turns)
            .map(|turn| {
                let kind = TimelineStepKind::AgentTurn;
                (None, timeline_step(turn.at.index, turn.at.time, kind))
            });
        let other_events = self
            .turn_history
            .get()
            .into_iter()
            .flat_map(|history| &history.other_events)
            .map(|event| {
                let kind = match event.kind {
                    OtherEventKind::User => TimelineStepKind::UserTurn,
                    OtherEventKind::Compaction => TimelineStepKind::Compaction,
                    OtherEventKind::NewRun => TimelineStepKind::NewRun,
                };
                (None, timeline_step(event.index, event.time, kind))
            });
        let refused = self.refused_calls().map(|call| {
            let kind = TimelineStepKind::Call {
                tool: call.tool.clone(),
                target: call.target.clone(),
                operation: call.operation,
                outcome: Some(Outcome::Blocked),
            };
            (call.call, timeline_step(call.index, call.time, kind))
        });
        let calls = self.calls.timeline_steps().chain(refused);
        calls.chain(turns).chain(other_events)
    }

    pub fn heap_bytes(&self) -> usize {
        self.calls.heap_bytes() + self.turn_history.heap_bytes(TurnHistory::heap_bytes)
    }
}

impl TurnHistory {
    fn heap_bytes(&self) -> usize {
        self.turns.capacity() * size_of::<TurnEntry>()
            + heap::small_vec_bytes(&self.other_events)
            + self.refused_calls.capacity() * size_of::<RefusedCall>()
            + self
                .refused_calls
                .iter()
                .map(|call| call.tool.capacity() + call.target.capacity())
                .sum::<usize>()
            + self.sketches.capacity() * size_of::<Sketch>()
            + self.sketches.iter().map(Sketch::heap_bytes).sum::<usize>()
    }
}

fn timeline_step(index: i32, time: SystemTime, kind: TimelineStepKind) -> TimelineStep {
    TimelineStep { index, time, kind }
}

#[cfg(test)]
mod tests;
