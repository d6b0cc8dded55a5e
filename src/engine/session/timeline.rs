//! The events and trends that led to a session's verdicts.

use std::collections::BTreeMap;

use crate::{
    domain::{Sig, TimelineEntry, TimelineStep, TrendSample},
    engine::{Profile, agent::Agent},
};

/// The most entries: as many as a person scrolls through in a session with many agents.
const ENTRIES_MAX: usize = 256;
/// The most samples: as many as a spark line in a table can show.
const TREND_SAMPLES_MAX: i32 = 16;

/// The latest events of all agents, oldest first.
pub(super) fn build_timeline(agents: &[Agent], profile: &Profile) -> Vec<TimelineEntry> {
    let mut entries: Vec<_> = agents
        .iter()
        .flat_map(|agent| {
            let steps = agent.history.timeline_steps();
            steps.map(|(call, step)| (call, build_entry(agent, step, profile)))
        })
        .collect();
    entries.sort_by_key(|(_, entry)| entry.step.index);
    entries.drain(..entries.len().saturating_sub(ENTRIES_MAX));
    number_equal_calls(&mut entries);
    entries.into_iter().map(|(_, entry)| entry).collect()
}

fn build_entry(agent: &Agent, step: TimelineStep, profile: &Profile) -> TimelineEntry {
    let samples = agent.policy.samples(step.index);
    TimelineEntry {
        agent: agent.id.clone(),
        call_group: 0,
        loop_id: agent.policy.find_loop_with_event(step.index),
        trends: samples
            .map(|sample| TrendSample {
                detector: profile.detector_name(sample.detector),
                ema: sample.ema(),
                found: sample.found,
            })
            .collect(),
        step,
    }
}

/// The strongest trend after each of the last events; empty if there was none.
pub(super) fn trend_samples<'a>(agents: impl Iterator<Item = &'a Agent>, events: i32) -> Vec<f64> {
    let first = events.saturating_sub(TREND_SAMPLES_MAX).max(0);
    let mut levels: Vec<f64> = (first..events).map(|_| 0.0).collect();
    for agent in agents {
        agent.policy.raise_levels(first, &mut levels);
    }
    if levels.iter().all(|level| *level == 0.0) {
        levels.clear();
    }
    levels
}

/// Numbers the calls that occur more than once, in the order of their first
/// occurrence.
fn number_equal_calls(entries: &mut [(Option<Sig>, TimelineEntry)]) {
    let mut counts: BTreeMap<Sig, (usize, i32)> = BTreeMap::new();
    for call in entries.iter().filter_map(|(call, _)| *call) {
        counts.entry(call).or_default().0 += 1;
    }
    let mut numbers = 1..;
    for (call, entry) in entries {
        if let Some((2.., number)) = call.and_then(|call| counts.get_mut(&call)) {
            if *number == 0 {
                *number = numbers.next().unwrap_or_default();
            }
            entry.call_group = *number;
        }
    }
}
