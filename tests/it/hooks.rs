//! The hooks of agent programs, as the programs send them: `tests/fixtures/hooks` has
//! recorded payloads.

use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};

use unstuck::pb;

use crate::{
    auth::Tokens,
    console::{client, send},
    harness::{Server, labels, within},
};

const CLAUDE: &str = "claude-code";

/// A hook of a recorded run.
struct Recorded {
    event: String,
    body: Value,
}

fn recorded(file: &str) -> Vec<Recorded> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/hooks");
    let text = std::fs::read_to_string(format!("{folder}/{file}.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines
        .map(|mut line: Value| Recorded {
            event: line["event"].as_str().unwrap().to_owned(),
            body: line["body"].take(),
        })
        .collect()
}

fn request(server: &Server, path: &str, body: &Value) -> RequestBuilder {
    client()
        .post(format!("http://{}/v1/hooks/{path}", server.http))
        .header("content-type", "application/json")
        .body(body.to_string())
}

/// The reply to one hook.
async fn hook(server: &Server, path: &str, body: &Value) -> Value {
    let (status, reply) = send(request(server, path, body)).await;
    assert_eq!(status, 200, "{reply}");
    reply
}

/// Sends a recorded run and returns the replies with their events.
async fn replay(server: &Server, agent: &str, file: &str) -> Vec<(String, Value)> {
    let mut replies = Vec::new();
    for Recorded { event, body } in recorded(file) {
        // The plug-ins of opencode and pi say which session it is.
        let path = format!("{agent}?event={event}&session=of-{agent}");
        replies.push((event, hook(server, &path, &body).await));
    }
    replies
}

/// Sends a recorded run and returns the id of its session.
pub async fn replay_recorded(server: &Server, agent: &str, file: &str) -> String {
    replay(server, agent, file).await;
    let Recorded { body, .. } = recorded(file).remove(0);
    text(&body, "/session_id").to_owned()
}

/// The replies to one kind of event.
fn of<'a>(replies: &'a [(String, Value)], event: &str) -> Vec<&'a Value> {
    let found = replies.iter().filter(|(name, _)| name == event);
    found.map(|(_, reply)| reply).collect()
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

#[tokio::test]
async fn a_healthy_run_of_claude_code_gets_empty_replies() {
    let server = Server::start().await;
    for file in ["mixed", "sub-agent", "compact"] {
        let replies = replay(&server, CLAUDE, &format!("claude-code-2.1.326.{file}")).await;
        for (event, reply) in replies {
            assert_eq!(reply, json!({}), "{file}: {event}");
        }
    }
}

#[tokio::test]
async fn a_read_loop_of_claude_code_is_corrected_and_then_refused() {
    let server = Server::start().await;
    let replies = replay(&server, CLAUDE, "claude-code-2.1.326.read-loop").await;
    let batches = of(&replies, "PostToolBatch");
    assert_eq!(batches[..2], [&json!({}), &json!({})]);
    // The third read is answered with the correction, which is in the fourth request.
    let context = text(batches[2], "/hookSpecificOutput/additionalContext");
    assert!(context.starts_with("[unstuck] Stop reading "), "{context}");
    assert_eq!(
        text(batches[2], "/systemMessage"),
        "[unstuck] a.txt was read 3 times and has not changed"
    );
    assert_eq!(
        text(batches[2], "/hookSpecificOutput/hookEventName"),
        "PostToolBatch"
    );
    // The fifth call is refused, and what to do instead is said.
    let before = of(&replies, "PreToolUse");
    assert!(before[..4].iter().all(|reply| **reply == json!({})));
    assert_eq!(
        text(before[4], "/hookSpecificOutput/permissionDecision"),
        "deny"
    );
    let reason = text(before[4], "/hookSpecificOutput/permissionDecisionReason");
    assert!(reason.starts_with("[unstuck] Stop reading "), "{reason}");
    assert_eq!(
        text(before[4], "/systemMessage"),
        "[unstuck] a.txt was read 4 times and has not changed: the call was refused"
    );
    for (event, reply) in &replies {
        if !["PreToolUse", "PostToolBatch"].contains(&event.as_str()) {
            assert_eq!(*reply, json!({}), "{event}");
        }
    }
}

