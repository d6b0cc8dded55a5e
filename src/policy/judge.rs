use std::time::SystemTime;

use super::{
    case::{Case, Judgement, Sight},
    settings::Settings,
    trail::Sample,
};
use crate::domain::{DetectorId, LoopId, Sig, Trend, Waste};

/// Judges what the detectors find in one agent of one session. Until they find
/// something there is no case, and nothing to keep but the time.
#[derive(Default)]
pub struct Judge {
    last: Option<SystemTime>,
    case: Option<Box<Case>>,
}

impl Judge {
    /// `began` tells what the session had cost before an event.
    pub fn judge(
        &mut self,
        sight: &Sight<'_>,
        settings: &Settings,
        began: impl FnOnce(i32) -> Waste,
    ) -> Option<Box<Judgement>> {
        let last = self.last.replace(sight.at.time);
        if self.case.is_none() && sight.findings.is_empty() {
            return None;
        }
        let case = self.case.get_or_insert_default();
        case.judge(sight, last, settings, began).map(Box::new)
    }

    /// Another text begins: a loop of this name stood in an earlier one, and
    /// comes back in this.
    pub fn end_run(&mut self, name: Sig) {
        if let Some(case) = &mut self.case {
            case.end_run(name);
        }
    }

    /// The events of reported loops that have ended since the last question: they
    /// count for no detector again.
    #[inline]
    pub fn take_spent(&mut self) -> Vec<i32> {
        let case = self.case.as_mut();
        case.map_or_else(Vec::new, |case| case.take_spent())
    }

    /// Counts start anew: no loop stands. What was said is remembered.
    pub fn reset(&mut self) {
        if let Some(case) = &mut self.case {
            case.reset();
        }
    }

    /// Terminations that were only reported may be said again, and meant.
    pub fn unsay_terminations(&mut self) {
        if let Some(case) = &mut self.case {
            case.unsay_terminations();
        }
    }

    /// A loop that was reported stands.
    #[inline]
    pub fn is_looping(&self) -> bool {
        self.case.as_ref().is_some_and(|case| case.is_looping())
    }

    pub fn trend(&self, detector: DetectorId) -> Option<Trend> {
        self.case.as_ref()?.trend(detector)
    }

    /// The trends after an event, while they are remembered.
    pub fn samples(&self, index: i32) -> impl Iterator<Item = &Sample> {
        let cases = self.case.iter();
        cases.flat_map(move |case| case.samples(index))
    }

    /// Raises `levels`, one for each event from `first` on, to the strongest
    /// trend after it.
    pub fn raise(&self, first: i32, levels: &mut [f64]) {
        if let Some(case) = &self.case {
            case.raise(first, levels);
        }
    }

    /// The latest loop that cites the event.
    pub fn loop_of(&self, index: i32) -> Option<LoopId> {
        self.case.as_ref()?.loop_of(index)
    }

    #[inline]
    pub fn heap_bytes(&self) -> usize {
        self.case.as_ref().map_or(0, |case| case.bytes())
    }
}
