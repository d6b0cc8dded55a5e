use super::{session, timestamp};
use crate::{
    domain::{Explained, Operation, Outcome, SessionDetail, Step, StepKind, TimelineEntry},
    pb,
};

/// A session with its timeline and why its detectors fire.
pub(crate) fn detail(detail: &SessionDetail) -> pb::GetSessionResponse {
    let SessionDetail {
        view,
        timeline,
        explanations,
    } = detail;
    let explanation = |(detector, explained): &(_, Explained)| {
        let Explained {
            rule,
            threshold,
            quiet,
        } = explained;
        pb::Explanation {
            detector: std::sync::Arc::to_string(detector),
            rule: (*rule).to_owned(),
            threshold: threshold.clone(),
            quiet: (*quiet).to_owned(),
        }
    };
    pb::GetSessionResponse {
        session: Some(session(view)),
        timeline: timeline.iter().map(entry).collect(),
        explanations: explanations.iter().map(explanation).collect(),
    }
}

fn entry(entry: &TimelineEntry) -> pb::TimelineEntry {
    let TimelineEntry {
        step,
        agent,
        same,
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
        ..self::step(step)
    }
}

/// What is known of the event itself.
fn step(step: &Step) -> pb::TimelineEntry {
    let Step { index, time, kind } = step;
    let mut entry = pb::TimelineEntry {
        event_index: *index,
        time: Some(timestamp(*time)),
        ..pb::TimelineEntry::default()
    };
    let kind = match kind {
        StepKind::Call {
            tool,
            target,
            operation,
            outcome,
        } => {
            entry.tool.clone_from(tool);
            entry.target.clone_from(target);
            entry.operation = self::operation(*operation).into();
            entry.outcome = self::outcome(*outcome).into();
            pb::TimelineKind::ToolCall
        }
        StepKind::AgentTurn => pb::TimelineKind::AgentTurn,
        StepKind::UserTurn => pb::TimelineKind::UserTurn,
        StepKind::Compaction => pb::TimelineKind::Compaction,
        StepKind::NewRun => pb::TimelineKind::NewRun,
    };
    entry.kind = kind.into();
    entry
}

fn operation(operation: Operation) -> pb::Operation {
    match operation {
        Operation::Read => pb::Operation::Read,
        Operation::Write => pb::Operation::Write,
        Operation::Edit => pb::Operation::Edit,
        Operation::Execute => pb::Operation::Execute,
        Operation::Search => pb::Operation::Search,
        Operation::Other => pb::Operation::Other,
    }
}

fn outcome(outcome: Option<Outcome>) -> pb::Outcome {
    match outcome {
        None => pb::Outcome::Unspecified,
        Some(Outcome::Ok) => pb::Outcome::Ok,
        Some(Outcome::Error) => pb::Outcome::Error,
        Some(Outcome::Blocked) => pb::Outcome::Blocked,
    }
}
