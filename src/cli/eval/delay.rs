//! The delay between the start of a loop and its first verdict.

use serde::Serialize;

/// Events from the labelled start of a loop to the first verdict.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct DetectionDelay {
    /// Sessions that were found and are labelled with the start of the loop.
    pub sessions: usize,
    /// Sessions whose verdict came before the labelled event.
    pub early: usize,
    pub median: Option<f64>,
    pub p90: Option<i64>,
}

impl DetectionDelay {
    pub fn from_delays(mut delays: Vec<i64>) -> Self {
        delays.sort_unstable();
        Self {
            sessions: delays.len(),
            early: delays.partition_point(|delay| *delay < 0),
            median: median(&delays),
            // The nearest rank: an actual delay, not an interpolated one.
            p90: delays
                .get((delays.len() * 9).div_ceil(10).saturating_sub(1))
                .copied(),
        }
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(sorted: &[i64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some((lower + upper) as f64 / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(events: &[i64], early: usize, median: Option<f64>, p90: Option<i64>) {
        let expected = DetectionDelay {
            sessions: events.len(),
            early,
            median,
            p90,
        };
        assert_eq!(DetectionDelay::from_delays(events.to_vec()), expected);
    }

    #[test]
    fn a_delay_has_a_median_and_a_90th_percentile() {
        check(&[], 0, None, None);
        check(&[3], 0, Some(3.0), Some(3));
        check(&[5, -2], 1, Some(1.5), Some(5));
        check(&[9, 1, 2], 0, Some(2.0), Some(9));
        check(&[10, 9, 8, 7, 6, 5, 4, 3, 2, 1], 0, Some(5.5), Some(9));
        check(&[11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1], 0, Some(6.0), Some(10));
    }
}