#[tokio::test]
async fn a_session_has_labels_that_say_where_it_comes_from() {
    let server = Server::start().await;
    let body = json!({
        "hook_event_name": "UserPromptSubmit",
        "session_id": "s",
        "cwd": "/home/dev/demo",
        "prompt": "go",
        "unstuck": {"host": "laptop"},
    });
    hook(&server, "claude-code?label.team=payments", &body).await;
    let later = json!({"hook_event_name": "SessionStart", "session_id": "s", "model": "sonnet"});
    hook(&server, CLAUDE, &later).await;
    let labels = server.get("s").await.unwrap().labels;
    let expected = [
        ("agent", "claude-code"),
        ("host", "laptop"),
        ("model", "sonnet"),
        ("project", "demo"),
        ("source", "hook"),
        ("team", "payments"),
    ];
    let mut found: Vec<_> = labels.iter().map(|(k, v)| (&**k, &**v)).collect();
    found.sort_unstable();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn the_model_of_opencode_is_in_its_prompts() {
    let server = Server::start().await;
    replay(&server, "opencode", "opencode-1.18.33.mixed").await;
    let labels = server.get("of-opencode").await.unwrap().labels;
    assert_eq!(labels["model"], "claude-sonnet-4-5");
}

#[tokio::test]
async fn labels_that_are_too_many_do_not_keep_a_session_from_being_watched() {
    let server = Server::start().await;
    let many: Vec<String> = (0..40).map(|n| format!("label.k{n}=v")).collect();
    let path = format!("{CLAUDE}?{}", many.join("&"));
    for n in 1..=3 {
        let reply = hook(&server, &path, &batch(n)).await;
        assert_eq!(reply == json!({}), n < 3);
    }
}

#[tokio::test]
async fn bad_input_is_answered_with_go_on() {
    let server = Server::start().await;
    let unknown = r#"unstuck_hooks_total{agent="claude-code",event="unknown",reply="none"}"#;
    let bodies = [
        json!(null),
        json!([1, 2]),
        json!("text"),
        json!({}),
        json!({"hook_event_name": "OfAFutureVersion", "session_id": "s"}),
        json!({"hook_event_name": "Stop"}),
        json!({"hook_event_name": "Stop", "session_id": "a b"}),
        json!({"hook_event_name": "Stop", "session_id": 7}),
    ];
    for body in &bodies {
        assert_eq!(hook(&server, CLAUDE, body).await, json!({}), "{body}");
    }
    assert_eq!(server.metric(unknown).await, bodies.len() as f64);
    let broken = request(&server, CLAUDE, &json!(null)).body("{\"a\": ");
    assert_eq!(send(broken).await, (StatusCode::OK, json!({})));
    // The fields of a known event have any type.
    for event in [
        "PreToolUse",
        "PostToolUse",
        "PostToolBatch",
        "UserPromptSubmit",
        "Stop",
    ] {
        for value in [
            json!(null),
            json!(1.5),
            json!(["x"]),
            json!({"a": {}}),
            json!(""),
        ] {
            let body = json!({
                "hook_event_name": event,
                "session_id": "odd",
                "tool_name": value,
                "tool_input": value,
                "tool_use_id": value,
                "tool_response": value,
                "tool_calls": [value, {"tool_response": value}],
                "prompt": value,
                "last_assistant_message": value,
                "unstuck": value,
                "agent_id": value,
            });
            hook(&server, CLAUDE, &body).await;
        }
    }
}

#[tokio::test]
async fn the_route_refuses_browser_pages_callers_without_access_and_large_bodies() {
    let server = Server::start().await;
    let body = json!({"hook_event_name": "Stop", "session_id": "s"});
    let call = || request(&server, CLAUDE, &body);
    assert_eq!(send(call()).await.0, 200);
    for (name, value, status) in [
        ("host", "evil.example", 421),
        ("origin", "http://evil.example", 403),
        ("sec-fetch-site", "cross-site", 403),
    ] {
        assert_eq!(send(call().header(name, value)).await.0, status, "{name}");
    }
    let form = client()
        .post(format!("http://{}/v1/hooks/{CLAUDE}", server.http))
        .header("content-type", "text/plain")
        .body(body.to_string());
    assert_eq!(send(form).await.0, 415);
    assert_eq!(send(request(&server, "aider", &body)).await.0, 404);
    let large = call().body(vec![b' '; 4 * 1024 * 1024 + 1]);
    assert_eq!(send(large).await.0, 413);
    let response = within(call().send()).await.unwrap();
    assert!(
        !response
            .headers()
            .contains_key("access-control-allow-origin")
    );
    // Switched off, there is no such route.
    let off = Server::with("[hooks]\nenabled = false").await;
    assert_eq!(send(request(&off, CLAUDE, &body)).await.0, 404);
}

#[tokio::test]
async fn in_shadow_mode_events_are_recorded_and_replies_are_empty() {
    let server = Server::with("[hooks]\nshadow = true").await;
    let replies = replay(&server, CLAUDE, "claude-code-2.1.326.read-loop").await;
    assert!(replies.iter().all(|(_, reply)| *reply == json!({})));
    let verdicts = server.metric("unstuck_verdicts_total{detector=\"read_loop\",action=\"warn\"}");
    assert_eq!(verdicts.await, 1.0);
}

// What a verdict's action does

/// A hook of a session of Claude Code, with more fields.
fn claude(event: &str, fields: Value) -> Value {
    let mut body = json!({
        "hook_event_name": event,
        "session_id": "s",
        "cwd": "/home/dev/demo",
        "prompt_id": "p1",
    });
    let members = body.as_object_mut().unwrap();
    members.extend(fields.as_object().unwrap().clone());
    body
}

fn read_input() -> Value {
    json!({"file_path": "/home/dev/demo/src/money.rs"})
}

/// The n-th read of one file, as a response of the model with one call.
fn batch(n: u32) -> Value {
    claude(
        "PostToolBatch",
        json!({"tool_calls": [{
            "tool_name": "Read",
            "tool_input": read_input(),
            "tool_use_id": format!("t{n}"),
            "tool_response": "1\thello",
        }]}),
    )
}

fn before(n: u32) -> Value {
    claude(
        "PreToolUse",
        json!({"tool_name": "Read", "tool_input": read_input(), "tool_use_id": format!("t{n}")}),
    )
}

/// A loop of reads whose first and only action is this one.
fn acting(action: &str) -> String {
    let detectors = ["read_loop", "exact_repeat"];
    let sections = detectors.map(|name| {
        format!("[detect.{name}]\nsoft = \"{action}\"\nhard = \"{action}\"\nterminate_after = 0\n")
    });
    sections.concat()
}

/// The reply to the third read of a file.
async fn third_reply(server: &Server) -> Value {
    for n in 1..=2 {
        assert_eq!(hook(server, CLAUDE, &batch(n)).await, json!({}));
    }
    hook(server, CLAUDE, &batch(3)).await
}

const LINE: &str = "[unstuck] src/money.rs was read 3 times and has not changed";

#[tokio::test]
async fn every_action_has_its_reply_after_a_call() {
    for (action, extra) in [
        ("alert", None),
        ("warn", Some("")),
        ("throttle", Some("Wait 5 seconds before the next call.")),
        ("checkpoint", Some("Commit what works before you go on.")),
        ("ask", Some("")),
        ("block", Some("")),
        ("break", Some("")),
        ("escalate", Some("")),
    ] {
        let server = Server::with(&acting(action)).await;
        let reply = third_reply(&server).await;
        assert_eq!(text(&reply, "/systemMessage"), LINE, "{action}");
        let context = text(&reply, "/hookSpecificOutput/additionalContext");
        match extra {
            None => assert_eq!(reply, json!({"systemMessage": LINE}), "{action}"),
            Some(extra) => {
                assert!(
                    context.starts_with("[unstuck] Stop reading"),
                    "{action}: {reply}"
                );
                assert!(context.ends_with(extra), "{action}: {context}");
            }
        }
        // It is delivered once, also if the hook is sent again.
        assert_eq!(
            hook(&server, CLAUDE, &batch(3)).await,
            json!({}),
            "{action}"
        );
    }
    let server = Server::with(&acting("terminate")).await;
    let reply = third_reply(&server).await;
    assert_eq!(reply["continue"], false);
    assert!(text(&reply, "/stopReason").starts_with(LINE));
}

#[tokio::test]
async fn what_is_in_force_decides_about_the_next_call() {
    let decision = "/hookSpecificOutput/permissionDecision";
    for (action, expected) in [
        ("warn", ""),
        ("throttle", ""),
        ("ask", "ask"),
        ("block", "deny"),
        ("break", ""),
        ("escalate", "deny"),
        ("terminate", "deny"),
    ] {
        let server = Server::with(&acting(action)).await;
        third_reply(&server).await;
        let reply = hook(&server, CLAUDE, &before(4)).await;
        assert_eq!(text(&reply, decision), expected, "{action}: {reply}");
        // Another call is not affected, except by a termination.
        let mut other = before(5);
        other["tool_input"] = json!({"file_path": "/home/dev/demo/other.rs"});
        let reply = hook(&server, CLAUDE, &other).await;
        assert_eq!(
            reply == json!({}),
            action != "terminate",
            "{action}: {reply}"
        );
    }
}

#[tokio::test]
async fn a_person_is_asked_once_and_a_run_without_one_is_paused() {
    let server = Server::with(&acting("ask")).await;
    third_reply(&server).await;
    let reply = hook(&server, CLAUDE, &before(4)).await;
    assert_eq!(
        text(&reply, "/hookSpecificOutput/permissionDecision"),
        "ask"
    );
    // The dialog does not show the reason.
    assert_eq!(text(&reply, "/systemMessage"), LINE);
    assert_eq!(hook(&server, CLAUDE, &before(5)).await, json!({}));

    let server = Server::with(&format!("[hooks]\nescalate = \"stop\"\n{}", acting("ask"))).await;
    third_reply(&server).await;
    let reply = hook(&server, CLAUDE, &before(4)).await;
    assert_eq!(
        text(&reply, "/hookSpecificOutput/permissionDecision"),
        "defer"
    );
    // Resumed, it goes on with that call.
    assert_eq!(hook(&server, CLAUDE, &before(4)).await, json!({}));
}

#[tokio::test]
async fn asking_again_and_again_for_a_refused_call_stops_an_unattended_run() {
    let server = Server::with("[hooks]\nescalate = \"stop\"").await;
    let mut requests = 0;
    let mut refusal_lines = Vec::new();
    let stop = loop {
        requests += 1;
        let reply = hook(&server, CLAUDE, &before(requests)).await;
        let is_refused = text(&reply, "/hookSpecificOutput/permissionDecision") == "deny";
        let mut done = batch(requests);
        if is_refused {
            refusal_lines.push(text(&reply, "/systemMessage").to_owned());
            let reason = &reply["hookSpecificOutput"]["permissionDecisionReason"];
            let result = format!("PreToolUse:Read hook error: {}", reason.as_str().unwrap());
            done["tool_calls"][0]["tool_response"] = json!(result);
        }
        let reply = hook(&server, CLAUDE, &done).await;
        if reply["continue"] == false {
            break reply;
        }
        assert!(requests < 20, "the run never stops");
    };
    assert_eq!(requests, 7);
    // The person sees each refusal, and at the end what the agent asked for in vain.
    let refused =
        "[unstuck] src/money.rs was read 4 times and has not changed: the call was refused";
    assert_eq!(refusal_lines, [refused; 3]);
    assert_eq!(
        text(&stop, "/stopReason"),
        "[unstuck] asked 3 times for what was refused: Read src/money.rs. \
         Stopped for a person to look. To go on: claude --resume s"
    );
}

/// With a person at the terminal the same loop is only refused, and the line says for what.
#[tokio::test]
async fn the_line_after_refusals_counts_refusals_and_not_reads() {
    let server = Server::start().await;
    let mut lines = Vec::new();
    for n in 1..=9 {
        let reply = hook(&server, CLAUDE, &before(n)).await;
        lines.push(text(&reply, "/systemMessage").to_owned());
        let mut done = batch(n);
        if reply != json!({}) {
            let result = "PreToolUse:Read hook error: [unstuck] Stop reading";
            done["tool_calls"][0]["tool_response"] = json!(result);
        }
        let reply = hook(&server, CLAUDE, &done).await;
        lines.push(text(&reply, "/systemMessage").to_owned());
    }
    lines.retain(|line| !line.is_empty());
    lines.dedup();
    let read = |count: u32| LINE.replace('3', &count.to_string());
    let asked = "[unstuck] asked 3 times for what was refused: Read src/money.rs";
    assert_eq!(
        lines,
        [
            read(3),
            read(4),
            format!("{}: the call was refused", read(4)),
            asked.to_owned(),
            format!("{asked}: the call was refused"),
        ]
    );
}

#[tokio::test]
async fn a_terminated_session_is_refused_until_it_is_reset() {
    let server = Server::start().await;
    let prompt = |id: &str| claude("UserPromptSubmit", json!({"prompt": "go", "prompt_id": id}));
    assert_eq!(hook(&server, CLAUDE, &prompt("p1")).await, json!({}));
    server.terminate("s").await;
    for id in ["p2", "p3"] {
        let reply = hook(&server, CLAUDE, &prompt(id)).await;
        assert_eq!(reply["continue"], false);
        let line = text(&reply, "/stopReason");
        assert!(line.starts_with("[unstuck] "), "{line}");
        assert!(line.contains("unstuck reset s --reason"), "{line}");
        assert!(line.ends_with("then claude --resume s"), "{line}");
    }
    // `continue: false` alone would still make the call.
    let reply = hook(&server, CLAUDE, &before(1)).await;
    assert_eq!(reply["continue"], false);
    assert_eq!(
        text(&reply, "/hookSpecificOutput/permissionDecision"),
        "deny"
    );
    // A person who types to it is no disobedience.
    assert_eq!(server.metric("unstuck_disobeyed_events_total").await, 0.0);
    server.reset("s").await.unwrap();
    assert_eq!(hook(&server, CLAUDE, &prompt("p4")).await, json!({}));
    assert_eq!(hook(&server, CLAUDE, &before(2)).await, json!({}));
}

#[tokio::test]
async fn a_sub_agent_is_stopped_alone() {
    let server = Server::with(&acting("terminate")).await;
    let by_sub_agent = |mut body: Value| {
        body["agent_id"] = json!("sub1");
        body
    };
    let mut reply = json!({});
    for n in 1..=3 {
        reply = hook(&server, CLAUDE, &by_sub_agent(batch(n))).await;
    }
    assert_eq!(reply["continue"], false);
    let line = text(&reply, "/stopReason");
    assert!(
        line.ends_with("This sub-agent is ended; the others go on."),
        "{line}"
    );
    let refused = hook(&server, CLAUDE, &by_sub_agent(before(4))).await;
    assert_eq!(
        text(&refused, "/hookSpecificOutput/permissionDecision"),
        "deny"
    );
    assert_eq!(hook(&server, CLAUDE, &before(5)).await, json!({}));
    let prompt = claude("UserPromptSubmit", json!({"prompt": "go"}));
    assert_eq!(hook(&server, CLAUDE, &prompt).await, json!({}));
}

/// A finished turn that is not enough is worked on once more.
#[tokio::test]
async fn a_turn_is_sent_back_once_per_prompt_and_never_while_it_is_worked_on() {
    let server = Server::start().await;
    // A session each, because a loop is reported once in a session.
    for (session, active, sent_back) in [
        ("s1", json!(false), true),
        ("s2", json!(true), false),
        ("s3", json!(null), false),
    ] {
        let of_session = |mut body: Value| {
            body["session_id"] = json!(session);
            body
        };
        let stop = |active: &Value| {
            of_session(claude(
                "Stop",
                json!({
                    "stop_hook_active": active,
                    "last_assistant_message": "Hello! How can I help you today?",
                }),
            ))
        };
        let prompt = claude("UserPromptSubmit", json!({"prompt": "go"}));
        hook(&server, CLAUDE, &of_session(prompt)).await;
        hook(&server, CLAUDE, &of_session(batch(1))).await;
        let reply = hook(&server, CLAUDE, &stop(&active)).await;
        let line = text(&reply, "/systemMessage");
        assert!(line.starts_with("[unstuck] "), "{session}: {reply}");
        assert_eq!(
            reply["decision"] == "block",
            sent_back,
            "{session}: {reply}"
        );
        let again = hook(&server, CLAUDE, &stop(&json!(false))).await;
        assert_ne!(again["decision"], "block", "{session}: {again}");
    }
}

#[tokio::test]
async fn a_reply_with_throttle_is_delayed_by_its_wait() {
    let throttle = acting("throttle");
    let server = Server::with(&format!(
        "[hooks]\nhold_throttle = true\n{throttle}[policy]\nthrottle_secs = 1"
    ))
    .await;
    let started_at = std::time::Instant::now();
    let reply = third_reply(&server).await;
    assert!(text(&reply, "/hookSpecificOutput/additionalContext").contains("Wait 1 seconds"));
    assert!(started_at.elapsed() >= std::time::Duration::from_secs(1));
}

// Other agents

#[tokio::test]
async fn healthy_runs_get_empty_replies() {
    let server = Server::start().await;
    for (agent, file) in [
        ("codex", "codex-0.169.0.mixed"),
        ("gemini", "gemini-cli-0.61.0.mixed"),
        ("qwen", "qwen-code-0.24.4.mixed"),
        ("copilot", "copilot-cli-1.0.102.mixed"),
        ("cline", "cline-3.0.65.mixed"),
        ("opencode", "opencode-1.18.33.mixed"),
        ("pi", "pi-0.73.1.mixed"),
    ] {
        for (event, reply) in replay(&server, agent, file).await {
            assert_eq!(reply, json!({}), "{agent}: {event}");
        }
        let unknown =
            format!("unstuck_hooks_total{{agent=\"{agent}\",event=\"unknown\",reply=\"none\"}}");
        assert_eq!(server.metric(&unknown).await, 0.0);
    }
}

/// A read that is about to be made and one that is done, for agents without a recorded loop.
fn read_of(agent: &str, n: u32) -> [(&'static str, Value); 2] {
    let id = format!("call_{n}");
    match agent {
        "cline" => {
            let call = |member: &str| {
                json!({
                    "sessionContext": {"rootSessionId": "cline-1"},
                    "agent_id": "agent_1",
                    "parent_agent_id": null,
                    "iteration": n,
                    member: {
                        "id": id,
                        "name": "read_files",
                        "input": {"files": [{"path": "/home/dev/demo/a.txt"}]},
                        "output": [{"query": "a.txt", "result": "1 | hello", "success": true}],
                    },
                })
            };
            [
                ("PreToolUse", call("tool_call")),
                ("PostToolUse", call("tool_result")),
            ]
        }
        "codex" | "qwen" => ["PreToolUse", "PostToolUse"].map(|event| {
            let body = json!({
                "hook_event_name": event,
                "session_id": "s",
                "tool_name": "read_file",
                "tool_input": {"file_path": "/home/dev/demo/a.txt"},
                "tool_response": {"llmContent": "hello"},
                "tool_use_id": id,
            });
            (event, body)
        }),
        "copilot" => ["preToolUse", "postToolUse"].map(|event| {
            let body = json!({
                "sessionId": "s",
                "timestamp": n,
                "toolName": "view",
                "toolArgs": {"path": "/home/dev/demo/a.txt"},
                "toolResult": {"resultType": "success", "textResultForLlm": "hello"},
            });
            (event, body)
        }),
        "opencode" => {
            let args = json!({"filePath": "/home/dev/demo/a.txt"});
            let i = json!({"tool": "read", "sessionID": "of-opencode", "callID": id, "args": args});
            [
                ("tool.execute.before", json!({"i": i, "o": {"args": args}})),
                (
                    "tool.execute.after",
                    json!({"i": i, "o": {"output": "1: hello"}}),
                ),
            ]
        }
        _ => {
            let call = json!({
                "toolName": "read",
                "toolCallId": id,
                "input": {"path": "/home/dev/demo/a.txt"},
                "content": [{"type": "text", "text": "hello"}],
                "isError": false,
            });
            [("tool_call", call.clone()), ("tool_result", call)]
        }
    }
}

#[tokio::test]
async fn a_read_loop_of_a_plug_in_or_cline_is_corrected_and_then_refused() {
    let server = Server::start().await;
    for (agent, advice, refusal) in [
        ("cline", "/contextModification", "/contextModification"),
        ("opencode", "/append", "/deny"),
        ("pi", "/append", "/deny"),
    ] {
        for n in 1..=5 {
            let [before, after] = read_of(agent, n);
            let path = |event: &str| format!("{agent}?event={event}&session=of-{agent}");
            let reply = hook(&server, &path(before.0), &before.1).await;
            if n < 5 {
                assert_eq!(reply, json!({}), "{agent} {n}");
            } else {
                assert!(
                    text(&reply, refusal).starts_with("[unstuck] Stop "),
                    "{agent}: {reply}"
                );
                break;
            }
            let reply = hook(&server, &path(after.0), &after.1).await;
            let is_told = text(&reply, advice).starts_with("[unstuck] Stop ");
            assert_eq!(is_told, n >= 3, "{agent} {n}: {reply}");
        }
    }
}

#[tokio::test]
async fn a_read_loop_of_copilot_is_corrected_and_then_refused() {
    let server = Server::start().await;
    let replies = replay(&server, "copilot", "copilot-cli-1.0.102.read-loop").await;
    let after = of(&replies, "postToolUse");
    assert_eq!(after[..2], [&json!({}), &json!({})]);
    assert!(text(after[2], "/additionalContext").starts_with("[unstuck] Stop reading"));
    let before = of(&replies, "preToolUse");
    assert!(before[..4].iter().all(|reply| **reply == json!({})));
    assert_eq!(text(before[4], "/permissionDecision"), "deny");
}

#[tokio::test]
async fn an_unattended_run_is_stopped_by_its_reply_or_by_an_interrupt() {
    for (agent, interrupts, stop) in [
        ("cline", false, "/cancel"),
        ("opencode", false, "/abort"),
        ("pi", false, "/abort"),
        ("codex", true, "/systemMessage"),
        ("qwen", true, "/systemMessage"),
        ("copilot", true, "/additionalContext"),
    ] {
        let settings = format!("[hooks]\nescalate = \"stop\"\n{}", acting("escalate"));
        let server = Server::with(&settings).await;
        for n in 1..=3 {
            let [_, (event, body)] = read_of(agent, n);
            let path = format!("{agent}?event={event}&session=of-{agent}");
            let response = within(request(&server, &path, &body).send()).await.unwrap();
            let is_marked = response.headers().contains_key("unstuck-interrupt");
            let reply: Value =
                serde_json::from_str(&within(response.text()).await.unwrap()).unwrap();
            let is_stopped = n == 3;
            assert_eq!(
                reply.pointer(stop).is_some(),
                is_stopped,
                "{agent}: {reply}"
            );
            assert_eq!(is_marked, is_stopped && interrupts, "{agent}");
        }
    }
}

#[tokio::test]
async fn a_read_loop_of_codex_is_corrected_and_then_refused() {
    let server = Server::start().await;
    let replies = replay(&server, "codex", "codex-0.169.0.read-loop").await;
    let after = of(&replies, "PostToolUse");
    assert_eq!(after[..2], [&json!({}), &json!({})]);
    let context = text(after[2], "/hookSpecificOutput/additionalContext");
    assert!(context.starts_with("[unstuck] Stop "), "{context}");
    let before = of(&replies, "PreToolUse");
    assert!(before[..4].iter().all(|reply| **reply == json!({})));
    assert_eq!(
        text(before[4], "/hookSpecificOutput/permissionDecision"),
        "deny"
    );
    // Nothing is ever said at Stop in a way that makes it go on.
    assert!(
        of(&replies, "Stop")
            .iter()
            .all(|reply| reply.get("decision").is_none())
    );
}

/// The refusal is recorded under the id of the call, so that asking again leads somewhere
/// and a later report of the same call is a duplicate.
#[tokio::test]
async fn a_refused_call_of_codex_is_recorded_once() {
    let server = Server::with("[hooks]\nescalate = \"stop\"").await;
    let body = |event: &str, n: u32| {
        json!({
            "hook_event_name": event,
            "session_id": "c",
            "tool_name": "Bash",
            "tool_input": {"command": "cat a.txt"},
            "tool_response": "hello\n",
            "tool_use_id": format!("call_{n}"),
        })
    };
    for n in 1..=4 {
        hook(&server, "codex", &body("PostToolUse", n)).await;
    }
    for n in 5..=6 {
        let reply = hook(&server, "codex", &body("PreToolUse", n)).await;
        assert_eq!(
            text(&reply, "/hookSpecificOutput/permissionDecision"),
            "deny"
        );
    }
    let session = server.get("c").await.unwrap();
    assert_eq!(session.events, 6);
    assert_eq!(
        hook(&server, "codex", &body("PostToolUse", 5)).await,
        json!({})
    );
    assert_eq!(server.get("c").await.unwrap().events, 6);
    // The third refusal in a row stops the run, which no reply does.
    let response = within(request(&server, "codex", &body("PreToolUse", 7)).send())
        .await
        .unwrap();
    assert_eq!(response.headers()["unstuck-interrupt"], "1");
    let reply: Value = serde_json::from_str(&within(response.text()).await.unwrap()).unwrap();
    let reason = text(&reply, "/hookSpecificOutput/permissionDecisionReason");
    assert!(reason.ends_with("To go on: codex resume c"), "{reason}");
}

#[tokio::test]
async fn a_failing_command_is_found_at_the_third_run() {
    for (agent, file, event) in [
        (
            CLAUDE,
            "claude-code-2.1.326.test-fail-loop",
            "PostToolBatch",
        ),
        ("gemini", "gemini-cli-0.61.0.fail-loop", "AfterTool"),
        ("qwen", "qwen-code-0.24.4.test-fail-loop", "PostToolUse"),
    ] {
        let server = Server::start().await;
        let replies = replay(&server, agent, file).await;
        let after = of(&replies, event);
        assert_eq!(after[..2], [&json!({}), &json!({})], "{agent}");
        let line = text(after[2], "/systemMessage");
        assert!(line.contains("failed 3 runs in a row"), "{agent}: {line}");
        let found =
            server.metric("unstuck_verdicts_total{detector=\"test_fail_loop\",action=\"warn\"}");
        assert_eq!(found.await, 1.0, "{agent}");
    }
}

#[tokio::test]
async fn an_exit_code_that_the_command_found_is_an_outcome() {
    let server = Server::start().await;
    for n in 1..=3 {
        let body = json!({
            "hook_event_name": "PostToolUse",
            "session_id": "c",
            "tool_name": "Bash",
            "tool_input": {"command": "make check"},
            "tool_response": "",
            "tool_use_id": format!("call_{n}"),
            "unstuck": {"exit_code": 2, "usage":
                {"input_tokens": 90, "cached_input_tokens": 80, "output_tokens": 10}},
        });
        hook(&server, "codex", &body).await;
    }
    let session = server.get("c").await.unwrap();
    assert_eq!(session.last_verdicts[0].detector, "test_fail_loop");
    let usage = session.usage.unwrap();
    assert_eq!((usage.input_tokens, usage.cached_input_tokens), (270, 240));
    let wasted = session.last_verdicts[0].wasted.unwrap();
    assert_eq!((wasted.tokens, wasted.cached_tokens), (300, 240));
}

#[tokio::test]
async fn a_payload_says_itself_which_agent_it_is_from() {
    let server = Server::start().await;
    for (file, agent) in [
        ("claude-code-2.1.326.mixed", CLAUDE),
        ("codex-0.169.0.mixed", "codex"),
        ("gemini-cli-0.61.0.mixed", "gemini"),
        ("qwen-code-0.24.4.mixed", "qwen"),
        ("copilot-cli-1.0.102.mixed", "copilot"),
        ("cline-3.0.65.mixed", "cline"),
    ] {
        let first = recorded(file).into_iter().next().unwrap();
        let path = format!("auto?event={}", first.event);
        hook(&server, &path, &first.body).await;
        let request = pb::ListSessionsRequest {
            labels: labels(&[("agent", agent)]),
            ..pb::ListSessionsRequest::default()
        };
        let found = server.list(request).await.unwrap().sessions;
        assert_eq!(found.len(), 1, "{agent}");
    }
    assert_eq!(hook(&server, "auto", &json!({"a": 1})).await, json!({}));
    let unknown = "unstuck_hooks_total{agent=\"auto\",event=\"unknown\",reply=\"none\"}";
    assert_eq!(server.metric(unknown).await, 1.0);
}

// Access

#[tokio::test]
async fn tokens_decide_who_may_send_and_tenants_are_apart() {
    let tokens = Tokens::new(&["broker@a", "broker@b", "viewer@a", "admin"]);
    let server = Server::with(&tokens.config()).await;
    let call = |token: Option<&str>, body: &Value| {
        let request = request(&server, CLAUDE, body);
        match token {
            Some(name) => request.bearer_auth(tokens.of(name)),
            None => request,
        }
    };
    let stop = claude("Stop", json!({}));
    assert_eq!(send(call(None, &stop)).await.0, 401);
    assert_eq!(send(call(Some("viewer@a"), &stop)).await.0, 403);
    // The same id in two tenants is two sessions.
    for n in 1..=3 {
        let (status, reply) = send(call(Some("broker@a"), &batch(n))).await;
        assert_eq!((status, reply == json!({})), (StatusCode::OK, n < 3));
        let (status, reply) = send(call(Some("broker@b"), &batch(n + 10))).await;
        assert_eq!((status, reply == json!({})), (StatusCode::OK, n < 3));
    }
}

#[tokio::test]
async fn a_caller_above_its_rate_gets_429() {
    let server = Server::with("[limits]\nevents_per_second_max = 1").await;
    let mut statuses = Vec::new();
    for n in 0..20 {
        statuses.push(send(request(&server, CLAUDE, &batch(n))).await.0.as_u16());
    }
    assert_eq!(statuses[0], 200);
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn an_unattended_agent_that_cannot_refuse_a_call_is_stopped_instead() {
    for (settings, is_stopped) in [("", false), ("[hooks]\nescalate = \"stop\"", true)] {
        let server = Server::with(settings).await;
        let payload = |n: u32| {
            let call = json!({
                "id": format!("call_{n}"),
                "name": "read_files",
                "input": {"files": [{"path": "/repo/a.txt"}]},
                "output": [{"result": "1 | hello", "success": true}],
            });
            json!({
                "sessionContext": {"rootSessionId": "s"},
                "agent_id": "agent_1",
                "parent_agent_id": null,
                "iteration": n,
                "tool_call": call,
                "tool_result": call,
                "postToolUse": {"success": true},
            })
        };
        for n in 1..=4 {
            hook(&server, "cline?event=PreToolUse", &payload(n)).await;
            hook(&server, "cline?event=PostToolUse", &payload(n)).await;
        }
        let reply = hook(&server, "cline?event=PreToolUse", &payload(5)).await;
        assert_eq!(reply["cancel"], is_stopped, "{reply}");
    }
}

#[tokio::test]
async fn half_a_character_does_not_hide_a_loop() {
    let server = Server::start().await;
    for n in 1..=3 {
        let mut body = batch(n);
        body["tool_calls"][0]["tool_response"] = json!("CUT");
        let text = body.to_string().replace("CUT", r"1\thello \ud83d");
        let (status, reply) = send(request(&server, CLAUDE, &json!({})).body(text)).await;
        assert_eq!(status, 200);
        assert_eq!(reply == json!({}), n < 3, "{n}: {reply}");
    }
    assert_eq!(server.metric("unstuck_hooks_unreadable_total").await, 0.0);
    send(request(&server, CLAUDE, &json!({})).body("{\"a\": ")).await;
    assert_eq!(server.metric("unstuck_hooks_unreadable_total").await, 1.0);
}
