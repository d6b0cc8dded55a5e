//! The memory of the real process under attack, as the operating system reports it.

use std::{collections::BTreeMap, fs};

use futures_util::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde_json::json;
use tonic::{
    body::Body,
    codegen::{Bytes, Service, http::Request},
    transport::Channel,
};
use unstuck::{
    config::MemoryBudget,
    pb::{self, StreamEventsRequest},
};

use crate::{
    console::client,
    harness::*,
    lifecycle::{Running, directory, unstuck},
};

/// The budget of session state in these tests.
const STATE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How much more the process may grow per thread (one per core, and the store's): buffers of
/// the transport and of the allocator. Without the budget it would be hundreds of MB.
const THREAD_BYTES: usize = 16 * 1024 * 1024;

fn overhead_bytes() -> usize {
    let cores = std::thread::available_parallelism().unwrap();
    (cores.get() + 1) * THREAD_BYTES
}

async fn small() -> (tempfile::TempDir, Running, Server) {
    let directory = directory(&[]);
    let bytes = STATE_BYTES_MAX.to_string();
    let settings = [
        ("UNSTUCK__STORE__DIR", ""),
        ("UNSTUCK__LIMITS__STATE_BYTES_MAX", &*bytes),
    ];
    let running = Running::start(unstuck(directory.path(), &[], &settings));
    let server = running.server().await;
    (directory, running, server)
}

/// The resident memory of the process.
fn resident_bytes(running: &Running) -> usize {
    status_bytes(running, "VmRSS:")
}

/// The most that it ever was.
fn peak_resident_bytes(running: &Running) -> usize {
    status_bytes(running, "VmHWM:")
}

fn status_bytes(running: &Running, name: &str) -> usize {
    let path = format!("/proc/{}/status", running.child.0.id());
    let status = fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() * 1024
}

/// Sends all events; returns how many were accepted and how many refused.
async fn attack(server: &Server, events: impl Iterator<Item = pb::Event>) -> (usize, usize) {
    let mut stream = server.events().await;
    let (mut taken, mut refused) = (0, 0);
    let mut events = events.peekable();
    let mut sequence = 0;
    while events.peek().is_some() {
        sequence += 1;
        let mut bytes = 0;
        let mut some = Vec::new();
        while let Some(event) = events.next_if(|_| some.len() < 256 && bytes < 500_000) {
            bytes += prost::Message::encoded_len(&event);
            some.push(event);
        }
        let answer = stream
            .ask(StreamEventsRequest {
                sequence,
                events: some,
            })
            .await;
        for result in answer.results {
            match result.error {
                None => taken += 1,
                Some(error) => {
                    assert_eq!((error.code, &*error.reason), (8, "STATE_BYTES_MAX"));
                    refused += 1;
                }
            }
        }
    }
    (taken, refused)
}

/// Checks that the process has grown by at most its budget and a fixed overhead.
#[track_caller]
fn assert_bounded(running: &Running, before: usize) {
    let grown = resident_bytes(running).saturating_sub(before);
    let mib = grown / 1024 / 1024;
    assert!(grown < STATE_BYTES_MAX + overhead_bytes(), "by {mib} MiB");
}

#[tokio::test]
async fn sessions_without_end_do_not_fill_the_memory() {
    let (_directory, running, server) = small().await;
    let before = resident_bytes(&running);
    // As long as ids may be: 60,000 of them would be some 150 MB.
    let events = (0..60_000).map(|n| ask("x").of(&format!("{n:0256}")));
    let (taken, refused) = attack(&server, events).await;
    assert!(taken > 1_000 && refused > 30_000, "{taken}, {refused}");
    assert_bounded(&running, before);
    let bytes = server.metric("unstuck_state_bytes").await;
    assert!(bytes <= STATE_BYTES_MAX as f64, "{bytes}");
    let known = format!("{:0256}", 0);
    assert_eq!(server.record(ask("x").of(&known)).await.event_index, 1);
}

#[tokio::test]
async fn sessions_that_grow_without_end_do_not_fill_the_memory() {
    let (_directory, running, server) = small().await;
    let before = resident_bytes(&running);
    // Everything that a session keeps: agents, paths, commands, long texts,
    // ids, loops; in sessions that were there before the memory was short.
    let event = |n: usize| {
        let name = format!("{:0200}", n / 7);
        let event = match n % 7 {
            0 => turn(&format!("{} {name}", "word ".repeat(40))),
            1 => call(
                "read_file",
                &format!("{{\"path\": \"{name}\"}}"),
                &name.repeat(4),
            ),
            2 => call("bash", &format!("{{\"command\": \"make {name}\"}}"), &name),
            _ => ask(&name),
        };
        let agent = format!("{:0200}", n / 400 % 64);
        event
            .of(&format!("s{}", n % 400))
            .by(&agent)
            .id(&format!("{n:0128}"))
    };
    let (taken, refused) = attack(&server, (0..12_000).map(event)).await;
    assert!(taken > 1_000 && refused > 1_000, "{taken}, {refused}");
    assert_bounded(&running, before);
}

#[tokio::test]
async fn texts_without_end_do_not_fill_the_memory() {
    let (_directory, running, server) = small().await;
    let before = resident_bytes(&running);
    // Each streamed text has state, whatever its length.
    let mut stream = server.deltas().await;
    for n in 0..3_000 {
        let session = format!("s{n}");
        let deltas = (0..4).map(|m| piece(&session, &format!("t{m}"), "let me look at it"));
        stream.send(pieces(deltas)).await;
        // The end of a turn is answered, which paces the client.
        let mut answer = stream.ask(pieces([last_delta(&session, "t0", "")])).await;
        while !answer.end_of_turn {
            answer = stream.receive().await;
        }
    }
    assert_bounded(&running, before);
    let refused = server
        .metric("unstuck_rejected_total{reason=\"state_bytes_max\"}")
        .await;
    assert!(refused > 1_000.0, "{refused}");
}

/// A request whose header announces 1 MiB that never comes.
async fn announce(channel: Channel, path: &'static str) {
    let header = Bytes::from_static(&[0, 0, 16, 0, 0]);
    let first = stream::iter([Ok::<_, tonic::Status>(Frame::data(header))]);
    let body = Body::new(StreamBody::new(first.chain(stream::pending())));
    let request = Request::post(format!("http://unstuck{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap();
    let mut channel = channel;
    std::future::poll_fn(|cx| channel.poll_ready(cx))
        .await
        .unwrap();
    let _answer = channel.call(request).await;
    std::future::pending().await
}

#[tokio::test]
async fn an_announced_message_reserves_no_memory() {
    let directory = directory(&[]);
    let settings = [("UNSTUCK__STORE__DIR", "")];
    let running = Running::start(unstuck(directory.path(), &[], &settings));
    let server = running.server().await;
    server.record(ask("x").of("s")).await;
    let before = resident_bytes(&running);
    let mut requests = tokio::task::JoinSet::new();
    for n in 0..16 {
        let channel = connect(running.grpc, |endpoint| endpoint).await;
        let path = if n % 2 == 0 {
            "/unstuck.v1.DetectionService/StreamEvents"
        } else {
            "/unstuck.v1.DetectionService/RecordEvent"
        };
        for _ in 0..64 {
            requests.spawn(announce(channel.clone(), path));
        }
    }
    let streams = "unstuck_streams{rpc=\"StreamEvents\"}";
    server.wait_for_metric(streams, 512.0).await;
    // Each has sent its header by the time that a later request is answered.
    server.record(ask("x").of("s")).await;
    let grown = resident_bytes(&running).saturating_sub(before);
    println!("grown by {} KiB", grown / 1024);
    assert!(grown < 64 * 1024 * 1024, "grown by {grown} bytes");
}

/// Sends large hooks on 64 connections, four on each, and counts the answers by their status.
/// A hook has values, each of which takes much memory, and a long result.
async fn attack_by_hooks(server: &Server) -> BTreeMap<u16, usize> {
    let values = vec![json!({"": 0}); 8_000];
    let body = json!({
        "hook_event_name": "PostToolBatch",
        "session_id": "hooks",
        "tool_calls": [
            {"tool_name": "Read", "tool_input": values, "tool_response": "x".repeat(4_000_000)},
        ],
    });
    let body = Bytes::from(body.to_string());
    let url = format!("http://{}/v1/hooks/claude-code", server.http);
    let send = |_| {
        let (url, body) = (url.clone(), body.clone());
        async move {
            let client = client();
            let mut statuses = Vec::new();
            while statuses.len() < 4 {
                let request = client.post(&url).header("content-type", "application/json");
                // A connection may be closed while the rest of a refused body is sent.
                if let Ok(answer) = request.body(body.clone()).send().await {
                    statuses.push(answer.status().as_u16());
                }
            }
            statuses
        }
    };
    let sent = stream::iter(0..64).map(send).buffer_unordered(64);
    let statuses: Vec<Vec<u16>> = sent.collect().await;
    let mut counts = BTreeMap::new();
    for status in statuses.into_iter().flatten() {
        *counts.entry(status).or_default() += 1;
    }
    counts
}

/// The settings that a container of 512 MiB gets by itself, with all else at its default
/// and a store on disk: attacked with all that fills memory at once, it never has more.
#[tokio::test]
async fn the_defaults_of_a_container_with_512_mib_never_take_more() {
    const MEMORY_BYTES: usize = 512 * 1024 * 1024;
    let directory = directory(&[]);
    let budget = MemoryBudget {
        memory_bytes: MEMORY_BYTES as u64,
    };
    let limits: Vec<(String, String)> = budget
        .limits()
        .map(|(key, value)| {
            let key = format!("UNSTUCK__LIMITS__{}", key.to_uppercase());
            (key, value.to_string())
        })
        .collect();
    let settings: Vec<(&str, &str)> = limits.iter().map(|(k, v)| (&**k, &**v)).collect();
    let running = Running::start(unstuck(directory.path(), &[], &settings));
    let server = running.server().await;
    let ended = server.terminate("ended").await;
    assert!(ended.durable);

    // Sessions beyond what the state has room for, each with a long turn and a loop that is
    // reported; meanwhile 1,024 streams on 16 connections announce 1 MiB each, and 64 agents
    // send hooks of 4 MiB.
    let prose = "It reads the file once more and looks for the cause of it. ";
    let events = (0..60_000).map(|n: usize| {
        let event = match n % 4 {
            0 => turn(&format!("{n} {}", prose.repeat(8))),
            _ => ask("x"),
        };
        event.of(&format!("{:0200}", n / 4))
    });
    let mut requests = tokio::task::JoinSet::new();
    let streams = "unstuck_streams{rpc=\"StreamEvents\"}";
    let hooks = attack_by_hooks(&server);
    let ((taken, refused), hook_statuses, ()) =
        tokio::join!(attack(&server, events), hooks, async {
            server.wait_for_metric(streams, 1.0).await;
            for _ in 0..16 {
                let channel = connect(running.grpc, |endpoint| endpoint).await;
                for _ in 0..64 {
                    let path = "/unstuck.v1.DetectionService/StreamEvents";
                    requests.spawn(announce(channel.clone(), path));
                }
            }
        });
    println!("{taken} events taken, {refused} refused; hooks: {hook_statuses:?}");
    // How many of the hooks found room depends on how they met.
    let hooks_answered = hook_statuses.get(&200).unwrap_or(&0) + hook_statuses[&429];
    assert_eq!(hooks_answered, 256, "{hook_statuses:?}");
    assert!(taken > 10_000 && refused > 1_000, "{taken}, {refused}");

    // It still answers, and what was answered is in force.
    assert_eq!(server.terminate("late").await.session_id, "late");
    let answer = server.record(ask("x").of("ended")).await;
    assert_eq!(verdict(&answer).verdict_id, ended.verdict_id);
    let peak = peak_resident_bytes(&running);
    println!(
        "{} MiB at most, {} MiB now",
        peak >> 20,
        resident_bytes(&running) >> 20
    );
    assert!(peak < MEMORY_BYTES, "{peak} bytes");
    running.stop().await;
}
