//! The operator's own rules, from the configuration to the verdict.

use std::{fs, path::Path};

use unstuck::{
    domain::{Action, SessionId, Verdict},
    engine::RunMode,
    telemetry::Metrics,
};

use crate::play::{Line, Player};

/// Session, event, action and the rule or detector that describes it.
type VerdictRow = (String, i32, Action, String);

fn row_of(verdict: &Verdict) -> VerdictRow {
    let index = verdict.event_index.unwrap();
    let action = verdict.action.unwrap();
    let detector = verdict.detector.to_string();
    (verdict.session.to_string(), index, action, detector)
}

#[track_caller]
fn check(config: &str, ndjson: &str, expected: &[(&str, i32, Action, &str)]) {
    let mut player = Player::with(config, RunMode::Replay).unwrap();
    let verdicts = player.verdicts(&Line::read(ndjson));
    let rows: Vec<VerdictRow> = verdicts.iter().map(|verdict| row_of(verdict)).collect();
    let expected: Vec<VerdictRow> = expected
        .iter()
        .map(|(session, index, action, by)| ((*session).into(), *index, *action, (*by).into()))
        .collect();
    assert_eq!(rows, expected);
}

#[track_caller]
fn refusal(config: &str) -> String {
    match Player::with(config, RunMode::Replay) {
        Ok(_) => panic!("it is accepted: {config}"),
        Err(error) => error.to_string(),
    }
}

fn example(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join("examples").join(name)).unwrap()
}

fn call(session: &str, agent: &str, tool: &str, n: usize) -> String {
    format!(
        r#"{{"session_id": "{session}", "agent_id": "{agent}", "tool_call": {{"tool": "{tool}", "args_json": "{{\"n\": {n}}}", "outcome": "OUTCOME_OK", "result": "the {n}th"}}}}"#
    ) + "\n"
}

