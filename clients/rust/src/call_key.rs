//! The key of a call: SHA-256 over the tool's name, a zero byte, and the arguments in the
//! form of RFC 8785. The service and its clients compute it alike.
//!
//! Cost: linear in the arguments, with a copy of their tree, and a SHA-256.

use std::fmt;

use ring::digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Identifies a tool with its arguments: the first 16 bytes of a SHA-256. Printed as 32
/// hexadecimal digits, as `standing.blocked` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallKey(pub [u8; 16]);

impl fmt::Display for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The top-level arguments that only explain a call or limit its output. Calls that differ
/// in nothing else are one call. The proto lists them for clients.
pub const EXPLAINING_ARGUMENTS: &[&str] = &[
    "description",
    "explanation",
    "justification",
    "max_output_chars",
    "max_output_length",
    "max_output_tokens",
    "reason",
    "reasoning",
    "thought",
    "thoughts",
    "timeout",
    "timeout_ms",
    "timeout_seconds",
    "yield_time_ms",
];

/// Longer arguments have no key, because the service computes it while a session is locked.
pub const ARGS_BYTES_MAX: usize = 16 * 1024;

/// Whether an argument only explains its call.
pub fn is_explaining(name: &str) -> bool {
    EXPLAINING_ARGUMENTS.contains(&name)
}

/// The key of a call. `None`: the arguments are not JSON, or too long.
pub fn call_key(tool: &str, args_json: &str) -> Option<CallKey> {
    let value = without_explanations(parse_args(args_json)?);
    let canonical = serde_json_canonicalizer::to_vec(&value).ok()?;
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(tool.as_bytes());
    context.update(&[0]);
    context.update(&canonical);
    let hash = context.finish();
    hash.as_ref().first_chunk().copied().map(CallKey)
}

/// The arguments as a tree. Some providers send the object as a JSON string.
pub fn parse_args(args_json: &str) -> Option<Value> {
    if args_json.len() > ARGS_BYTES_MAX {
        return None;
    }
    let value: Value = serde_json::from_str(args_json).ok()?;
    match &value {
        Value::String(text) if text.trim_start().starts_with('{') => {
            Some(serde_json::from_str(text).unwrap_or(value))
        }
        _ => Some(value),
    }
}

fn without_explanations(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let kept = entries.into_iter().filter(|(name, _)| !is_explaining(name));
            Value::Object(kept.collect::<Map<_, _>>())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tool: &str, args: &str) -> String {
        call_key(tool, args).map_or_else(String::new, |key| key.to_string())
    }

    #[test]
    fn the_key_is_that_of_a_client_in_another_language() {
        // python3: hashlib.sha256(b'get_order\0{"order_id":5}').hexdigest()[:32]
        let expected = "f50f774eaca42312f7d73e4f0b7cac69";
        assert_eq!(key("get_order", r#"{"order_id":5}"#), expected);
        assert_eq!(key("get_order", " {\"order_id\" : 5.0}\n"), expected);
        assert_eq!(key("get_order", r#""{\"order_id\": 5}""#), expected);
        let explained = r#"{"description": "look again", "order_id": 5, "timeout": 60}"#;
        assert_eq!(key("get_order", explained), expected);
    }

    #[test]
    fn other_tools_arguments_and_nested_explanations_have_other_keys() {
        let first = key("get_order", r#"{"order_id":5}"#);
        assert_ne!(key("get_orders", r#"{"order_id":5}"#), first);
        assert_ne!(key("get_order", r#"{"order_id":6}"#), first);
        assert_ne!(
            key("log", r#"{"item":{"description":"a"}}"#),
            key("log", r#"{"item":{"description":"b"}}"#)
        );
        // The names are sorted by UTF-16 code units: an emoji before U+FB33.
        assert_eq!(
            key("t", r#"{"\ufb33": 1, "\ud83d\ude00": 2}"#),
            key("t", r#"{"\ud83d\ude00": 2, "\ufb33": 1}"#)
        );
    }

    #[test]
    fn what_is_not_json_or_too_long_has_no_key() {
        assert_eq!(key("Bash", "ls -l"), "");
        assert_eq!(key("Bash", ""), "");
        assert_eq!(
            key("Bash", &format!("\"{}\"", "a".repeat(ARGS_BYTES_MAX))),
            ""
        );
        assert_eq!(key("Bash", &"[".repeat(10_000)), "");
    }

    #[test]
    fn the_proto_lists_the_arguments_that_only_explain() {
        let proto = include_str!("../proto/unstuck/v1/verdict.proto");
        for name in EXPLAINING_ARGUMENTS {
            assert!(proto.contains(&format!("`{name}`")), "{name}");
        }
    }
}
