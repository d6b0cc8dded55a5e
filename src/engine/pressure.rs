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

use super::{Engine, EngineContext, RecordError, TenantState};
use crate::telemetry::EvictionReason;

/// What wants memory, and what share of the budget it may find taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryUse {
    /// A session or an agent.
    SessionOrAgent,
    Delta,
    Event,
}

impl MemoryUse {
    fn budget_percent(self) -> usize {
        match self {
            Self::SessionOrAgent => 90,
            Self::Delta => 95,
            Self::Event => 100,
        }
    }
}

/// From here on idle sessions are forgotten sooner.
const EARLY_EVICTION_PERCENT: usize = 75;

/// How many slots are looked at for one step of a session, so that it does not
/// wait. More than one, since what comes may be larger than what goes.
const EVICTION_CHECKS_MAX: usize = 64;

impl EngineContext<'_> {
    pub fn check_memory(&self, memory_use: MemoryUse) -> Result<(), RecordError> {
        let bytes_max = self.limits.state_bytes_max;
        // No tenant holds more than all do: nearly always this is all there is to
        // ask, and it is asked of every piece of a text.
        if self
            .state_bytes
            .load(Relaxed)
            .saturating_mul(self.tenant_count)
            < bytes_max / 2
        {
            return Ok(());
        }
        let engine_usage = (self.state_bytes, bytes_max);
        let tenant_usage = (
            &self.tenant.state_bytes,
            self.tenant_share(self.limits.state_bytes_max),
        );
        for (bytes, bytes_max) in [engine_usage, tenant_usage] {
            if bytes.load(Relaxed) >= percent_of(bytes_max, memory_use.budget_percent()) {
                return Err(RecordError::StateBytesMax(bytes_max));
            }
        }
        Ok(())
    }

    /// After how long a session counts as idle, as full as it is now: all of
    /// `idle_secs_max` up to three quarters, and from nine tenths on no more
    /// than `pressure_idle_secs_min`.
    pub fn current_idle_max(&self) -> Duration {
        let (longest, shortest) = (self.limits.idle_secs_max, self.idle_min().as_secs());
        let max = self.limits.state_bytes_max;
        let from = percent_of(max, EARLY_EVICTION_PERCENT);
        let to = percent_of(max, MemoryUse::SessionOrAgent.budget_percent());
        // Who has filled its share is as full as if all were.
        let scaled_tenant_bytes = self
            .tenant
            .state_bytes
            .load(Relaxed)
            .saturating_mul(self.tenant_count);
        let bytes = self
            .state_bytes
            .load(Relaxed)
            .max(scaled_tenant_bytes)
            .clamp(from, to);
        let left = (to - bytes) as f64 / (to - from).max(1) as f64;
        Duration::from_secs_f64(shortest as f64 + left * (longest - shortest) as f64)
    }

    fn has_room(&self, memory_use: MemoryUse) -> bool {
        let sessions_max = self.limits.sessions_max;
        let sessions_full = || {
            self.live_sessions.load(Relaxed) >= sessions_max
                || self.tenant.live_sessions.load(Relaxed) >= self.tenant_share(sessions_max)
        };
        !(memory_use == MemoryUse::SessionOrAgent && sessions_full())
            && self.check_memory(memory_use).is_ok()
    }

    fn idle_min(&self) -> Duration {
        let limits = self.limits;
        Duration::from_secs(limits.pressure_idle_secs_min.min(limits.idle_secs_max))
    }
}

impl Engine {
    /// Makes room where memory or places are short: what is only remembered
    /// goes first, then sessions that were idle, then those of them that were
    /// told something. No lock may be held.
    pub(super) fn make_room_for(
        &self,
        memory_use: MemoryUse,
        now: SystemTime,
        ctx: &EngineContext,
    ) {
        if ctx.has_room(memory_use) {
            return;
        }
        // Who has more than its share makes way for those who have not.
        if ctx.tenant_count > 1 && !ctx.is_over_share(ctx.tenant) {
            let others = self.tenants.all().into_iter();
            for other in others.filter(|other| ctx.is_over_share(other)) {
                self.evict_from_tenant(memory_use, &other, now, ctx);
            }
        }
        self.evict_from_tenant(memory_use, ctx.tenant, now, ctx);
    }

    fn evict_from_tenant(
        &self,
        memory_use: MemoryUse,
        from: &TenantState,
        now: SystemTime,
        ctx: &EngineContext,
    ) {
        if ctx.has_room(memory_use) {
            return;
        }
        let evicted_ctx = EngineContext {
            tenant: from,
            ..*ctx
        };
        if ctx.check_memory(memory_use).is_err() {
            self.clear_post_mortems(from);
        }
        self.evict_tombstones(&evicted_ctx, now, EVICTION_CHECKS_MAX);
        let idle = ctx.idle_min();
        for queue in [&from.without_verdicts, &from.with_verdicts] {
            for _ in 0..EVICTION_CHECKS_MAX {
                if ctx.has_room(memory_use) {
                    return;
                }
                if self
                    .evict_first_if_idle(queue, idle, EvictionReason::Pressure, now)
                    .is_none()
                {
                    break;
                }
            }
        }
    }

    /// Closes the tenants' breakers where the storm is over.
    pub(super) fn update_breakers(&self, now: SystemTime) {
        let config = self.config.load();
        let mut any_open = false;
        for (tenant, state) in self.tenants.all_named() {
            let was_open = state.breaker.is_open();
            if let Some(settings) = &config.limits.breaker {
                state
                    .breaker
                    .close_if_calm(settings, state.live_sessions.load(Relaxed), now);
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
        self.state.metrics.set_breaker_open(any_open);
    }
}

/// Without overflow, and a little less rather than more.
fn percent_of(total: usize, percent: usize) -> usize {
    // On every event, where divisions are what costs most.
    if percent == 100 {
        return total;
    }
    total / 100 * percent + total % 100 * percent / 100
}
