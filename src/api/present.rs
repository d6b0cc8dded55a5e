//! Builds messages from domain types.

mod detail;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) use detail::detail_to_pb;
pub use detail::timeline_entry_to_pb;

use crate::{
    domain::{
        Abstention, Action, CallCheck, Cost, Delta, Evidence, Feedback, Level, LoopMember, Rating,
        SessionStatus, SessionView, Standing, Trend, Verdict, Waste,
    },
    engine::RecordOutcome,
    pb,
};

/// A verdict as proto3 JSON, for the console and webhooks.
pub fn verdict_to_json(verdict: &Verdict) -> serde_json::Value {
    serde_json::to_value(verdict_to_pb(verdict)).unwrap_or_default()
}

pub fn verdict_to_pb(verdict: &Verdict) -> pb::Verdict {
    // Every field is named, so that a new one does not compile until it is presented.
    let Verdict {
        id,
        session,
        agent,
        time,
        event_index,
        action,
        detector,
        other_detectors: also,
        pattern,
        reason,
        confidence,
        correction,
        loop_id,
        members,
        trend,
        evidence,
        wasted,
        retry_after,
        durable,
        is_foreign: _, // The replicas are one service.
        shadow,
        operator,
    } = verdict;
    // The ids and the time.
    pb::Verdict {
        verdict_id: id.to_string(),
        session_id: session.to_string(),
        agent_id: agent.as_str().to_owned(),
        time: Some(time_to_pb(*time)),
        event_index: event_index.unwrap_or(-1),
        // The action, and the finding that it answers.
        action: action_to_pb(*action).into(),
        detector: detector.to_string(),
        also: also.iter().map(ToString::to_string).collect(),
        pattern: pattern.clone(),
        reason: reason.clone(),
        confidence: *confidence,
        correction: correction.clone(),
        loop_id: loop_id.map(|id| id.to_string()).unwrap_or_default(),
        members: members.iter().map(member_to_pb).collect(),
        trend: trend.map(trend_to_pb),
        evidence: Some(evidence_to_pb(evidence)),
        // Cost, and how it is to be treated.
        wasted: Some(waste_to_pb(*wasted)),
        retry_after: retry_after.map(duration_to_pb),
        durable: *durable,
        shadow: *shadow,
        operator: operator.clone(),
        feedback: None,
    }
}

pub(super) fn feedback_to_pb(feedback: &Feedback) -> pb::Feedback {
    let Feedback {
        rating,
        operator,
        reason,
        time,
    } = feedback;
    let rating = match rating {
        Rating::Right => pb::Rating::Right,
        Rating::FalseAlarm => pb::Rating::FalseAlarm,
    };
    pb::Feedback {
        rating: rating.into(),
        operator: operator.clone(),
        reason: reason.clone(),
        time: Some(time_to_pb(*time)),
    }
}

fn member_to_pb(member: &LoopMember) -> pb::Member {
    pb::Member {
        tool: member.tool.clone(),
        target: member.target.clone(),
        event_id: member.event_id.clone(),
        call_key: member
            .call_key
            .map(|key| key.to_string())
            .unwrap_or_default(),
        args: member.args.clone(),
    }
}

fn evidence_to_pb(evidence: &Evidence) -> pb::Evidence {
    pb::Evidence {
        count: evidence.count,
        period: evidence.period,
        similarity: evidence.similarity,
        event_indexes: evidence.event_indexes.clone(),
        excerpt: evidence.excerpt.clone(),
    }
}

pub(super) fn duration_to_pb(duration: Duration) -> pbjson_types::Duration {
    pbjson_types::Duration {
        seconds: duration.as_secs().try_into().unwrap_or(i64::MAX),
        nanos: duration.subsec_nanos().cast_signed(),
    }
}

/// The result of an event that was recorded, with its verdict as a message.
pub(super) fn build_event_result(
    session_id: String,
    event_id: String,
    recorded: &RecordOutcome,
    verdict: Option<pb::Verdict>,
) -> pb::EventResult {
    pb::EventResult {
        session_id,
        event_id,
        event_index: recorded.index.unwrap_or(-1),
        duplicate: recorded.duplicate,
        action: action_to_pb(recorded.action()).into(),
        verdict,
        error: None,
        standing: recorded.standing.as_ref().map(standing_to_pb),
        state_lost: recorded.state_lost,
    }
}

pub(super) fn build_check_response(
    check: &CallCheck,
    verdict: Option<pb::Verdict>,
) -> pb::CheckCallResponse {
    pb::CheckCallResponse {
        action: action_to_pb(check.action).into(),
        verdict,
        standing: check.standing.as_ref().map(standing_to_pb),
    }
}

pub(super) fn standing_to_pb(standing: &Standing) -> pb::Standing {
    let Standing {
        action,
        verdict,
        since,
        blocked,
    } = standing;
    pb::Standing {
        action: action_to_pb(Some(*action)).into(),
        verdict_id: verdict.to_string(),
        since: Some(time_to_pb(*since)),
        blocked: blocked.iter().map(ToString::to_string).collect(),
    }
}

/// A response with the fields that identify the delta it is about.
pub(super) fn build_delta_response(session_id: String, delta: Delta) -> pb::StreamDeltasResponse {
    pb::StreamDeltasResponse {
        session_id,
        agent_id: delta.agent.into(),
        turn_id: delta.turn_id,
        end_of_turn: delta.end_of_turn,
        ..pb::StreamDeltasResponse::default()
    }
}

/// The result of an event that was rejected.
pub(super) fn build_error_result(
    session_id: String,
    event_id: String,
    error: pb::Error,
) -> pb::EventResult {
    pb::EventResult {
        session_id,
        event_id,
        event_index: -1,
        error: Some(error),
        ..pb::EventResult::default()
    }
}

