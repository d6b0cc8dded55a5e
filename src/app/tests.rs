use std::future::{pending, ready};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::transport::{Channel, server::TcpIncoming};

use super::*;
use crate::{
    domain::{Labels, SessionId},
    pb::{
        self, detection_service_client::DetectionServiceClient,
        session_service_client::SessionServiceClient,
    },
};

fn parts(part: impl Future<Output = Result<(), RunError>> + Send + 'static) -> ServiceTasks {
    let mut parts = ServiceTasks::new();
    parts.spawn(part);
    parts
}

fn in_an_hour() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}

async fn panics() -> Result<(), RunError> {
    panic!("on purpose")
}

#[tokio::test]
async fn a_part_that_panics_ends_the_service_with_an_error() {
    let ended = wait_for_stop(&mut parts(panics()), pending()).await;
    assert!(matches!(ended, Err(RunError::Panicked(_))), "{ended:?}");
    let drained = drain_tasks(parts(panics()), in_an_hour()).await;
    assert!(matches!(drained, Err(RunError::Panicked(_))), "{drained:?}");
}

#[tokio::test]
async fn a_service_that_is_asked_to_stop_ends_in_peace() {
    assert!(
        wait_for_stop(&mut parts(pending()), ready(()))
            .await
            .is_ok()
    );
    assert!(
        drain_tasks(parts(ready(Ok(()))), in_an_hour())
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_disk_that_hangs_holds_up_the_end_for_no_longer_than_the_deadline() {
    let (hangs, never) = std::sync::mpsc::channel::<()>();
    let (told, closed) = std::sync::mpsc::channel();
    let close = |never: std::sync::mpsc::Receiver<()>| {
        let told = told.clone();
        move || {
            let _ = never.recv();
            told.send(()).unwrap();
        }
    };
    close_store(close(never), Instant::now()).await.unwrap();
    assert!(closed.try_recv().is_err(), "it hangs still");
    let (ends, at_once) = std::sync::mpsc::channel();
    drop(ends);
    close_store(close(at_once), in_an_hour()).await.unwrap();
    assert!(closed.try_recv().is_ok());
    drop(hangs);
}

#[tokio::test]
async fn the_sweeper_stops_when_the_service_drains() {
    let app = App::bind(config()).await.unwrap();
    let draining = app.draining.clone();
    draining.cancel();
    assert!(
        sweep_sessions(app.engine, app.metrics, draining)
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_client_that_does_not_answer_pings_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let keepalive = server::Keepalive {
        interval: Duration::from_millis(100),
        timeout: Duration::from_millis(100),
    };
    let (_, health) = tonic_health::server::health_reporter();
    let server = server::grpc_server_with(&config().limits, keepalive).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let mut client = TcpStream::connect(address).await.unwrap();
    // What a client of HTTP/2 begins with, settings of nothing, and no more.
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    client.write_all(hello).await.unwrap();
    let mut heard = Vec::new();
    let closed = time::timeout(Duration::from_secs(60), client.read_to_end(&mut heard)).await;
    closed.expect("it is held open").unwrap();
    assert!(!heard.is_empty(), "it was let in");
}

#[tokio::test]
async fn the_sweep_gives_way_to_others_and_still_lets_go_of_all() {
    let app = App::bind(config()).await.unwrap();
    let long_ago = clock::now() - Duration::from_secs(10 * 24 * 60 * 60);
    for n in 0..200 {
        let id = SessionId::parse(&format!("s{n}")).unwrap();
        let opened = app
            .engine
            .open_session(&id, "default", Labels::default(), long_ago);
        assert!(opened.is_ok());
    }
    let (engine, draining) = (app.engine.clone(), app.draining.clone());
    let sweeping = tokio::spawn(sweep_sessions(app.engine, app.metrics, draining.clone()));
    // There is one thread, so this is what has a turn in between.
    let mut left = std::collections::BTreeSet::new();
    while engine.live_sessions() > 0 {
        left.insert(engine.live_sessions());
        task::yield_now().await;
    }
    assert!(left.len() > 5, "{left:?}");
    draining.cancel();
    assert!(sweeping.await.unwrap().is_ok());
}

#[tokio::test]
async fn nobody_can_connect_before_the_store_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let config = || {
        let mut config = config();
        config.server.grpc = address;
        config.store.dir = dir.path().to_owned();
        config
    };
    drop(App::bind(config()).await.unwrap());
    // A part of the store that is not there until somebody writes it.
    let anchor = dir.path().join("anchor");
    let written = std::fs::read(&anchor).unwrap();
    std::fs::remove_file(&anchor).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&anchor).status();
    assert!(made.unwrap().success());
    let starting = tokio::spawn(App::bind(config()));
    let opened = move || std::fs::File::options().write(true).open(anchor);
    // Once it can be written to, the store is being read.
    let mut pipe = task::spawn_blocking(opened).await.unwrap().unwrap();
    let refused = TcpStream::connect(address).await.map(drop);
    assert_eq!(
        refused.unwrap_err().kind(),
        io::ErrorKind::ConnectionRefused
    );
    std::io::Write::write_all(&mut pipe, &written).unwrap();
    drop(pipe);
    let _app = starting.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_ok());
}

