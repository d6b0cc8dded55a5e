//! The members of a verdict: the loop's distinct calls, with their keys and the arguments
//! in which they differ.

use serde_json::{Map, Value};

use crate::{
    detect::History,
    domain::{LoopMember, Operation, Sig, sanitize},
    facts::FactExtractor,
    text::call_key::{is_explaining, parse_args},
};

/// The most arguments of a member that a person is shown.
const ARGS_SHOWN_MAX: usize = 4;
/// The most characters of one value, and of all arguments of a member.
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

/// The names of two arguments that are the ends of a route.
const ROUTES: [(&str, &str); 7] = [
    ("from", "to"),
    ("origin", "destination"),
    ("source", "destination"),
    ("source", "target"),
    ("src", "dst"),
    ("src", "dest"),
    ("old", "new"),
];

/// The arguments that differ from those of the other calls of the same tool, as
/// `name=value, …`, and the ends of a route as `ZRH→LIS`; without other calls, all of them.
/// An argument that equals the target is left out.
fn describe_difference(
    entries: &Map<String, Value>,
    others: &[&Map<String, Value>],
    target: &str,
) -> String {
    let differs = |name: &String, value: &Value| {
        others.is_empty() || others.iter().any(|other| other.get(name) != Some(value))
    };
    let shown = |(name, value): &(&String, &Value)| {
        let is_redundant = is_explaining(name) || value.as_str() == Some(target);
        !is_redundant && differs(name, value)
    };
    let route = find_route(entries).filter(|ends| ends.iter().any(shown));
    let arrow = route.map(|[(_, from), (_, to)]| format!("{}→{}", quote(from), quote(to)));
    let is_end = |name: &String| route.is_some_and(|ends| ends.iter().any(|(end, _)| *end == name));
    let others = entries
        .iter()
        .filter(shown)
        .filter(|(name, _)| !is_end(name));
    let named = others.map(|(name, value)| {
        format!(
            "{}={}",
            sanitize::quote(name, VALUE_CHARS_MAX),
            quote(value)
        )
    });
    let shown = arrow.into_iter().chain(named).take(ARGS_SHOWN_MAX);
    let joined = shown.collect::<Vec<_>>().join(", ");
    sanitize::quote(&joined, ARGS_CHARS_MAX)
}

/// The two arguments that are the ends of a route, if both are short values.
fn find_route(entries: &Map<String, Value>) -> Option<[(&String, &Value); 2]> {
    let mut routes = ROUTES.iter();
    routes.find_map(|(from, to)| {
        let ends = [entries.get_key_value(*from)?, entries.get_key_value(*to)?];
        let is_place = |value: &Value| match value {
            Value::String(text) => !text.is_empty() && text.chars().count() <= VALUE_CHARS_MAX,
            Value::Number(_) => true,
            _ => false,
        };
        ends.iter()
            .all(|(_, value)| is_place(value))
            .then_some(ends)
    })
}

fn quote(value: &Value) -> String {
    match value {
        Value::String(text) => sanitize::quote(text, VALUE_CHARS_MAX),
        other => sanitize::quote(&other.to_string(), VALUE_CHARS_MAX),
    }
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
        assert_eq!(describe_difference(&lisbon, &[&porto], ""), "ZRH→LIS");
        assert_eq!(
            describe_difference(&porto, &[&lisbon], ""),
            "ZRH→OPO, seats=2"
        );
        let named = |n: u32| {
            object(&format!(
                r#"{{"order_id": {n}, "from": "ZRH", "to": "LIS"}}"#
            ))
        };
        assert_eq!(
            describe_difference(&named(5), &[&named(6)], ""),
            "order_id=5"
        );
    }

    #[test]
    fn only_two_short_values_are_a_route() {
        let shown = |json: &str| describe_difference(&object(json), &[], "");
        assert_eq!(shown(r#"{"origin": "a", "destination": 2}"#), "a→2");
        assert_eq!(shown(r#"{"from": "ZRH"}"#), "from=ZRH");
        assert_eq!(shown(r#"{"from": "", "to": "LIS"}"#), "to=LIS");
        assert_eq!(shown(r#"{"from": [1], "to": "LIS"}"#), "from=[1], to=LIS");
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
