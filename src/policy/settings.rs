//! The policy settings and their checks.

use std::sync::Arc;

use serde::Deserialize;
use thiserror::Error;

use crate::domain::{Action, EscalationLevel, Precedence};

/// The policy settings of one profile.
#[derive(Debug)]
pub struct Settings {
    pub trend: TrendSettings,
    /// One entry per detector, by its id.
    pub escalations: Vec<Escalation>,
    /// Verdicts are reported but brokers do not act on them.
    pub shadow: bool,
}

/// `[policy]`
#[derive(Clone, Debug, Deserialize)]
pub struct TrendSettings {
    /// The weight of the latest event in the moving average.
    pub alpha: f64,
    /// A trend above this is chronic, until it falls below half of it.
    pub saturation: f64,
    /// The number of events after a verdict for which a detector's alerts of new
    /// loops are deferred.
    pub cooldown: u32,
    /// Number of events that a detector does not check after which its trend is
    /// halved.
    pub trend_half_life_events: u32,
    /// The first delay of a THROTTLE; it doubles with each further verdict on the
    /// loop.
    pub throttle_secs: u32,
    pub throttle_secs_max: u32,
    /// The number of refused calls of a reported loop that are reported with ESCALATE;
    /// 0: never.
    pub refusals_escalate: u32,
    /// The number of refused calls of a reported loop that terminate; 0: never.
    pub refusals_terminate: u32,
}

/// The actions of a detector, from soft to hard.
#[derive(Clone, Debug)]
pub struct Escalation {
    pub name: Arc<str>,
    pub precedence: Precedence,
    pub enabled: bool,
    pub soft: Action,
    pub hard: Action,
    /// The action at the final level, for a detector that reports levels itself.
    pub final_action: Action,
    /// A loop with this many events terminates the session; 0: never.
    pub terminate_after: u32,
    /// Number of events that the detector does not check after which its trend is
    /// halved.
    pub trend_half_life_events: u32,
    /// The share of a budget at which `soft` is taken; only `budget` has one.
    pub warn_share: Option<f64>,
}

/// The policy keys of `[detect.<name>]`.
#[derive(Clone, Debug, Deserialize)]
pub struct EscalationSettings {
    pub enabled: bool,
    /// Events in a loop when it is first found; a detector without this key needs
    /// only one.
    #[serde(default)]
    pub count: u32,
    /// A detector that looks back halves its trend by its window.
    #[serde(default)]
    pub window: Option<u32>,
    pub soft: Action,
    pub hard: Action,
    /// A detector without this key has no action above `hard`.
    #[serde(default)]
    pub final_action: Option<Action>,
    /// Only `budget` has this key.
    #[serde(default)]
    pub warn_share: Option<f64>,
    pub terminate_after: u32,
    pub pattern: String,
    pub correction: String,
}

/// Settings with which an action or a trend level could never be reached.
#[derive(Debug, Error)]
#[error("{why}")]
pub struct PolicySettingsError {
    pub key: &'static str,
    /// Another key that conflicts with it.
    pub other: Option<&'static str>,
    pub why: String,
}

impl EscalationSettings {
    pub fn to_escalation(
        &self,
        name: &str,
        precedence: Precedence,
        trend_half_life_events: u32,
    ) -> Result<Escalation, PolicySettingsError> {
        self.check_thresholds()?;
        Ok(Escalation {
            name: name.into(),
            precedence,
            enabled: self.enabled,
            soft: self.soft,
            hard: self.hard,
            final_action: self.final_action(),
            terminate_after: self.terminate_after,
            trend_half_life_events: self.window.unwrap_or(trend_half_life_events).max(1),
            warn_share: self.warn_share,
        })
    }

    /// The last action of a loop: `final_action`, else the hard action.
    fn final_action(&self) -> Action {
        self.final_action.unwrap_or(self.hard)
    }

    /// Each action must be reachable after the weaker ones, and the termination after the
    /// first finding.
    fn check_thresholds(&self) -> Result<(), PolicySettingsError> {
        let (count, soft, hard, terminate_after) =
            (self.count, self.soft, self.hard, self.terminate_after);
        let final_action = self.final_action();
        if hard > final_action {
            return Err(PolicySettingsError {
                key: "hard",
                other: Some("final_action"),
                why: format!(
                    "{hard} is stronger than final_action, {final_action}, which could never be \
                     reached"
                ),
            });
        }
        if soft > hard {
            return Err(PolicySettingsError {
                key: "soft",
                other: Some("hard"),
                why: format!("{soft} is stronger than hard, {hard}, which could never be reached"),
            });
        }
        if terminate_after != 0 && terminate_after < count {
            let why = format!(
                "a loop is first found with {count} events, so it never has only {terminate_after}"
            );
            return Err(PolicySettingsError {
                key: "terminate_after",
                other: Some("count"),
                why,
            });
        }
        Ok(())
    }
}

impl Escalation {
    /// The action for a level that a detector reports.
    pub fn action_at(&self, level: EscalationLevel) -> Action {
        match level {
            EscalationLevel::Soft => self.soft,
            EscalationLevel::Hard => self.hard,
            EscalationLevel::Final => self.final_action,
        }
    }

    /// The share of its budget that a session has used at this level.
    pub fn budget_share_at(&self, level: EscalationLevel) -> f64 {
        match level {
            EscalationLevel::Soft => self.warn_share.unwrap_or(1.0),
            EscalationLevel::Hard | EscalationLevel::Final => 1.0,
        }
    }

    /// The action for a loop that recurs after this action was reported.
    pub fn action_after(&self, strongest_action: Option<Action>) -> Action {
        if strongest_action >= Some(self.hard) {
            self.final_action
        } else {
            self.hard
        }
    }
}

impl TrendSettings {
    pub fn validate(&self) -> Result<(), PolicySettingsError> {
        let check_fraction = |key, value: f64| {
            if value > 0.0 && value <= 1.0 {
                return Ok(());
            }
            let why = format!("{value} is not above 0 and at most 1");
            Err(PolicySettingsError {
                key,
                other: None,
                why,
            })
        };
        // The trend.
        check_fraction("alpha", self.alpha)?;
        check_fraction("saturation", self.saturation)?;
        if self.saturation >= 1.0 {
            let why = "a trend never rises above 1, so it could never be chronic".to_owned();
            return Err(PolicySettingsError {
                key: "saturation",
                other: None,
                why,
            });
        }
        if self.trend_half_life_events == 0 {
            return Err(PolicySettingsError {
                key: "trend_half_life_events",
                other: None,
                why: "0 events cannot halve a trend: at least 1".to_owned(),
            });
        }
        // Waiting times.
        if self.throttle_secs == 0 || self.throttle_secs > self.throttle_secs_max {
            let why = format!(
                "{} is not between 1 and throttle_secs_max, {}",
                self.throttle_secs, self.throttle_secs_max
            );
            return Err(PolicySettingsError {
                key: "throttle_secs",
                other: Some("throttle_secs_max"),
                why,
            });
        }
        // Refused calls.
        let (escalate, terminate) = (self.refusals_escalate, self.refusals_terminate);
        if terminate != 0 && escalate >= terminate {
            return Err(PolicySettingsError {
                key: "refusals_escalate",
                other: Some("refusals_terminate"),
                why: format!(
                    "{escalate} refused calls are never reached: the session ends after {terminate}"
                ),
            });
        }
        Ok(())
    }
}
