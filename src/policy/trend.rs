use std::time::{Duration, SystemTime};

use super::{
    settings::Settings,
    trail::{Sample, Trail},
};
use crate::domain::{DetectorId, Level, Moment, Trend};

/// How each detector has been finding lately, for one agent.
///
/// The average moves on the events a detector looks at; the others let it fade,
/// by half in a window, and so does time without events. It is fed by edges (an
/// event that completes or extends the pattern), not by levels: a pattern that
/// merely stands in the window would keep the average at 1 long after the agent
/// has moved on.
#[derive(Default)]
pub(super) struct Trends {
    /// By rank; empty until a detector finds something.
    states: Vec<State>,
    /// The detectors that have a trend, as bits: most events find none.
    standing: u64,
    trail: Trail,
}

#[derive(Clone, Copy, Default)]
struct State {
    ema: f32,
    chronic: bool,
}

/// Below this a trend is over.
const NONE: f32 = 0.01;
/// From here a blip is a trend.
const TREND: f32 = 0.4;
/// A pause of up to a minute is the pace of work, not a change of it.
const PAUSE: Duration = Duration::from_secs(60);
/// Beyond it a trend is halved every ten minutes.
const HALF_LIFE_SECS: f32 = 600.0;

impl Trends {
    /// Moves every average by one event, given when the one before was made:
    /// `looked` and `found` are sets of detectors as bits.
    pub fn update(
        &mut self,
        (at, last): (Moment, Option<SystemTime>),
        looked: u64,
        found: u64,
        settings: &Settings,
    ) {
        if self.standing | found == 0 {
            return;
        }
        self.states.resize(settings.ladders.len(), State::default());
        let idle = idle_factor(last, at.time);
        let alpha = settings.trend.alpha as f32;
        let saturation = settings.trend.saturation as f32;
        for (rank, (state, ladder)) in self.states.iter_mut().zip(&settings.ladders).enumerate() {
            let bit = 1u64 << rank;
            if state.ema == 0.0 && found & bit == 0 {
                continue;
            }
            state.ema *= idle;
            state.ema = if found & bit != 0 {
                alpha + (1.0 - alpha) * state.ema
            } else if looked & bit != 0 {
                (1.0 - alpha) * state.ema
            } else {
                state.ema * (-1.0 / ladder.window as f32).exp2()
            };
            self.standing |= bit;
            if state.ema < NONE {
                *state = State::default();
                self.standing &= !bit;
            } else if state.ema > saturation {
                state.chronic = true;
            } else if state.ema < saturation / 2.0 {
                state.chronic = false;
            }
            let detector = DetectorId(rank as u8);
            self.trail
                .note(at.index, detector, state.ema, found & bit != 0);
        }
    }

    /// The trends after an event.
    pub fn samples(&self, index: i32) -> impl Iterator<Item = &Sample> {
        self.trail.at(index)
    }

    pub fn raise(&self, first: i32, levels: &mut [f64]) {
        self.trail.raise(first, levels);
    }

    pub fn of(&self, detector: DetectorId) -> Option<Trend> {
        let state = self.states.get(detector.index())?;
        let level = if state.chronic {
            Level::Chronic
        } else if state.ema >= TREND {
            Level::Trend
        } else {
            Level::Blip
        };
        (state.ema > 0.0).then(|| Trend {
            // Four digits: more would only show how it is stored.
            ema: (f64::from(state.ema) * 1e4).round() / 1e4,
            level,
        })
    }

    pub fn is_chronic(&self, detector: DetectorId) -> bool {
        self.of(detector)
            .is_some_and(|trend| trend.level == Level::Chronic)
    }

    pub fn heap_bytes(&self) -> usize {
        self.states.capacity() * size_of::<State>() + self.trail.heap_bytes()
    }
}

/// What is left of a trend after the time between two events.
fn idle_factor(last: Option<SystemTime>, time: SystemTime) -> f32 {
    // Clocks of traces may run backwards: that is no idleness.
    let idle = last.and_then(|last| time.duration_since(last).ok());
    let beyond = idle.unwrap_or_default().saturating_sub(PAUSE);
    (-beyond.as_secs_f32() / HALF_LIFE_SECS).exp2()
}
