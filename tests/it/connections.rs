//! Limits of connections: their number, the time for the first bytes, and the limit on
//! open files.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::{Code, Status, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;
use unstuck::pb::{
    self, EventResult, RecordEventRequest, detection_service_client::DetectionServiceClient,
    session_service_client::SessionServiceClient,
};

use crate::{
    auth::Tokens,
    harness::*,
    lifecycle::{Running, directory, unstuck},
};

/// The HTTP/2 client preface with empty settings.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

async fn connection(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut socket = within(TcpStream::connect(address)).await.unwrap();
    // It may have been closed already.
    let _ = within(socket.write_all(bytes)).await;
    socket
}

/// A connection that the server serves.
async fn served(address: SocketAddr) -> TcpStream {
    let mut socket = connection(address, HELLO).await;
    assert!(is_answered(&mut socket).await);
    socket
}

/// Whether the server sends something before it closes the connection.
async fn is_answered(socket: &mut TcpStream) -> bool {
    let mut first = [0; 9];
    within(socket.read_exact(&mut first)).await.is_ok()
}

/// Waits for the end of the connection.
async fn assert_closed(mut socket: TcpStream) {
    let mut rest = Vec::new();
    // Closed or reset: both are an end.
    let _ = within(socket.read_to_end(&mut rest)).await;
}

fn rejected(reason: &str) -> String {
    format!("unstuck_rejected_total{{reason=\"{reason}\"}}")
}

const OPEN: &str = "unstuck_connections{listener=\"grpc\"}";
const RESERVE: &str = "unstuck_connections{listener=\"grpc_reserve\"}";

/// A broker with its own connection.
async fn broker(server: &Server) -> DetectionServiceClient<Channel> {
    DetectionServiceClient::new(connect(server.grpc, |endpoint| endpoint).await)
}

async fn record(broker: &mut DetectionServiceClient<Channel>) -> Result<EventResult, Status> {
    let request = RecordEventRequest {
        event: Some(ask("x").of("s")),
    };
    let answer = within(broker.record_event(request)).await?;
    Ok(answer.into_inner().result.unwrap())
}

#[track_caller]
fn assert_no_connection(refused: Status, connections_max: usize) {
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let limit = format!("limits.connections_max of {connections_max} connections is reached");
    assert!(refused.message().starts_with(&limit), "{refused}");
    let details = refused.get_error_details();
    assert_eq!(details.error_info().unwrap().reason, "CONNECTIONS_MAX");
    let retry = details.retry_info().unwrap().retry_delay;
    assert_eq!(retry, Some(Duration::from_secs(5)));
}

#[tokio::test]
async fn beyond_connections_max_brokers_get_the_reason_until_a_connection_ends() {
    let server = Server::with("[limits]\nconnections_max = 2").await;
    let second = served(server.grpc).await;
    let mut third = broker(&server).await;
    for _ in 0..2 {
        assert_no_connection(record(&mut third).await.unwrap_err(), 2);
    }
    let stream = third.stream_events(tokio_stream::empty());
    assert_no_connection(within(stream).await.map(drop).unwrap_err(), 2);
    assert_eq!(server.metric(&rejected("connections_max")).await, 1.0);
    assert_eq!(server.metric(OPEN).await, 2.0);
    assert_eq!(server.metric(RESERVE).await, 1.0);
    assert_eq!(server.record(ask("x").of("s")).await.event_index, 0);

    drop(second);
    server.wait_for_metric(OPEN, 1.0).await;
    let mut fourth = broker(&server).await;
    assert_eq!(record(&mut fourth).await.unwrap().event_index, 1);
}

