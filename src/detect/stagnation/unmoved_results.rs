//! Calls that return the same after each change of one thing.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::super::streak::Streak;
use crate::domain::{Action, CallFacts, EventPosition, Finding, LazyBox, Operation, Sig};

/// The similarity in a finding of an unmoved result, which no other finding has.
const UNMOVED_SIMILARITY: f64 = 0.0;
const UNMOVED_CONFIDENCE: f64 = 0.8;
/// A change that must not be seen in the result exists, too: a program is put in order.
const UNMOVED_ACTION_MAX: Action = Action::Warn;

/// The check that an agent makes between changes of one thing, and no other run.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct UnmovedResults {
    /// What was changed last.
    changed: Option<Sig>,
    check: Option<Check>,
}

/// A call that was made between changes and has returned the same each time.
#[derive(Serialize, Deserialize)]
struct Check {
    call: Sig,
    outcome: Sig,
    /// The session's progress at its latest run.
    progress: u32,
    runs: Streak,
}

impl UnmovedResults {
    /// Counts runs with changes of one thing between them; `rounds` of changes are found.
    pub fn observe(
        this: &mut LazyBox<Self>,
        at: EventPosition,
        facts: &CallFacts,
        rounds: u32,
    ) -> Option<Finding> {
        if changes(facts) {
            let this = this.get_or_insert_with(Box::default);
            // Work on several things is no search for one result.
            let changed = facts.target.filter(|_| facts.is_change());
            let changed = Some(changed.unwrap_or(facts.tool));
            if this.changed != changed || facts.moves_world {
                this.changed = changed;
                this.check = None;
            }
            return None;
        }
        // Before the first change there is nothing to move.
        let this = this.get_mut()?;
        let is_check = matches!(facts.operation, Operation::Execute | Operation::Other);
        let call = facts.call.filter(|_| is_check)?;
        let outcome = facts.masked_outcome;
        if let Some(check) = &mut this.check
            && (check.call, check.outcome) == (call, outcome)
        {
            return check.push(at, rounds);
        }
        let is_new = this.changed.is_some() && facts.leaves_open && !facts.failed();
        this.check = is_new.then(|| {
            let mut runs = Streak::default();
            runs.push(at, Some(call));
            Check {
                call,
                outcome,
                progress: at.progress,
                runs,
            }
        });
        None
    }

    pub fn consume(&mut self, cited: &[i32]) {
        if let Some(check) = &mut self.check {
            check.runs.consume(cited);
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.check
            .as_ref()
            .map_or(0, |check| check.runs.heap_bytes())
    }
}

impl Check {
    /// Counts a run, if something was changed since the last one.
    fn push(&mut self, at: EventPosition, rounds: u32) -> Option<Finding> {
        if self.progress == at.progress {
            return None;
        }
        self.progress = at.progress;
        if !self.runs.push(at, Some(self.call)) {
            return None;
        }
        let finding = self.runs.finding_at_threshold(rounds.saturating_add(1))?;
        Some(Finding {
            similarity: UNMOVED_SIMILARITY,
            confidence: UNMOVED_CONFIDENCE,
            action_max: Some(UNMOVED_ACTION_MAX),
            loop_key: smallvec![self.call, self.outcome],
            ..finding
        })
    }
}

/// Whether a call changed something.
fn changes(facts: &CallFacts) -> bool {
    (facts.wrote() || (facts.also_writes && !facts.failed()))
        && !facts.changed_nothing
        && facts.plan_steps_done.is_none()
}
