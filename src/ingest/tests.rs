//! The recorded payloads of the real programs: `tests/fixtures/hooks`.

use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::domain::{EventBody, Outcome, Role, Tenant, Turn};

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

/// The name of an outcome.
pub(super) fn outcome_name(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        None => "unknown",
        Some(Outcome::Ok) => "ok",
        Some(Outcome::Error) => "error",
        Some(Outcome::Blocked) => "blocked",
    }
}

/// The role and the beginning of a turn.
pub(super) fn describe_turn(turn: &Turn) -> (&'static str, String) {
    let role = match turn.role {
        Role::Agent => "agent",
        Role::User => "user",
        Role::System => "system",
    };
    (role, turn.text.chars().take(24).collect())
}

/// An input on one line: what a test compares.
fn describe(input: &Input) -> String {
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
                    let outcome = outcome_name(call.outcome);
                    let hashed = if call.content_hash.is_empty() {
                        ""
                    } else {
                        " hashed"
                    };
                    format!("call {} {outcome}{hashed}", call.tool)
                }
                EventBody::Turn(turn) => {
                    let (role, beginning) = describe_turn(turn);
                    format!("{role} says {beginning:?}")
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
pub(super) fn inputs_of(agent: &str, file: &str, session: &str) -> Vec<String> {
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
                .map(|input| format!("{event}: {}", describe(input))),
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

#[test]
fn every_event_of_a_codex_run_is_mapped() {
    let inputs = inputs_of("codex", "codex-0.169.0.mixed", "");
    assert_eq!(
        inputs,
        [
            "UserPromptSubmit: user says \"mixed go\"",
            "PreToolUse: ask Bash",
            "PostToolUse: call Bash unknown",
            "PreToolUse: ask Bash",
            "PostToolUse: call Bash unknown",
            "PreToolUse: ask Bash",
            "PostToolUse: call Bash unknown",
            "PreToolUse: ask Bash",
            "PreToolUse: ask Bash",
            "PostToolUse: call Bash unknown",
            "PostToolUse: call Bash unknown",
            "Stop: agent says \"all done\"",
            "SessionEnd: end",
        ]
    );
}

#[test]
fn every_event_of_a_gemini_run_is_mapped_and_none_is_a_compaction() {
    let inputs = inputs_of("gemini", "gemini-cli-0.61.0.mixed", "");
    let without_cost: Vec<_> = inputs
        .iter()
        .filter(|input| !input.contains("cost"))
        .collect();
    assert_eq!(
        without_cost,
        [
            "BeforeAgent: user says \"mixed go\"",
            "BeforeTool: ask read_file",
            "AfterTool: call read_file unknown",
            "BeforeTool: ask run_shell_command",
            "AfterTool: call run_shell_command unknown",
            "BeforeTool: ask replace",
            "AfterTool: call replace unknown hashed",
            "BeforeTool: ask run_shell_command",
            "AfterTool: call run_shell_command error",
            "BeforeTool: ask read_file",
            "BeforeTool: ask read_file",
            "AfterTool: call read_file unknown",
            "AfterTool: call read_file unknown",
            "AfterAgent: agent says \"Let me look.\\nall done\"",
            "SessionEnd: end",
        ]
    );
    assert_eq!(inputs.len() - without_cost.len(), 6);
}

#[test]
fn every_event_of_a_qwen_run_is_mapped_and_empty_prompts_are_no_user_turns() {
    let inputs = inputs_of("qwen", "qwen-code-0.24.4.mixed", "");
    assert_eq!(
        inputs,
        [
            "UserPromptSubmit: user says \"mixed go\"",
            "PreToolUse: ask read_file",
            "PostToolUse: call read_file unknown",
            "PreToolUse: ask run_shell_command",
            "PostToolUse: call run_shell_command ok",
            "PreToolUse: ask edit",
            "PostToolUse: call edit unknown hashed",
            "PreToolUse: ask run_shell_command",
            "PostToolUse: call run_shell_command error",
            "PreToolUse: ask read_file",
            "PostToolUse: call read_file unknown",
            "PreToolUse: ask read_file",
            "PostToolUse: call read_file unknown",
            "Stop: agent says \"all done\"",
        ]
    );
}

#[test]
fn a_call_without_an_id_gets_the_same_one_each_time() {
    let agent = find_agent("gemini").unwrap();
    let ids = |recorded: Vec<(String, Value)>| -> Vec<String> {
        let mut ids = Vec::new();
        for (_, body) in recorded {
            let query = HookQuery::default();
            let payload = HookPayload::new(agent, &Tenant::default(), &query, PREFIX, &body);
            for input in (agent.inputs)(&payload.unwrap()) {
                match input {
                    Input::Event(event) => ids.push(event.event_id),
                    Input::Ask(asked) => ids.push(asked.call_id),
                    _ => {}
                }
            }
        }
        ids
    };
    let first = ids(recorded("gemini-cli-0.61.0.mixed"));
    assert_eq!(first, ids(recorded("gemini-cli-0.61.0.mixed")));
    let distinct: std::collections::BTreeSet<_> = first.iter().collect();
    assert_eq!(distinct.len(), first.len());
}

/// Each agent's reply to each instruction, at each event whose reply is used.
#[test]
fn a_stop_reaches_every_agent_by_its_reply_or_by_an_interrupt() {
    for agent in AGENTS {
        for event in agent
            .events
            .iter()
            .filter(|event| event.stage != HookStage::Silent)
        {
            for instruction in [Instruction::Notify, Instruction::Advise, Instruction::Stop] {
                let reply = (agent.reply)(&ReplyRequest {
                    event,
                    instruction,
                    line: "[unstuck] LINE",
                    advice: "[unstuck] ADVICE",
                    unattended: false,
                });
                let Some(reply) = reply else { continue };
                let text = reply.body.to_string();
                let has_text = text.contains("LINE") || text.contains("ADVICE");
                assert!(
                    has_text || reply.interrupt,
                    "{} {event:?}: {text}",
                    agent.name
                );
                assert!(
                    instruction == Instruction::Stop || !reply.interrupt,
                    "{} {event:?}: {text}",
                    agent.name
                );
            }
        }
    }
}

#[test]
fn agents_have_distinct_names_and_commands_that_open_a_session_again() {
    let mut names: Vec<&str> = Vec::new();
    for agent in AGENTS {
        names.extend(agent.aliases);
        names.push(agent.name);
        let command = agent.resume_command("ID");
        assert!(
            command.contains("ID") && command.len() > "ID".len(),
            "{}",
            agent.name
        );
        assert!(find_agent(agent.name).is_some_and(|found| found.name == agent.name));
    }
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    assert!(!names.contains(&AUTO));
}

#[test]
fn the_command_that_opens_a_session_again_is_safe_to_paste() {
    let agent = find_agent("claude-code").unwrap();
    assert_eq!(agent.resume_command("a-1"), "claude --resume a-1");
    assert_eq!(
        agent.resume_command("a;rm$(x)"),
        "claude --resume 'a;rm$(x)'"
    );
    let label = |name: &str| match name {
        "agent" => Some("codex"),
        "source" => Some("hook"),
        _ => None,
    };
    assert_eq!(
        resume_command_of(label, "a").as_deref(),
        Some("codex resume a")
    );
    // A broker's own label says nothing about a program on a machine.
    let label = |name: &str| (name == "agent").then_some("codex");
    assert_eq!(resume_command_of(label, "a"), None);
}

mod any_payload {
    use proptest::prelude::*;

    use super::*;

    /// Any JSON, with the names and values of real payloads among its own.
    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,16}".prop_map(Value::from),
            Just(json!("[unstuck] x")),
            Just(json!("PreToolUse:Read hook error: [unstuck] x")),
            Just(json!("Exit code 99999999999999")),
        ];
        leaf.prop_recursive(3, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z_]{1,12}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// Replaces values of a recorded payload by any others.
    fn mutate(value: &mut Value, changes: &mut impl Iterator<Item = (bool, Value)>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members.iter_mut() {
                    // Otherwise nothing of it would be read.
                    if name != "hook_event_name" {
                        mutate(member, changes);
                    }
                }
            }
            Value::Array(entries) => {
                for entry in entries {
                    mutate(entry, changes);
                }
            }
            _ => {}
        }
        if let Some((true, other)) = changes.next() {
            *value = other;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn never_panics(changes in prop::collection::vec((any::<bool>(), any_json()), 1..64)) {
            let folder = format!("{}/tests/fixtures/hooks", env!("CARGO_MANIFEST_DIR"));
            let mut changes = changes.into_iter().cycle();
            for agent in AGENTS {
                for file in fs::read_dir(&folder).unwrap() {
                    let name = file.unwrap().file_name().into_string().unwrap();
                    let Some(file) = name.strip_suffix(".jsonl") else { continue };
                    if !file.contains("mixed") || !file.starts_with(agent.name) {
                        continue;
                    }
                    for (event, mut body) in recorded(file) {
                        mutate(&mut body, &mut changes);
                        let query = HookQuery {
                            event,
                            session: "s".to_owned(),
                            ..HookQuery::default()
                        };
                        let tenant = Tenant::default();
                        let payload = HookPayload::new(agent, &tenant, &query, PREFIX, &body);
                        if let Ok(payload) = payload {
                            let _ = (agent.inputs)(&payload);
                            let _ = payload.labels();
                        }
                        let _ = recognise_agent(&body);
                    }
                }
            }
        }
    }
}