#[tokio::test]
async fn operators_and_probes_get_through_while_brokers_hold_all_connections() {
    let server = Server::with("[limits]\nconnections_max = 8").await;
    server.record(ask("x").of("s")).await;
    // More than the limit and the reserve together.
    let (mut brokers, mut refused) = (Vec::new(), 0);
    for _ in 0..100 {
        let mut broker = broker(&server).await;
        if let Err(status) = record(&mut broker).await {
            assert_no_connection(status, 8);
            refused += 1;
        }
        brokers.push(broker);
    }
    assert_eq!(
        refused,
        100 - 7,
        "one connection is the server's own client"
    );
    assert_eq!(
        server.metric(&rejected("connections_max")).await,
        f64::from(refused)
    );

    let command = |args: &[&str]| {
        let mut command = unstuck(Path::new("."), args, &[]);
        command.env("UNSTUCK_SERVER", server.grpc.to_string());
        tokio::task::spawn_blocking(move || CommandOutput::from(command.output().unwrap()))
    };
    for (args, expected) in [
        (&["health"][..], "serving"),
        (&["sessions"], "1 session:"),
        (&["terminate", "s", "--reason", "x", "--yes"], "terminated"),
    ] {
        let ran = within(command(args)).await.unwrap().ends_with(0);
        assert!(ran.out.contains(expected), "{}{}", ran.out, ran.err);
    }
    for page in ["metrics", "healthz", "readyz"] {
        let answer = within(get(format!("http://{}/{page}", server.http))).await;
        assert!(answer.unwrap().status().is_success(), "{page}");
    }
    drop(brokers);
}

#[tokio::test]
async fn callers_without_a_token_do_not_keep_operators_out() {
    let tokens = Tokens::new(&["operator"]);
    let limits = "[limits]\nconnections_max = 256\n";
    let server = Server::with(&(limits.to_owned() + &tokens.config())).await;
    // One connection is the server's own client.
    let mut idle = Vec::new();
    for _ in 0..255 {
        idle.push(served(server.grpc).await);
    }
    // As many as the reserve has, used for all that needs no token.
    let mut callers = Vec::new();
    for _ in 0..64 {
        let channel = connect(server.grpc, |endpoint| endpoint).await;
        let mut health = HealthClient::new(channel.clone());
        within(health.check(HealthCheckRequest::default()))
            .await
            .unwrap();
        let watch = within(health.watch(HealthCheckRequest::default())).await;
        assert_no_connection(watch.map(drop).unwrap_err(), 256);
        let mut sessions = SessionServiceClient::new(channel);
        let list = sessions.list_sessions(pb::ListSessionsRequest::default());
        let refused = within(list).await.map(drop).unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
        callers.push(sessions);
    }
    for _ in 0..3 {
        let mut command = unstuck(Path::new("."), &["sessions"], &[]);
        command
            .env("UNSTUCK_SERVER", server.grpc.to_string())
            .env("UNSTUCK_TOKEN", tokens.of("operator"));
        let run = move || CommandOutput::from(command.output().unwrap());
        let ran = within(tokio::task::spawn_blocking(run)).await.unwrap();
        ran.ends_with(0);
    }
    drop((idle, callers));
}

#[tokio::test]
async fn brokers_that_reconnect_do_not_close_an_operators_connection() {
    let server = Server::with("[limits]\nconnections_max = 1").await;
    let operator = connect(server.grpc, |endpoint| endpoint).await;
    let mut operator = SessionServiceClient::new(operator);
    let watch = operator.watch_verdicts(pb::WatchVerdictsRequest::default());
    let mut watch = within(watch).await.unwrap().into_inner();
    let mut brokers = Vec::new();
    for _ in 0..70 {
        let mut broker = broker(&server).await;
        assert_no_connection(record(&mut broker).await.unwrap_err(), 1);
        brokers.push(broker);
    }
    server.play("s", ask("x").times(3)).await;
    let verdict = within(watch.message()).await.unwrap().unwrap();
    assert_eq!(verdict.verdict.unwrap().session_id, "s");
}

#[tokio::test]
async fn a_connection_above_the_limit_ends_with_goaway_and_its_open_watch_continues() {
    const GOAWAY: u8 = 7;
    let server = Server::with("[limits]\nconnections_max = 1").await;
    let operator = connect(server.grpc, |endpoint| endpoint).await;
    let mut operator = SessionServiceClient::new(operator);
    let watch = operator.watch_verdicts(pb::WatchVerdictsRequest::default());
    let mut watch = within(watch).await.unwrap().into_inner();

    let mut socket = served(server.grpc).await;
    let mut frames = Vec::new();
    within(socket.read_to_end(&mut frames)).await.unwrap();
    // The rest of the settings, then frames: 3 bytes of length, the kind. The error code
    // of GOAWAY follows the last stream's number.
    let goaway = frames
        .windows(17)
        .find(|frame| frame[..4] == [0, 0, 8, GOAWAY])
        .unwrap_or_else(|| panic!("{frames:?}"));
    assert_eq!(goaway[13..], [0; 4], "NO_ERROR");

    server.play("s", ask("x").times(3)).await;
    let verdict = within(watch.message()).await.unwrap().unwrap();
    assert_eq!(verdict.verdict.unwrap().session_id, "s");
}

