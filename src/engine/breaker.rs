//! A breaker on ourselves. A setting that is wrong, or a thing that all agents
//! depend on and that fails, could end a whole fleet within minutes; a person
//! should look first. While too large a share of the sessions would be ended,
//! detectors warn instead. What operators end is never held back. Each tenant has
//! one of its own, so that what one of them does holds back no other's.

use std::{
    collections::VecDeque,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::{Mutex, MutexGuard};

use serde::Deserialize;

/// `[breaker]`
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct BreakerSettings {
    /// Opens when more than this share of the sessions would be ended,
    pub share_max: f64,
    /// and more than so many of them,
    pub sessions_min: u64,
    /// within so long.
    pub window_secs: u64,
}

/// What the breaker says about one more termination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakerDecision {
    Allowed,
    Withheld,
}

/// Counts the sessions of a tenant that detectors end, or would.
#[derive(Default)]
pub(super) struct Breaker {
    window: Mutex<TerminationWindow>,
}

#[derive(Default)]
struct TerminationWindow {
    /// How long a slice is, in milliseconds: a reload may change it.
    slice_millis: u128,
    /// By slice of the window, oldest first.
    slices: VecDeque<(u64, u64)>,
    terminations: u64,
    is_open: bool,
}

/// The window moves on by a sixteenth of its length.
const WINDOW_SLICES: u64 = 16;

impl Breaker {
    /// A detector wants to end a session, while so many others are live.
    pub fn request_termination(
        &self,
        settings: &BreakerSettings,
        live: usize,
        now: SystemTime,
    ) -> BreakerDecision {
        let mut window = self.lock_window();
        let slice = window.advance(settings, now);
        window.terminations += 1;
        match window.slices.back_mut() {
            Some((last, ended)) if *last == slice => *ended += 1,
            _ => window.slices.push_back((slice, 1)),
        }
        window.is_open = window.is_open || window.exceeds(settings, live);
        match window.is_open {
            true => BreakerDecision::Withheld,
            false => BreakerDecision::Allowed,
        }
    }

    pub fn is_open(&self) -> bool {
        self.lock_window().is_open
    }

    /// Closes it when the storm is over: when half of what opened it would not
    /// be reached any more, so that it does not flutter.
    pub fn close_if_calm(&self, settings: &BreakerSettings, live: usize, now: SystemTime) {
        let mut window = self.lock_window();
        if window.is_open {
            window.advance(settings, now);
            let close_settings = BreakerSettings {
                share_max: settings.share_max / 2.0,
                sessions_min: settings.sessions_min / 2,
                ..*settings
            };
            window.is_open = window.exceeds(&close_settings, live);
        }
    }

    fn lock_window(&self) -> MutexGuard<'_, TerminationWindow> {
        self.window.lock()
    }
}

impl TerminationWindow {
    /// Forgets what lies before the window; the slice that it is now.
    fn advance(&mut self, settings: &BreakerSettings, now: SystemTime) -> u64 {
        let millis = now
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_millis();
        let slice_millis =
            (u128::from(settings.window_secs.max(1)) * 1_000 / u128::from(WINDOW_SLICES)).max(1);
        let slice = u64::try_from(millis / slice_millis).unwrap_or(u64::MAX);
        let previous = std::mem::replace(&mut self.slice_millis, slice_millis);
        if previous != slice_millis {
            // What was counted keeps its time, in slices of the new length.
            for (number, _) in &mut self.slices {
                *number = u64::try_from(u128::from(*number) * previous / slice_millis)
                    .unwrap_or(u64::MAX);
            }
        }
        while let Some((oldest, ended)) = self.slices.front() {
            if oldest.saturating_add(WINDOW_SLICES) > slice {
                break;
            }
            self.terminations -= ended;
            self.slices.pop_front();
        }
        // A clock that goes back must not make more slices than there are.
        self.slices
            .back()
            .map_or(slice, |(last, _)| slice.max(*last))
    }

    fn exceeds(&self, settings: &BreakerSettings, live: usize) -> bool {
        let sessions = self.terminations as f64 + live as f64;
        self.terminations > settings.sessions_min
            && self.terminations as f64 > settings.share_max * sessions
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SETTINGS: BreakerSettings = BreakerSettings {
        share_max: 0.25,
        sessions_min: 4,
        window_secs: 160,
    };

    fn at(secs: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_000 + secs)
    }

    #[test]
    fn a_longer_window_forgets_too() {
        let breaker = Breaker::default();
        breaker.request_termination(&SETTINGS, 100, at(0));
        let longer = BreakerSettings {
            window_secs: 2 * SETTINGS.window_secs,
            ..SETTINGS
        };
        breaker.request_termination(&longer, 100, at(10));
        assert_eq!(breaker.lock_window().terminations, 2);
        breaker.request_termination(&longer, 100, at(1_000));
        assert_eq!(breaker.lock_window().terminations, 1);
    }

    /// How many of so many are let end, with `live` others.
    fn granted(breaker: &Breaker, asked: usize, live: usize, secs: u64) -> usize {
        let asked = (0..asked).filter(|_| {
            breaker.request_termination(&SETTINGS, live, at(secs)) == BreakerDecision::Allowed
        });
        asked.count()
    }

    #[test]
    fn it_opens_on_a_share_of_the_fleet_and_a_number_both() {
        let opens = |live| granted(&Breaker::default(), 50, live, 0);
        assert_eq!(opens(0), 4, "few are never too many");
        assert_eq!(opens(60), 20, "20 of 80 are a quarter");
        assert_eq!(opens(10_000), 50);
    }

    #[test]
    fn it_stays_open_while_the_storm_goes_on_and_closes_by_itself() {
        let breaker = Breaker::default();
        assert_eq!(granted(&breaker, 10, 8, 0), 4);
        for secs in (0..=160).step_by(10) {
            breaker.close_if_calm(&SETTINGS, 8, at(secs));
            assert_eq!(breaker.is_open(), secs < 160, "after {secs} s");
        }
        assert_eq!(granted(&breaker, 1, 8, 161), 1);

        assert_eq!(granted(&breaker, 10, 8, 200), 3);
        assert_eq!(granted(&breaker, 10, 8, 300), 0);
        breaker.close_if_calm(&SETTINGS, 8, at(400));
        assert!(breaker.is_open(), "it was asked since");
    }

    #[test]
    fn a_clock_that_goes_back_does_no_harm() {
        let breaker = Breaker::default();
        for secs in [500, 100, 300, 0, 501] {
            breaker.request_termination(&SETTINGS, 1_000, at(secs));
            breaker.close_if_calm(&SETTINGS, 1_000, at(secs));
        }
        assert_eq!(breaker.lock_window().slices.len(), 1);
        assert!(!breaker.is_open());
    }
}
