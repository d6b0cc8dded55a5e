mod calls;
mod row;
mod words;

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use smallvec::SmallVec;

pub use calls::Entry;
pub use words::Words;

use super::{Futile, heap};
use crate::domain::{
    CallFacts, CallKind, Cost, MarkerKind, Member, Moment, Observation, Operation, Seen, Sig,
    Sketch, Step, StepKind, TurnFacts, Waste,
};
use calls::Calls;

/// What one agent of a session did lately. There is one a session and agent; no
/// detector keeps a ring of its own.
#[derive(Default)]
pub struct History {
    calls: Calls,
    /// The latest event that was a wait.
    waited: Option<i32>,
    /// What there is beside calls, once there is anything.
    talk: Option<Box<Talk>>,
}

#[derive(Default)]
struct Talk {
    turns: VecDeque<TurnEntry>,
    /// Of the last of them.
    sketches: VecDeque<Sketch>,
    /// How many turns there were, empty ones too.
    turns_made: u32,
    /// What else happened. Most often one thing: a user spoke.
    marks: SmallVec<[Mark; 1]>,
}

/// Something that is neither a call nor a turn of the agent.
struct Mark {
    index: i32,
    time: SystemTime,
    what: Marked,
}

#[derive(Clone, Copy)]
enum Marked {
    User,
    Compaction,
    NewRun,
}

/// Slow polling is patience, not a loop.
const PATIENCE: Duration = Duration::from_secs(120);

/// A turn that was not empty.
pub struct TurnEntry {
    pub at: Moment,
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
    pub const MARKS_MAX: usize = 8;
    /// A verdict quotes no more of a target than that.
    pub const TARGET_BYTES_MAX: usize = 200;

    /// Refuses a window wider than what is kept.
    pub(super) fn check_window(window: u32) -> Result<(), Futile> {
        let kept = Self::CALLS_MAX;
        if window as usize <= kept {
            return Ok(());
        }
        let why = format!("{window} calls are more than the {kept} that are kept");
        Err(Futile::new("window", why))
    }

    /// The ordinary calls, latest first: polls and outages count for nobody
    /// else.
    pub fn calls(&self) -> impl Iterator<Item = Entry> {
        self.calls.ordinary()
    }

    /// The latest ordinary call that equals this one.
    pub fn latest(&self, call: Sig) -> Option<Entry> {
        self.calls.latest_ordinary(call)
    }

    /// Those of the last `window` ordinary calls that acted on this target, latest
    /// first.
    pub fn calls_on(&self, target: Sig, window: usize) -> impl Iterator<Item = Entry> {
        self.calls.on(target, window)
    }

    /// Whether a call shows patience: an equal one that went well had the same
    /// result, and the agent has waited since, for two minutes or by a wait.
    pub fn is_patient(&self, now: Moment, facts: &CallFacts) -> bool {
        let last = facts
            .call
            .and_then(|call| self.calls.latest(call, now.time));
        let Some((index, masked, ago)) = last else {
            return false;
        };
        let waited = ago >= PATIENCE || self.waited.is_some_and(|wait| wait > index);
        waited && masked == facts.masked.tag() && !facts.failed()
    }

    /// The turns that were not empty, latest first.
    pub fn turns(&self) -> impl Iterator<Item = &TurnEntry> {
        self.talk.iter().flat_map(|talk| talk.turns.iter().rev())
    }

    /// The last of them, with what they can be compared by.
    pub fn sketches(&self) -> impl Iterator<Item = (&TurnEntry, &Sketch)> {
        let sketches = self.talk.iter().flat_map(|talk| talk.sketches.iter().rev());
        self.turns().zip(sketches)
    }

    /// Whether the agent has made a call since a user spoke or a run began.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Whether all that was tried since the agent's last turn came to nothing, if
    /// anything was.
    pub fn tried_in_vain(&self) -> bool {
        let turn = self.turns().next().map_or(i32::MIN, |turn| turn.at.index);
        self.calls.all_in_vain(turn)
    }

    /// Whether a call after this event went well and said what none before it had
    /// said.
    pub fn brought_news(&self, since: i32) -> bool {
        self.calls.any_news(since)
    }

    pub fn turns_made(&self) -> u32 {
        self.talk.as_ref().map_or(0, |talk| talk.turns_made)
    }

    /// The event that begins the last `calls` calls, of which the present one is
    /// the last; with 0, any event does.
    pub fn begin_of(&self, calls: u32, now: Moment) -> i32 {
        let Some(earlier) = (calls as usize).checked_sub(1) else {
            return i32::MIN;
        };
        let oldest = self.calls().take(earlier).last();
        oldest.map_or(now.index, |entry| entry.index)
    }

