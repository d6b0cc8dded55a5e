//! Recent trends, for the timeline and the spark line of a session.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::domain::DetectorId;

/// The recent trends of one agent. Empty while no detector finds anything.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct TrendHistory {
    samples: VecDeque<PackedSample>,
}

/// A detector's trend after an event; 0 if the trend ended with the event.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PackedSample {
    index: i32,
    pub detector: DetectorId,
    /// In 255ths: enough for a plot, and a sample takes 8 bytes.
    ema: u8,
    /// The detector had a finding on the event.
    pub found: bool,
}

impl PackedSample {
    /// Two digits, the precision of the stored value.
    pub fn ema(&self) -> f64 {
        (f64::from(self.ema) / 2.55).round() / 100.0
    }
}

impl TrendHistory {
    /// Half a kibibyte: two detectors for all calls in the history.
    pub const SAMPLES_MAX: usize = 64;

    pub fn push(&mut self, index: i32, detector: DetectorId, ema: f32, found: bool) {
        if self.samples.len() == Self::SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(PackedSample {
            index,
            detector,
            ema: (ema * 255.0).round() as u8,
            found,
        });
    }

    /// The samples taken after an event.
    pub fn samples_at(&self, index: i32) -> impl Iterator<Item = &PackedSample> {
        let samples = self.samples.iter();
        samples.filter(move |sample| sample.index == index)
    }

    /// Raises `levels`, one for each event from `first` on, to the strongest trend
    /// after that event. Between two samples a trend keeps its value.
    pub fn raise_levels(&self, first: i32, levels: &mut [f64]) {
        let mut samples = self.samples.iter().peekable();
        let mut latest: SmallVec<[&PackedSample; 4]> = SmallVec::new();
        for (index, level) in (first..).zip(levels) {
            while let Some(sample) = samples.next_if(|sample| sample.index <= index) {
                latest.retain(|known| known.detector != sample.detector);
                latest.push(sample);
            }
            let strongest = latest.iter().map(|sample| sample.ema());
            *level = strongest.fold(*level, f64::max);
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.samples.capacity() * size_of::<PackedSample>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history_of(samples: &[(i32, u8, f32)]) -> TrendHistory {
        let mut history = TrendHistory::default();
        for (index, detector, ema) in samples {
            history.push(*index, DetectorId(*detector), *ema, *ema > 0.0);
        }
        history
    }

    #[track_caller]
    fn check(samples: &[(i32, u8, f32)], expected: [f64; 4]) {
        let mut levels = [0.0; 4];
        history_of(samples).raise_levels(10, &mut levels);
        assert_eq!(levels, expected);
    }

    #[test]
    fn the_strongest_trend_counts_and_keeps_its_value_between_samples() {
        check(&[], [0.0; 4]);
        check(&[(11, 0, 0.3), (13, 0, 0.51)], [0.0, 0.3, 0.3, 0.51]);
        check(
            &[(4, 0, 0.3), (11, 1, 0.5), (12, 1, 0.0)],
            [0.3, 0.5, 0.3, 0.3],
        );
    }

    #[test]
    fn samples_are_bounded_and_use_no_memory_without_a_trend() {
        assert_eq!(TrendHistory::default().heap_bytes(), 0);
        let many: Vec<_> = (0..200).map(|index| (index, 0, 1.0)).collect();
        let history = history_of(&many);
        assert_eq!(history.samples.len(), TrendHistory::SAMPLES_MAX);
        assert_eq!(history.samples_at(199).count(), 1);
        assert_eq!(size_of::<PackedSample>(), 8);
    }
}
