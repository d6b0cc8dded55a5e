//! A circuit breaker for the detectors themselves. A wrong setting, or the failure
//! of something that all agents depend on, could terminate a whole fleet within
//! minutes; an operator should check first. While detectors would terminate too
//! large a share of the sessions, they warn instead. An operator's termination is
//! never withheld. Each tenant has its own breaker, so that one tenant's storm does
//! not affect another.

use std::{collections::VecDeque, sync::atomic::Ordering::Relaxed, time::SystemTime};

use parking_lot::Mutex;
use serde::Deserialize;

use super::{EngineContext, tenant::Tenants};
use crate::{
    domain::{SessionId, clock},
    telemetry::Metrics,
};

/// `[breaker]`
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct BreakerSettings {
    /// The breaker opens when more than this share of the sessions would be
    /// terminated within the window,
    pub share_max: f64,
    /// and more than this number of them.
    pub sessions_min: u64,
    pub window_secs: u64,
}

/// The breaker's answer to one more termination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakerDecision {
    Allowed,
    Withheld,
}

/// Counts the sessions of a tenant that detectors terminate or would terminate.
#[derive(Default)]
pub(super) struct Breaker {
    window: Mutex<TerminationWindow>,
}

#[derive(Default)]
struct TerminationWindow {
    /// The length of a slice. A reload may change it.
    slice_millis: u128,
    /// The number of a slice and its terminations, oldest first.
    slices: VecDeque<(u64, u64)>,
    terminations: u64,
    is_open: bool,
}

/// The window moves by a sixteenth of its length.
const WINDOW_SLICES: u64 = 16;

impl Breaker {
    /// Counts a termination that a detector asks for while `live` other sessions
    /// are live, and decides about it.
    pub fn request_termination(
        &self,
        settings: &BreakerSettings,
        live: usize,
        now: SystemTime,
    ) -> BreakerDecision {
        let mut window = self.window.lock();
        let slice = window.advance(settings, now);
        window.terminations += 1;
        match window.slices.back_mut() {
            Some((last, ended)) if *last == slice => *ended += 1,
            _ => window.slices.push_back((slice, 1)),
        }
        window.is_open = window.is_open || window.exceeds(settings, live);
        if window.is_open {
            BreakerDecision::Withheld
        } else {
            BreakerDecision::Allowed
        }
    }

    pub fn is_open(&self) -> bool {
        self.window.lock().is_open
    }

    /// Closes the breaker when the terminations fall below half of the thresholds
    /// that open it, so that it does not flutter.
    pub fn close_if_calm(&self, settings: &BreakerSettings, live: usize, now: SystemTime) {
        let mut window = self.window.lock();
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

    /// Decides whether a detector may terminate this session, and reports it if
    /// that opens the breaker.
    pub fn allows_termination(
        &self,
        session: &SessionId,
        now: SystemTime,
        ctx: &EngineContext,
    ) -> bool {
        let Some(settings) = &ctx.limits.breaker else {
            return true;
        };
        let live = ctx.tenant.live_sessions.load(Relaxed);
        let was_open = self.is_open();
        if self.request_termination(settings, live, now) == BreakerDecision::Allowed {
            return true;
        }
        ctx.metrics.count_withheld_termination();
        if !was_open {
            ctx.metrics.set_breaker_open(true);
            tracing::error!(
                ?session,
                tenant = ?session.tenant(),
                "the breaker has opened: detectors would terminate too many sessions and warn \
                 instead; check the settings and what the agents depend on"
            );
        }
        false
    }
}

/// Closes the breakers of tenants whose rate of terminations has fallen.
pub(super) fn update_breakers(
    tenants: &Tenants,
    settings: Option<&BreakerSettings>,
    metrics: &Metrics,
    now: SystemTime,
) {
    let mut any_open = false;
    for (tenant, state) in tenants.all_named() {
        let was_open = state.breaker.is_open();
        if let Some(settings) = settings {
            let live = state.live_sessions.load(Relaxed);
            state.breaker.close_if_calm(settings, live, now);
        }
        let is_open = state.breaker.is_open();
        if was_open && !is_open {
            tracing::warn!(
                ?tenant,
                "the breaker has closed: detectors may terminate sessions again"
            );
        }
        any_open |= is_open;
    }
    metrics.set_breaker_open(any_open);
}

impl TerminationWindow {
    /// Drops the slices before the window, and returns the number of the current
    /// slice.
    fn advance(&mut self, settings: &BreakerSettings, now: SystemTime) -> u64 {
        let slice_millis =
            (u128::from(settings.window_secs.max(1)) * 1_000 / u128::from(WINDOW_SLICES)).max(1);
        let slice =
            u64::try_from(u128::from(clock::millis(now)) / slice_millis).unwrap_or(u64::MAX);
        let previous = std::mem::replace(&mut self.slice_millis, slice_millis);
        if previous != slice_millis {
            // Slices keep their time: they are renumbered for the new length.
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
        // A clock that goes back must not add slices.
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
    use std::time::{Duration, UNIX_EPOCH};

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
    fn a_longer_window_drops_old_slices_too() {
        let breaker = Breaker::default();
        breaker.request_termination(&SETTINGS, 100, at(0));
        let longer = BreakerSettings {
            window_secs: 2 * SETTINGS.window_secs,
            ..SETTINGS
        };
        breaker.request_termination(&longer, 100, at(10));
        assert_eq!(breaker.window.lock().terminations, 2);
        breaker.request_termination(&longer, 100, at(1_000));
        assert_eq!(breaker.window.lock().terminations, 1);
    }

    /// The number of allowed terminations among `requests`, with `live` other
    /// sessions.
    fn allowed(breaker: &Breaker, requests: usize, live: usize, secs: u64) -> usize {
        let decisions =
            (0..requests).map(|_| breaker.request_termination(&SETTINGS, live, at(secs)));
        let allowed = decisions.filter(|decision| *decision == BreakerDecision::Allowed);
        allowed.count()
    }

    #[test]
    fn the_breaker_opens_above_both_a_share_and_a_number_of_sessions() {
        assert_eq!(
            allowed(&Breaker::default(), 50, 0, 0),
            4,
            "below sessions_min"
        );
        assert_eq!(
            allowed(&Breaker::default(), 50, 60, 0),
            20,
            "20 of 80 are a quarter"
        );
        assert_eq!(allowed(&Breaker::default(), 50, 10_000, 0), 50);
    }

    #[test]
    fn the_breaker_stays_open_during_a_storm_and_closes_by_itself() {
        let breaker = Breaker::default();
        assert_eq!(allowed(&breaker, 10, 8, 0), 4);
        for secs in (0..=160).step_by(10) {
            breaker.close_if_calm(&SETTINGS, 8, at(secs));
            assert_eq!(breaker.is_open(), secs < 160, "after {secs} s");
        }
        assert_eq!(allowed(&breaker, 1, 8, 161), 1);

        assert_eq!(allowed(&breaker, 10, 8, 200), 3);
        assert_eq!(allowed(&breaker, 10, 8, 300), 0);
        breaker.close_if_calm(&SETTINGS, 8, at(400));
        assert!(breaker.is_open(), "there were requests since");
    }

    #[test]
    fn a_clock_that_goes_back_adds_no_slices() {
        let breaker = Breaker::default();
        for secs in [500, 100, 300, 0, 501] {
            breaker.request_termination(&SETTINGS, 1_000, at(secs));
            breaker.close_if_calm(&SETTINGS, 1_000, at(secs));
        }
        assert_eq!(breaker.window.lock().slices.len(), 1);
        assert!(!breaker.is_open());
    }
}
