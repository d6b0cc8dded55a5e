//! The standing of one agent: the verdicts whose actions are in force.
//!
//! A BLOCK or ESCALATE holds until the session makes progress, the user says something, a
//! new run begins, or the session is reset or ends. Any other action holds while its loop
//! is active: a BREAK stops one generation, and a warning is outdated when the agent has
//! moved on.

use std::{sync::Arc, time::SystemTime};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{
    domain::{Action, CallKey, LoopId, Sig, Standing, Verdict, VerdictId, serde_time},
    policy::AgentPolicy,
};

/// The loops of an agent with an action in force.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct StandingLoops {
    loops: Vec<StandingLoop>,
}

#[derive(Serialize, Deserialize)]
struct StandingLoop {
    id: LoopId,
    /// The strongest action of its verdicts, and the verdict that it comes from.
    action: Action,
    verdict_id: VerdictId,
    #[serde(with = "serde_time")]
    since: SystemTime,
    /// The session's progress count at the latest verdict.
    progress: u32,
    /// Its distinct calls.
    calls: SmallVec<[Sig; 4]>,
    /// Where they were made when its verdicts were given; `None`: where the agent works.
    directories: SmallVec<[Option<Sig>; 1]>,
    /// Its calls are refused.
    is_blocked: bool,
    /// It is saved only with the session's verdicts, because it quotes agents.
    #[serde(skip)]
    verdict: Option<Arc<Verdict>>,
    /// Not saved, for the same reason.
    #[serde(skip)]
    call_keys: Vec<CallKey>,
}

/// The finding of a check of a call.
pub(super) struct StandingCall {
    pub action: Action,
    pub verdict: Option<Arc<Verdict>>,
}

impl StandingLoops {
    /// Loops with an action in force. If there are more, the weakest is dropped.
    const LOOPS_MAX: usize = 16;
    /// Calls of a loop, and keys in an answer.
    const CALLS_MAX: usize = 64;
    /// Directories of a loop. In a further one its calls are not refused.
    const DIRECTORIES_MAX: usize = 16;

    /// Adds a verdict that is not a shadow verdict. `calls` are the signatures of its
    /// members, `directory` is that of the last.
    pub fn add(
        &mut self,
        verdict: &Arc<Verdict>,
        (calls, directory): (&[Sig], Option<Sig>),
        progress: u32,
    ) {
        let (Some(action), Some(id)) = (verdict.effective_action(), verdict.loop_id) else {
            return;
        };
        // Find the loop, or add it.
        let position = self.loops.iter().position(|known| known.id == id);
        let position = position.unwrap_or_else(|| {
            self.make_room();
            self.loops.push(StandingLoop {
                id,
                action,
                verdict_id: verdict.id,
                since: verdict.time,
                progress,
                calls: SmallVec::new(),
                directories: SmallVec::new(),
                is_blocked: false,
                verdict: None,
                call_keys: Vec::new(),
            });
            self.loops.len() - 1
        });
        let Some(known) = self.loops.get_mut(position) else {
            return;
        };
        // Record what holds now, for which calls and where.
        known.progress = progress;
        known.is_blocked |= action == Action::Block;
        if action >= known.action {
            known.action = action;
            known.verdict_id = verdict.id;
            known.since = verdict.time;
            known.verdict = Some(verdict.clone());
        }
        for sig in calls {
            if known.calls.len() < Self::CALLS_MAX && !known.calls.contains(sig) {
                known.calls.push(*sig);
            }
        }
        if known.directories.len() < Self::DIRECTORIES_MAX
            && !known.directories.contains(&directory)
        {
            known.directories.push(directory);
        }
        known.add_call_keys(verdict);
    }

    fn make_room(&mut self) {
        if self.loops.len() < Self::LOOPS_MAX {
            return;
        }
        let weakest = (0..).zip(&self.loops).min_by_key(|(_, known)| known.action);
        if let Some((position, _)) = weakest {
            self.loops.remove(position);
        }
    }

    /// Drops what no longer holds at this progress count of the session.
    pub fn update(&mut self, progress: u32, policy: &AgentPolicy) {
        self.loops.retain(|known| known.holds(progress, policy));
    }

    /// The action in force at this progress count of the session.
    pub fn current(&self, progress: u32, policy: &AgentPolicy) -> Option<Standing> {
        let loops = || {
            let loops = self.loops.iter();
            loops.filter(|known| known.holds(progress, policy))
        };
        // The latest of equals.
        let strongest = loops().max_by_key(|known| known.action)?;
        let blocked = loops().filter(|known| known.is_blocked);
        let mut keys: Vec<CallKey> = Vec::new();
        for key in blocked.flat_map(|known| &known.call_keys) {
            if keys.len() < Self::CALLS_MAX && !keys.contains(key) {
                keys.push(*key);
            }
        }
        Some(Standing {
            action: strongest.action,
            verdict: strongest.verdict_id,
            since: strongest.since,
            blocked: keys,
        })
    }

    /// The action that holds for this call in this directory, from ASK up. A caller that
    /// cannot perform it refuses the call.
    pub fn check(
        &self,
        (call, directory): (Sig, Option<Sig>),
        progress: u32,
        policy: &AgentPolicy,
    ) -> Option<StandingCall> {
        let of_call = self.loops.iter().filter(|known| {
            known.holds(progress, policy)
                && known.calls.contains(&call)
                && known.directories.contains(&directory)
        });
        let checked = of_call.filter_map(|known| {
            let action = match known.action {
                _ if known.is_blocked => Action::Block,
                action if action >= Action::Ask => action,
                _ => return None,
            };
            let verdict = known.verdict.clone();
            Some(StandingCall { action, verdict })
        });
        checked.max_by_key(|checked| checked.action)
    }