fn user(session: &str) -> String {
    format!(r#"{{"session_id": "{session}", "turn": {{"role": "ROLE_USER", "text": "stop"}}}}"#)
        + "\n"
}

const TWO_DEPLOYS: &str = r#"
    [[rules]]
    name = "two_deploys"
    when = 'tool == "deploy"'
    count = 2
"#;

#[test]
fn the_examples_find_what_they_say() {
    check(
        &example("rules.toml"),
        &example("rules.ndjson"),
        &[
            ("news", 9, Action::Warn, "rule:same_url"),
            ("installer", 5, Action::Ask, "rule:outside_workspace"),
            ("survey", 5, Action::Warn, "rule:token_budget"),
        ],
    );
}

#[test]
fn a_rules_verdict_has_the_texts_of_the_rule() {
    let mut player = Player::with(&example("rules.toml"), RunMode::Replay).unwrap();
    let verdicts = player.verdicts(&Line::read(&example("rules.ndjson")));
    let [url, outside, tokens] = verdicts.as_slice() else {
        panic!("{} verdicts", verdicts.len());
    };
    assert_eq!(url.pattern, "fetched https://blog.example/post 5 times");
    assert_eq!(url.evidence.event_indexes, [1, 3, 5, 7, 9]);
    assert_eq!(url.members.len(), 1);
    assert_eq!(outside.members.len(), 3);
    assert!(outside.correction.contains("(\"/etc/hosts\" among them)"));
    assert_eq!(
        tokens.pattern,
        "the session has used more than 200000 tokens"
    );
    assert_eq!(tokens.confidence, 1.0);
}

#[test]
fn a_rule_without_texts_has_default_texts() {
    let mut player = Player::with(TWO_DEPLOYS, RunMode::Replay).unwrap();
    let ndjson = call("s", "", "deploy", 1) + &call("s", "", "deploy", 2);
    let verdicts = player.verdicts(&Line::read(&ndjson));
    assert_eq!(
        verdicts[0].pattern,
        "the rule two_deploys has matched 2 times: deploy"
    );
    assert!(verdicts[0].correction.contains("\"two_deploys\""));
}

#[test]
fn a_rule_escalates() {
    let config = TWO_DEPLOYS.to_owned() + "terminate_after = 5";
    let ndjson: String = (0..7).map(|n| call("s", "", "deploy", n)).collect();
    check(
        &config,
        &ndjson,
        &[
            ("s", 1, Action::Warn, "rule:two_deploys"),
            ("s", 2, Action::Escalate, "rule:two_deploys"),
            ("s", 4, Action::Terminate, "rule:two_deploys"),
        ],
    );
}

#[test]
fn agents_are_counted_separately_and_a_user_restarts_the_count() {
    let apart = call("s", "a", "deploy", 1) + &call("s", "b", "deploy", 2);
    check(TWO_DEPLOYS, &apart, &[]);
    let restarted = call("s", "", "deploy", 1) + &user("s") + &call("s", "", "deploy", 2);
    check(TWO_DEPLOYS, &restarted, &[]);
}

#[test]
fn a_rule_reads_turns_of_other_roles_and_streamed_turns() {
    let config = r#"
        [[rules]]
        name = "said_stop"
        when = 'kind == "turn" && text.contains("stop")'
    "#;
    check(
        config,
        &user("s"),
        &[("s", 0, Action::Warn, "rule:said_stop")],
    );
    let deltas = r#"{"delta": {"session_id": "s", "turn_id": "t", "text": "I will st"}}
{"delta": {"session_id": "s", "turn_id": "t", "text": "op here.", "end_of_turn": true}}"#;
    check(config, deltas, &[("s", 0, Action::Warn, "rule:said_stop")]);
}

#[test]
fn a_rule_applies_only_in_its_profiles() {
    let ndjson = call("s", "", "deploy", 1) + &call("s", "", "deploy", 2);
    let own = |profiles: &str| TWO_DEPLOYS.to_owned() + &format!("profiles = {profiles}");
    check(&own("['strict']"), &ndjson, &[]);
    check(
        &own("['strict', 'default']"),
        &ndjson,
        &[("s", 1, Action::Warn, "rule:two_deploys")],
    );
    assert!(refusal(&own("['stirct']")).ends_with("there is no profile \"stirct\""));
}

#[test]
fn a_rule_ranks_above_text_detectors_and_below_call_detectors() {
    let config = r#"
        [detect.monologue]
        enabled = false
        [[rules]]
        name = "any_turn"
        when = 'kind == "turn"'
        count = 4
        soft = "alert"
        [[rules]]
        name = "any_call"
        when = 'kind == "tool_call"'
        key = "[tool, args.n]"
        count = 3
        soft = "alert"
    "#;
    let turn =
        r#"{"session_id": "t", "turn": {"role": "ROLE_AGENT", "text": "let me look again"}}"#;
    let turns = format!("{turn}\n").repeat(4);
    let calls = call("c", "", "deploy", 1).repeat(3);
    check(
        config,
        &(turns + &calls),
        &[
            ("t", 3, Action::Warn, "rule:any_turn"),
            ("c", 2, Action::Warn, "exact_repeat"),
        ],
    );
}

#[test]
fn a_failed_evaluation_is_shown_in_the_session() {
    let config = r#"
        [[rules]]
        name = "far"
        when = "args.distance > 3"
    "#;
    let mut player = Player::with(config, RunMode::Replay).unwrap();
    assert!(
        player
            .verdicts(&Line::read(&call("s", "", "walk", 1).repeat(2)))
            .is_empty()
    );
    let view = player.engine.get(&SessionId::parse("s").unwrap()).unwrap();
    let of_rule = view
        .abstentions
        .iter()
        .find(|known| &*known.detector == "rule:far")
        .unwrap();
    assert_eq!((of_rule.field, of_rule.events), ("when", 2));
}

#[test]
fn an_invalid_rule_is_refused_with_its_file_name_and_position() {
    let rule = |rest: &str| format!("[[rules]]\nname = 'r'\n{rest}");
    for (config, expected) in [
        (
            rule("when = 'toll == 1'"),
            "invalid `rules[0].when` at FILE:3: rule \"r\": line 1, column 1: there is no variable `toll`; did you mean `tool`?",
        ),
        (
            rule("when = 'tool'"),
            "invalid `rules[0].when` at FILE:3: rule \"r\": must be true or false, but is a text",
        ),
        (
            rule("when = 'true'\nkey = 'args'"),
            "invalid `rules[0].key` at FILE:4: rule \"r\": an object is no key: name the fields that matter",
        ),
        (
            rule("when = 'true'\nreset_when = '1'"),
            "invalid `rules[0].reset_when` at FILE:4: rule \"r\": must be true or false, but is a whole number",
        ),
        (
            rule("when = 'true'\ncount = 31"),
            "invalid `rules[0].count` at FILE:4: 31 events never fit in a window of 30",
        ),
        (
            rule("when = 'true'\nwindow = 257"),
            "invalid `rules[0].window` at FILE:4: 257 events, must be 1 to 256",
        ),
        (
            rule("when = 'true'\nsoft = 'terminate'"),
            "invalid `rules[0].soft` at FILE:4: terminate is stronger than hard, escalate, which could never be reached",
        ),
        (
            rule("when = 'true'\ncount = 3\nterminate_after = 2"),
            "invalid `rules[0].terminate_after` at FILE:5: a loop is first found with 3 events, so it never has only 2",
        ),
        (
            rule("when = 'true'\nwen = 'true'"),
            "unknown key `rules[0].wen` at FILE:4; did you mean `when`?",
        ),
        (
            "[[rules]]\nname = 'No'\nwhen = 'true'".to_owned(),
            "invalid `rules[0].name` at FILE:2: a name is lower-case letters, digits and `_`",
        ),
        (
            rule("when = 'true'\n") + &rule("when = 'true'"),
            "invalid `rules[1].name` at FILE:5: another rule is called \"r\"",
        ),
    ] {
        let refusal = refusal(&config);
        let file = refusal
            .split(" at ")
            .nth(1)
            .and_then(|rest| rest.split(':').next());
        let refusal = refusal.replace(file.unwrap_or_default(), "FILE");
        assert_eq!(refusal, expected);
    }
    let template = refusal(&rule("when = 'true'\npattern = '{{ nothing }}'"));
    assert!(
        template.starts_with("invalid `rules[0].pattern` at "),
        "{template}"
    );
    let missing = refusal("[[rules]]\nname = 'r'");
    assert!(missing.contains("missing field `when`"), "{missing}");
}

#[test]
fn there_are_at_most_thirty_two_rules() {
    let rules = |count: usize| -> String {
        let rule = |n: usize| format!("[[rules]]\nname = 'r{n}'\nwhen = 'true'\n");
        (0..count).map(rule).collect()
    };
    assert!(Player::with(&rules(32), RunMode::Replay).is_ok());
    assert!(refusal(&rules(33)).ends_with("33 rules, at most 32"));
}

#[test]
fn a_rules_series_exist_from_the_start() {
    let player = Player::with(TWO_DEPLOYS, RunMode::Replay).unwrap();
    let text = Metrics::new(player.detectors.iter().map(String::as_str))
        .unwrap()
        .render();
    for series in [
        "unstuck_detections_total{detector=\"rule:two_deploys\"} 0",
        "unstuck_verdicts_total{detector=\"rule:two_deploys\",action=\"warn\"} 0",
    ] {
        assert!(text.contains(series), "{series}");
    }
}
