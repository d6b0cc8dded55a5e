//! What happens as memory fills up. The budget is `limits.state_bytes_max`, and
//! there is a ladder below it, so that what matters least goes first:
//!
//! 1. From three quarters on idle sessions are forgotten sooner.
//! 2. From nine tenths on a new session or agent takes the place of one that
//!    has been idle; where there is none it is refused.
//! 3. From nineteen twentieths on text as it is written is refused.
//! 4. At the budget events are refused.
//!
//! Sessions that were told something go after all others; terminations stay.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, SystemTime},
};

use super::{Engine, Holding, Refused, Shared};
use crate::telemetry::Eviction;

/// What wants memory, and what share of the budget it may find taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// A session or an agent.
    New,
    Delta,
    Event,
}

impl Want {
    fn percent(self) -> usize {
        match self {
            Self::New => 90,
            Self::Delta => 95,
            Self::Event => 100,
        }
    }
}

/// From here on idle sessions are forgotten sooner.
const SOONER_PERCENT: usize = 75;

/// How many slots are looked at for one step of a session, so that it does not
/// wait. More than one, since what comes may be larger than what goes.
const LOOKS_A_STEP: usize = 64;

impl Shared<'_> {
    pub fn check_bytes(&self, want: Want) -> Result<(), Refused> {
        let bytes_max = self.limits.state_bytes_max;
        // No tenant holds more than all do: nearly always this is all there is to
        // ask, and it is asked of every piece of a text.
        if self.bytes.load(Relaxed).saturating_mul(self.tenants) < bytes_max / 2 {
            return Ok(());
        }
        let all = (self.bytes, bytes_max);
        let own = (&self.held.bytes, self.share(self.limits.state_bytes_max));
        for (bytes, bytes_max) in [all, own] {
            if bytes.load(Relaxed) >= share(bytes_max, want.percent()) {
                return Err(Refused::Bytes(bytes_max));
            }
        }
        Ok(())
    }

    /// After how long a session counts as idle, as full as it is now: all of
    /// `idle_secs_max` up to three quarters, and from nine tenths on no more
    /// than `pressed_idle_secs_min`.
    pub fn idle_now(&self) -> Duration {
        let (most, least) = (self.limits.idle_secs_max, self.least_idle().as_secs());
        let max = self.limits.state_bytes_max;
        let from = share(max, SOONER_PERCENT);
        let to = share(max, Want::New.percent());
        // Who has filled its share is as full as if all were.
        let own = self.held.bytes.load(Relaxed).saturating_mul(self.tenants);
        let bytes = self.bytes.load(Relaxed).max(own).clamp(from, to);
        let left = (to - bytes) as f64 / (to - from).max(1) as f64;
        Duration::from_secs_f64(least as f64 + left * (most - least) as f64)
    }

    fn has_room(&self, want: Want) -> bool {
        let sessions_max = self.limits.sessions_max;
        let crowded = || {
            self.live.load(Relaxed) >= sessions_max
                || self.held.live.load(Relaxed) >= self.share(sessions_max)
        };
        !(want == Want::New && crowded()) && self.check_bytes(want).is_ok()
    }

    fn least_idle(&self) -> Duration {
        let limits = self.limits;
        Duration::from_secs(limits.pressed_idle_secs_min.min(limits.idle_secs_max))
    }
}

impl Engine {
    /// Makes room where memory or places are short: what is only remembered
    /// goes first, then sessions that were idle, then those of them that were
    /// told something. No lock may be held.
    pub(super) fn press(&self, want: Want, now: SystemTime, shared: &Shared) {
        if shared.has_room(want) {
            return;
        }
        // Who has more than its share makes way for those who have not.
        if shared.tenants > 1 && !shared.is_over_share(shared.held) {
            let others = self.tenants.all().into_iter();
            for other in others.filter(|other| shared.is_over_share(other)) {
                self.make_room(want, &other, now, shared);
            }
        }
        self.make_room(want, shared.held, now, shared);
    }

    fn make_room(&self, want: Want, from: &Holding, now: SystemTime, shared: &Shared) {
        if shared.has_room(want) {
            return;
        }
        let of_them = Shared {
            held: from,
            ..*shared
        };
        if shared.check_bytes(want).is_err() {
            self.lose_keepsakes(from);
        }
        self.sweep_tombstones(&of_them, now, LOOKS_A_STEP);
        let idle = shared.least_idle();
        for queue in [&from.idle, &from.told] {
            for _ in 0..LOOKS_A_STEP {
                if shared.has_room(want) {
                    return;
                }
                if self.expire(queue, idle, Eviction::Pressure, now).is_none() {
                    break;
                }
            }
        }
    }

    /// Closes the tenants' breakers where the storm is over.
    pub(super) fn look_at_breakers(&self, now: SystemTime) {
        let setup = self.setup.load();
        let mut some_open = false;
        for (tenant, held) in self.tenants.named() {
            let was_open = held.breaker.is_open();
            if let Some(settings) = &setup.limits.breaker {
                held.breaker.look(settings, held.live.load(Relaxed), now);
            }
            let is_open = held.breaker.is_open();
            if was_open && !is_open {
                tracing::warn!(
                    ?tenant,
                    "the breaker has closed: detectors may terminate sessions again"
                );
            }
            some_open |= is_open;
        }
        self.shared.metrics.breaker(some_open);
    }
}

/// Without overflow, and a little less rather than more.
fn share(of: usize, percent: usize) -> usize {
    // On every event, where divisions are what costs most.
    if percent == 100 {
        return of;
    }
    of / 100 * percent + of % 100 * percent / 100
}