    /// The latest loop whose verdicts name this call.
    pub fn find_loop(&self, call: Sig) -> Option<LoopId> {
        let mut latest_first = self.loops.iter().rev();
        latest_first
            .find(|known| known.calls.contains(&call))
            .map(|known| known.id)
    }

    /// Adds the key of a call whose loop was restored without it.
    pub fn learn_call_key(&mut self, call: Sig, key: impl Fn() -> Option<CallKey>) {
        for known in &mut self.loops {
            if known.call_keys.len() < known.calls.len() && known.calls.contains(&call) {
                known
                    .call_keys
                    .extend(key().filter(|key| !known.call_keys.contains(key)));
            }
        }
    }

    /// The verdicts that are known only by their ids.
    pub fn missing_verdicts(&self) -> impl Iterator<Item = VerdictId> {
        let missing = self.loops.iter().filter(|known| known.verdict.is_none());
        missing.map(|known| known.verdict_id)
    }

    /// Adds what is not saved with it, from the verdicts of a thawed session.
    pub fn link_verdicts<'a>(&mut self, verdicts: impl Iterator<Item = &'a Arc<Verdict>>) {
        for verdict in verdicts {
            for known in &mut self.loops {
                if verdict.loop_id == Some(known.id) {
                    known.add_call_keys(verdict);
                }
                if verdict.id == known.verdict_id {
                    known.verdict = Some(verdict.clone());
                }
            }
        }
    }

    /// Sets the session's progress count, which is not saved with a head.
    pub fn set_progress(&mut self, progress: u32) {
        for known in &mut self.loops {
            known.progress = progress;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.loops.is_empty()
    }

    pub fn heap_bytes(&self) -> usize {
        let owned = self.loops.iter().map(|known| {
            let spilled = if known.calls.spilled() {
                known.calls.capacity() * size_of::<Sig>()
            } else {
                0
            };
            let directories = if known.directories.spilled() {
                known.directories.capacity() * size_of::<Option<Sig>>()
            } else {
                0
            };
            spilled
                + directories
                + known.call_keys.capacity() * size_of::<CallKey>()
                + known.verdict.as_ref().map_or(0, |v| v.memory_bytes())
        });
        self.loops.capacity() * size_of::<StandingLoop>() + owned.sum::<usize>()
    }
}

impl StandingLoop {
    fn holds(&self, progress: u32, policy: &AgentPolicy) -> bool {
        if self.is_latched() {
            self.progress == progress
        } else {
            policy.is_loop_active(self.id)
        }
    }

    /// It holds although the loop has ended.
    fn is_latched(&self) -> bool {
        self.is_blocked || matches!(self.action, Action::Block | Action::Escalate)
    }

    fn add_call_keys(&mut self, verdict: &Verdict) {
        for key in verdict.members.iter().filter_map(|member| member.call_key) {
            if self.call_keys.len() < StandingLoops::CALLS_MAX && !self.call_keys.contains(&key) {
                self.call_keys.push(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{domain::LoopMember, testing};

    fn policy() -> AgentPolicy {
        AgentPolicy::default()
    }

    fn verdict(loop_id: u64, action: Action, calls: std::ops::Range<u8>) -> Arc<Verdict> {
        let member = |n: u8| LoopMember {
            tool: "get".to_owned(),
            target: String::new(),
            event_id: String::new(),
            call_key: Some(CallKey([n; 16])),
            args: String::new(),
        };
        Arc::new(Verdict {
            loop_id: Some(LoopId(loop_id)),
            action: Some(action),
            members: calls.map(member).collect(),
            ..Verdict::clone(&testing::verdict_record(1, "s", action).verdict)
        })
    }

    fn sigs(range: std::ops::Range<u64>) -> Vec<Sig> {
        range.map(|n| Sig::new(n + 1)).collect()
    }

    #[test]
    fn an_answer_has_64_keys_and_a_loop_64_calls() {
        let mut standing = StandingLoops::default();
        for (id, first) in [(1, 0u8), (2, 50)] {
            let calls = sigs(u64::from(first)..u64::from(first) + 50);
            let blocked = verdict(id, Action::Block, first..first + 50);
            standing.add(&blocked, (&calls, None), 0);
        }
        let current = standing.current(0, &policy()).unwrap();
        assert_eq!(current.blocked.len(), 64);
        let mut standing = StandingLoops::default();
        let calls = sigs(0..100);
        standing.add(&verdict(1, Action::Block, 0..100), (&calls, None), 0);
        let check = |n: u64| standing.check((Sig::new(n + 1), None), 0, &policy());
        assert!(check(63).is_some());
        assert!(check(64).is_none());
    }

    #[test]
    fn of_too_many_loops_the_weakest_is_dropped() {
        let mut standing = StandingLoops::default();
        for id in 0..20 {
            let action = if id == 3 {
                Action::Escalate
            } else {
                Action::Block
            };
            let calls = sigs(id..id + 1);
            standing.add(&verdict(id, action, 0..1), (&calls, None), 0);
        }
        assert_eq!(standing.loops.len(), StandingLoops::LOOPS_MAX);
        assert!(standing.loops.iter().any(|known| known.id == LoopId(3)));
        assert!(standing.loops.iter().any(|known| known.id == LoopId(19)));
    }
}
