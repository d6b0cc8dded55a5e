//! The payload of a hook, which is passed on unchanged with one more member.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

/// A JSON object whose members are parsed when they are read. A member of an unexpected type,
/// as in a later version of an agent, counts as missing.
pub(super) struct Payload<'a> {
    text: &'a str,
    members: BTreeMap<String, &'a RawValue>,
}

/// A call within a batch.
#[derive(Deserialize)]
struct BatchedCall {
    tool_use_id: String,
}

impl<'a> Payload<'a> {
    /// `None`: it is not an object.
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
        let text = text.trim_start_matches('\u{feff}').trim();
        let members = serde_json::from_str(text).ok()?;
        Some(Self { text, members })
    }

    fn get<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_str(self.members.get(name)?.get()).ok()
    }

    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name)
    }

    /// The session's id, by the names that agents give it.
    pub fn session(&self) -> Option<String> {
        let names = ["session_id", "sessionId", "sessionID", "taskId"];
        names.iter().find_map(|name| self.text(name))
    }

    /// The id of the call, or of the first of a batch.
    pub fn call_id(&self) -> Option<String> {
        let first = || {
            let calls: Vec<BatchedCall> = self.get("tool_calls")?;
            calls.into_iter().next().map(|call| call.tool_use_id)
        };
        self.text("tool_use_id").or_else(first)
    }

    /// The same text with a member at its end, which wins over an earlier one of its name.
    pub fn with_member(&self, name: &str, value: &impl serde::Serialize) -> Vec<u8> {
        let value = serde_json::to_string(value).unwrap_or_default();
        let Some(open) = self.text.strip_suffix('}').filter(|_| !value.is_empty()) else {
            return self.text.into();
        };
        let comma = if self.members.is_empty() { "" } else { "," };
        format!("{open}{comma}{name:?}:{value}}}").into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_payload_is_passed_on_as_it_is_with_one_more_member() {
        let with = |text: &str| {
            let payload = Payload::parse(text.as_bytes()).unwrap();
            String::from_utf8(payload.with_member("unstuck", &json!({"exit_code": 3}))).unwrap()
        };
        assert_eq!(with("{}"), r#"{"unstuck":{"exit_code":3}}"#);
        assert_eq!(
            with(" {\"b\": 1.50, \"a\":[ ] }\n"),
            r#"{"b": 1.50, "a":[ ] ,"unstuck":{"exit_code":3}}"#
        );
    }

    #[test]
    fn a_member_of_another_type_is_missing() {
        let payload = Payload::parse(br#"{"session_id": 7, "sessionId": "s"}"#).unwrap();
        assert_eq!(payload.session().as_deref(), Some("s"));
        assert_eq!(payload.call_id(), None);
        let batch = br#"{"tool_calls": [{"tool_use_id": "t1"}, {"tool_use_id": "t2"}]}"#;
        assert_eq!(Payload::parse(batch).unwrap().call_id().unwrap(), "t1");
        for text in ["", "[]", "7", "{", "{} {}", "\"x\""] {
            assert!(Payload::parse(text.as_bytes()).is_none(), "{text}");
        }
    }
}
