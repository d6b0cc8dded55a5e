//! The events that led to a session's verdicts, as operators see them.

use std::{sync::Arc, time::SystemTime};

use super::{AgentId, LoopId, Operation, Outcome, SessionView};

/// A session with its timeline and explanations. A copy that is made under the lock.
#[derive(Clone, Debug)]
pub struct SessionDetail {
    pub view: SessionView,
    /// Oldest first.
    pub timeline: Vec<TimelineEntry>,
    /// An explanation of each detector that the verdicts name.
    pub explanations: Vec<(Arc<str>, DetectorExplanation)>,
}

/// An event that is still stored.
#[derive(Clone, Debug)]
pub struct TimelineEntry {
    pub step: TimelineStep,
    pub agent: AgentId,
    /// Equal calls share a number, from 1; 0: the call equals no other.
    pub call_group: i32,
    /// The loop that cites it.
    pub loop_id: Option<LoopId>,
    pub trends: Vec<TrendSample>,
}

impl TimelineEntry {
    /// Bytes that the entry uses in memory.
    pub fn memory_bytes(&self) -> usize {
        let text_bytes = match &self.step.kind {
            TimelineStepKind::Call { tool, target, .. } => tool.len() + target.len(),
            TimelineStepKind::AgentTurn
            | TimelineStepKind::UserTurn
            | TimelineStepKind::Compaction
            | TimelineStepKind::NewRun => 0,
        };
        size_of::<Self>() + text_bytes + self.agent.as_str().len() + size_of_val(&*self.trends)
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
    /// The detector matched at the event.
    pub found: bool,
}

/// When a detector fires, with the current settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectorExplanation {
    /// The pattern that the detector looks for.
    pub rule: &'static str,
    /// How many occurrences make a finding.
    pub threshold: String,
    /// The circumstance that prevents a finding.
    pub would_not_fire_if: &'static str,
}

/// Formats indexes of events for a person: `4, 10–13`.
pub fn format_ranges(indexes: &[i32]) -> String {
    let ranges: Vec<String> = indexes
        .chunk_by(|a, b| a.checked_add(1) == Some(*b))
        .map(|run| match run {
            [] => String::new(),
            [only] => only.to_string(),
            [first, last] => format!("{first}, {last}"),
            [first, .., last] => format!("{first}–{last}"),
        })
        .collect();
    ranges.join(", ")
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
