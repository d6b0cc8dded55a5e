//! What a session begins with and leaves: snoozes, agents that were ended, and
//! what is left of it when a panic struck.

use std::time::SystemTime;

use uuid::Uuid;

use super::Session;
use crate::engine::{Refused, Shared, agent::Agent, legacy::Legacy};

impl Session {
    /// Ends a snooze that is over, and the time for which it was spared.
    pub(super) fn wake(&mut self, now: SystemTime, shared: &Shared) {
        let story = &*self.story;
        let slept = story.snoozed_until.is_some_and(|until| until <= now);
        let spared = story.is_spared && !shared.held.breaker.is_open();
        if slept {
            self.story.snoozed_until = None;
        }
        if spared {
            self.story.is_spared = false;
        }
        if slept || spared {
            let agents = self.agents.iter_mut();
            agents.for_each(|agent| agent.judge.unsay_terminations());
        }
    }

    pub fn snooze(&mut self, until: SystemTime) {
        self.story.snoozed_until = Some(until);
    }

    /// Goes on with what an earlier session of the same id has left.
    pub fn inherit(&mut self, legacy: Legacy) {
        if legacy.snoozed_until.is_some() {
            self.story.snoozed_until = legacy.snoozed_until;
        }
        for verdict in legacy.agents {
            let mut agent = Agent::new(verdict.agent.clone());
            agent.terminated = Some(verdict);
            self.agents.push(agent);
        }
    }

    /// What outlives it.
    pub fn legacy(&self) -> Legacy {
        Legacy {
            agents: self.terminations(),
            snoozed_until: self.story.snoozed_until,
        }
    }

    /// What is left of it when a panic has struck: its name and place, and which
    /// of its agents are over.
    pub fn quarantined(&self, reference: Uuid) -> Self {
        let mut session = Self::new(
            self.profile.clone(),
            self.labels.clone(),
            self.place,
            self.created,
        );
        session.last_seen = self.last_seen;
        session.inherit(self.legacy());
        session.story.quarantine = Some(reference);
        session.story.stands_with_told = self.story.stands_with_told;
        session.accounted_bytes = self.accounted_bytes;
        session
    }

    /// It knows something that would be lost with it: a verdict was given, an
    /// agent of it is over, it is snoozed or quarantined.
    pub fn is_told(&self) -> bool {
        let story = &*self.story;
        !story.verdicts.is_empty()
            || story.quarantine.is_some()
            || story.snoozed_until.is_some()
            || self.agents.iter().any(Agent::is_over)
    }

    pub fn stands_with_told(&self) -> bool {
        self.story.stands_with_told
    }

    pub fn stand_with_told(&mut self) {
        self.story.stands_with_told = true;
    }

    pub(super) fn check_quarantine(&self) -> Result<(), Refused> {
        self.story
            .quarantine
            .map_or(Ok(()), |reference| Err(Refused::Quarantined(reference)))
    }
}
