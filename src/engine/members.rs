//! The members of a verdict: the loop's distinct calls, with their keys and the arguments
//! in which they differ.

use serde_json::{Map, Value};

use crate::{
    detect::History,
    domain::{LoopMember, Operation, Sig, sanitize},
    facts::FactExtractor,
    text::call_key::{is_explaining, parse_args},
};

/// Arguments of a member for a person.
const ARGS_SHOWN_MAX: usize = 4;
/// Characters of one value, and of all of a member's arguments.
const VALUE_CHARS_MAX: usize = 40;
const ARGS_CHARS_MAX: usize = 120;

/// The members for the loop's calls that the history still has, and the operation of the
/// first. `current` is the call of the present event with its arguments.
pub(super) fn build_members(
    calls: &[Sig],
    history: &History,
    current: Option<(Sig, &str)>,
    facts: &FactExtractor,
) -> (Vec<LoopMember>, Option<Operation>) {
    let mut first_operation = None;
    let (mut members, mut arguments) = (Vec::new(), Vec::new());
    for sig in calls {
        let Some((mut member, operation, stored)) = history.find_member(*sig) else {
            continue;
        };
        let args = match current {
            Some((call, args)) if call == *sig => args,
            _ => &stored,
        };
        first_operation = first_operation.or(Some(operation));
        member.call_key = facts.call_key(&member.tool, args);
        members.push(member);
        arguments.push(match parse_args(&sanitize::strip_invisible(args)) {
            Some(Value::Object(entries)) => entries,
            _ => Map::new(),
        });
    }
    for (position, entries) in arguments.iter().enumerate() {
        let Some(member) = members.get(position) else {
            continue;
        };
        let others: Vec<&Map<String, Value>> = (members.iter().zip(&arguments))
            .enumerate()
            .filter(|(other, (call, _))| *other != position && call.tool == member.tool)
            .map(|(_, (_, entries))| entries)
            .collect();
        let shown = describe_difference(entries, &others, &member.target);
        if let Some(member) = members.get_mut(position) {
            member.args = shown;
        }
    }
    (members, first_operation)
}

/// The arguments that differ from those of the other calls of the same tool, as
/// `name=value, …`; without other calls, all. What the target says is left out.
fn describe_difference(
    entries: &Map<String, Value>,
    others: &[&Map<String, Value>],
    target: &str,
) -> String {
    let differs = |name: &String, value: &Value| {
        others.is_empty() || others.iter().any(|other| other.get(name) != Some(value))
    };
    let shown = entries
        .iter()
        .filter(|(name, value)| !is_explaining(name) && value.as_str() != Some(target))
        .filter(|(name, value)| differs(name, value))
        .take(ARGS_SHOWN_MAX)
        .map(|(name, value)| {
            let text = match value {
                Value::String(text) => sanitize::quote(text, VALUE_CHARS_MAX),
                other => sanitize::quote(&other.to_string(), VALUE_CHARS_MAX),
            };
            format!("{}={text}", sanitize::quote(name, VALUE_CHARS_MAX))
        });
    let joined = shown.collect::<Vec<_>>().join(", ");
    sanitize::quote(&joined, ARGS_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(json: &str) -> Map<String, Value> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_single_call_shows_its_arguments_without_explanations_and_target() {
        let entries = object(r#"{"order_id": 5, "description": "look", "path": "a.rs"}"#);
        assert_eq!(describe_difference(&entries, &[], "a.rs"), "order_id=5");
    }

    #[test]
    fn calls_of_one_tool_show_the_arguments_that_differ() {
        let lisbon = object(r#"{"from": "ZRH", "to": "LIS"}"#);
        let porto = object(r#"{"from": "ZRH", "to": "OPO", "seats": 2}"#);
        assert_eq!(describe_difference(&lisbon, &[&porto], ""), "to=LIS");
        assert_eq!(
            describe_difference(&porto, &[&lisbon], ""),
            "seats=2, to=OPO"
        );
    }

    #[test]
    fn long_and_hostile_values_are_one_bounded_line() {
        let entries = object(r#"{"a": "x\n\u001b[31m\"", "b": [1, {"c": "d"}]}"#);
        let shown = describe_difference(&entries, &[], "");
        assert!(!shown.contains(['\n', '\u{1b}', '"']), "{shown}");
        let many: Map<String, Value> = (0..50)
            .map(|n| (format!("k{n}"), Value::from("v".repeat(1_000))))
            .collect();
        let shown = describe_difference(&many, &[], "");
        assert!(shown.chars().count() <= ARGS_CHARS_MAX + 1, "{shown}");
    }
}
