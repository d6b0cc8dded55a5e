//! What a session begins with and leaves: snoozes, and agents that were ended.

use std::time::SystemTime;

use super::Session;
use crate::engine::{agent::Agent, legacy::Legacy};

impl Session {
    /// Ends a snooze that is over.
    pub(super) fn wake(&mut self, now: SystemTime) {
        if self.snoozed_until.is_some_and(|until| until <= now) {
            self.snoozed_until = None;
            let agents = self.agents.iter_mut();
            agents.for_each(|agent| agent.judge.unsay_terminations());
        }
    }

    pub fn snooze(&mut self, until: SystemTime) {
        self.snoozed_until = Some(until);
    }

    /// Goes on with what an earlier session of the same id has left.
    pub fn inherit(&mut self, legacy: Legacy) {
        self.snoozed_until = legacy.snoozed_until;
        for verdict in legacy.agents {
            let mut agent = Agent::new(verdict.agent.clone(), &self.profile);
            agent.terminated = Some(verdict);
            self.agents.push(agent);
        }
    }

    /// What outlives it.
    pub fn legacy(&self) -> Legacy {
        Legacy {
            agents: self.terminations(),
            snoozed_until: self.snoozed_until,
        }
    }
}
