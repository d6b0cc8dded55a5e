//! Whether the figures of a call move one way over its runs. Fewer problems, a higher
//! coverage, a lower latency are progress, although the error is the same.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// The range of each figure over the runs of one call. A figure moves one way if it keeps
/// setting records on the same side; one that goes to and fro does not.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FigureTrend {
    ranges: SmallVec<[FigureRange; 2]>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct FigureRange {
    min: f32,
    max: f32,
    /// The side of the latest record.
    side: Option<Side>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Side {
    Low,
    High,
}

impl FigureTrend {
    /// Adds the figures of a run. Returns whether one of them has moved on.
    pub fn push(&mut self, figures: &[f32]) -> bool {
        if figures.len() != self.ranges.len() {
            let new_range = |figure: &f32| FigureRange {
                min: *figure,
                max: *figure,
                side: None,
            };
            self.ranges = figures.iter().map(new_range).collect();
            return false;
        }
        let mut has_moved = false;
        for (range, figure) in self.ranges.iter_mut().zip(figures) {
            has_moved |= range.push(*figure);
        }
        has_moved
    }

    pub fn heap_bytes(&self) -> usize {
        if self.ranges.spilled() {
            self.ranges.capacity() * size_of::<FigureRange>()
        } else {
            0
        }
    }
}

impl FigureRange {
    /// Whether the figure is a record on the same side as the one before, or the first.
    fn push(&mut self, figure: f32) -> bool {
        let side = if figure < self.min {
            self.min = figure;
            Side::Low
        } else if figure > self.max {
            self.max = figure;
            Side::High
        } else {
            return false;
        };
        self.side.replace(side).is_none_or(|last| last == side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moves(runs: &[f32]) -> Vec<bool> {
        let mut trend = FigureTrend::default();
        runs.iter().map(|figure| trend.push(&[*figure])).collect()
    }

    #[test]
    fn a_figure_that_moves_one_way_moves_on() {
        assert_eq!(moves(&[34.0, 30.0, 21.0]), [false, true, true]);
        assert_eq!(moves(&[71.0, 74.0, 74.0, 78.0]), [false, true, false, true]);
        assert_eq!(moves(&[34.0, 36.0, 30.0, 21.0]), [false, true, false, true]);
    }

    #[test]
    fn a_figure_that_goes_to_and_fro_does_not() {
        assert_eq!(
            moves(&[1.82, 1.79, 1.84, 1.80, 1.83]),
            [false, true, false, false, false]
        );
        assert_eq!(
            moves(&[80.0, 81.0, 80.0, 81.0]),
            [false, true, false, false]
        );
        assert_eq!(moves(&[5.0; 3]), [false; 3]);
    }
}
