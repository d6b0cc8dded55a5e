//! The recorded payloads of the real programs: `tests/fixtures/hooks`.

use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::domain::{EventBody, Outcome, Role, Tenant};

const PREFIX: &str = "[unstuck] ";

/// The hooks of a recorded run: the event's name and the payload.
fn recorded(file: &str) -> Vec<(String, Value)> {
    let path = format!(
        "{}/tests/fixtures/hooks/{file}.jsonl",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines
        .map(|line: Value| {
            let event = line["event"].as_str().unwrap().to_owned();
            (event, line["body"].clone())
        })
        .collect()
}

/// One input in short: what a test compares.
fn short(input: &Input) -> String {
    match input {
        Input::Event(event) => {
            let agent = match event.agent.as_str() {
                "" => String::new(),
                agent => format!("{agent}: "),
            };
            let round = match event.round_id.as_str() {
                "" => String::new(),
                round => format!(" in {round}"),
            };
            let body = match &event.body {
                EventBody::Call(call) => {
                    let outcome = match call.outcome {
                        None => "unknown",
                        Some(Outcome::Ok) => "ok",
                        Some(Outcome::Error) => "error",
                        Some(Outcome::Blocked) => "blocked",
                    };
                    let hashed = if call.content_hash.is_empty() {
                        ""
                    } else {
                        " hashed"
                    };
                    format!("call {} {outcome}{hashed}", call.tool)
                }
                EventBody::Turn(turn) => {
                    let role = match turn.role {
                        Role::Agent => "agent",
                        Role::User => "user",
                        Role::System => "system",
                    };
                    format!(
                        "{role} says {:?}",
                        turn.text.chars().take(24).collect::<String>()
                    )
                }
                EventBody::Marker(marker) => format!("{:?}", marker.kind),
            };
            format!("{agent}{body}{round}")
        }
        Input::Delta(delta) => format!("delta {:?}", delta.text),
        Input::Ask(asked) => format!("ask {}", asked.call.tool),
        Input::Outcome { outcome, .. } => {
            let hashed = if outcome.content_hash.is_empty() {
                ""
            } else {
                " hashed"
            };
            format!("{:?}{hashed}", outcome.outcome)
        }
        Input::Cost(cost) => format!("cost {} tokens", cost.tokens()),
        Input::End => "end".to_owned(),
    }
}

/// The inputs of a recorded run. Every event must be in the agent's table.
#[track_caller]
fn inputs_of(agent: &str, file: &str, session: &str) -> Vec<String> {
    let agent = find_agent(agent).unwrap();
    let mut all = Vec::new();
    for (event, body) in recorded(file) {
        let query = HookQuery {
            event: event.clone(),
            session: session.to_owned(),
            ..HookQuery::default()
        };
        let payload = HookPayload::new(agent, &Tenant::default(), &query, PREFIX, &body);
        let payload = payload.unwrap_or_else(|why| panic!("{event}: {why}"));
        assert_eq!(payload.event.name, event);
        let inputs = (agent.inputs)(&payload);
        all.extend(
            inputs
                .iter()
                .map(|input| format!("{event}: {}", short(input))),
        );
    }
    all
}

#[test]
fn every_event_of_a_claude_code_run_is_mapped() {
    let inputs = inputs_of("claude-code", "claude-code-2.1.326.mixed", "");
    assert_eq!(
        inputs,
        [
            "UserPromptSubmit: user says \"mixed go\"",
            "MessageDisplay: delta \"Let me look.\"",
            "PreToolUse: ask Read",
            "PostToolUse: Ok hashed",
            "PostToolBatch: call Read unknown in toolu_00010",
            "PreToolUse: ask Bash",
            "PostToolUse: Ok",
            "PostToolBatch: call Bash unknown in toolu_00020",
            "PreToolUse: ask Edit",
            "PostToolUse: Ok hashed",
            "PostToolBatch: call Edit unknown in toolu_00030",
            "PreToolUse: ask Bash",
            "PostToolUseFailure: Error",
            "PostToolBatch: call Bash error in toolu_00040",
            "PreToolUse: ask Read",
            "PreToolUse: ask Read",
            "PostToolUse: Ok hashed",
            "PostToolUse: Ok hashed",
            "PostToolBatch: call Read unknown in toolu_00050",
            "PostToolBatch: call Read unknown in toolu_00050",
            "MessageDisplay: delta \"all done\"",
            "Stop: agent says \"all done\"",
            "SessionEnd: end",
        ]
    );
}

#[test]
fn a_refusal_of_ours_in_a_claude_code_batch_is_a_blocked_call() {
    let inputs = inputs_of("claude-code", "claude-code-2.1.326.denied", "");
    let count = |what: &str| inputs.iter().filter(|input| input.contains(what)).count();
    assert_eq!(count("call Read unknown"), 3);
    assert_eq!(count("call Read blocked"), 9);
}

#[test]
fn a_claude_code_sub_agent_has_its_id_and_its_end_is_no_user_turn() {
    let inputs = inputs_of("claude-code", "claude-code-2.1.326.sub-agent", "");
    let count = |what: &str| inputs.iter().filter(|input| input.contains(what)).count();
    assert_eq!(count("aabee42d50d1b147f: call Read"), 2);
    assert_eq!(
        (
            count("user says"),
            count("system says \"<task-notification>")
        ),
        (1, 1)
    );
}

#[test]
fn a_claude_code_compaction_counts_once() {
    let inputs = inputs_of("claude-code", "claude-code-2.1.326.compact", "");
    assert_eq!(inputs, ["PostCompact: Compaction", "SessionEnd: end"]);
}

#[test]
fn an_edit_and_a_read_of_what_it_left_have_the_same_hash() {
    let hashes: Vec<_> = recorded("claude-code-2.1.326.mixed")
        .into_iter()
        .filter(|(event, _)| event == "PostToolUse")
        .filter_map(|(_, body)| {
            let agent = find_agent("claude").unwrap();
            let query = HookQuery::default();
            let payload =
                HookPayload::new(agent, &Tenant::default(), &query, PREFIX, &body).unwrap();
            match (agent.inputs)(&payload).pop() {
                Some(Input::Outcome { outcome, .. }) => Some(outcome.content_hash),
                _ => None,
            }
        })
        .filter(|hash| !hash.is_empty())
        .collect();
    assert_eq!(hashes.len(), 4);
    assert_ne!(hashes[0], hashes[1]);
    assert!(hashes[1..].iter().all(|hash| *hash == hashes[1]));
}

#[test]
fn labels_say_where_a_session_comes_from() {
    let agent = find_agent("claude-code").unwrap();
    let body = json!({
        "hook_event_name": "Stop",
        "session_id": "s",
        "cwd": "/home/dev/demo/",
        "model": 7,
        "unstuck": {"host": "laptop", "usage": {"model": "claude-sonnet-4-5"}},
    });
    let payload = HookPayload::new(
        agent,
        &Tenant::default(),
        &HookQuery::default(),
        PREFIX,
        &body,
    )
    .unwrap();
    let labels: Vec<_> = payload.labels().into_iter().collect();
    let expected = [
        ("agent", "claude-code"),
        ("host", "laptop"),
        ("model", "claude-sonnet-4-5"),
        ("project", "demo"),
        ("source", "hook"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(labels, expected);
}
