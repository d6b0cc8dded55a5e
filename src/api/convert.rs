//! Decodes the entries of a batch and parses messages into domain types. Every field is
//! destructured by name, without `..`, so that a new proto field does not compile until it is
//! handled.

mod operator_requests;

use std::{
    fmt::Display,
    mem::take,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost::{Message, bytes::Bytes};
use thiserror::Error;

pub use operator_requests::{LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX};
pub(super) use operator_requests::{
    parse_labels, parse_optional_reason, parse_reason, parse_snooze_duration, parse_status,
    parse_watch,
};

use crate::{
    domain::{
        AgentId, Args, Channel, Cost, Delta, Event, EventBody, IdError, Marker, MarkerKind,
        Operation, Outcome, Role, SessionId, Tenant, ToolCall, Turn,
    },
    pb,
};

const EVENT_ID_BYTES_MAX: usize = 128;
const AGENT_ID_BYTES_MAX: usize = 256;
const HASH_BYTES_MAX: usize = 256;
const TOOL_BYTES_MAX: usize = 128;
/// The `ErrorInfo` reason of an entry that cannot be decoded.
pub(super) const UNDECODABLE: &str = "UNDECODABLE";
/// The range of a protobuf `Timestamp`: the years 1 to 9999.
const TIME_SECS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// A message that was rejected, and the field at fault.
#[derive(Clone, Debug, Error)]
#[error("{field}: {description}")]
pub struct InvalidArgument {
    /// The path of the field from the event or request, such as `turn.role`.
    pub field: String,
    pub description: String,
    /// A constant for programs, sent as the reason of `ErrorInfo`.
    pub reason: &'static str,
}

impl InvalidArgument {
    pub(super) fn new(field: &str, description: impl Display) -> Self {
        Self::with_reason("FIELD_INVALID", field, description)
    }

    pub(super) fn missing(field: &str) -> Self {
        Self::with_reason("FIELD_REQUIRED", field, "is required")
    }

    pub(super) fn with_reason(
        reason: &'static str,
        field: &str,
        description: impl Display,
    ) -> Self {
        Self {
            field: field.to_owned(),
            description: description.to_string(),
            reason,
        }
    }
}

/// `StreamEventsRequest` with its events still encoded. They are decoded one by one, so
/// that one that cannot be decoded is answered in its own result and the stream's other
/// sessions continue.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EncodedEventsRequest {
    #[prost(int32, tag = "1")]
    pub sequence: i32,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub events: Vec<Bytes>,
}

/// `StreamDeltasRequest` with its deltas still encoded.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EncodedDeltasRequest {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub deltas: Vec<Bytes>,
}

/// An entry of a batch. If it cannot be decoded, the message has the fields before
/// the one at fault.
pub(super) struct DecodedEntry<M> {
    pub message: M,
    pub result: Result<(), InvalidArgument>,
}

/// Decodes the entry at this position of the list.
pub(super) fn decode_entry<M: Message + Default>(
    list: &str,
    position: usize,
    bytes: Bytes,
) -> DecodedEntry<M> {
    let mut message = M::default();
    let result = message.merge(bytes).map_err(|error| {
        InvalidArgument::with_reason(UNDECODABLE, &format!("{list}[{position}]"), error)
    });
    DecodedEntry { message, result }
}

/// For the default tenant, as in a replay.
impl TryFrom<pb::Event> for Event {
    type Error = InvalidArgument;

    fn try_from(mut event: pb::Event) -> Result<Self, InvalidArgument> {
        let session = parse_session_id(&Tenant::default(), &event.session_id)?;
        parse_event(session, &mut event)
    }
}

/// Moves an event out of its message. If it is rejected, its ids are still in the
/// message, for the error response.
pub(super) fn parse_event(
    session: SessionId,
    event: &mut pb::Event,
) -> Result<Event, InvalidArgument> {
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
    check_event_id(event_id)?;
    Ok(Event {
        session,
        time: time.map(|time| parse_time("time", time)).transpose()?,
        agent: parse_agent_id(agent_id)?,
        round_id: with_max_len("round_id", take(round_id), EVENT_ID_BYTES_MAX)?,
        state_hash: with_max_len("state_hash", take(state_hash), HASH_BYTES_MAX)?,
        cost: usage.map(parse_cost).transpose()?.unwrap_or_default(),
        body: match body
            .take()
            .ok_or_else(|| InvalidArgument::missing("body"))?
        {
            pb::event::Body::ToolCall(call) => EventBody::Call(parse_tool_call(call)?),
            pb::event::Body::Turn(turn) => EventBody::Turn(parse_turn(turn)?),
            pb::event::Body::Marker(marker) => EventBody::Marker(parse_marker(marker)?),
        },
        // Moved last, when nothing can fail any more.
        event_id: take(event_id),
    })
}

/// For the default tenant, as in a replay.
impl TryFrom<pb::Delta> for Delta {
    type Error = InvalidArgument;

