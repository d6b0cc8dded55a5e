//! The memory of the real process under attack, as the operating system reports it.

use std::fs;

use futures_util::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use tonic::{
    body::Body,
    codegen::{Bytes, Service, http::Request},
    transport::Channel,
};
use unstuck::pb::{self, StreamEventsRequest};

use crate::{
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
    let path = format!("/proc/{}/status", running.child.0.id());
    let status = fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
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
