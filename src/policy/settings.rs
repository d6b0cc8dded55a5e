use std::sync::Arc;

use serde::Deserialize;
use thiserror::Error;

use crate::domain::{Action, Bar};

/// Everything the policy goes by, for one profile.
#[derive(Debug)]
pub struct Settings {
    pub trend: TrendSettings,
    /// By rank of the detector.
    pub ladders: Vec<Ladder>,
    /// Verdicts are reported, not to be acted on.
    pub shadow: bool,
}

/// `[policy]`
#[derive(Clone, Debug, Deserialize)]
pub struct TrendSettings {
    /// The weight of the latest event in the moving average.
    pub alpha: f64,
    /// A trend above this is chronic, until it falls below half of it.
    pub saturation: f64,
    /// For so many events after a verdict a detector's alerts of new loops are
    /// held back.
    pub cooldown: u32,
    /// The first wait of a THROTTLE; it doubles with each further verdict on
    /// the loop.
    pub throttle_secs: u32,
    pub throttle_secs_max: u32,
}

/// The rungs of a detector.
#[derive(Clone, Debug)]
pub struct Ladder {
    pub name: Arc<str>,
    pub enabled: bool,
    pub soft: Action,
    pub hard: Action,
    /// For the last bar of a detector that says itself how bad a loop is.
    pub last: Action,
    /// A loop that holds so many events ends the session; 0: never.
    pub terminate_after: u32,
    /// A trend is halved by so many events that the detector does not look at.
    pub window: u32,
}

/// The policy's keys of `[detect.<name>]`.
#[derive(Clone, Debug, Deserialize)]
pub struct LadderSettings {
    pub enabled: bool,
    /// Events in a loop when it is first found; a detector without this key
    /// needs but one.
    #[serde(default)]
    pub count: u32,
    pub window: u32,
    pub soft: Action,
    pub hard: Action,
    /// A detector without this key has no rung above `hard`.
    #[serde(default)]
    pub last: Option<Action>,
    pub terminate_after: u32,
    pub pattern: String,
    pub correction: String,
}

/// Settings under which a rung or a trend could never be reached.
#[derive(Debug, Error)]
#[error("{why}")]
pub struct LadderError {
    pub key: &'static str,
    /// Another key that it does not agree with.
    pub other: Option<&'static str>,
    pub why: String,
}

impl LadderSettings {
    pub fn ladder(&self, name: &str) -> Result<Ladder, LadderError> {
        let Self {
            enabled,
            count,
            window,
            soft,
            hard,
            last,
            terminate_after,
            ..
        } = *self;
        let last = last.unwrap_or(hard);
        if hard > last {
            return Err(LadderError {
                key: "hard",
                other: Some("last"),
                why: format!("{hard} is stronger than last, {last}, which could never be reached"),
            });
        }
        if soft > hard {
            return Err(LadderError {
                key: "soft",
                other: Some("hard"),
                why: format!("{soft} is stronger than hard, {hard}, which could never be reached"),
            });
        }
        if terminate_after != 0 && terminate_after < count {
            let why = format!(
                "a loop is first found with {count} events, so it never holds just {terminate_after}"
            );
            return Err(LadderError {
                key: "terminate_after",
                other: Some("count"),
                why,
            });
        }
        Ok(Ladder {
            name: name.into(),
            enabled,
            soft,
            hard,
            last,
            terminate_after,
            window: window.max(1),
        })
    }
}

impl Ladder {
    /// The rung for a bar that a detector has seen passed.
    pub fn at(&self, bar: Bar) -> Action {
        match bar {
            Bar::Soft => self.soft,
            Bar::Hard => self.hard,
            Bar::Last => self.last,
        }
    }

    /// The rung for a loop that comes back after this was said of it.
    pub fn above(&self, said: Option<Action>) -> Action {
        if said >= Some(self.hard) {
            self.last
        } else {
            self.hard
        }
    }
}

impl TrendSettings {
    pub fn check(&self) -> Result<(), LadderError> {
        let share = |key, value: f64| {
            if value > 0.0 && value <= 1.0 {
                return Ok(());
            }
            let why = format!("{value} is not above 0 and at most 1");
            Err(LadderError {
                key,
                other: None,
                why,
            })
        };
        share("alpha", self.alpha)?;
        share("saturation", self.saturation)?;
        if self.saturation >= 1.0 {
            let why = "a trend never rises above 1, so it could never be chronic".to_owned();
            return Err(LadderError {
                key: "saturation",
                other: None,
                why,
            });
        }
        if self.throttle_secs == 0 || self.throttle_secs > self.throttle_secs_max {
            let why = format!(
                "{} is not between 1 and throttle_secs_max, {}",
                self.throttle_secs, self.throttle_secs_max
            );
            return Err(LadderError {
                key: "throttle_secs",
                other: Some("throttle_secs_max"),
                why,
            });
        }
        Ok(())
    }
}
