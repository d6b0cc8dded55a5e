//! A session as operators see it.

use std::{sync::Arc, time::SystemTime};

use serde::{Deserialize, Serialize};

use super::{AgentId, Cost, Labels, SessionId, Standing, Trend, Verdict, Waste};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// Watched, without an active loop.
    Active,
    /// Watched, with an active loop that was reported.
    Looping,
    /// Ended by a verdict, until an operator resets it or its tombstone expires.
    Terminated,
    /// Ended normally.
    Ended,
    /// Not watched until it is reset, because an internal error occurred in it.
    Quarantined,
}

impl SessionStatus {
    pub const ALL: [Self; 5] = [
        Self::Active,
        Self::Looping,
        Self::Terminated,
        Self::Ended,
        Self::Quarantined,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Looping => "looping",
            Self::Terminated => "terminated",
            Self::Ended => "ended",
            Self::Quarantined => "quarantined",
        }
    }
}

/// The usage of a session so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    pub events: i64,
    /// Turns of its agents.
    pub turns: i64,
    pub tokens: i64,
    pub usd: f64,
    /// Seconds since its first event.
    pub secs: u64,
}

/// A session as an operator sees it. A copy that is made under the lock.
#[derive(Clone, Debug)]
pub struct SessionView {
    pub id: SessionId,
    pub status: SessionStatus,
    pub profile: Arc<str>,
    pub labels: Arc<Labels>,
    pub created: SystemTime,
    pub last_event: SystemTime,
    pub events: i32,
    pub turns: i32,
    pub cost: Cost,
    pub agents: usize,
    pub trends: Vec<(AgentId, Arc<str>, Trend)>,
    /// The strongest trend after each of the last events, oldest first; empty if
    /// there was none.
    pub trend_samples: Vec<f64>,
    pub verdicts: Vec<Arc<Verdict>>,
    pub wasted: Waste,
    /// The part of `wasted` after a verdict, plus everything after a termination.
    /// Acting on the verdicts would have saved it.
    pub avoidable: Waste,
    pub abstentions: Vec<Abstention>,
    pub termination: Option<Arc<Verdict>>,
    /// Its verdicts are `shadow` until then.
    pub snoozed_until: Option<SystemTime>,
    /// The strongest action in force for its agents.
    pub standing: Option<Standing>,
    /// The cost of events after a termination of the session or of its sub-agents.
    pub disobeyed: Waste,
}

impl SessionView {
    /// The view of an id without any event.
    pub fn unknown(id: &SessionId, profile: &Arc<str>, now: SystemTime) -> Self {
        Self {
            id: id.clone(),
            status: SessionStatus::Ended,
            profile: profile.clone(),
            labels: Arc::default(),
            created: now,
            last_event: now,
            events: 0,
            turns: 0,
            cost: Cost::default(),
            agents: 0,
            trends: Vec::new(),
            trend_samples: Vec::new(),
            verdicts: Vec::new(),
            wasted: Waste::default(),
            avoidable: Waste::default(),
            abstentions: Vec::new(),
            termination: None,
            snoozed_until: None,
            standing: None,
            disobeyed: Waste::default(),
        }
    }
}

/// The sessions that a start of the service has restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredSummary {
    pub started_at: SystemTime,
    /// The sessions are known since then: since the database was created, or if some were
    /// lost, since the start.
    pub data_since: SystemTime,
    /// Sessions with all of their state.
    pub whole: usize,
    /// Sessions with their counts and reported loops, but not what the detectors saw.
    pub partial: usize,
    /// Sessions of which at most profile and labels are known.
    pub lost: usize,
}

/// A detector that skipped events because a field was missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abstention {
    pub detector: Arc<str>,
    pub field: &'static str,
    pub events: u32,
}
