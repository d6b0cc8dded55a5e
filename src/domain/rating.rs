//! Ratings of verdicts by operators.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// Whether a verdict was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Rating {
    Right,
    FalseAlarm,
}

impl Rating {
    pub const ALL: [Self; 2] = [Self::Right, Self::FalseAlarm];

    /// The name in metric labels and the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::FalseAlarm => "false_alarm",
        }
    }
}

/// The rating of a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feedback {
    pub rating: Rating,
    pub operator: String,
    /// May be empty.
    pub reason: String,
    pub time: SystemTime,
}
