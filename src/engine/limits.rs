//! The bounds of the engine.

use serde::Deserialize;

use super::BreakerSettings;

/// `[limits]`: the bounds of the engine.
#[derive(Clone, Debug, Deserialize)]
pub struct Limits {
    pub sessions_max: usize,
    pub state_bytes_max: usize,
    pub idle_secs_max: u64,
    pub pressure_idle_secs_min: u64,
    pub agents_max: usize,
    pub event_ids_max: usize,
    pub tombstones_max: usize,
    pub tombstone_secs_max: u64,
    pub tombstone_bytes_max: usize,
    pub post_mortem_bytes_max: usize,
    /// `[breaker]`; `None`: the breaker never opens.
    #[serde(skip)]
    pub breaker: Option<BreakerSettings>,
}
