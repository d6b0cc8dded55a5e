//! What led to a session's verdicts.

use std::collections::BTreeMap;

use super::Session;
use crate::{
    domain::{Sig, TimelineEntry, TrendSample},
    policy::PackedSample,
};

/// Of a session with many agents, what a person scrolls through.
const ENTRIES_MAX: usize = 256;
/// As wide as a spark line reads well in a table.
const TREND_SAMPLES_MAX: i32 = 16;

impl Session {
    /// Its latest events, oldest first.
    pub fn timeline(&self) -> Vec<TimelineEntry> {
        let mut entries: Vec<_> = self.steps().collect();
        entries.sort_by_key(|(_, entry)| entry.step.index);
        entries.drain(..entries.len().saturating_sub(ENTRIES_MAX));
        number_equal_calls(&mut entries);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    fn steps(&self) -> impl Iterator<Item = (Option<Sig>, TimelineEntry)> {
        self.agents.iter().flat_map(|agent| {
            agent.history.timeline_steps().map(|(call, step)| {
                let sample = |sample: &PackedSample| TrendSample {
                    detector: self.profile.detector_name(sample.detector),
                    ema: sample.ema(),
                    found: sample.found,
                };
                let entry = TimelineEntry {
                    agent: agent.id.clone(),
                    call_group: 0,
                    loop_id: agent.policy.find_loop_with_event(step.index),
                    trends: agent.policy.samples(step.index).map(sample).collect(),
                    step,
                };
                (call, entry)
            })
        })
    }

    /// The strongest trend after each of its last events; nothing where there
    /// was none.
    pub(super) fn trend_samples(&self) -> Vec<f64> {
        let first = self.events.saturating_sub(TREND_SAMPLES_MAX).max(0);
        let mut levels: Vec<f64> = (first..self.events).map(|_| 0.0).collect();
        for agent in self.active_agents() {
            agent.policy.raise_levels(first, &mut levels);
        }
        if levels.iter().all(|level| *level == 0.0) {
            levels.clear();
        }
        levels
    }
}

/// Numbers the calls that are made more than once, in the order in which they
/// first stand in the timeline.
fn number_equal_calls(entries: &mut [(Option<Sig>, TimelineEntry)]) {
    let mut counts: BTreeMap<Sig, (usize, i32)> = BTreeMap::new();
    for call in entries.iter().filter_map(|(call, _)| *call) {
        counts.entry(call).or_default().0 += 1;
    }
    let mut numbers = 1..;
    for (call, entry) in entries {
        let times_and_number = call.and_then(|call| counts.get_mut(&call));
        if let Some((2.., number)) = times_and_number {
            if *number == 0 {
                *number = numbers.next().unwrap_or_default();
            }
            entry.call_group = *number;
        }
    }
}
