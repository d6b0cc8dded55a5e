use proptest::prelude::*;

use super::*;
use crate::{
    domain::{Args, Cost, EventBody, Marker, MarkerKind, Outcome, Role, SessionId, ToolCall, Turn},
    facts::{FactExtractor, ToolRules},
};

fn event(body: EventBody) -> Event {
    Event {
        session: SessionId::parse("s").unwrap(),
        event_id: String::new(),
        time: None,
        agent: AgentId::new("scout"),
        round_id: "r1".to_owned(),
        state_hash: "w1".to_owned(),
        cost: Cost {
            input_tokens: 40,
            output_tokens: 2,
            usd: 0.5,
        },
        body,
    }
}

fn call(tool: &str, args: &str) -> Event {
    event(EventBody::Call(ToolCall {
        tool: tool.to_owned(),
        args: Args::Text(args.to_owned()),
        outcome: Some(Outcome::Error),
        error: "no such host".to_owned(),
        result: Some("half a page".to_owned()),
        content_hash: "c1".to_owned(),
        ..ToolCall::default()
    }))
}

fn fetch() -> Event {
    call(
        "web_fetch",
        r#"{"url": "https://a.b/c", "tries": 3, "headers": ["x", "y"], "big": 18446744073709551615}"#,
    )
}

fn turn(role: Role, text: &str) -> Event {
    event(EventBody::Turn(Turn {
        turn_id: String::new(),
        role,
        text: text.to_owned(),
    }))
}

fn compaction() -> Event {
    event(EventBody::Marker(Marker {
        kind: MarkerKind::Compaction,
        context_tokens: 9_000,
    }))
}

const TOTALS: Totals = Totals {
    events: 7,
    turns: 2,
    tokens: 1_000,
    usd: 1.25,
    secs: 60,
};

const RULE: RuleText<'_> = RuleText {
    name: "r",
    when: "true",
    key: "",
    reset_when: "",
};

fn refusal(text: RuleText<'_>) -> Option<String> {
    Rules::new([text]).err().map(|error| error.to_string())
}

fn sight(text: RuleText<'_>, event: &Event) -> Option<RuleOutcome> {
    let rules = Rules::new([text]).unwrap();
    let key = HashKey::fixed();
    let facts = FactExtractor::new(
        key.clone(),
        ToolRules::new(Vec::new()).unwrap(),
        Default::default(),
    )
    .extract(event, None);
    let mut ruled = rules.evaluate(event, &facts, &key);
    rules.evaluate_with_session(&mut ruled, TOTALS, &key);
    ruled.outcomes.first().copied()
}

/// Whether the event counts; `None`: that cannot be said.
fn holds(when: &str, event: &Event) -> Option<bool> {
    match sight(RuleText { when, ..RULE }, event) {
        Some(sight) if sight.failed_expression.is_some() => None,
        sight => Some(sight.is_some_and(|sight| sight.group_key.is_some())),
    }
}

#[track_caller]
fn all_hold(event: &Event, conditions: &[&str]) {
    for when in conditions {
        assert_eq!(holds(when, event), Some(true), "{when}");
    }
}

#[track_caller]
fn check_refused(when: &str, why: &str) {
    let said = refusal(RuleText { when, ..RULE });
    assert_eq!(
        said.as_deref(),
        Some(format!("rule \"r\": {why}").as_str()),
        "{when}"
    );
}

#[test]
fn a_call_is_seen_with_all_its_parts() {
    all_hold(
        &fetch(),
        &[
            r#"kind == "tool_call" && tool == "web_fetch""#,
            r#"agent_id == "scout" && round_id == "r1" && state_hash == "w1""#,
            r#"operation == "read" || operation == "search" || operation == "other""#,
            r#"target == "https://a.b/c""#,
            r#"outcome == "error" && error.contains("host") && result.startsWith("half")"#,
            r#"content_hash == "c1" && call_kind == "ordinary""#,
            "input_tokens + output_tokens == 42 && cost_usd > 0.4",
            r#"args.url.endsWith("/c") && args.tries == 3 && args.tries < 3.5"#,
            r#"args.headers.exists(h, h == "y") && !args.headers.all(h, h == "y")"#,
            r#"args.headers[0] == "x" && "x" in args.headers && size(args.headers) == 2"#,
            r#"has(args.url) && !has(args.method) && args.?method.orValue("GET") == "GET""#,
            r#"args_json.contains("a.b") && target.matches("^https?://[a-z.]+/")"#,
            r#"text == "" && role == "" && marker == "" && context_tokens == 0"#,
            r#"string(args.tries) == "3" && int("4") == 4 && double(args.tries) == 3.0"#,
            "args.big > 9000000000000000000",
        ],
    );
}

