//! What a session begins with and leaves: snoozes, agents that were ended, and
//! what is left of it when a panic struck.

use std::time::SystemTime;

use uuid::Uuid;

use super::Session;
use crate::engine::{EngineContext, RecordError, agent::Agent, carry_over::CarryOver};

impl Session {
    /// Ends a snooze that is over, and the time for which it was spared.
    pub(super) fn expire_snooze(&mut self, now: SystemTime, ctx: &EngineContext) {
        let history = &*self.verdict_history;
        let snooze_expired = history.snoozed_until.is_some_and(|until| until <= now);
        let breaker_closed = history.is_termination_withheld && !ctx.tenant.breaker.is_open();
        if snooze_expired {
            self.verdict_history.snoozed_until = None;
        }
        if breaker_closed {
            self.verdict_history.is_termination_withheld = false;
        }
        if snooze_expired || breaker_closed {
            let agents = self.agents.iter_mut();
            agents.for_each(|agent| agent.policy.clear_unenforced_terminations());
        }
    }

    pub fn snooze(&mut self, until: SystemTime) {
        self.verdict_history.snoozed_until = Some(until);
    }

    /// Goes on with what an earlier session of the same id has left.
    pub fn apply_carry_over(&mut self, carry_over: CarryOver) {
        if carry_over.snoozed_until.is_some() {
            self.verdict_history.snoozed_until = carry_over.snoozed_until;
        }
        for verdict in carry_over.agent_terminations {
            let mut agent = Agent::new(verdict.agent.clone());
            agent.termination = Some(verdict);
            self.agents.push(agent);
        }
    }

    /// What outlives it.
    pub fn carry_over(&self) -> CarryOver {
        CarryOver {
            agent_terminations: self.terminations(),
            snoozed_until: self.verdict_history.snoozed_until,
        }
    }

    /// What is left of it when a panic has struck: its name and place, and which
    /// of its agents are over.
    pub fn to_quarantined(&self, reference: Uuid) -> Self {
        let mut session = Self::new(
            self.profile.clone(),
            self.labels.clone(),
            self.deadline_key,
            self.created,
        );
        session.last_seen = self.last_seen;
        session.apply_carry_over(self.carry_over());
        session.verdict_history.quarantine = Some(reference);
        session.verdict_history.is_queued_with_verdicts =
            self.verdict_history.is_queued_with_verdicts;
        session.accounted_bytes = self.accounted_bytes;
        session
    }

    /// It knows something that would be lost with it: a verdict was given, an
    /// agent of it is over, it is snoozed or quarantined.
    pub fn has_verdicts(&self) -> bool {
        let history = &*self.verdict_history;
        !history.verdicts.is_empty()
            || history.quarantine.is_some()
            || history.snoozed_until.is_some()
            || self.agents.iter().any(Agent::is_terminated)
    }

    pub fn is_queued_with_verdicts(&self) -> bool {
        self.verdict_history.is_queued_with_verdicts
    }

    pub fn set_queued_with_verdicts(&mut self) {
        self.verdict_history.is_queued_with_verdicts = true;
    }

    pub(super) fn check_quarantine(&self) -> Result<(), RecordError> {
        self.verdict_history
            .quarantine
            .map_or(Ok(()), |reference| Err(RecordError::Quarantined(reference)))
    }
}