    fn try_from(mut delta: pb::Delta) -> Result<Self, InvalidArgument> {
        let session = parse_session_id(&Tenant::default(), &delta.session_id)?;
        parse_delta(session, &mut delta)
    }
}

/// Moves a delta out of its message. If it is rejected, its ids are still there.
pub(super) fn parse_delta(
    session: SessionId,
    delta: &mut pb::Delta,
) -> Result<Delta, InvalidArgument> {
    let pb::Delta {
        session_id: _, // The caller has parsed it.
        agent_id,
        turn_id,
        channel,
        text,
        end_of_turn,
    } = delta;
    check_delta_ids(agent_id, turn_id)?;
    Ok(Delta {
        session,
        channel: match parse_enum::<pb::Channel>("channel", *channel)? {
            pb::Channel::Unspecified | pb::Channel::Visible => Channel::Visible,
            pb::Channel::Reasoning => Channel::Reasoning,
        },
        // Moved last: the lengths were checked above.
        agent: parse_agent_id(agent_id)?,
        turn_id: take(turn_id),
        text: take(text),
        end_of_turn: *end_of_turn,
    })
}

fn parse_tool_call(call: pb::ToolCall) -> Result<ToolCall, InvalidArgument> {
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
        return Err(InvalidArgument::missing("tool_call.tool"));
    }
    Ok(ToolCall {
        tool: with_max_len("tool_call.tool", tool, TOOL_BYTES_MAX)?,
        operation: match parse_enum::<pb::Operation>("tool_call.operation", operation)? {
            pb::Operation::Unspecified => None,
            pb::Operation::Read => Some(Operation::Read),
            pb::Operation::Write => Some(Operation::Write),
            pb::Operation::Edit => Some(Operation::Edit),
            pb::Operation::Execute => Some(Operation::Execute),
            pb::Operation::Search => Some(Operation::Search),
            pb::Operation::Other => Some(Operation::Other),
        },
        target,
        args: arguments.map(parse_args).transpose()?.unwrap_or_default(),
        outcome: match parse_enum::<pb::Outcome>("tool_call.outcome", outcome)? {
            pb::Outcome::Unspecified => None,
            pb::Outcome::Ok => Some(Outcome::Ok),
            pb::Outcome::Error => Some(Outcome::Error),
            pb::Outcome::Blocked => Some(Outcome::Blocked),
        },
        error,
        result,
        result_hash: with_max_len("tool_call.result_hash", result_hash, HASH_BYTES_MAX)?,
        content_hash: with_max_len("tool_call.content_hash", content_hash, HASH_BYTES_MAX)?,
    })
}

/// The session, the agent and the call to check.
pub(super) fn parse_check_call(
    tenant: &Tenant,
    request: pb::CheckCallRequest,
) -> Result<(SessionId, AgentId, ToolCall), InvalidArgument> {
    let pb::CheckCallRequest {
        session_id,
        mut agent_id,
        tool,
        arguments,
    } = request;
    if tool.is_empty() {
        return Err(InvalidArgument::missing("tool"));
    }
    let args = match arguments {
        None => Args::Unknown,
        Some(pb::check_call_request::Arguments::ArgsJson(text)) => Args::Text(text),
        Some(pb::check_call_request::Arguments::Args(tree)) => Args::Text(args_to_text(&tree)?),
        Some(pb::check_call_request::Arguments::ArgsHash(hash)) => {
            Args::Hash(with_max_len("args_hash", hash, HASH_BYTES_MAX)?)
        }
    };
    let call = ToolCall {
        tool: with_max_len("tool", tool, TOOL_BYTES_MAX)?,
        args,
        ..ToolCall::default()
    };
    let session = parse_session_id(tenant, &session_id)?;
    Ok((session, parse_agent_id(&mut agent_id)?, call))
}

/// A tree becomes text, the form that is compared faster.
fn args_to_text(tree: &pbjson_types::Struct) -> Result<String, InvalidArgument> {
    serde_json::to_string(tree).map_err(|error| InvalidArgument::new("args", error))
}

fn parse_args(args: pb::tool_call::Arguments) -> Result<Args, InvalidArgument> {
    Ok(match args {
        pb::tool_call::Arguments::ArgsJson(text) => Args::Text(text),
        pb::tool_call::Arguments::Args(tree) => Args::Text(args_to_text(&tree)?),
        pb::tool_call::Arguments::ArgsHash(hash) => {
            Args::Hash(with_max_len("tool_call.args_hash", hash, HASH_BYTES_MAX)?)
        }
    })
}

fn parse_turn(turn: pb::Turn) -> Result<Turn, InvalidArgument> {
    let pb::Turn {
        turn_id,
        role,
        text,
    } = turn;
    Ok(Turn {
        turn_id: with_max_len("turn.turn_id", turn_id, EVENT_ID_BYTES_MAX)?,
        role: match parse_enum::<pb::Role>("turn.role", role)? {
            pb::Role::Unspecified => return Err(InvalidArgument::missing("turn.role")),
            pb::Role::Agent => Role::Agent,
            pb::Role::User => Role::User,
            pb::Role::System => Role::System,
        },
        text,
    })
}

