//! A session as an operator sees it.

use std::sync::Arc;

use super::{Agent, Session, VERDICTS_SHOWN};
use crate::domain::{Abstention, DetectorId, SessionId, SessionView, Status, Verdict};
use crate::engine::fleet::Plight;

impl Session {
    pub fn status(&self) -> Status {
        let story = &*self.story;
        if story.termination.is_some() {
            Status::Terminated
        } else if story.quarantine.is_some() {
            Status::Quarantined
        } else if self.acting().any(|agent| agent.judge.is_looping()) {
            Status::Looping
        } else {
            Status::Active
        }
    }

    /// The agents that are not over.
    pub(super) fn acting(&self) -> impl Iterator<Item = &Agent> {
        self.agents.iter().filter(|agent| !agent.is_over())
    }

    /// The verdicts that ended agents of it, all of them: a view shows the last
    /// few only. One that ended the whole has left a tombstone in its place.
    pub fn terminations(&self) -> Vec<Arc<Verdict>> {
        let agents = self.agents.iter();
        agents
            .filter_map(|agent| agent.terminated.clone())
            .collect()
    }

    pub fn last_verdict(&self) -> Option<&Arc<Verdict>> {
        self.story.verdicts.back()
    }

    /// How badly it is stuck.
    pub fn plight(&self) -> Plight {
        let last = self.last_verdict().map(|verdict| &**verdict);
        Plight::new(
            self.status(),
            self.strongest_trend(),
            self.story.wasted,
            last,
        )
    }

    fn strongest_trend(&self) -> f64 {
        let detectors = self.profile.policy.ladders.len();
        let ranks = || (0..).map(DetectorId).take(detectors);
        let trends = self
            .acting()
            .flat_map(|agent| ranks().filter_map(|rank| Some(agent.judge.trend(rank)?.ema)));
        trends.fold(0.0, f64::max)
    }

    pub fn view(&self, id: &SessionId) -> SessionView {
        let ranks = || {
            (0..)
                .map(DetectorId)
                .take(self.profile.policy.ladders.len())
        };
        let trends = self.acting().flat_map(|agent| {
            ranks().filter_map(|rank| {
                let trend = agent.judge.trend(rank)?;
                Some((agent.id.clone(), self.profile.detector(rank), trend))
            })
        });
        let hidden = self.story.verdicts.len().saturating_sub(VERDICTS_SHOWN);
        let abstention = |(detector, field, events): &(DetectorId, &'static str, u32)| Abstention {
            detector: self.profile.detector(*detector),
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
            verdicts: self.story.verdicts.iter().skip(hidden).cloned().collect(),
            wasted: self.story.wasted,
            avoidable: self.story.avoidable,
            abstentions: self.abstentions.iter().map(abstention).collect(),
            termination: self.story.termination.clone(),
            snoozed_until: self.story.snoozed_until,
        }
    }

    #[cfg(test)]
    pub fn verdicts_kept(&self) -> usize {
        self.story.verdicts.len()
    }
}
