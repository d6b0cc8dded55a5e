//! A line of a trace: an event or a delta as JSON.

use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::{
    api::InvalidArgument,
    domain::{Delta, Event},
    engine::{OpenError, RecordError},
    ingest::LineTooLong,
    pb,
};

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, on the stack; a box would cost every event an allocation"
)]
pub enum TraceLine {
    Event(Event),
    Delta(Delta),
}

/// Why a line is rejected.
#[derive(Debug, Error)]
pub enum TraceLineError {
    #[error(transparent)]
    TooLong(#[from] LineTooLong),
    #[error("not UTF-8: {0}")]
    Utf8(#[from] std::str::Utf8Error),
    #[error("{}", format_json_error(.0))]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Invalid(#[from] InvalidArgument),
    #[error(transparent)]
    Refused(#[from] RecordError),
    #[error(transparent)]
    Open(#[from] OpenError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeltaLine {
    delta: pb::Delta,
}

impl TraceLine {
    /// Applies the same checks as the service does to a message.
    pub fn parse(json: &[u8]) -> Result<Self, TraceLineError> {
        // Validating the line once is faster than validating each string.
        let text = std::str::from_utf8(json)?;
        // An event has no field `delta`, so nothing else needs to be tried.
        if starts_with_delta_key(text) {
            let DeltaLine { delta } = serde_json::from_str(text)?;
            return Ok(Self::Delta(delta.try_into()?));
        }
        match serde_json::from_str::<pb::Event>(text) {
            Ok(event) => Ok(Self::Event(event.try_into()?)),
            // The key may be escaped: `"\u0064elta"`.
            Err(error) => match serde_json::from_str(text) {
                Ok(DeltaLine { delta }) => Ok(Self::Delta(delta.try_into()?)),
                Err(_) => match parse_event_without_nulls(text) {
                    Some(event) => Ok(Self::Event(event.try_into()?)),
                    None => Err(error.into()),
                },
            },
        }
    }
}

/// proto3 JSON accepts `null` for an unset field; pbjson does so only for messages.
/// This slow path is for traces that were written from Python's `None`.
fn parse_event_without_nulls(json: &str) -> Option<pb::Event> {
    let mut event: Map<String, Value> = serde_json::from_str(json).ok()?;
    event.retain(|_, value| !value.is_null());
    for part in event.values_mut().filter_map(Value::as_object_mut) {
        part.retain(|_, value| !value.is_null());
    }
    serde_json::from_value(event.into()).ok()
}

fn starts_with_delta_key(json: &str) -> bool {
    let body = json.strip_prefix('{').unwrap_or_default();
    body.trim_ascii_start().starts_with("\"delta\"")
}

/// A parser error without its line number, which is always 1.
fn format_json_error(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let suffix = format!(" at line {} column {}", error.line(), error.column());
    match message.strip_suffix(&*suffix) {
        Some(why) => format!("{why} (column {})", error.column()),
        None => message,
    }
}