/// By the rules of HTTP/2 further streams wait in the client.
#[tokio::test]
async fn the_settings_frame_has_the_stream_limit_of_a_connection() {
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    let server = Server::with("[limits]\nstreams_max = 7").await;
    let mut socket = connection(server.grpc, HELLO).await;
    // A frame has 9 bytes of head: its length, its kind (4: settings), no flags.
    let mut head = [0; 9];
    within(socket.read_exact(&mut head)).await.unwrap();
    let [0, 0, length, 4, 0, ..] = head else {
        panic!("{head:?}")
    };
    let mut settings = vec![0; length.into()];
    within(socket.read_exact(&mut settings)).await.unwrap();
    let stream_limit = settings.chunks(6).find_map(|setting| {
        let (id, value) = setting.split_at(2);
        let id = u16::from_be_bytes(id.try_into().unwrap());
        (id == MAX_CONCURRENT_STREAMS).then(|| u32::from_be_bytes(value.try_into().unwrap()))
    });
    assert_eq!(stream_limit, Some(7));
}

#[tokio::test]
async fn http_connections_have_their_own_limit() {
    let server = Server::with("[limits]\nconnections_max = 1\nhttp_connections_max = 2").await;
    let ask = async || connection(server.http, b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let (mut first, mut second) = (ask().await, ask().await);
    assert!(is_answered(&mut first).await && is_answered(&mut second).await);
    let mut third = ask().await;
    assert!(!is_answered(&mut third).await);
    assert_eq!(
        server
            .record(crate::harness::ask("x").of("s"))
            .await
            .event_index,
        0
    );
}

#[tokio::test]
async fn a_connection_that_sends_nothing_is_closed() {
    let server = Server::with("[limits]\nhandshake_secs_max = 1").await;
    assert_closed(connection(server.grpc, b"").await).await;
    assert_closed(connection(server.grpc, &HELLO[..23]).await).await;
    assert_eq!(server.metric(&rejected("handshake_secs_max")).await, 2.0);
    assert_closed(connection(server.http, b"").await).await;
    assert_eq!(server.metric(&rejected("handshake_secs_max")).await, 3.0);
    // The first bytes are there, the head of the request is not.
    assert_closed(
        connection(
            server.http,
            b"GET /metrics HTTP/1.1\r\nHost: example.com\r\n",
        )
        .await,
    )
    .await;
    assert_eq!(server.record(ask("x").of("s")).await.event_index, 0);
}

#[tokio::test]
async fn an_unfinished_request_closes_its_connection() {
    let server = Server::with("[limits]\nhandshake_secs_max = 1").await;
    let head = "POST /api/me HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 9\r\n\r\n{";
    // Some routes wait for all of it, and others do not.
    let head = head.replace("/api/me", "/api/get_session");
    assert_closed(connection(server.http, head.as_bytes()).await).await;
    assert_eq!(server.metric(&rejected("handshake_secs_max")).await, 1.0);
}

#[tokio::test]
async fn an_http_client_that_reads_nothing_is_disconnected() {
    let server = Server::with("[limits]\nslow_reader_secs_max = 1").await;
    // Answers to more than any buffers hold.
    let ask = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(500);
    let _unread = connection(server.http, &ask).await;
    server
        .wait_for_metric(&rejected("slow_reader_secs_max"), 1.0)
        .await;
}

#[tokio::test]
async fn an_endless_request_head_is_refused() {
    let server = Server::start().await;
    let endless = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}",
        "x".repeat(128 * 1_024)
    );
    let mut socket = connection(server.http, endless.as_bytes()).await;
    let mut answer = Vec::new();
    // It may be reset before the answer is read.
    let _ = within(socket.read_to_end(&mut answer)).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
        "{answer}"
    );
    server
        .wait_for_metric("unstuck_connections{listener=\"http\"}", 1.0)
        .await;
    let refused = "unstuck_rejected_total{reason=\"message_bytes_max\"}";
    server.wait_for_metric(refused, 1.0).await;
}

