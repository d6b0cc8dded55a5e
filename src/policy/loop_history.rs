use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
};

use smallvec::SmallVec;

use crate::domain::{Action, AgentId, Capacity, Finding, LoopId, Sig, Waste};

/// The loops of one agent, latest last. They are remembered for the whole
/// session: a loop that was warned about and comes back is no news.
#[derive(Default)]
pub(super) struct LoopHistory {
    loops: VecDeque<Loop>,
    /// The events of reported loops that have ended.
    consumed_events: Vec<i32>,
}

pub(super) struct Loop {
    pub id: LoopId,
    signatures: SmallVec<[Sig; 4]>,
    /// The latest event its detectors looked at belongs to it.
    pub is_active: bool,
    /// The strongest that was said about it; `None`: nothing yet.
    pub strongest_action: Option<Action>,
    /// How many verdicts were given on it.
    pub verdict_count: u32,
    /// The detectors that have seen it, as bits.
    pub detectors: u64,
    /// Its latest events, oldest first.
    pub events: VecDeque<i32>,
    /// Events of runs that have ended.
    past_run_events: i32,
    /// Events of the run that goes on.
    current_run_events: i32,
    /// How often the pattern stands in it.
    repetitions: i32,
    /// What ended runs have cost.
    past_run_waste: Waste,
    /// The session's totals when the present run began.
    run_start_totals: Waste,
    /// What is already counted of its cost.
    pub counted_waste: Waste,
}

impl LoopHistory {
    /// What a loop is known by.
    const SIGNATURES_MAX: usize = 16;
    /// Events that a verdict names.
    const EVENTS_MAX: usize = 64;

    /// The standing loop that cites any of the same, else the known loop of
    /// exactly these, else the latest with any of the same that one of the
    /// `extending` detectors has seen: its run has not ended, whatever ended the
    /// loop for another detector.
    pub fn find(
        &mut self,
        id: LoopId,
        extending: u64,
        cites: impl Fn(&Sig) -> bool,
    ) -> Option<usize> {
        let shares = |known: &Loop| known.signatures.iter().any(&cites);
        let find = |meant: &dyn Fn(&Loop) -> bool| self.loops.iter().rposition(meant);
        find(&|known| known.is_active && shares(known))
            .or_else(|| find(&|known| known.id == id))
            .or_else(|| find(&|known| known.detectors & extending != 0 && shares(known)))
    }

    /// Adds a loop. Where there is no room the one that ended longest ago goes.
    pub fn insert(&mut self, id: LoopId, room: &Capacity) -> usize {
        room.evict_to_fit(&mut self.loops, VecDeque::len, |loops| {
            let ended = loops.iter().position(|known| !known.is_active);
            loops.remove(ended.unwrap_or(0));
        });
        self.loops.push_back(Loop {
            id,
            signatures: SmallVec::new(),
            is_active: false,
            strongest_action: None,
            verdict_count: 0,
            detectors: 0,
            events: VecDeque::new(),
            past_run_events: 0,
            current_run_events: 0,
            repetitions: 0,
            past_run_waste: Waste::default(),
            run_start_totals: Waste::default(),
            counted_waste: Waste::default(),
        });
        self.loops.len() - 1
    }

    /// Remembers what a loop cites, the first of it.
    pub fn add_signatures(&mut self, position: usize, cites: impl Iterator<Item = Sig>) {
        let Some(known) = self.loops.get_mut(position) else {
            return;
        };
        for sig in cites {
            if known.signatures.len() < Self::SIGNATURES_MAX && !known.signatures.contains(&sig) {
                known.signatures.push(sig);
            }
        }
    }

    pub fn get_mut(&mut self, position: usize) -> Option<&mut Loop> {
        self.loops.get_mut(position)
    }

    /// The standing loop of this id.
    pub fn find_active_mut(&mut self, id: LoopId) -> Option<&mut Loop> {
        let mut loops = self.loops.iter_mut();
        loops.find(|known| known.is_active && known.id == id)
    }

    /// Ends the standing loops that one of their detectors looked for on this
    /// event and did not find.
    pub fn end_unmatched(&mut self, missed: u64, except: Option<usize>) {
        for (position, known) in self.loops.iter_mut().enumerate() {
            if known.is_active && known.detectors & missed != 0 && Some(position) != except {
                known.is_active = false;
                if known.strongest_action.is_some() {
                    self.consumed_events.extend(&known.events);
                }
            }
        }
    }

