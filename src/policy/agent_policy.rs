use std::time::SystemTime;

use super::{
    policy_state::{DetectorResults, PolicyOutcome, PolicyState},
    settings::Settings,
    trend_history::PackedSample,
};
use crate::domain::{DetectorId, LoopId, Sig, Trend, Waste};

/// Judges what the detectors find in one agent of one session. Until they find
/// something there is no case, and nothing to keep but the time.
#[derive(Default)]
pub struct AgentPolicy {
    previous_time: Option<SystemTime>,
    state: Option<Box<PolicyState>>,
}

impl AgentPolicy {
    /// `began` tells what the session had cost before an event.
    pub fn decide(
        &mut self,
        results: &DetectorResults<'_>,
        settings: &Settings,
        totals_before: impl FnOnce(i32) -> Waste,
    ) -> Option<Box<PolicyOutcome>> {
        let previous_time = self.previous_time.replace(results.at.time);
        if self.state.is_none() && results.findings.is_empty() {
            return None;
        }
        let state = self.state.get_or_insert_default();
        state
            .decide(results, previous_time, settings, totals_before)
            .map(Box::new)
    }

    /// Another text begins: a loop of this name stood in an earlier one, and
    /// comes back in this.
    pub fn end_text_run(&mut self, name: Sig) {
        if let Some(state) = &mut self.state {
            state.end_text_run(name);
        }
    }

    /// The events of reported loops that have ended since the last question: they
    /// count for no detector again.
    #[inline]
    pub fn take_consumed_events(&mut self) -> Vec<i32> {
        let state = self.state.as_mut();
        state.map_or_else(Vec::new, |state| state.take_consumed_events())
    }

    /// Counts start anew: no loop stands. What was said is remembered.
    pub fn reset(&mut self) {
        if let Some(state) = &mut self.state {
            state.reset();
        }
    }

    /// Terminations that were only reported may be said again, and meant.
    pub fn clear_unenforced_terminations(&mut self) {
        if let Some(state) = &mut self.state {
            state.clear_unenforced_terminations();
        }
    }

    /// A loop that was reported stands.
    #[inline]
    pub fn is_looping(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.is_looping())
    }

    pub fn trend(&self, detector: DetectorId) -> Option<Trend> {
        self.state.as_ref()?.trend(detector)
    }

    /// The trends after an event, while they are remembered.
    pub fn samples(&self, index: i32) -> impl Iterator<Item = &PackedSample> {
        let states = self.state.iter();
        states.flat_map(move |state| state.samples(index))
    }

    /// Raises `levels`, one for each event from `first` on, to the strongest
    /// trend after it.
    pub fn raise_levels(&self, first: i32, levels: &mut [f64]) {
        if let Some(state) = &self.state {
            state.raise_levels(first, levels);
        }
    }

    /// The latest loop that cites the event.
    pub fn find_loop_with_event(&self, index: i32) -> Option<LoopId> {
        self.state.as_ref()?.find_loop_with_event(index)
    }

    #[inline]
    pub fn heap_bytes(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.bytes())
    }
}
