use serde::Serialize;

/// How many events after the label's the first verdicts came.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct DetectionDelay {
    /// Found, and labelled with where the loop begins.
    pub sessions: usize,
    /// Those whose verdict came before the label's event.
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
            // The nearest rank: a delay that was there, not one between two.
            p90: delays
                .get((delays.len() * 9).div_ceil(10).saturating_sub(1))
                .copied(),
        }
    }
}

/// The middle one, or the mean of the two in the middle.
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
    fn a_delay_is_that_of_the_middle_and_that_of_nine_in_ten() {
        check(&[], 0, None, None);
        check(&[3], 0, Some(3.0), Some(3));
        check(&[5, -2], 1, Some(1.5), Some(5));
        check(&[9, 1, 2], 0, Some(2.0), Some(9));
        check(&[10, 9, 8, 7, 6, 5, 4, 3, 2, 1], 0, Some(5.5), Some(9));
        check(&[11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1], 0, Some(6.0), Some(10));
    }
}
