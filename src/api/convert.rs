//! Messages into the domain's types. Every field is taken by name, without
//! `..`: a new one does not compile until somebody decides about it.

use std::{
    mem::take,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::Invalid;
use crate::{
    domain::{
        Action, AgentId, Args, Body, Channel, Cost, Delta, Event, IdError, Labels, Marker,
        MarkerKind, Operation, Outcome, Role, SessionId, Status, Tenant, ToolCall, Turn, VerdictId,
    },
    feed::Watch,
    pb,
};

const EVENT_ID_BYTES_MAX: usize = 128;
const AGENT_ID_BYTES_MAX: usize = 256;
const HASH_BYTES_MAX: usize = 256;
const TOOL_BYTES_MAX: usize = 128;
const REASON_BYTES_MAX: usize = 1_024;
/// Who wants more than that wants the profile `lenient` or mode `shadow`.
const SNOOZE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
const LABELS_MAX: usize = 16;
const LABEL_KEY_BYTES_MAX: usize = 64;
const LABEL_VALUE_BYTES_MAX: usize = 256;
/// The years 1 and 9999, as protobuf has it.
const TIME_SECS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Of the default tenant: for what knows no other, such as a replay.
impl TryFrom<pb::Event> for Event {
    type Error = Invalid;

    fn try_from(mut event: pb::Event) -> Result<Self, Invalid> {
        let session = session_id(&Tenant::default(), &event.session_id)?;
        self::event(session, &mut event)
    }
}

/// Takes an event of this session out of its message. What a refusal quotes, its
/// ids, is still there where it cannot be taken.
pub(super) fn event(session: SessionId, event: &mut pb::Event) -> Result<Event, Invalid> {
    let pb::Event {
        session_id: _, // The caller has parsed it.
        event_id,
        time,
        agent_id,
        round_id,
        state_hash,
        usage,
        body,
    } = event;
    check("event_id", event_id, EVENT_ID_BYTES_MAX)?;
    Ok(Event {
        session,
        time: time.map(|time| self::time("time", time)).transpose()?,
        agent: agent_id_of(agent_id)?,
        round_id: bounded("round_id", take(round_id), EVENT_ID_BYTES_MAX)?,
        state_hash: bounded("state_hash", take(state_hash), HASH_BYTES_MAX)?,
        cost: usage.map(cost).transpose()?.unwrap_or_default(),
        body: match body.take().ok_or_else(|| Invalid::required("body"))? {
            pb::event::Body::ToolCall(call) => Body::Call(tool_call(call)?),
            pb::event::Body::Turn(turn) => Body::Turn(self::turn(turn)?),
            pb::event::Body::Marker(marker) => Body::Marker(self::marker(marker)?),
        },
        // Last, when nothing can fail any more.
        event_id: take(event_id),
    })
}

/// As an event.
impl TryFrom<pb::Delta> for Delta {
    type Error = Invalid;

    fn try_from(mut delta: pb::Delta) -> Result<Self, Invalid> {
        let session = session_id(&Tenant::default(), &delta.session_id)?;
        self::delta(session, &mut delta)
    }
}

/// Takes a delta of this session out of its message, in the same way.
pub(super) fn delta(session: SessionId, delta: &mut pb::Delta) -> Result<Delta, Invalid> {
    let pb::Delta {
        session_id: _, // The caller has parsed it.
        agent_id,
        turn_id,
        channel,
        text,
        end_of_turn,
    } = delta;
    check("agent_id", agent_id, AGENT_ID_BYTES_MAX)?;
    check("turn_id", turn_id, EVENT_ID_BYTES_MAX)?;
    Ok(Delta {
        session,
        channel: match known::<pb::Channel>("channel", *channel)? {
            pb::Channel::Unspecified | pb::Channel::Visible => Channel::Visible,
            pb::Channel::Reasoning => Channel::Reasoning,
        },
        // Nothing can fail any more.
        agent: agent_id_of(agent_id)?,
        turn_id: take(turn_id),
        text: take(text),
        end_of_turn: *end_of_turn,
    })
}

fn tool_call(call: pb::ToolCall) -> Result<ToolCall, Invalid> {
    let pb::ToolCall {
        tool,
        operation,
        target,
        arguments,
        outcome,
        error,
        result,
        result_hash,
        content_hash,
    } = call;
    if tool.is_empty() {
        return Err(Invalid::required("tool_call.tool"));
    }
    Ok(ToolCall {
        tool: bounded("tool_call.tool", tool, TOOL_BYTES_MAX)?,
        operation: match known::<pb::Operation>("tool_call.operation", operation)? {
            pb::Operation::Unspecified => None,
            pb::Operation::Read => Some(Operation::Read),
            pb::Operation::Write => Some(Operation::Write),
            pb::Operation::Edit => Some(Operation::Edit),
            pb::Operation::Execute => Some(Operation::Execute),
            pb::Operation::Search => Some(Operation::Search),
            pb::Operation::Other => Some(Operation::Other),
        },
        target,
        args: arguments.map(args).transpose()?.unwrap_or_default(),
        outcome: match known::<pb::Outcome>("tool_call.outcome", outcome)? {
            pb::Outcome::Unspecified => None,
            pb::Outcome::Ok => Some(Outcome::Ok),
            pb::Outcome::Error => Some(Outcome::Error),
            pb::Outcome::Blocked => Some(Outcome::Blocked),
        },
        error,
        result,
        result_hash: bounded("tool_call.result_hash", result_hash, HASH_BYTES_MAX)?,
        content_hash: bounded("tool_call.content_hash", content_hash, HASH_BYTES_MAX)?,
    })
}

fn args(args: pb::tool_call::Arguments) -> Result<Args, Invalid> {
    Ok(match args {
        pb::tool_call::Arguments::ArgsJson(text) => Args::Text(text),
        // The convenient form becomes the fast one.
        pb::tool_call::Arguments::Args(tree) => Args::Text(
            serde_json::to_string(&tree)
                .map_err(|error| Invalid::field("tool_call.args", error))?,
        ),
        pb::tool_call::Arguments::ArgsHash(hash) => {
            Args::Hash(bounded("tool_call.args_hash", hash, HASH_BYTES_MAX)?)
        }
    })
}

fn turn(turn: pb::Turn) -> Result<Turn, Invalid> {
    let pb::Turn {
        turn_id,
        role,
        text,
    } = turn;
    Ok(Turn {
        turn_id: bounded("turn.turn_id", turn_id, EVENT_ID_BYTES_MAX)?,
        role: match known::<pb::Role>("turn.role", role)? {
            pb::Role::Unspecified => return Err(Invalid::required("turn.role")),
            pb::Role::Agent => Role::Agent,
            pb::Role::User => Role::User,
            pb::Role::System => Role::System,
        },
        text,
    })
}

fn marker(marker: pb::Marker) -> Result<Marker, Invalid> {
    let pb::Marker {
        kind,
        context_tokens,
    } = marker;
    if context_tokens < 0 {
        return Err(negative("marker.context_tokens"));
    }
    Ok(Marker {
        kind: match known::<pb::MarkerKind>("marker.kind", kind)? {
            pb::MarkerKind::Unspecified => return Err(Invalid::required("marker.kind")),
            pb::MarkerKind::Compaction => MarkerKind::Compaction,
            pb::MarkerKind::NewRun => MarkerKind::NewRun,
        },
        context_tokens,
    })
}

fn cost(usage: pb::Usage) -> Result<Cost, Invalid> {
    let pb::Usage {
        input_tokens,
        output_tokens,
        cost_usd,
    } = usage;
    if input_tokens < 0 {
        return Err(negative("usage.input_tokens"));
    }
    if output_tokens < 0 {
        return Err(negative("usage.output_tokens"));
    }
    if !(cost_usd.is_finite() && cost_usd >= 0.0) {
        return Err(Invalid::field(
            "usage.cost_usd",
            "must be finite and not negative",
        ));
    }
    Ok(Cost {
        input_tokens: input_tokens.into(),
        output_tokens: output_tokens.into(),
        usd: cost_usd,
    })
}

pub(super) fn session_id(tenant: &Tenant, id: &str) -> Result<SessionId, Invalid> {
    SessionId::of(tenant, id).map_err(|why| match why {
        IdError::Empty => Invalid::required("session_id"),
        IdError::TooLong { .. } | IdError::Unprintable => {
            Invalid::because("SESSION_ID_INVALID", "session_id", why)
        }
    })
}

fn agent_id_of(id: &mut String) -> Result<AgentId, Invalid> {
    check("agent_id", id, AGENT_ID_BYTES_MAX)?;
    Ok(take(id).into())
}

/// An operator's reason.
pub(super) fn reason(reason: String) -> Result<String, Invalid> {
    if reason.trim().is_empty() {
        return Err(Invalid::required("reason"));
    }
    bounded("reason", reason, REASON_BYTES_MAX)
}

pub(super) fn labels(
    labels: impl IntoIterator<Item = (String, String)>,
) -> Result<Labels, Invalid> {
    let labels: Labels = labels.into_iter().collect();
    if labels.len() > LABELS_MAX {
        let why = format!(
            "has {} entries, at most {LABELS_MAX} are allowed",
            labels.len()
        );
        return Err(Invalid::field("labels", why));
    }
    for (key, value) in &labels {
        if key.is_empty() || key.len() > LABEL_KEY_BYTES_MAX {
            let why = format!(
                "a key has {} bytes, not 1 to {LABEL_KEY_BYTES_MAX}",
                key.len()
            );
            return Err(Invalid::field("labels", why));
        }
        if value.len() > LABEL_VALUE_BYTES_MAX {
            let why = format!(
                "a value has {} bytes, at most {LABEL_VALUE_BYTES_MAX} are allowed",
                value.len()
            );
            return Err(Invalid::field("labels", why));
        }
    }
    Ok(labels)
}

pub(super) fn status(status: i32) -> Result<Option<Status>, Invalid> {
    Ok(match known::<pb::SessionStatus>("status", status)? {
        pb::SessionStatus::Unspecified => None,
        pb::SessionStatus::Active => Some(Status::Active),
        pb::SessionStatus::Looping => Some(Status::Looping),
        pb::SessionStatus::Terminated => Some(Status::Terminated),
        pb::SessionStatus::Ended => Some(Status::Ended),
        pb::SessionStatus::Quarantined => Some(Status::Quarantined),
    })
}

fn action(field: &str, action: i32) -> Result<Option<Action>, Invalid> {
    Ok(match known::<pb::Action>(field, action)? {
        pb::Action::Unspecified => None,
        pb::Action::Alert => Some(Action::Alert),
        pb::Action::Warn => Some(Action::Warn),
        pb::Action::Throttle => Some(Action::Throttle),
        pb::Action::Checkpoint => Some(Action::Checkpoint),
        pb::Action::Ask => Some(Action::Ask),
        pb::Action::Block => Some(Action::Block),
        pb::Action::Break => Some(Action::Break),
        pb::Action::Escalate => Some(Action::Escalate),
        pb::Action::Terminate => Some(Action::Terminate),
    })
}

/// What is watched, and after which verdict.
pub(super) fn watch(
    tenant: &Tenant,
    request: pb::WatchVerdictsRequest,
) -> Result<(Watch, Option<VerdictId>), Invalid> {
    let pb::WatchVerdictsRequest {
        session_id,
        labels,
        detector,
        least_action,
        after_verdict_id,
    } = request;
    let after = match after_verdict_id.as_str() {
        "" => None,
        id => Some(
            VerdictId::parse(id)
                .ok_or_else(|| Invalid::field("after_verdict_id", "is not the id of a verdict"))?,
        ),
    };
    let watch = Watch {
        tenant: Some(tenant.clone()),
        session: (!session_id.is_empty())
            .then(|| self::session_id(tenant, &session_id))
            .transpose()?,
        labels: self::labels(labels)?,
        detector: bounded("detector", detector, TOOL_BYTES_MAX)?,
        least_action: action("least_action", least_action)?,
    };
    Ok((watch, after))
}

/// For how long a session is snoozed, to the millisecond.
pub(super) fn snooze(duration: Option<pbjson_types::Duration>) -> Result<Duration, Invalid> {
    let pbjson_types::Duration { seconds, nanos } =
        duration.ok_or_else(|| Invalid::required("duration"))?;
    let seconds = u64::try_from(seconds).ok();
    let nanos = u32::try_from(nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000);
    let duration = seconds
        .zip(nanos)
        .map(|(secs, nanos)| Duration::new(secs, nanos));
    duration
        .filter(|duration| (Duration::from_millis(1)..=SNOOZE_MAX).contains(duration))
        .ok_or_else(|| Invalid::field("duration", "must be more than 0 and at most 7 days"))
}

fn known<E: TryFrom<i32>>(field: &str, value: i32) -> Result<E, Invalid> {
    E::try_from(value).map_err(|_| Invalid::field(field, format!("{value} is not a known value")))
}

fn bounded(field: &str, text: String, bytes_max: usize) -> Result<String, Invalid> {
    check(field, &text, bytes_max)?;
    Ok(text)
}

fn check(field: &str, text: &str, bytes_max: usize) -> Result<(), Invalid> {
    if text.len() <= bytes_max {
        return Ok(());
    }
    let why = format!("has {} bytes, at most {bytes_max} are allowed", text.len());
    Err(Invalid::because("FIELD_TOO_LONG", field, why))
}

fn negative(field: &str) -> Invalid {
    Invalid::field(field, "must not be negative")
}

pub(super) fn time(field: &str, time: pbjson_types::Timestamp) -> Result<SystemTime, Invalid> {
    let pbjson_types::Timestamp { seconds, nanos } = time;
    let nanos = u32::try_from(nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000);
    let (Some(nanos), true) = (nanos, TIME_SECS.contains(&seconds)) else {
        return Err(Invalid::field(
            field,
            "is not a time between the years 1 and 9999",
        ));
    };
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let whole = if seconds < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    whole
        .and_then(|whole| whole.checked_add(Duration::from_nanos(nanos.into())))
        .ok_or_else(|| Invalid::field(field, "cannot be represented"))
}