    /// Takes in what the detectors have looked at, and the sketch out of it.
    pub fn push(&mut self, now: &mut Observation, cost: Cost, words: &Words<'_>) {
        match &mut now.seen {
            Seen::Call(facts) => self.push_call(now.at, facts, cost, words),
            Seen::Turn(facts) => self.push_turn(now.at, facts, cost),
            Seen::Marker {
                kind: MarkerKind::Compaction,
                ..
            } => {
                self.lose_reads();
                self.mark(now.at.index, now.at.time, Marked::Compaction);
            }
            Seen::Marker {
                kind: MarkerKind::NewRun,
                ..
            } => self.mark(now.at.index, now.at.time, Marked::NewRun),
            Seen::Text(_) | Seen::Other => {}
        }
    }

    /// A user spoke.
    pub fn push_user(&mut self, index: i32, time: SystemTime) {
        self.mark(index, time, Marked::User);
    }

    fn mark(&mut self, index: i32, time: SystemTime, what: Marked) {
        let marks = &mut self.talk.get_or_insert_default().marks;
        if marks.len() == Self::MARKS_MAX {
            marks.remove(0);
        }
        marks.push(Mark { index, time, what });
    }

    /// The context was summarised: what was read or searched may be read again.
    fn lose_reads(&mut self) {
        self.calls
            .spend(|_, operation| matches!(operation, Operation::Read | Operation::Search));
    }

    fn push_call(&mut self, at: Moment, facts: &CallFacts, cost: Cost, words: &Words<'_>) {
        if facts.kind == CallKind::Poll {
            self.waited = Some(at.index);
        }
        self.calls.push(at, facts, cost, words);
    }

    /// An empty turn is no news.
    fn push_turn(&mut self, at: Moment, facts: &mut TurnFacts, cost: Cost) {
        let talk = self.talk.get_or_insert_default();
        talk.turns_made = talk.turns_made.saturating_add(1);
        if facts.sketch.is_empty() {
            return;
        }
        if talk.turns.len() == Self::TURNS_MAX {
            talk.turns.pop_front();
        }
        if talk.sketches.len() == Self::SKETCHES_MAX {
            talk.sketches.pop_front();
        }
        talk.turns.push_back(TurnEntry {
            at,
            number: talk.turns_made,
            tokens: facts.sketch.signature(),
            cost,
        });
        talk.sketches.push_back(std::mem::take(&mut facts.sketch));
    }

    /// Marks the calls that a verdict cited.
    pub fn spend(&mut self, events: &[i32]) {
        self.calls.spend(|index, _| events.contains(&index));
    }

    /// The latest call that equals this one, in words, and what it did.
    pub fn member(&self, call: Sig) -> Option<(Member, Operation)> {
        self.calls.member(call)
    }

    /// What the kept events from `index` on have cost.
    pub fn cost_since(&self, index: i32) -> Waste {
        let turn = |turn: &TurnEntry| (turn.at.index, Waste::of(1, turn.cost));
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
        if let Some(talk) = &mut self.talk {
            talk.turns.clear();
            talk.sketches.clear();
            talk.marks.clear();
        }
    }

    /// What is kept, for a person, each with the signature of its call; in no
    /// order.
    pub fn steps(&self) -> impl Iterator<Item = (Option<Sig>, Step)> {
        let talk = || self.talk.iter();
        let turns = talk().flat_map(|talk| &talk.turns).map(|turn| {
            let kind = StepKind::AgentTurn;
            (None, step(turn.at.index, turn.at.time, kind))
        });
        let marks = talk().flat_map(|talk| &talk.marks).map(|mark| {
            let kind = match mark.what {
                Marked::User => StepKind::UserTurn,
                Marked::Compaction => StepKind::Compaction,
                Marked::NewRun => StepKind::NewRun,
            };
            (None, step(mark.index, mark.time, kind))
        });
        self.calls.steps().chain(turns).chain(marks)
    }

    pub fn heap_bytes(&self) -> usize {
        self.calls.heap_bytes() + self.talk.as_deref().map_or(0, Talk::bytes)
    }
}

impl Talk {
    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.turns.capacity() * size_of::<TurnEntry>()
            + heap::short_list(&self.marks)
            + self.sketches.capacity() * size_of::<Sketch>()
            + self.sketches.iter().map(Sketch::heap_bytes).sum::<usize>()
    }
}

fn step(index: i32, time: SystemTime, kind: StepKind) -> Step {
    Step { index, time, kind }
}

#[cfg(test)]
mod tests;
