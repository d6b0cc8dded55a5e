//! The loops of an agent and the verdicts on them.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::agent_policy::Refusal;
use crate::domain::{Action, AgentId, Capacity, DetectorId, Finding, LoopId, Sig, Waste};

/// The loops of one agent, latest last. They are remembered for the whole session,
/// so that a reported loop that recurs is recognized.
#[derive(Default, Serialize, Deserialize)]
pub struct LoopHistory {
    loops: VecDeque<Loop>,
    /// The events of reported loops that have ended since the last call of
    /// `take_consumed_events`.
    consumed_events: Vec<i32>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Loop {
    pub id: LoopId,
    signatures: SmallVec<[Sig; 4]>,
    /// The latest event that its detectors checked belongs to it.
    pub is_active: bool,
    /// The strongest reported action; `None`: it was not reported yet.
    pub strongest_action: Option<Action>,
    pub verdict_count: u32,
    /// The detectors that have found it, as bits.
    pub detectors: u64,
    /// The latest events, oldest first.
    pub events: VecDeque<i32>,
    /// Events of runs that have ended.
    past_run_events: i32,
    /// Events of the current run.
    current_run_events: i32,
    /// How often the pattern occurs in the current run.
    repetitions: i32,
    /// The cost of runs that have ended.
    past_run_waste: Waste,
    /// The agent's totals when the current run began.
    run_start_totals: Waste,
    /// The part of its cost that is already counted.
    pub counted_waste: Waste,
    /// The detector that described it in the latest verdict.
    pub detector: Option<DetectorId>,
    pub refusals: Refusals,
}

/// The refused calls of a loop.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Refusals {
    /// The number of them since the session last made progress.
    pub count: u32,
    /// The session's progress count at the latest of them.
    progress: u32,
    /// The strongest action that was reported because of them.
    pub reported: Option<Action>,
}

impl Refusals {
    /// Counts a refused call.
    pub fn add(&mut self, progress: u32) {
        if self.progress != progress {
            *self = Self::default();
        }
        self.progress = progress;
        self.count = self.count.saturating_add(1);
    }
}

impl LoopHistory {
    /// Signatures by which a loop is recognized.
    const SIGNATURES_MAX: usize = 16;
    /// Events that a verdict lists.
    const EVENTS_MAX: usize = 64;

    /// The active loop with any of the cited signatures.
    pub fn find_active(&self, is_cited: impl Fn(&Sig) -> bool) -> Option<usize> {
        self.loops
            .iter()
            .rposition(|known| known.is_active && known.signatures.iter().any(&is_cited))
    }

    /// The loop of this id, else the latest loop with any of the cited signatures that one
    /// of the `extending` detectors has found: for that detector the run has not ended, even
    /// if another detector has ended the loop.
    pub fn find(
        &self,
        id: LoopId,
        extending: u64,
        is_cited: impl Fn(&Sig) -> bool,
    ) -> Option<usize> {
        let of_id = self.loops.iter().rposition(|known| known.id == id);
        of_id.or_else(|| {
            self.loops.iter().rposition(|known| {
                known.detectors & extending != 0 && known.signatures.iter().any(&is_cited)
            })
        })
    }

    /// Adds a loop. If there are too many, the one that ended longest ago is evicted.
    pub fn insert(&mut self, id: LoopId, capacity: &Capacity) -> usize {
        capacity.evict_to_fit(&mut self.loops, VecDeque::len, |loops| {
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
            detector: None,
            refusals: Refusals::default(),
        });
        self.loops.len() - 1
    }

    /// Adds cited signatures to a loop, up to the limit.
    pub fn add_signatures(&mut self, position: usize, cited: impl Iterator<Item = Sig>) {
        let Some(known) = self.loops.get_mut(position) else {
            return;
        };
        for sig in cited {
            if known.signatures.len() < Self::SIGNATURES_MAX && !known.signatures.contains(&sig) {
                known.signatures.push(sig);
            }
        }
    }

    pub(super) fn get_mut(&mut self, position: usize) -> Option<&mut Loop> {
        self.loops.get_mut(position)
    }

    pub(super) fn find_active_mut(&mut self, id: LoopId) -> Option<&mut Loop> {
        let mut loops = self.loops.iter_mut();
        loops.find(|known| known.is_active && known.id == id)
    }

    /// The latest reported loop that this call belongs to: by its signature, else the one
    /// that is known to contain it, else by its path. A loop that is recognized by an error
    /// or a path has more calls than signatures.
    pub(super) fn find_reported_mut(&mut self, refusal: &Refusal) -> Option<&mut Loop> {
        let latest = |is_meant: &dyn Fn(&Loop) -> bool| {
            let mut loops = self.loops.iter();
            loops.rposition(|known| known.strongest_action.is_some() && is_meant(known))
        };
        let of_sig = |sig: Sig| latest(&|known| known.signatures.contains(&sig));
        let position = of_sig(refusal.call)
            .or_else(|| {
                let id = refusal.known_loop?;
                latest(&|known| known.id == id)
            })
            .or_else(|| refusal.path.and_then(of_sig))?;
        self.loops.get_mut(position)
    }

    pub fn is_active(&self, id: LoopId) -> bool {
        let mut loops = self.loops.iter();
        loops.any(|known| known.is_active && known.id == id)
    }

    /// Ends the active loops that one of their detectors checked for on this event
    /// and did not find.
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

