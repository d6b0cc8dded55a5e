use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
};

use smallvec::SmallVec;

use crate::domain::{Action, AgentId, Finding, LoopId, Room, Sig, Waste};

/// The loops of one agent, latest last. They are remembered for the whole
/// session: a loop that was warned about and comes back is no news.
#[derive(Default)]
pub(super) struct Memory {
    loops: VecDeque<Loop>,
    /// The events of reported loops that have ended.
    spent: Vec<i32>,
}

pub(super) struct Loop {
    pub id: LoopId,
    cites: SmallVec<[Sig; 4]>,
    /// The latest event its detectors looked at belongs to it.
    pub standing: bool,
    /// The strongest that was said about it; `None`: nothing yet.
    pub said: Option<Action>,
    /// How many verdicts were given on it.
    pub verdicts: u32,
    /// The detectors that have seen it, as bits.
    pub detectors: u64,
    /// Its latest events, oldest first.
    pub events: VecDeque<i32>,
    /// Events of runs that have ended.
    held_before: i32,
    /// Events of the run that goes on.
    held_now: i32,
    /// How often the pattern stands in it.
    count: i32,
    /// What ended runs have cost.
    wasted_before: Waste,
    /// The session's totals when the present run began.
    began: Waste,
    /// What is already counted of its cost.
    pub counted: Waste,
}

impl Memory {
    /// What a loop is known by.
    const CITES_MAX: usize = 16;
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
        let shares = |known: &Loop| known.cites.iter().any(&cites);
        let find = |meant: &dyn Fn(&Loop) -> bool| self.loops.iter().rposition(meant);
        find(&|known| known.standing && shares(known))
            .or_else(|| find(&|known| known.id == id))
            .or_else(|| find(&|known| known.detectors & extending != 0 && shares(known)))
    }

    /// Adds a loop. Where there is no room the one that ended longest ago goes.
    pub fn add(&mut self, id: LoopId, room: &Room) -> usize {
        room.make(&mut self.loops, VecDeque::len, |loops| {
            let ended = loops.iter().position(|known| !known.standing);
            loops.remove(ended.unwrap_or(0));
        });
        self.loops.push_back(Loop {
            id,
            cites: SmallVec::new(),
            standing: false,
            said: None,
            verdicts: 0,
            detectors: 0,
            events: VecDeque::new(),
            held_before: 0,
            held_now: 0,
            count: 0,
            wasted_before: Waste::default(),
            began: Waste::default(),
            counted: Waste::default(),
        });
        self.loops.len() - 1
    }

    /// Remembers what a loop cites, the first of it.
    pub fn cite(&mut self, position: usize, cites: impl Iterator<Item = Sig>) {
        let Some(known) = self.loops.get_mut(position) else {
            return;
        };
        for sig in cites {
            if known.cites.len() < Self::CITES_MAX && !known.cites.contains(&sig) {
                known.cites.push(sig);
            }
        }
    }

    pub fn get_mut(&mut self, position: usize) -> Option<&mut Loop> {
        self.loops.get_mut(position)
    }

    /// The standing loop of this id.
    pub fn standing(&mut self, id: LoopId) -> Option<&mut Loop> {
        let mut loops = self.loops.iter_mut();
        loops.find(|known| known.standing && known.id == id)
    }

    /// Ends the standing loops that one of their detectors looked for on this
    /// event and did not find.
    pub fn end(&mut self, looked: u64, except: Option<usize>) {
        for (position, known) in self.loops.iter_mut().enumerate() {
            if known.standing && known.detectors & looked != 0 && Some(position) != except {
                known.standing = false;
                if known.said.is_some() {
                    self.spent.extend(&known.events);
                }
            }
        }
    }

    pub fn take_spent(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.spent)
    }

    /// Ends the standing loop that cites this.
    pub fn end_citing(&mut self, sig: Sig) {
        let cites = |known: &&mut Loop| known.standing && known.cites.contains(&sig);
        if let Some(known) = self.loops.iter_mut().find(cites) {
            known.standing = false;
        }
    }

    /// Counts start anew: no loop stands, and none holds anything.
    pub fn end_all(&mut self) {
        for known in &mut self.loops {
            known.standing = false;
            known.held_before = 0;
            known.held_now = 0;
        }
    }

    /// The latest loop that cites the event.
    pub fn loop_of(&self, index: i32) -> Option<LoopId> {
        let mut latest_first = self.loops.iter().rev();
        let cites = |known: &&Loop| known.events.contains(&index);
        latest_first.find(cites).map(|known| known.id)
    }

    /// Terminations that were only reported may be said again, and meant.
    pub fn unsay_terminations(&mut self) {
        for known in &mut self.loops {
            known.said = known.said.min(Some(Action::Escalate));
        }
    }

    /// A loop that was reported stands.
    pub fn is_looping(&self) -> bool {
        self.loops
            .iter()
            .any(|known| known.standing && known.said.is_some())
    }

    pub fn heap_bytes(&self) -> usize {
        let held = |known: &Loop| {
            let cites = match known.cites.spilled() {
                true => known.cites.capacity() * size_of::<Sig>(),
                false => 0,
            };
            known.events.capacity() * size_of::<i32>() + cites
        };
        self.loops.capacity() * size_of::<Loop>()
            + self.loops.iter().map(held).sum::<usize>()
            + self.spent.capacity() * size_of::<i32>()
    }
}

