//! Fields of a parsed document by JSON pointer; what is absent or of another type is empty.

use serde_json::Value;

pub(super) use crate::ingest::payload::text_at;
use crate::{domain::Args, ingest::payload::value_at};

pub(super) fn count_at(value: &Value, path: &str) -> i64 {
    let number = value_at(value, path);
    number
        .and_then(|number| match number {
            // Numbers of 64 bits are texts in the JSON of protobuf.
            Value::String(text) => text.parse().ok(),
            // Saturates.
            _ => number
                .as_i64()
                .or_else(|| number.as_f64().map(|float| float as i64)),
        })
        .unwrap_or_default()
}

pub(super) fn amount_at(value: &Value, path: &str) -> Option<f64> {
    value_at(value, path)?.as_f64()
}

pub(super) fn flag_at(value: &Value, path: &str) -> Option<bool> {
    value_at(value, path)?.as_bool()
}

/// Arguments of a call: a text, mostly JSON, or a value.
pub(super) fn args_at(value: &Value, name: &str) -> Args {
    match value.get(name) {
        None => Args::Unknown,
        Some(Value::String(text)) => Args::Text(text.clone()),
        Some(args) => Args::Text(args.to_string()),
    }
}

pub(super) fn list_at<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    let list = value_at(value, path).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}
