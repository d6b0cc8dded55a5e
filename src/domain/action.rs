//! The actions that a verdict can ask for.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a verdict asks for, weakest to strongest. The order matters: merging
/// findings takes the strongest, and a client that cannot do an action does the
/// next weaker one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Alert,
    Warn,
    Throttle,
    Checkpoint,
    Ask,
    Block,
    Break,
    Escalate,
    Terminate,
}

impl Action {
    pub const ALL: [Self; 9] = [
        Self::Alert,
        Self::Warn,
        Self::Throttle,
        Self::Checkpoint,
        Self::Ask,
        Self::Block,
        Self::Break,
        Self::Escalate,
        Self::Terminate,
    ];

    /// The name in configuration, metric labels and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alert => "alert",
            Self::Warn => "warn",
            Self::Throttle => "throttle",
            Self::Checkpoint => "checkpoint",
            Self::Ask => "ask",
            Self::Block => "block",
            Self::Break => "break",
            Self::Escalate => "escalate",
            Self::Terminate => "terminate",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Debug, Error)]
#[error(
    "unknown action {0:?}; one of alert, warn, throttle, checkpoint, ask, block, break, escalate, terminate"
)]
pub struct UnknownAction(String);

impl FromStr for Action {
    type Err = UnknownAction;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.trim().to_ascii_lowercase();
        let name = lower.strip_prefix("action_").unwrap_or(&lower);
        Self::ALL
            .into_iter()
            .find(|action| action.name() == name)
            .ok_or_else(|| UnknownAction(text.to_owned()))
    }
}