    pub fn take_consumed_events(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.consumed_events)
    }

    /// Ends the standing loop that cites this.
    pub fn end_with_signature(&mut self, sig: Sig) {
        let cites = |known: &&mut Loop| known.is_active && known.signatures.contains(&sig);
        if let Some(known) = self.loops.iter_mut().find(cites) {
            known.is_active = false;
        }
    }

    /// Counts start anew: no loop stands, and none holds anything.
    pub fn end_all(&mut self) {
        for known in &mut self.loops {
            known.is_active = false;
            known.past_run_events = 0;
            known.current_run_events = 0;
        }
    }

    /// The latest loop that cites the event.
    pub fn find_loop_with_event(&self, index: i32) -> Option<LoopId> {
        let mut latest_first = self.loops.iter().rev();
        let cites = |known: &&Loop| known.events.contains(&index);
        latest_first.find(cites).map(|known| known.id)
    }

    /// Terminations that were only reported may be said again, and meant.
    pub fn clear_unenforced_terminations(&mut self) {
        for known in &mut self.loops {
            known.strongest_action = known.strongest_action.min(Some(Action::Escalate));
        }
    }

    /// A loop that was reported stands.
    pub fn is_looping(&self) -> bool {
        self.loops
            .iter()
            .any(|known| known.is_active && known.strongest_action.is_some())
    }

    pub fn heap_bytes(&self) -> usize {
        let loop_bytes = |known: &Loop| {
            let cites = match known.signatures.spilled() {
                true => known.signatures.capacity() * size_of::<Sig>(),
                false => 0,
            };
            known.events.capacity() * size_of::<i32>() + cites
        };
        self.loops.capacity() * size_of::<Loop>()
            + self.loops.iter().map(loop_bytes).sum::<usize>()
            + self.consumed_events.capacity() * size_of::<i32>()
    }
}

impl Loop {
    /// A run begins, the first or another: `began` are the session's totals
    /// before its first event.
    pub fn start_run(&mut self, start_totals: Waste) {
        self.past_run_events = self.total_events();
        self.current_run_events = 0;
        self.repetitions = 0;
        self.past_run_waste = self.counted_waste;
        self.run_start_totals = start_totals;
    }

    /// A verdict is given on it.
    pub fn record_verdict(&mut self, action: Action) {
        self.strongest_action = self.strongest_action.max(Some(action));
        self.verdict_count += 1;
    }

    /// Takes a finding of the present run in.
    pub fn add_finding(&mut self, finding: &Finding) {
        self.is_active = true;
        self.repetitions = self.repetitions.max(finding.count);
        // A lap of several calls holds each of them; a unit of text is one.
        let lap = if finding.calls.is_empty() {
            1
        } else {
            finding.period.max(1)
        };
        let run_events = finding.count.saturating_mul(lap);
        self.current_run_events = self.current_run_events.max(run_events);
        for event in &finding.events {
            if self.events.back().is_none_or(|last| last < event) {
                if self.events.len() == LoopHistory::EVENTS_MAX {
                    self.events.pop_front();
                }
                self.events.push_back(*event);
            }
        }
    }

    /// How often the pattern stands in its present run.
    pub fn repetitions(&self) -> i32 {
        self.repetitions
    }

    /// How many events it holds, over all its runs.
    pub fn total_events(&self) -> i32 {
        self.past_run_events.saturating_add(self.current_run_events)
    }

    /// Whether to ask for another, longer wait before anything harder: what is
    /// down or unfinished comes back after a wait that was too short.
    pub fn may_throttle_again(&self, soft: Action) -> bool {
        const THROTTLES_MAX: u32 = 3;
        soft == Action::Throttle
            && self.strongest_action == Some(Action::Throttle)
            && self.verdict_count < THROTTLES_MAX
    }

    /// What it has cost, given the session's totals now.
    pub fn waste_at(&self, totals: Waste) -> Waste {
        let mut wasted = self.past_run_waste;
        wasted += totals.saturating_sub(self.run_start_totals);
        wasted
    }
}

/// Names a loop by its agent and what it consists of, in any order. The
/// signatures are keyed already.
pub(super) fn compute_loop_id(agent: &AgentId, signatures: &[Sig]) -> LoopId {
    let mut sorted: SmallVec<[Sig; 8]> = signatures.into();
    sorted.sort_unstable();
    sorted.dedup();
    let mut hasher = DefaultHasher::new();
    agent.hash(&mut hasher);
    sorted.hash(&mut hasher);
    LoopId(hasher.finish())
}
