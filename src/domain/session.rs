use std::{sync::Arc, time::SystemTime};

use super::{AgentId, Cost, Labels, SessionId, Trend, Verdict, Waste};

/// How a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Watched; no loop stands.
    Active,
    /// Watched; a loop that was reported stands.
    Looping,
    /// Over for good, until an operator resets it or its tombstone expires.
    Terminated,
    /// It ended normally.
    Ended,
}

impl Status {
    pub const ALL: [Self; 4] = [Self::Active, Self::Looping, Self::Terminated, Self::Ended];

    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Looping => "looping",
            Self::Terminated => "terminated",
            Self::Ended => "ended",
        }
    }
}

/// A session as an operator sees it: a copy, made under the lock.
#[derive(Clone, Debug)]
pub struct SessionView {
    pub id: SessionId,
    pub status: Status,
    pub profile: Arc<str>,
    pub labels: Arc<Labels>,
    pub created: SystemTime,
    pub last_event: SystemTime,
    pub events: i32,
    pub turns: i32,
    pub cost: Cost,
    pub agents: usize,
    pub trends: Vec<(AgentId, Arc<str>, Trend)>,
    pub verdicts: Vec<Arc<Verdict>>,
    pub wasted: Waste,
    /// That part of `wasted` which came after a verdict, and all that was sent
    /// after a termination: acting would have saved it.
    pub avoidable: Waste,
    pub abstentions: Vec<Abstention>,
    pub termination: Option<Arc<Verdict>>,
    /// Its verdicts are `shadow` until then.
    pub snoozed_until: Option<SystemTime>,
}

impl SessionView {
    /// An id that nobody has heard of before.
    pub fn unheard_of(id: &SessionId, profile: &Arc<str>, now: SystemTime) -> Self {
        Self {
            id: id.clone(),
            status: Status::Ended,
            profile: profile.clone(),
            labels: Arc::default(),
            created: now,
            last_event: now,
            events: 0,
            turns: 0,
            cost: Cost::default(),
            agents: 0,
            trends: Vec::new(),
            verdicts: Vec::new(),
            wasted: Waste::default(),
            avoidable: Waste::default(),
            abstentions: Vec::new(),
            termination: None,
            snoozed_until: None,
        }
    }
}

/// A detector that could not judge some events for want of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abstention {
    pub detector: Arc<str>,
    pub field: &'static str,
    pub events: u32,
}
