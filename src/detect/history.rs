use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use smallvec::SmallVec;

use super::Futile;
use crate::domain::{
    CallFacts, CallKind, Cost, MarkerKind, Member, Moment, Observation, Operation, Outcome, Seen,
    Sig, Sketch, Step, StepKind, TurnFacts, Waste, text,
};

/// What one agent of a session did lately. There is one a session and agent; no
/// detector keeps a ring of its own.
#[derive(Default)]
pub struct History {
    calls: VecDeque<Entry>,
    turns: VecDeque<TurnEntry>,
    /// Of the last of them.
    sketches: VecDeque<Sketch>,
    /// How many turns there were, empty ones too.
    turns_made: u32,
    /// What the entries hold outside themselves.
    words_bytes: usize,
    /// The latest event that was a wait.
    waited: Option<i32>,
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

/// A call that was made: what of it is compared with later ones.
pub struct Entry {
    pub at: Moment,
    pub kind: CallKind,
    pub call: Option<Sig>,
    pub operation: Operation,
    pub target: Option<Sig>,
    pub lines: Option<(u32, u32)>,
    pub masked: Sig,
    pub raw: Sig,
    pub content: Option<Sig>,
    outcome: Option<Outcome>,
    in_vain: bool,
    /// A verdict has cited it: it counts for no detector again, save to extend
    /// the same unbroken run.
    pub spent: bool,
    cost: Cost,
    tool: String,
    target_text: String,
    event_id: String,
}

/// A turn that was not empty.
pub struct TurnEntry {
    pub at: Moment,
    /// Its number among all turns, empty ones too.
    pub number: u32,
    /// Equal for turns of equal words.
    pub tokens: Sig,
    cost: Cost,
}

/// The words of a call, for a person.
#[derive(Default)]
pub struct Words<'a> {
    pub tool: &'a str,
    pub target: &'a str,
    pub event_id: &'a str,
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
    pub fn calls(&self) -> impl Iterator<Item = &Entry> {
        let ordinary = |entry: &&Entry| entry.kind == CallKind::Ordinary;
        self.calls.iter().rev().filter(ordinary)
    }

    /// Whether a call shows patience: an equal one that went well had the same
    /// result, and the agent has waited since, for two minutes or by a wait.
    pub fn is_patient(&self, now: Moment, facts: &CallFacts) -> bool {
        let equal = |entry: &&Entry| entry.call.is_some() && entry.call == facts.call;
        let Some(last) = self.calls.iter().rev().find(equal) else {
            return false;
        };
        let waited = now.time.duration_since(last.at.time);
        let waited = waited.is_ok_and(|waited| waited >= PATIENCE)
            || self.waited.is_some_and(|wait| wait > last.at.index);
        waited && last.masked == facts.masked && !facts.failed()
    }

    /// The turns that were not empty, latest first.
    pub fn turns(&self) -> impl Iterator<Item = &TurnEntry> {
        self.turns.iter().rev()
    }

    /// The last of them, with what they can be compared by.
    pub fn sketches(&self) -> impl Iterator<Item = (&TurnEntry, &Sketch)> {
        self.turns().zip(self.sketches.iter().rev())
    }

    /// Whether the agent has made a call since a user spoke or a run began.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Whether all that was tried since the agent's last turn came to nothing, if
    /// anything was.
    pub fn tried_in_vain(&self) -> bool {
        let turn = self.turns.back().map_or(i32::MIN, |turn| turn.at.index);
        let mut since = self.calls.iter().rev();
        since.all(|entry| entry.in_vain || entry.at.index < turn)
    }

    pub fn turns_made(&self) -> u32 {
        self.turns_made
    }

    /// The event that begins the last `calls` calls, of which the present one is
    /// the last; with 0, any event does.
    pub fn begin_of(&self, calls: u32, now: Moment) -> i32 {
        let Some(earlier) = (calls as usize).checked_sub(1) else {
            return i32::MIN;
        };
        let oldest = self.calls().take(earlier).last();
        oldest.map_or(now.index, |entry| entry.at.index)
    }