impl Loop {
    /// A run begins, the first or another: `began` are the session's totals
    /// before its first event.
    pub fn begin_run(&mut self, began: Waste) {
        self.held_before = self.held();
        self.held_now = 0;
        self.count = 0;
        self.wasted_before = self.counted;
        self.began = began;
    }

    /// A verdict is given on it.
    pub fn say(&mut self, action: Action) {
        self.said = self.said.max(Some(action));
        self.verdicts += 1;
    }

    /// Takes a finding of the present run in.
    pub fn take(&mut self, finding: &Finding) {
        self.standing = true;
        self.count = self.count.max(finding.count);
        // A lap of several calls holds each of them; a unit of text is one.
        let lap = if finding.calls.is_empty() {
            1
        } else {
            finding.period.max(1)
        };
        let held = finding.count.saturating_mul(lap);
        self.held_now = self.held_now.max(held);
        for event in &finding.events {
            if self.events.back().is_none_or(|last| last < event) {
                if self.events.len() == Memory::EVENTS_MAX {
                    self.events.pop_front();
                }
                self.events.push_back(*event);
            }
        }
    }

    /// How often the pattern stands in its present run.
    pub fn count(&self) -> i32 {
        self.count
    }

    /// How many events it holds, over all its runs.
    pub fn held(&self) -> i32 {
        self.held_before.saturating_add(self.held_now)
    }

    /// Whether to ask for another, longer wait before anything harder: what is
    /// down or unfinished comes back after a wait that was too short.
    pub fn throttles(&self, soft: Action) -> bool {
        const THROTTLES_MAX: u32 = 3;
        soft == Action::Throttle
            && self.said == Some(Action::Throttle)
            && self.verdicts < THROTTLES_MAX
    }

    /// What it has cost, given the session's totals now.
    pub fn wasted(&self, totals: Waste) -> Waste {
        let mut wasted = self.wasted_before;
        wasted += totals.since(self.began);
        wasted
    }
}

/// Names a loop by its agent and what it consists of, in any order. The
/// signatures are keyed already.
pub(super) fn loop_id(agent: &AgentId, cites: &[Sig]) -> LoopId {
    let mut sorted: SmallVec<[Sig; 8]> = cites.into();
    sorted.sort_unstable();
    sorted.dedup();
    let mut hasher = DefaultHasher::new();
    agent.hash(&mut hasher);
    sorted.hash(&mut hasher);
    LoopId(hasher.finish())
}
