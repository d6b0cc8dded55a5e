//! A session with its timeline and explanations as a message.

use super::{session_to_pb, time_to_pb};
use crate::{
    domain::{
        DetectorExplanation, Operation, Outcome, SessionDetail, TimelineEntry, TimelineStep,
        TimelineStepKind,
    },
    pb,
};

pub(crate) fn detail_to_pb(detail: &SessionDetail) -> pb::GetSessionResponse {
    let SessionDetail {
        view,
        timeline,
        explanations,
    } = detail;
    let explanation = |(detector, explained): &(_, DetectorExplanation)| {
        let DetectorExplanation {
            rule,
            threshold,
            would_not_fire_if,
        } = explained;
        pb::Explanation {
            detector: std::sync::Arc::to_string(detector),
            rule: (*rule).to_owned(),
            threshold: threshold.clone(),
            would_not_fire_if: (*would_not_fire_if).to_owned(),
        }
    };
    pb::GetSessionResponse {
        session: Some(session_to_pb(view)),
        timeline: timeline.iter().map(timeline_entry_to_pb).collect(),
        explanations: explanations.iter().map(explanation).collect(),
    }
}

pub fn timeline_entry_to_pb(entry: &TimelineEntry) -> pb::TimelineEntry {
    let TimelineEntry {
        step,
        agent,
        call_group: same,
        loop_id,
        trends,
    } = entry;
    let trends = trends.iter().map(|sample| pb::TrendSample {
        detector: sample.detector.to_string(),
        ema: sample.ema,
        found: sample.found,
    });
    pb::TimelineEntry {
        agent_id: agent.as_str().to_owned(),
        same: *same,
        loop_id: loop_id.map(|id| id.to_string()).unwrap_or_default(),
        trends: trends.collect(),
        ..step_to_pb(step)
    }
}

/// The fields of the event itself.
fn step_to_pb(step: &TimelineStep) -> pb::TimelineEntry {
    let TimelineStep { index, time, kind } = step;
    let mut entry = pb::TimelineEntry {
        event_index: *index,
        time: Some(time_to_pb(*time)),
        ..pb::TimelineEntry::default()
    };
    let kind = match kind {
        TimelineStepKind::Call {
            tool,
            target,
            operation,
            outcome,
        } => {
            entry.tool.clone_from(tool);
            entry.target.clone_from(target);
            entry.operation = operation_to_pb(*operation).into();
            entry.outcome = outcome_to_pb(*outcome).into();
            pb::TimelineKind::ToolCall
        }
        TimelineStepKind::AgentTurn => pb::TimelineKind::AgentTurn,
        TimelineStepKind::UserTurn => pb::TimelineKind::UserTurn,
        TimelineStepKind::Compaction => pb::TimelineKind::Compaction,
        TimelineStepKind::NewRun => pb::TimelineKind::NewRun,
    };
    entry.kind = kind.into();
    entry
}

fn operation_to_pb(operation: Operation) -> pb::Operation {
    match operation {
        Operation::Read => pb::Operation::Read,
        Operation::Write => pb::Operation::Write,
        Operation::Edit => pb::Operation::Edit,
        Operation::Execute => pb::Operation::Execute,
        Operation::Search => pb::Operation::Search,
        Operation::Other => pb::Operation::Other,
    }
}

fn outcome_to_pb(outcome: Option<Outcome>) -> pb::Outcome {
    match outcome {
        None => pb::Outcome::Unspecified,
        Some(Outcome::Ok) => pb::Outcome::Ok,
        Some(Outcome::Error) => pb::Outcome::Error,
        Some(Outcome::Blocked) => pb::Outcome::Blocked,
    }
}