    /// Ends the active loop with this signature.
    pub fn end_with_signature(&mut self, sig: Sig) {
        let mut loops = self.loops.iter_mut();
        if let Some(known) = loops.find(|known| known.is_active && known.signatures.contains(&sig))
        {
            known.is_active = false;
        }
    }

    /// Ends all loops and clears their event counts.
    pub fn end_all(&mut self) {
        for known in &mut self.loops {
            known.is_active = false;
            known.past_run_events = 0;
            known.current_run_events = 0;
            known.refusals = Refusals::default();
        }
    }

    /// The latest loop that contains the event.
    pub fn find_loop_with_event(&self, index: i32) -> Option<LoopId> {
        let mut latest_first = self.loops.iter().rev();
        let found = latest_first.find(|known| known.events.contains(&index))?;
        Some(found.id)
    }

    /// Lets terminations that were reported but not enforced be issued again.
    pub fn clear_unenforced_terminations(&mut self) {
        for known in &mut self.loops {
            let enforced = Some(Action::Escalate);
            known.strongest_action = known.strongest_action.min(enforced);
            known.refusals.reported = known.refusals.reported.min(enforced);
        }
    }

    /// Whether a reported loop is active.
    pub fn is_looping(&self) -> bool {
        self.loops
            .iter()
            .any(|known| known.is_active && known.strongest_action.is_some())
    }

    pub fn heap_bytes(&self) -> usize {
        self.loops.capacity() * size_of::<Loop>()
            + self.loops.iter().map(Loop::heap_bytes).sum::<usize>()
            + self.consumed_events.capacity() * size_of::<i32>()
    }
}

impl Loop {
    /// Starts a run, the first or another. `start_totals` are the agent's totals
    /// before the run's first event.
    pub fn start_run(&mut self, start_totals: Waste) {
        self.past_run_events = self.total_events();
        self.current_run_events = 0;
        self.repetitions = 0;
        self.past_run_waste = self.counted_waste;
        self.run_start_totals = start_totals;
    }

    pub fn record_verdict(&mut self, action: Action, detector: DetectorId) {
        self.detector = Some(detector);
        self.strongest_action = self.strongest_action.max(Some(action));
        self.verdict_count += 1;
    }

    /// Adds a finding of the current run.
    pub fn add_finding(&mut self, finding: &Finding) {
        self.is_active = true;
        self.repetitions = self.repetitions.max(finding.count);
        // A lap has one event per call; a unit of text counts as one event.
        let lap = if finding.calls.is_empty() {
            1
        } else {
            finding.period.max(1)
        };
        let run_events = finding.count.saturating_mul(lap);
        self.current_run_events = self.current_run_events.max(run_events);
        for event in &finding.events {
            self.add_event(*event);
        }
    }

    fn add_event(&mut self, event: i32) {
        if self.events.back().is_none_or(|last| *last < event) {
            if self.events.len() == LoopHistory::EVENTS_MAX {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
    }

    /// Adds a refused call and returns the cost that is counted now. `totals` are the
    /// agent's, the call included.
    pub fn add_refusal(&mut self, index: i32, progress: u32, cost: Waste, totals: Waste) -> Waste {
        self.add_event(index);
        self.refusals.add(progress);
        if self.is_active {
            return self.count_new_waste(totals);
        }
        // Between the end of the loop and this call the agent did something else.
        self.counted_waste += cost;
        cost
    }

    /// The signatures by which it is recognized, those of its calls among them.
    pub fn signatures(&self) -> &[Sig] {
        &self.signatures
    }

    /// How often the pattern occurs in the current run.
    pub fn repetitions(&self) -> i32 {
        self.repetitions
    }

    /// The calls of one lap of the current run; 1 for a plain repeat.
    pub fn lap(&self) -> u32 {
        let calls = self.current_run_events.checked_div(self.repetitions);
        calls.map_or(1, |calls| calls.max(1).unsigned_abs())
    }

    /// The number of events in all its runs.
    pub fn total_events(&self) -> i32 {
        self.past_run_events.saturating_add(self.current_run_events)
    }

    /// Whether to throttle again, with a longer delay, before a harder action: a
    /// service that is down or a job that is unfinished recurs after a delay that
    /// was too short.
    pub fn may_throttle_again(&self, soft: Action) -> bool {
        const THROTTLES_MAX: u32 = 3;
        soft == Action::Throttle
            && self.strongest_action == Some(Action::Throttle)
            && self.verdict_count < THROTTLES_MAX
    }

    /// The cost of the loop, given the agent's totals now.
    pub fn waste_at(&self, totals: Waste) -> Waste {
        let mut wasted = self.past_run_waste;
        wasted += totals.saturating_sub(self.run_start_totals);
        wasted
    }

    /// The cost since it was last counted, which is counted now.
    pub fn count_new_waste(&mut self, totals: Waste) -> Waste {
        let wasted = self.waste_at(totals);
        let new_waste = wasted.saturating_sub(self.counted_waste);
        self.counted_waste = wasted;
        new_waste
    }

    fn heap_bytes(&self) -> usize {
        let spilled_signatures = if self.signatures.spilled() {
            self.signatures.capacity() * size_of::<Sig>()
        } else {
            0
        };
        self.events.capacity() * size_of::<i32>() + spilled_signatures
    }
}

/// The id of a loop: a hash of its agent and its signatures, in any order. The
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
