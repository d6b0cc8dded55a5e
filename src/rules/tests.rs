//! Expressions on events: what they read, and which are rejected.

use proptest::prelude::*;

use super::*;
use crate::{
    domain::{Args, Cost, EventBody, Marker, MarkerKind, Outcome, Role, SessionId, ToolCall, Turn},
    facts::FactExtractor,
    tools::ToolRules,
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
            cached_input_tokens: 0,
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

fn rejection(text: RuleText<'_>) -> Option<String> {
    Rules::new([text]).err().map(|error| error.to_string())
}

fn evaluate(text: RuleText<'_>, event: &Event) -> Option<RuleOutcome> {
    let rules = Rules::new([text]).unwrap();
    let key = HashKey::fixed();
    let facts = FactExtractor::new(
        key.clone(),
        ToolRules::new(Vec::new()).unwrap(),
        Default::default(),
    )
    .extract(event, None);
    let mut rule_outcomes = rules.evaluate(event, &facts, &key);
    rules.evaluate_with_session(&mut rule_outcomes, TOTALS, &key);
    rule_outcomes.outcomes.first().copied()
}

/// Whether the event counts; `None`: that cannot be evaluated.
fn counts(when: &str, event: &Event) -> Option<bool> {
    match evaluate(RuleText { when, ..RULE }, event) {
        Some(outcome) if outcome.failed_expression.is_some() => None,
        outcome => Some(outcome.is_some_and(|outcome| outcome.group_key.is_some())),
    }
}

#[track_caller]
fn check_all_count(event: &Event, conditions: &[&str]) {
    for when in conditions {
        assert_eq!(counts(when, event), Some(true), "{when}");
    }
}

#[track_caller]
fn check_rejected(when: &str, why: &str) {
    let message = rejection(RuleText { when, ..RULE });
    assert_eq!(
        message.as_deref(),
        Some(format!("rule \"r\": {why}").as_str()),
        "{when}"
    );
}

#[test]
fn expressions_read_all_fields_of_a_call() {
    check_all_count(
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
fn expressions_read_turns_and_markers() {
    check_all_count(
        &turn(Role::User, "please stop"),
        &[r#"kind == "turn" && role == "user" && text.contains("stop") && tool == """#],
    );
    check_all_count(&turn(Role::System, ""), &[r#"role == "system""#]);
    check_all_count(
        &compaction(),
        &[r#"kind == "marker" && marker == "compaction" && context_tokens == 9000"#],
    );
}

#[test]
fn expressions_read_the_usage_of_the_session() {
    check_all_count(
        &fetch(),
        &[
            "session.events == 7 && session.turns == 2 && session.tokens == 1000",
            "session.cost_usd > 1 && session.seconds / 60 == 1",
        ],
    );
}

#[test]
fn a_blocked_call_concerns_no_rule() {
    let mut blocked = fetch();
    if let EventBody::Call(call) = &mut blocked.body {
        call.outcome = Some(Outcome::Blocked);
    }
    assert_eq!(evaluate(RULE, &blocked), None);
}

#[test]
fn a_failed_evaluation_does_not_count_and_is_reported() {
    for when in [
        "args.method == \"GET\"",
        "args.url > 3",
        "args.tries",
        "args.headers[9] == \"x\"",
        "args.tries / 0 == 1",
        "9223372036854775807 + args.tries > 0",
        "int(args.url) == 1",
    ] {
        assert_eq!(counts(when, &fetch()), None, "{when}");
    }
    // It does not matter if another part decides.
    assert_eq!(
        counts("tool == \"x\" && args.method == \"GET\"", &fetch()),
        Some(false)
    );
    let failed = |text| evaluate(text, &fetch()).unwrap().failed_expression;
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
fn unknown_non_object_or_too_large_arguments_fail_to_evaluate() {
    let when = "has(args.a)";
    assert_eq!(counts(when, &call("t", "{}")), Some(false));
    for args in ["ls -l", "[1, 2]", "{\"a\": "] {
        assert_eq!(counts(when, &call("t", args)), None, "{args}");
    }
    let many = |n: usize| format!("{{\"a\": [{}]}}", vec!["1"; n].join(","));
    assert_eq!(counts(when, &call("t", &many(255))), Some(true));
    assert_eq!(counts(when, &call("t", &many(256))), None);
    let long = |n: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(n));
    assert_eq!(counts(when, &call("t", &long(16_384 - 8))), Some(true));
    assert_eq!(counts(when, &call("t", &long(16_385 - 8))), None);
}

#[test]
fn rules_without_steps_left_abstain() {
    let when = "args.items.exists(i, i == 1)";
    let texts = (0..32).map(|_| RuleText { when, ..RULE });
    let rules = Rules::new(texts).unwrap();
    let key = HashKey::fixed();
    let facts = FactExtractor::new(
        key.clone(),
        ToolRules::new(Vec::new()).unwrap(),
        Default::default(),
    );
    let evaluate = |values: usize| {
        let event = call(
            "t",
            &format!("{{\"items\": [{}]}}", vec!["1"; values].join(",")),
        );
        let outcomes = rules.evaluate(&event, &facts.extract(&event, None), &key);
        assert!(outcomes.steps <= Rules::EVENT_STEPS_MAX);
        let failed = |outcome: &&RuleOutcome| outcome.failed_expression == Some(STEPS_EXHAUSTED);
        assert_eq!(outcomes.outcomes.len(), 32);
        let abstained = outcomes.outcomes.iter().filter(failed).count();
        assert_eq!(outcomes.is_work_limited(), abstained > 0);
        abstained
    };
    assert_eq!(evaluate(3), 0);
    assert!((1..32).contains(&evaluate(250)));
}

#[test]
fn an_expression_reads_only_the_beginning_of_a_long_text() {
    let mut event = turn(Role::Agent, &("é".repeat(600) + "end"));
    check_all_count(&event, &["size(text) == 512"]);
    event = call("t", "{}");
    if let EventBody::Call(call) = &mut event.body {
        call.result = Some("x".repeat(5_000));
        call.error = "x".repeat(5_000);
        call.target = "x".repeat(5_000);
    }
    check_all_count(
        &event,
        &["size(result) == 4096 && size(error) == 4096 && size(target) == 4096"],
    );
}

#[test]
fn events_with_equal_keys_are_counted_together() {
    let same =
        |key, event: &Event| evaluate(RuleText { key, ..RULE }, event).and_then(|s| s.group_key);
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
    // A list of lists is not a key.
    assert_eq!(same("[[tool]]", &fetch()), None);
    let two = Rules::new([RULE, RuleText { name: "s", ..RULE }]).unwrap();
    let key = HashKey::fixed();
    let agent = AgentId::default();
    let rule_outcomes = two.evaluate_turn(&agent, "", &key);
    assert_ne!(
        rule_outcomes.outcomes[0].group_key,
        rule_outcomes.outcomes[1].group_key
    );
}

#[test]
fn an_invalid_expression_is_rejected_with_its_position() {
    check_rejected("", "it is empty");
    check_rejected(" \n", "it is empty");
    check_rejected(
        "kind ==\n  \"turn\" && toll == \"x\"",
        "line 2, column 13: there is no variable `toll`; did you mean `tool`?",
    );
    check_rejected(
        "session.token > 3",
        "line 1, column 8: there is no variable `session.token`; did you mean `session.tokens`?",
    );
    check_rejected(
        "tool.startWith(\"a\")",
        "line 1, column 15: there is no function `startWith`; did you mean `startsWith`?",
    );
    check_rejected("tool", "must be true or false, but is a text");
    check_rejected(
        "session.tokens",
        "must be true or false, but is a whole number",
    );
    check_rejected(
        "tool > 3",
        "line 1, column 6: `>` cannot be applied to a text and a whole number",
    );
    check_rejected(
        "tool == 3",
        "line 1, column 6: `==` cannot be applied to a text and a whole number",
    );
    check_rejected(
        "tool.name == \"x\"",
        "line 1, column 5: a text has no field `name`",
    );
    check_rejected(
        "session.cost_usd * 2 > 1",
        "line 1, column 18: `*` cannot be applied to a number with a fraction and a whole number",
    );
    check_rejected(
        "target.matches(\"(\")",
        "line 1, column 15: invalid regular expression: unclosed group",
    );
    check_rejected(
        "target.matches(tool)",
        "line 1, column 15: the pattern must be written out, as a text",
    );
}

#[test]
fn a_syntax_error_is_rejected_with_its_position() {
    for (when, place) in [
        ("tool == ", "line 1, column"),
        ("tool ==\n\n  && true", "line 3, column"),
        ("(tool == \"x\"", "line 1, column"),
        ("tool = \"x\"", "line 1, column 6"),
        ("\"open", "line 1, column"),
    ] {
        let message = rejection(RuleText { when, ..RULE }).unwrap();
        assert!(
            message.starts_with(&format!("rule \"r\": {place}")),
            "{when}: {message}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn expressions_that_build_lists_or_objects_are_rejected() {
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
        assert!(rejection(RuleText { when, ..RULE }).is_some(), "{when}");
    }
    let key = "args";
    assert!(
        rejection(RuleText { key, ..RULE })
            .unwrap()
            .contains("an object is no key")
    );
}

#[test]
fn an_expression_is_bounded_in_length_nesting_and_steps() {
    let long = format!("tool == \"{}\"", "x".repeat(1_014));
    check_rejected(&(long.clone() + "\"\""), "1026 bytes, at most 1024");
    assert_eq!(
        rejection(RuleText {
            when: &long,
            ..RULE
        }),
        None
    );

    let sum = |n: usize| format!("1{} > 0", "+1".repeat(n));
    assert_eq!(
        rejection(RuleText {
            when: &sum(20),
            ..RULE
        }),
        None
    );
    assert!(
        rejection(RuleText {
            when: &sum(200),
            ..RULE
        })
        .unwrap()
        .contains("24 levels deep")
    );
    for open in ["(", "[", "!(", "size(", "{1:", "[1].all(x,"] {
        let deep = open.repeat(1_000 / open.len());
        assert!(
            rejection(RuleText {
                when: &deep,
                ..RULE
            })
            .is_some(),
            "{open}"
        );
    }
    let deep = "(".repeat(30) + "true" + &")".repeat(30);
    check_rejected(&deep, "nested more than 24 levels deep");

    let walk = "args.a.exists(x, x == tool)";
    assert_eq!(rejection(RuleText { when: walk, ..RULE }), None);
    let nested = "args.a.exists(x, x.exists(y, y == tool))";
    let message = rejection(RuleText {
        when: nested,
        ..RULE
    })
    .unwrap();
    assert!(
        message.contains("steps an event") && message.contains("at most 8192"),
        "{message}"
    );
    let locked = "session.events > 3 && args.a.exists(x, x == tool)";
    let message = rejection(RuleText {
        when: locked,
        ..RULE
    })
    .unwrap();
    assert!(
        message.contains("at most 200, since it names `session`"),
        "{message}"
    );
    let few = "session.events > 3 && [\"a\", \"b\"].exists(x, x == tool)";
    assert_eq!(rejection(RuleText { when: few, ..RULE }), None);
    let huge = "target.matches(\"(a{100}){100}\")";
    let message = rejection(RuleText { when: huge, ..RULE }).unwrap();
    assert!(message.contains("size limit"), "{message}");
}

#[test]
fn searching_a_text_once_per_argument_is_rejected() {
    let again = "args.exists(x, result.matches(\"a+\"))";
    let again = RuleText {
        when: again,
        ..RULE
    };
    let message = rejection(again).unwrap();
    assert!(message.contains("at most 8192"), "{message}");
    let each = "args.exists(x, args[x].matches(\"a+\")) && result.matches(\"b\")";
    assert_eq!(rejection(RuleText { when: each, ..RULE }), None);
}

/// A pattern that makes a backtracking engine hang.
#[test]
fn a_pattern_takes_linear_time() {
    let mut event = call("t", "{}");
    if let EventBody::Call(call) = &mut event.body {
        call.target = "a".repeat(4_096);
    }
    assert_eq!(
        counts(
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
    /// Every expression is rejected, evaluates or fails; none panics.
    #[test]
    fn no_expression_panics(tokens in prop::collection::vec(prop::sample::select(TOKENS), 1..12)) {
        let source = tokens.join(" ");
        for text in [RuleText { when: &source, ..RULE }, RuleText { key: &source, ..RULE }] {
            match rejection(text) {
                Some(message) => prop_assert!(!message.contains("cannot be parsed"), "{}", message),
                None => {
                    for event in [fetch(), turn(Role::Agent, "a"), compaction()] {
                        evaluate(text, &event);
                    }
                }
            }
        }
    }
}
