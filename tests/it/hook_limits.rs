//! The bounds of the route that agents' hooks call.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    console::{client, send},
    harness::{Build, Server, call, within},
};

const REJECTED_BY_CALLS: &str = "unstuck_rejected_total{reason=\"calls_max\"}";
const REJECTED_BY_UNREAD: &str = "unstuck_rejected_total{reason=\"unread_bytes_max\"}";
const REJECTED_BY_SIZE: &str = "unstuck_rejected_total{reason=\"message_bytes_max\"}";

/// The hook of a session of Claude Code that ends its turn.
fn stop(session: &str) -> Value {
    json!({"hook_event_name": "Stop", "session_id": session})
}

async fn post(server: &Server, query: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let url = format!("http://{}/v1/hooks/claude-code{query}", server.http);
    let request = client()
        .post(url)
        .header("content-type", "application/json")
        .body(body);
    let (status, reply) = send(request).await;
    (status.as_u16(), reply)
}

/// A request whose body is announced and not sent. Its handler waits for it.
async fn begin(address: SocketAddr, body_bytes: usize) -> TcpStream {
    let mut socket = within(TcpStream::connect(address)).await.unwrap();
    let head = format!(
        "POST /v1/hooks/claude-code HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: {body_bytes}\r\n\
         expect: 100-continue\r\n\r\n"
    );
    within(socket.write_all(head.as_bytes())).await.unwrap();
    // Sent when the handler first reads the body.
    let mut answer = [0; 25];
    within(socket.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    socket
}

#[tokio::test]
async fn hooks_that_are_answered_at_a_time_are_bounded() {
    let server = Server::with("[limits]\nhandshake_secs_max = 60").await;
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(begin(server.http, 100).await);
    }
    let (status, reply) = post(&server, "", stop("s").to_string()).await;
    assert_eq!((status, &reply["reason"]), (429, &json!("CALLS_MAX")));
    assert_eq!(server.metric(REJECTED_BY_CALLS).await, 1.0);
    // Another is answered when one has ended.
    drop(open.pop());
    while post(&server, "", stop("s").to_string()).await.0 != 200 {}
}

/// The answer to a request that [`begin`] has begun.
async fn answer(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // Closed or reset: both are an end.
    let _ = within(socket.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn the_payloads_of_hooks_count_as_unread_bytes() {
    let server =
        Server::with("[limits]\nunread_bytes_max = 2_097_152\nhandshake_secs_max = 60").await;
    // Two payloads of which nearly all arrives. There is room for one.
    let mut first = begin(server.http, 2_000_001).await;
    let mut second = begin(server.http, 2_000_001).await;
    for socket in [&mut first, &mut second] {
        within(socket.write_all(&[b' '; 2_000_000])).await.unwrap();
    }
    let (refused, mut kept) = tokio::select! {
        refused = answer(&mut first) => (refused, second),
        refused = answer(&mut second) => (refused, first),
    };
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(refused.contains("UNREAD_BYTES_MAX"), "{refused}");
    assert_eq!(server.metric(REJECTED_BY_UNREAD).await, 1.0);
    // gRPC has room of its own, and a small hook needs none.
    let large = "x".repeat(1_000_000);
    let taken = server.try_record(call("read_file", "{}", &large).of("large"));
    assert!(taken.await.is_ok());
    let small = post(&server, "", stop("s").to_string()).await;
    assert_eq!(small, (200, json!({})));
    // The other is answered, and then there is room for the next.
    within(kept.write_all(b" ")).await.unwrap();
    let mut head = [0; 12];
    within(kept.read_exact(&mut head)).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let next = format!("{}{}", " ".repeat(2_000_000), stop("s"));
    assert_eq!(post(&server, "", next).await, (200, json!({})));
}

#[tokio::test]
async fn a_payload_that_is_too_large_is_refused_and_counted() {
    let server = Server::start().await;
    let spaces = |bytes: usize| {
        let stop = stop("s").to_string();
        format!("{}{stop}", " ".repeat(bytes - stop.len()))
    };
    const BYTES_MAX: usize = 4 * 1024 * 1024;
    assert_eq!(post(&server, "", spaces(BYTES_MAX)).await.0, 200);
    assert_eq!(server.metric(REJECTED_BY_SIZE).await, 0.0);
    assert_eq!(post(&server, "", spaces(BYTES_MAX + 1)).await.0, 413);
    assert_eq!(server.metric(REJECTED_BY_SIZE).await, 1.0);
}

#[tokio::test]
async fn a_payload_of_too_many_values_is_not_read() {
    let server = Server::start().await;
    let mut many = stop("many");
    many["x"] = vec![json!({"": 0}); 20_000].into();
    let answer = post(&server, "", many.to_string()).await;
    assert_eq!(answer, (200, json!({})));
    assert_eq!(server.metric("unstuck_hooks_unreadable_total").await, 1.0);
}

#[tokio::test]
async fn labels_of_later_hooks_are_refused_when_a_session_has_enough() {
    let server = Server::start().await;
    let prompt = json!({
        "hook_event_name": "UserPromptSubmit",
        "session_id": "s",
        "cwd": "/home/dev/demo",
        "prompt": "go",
    });
    for n in 0..100 {
        let query = format!("?label.k{n}=v");
        let answer = post(&server, &query, prompt.to_string()).await;
        assert_eq!(answer, (200, json!({})));
    }
    let labels = server.get("s").await.unwrap().labels;
    assert_eq!(labels.len(), 16);
    assert_eq!(labels["agent"], "claude-code");
    assert!(labels.contains_key("k0") && !labels.contains_key("k99"));
    // The labels of the payload come first, whatever else the query has.
    let many: Vec<String> = (0..40).map(|n| format!("label.a{n}=v")).collect();
    let mut other = prompt;
    other["session_id"] = json!("t");
    post(&server, &format!("?{}", many.join("&")), other.to_string()).await;
    let labels = server.get("t").await.unwrap().labels;
    assert_eq!(labels.len(), 16);
    assert_eq!((&*labels["project"], &*labels["source"]), ("demo", "hook"));
    let refused = "unstuck_rejected_total{reason=\"invalid_argument\"}";
    assert_eq!(server.metric(refused).await, 1.0);
}
