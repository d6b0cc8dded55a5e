//! Trends: how often each detector has found something lately.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{
    settings::Settings,
    trend_history::{PackedSample, TrendHistory},
};
use crate::domain::{DetectorId, EventPosition, Level, Trend};

/// The recent rate of findings of each detector, for one agent.
///
/// The average moves on the events that a detector checks. Other events halve it in
/// a window, and time without events decays it too. Its input is edges (an event
/// that completes or extends the pattern), not levels: a pattern that is merely
/// still in the window would keep the average at 1 long after the agent has moved
/// on.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Trends {
    /// By detector; empty until one finds something.
    states: Vec<TrendState>,
    /// The detectors that have a trend, as bits. Most events find none set.
    active_bits: u64,
    history: TrendHistory,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct TrendState {
    ema: f32,
    chronic: bool,
}

/// Below this a trend has ended.
const EMA_MIN: f32 = 0.01;
/// At or above this a blip is a trend.
const TREND_EMA_MIN: f32 = 0.4;
/// A pause of up to a minute is normal and does not decay a trend.
const IDLE_GRACE: Duration = Duration::from_secs(60);
/// After that a trend is halved every ten minutes.
const IDLE_HALF_LIFE_SECS: f32 = 600.0;

impl Trends {
    /// Updates every average with one event. `previous_time` is the time of the event
    /// before. `checked` and `found` are detectors as bits.
    pub fn update(
        &mut self,
        at: EventPosition,
        previous_time: Option<SystemTime>,
        checked: u64,
        found: u64,
        settings: &Settings,
    ) {
        // Most events find nothing while every trend is zero.
        if self.active_bits | found == 0 {
            return;
        }
        self.states
            .resize(settings.escalations.len(), TrendState::default());
        let decay = idle_decay(previous_time, at.time);
        let alpha = settings.trend.alpha as f32;
        let saturation = settings.trend.saturation as f32;
        // Only the detectors that have a trend or found something, which are few.
        let mut remaining = self.active_bits | found;
        while remaining != 0 {
            let rank = remaining.trailing_zeros() as usize;
            let bit = 1u64 << rank;
            remaining &= !bit;
            let (Some(state), Some(escalation)) =
                (self.states.get_mut(rank), settings.escalations.get(rank))
            else {
                continue;
            };
            if state.ema == 0.0 && found & bit == 0 {
                continue;
            }
            // A match raises the trend, a check without one lowers it, and any other event
            // lets it fade with the detector's half-life.
            state.ema *= decay;
            state.ema = if found & bit != 0 {
                alpha + (1.0 - alpha) * state.ema
            } else if checked & bit != 0 {
                (1.0 - alpha) * state.ema
            } else {
                state.ema * (-1.0 / escalation.trend_half_life_events as f32).exp2()
            };
            // Chronic above the saturation, until the trend has halved: without the gap a
            // trend near the saturation would switch on every event.
            self.active_bits |= bit;
            if state.ema < EMA_MIN {
                *state = TrendState::default();
                self.active_bits &= !bit;
            } else if state.ema > saturation {
                state.chronic = true;
            } else if state.ema < saturation / 2.0 {
                state.chronic = false;
            }
            // The sample that the timeline shows.
            let detector = DetectorId(rank as u8);
            self.history
                .push(at.index, detector, state.ema, found & bit != 0);
        }
    }

    /// The detectors that have a trend.
    pub fn bits(&self) -> u64 {
        self.active_bits
    }

    /// The trends after an event.
    pub fn samples(&self, index: i32) -> impl Iterator<Item = &PackedSample> {
        self.history.samples_at(index)
    }

    pub fn raise_levels(&self, first: i32, levels: &mut [f64]) {
        self.history.raise_levels(first, levels);
    }

    pub fn get(&self, detector: DetectorId) -> Option<Trend> {
        let state = self.states.get(detector.index())?;
        let level = if state.chronic {
            Level::Chronic
        } else if state.ema >= TREND_EMA_MIN {
            Level::Trend
        } else {
            Level::Blip
        };
        (state.ema > 0.0).then(|| Trend {
            // Four digits, because more would show the rounding of f32.
            ema: (f64::from(state.ema) * 1e4).round() / 1e4,
            level,
        })
    }

    pub fn is_chronic(&self, detector: DetectorId) -> bool {
        self.get(detector)
            .is_some_and(|trend| trend.level == Level::Chronic)
    }

    pub fn heap_bytes(&self) -> usize {
        self.states.capacity() * size_of::<TrendState>() + self.history.heap_bytes()
    }
}

/// The factor by which the time between two events decays a trend.
fn idle_decay(previous_time: Option<SystemTime>, time: SystemTime) -> f32 {
    // The clock of a trace may run backwards; that is not idle time.
    let idle = previous_time.and_then(|previous| time.duration_since(previous).ok());
    let beyond = idle.unwrap_or_default().saturating_sub(IDLE_GRACE);
    (-beyond.as_secs_f32() / IDLE_HALF_LIFE_SECS).exp2()
}