fn config() -> Config {
    crate::testing::config(&[])
}

// A panic, over a socket: only here can one be made on purpose.

/// A service on ports of its own, and clients of it.
async fn served() -> (
    DetectionServiceClient<Channel>,
    SessionServiceClient<Channel>,
) {
    let app = App::bind(config()).await.unwrap();
    let address = format!("http://{}", app.grpc_address().unwrap());
    tokio::spawn(app.run(pending()));
    let channel = Channel::from_shared(address).unwrap().connect_lazy();
    (
        DetectionServiceClient::new(channel.clone()),
        SessionServiceClient::new(channel),
    )
}

/// The engine's tests have an agent whose events panic.
fn turn(session: &str, agent: &str) -> pb::Event {
    pb::Event {
        session_id: session.to_owned(),
        agent_id: agent.to_owned(),
        body: Some(pb::event::Body::Turn(pb::Turn {
            role: pb::Role::User.into(),
            text: "hello".to_owned(),
            ..pb::Turn::default()
        })),
        ..pb::Event::default()
    }
}

#[tokio::test]
async fn a_panic_in_one_session_harms_nobody_else_on_the_stream() {
    let (mut detection, mut sessions) = served().await;
    let (requests, outbound) = tokio::sync::mpsc::channel(4);
    let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
    let answers = detection.stream_events(outbound).await.unwrap();
    let mut answers = answers.into_inner();
    let mut ask = async |sequence, events: Vec<pb::Event>| {
        let request = pb::StreamEventsRequest { sequence, events };
        requests.send(request).await.unwrap();
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(answer.sequence, sequence);
        answer.results
    };
    let events = vec![
        turn("a", ""),
        turn("bad", "panics"),
        turn("b", ""),
        turn("bad", ""),
    ];
    let results = ask(1, events).await;
    let indexes: Vec<i32> = results.iter().map(|result| result.event_index).collect();
    assert_eq!(indexes, [0, -1, 0, -1]);
    for result in [&results[1], &results[3]] {
        let error = result.error.as_ref().unwrap();
        let code = tonic::Code::Internal as i32;
        assert_eq!((error.code, &*error.reason), (code, "SESSION_QUARANTINED"));
        assert!(error.message.contains("reference"), "{error:?}");
        assert!(!error.message.contains("agent"), "{error:?}");
    }
    let event = Some(turn("bad", ""));
    let unary = detection
        .record_event(pb::RecordEventRequest { event })
        .await;
    assert_eq!(unary.unwrap_err().code(), tonic::Code::Internal);
    let request = pb::ListSessionsRequest {
        status: pb::SessionStatus::Quarantined.into(),
        ..pb::ListSessionsRequest::default()
    };
    let listed = sessions.list_sessions(request).await.unwrap().into_inner();
    assert_eq!(listed.sessions[0].session_id, "bad");

    let request = pb::ResetSessionRequest {
        session_id: "bad".to_owned(),
        reason: "the bug was read".to_owned(),
    };
    sessions.reset_session(request).await.unwrap();
    let results = ask(2, vec![turn("a", ""), turn("bad", "")]).await;
    let indexes: Vec<i32> = results.iter().map(|result| result.event_index).collect();
    assert_eq!(indexes, [1, 0]);
}