fn parse_marker(marker: pb::Marker) -> Result<Marker, InvalidArgument> {
    let pb::Marker {
        kind,
        context_tokens,
    } = marker;
    if context_tokens < 0 {
        return Err(negative_error("marker.context_tokens"));
    }
    Ok(Marker {
        kind: match parse_enum::<pb::MarkerKind>("marker.kind", kind)? {
            pb::MarkerKind::Unspecified => return Err(InvalidArgument::missing("marker.kind")),
            pb::MarkerKind::Compaction => MarkerKind::Compaction,
            pb::MarkerKind::NewRun => MarkerKind::NewRun,
        },
        context_tokens,
    })
}

fn parse_cost(usage: pb::Usage) -> Result<Cost, InvalidArgument> {
    let pb::Usage {
        input_tokens,
        output_tokens,
        cost_usd,
        cached_input_tokens,
    } = usage;
    if input_tokens < 0 {
        return Err(negative_error("usage.input_tokens"));
    }
    if output_tokens < 0 {
        return Err(negative_error("usage.output_tokens"));
    }
    if !(0..=input_tokens).contains(&cached_input_tokens) {
        return Err(InvalidArgument::new(
            "usage.cached_input_tokens",
            "must be between 0 and usage.input_tokens, which contains them",
        ));
    }
    if !(cost_usd.is_finite() && cost_usd >= 0.0) {
        return Err(InvalidArgument::new(
            "usage.cost_usd",
            "must be finite and not negative",
        ));
    }
    Ok(Cost {
        input_tokens: input_tokens.into(),
        output_tokens: output_tokens.into(),
        cached_input_tokens: cached_input_tokens.into(),
        usd: cost_usd,
    })
}

pub(super) fn parse_session_id(tenant: &Tenant, id: &str) -> Result<SessionId, InvalidArgument> {
    SessionId::parse_for_tenant(tenant, id).map_err(|why| match why {
        IdError::Empty => InvalidArgument::missing("session_id"),
        IdError::TooLong { .. } | IdError::Unprintable => {
            InvalidArgument::with_reason("SESSION_ID_INVALID", "session_id", why)
        }
    })
}

fn parse_agent_id(id: &mut String) -> Result<AgentId, InvalidArgument> {
    check_max_len("agent_id", id, AGENT_ID_BYTES_MAX)?;
    Ok(take(id).into())
}

pub(super) fn check_event_id(event_id: &str) -> Result<(), InvalidArgument> {
    check_max_len("event_id", event_id, EVENT_ID_BYTES_MAX)
}

/// The ids of an agent and a turn; one that is too long is empty.
pub(super) fn valid_delta_ids(agent_id: String, turn_id: String) -> [String; 2] {
    [
        with_max_len("agent_id", agent_id, AGENT_ID_BYTES_MAX).unwrap_or_default(),
        with_max_len("turn_id", turn_id, EVENT_ID_BYTES_MAX).unwrap_or_default(),
    ]
}

fn check_delta_ids(agent_id: &str, turn_id: &str) -> Result<(), InvalidArgument> {
    check_max_len("agent_id", agent_id, AGENT_ID_BYTES_MAX)?;
    check_max_len("turn_id", turn_id, EVENT_ID_BYTES_MAX)
}

pub(super) fn parse_enum<E: TryFrom<i32>>(field: &str, value: i32) -> Result<E, InvalidArgument> {
    E::try_from(value)
        .map_err(|_| InvalidArgument::new(field, format!("{value} is not a known value")))
}

fn with_max_len(field: &str, text: String, bytes_max: usize) -> Result<String, InvalidArgument> {
    check_max_len(field, &text, bytes_max)?;
    Ok(text)
}

fn check_max_len(field: &str, text: &str, bytes_max: usize) -> Result<(), InvalidArgument> {
    if text.len() <= bytes_max {
        return Ok(());
    }
    let why = format!("has {} bytes, at most {bytes_max} are allowed", text.len());
    Err(InvalidArgument::with_reason("FIELD_TOO_LONG", field, why))
}

fn negative_error(field: &str) -> InvalidArgument {
    InvalidArgument::new(field, "must not be negative")
}

pub(super) fn parse_time(
    field: &str,
    time: pbjson_types::Timestamp,
) -> Result<SystemTime, InvalidArgument> {
    let pbjson_types::Timestamp { seconds, nanos } = time;
    let nanos = u32::try_from(nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000);
    let (Some(nanos), true) = (nanos, TIME_SECS.contains(&seconds)) else {
        return Err(InvalidArgument::new(
            field,
            "is not a time between the years 1 and 9999",
        ));
    };
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let second = if seconds < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    };
    second
        .and_then(|second| second.checked_add(Duration::from_nanos(nanos.into())))
        .ok_or_else(|| InvalidArgument::new(field, "cannot be represented"))
}