#[tokio::test]
async fn an_established_connection_may_be_idle() {
    let server = Server::with("[limits]\nhandshake_secs_max = 1").await;
    let mut quiet = loop {
        // On a busy machine the handshake may take longer than a second.
        let mut socket = connection(server.grpc, HELLO).await;
        if is_answered(&mut socket).await {
            break socket;
        }
    };
    // A second passes, in which another connection is closed.
    assert_closed(connection(server.grpc, b"").await).await;
    assert_closed(connection(server.grpc, b"").await).await;
    // A PING; the answer to it is one with the flag ACK.
    let ping = b"\0\0\x08\x06\0\0\0\0\0unstuck!";
    within(quiet.write_all(ping)).await.unwrap();
    let mut bytes = Vec::new();
    within(async {
        while !bytes.ends_with(b"\0\0\x08\x06\x01\0\0\0\0unstuck!") {
            bytes.push(quiet.read_u8().await.unwrap());
        }
    })
    .await;
}

/// The lowest number that the next open file would get.
fn next_file(pid: u32) -> u64 {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let names = files.map(|file| file.unwrap().file_name());
    let open: BTreeSet<u64> = names
        .map(|name| name.to_str().unwrap().parse().unwrap())
        .collect();
    (0..).find(|file| !open.contains(file)).unwrap()
}

#[tokio::test]
async fn without_file_descriptors_the_listener_waits_and_recovers() {
    let directory = directory(&[]);
    let settings = [
        ("UNSTUCK__STORE__DIR", ""),
        // The connection that reads metrics stays open.
        ("UNSTUCK__LIMITS__HANDSHAKE_SECS_MAX", "3600"),
    ];
    let running = Running::start(unstuck(directory.path(), &[], &settings));
    let server = running.server().await;
    server.record(ask("x").of("s")).await;
    unstuck::notify::install_crypto_provider();
    let client = reqwest::Client::new();
    let url = format!("http://{}/metrics", running.http);
    let page = async || {
        let answer = within(client.get(&url).send()).await.unwrap();
        within(answer.text()).await.unwrap()
    };
    let series = format!("{} 0\n", rejected("file_descriptors"));
    assert!(page().await.contains(&series));

    let pid = running.child.0.id();
    let id = Pid::from_raw(pid.try_into().unwrap());
    let lower = Rlimit {
        current: Some(next_file(pid)),
        ..getrlimit(Resource::Nofile)
    };
    let before = prlimit(id, Resource::Nofile, lower).unwrap();
    let mut waiting = connection(running.grpc, HELLO).await;
    within(async { while page().await.contains(&series) {} }).await;
    assert_eq!(server.record(ask("x").of("s")).await.event_index, 1);

    prlimit(id, Resource::Nofile, before).unwrap();
    assert!(is_answered(&mut waiting).await, "it waited for its turn");
}

#[tokio::test]
async fn a_low_limit_on_open_files_lowers_the_connection_limit() {
    let directory = directory(&[]);
    let program = unstuck(directory.path(), &[], &[]);
    // 80 files are 64 of its own, 4 for HTTP, 4 for operators and 8 for brokers.
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg("ulimit -n 80 && exec \"$0\"")
        .arg(program.get_program())
        .current_dir(directory.path())
        .envs([
            ("UNSTUCK__SERVER__GRPC", "127.0.0.1:0"),
            ("UNSTUCK__SERVER__HTTP", "127.0.0.1:0"),
            ("UNSTUCK__STORE__DIR", ""),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let running = Running::start(command);
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(served(running.grpc).await);
    }
    let server = running.server().await;
    assert_no_connection(server.try_record(ask("x").of("s")).await.unwrap_err(), 8);
    let limit = "unstuck_connections_max{listener=\"grpc\"}";
    assert_eq!(server.metric(limit).await, 8.0);
    drop((held, server));
    let (status, log) = running.stop().await;
    assert!(status.success(), "{log}");
    assert!(log.contains("fewer connections than [limits]"), "{log}");
}
