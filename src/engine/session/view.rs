//! A session as an operator sees it.

use std::sync::Arc;

use super::{Agent, Session, VIEW_VERDICTS_MAX};
use crate::domain::{Abstention, DetectorId, SessionId, SessionStatus, SessionView, Verdict};
use crate::engine::fleet::Severity;

impl Session {
    pub fn status(&self) -> SessionStatus {
        let history = &*self.verdict_history;
        if history.termination.is_some() {
            SessionStatus::Terminated
        } else if history.quarantine.is_some() {
            SessionStatus::Quarantined
        } else if self.active_agents().any(|agent| agent.policy.is_looping()) {
            SessionStatus::Looping
        } else {
            SessionStatus::Active
        }
    }

    /// The agents that are not over.
    pub(super) fn active_agents(&self) -> impl Iterator<Item = &Agent> {
        self.agents.iter().filter(|agent| !agent.is_terminated())
    }

    /// The verdicts that ended agents of it, all of them: a view shows the last
    /// few only. One that ended the whole has left a tombstone in its place.
    pub fn terminations(&self) -> Vec<Arc<Verdict>> {
        let agents = self.agents.iter();
        agents
            .filter_map(|agent| agent.termination.clone())
            .collect()
    }

    pub fn last_verdict(&self) -> Option<&Arc<Verdict>> {
        self.verdict_history.verdicts.back()
    }

    /// How badly it is stuck.
    pub fn severity(&self) -> Severity {
        let last = self.last_verdict().map(|verdict| &**verdict);
        Severity::new(
            self.status(),
            self.strongest_trend(),
            self.verdict_history.wasted,
            last,
        )
    }

    fn strongest_trend(&self) -> f64 {
        let detectors = self.profile.policy.escalations.len();
        let ranks = || (0..).map(DetectorId).take(detectors);
        let trends = self
            .active_agents()
            .flat_map(|agent| ranks().filter_map(|rank| Some(agent.policy.trend(rank)?.ema)));
        trends.fold(0.0, f64::max)
    }

    pub fn view(&self, id: &SessionId) -> SessionView {
        let ranks = || {
            (0..)
                .map(DetectorId)
                .take(self.profile.policy.escalations.len())
        };
        let trends = self.active_agents().flat_map(|agent| {
            ranks().filter_map(|rank| {
                let trend = agent.policy.trend(rank)?;
                Some((agent.id.clone(), self.profile.detector_name(rank), trend))
            })
        });
        let hidden = self
            .verdict_history
            .verdicts
            .len()
            .saturating_sub(VIEW_VERDICTS_MAX);
        let abstention = |(detector, field, events): &(DetectorId, &'static str, u32)| Abstention {
            detector: self.profile.detector_name(*detector),
            field,
            events: *events,
        };
        SessionView {
            id: id.clone(),
            status: self.status(),
            profile: self.profile.name.clone(),
            labels: self.labels.clone(),
            created: self.created,
            last_event: self.last_seen,
            events: self.events,
            turns: self.turns,
            cost: self.cost,
            agents: self.agents.len(),
            trends: trends.collect(),
            trend_samples: self.trend_samples(),
            verdicts: self
                .verdict_history
                .verdicts
                .iter()
                .skip(hidden)
                .cloned()
                .collect(),
            wasted: self.verdict_history.wasted,
            avoidable: self.verdict_history.avoidable,
            abstentions: self.abstentions.iter().map(abstention).collect(),
            termination: self.verdict_history.termination.clone(),
            snoozed_until: self.verdict_history.snoozed_until,
        }
    }

    #[cfg(test)]
    pub fn retained_verdicts(&self) -> usize {
        self.verdict_history.verdicts.len()
    }
}
