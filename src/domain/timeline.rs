use std::{sync::Arc, time::SystemTime};

use super::{AgentId, LoopId, Operation, Outcome, SessionView};

/// A session with what led to its verdicts: a copy, made under the lock.
#[derive(Clone, Debug)]
pub struct SessionDetail {
    pub view: SessionView,
    /// Oldest first.
    pub timeline: Vec<TimelineEntry>,
    /// Of each detector in its verdicts, once.
    pub explanations: Vec<(Arc<str>, Explained)>,
}

/// An event that is still kept.
#[derive(Clone, Debug)]
pub struct TimelineEntry {
    pub step: Step,
    pub agent: AgentId,
    /// Equal calls share a number, from 1; 0: equal to no other.
    pub same: i32,
    /// The loop that cites it.
    pub loop_id: Option<LoopId>,
    pub trends: Vec<TrendSample>,
}

/// What an agent did.
#[derive(Clone, Debug)]
pub struct Step {
    pub index: i32,
    pub time: SystemTime,
    pub kind: StepKind,
}

#[derive(Clone, Debug)]
pub enum StepKind {
    Call {
        tool: String,
        target: String,
        operation: Operation,
        outcome: Option<Outcome>,
    },
    AgentTurn,
    UserTurn,
    Compaction,
    NewRun,
}

/// A detector's trend after an event.
#[derive(Clone, Debug, PartialEq)]
pub struct TrendSample {
    pub detector: Arc<str>,
    pub ema: f64,
    /// It found something on the event.
    pub found: bool,
}

/// Why a detector fires, with the settings in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// What it looks for.
    pub rule: &'static str,
    /// How much of it makes a finding.
    pub threshold: String,
    /// What would have kept it quiet.
    pub quiet: &'static str,
}