/// The result that pushes a termination. It answers no event.
pub(super) fn build_push_result(verdict: pb::Verdict) -> pb::EventResult {
    pb::EventResult {
        session_id: verdict.session_id.clone(),
        event_index: -1,
        action: verdict.action,
        standing: Some(pb::Standing {
            action: verdict.action,
            verdict_id: verdict.verdict_id.clone(),
            since: verdict.time,
            blocked: Vec::new(),
        }),
        verdict: Some(verdict),
        ..pb::EventResult::default()
    }
}

pub(super) fn session_to_pb(view: &SessionView) -> pb::Session {
    // Every field is named, so that a new one does not compile until it is presented.
    let SessionView {
        id,
        status,
        profile,
        labels,
        created,
        last_event,
        events,
        turns,
        cost,
        agents,
        trends,
        trend_samples,
        verdicts,
        wasted,
        avoidable: _, // Only replay reports it.
        abstentions,
        termination,
        snoozed_until,
        standing,
        disobeyed,
    } = view;
    pb::Session {
        replica: String::new(), // Lists set it.
        session_id: id.to_string(),
        status: status_to_pb(*status).into(),
        profile: profile.to_string(),
        labels: labels.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        create_time: Some(time_to_pb(*created)),
        last_event_time: Some(time_to_pb(*last_event)),
        events: *events,
        turns: *turns,
        usage: Some(usage_to_pb(*cost)),
        // The state of the detectors and of the policy.
        agents: i32::try_from(*agents).unwrap_or(i32::MAX),
        trends: trends
            .iter()
            .map(|(agent, detector, trend)| pb::DetectorTrend {
                agent_id: agent.as_str().to_owned(),
                detector: detector.to_string(),
                trend: Some(trend_to_pb(*trend)),
            })
            .collect(),
        last_verdicts: verdicts.iter().map(|v| verdict_to_pb(v)).collect(),
        wasted: Some(waste_to_pb(*wasted)),
        abstentions: abstentions.iter().map(abstention_to_pb).collect(),
        termination: termination.as_deref().map(verdict_to_pb),
        snoozed_until: snoozed_until.map(time_to_pb),
        trend_samples: trend_samples.clone(),
        standing: standing.as_ref().map(standing_to_pb),
        disobeyed: (disobeyed.events > 0).then(|| waste_to_pb(*disobeyed)),
    }
}

fn usage_to_pb(cost: Cost) -> pb::Usage {
    pb::Usage {
        input_tokens: saturate_i32(cost.input_tokens),
        output_tokens: saturate_i32(cost.output_tokens),
        cost_usd: cost.usd,
        cached_input_tokens: saturate_i32(cost.cached_input_tokens),
    }
}

fn abstention_to_pb(abstention: &Abstention) -> pb::Abstention {
    pb::Abstention {
        detector: abstention.detector.to_string(),
        field: abstention.field.to_owned(),
        events: i32::try_from(abstention.events).unwrap_or(i32::MAX),
    }
}

pub(super) fn action_to_pb(action: Option<Action>) -> pb::Action {
    match action {
        None => pb::Action::Unspecified,
        Some(Action::Alert) => pb::Action::Alert,
        Some(Action::Warn) => pb::Action::Warn,
        Some(Action::Throttle) => pb::Action::Throttle,
        Some(Action::Checkpoint) => pb::Action::Checkpoint,
        Some(Action::Ask) => pb::Action::Ask,
        Some(Action::Block) => pb::Action::Block,
        Some(Action::Break) => pb::Action::Break,
        Some(Action::Escalate) => pb::Action::Escalate,
        Some(Action::Terminate) => pb::Action::Terminate,
    }
}

pub(super) fn status_to_pb(status: SessionStatus) -> pb::SessionStatus {
    match status {
        SessionStatus::Active => pb::SessionStatus::Active,
        SessionStatus::Looping => pb::SessionStatus::Looping,
        SessionStatus::Terminated => pb::SessionStatus::Terminated,
        SessionStatus::Ended => pb::SessionStatus::Ended,
        SessionStatus::Quarantined => pb::SessionStatus::Quarantined,
    }
}

fn trend_to_pb(trend: Trend) -> pb::Trend {
    let level = match trend.level {
        Level::Blip => pb::TrendLevel::Blip,
        Level::Trend => pb::TrendLevel::Trend,
        Level::Chronic => pb::TrendLevel::Chronic,
    };
    pb::Trend {
        ema: trend.ema,
        level: level.into(),
    }
}

fn waste_to_pb(waste: Waste) -> pb::Wasted {
    pb::Wasted {
        events: saturate_i32(waste.events),
        tokens: saturate_i32(waste.tokens),
        cost_usd: waste.usd,
        cached_tokens: saturate_i32(waste.cached_tokens),
    }
}

/// Counts are int32, because proto3 JSON shows int64 as strings. They saturate.
fn saturate_i32(count: i64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

pub(super) fn time_to_pb(time: SystemTime) -> pbjson_types::Timestamp {
    let (seconds, nanos) = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (
            saturate_i64(since.as_secs()),
            since.subsec_nanos().cast_signed(),
        ),
        Err(before) => {
            let before = before.duration();
            // `nanos` counts forward, also before 1970.
            match before.subsec_nanos().cast_signed() {
                0 => (-saturate_i64(before.as_secs()), 0),
                nanos => (-saturate_i64(before.as_secs()) - 1, 1_000_000_000 - nanos),
            }
        }
    };
    pbjson_types::Timestamp { seconds, nanos }
}

fn saturate_i64(secs: u64) -> i64 {
    secs.try_into().unwrap_or(i64::MAX)
}