#[test]
fn turns_and_markers_are_seen_too() {
    all_hold(
        &turn(Role::User, "please stop"),
        &[r#"kind == "turn" && role == "user" && text.contains("stop") && tool == """#],
    );
    all_hold(&turn(Role::System, ""), &[r#"role == "system""#]);
    all_hold(
        &compaction(),
        &[r#"kind == "marker" && marker == "compaction" && context_tokens == 9000"#],
    );
}

#[test]
fn what_the_session_has_used_is_seen() {
    all_hold(
        &fetch(),
        &[
            "session.events == 7 && session.turns == 2 && session.tokens == 1000",
            "session.cost_usd > 1 && session.seconds / 60 == 1",
        ],
    );
}

#[test]
fn a_call_that_was_blocked_is_seen_by_no_rule() {
    let mut blocked = fetch();
    if let EventBody::Call(call) = &mut blocked.body {
        call.outcome = Some(Outcome::Blocked);
    }
    assert_eq!(sight(RULE, &blocked), None);
}

#[test]
fn what_cannot_be_evaluated_does_not_count_and_is_told() {
    for when in [
        "args.method == \"GET\"",
        "args.url > 3",
        "args.tries",
        "args.headers[9] == \"x\"",
        "args.tries / 0 == 1",
        "9223372036854775807 + args.tries > 0",
        "int(args.url) == 1",
    ] {
        assert_eq!(holds(when, &fetch()), None, "{when}");
    }
    // Where another part decides, it does not matter.
    assert_eq!(
        holds("tool == \"x\" && args.method == \"GET\"", &fetch()),
        Some(false)
    );
    let failed = |text| sight(text, &fetch()).unwrap().failed_expression;
    assert_eq!(
        failed(RuleText {
            key: "args.nothing",
            ..RULE
        }),
        Some("key")
    );
    let reset_when = "args.nothing";
    assert_eq!(failed(RuleText { reset_when, ..RULE }), Some("reset_when"));
}

#[test]
fn arguments_that_are_unknown_no_object_or_too_large_cannot_be_told() {
    let when = "has(args.a)";
    assert_eq!(holds(when, &call("t", "{}")), Some(false));
    for args in ["ls -l", "[1, 2]", "{\"a\": "] {
        assert_eq!(holds(when, &call("t", args)), None, "{args}");
    }
    let many = |n: usize| format!("{{\"a\": [{}]}}", vec!["1"; n].join(","));
    assert_eq!(holds(when, &call("t", &many(255))), Some(true));
    assert_eq!(holds(when, &call("t", &many(256))), None);
    let long = |n: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(n));
    assert_eq!(holds(when, &call("t", &long(16_384 - 8))), Some(true));
    assert_eq!(holds(when, &call("t", &long(16_385 - 8))), None);
}

#[test]
fn an_expression_sees_the_beginning_of_a_long_text() {
    let mut event = turn(Role::Agent, &("é".repeat(600) + "end"));
    all_hold(&event, &["size(text) == 512"]);
    event = call("t", "{}");
    if let EventBody::Call(call) = &mut event.body {
        call.result = Some("x".repeat(5_000));
        call.error = "x".repeat(5_000);
        call.target = "x".repeat(5_000);
    }
    all_hold(
        &event,
        &["size(result) == 4096 && size(error) == 4096 && size(target) == 4096"],
    );
}

#[test]
fn the_key_tells_what_is_the_same() {
    let same =
        |key, event: &Event| sight(RuleText { key, ..RULE }, event).and_then(|s| s.group_key);
    let other = call("web_fetch", r#"{"url": "https://a.b/d", "tries": 3}"#);
    assert_eq!(same("", &fetch()), same("", &other));
    assert_eq!(same("args.tries", &fetch()), same("args.tries", &other));
    assert_ne!(same("args.url", &fetch()), same("args.url", &other));
    assert_ne!(
        same("[tool, args.url]", &fetch()),
        same("[tool, args.url]", &other)
    );
    assert_ne!(
        same("[\"ab\", \"c\"]", &fetch()),
        same("[\"a\", \"bc\"]", &fetch())
    );
    for key in ["tool", "1", "1.5", "true", "null", "args.big"] {
        assert!(same(key, &fetch()).is_some(), "{key}");
    }
    // An object is no key, and neither is a list of lists.
    assert_eq!(same("[[tool]]", &fetch()), None);
    let two = Rules::new([RULE, RuleText { name: "s", ..RULE }]).unwrap();
    let key = HashKey::fixed();
    let agent = AgentId::default();
    let ruled = two.evaluate_turn(&agent, "", &key);
    assert_ne!(ruled.outcomes[0].group_key, ruled.outcomes[1].group_key);
}

#[test]
fn a_bad_expression_is_refused_with_its_place() {
    check_refused("", "it is empty");
    check_refused(" \n", "it is empty");
    check_refused(
        "kind ==\n  \"turn\" && toll == \"x\"",
        "line 2, column 13: there is no variable `toll`; did you mean `tool`?",
    );
    check_refused(
        "session.token > 3",
        "line 1, column 8: there is no variable `session.token`; did you mean `session.tokens`?",
    );
    check_refused(
        "tool.startWith(\"a\")",
        "line 1, column 15: there is no function `startWith`; did you mean `startsWith`?",
    );
    check_refused("tool", "it is a text, and must be true or false");
    check_refused(
        "session.tokens",
        "it is a whole number, and must be true or false",
    );
    check_refused(
        "tool > 3",
        "line 1, column 6: `>` does not go with a text and a whole number",
    );
    check_refused(
        "tool == 3",
        "line 1, column 6: `==` does not go with a text and a whole number",
    );
    check_refused(
        "tool.name == \"x\"",
        "line 1, column 5: a text has no field `name`",
    );
    check_refused(
        "session.cost_usd * 2 > 1",
        "line 1, column 18: `*` does not go with a number with a fraction and a whole number",
    );
    check_refused(
        "target.matches(\"(\")",
        "line 1, column 15: the pattern is no regular expression: unclosed group",
    );
    check_refused(
        "target.matches(tool)",
        "line 1, column 15: the pattern must be written out, as a text",
    );
}

#[test]
fn a_syntax_error_is_refused_with_its_place() {
    for (when, place) in [
        ("tool == ", "line 1, column"),
        ("tool ==\n\n  && true", "line 3, column"),
        ("(tool == \"x\"", "line 1, column"),
        ("tool = \"x\"", "line 1, column 6"),
        ("\"open", "line 1, column"),
    ] {
        let said = refusal(RuleText { when, ..RULE }).unwrap();
        assert!(
            said.starts_with(&format!("rule \"r\": {place}")),
            "{when}: {said}"
        );
        assert!(!said.contains('\n'), "{said}");
    }
}

#[test]
fn what_makes_lists_or_objects_is_refused() {
    for when in [
        "args.a.map(x, x) == []",
        "args.a.filter(x, x) == []",
        "{\"a\": 1}.a == 1",
        "b\"x\" == b\"x\"",
        "args.?a.optMap(x, x).hasValue()",
        "timestamp(\"2024-01-01T00:00:00Z\") == 1",
        ".tool == \"x\"",
        "type(tool) == string",
    ] {
        assert!(refusal(RuleText { when, ..RULE }).is_some(), "{when}");
    }
    let key = "args";
    assert!(
        refusal(RuleText { key, ..RULE })
            .unwrap()
            .contains("an object is no key")
    );
}

#[test]
fn an_expression_is_bounded_in_length_nesting_and_steps() {
    let long = format!("tool == \"{}\"", "x".repeat(1_014));
    check_refused(&(long.clone() + "\"\""), "1026 bytes, at most 1024");
    assert_eq!(
        refusal(RuleText {
            when: &long,
            ..RULE
        }),
        None
    );

    let sum = |n: usize| format!("1{} > 0", "+1".repeat(n));
    assert_eq!(
        refusal(RuleText {
            when: &sum(20),
            ..RULE
        }),
        None
    );
    assert!(
        refusal(RuleText {
            when: &sum(200),
            ..RULE
        })
        .unwrap()
        .contains("24 deep")
    );
    for open in ["(", "[", "!(", "size(", "{1:", "[1].all(x,"] {
        let deep = open.repeat(1_000 / open.len());
        assert!(
            refusal(RuleText {
                when: &deep,
                ..RULE
            })
            .is_some(),
            "{open}"
        );
    }
    let deep = "(".repeat(30) + "true" + &")".repeat(30);
    check_refused(&deep, "it nests more than 24 deep");

    let walk = "args.a.exists(x, x == tool)";
    assert_eq!(refusal(RuleText { when: walk, ..RULE }), None);
    let nested = "args.a.exists(x, x.exists(y, y == tool))";
    let said = refusal(RuleText {
        when: nested,
        ..RULE
    })
    .unwrap();
    assert!(
        said.contains("steps an event") && said.contains("at most 8192"),
        "{said}"
    );
    let locked = "session.events > 3 && args.a.exists(x, x == tool)";
    let said = refusal(RuleText {
        when: locked,
        ..RULE
    })
    .unwrap();
    assert!(
        said.contains("at most 200, since it names `session`"),
        "{said}"
    );
    let few = "session.events > 3 && [\"a\", \"b\"].exists(x, x == tool)";
    assert_eq!(refusal(RuleText { when: few, ..RULE }), None);
    let huge = "target.matches(\"(a{100}){100}\")";
    let said = refusal(RuleText { when: huge, ..RULE }).unwrap();
    assert!(said.contains("size limit"), "{said}");
}

#[test]
fn a_text_is_not_searched_once_for_each_argument() {
    let again = "args.exists(x, result.matches(\"a+\"))";
    let again = RuleText {
        when: again,
        ..RULE
    };
    let said = refusal(again).unwrap();
    assert!(said.contains("at most 8192"), "{said}");
    let each = "args.exists(x, args[x].matches(\"a+\")) && result.matches(\"b\")";
    assert_eq!(refusal(RuleText { when: each, ..RULE }), None);
}

/// A pattern that makes a backtracking engine hang.
#[test]
fn a_pattern_takes_linear_time() {
    let event = call("t", "{}");
    let mut event = event;
    if let EventBody::Call(call) = &mut event.body {
        call.target = "a".repeat(4_096);
    }
    assert_eq!(
        holds(
            "target.matches(\"^(a+)+$\") && !target.matches(\"^(a+)+b$\")",
            &event
        ),
        Some(true)
    );
}

const TOKENS: &[&str] = &[
    "tool",
    "args",
    "args.url",
    "args.tries",
    "args.headers",
    "session.tokens",
    "text",
    "true",
    "null",
    "1",
    "-9223372036854775808",
    "0",
    "2.5",
    "1e308",
    "9u",
    "\"a\"",
    "\"é\\n\"",
    "'",
    "b\"x\"",
    "==",
    "!=",
    "<",
    ">=",
    "&&",
    "||",
    "!",
    "-",
    "+",
    "*",
    "/",
    "%",
    "?",
    ":",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ".",
    ",",
    ".?url",
    ".orValue(",
    "in",
    "size(",
    "int(",
    "double(",
    "string(",
    ".size()",
    ".contains(",
    ".matches(\"a+\")",
    ".exists(x,",
    ".all(x,",
    "x",
    "has(args.url)",
    "\n",
];

proptest! {
    /// Whatever an operator writes is refused or evaluates or fails.
    #[test]
    fn no_expression_panics(tokens in prop::collection::vec(prop::sample::select(TOKENS), 1..12)) {
        let source = tokens.join(" ");
        for text in [RuleText { when: &source, ..RULE }, RuleText { key: &source, ..RULE }] {
            match refusal(text) {
                Some(said) => prop_assert!(!said.contains("cannot be parsed"), "{}", said),
                None => {
                    for event in [fetch(), turn(Role::Agent, "a"), compaction()] {
                        sight(text, &event);
                    }
                }
            }
        }
    }
}
