use std::{sync::Arc, time::SystemTime};

use super::{AgentId, LoopId, Operation, Outcome, SessionView};

/// A session with what led to its verdicts: a copy, made under the lock.
#[derive(Clone, Debug)]
pub struct SessionDetail {
    pub view: SessionView,
    /// Oldest first.
    pub timeline: Vec<TimelineEntry>,
    /// Of each detector in its verdicts, once.
    pub explanations: Vec<(Arc<str>, DetectorExplanation)>,
}

/// An event that is still kept.
#[derive(Clone, Debug)]
pub struct TimelineEntry {
    pub step: TimelineStep,
    pub agent: AgentId,
    /// Equal calls share a number, from 1; 0: equal to no other.
    pub call_group: i32,
    /// The loop that cites it.
    pub loop_id: Option<LoopId>,
    pub trends: Vec<TrendSample>,
}

impl TimelineEntry {
    /// What it takes in memory.
    pub fn memory_bytes(&self) -> usize {
        let said = match &self.step.kind {
            TimelineStepKind::Call { tool, target, .. } => tool.len() + target.len(),
            TimelineStepKind::AgentTurn
            | TimelineStepKind::UserTurn
            | TimelineStepKind::Compaction
            | TimelineStepKind::NewRun => 0,
        };
        size_of::<Self>() + said + self.agent.as_str().len() + size_of_val(&*self.trends)
    }
}

/// What an agent did.
#[derive(Clone, Debug)]
pub struct TimelineStep {
    pub index: i32,
    pub time: SystemTime,
    pub kind: TimelineStepKind,
}

#[derive(Clone, Debug)]
pub enum TimelineStepKind {
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
pub struct DetectorExplanation {
    /// What it looks for.
    pub rule: &'static str,
    /// How much of it makes a finding.
    pub threshold: String,
    /// What would have kept it quiet.
    pub avoided_by: &'static str,
}

/// Indexes of events for a person: `4, 10–13`.
pub fn format_ranges(indexes: &[i32]) -> String {
    let runs = indexes.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let runs = runs.filter_map(|run| {
        let (first, last) = (run.first()?, run.last()?);
        Some(match run.len() {
            1 => first.to_string(),
            2 => format!("{first}, {last}"),
            _ => format!("{first}–{last}"),
        })
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_events_become_a_range() {
        let check = |indexes: &[i32], expected: &str| assert_eq!(format_ranges(indexes), expected);
        check(&[], "");
        check(&[7], "7");
        check(&[7, 8], "7, 8");
        check(&[10, 11, 12, 13], "10–13");
        check(&[1, 3, 4, 5, 9], "1, 3–5, 9");
        check(&[i32::MAX - 1, i32::MAX], "2147483646, 2147483647");
    }
}
