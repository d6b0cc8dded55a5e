use std::future::{pending, ready};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tonic::transport::{Channel, server::TcpIncoming};

use super::{maintenance::sweep_sessions, *};
use crate::{
    domain::{Labels, SessionId, clock},
    pb::{
        self, detection_service_client::DetectionServiceClient,
        session_service_client::SessionServiceClient,
    },
};

fn tasks_with(task: impl Future<Output = Result<(), RunError>> + Send + 'static) -> ServiceTasks {
    let mut tasks = ServiceTasks::new();
    tasks.spawn(task);
    tasks
}

fn one_hour_from_now() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}

async fn panics() -> Result<(), RunError> {
    panic!("on purpose")
}

#[tokio::test]
async fn a_task_that_panics_stops_the_service_with_an_error() {
    let ended = wait_for_stop(&mut tasks_with(panics()), pending()).await;
    assert!(matches!(ended, Err(RunError::Panicked(_))), "{ended:?}");
    let drained = drain_tasks(tasks_with(panics()), one_hour_from_now()).await;
    assert!(matches!(drained, Err(RunError::Panicked(_))), "{drained:?}");
}

#[tokio::test]
async fn a_requested_shutdown_ends_without_an_error() {
    assert!(
        wait_for_stop(&mut tasks_with(pending()), ready(()))
            .await
            .is_ok()
    );
    assert!(
        drain_tasks(tasks_with(ready(Ok(()))), one_hour_from_now())
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_disk_that_hangs_does_not_delay_shutdown_beyond_the_deadline() {
    let (close_sender, closed) = std::sync::mpsc::channel();
    // The close lasts until the sender of `unblocked` is dropped.
    let close_after = |unblocked: std::sync::mpsc::Receiver<()>| {
        let close_sender = close_sender.clone();
        move || {
            let _ = unblocked.recv();
            close_sender.send(()).unwrap();
        }
    };
    let (block, unblocked) = std::sync::mpsc::channel();
    close_store(close_after(unblocked), Instant::now())
        .await
        .unwrap();
    assert!(closed.try_recv().is_err(), "the close still hangs");
    let (no_block, unblocked) = std::sync::mpsc::channel();
    drop(no_block);
    close_store(close_after(unblocked), one_hour_from_now())
        .await
        .unwrap();
    assert!(closed.try_recv().is_ok());
    drop(block);
}

#[tokio::test]
async fn the_sweeper_stops_when_the_service_drains() {
    let app = App::bind(config()).await.unwrap();
    let draining = app.draining.clone();
    draining.cancel();
    assert!(
        sweep_sessions(app.engine, app.store.expiry_clock(), app.metrics, draining)
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_client_that_does_not_answer_pings_is_disconnected() {
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
    // The HTTP/2 client preface and an empty SETTINGS frame, then silence.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    client.write_all(preface).await.unwrap();
    let mut received = Vec::new();
    let closed = time::timeout(Duration::from_secs(60), client.read_to_end(&mut received)).await;
    closed.expect("the connection stays open").unwrap();
    assert!(!received.is_empty(), "the connection was not accepted");
}

#[tokio::test]
async fn the_sweep_yields_to_other_tasks_and_removes_all_expired_sessions() {
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
    let sweeping = tokio::spawn(sweep_sessions(
        app.engine,
        app.store.expiry_clock(),
        app.metrics,
        draining.clone(),
    ));
    // The runtime has one thread, so this loop runs only when the sweep yields.
    let mut counts = std::collections::BTreeSet::new();
    while engine.live_sessions() > 0 {
        counts.insert(engine.live_sessions());
        task::yield_now().await;
    }
    assert!(counts.len() > 5, "{counts:?}");
    draining.cancel();
    assert!(sweeping.await.unwrap().is_ok());
}

#[tokio::test]
async fn connections_are_refused_until_the_store_has_been_read() {
    let dir = tempfile::tempdir().unwrap();
    let free_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free_port.local_addr().unwrap();
    drop(free_port);
    let config = || {
        let mut config = config();
        config.server.grpc = address;
        config.store.dir = dir.path().to_owned();
        config
    };
    drop(App::bind(config()).await.unwrap());
    // Opening the store blocks on this pipe until the test closes it.
    let withdrawn = dir.path().join("withdrawn");
    let mkfifo = std::process::Command::new("mkfifo")
        .arg(&withdrawn)
        .status();
    assert!(mkfifo.unwrap().success());
    let starting = tokio::spawn(App::bind(config()));
    // A pipe can be opened for writing only once the store has it open for reading.
    let open = move || std::fs::File::options().write(true).open(withdrawn);
    let pipe = task::spawn_blocking(open).await.unwrap().unwrap();
    let refused = TcpStream::connect(address).await.map(drop);
    assert_eq!(
        refused.unwrap_err().kind(),
        io::ErrorKind::ConnectionRefused
    );
    drop(pipe);
    let _app = starting.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_ok());
}

fn config() -> Config {
    crate::testing::config(&[])
}

// A panic behind a real socket. It is tested here because only unit tests can cause one.

/// Starts a service and returns clients of it.
async fn start_service() -> (
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

/// A turn of a user. In unit tests the engine panics on the events of the agent `panics`.
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
async fn a_panic_in_one_session_does_not_affect_others_on_the_stream() {
    let (mut detection, mut sessions) = start_service().await;
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
