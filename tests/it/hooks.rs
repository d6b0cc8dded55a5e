//! The hooks of agent programs, as the programs send them: `tests/fixtures/hooks` has
//! recorded payloads.

use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Server, within};

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

fn client() -> reqwest::Client {
    unstuck::notify::install_crypto_provider();
    reqwest::Client::new()
}

fn request(server: &Server, path: &str, body: &Value) -> RequestBuilder {
    client()
        .post(format!("http://{}/v1/hooks/{path}", server.http))
        .header("content-type", "application/json")
        .body(body.to_string())
}

async fn send(request: RequestBuilder) -> (StatusCode, Value) {
    let response = within(request.send()).await.unwrap();
    let status = response.status();
    let text = within(response.text()).await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(json!(text)))
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
        let path = format!("{agent}?event={event}");
        replies.push((event, hook(server, &path, &body).await));
    }
    replies
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
async fn the_route_refuses_pages_strangers_and_what_is_too_large() {
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