    /// Takes in what the detectors have looked at.
    pub fn push(&mut self, now: Observation, cost: Cost, words: &Words<'_>) {
        match now.seen {
            Seen::Call(facts) => self.push_call(now.at, &facts, cost, words),
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
        if self.marks.len() == Self::MARKS_MAX {
            self.marks.remove(0);
        }
        self.marks.push(Mark { index, time, what });
    }

    /// The context was summarised: what was read or searched may be read again.
    fn lose_reads(&mut self) {
        for entry in &mut self.calls {
            entry.spent |= matches!(entry.operation, Operation::Read | Operation::Search);
        }
    }

    /// The oldest entry gives its buffers to the new one, so
    /// that a session in its steady state does not allocate.
    fn push_call(&mut self, at: Moment, facts: &CallFacts, cost: Cost, words: &Words<'_>) {
        if facts.kind == CallKind::Poll {
            self.waited = Some(at.index);
        }
        let recycled = (self.calls.len() == Self::CALLS_MAX)
            .then(|| self.calls.pop_front())
            .flatten();
        if let Some(old) = &recycled {
            self.words_bytes -= old.words_bytes();
        }
        let (mut tool, mut target, mut event_id) = recycled
            .map(|old| (old.tool, old.target_text, old.event_id))
            .unwrap_or_default();
        refill(&mut tool, words.tool);
        refill(
            &mut target,
            text::prefix(words.target, Self::TARGET_BYTES_MAX),
        );
        refill(&mut event_id, words.event_id);
        let entry = Entry {
            at,
            kind: facts.kind,
            call: facts.call,
            operation: facts.operation,
            target: facts.target,
            lines: facts.lines,
            masked: facts.masked,
            raw: facts.raw,
            content: facts.content,
            outcome: facts.outcome,
            in_vain: facts.in_vain,
            spent: false,
            cost,
            tool,
            target_text: target,
            event_id,
        };
        self.words_bytes += entry.words_bytes();
        self.calls.push_back(entry);
    }

    /// An empty turn is no news.
    fn push_turn(&mut self, at: Moment, facts: TurnFacts, cost: Cost) {
        self.turns_made = self.turns_made.saturating_add(1);
        if facts.sketch.is_empty() {
            return;
        }
        if self.turns.len() == Self::TURNS_MAX {
            self.turns.pop_front();
        }
        if self.sketches.len() == Self::SKETCHES_MAX {
            self.sketches.pop_front();
        }
        self.turns.push_back(TurnEntry {
            at,
            number: self.turns_made,
            tokens: facts.sketch.signature(),
            cost,
        });
        self.sketches.push_back(facts.sketch);
    }

    /// Marks the calls that a verdict cited.
    pub fn spend(&mut self, events: &[i32]) {
        for entry in &mut self.calls {
            entry.spent |= events.contains(&entry.at.index);
        }
    }

    /// The latest call with this signature.
    pub fn latest(&self, call: Sig) -> Option<&Entry> {
        let mut calls = self.calls.iter().rev();
        calls.find(|entry| entry.call == Some(call))
    }

    /// What the kept events from `index` on have cost.
    pub fn cost_since(&self, index: i32) -> Waste {
        let calls = self.calls.iter().map(|entry| (entry.at, entry.cost));
        let turns = self.turns.iter().map(|entry| (entry.at, entry.cost));
        let mut waste = Waste::default();
        for (_, cost) in calls.chain(turns).filter(|(at, _)| at.index >= index) {
            waste += Waste::of(1, cost);
        }
        waste
    }

    /// Forgets what was done: a user spoke, or the session was started again.
    pub fn clear(&mut self) {
        self.calls.clear();
        self.turns.clear();
        self.sketches.clear();
        self.marks.clear();
        self.words_bytes = 0;
    }

    /// What is kept, for a person, each with the signature of its call; in no
    /// order.
    pub fn steps(&self) -> impl Iterator<Item = (Option<Sig>, Step)> {
        let calls = self.calls.iter().map(|entry| (entry.call, entry.step()));
        let turns = self.turns.iter().map(|turn| {
            let kind = StepKind::AgentTurn;
            (None, step(turn.at.index, turn.at.time, kind))
        });
        let marks = self.marks.iter().map(|mark| {
            let kind = match mark.what {
                Marked::User => StepKind::UserTurn,
                Marked::Compaction => StepKind::Compaction,
                Marked::NewRun => StepKind::NewRun,
            };
            (None, step(mark.index, mark.time, kind))
        });
        calls.chain(turns).chain(marks)
    }

    pub fn heap_bytes(&self) -> usize {
        let marks = if self.marks.spilled() {
            self.marks.capacity() * size_of::<Mark>()
        } else {
            0
        };
        self.calls.capacity() * size_of::<Entry>()
            + self.turns.capacity() * size_of::<TurnEntry>()
            + self.words_bytes
            + marks
            + self.sketches.capacity() * size_of::<Sketch>()
            + self.sketches.iter().map(Sketch::heap_bytes).sum::<usize>()
    }
}

impl Entry {
    /// The call in words.
    pub fn member(&self) -> Member {
        Member {
            tool: self.tool.clone(),
            target: self.target_text.clone(),
            event_id: self.event_id.clone(),
        }
    }

    fn step(&self) -> Step {
        let kind = StepKind::Call {
            tool: self.tool.clone(),
            target: self.target_text.clone(),
            operation: self.operation,
            outcome: self.outcome,
        };
        step(self.at.index, self.at.time, kind)
    }

    fn words_bytes(&self) -> usize {
        self.tool.capacity() + self.target_text.capacity() + self.event_id.capacity()
    }
}

fn step(index: i32, time: SystemTime, kind: StepKind) -> Step {
    Step { index, time, kind }
}

fn refill(buffer: &mut String, text: &str) {
    buffer.clear();
    buffer.push_str(text);
}
