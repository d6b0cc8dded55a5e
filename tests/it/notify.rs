//! Notifications of verdicts, and what happens when an endpoint does not respond.

use std::{collections::VecDeque, net::SocketAddr, path::Path, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
};
use serde_json::Value;
use standardwebhooks::Webhook;
use tokio::{
    net::TcpListener,
    sync::{Mutex, mpsc},
};

use crate::{
    harness::{Build, Server, call, within},
    lifecycle::{Running, unstuck},
    reload::Service,
};

const SECRET: &str = "whsec_dGhlIHNlY3JldCBvZiB0aGUgdGVzdHM=";

/// A request to a receiver.
pub struct ReceivedRequest {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl ReceivedRequest {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn id(&self) -> &str {
        self.headers["webhook-id"].to_str().unwrap()
    }
}

/// The receiver answers with these statuses in turn, then with success.
#[derive(Clone)]
pub enum Answer {
    Status(u16),
    Never,
}

#[derive(Clone)]
struct ReceiverState {
    got: mpsc::Sender<ReceivedRequest>,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    /// Notifications with this text are always answered with 500.
    poison: &'static str,
}

pub struct Receiver {
    pub address: SocketAddr,
    got: mpsc::Receiver<ReceivedRequest>,
}

impl Receiver {
    pub async fn start(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, answers)
    }

    async fn start_with_poison(poison: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::with_poison(listener, &[], poison)
    }

    fn on(listener: TcpListener, answers: &[Answer]) -> Self {
        Self::with_poison(listener, answers, "no notification has this text")
    }

    fn with_poison(listener: TcpListener, answers: &[Answer], poison: &'static str) -> Self {
        let address = listener.local_addr().unwrap();
        let (sender, got) = mpsc::channel(64);
        let receiver_state = ReceiverState {
            got: sender,
            answers: Arc::new(Mutex::new(answers.iter().cloned().collect())),
            poison,
        };
        let app = Router::new().fallback(receive).with_state(receiver_state);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, got }
    }

    pub async fn next(&mut self) -> ReceivedRequest {
        within(self.got.recv()).await.unwrap()
    }
}

async fn receive(
    State(receiver_state): State<ReceiverState>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let got = ReceivedRequest {
        method,
        uri,
        headers,
        body,
    };
    if String::from_utf8_lossy(&got.body).contains(receiver_state.poison) {
        return StatusCode::INTERNAL_SERVER_ERROR;
    }
    receiver_state.got.send(got).await.unwrap();
    let answer = receiver_state.answers.lock().await.pop_front();
    match answer {
        None => StatusCode::NO_CONTENT,
        Some(Answer::Status(status)) => StatusCode::from_u16(status).unwrap(),
        Some(Answer::Never) => std::future::pending().await,
    }
}

/// An address without a listener. Other tests use 127.0.0.1, so none of them takes
/// it.
async fn unused_address() -> SocketAddr {
    let listener = TcpListener::bind("127.7.7.7:0").await.unwrap();
    listener.local_addr().unwrap()
}

/// An entry for a receiver on this machine that is tried again at once.
pub fn entry(name: &str, address: SocketAddr, more: &str) -> String {
    format!(
        "[[notify]]\nname = '{name}'\nurl = 'http://{address}/hook'\nallow_http = true\n\
         allow_private = true\nretry_millis_min = 1\nretry_millis_max = 20\n{more}\n"
    )
}

#[tokio::test]
async fn a_secret_is_replaced_without_a_restart_and_both_sign_during_the_overlap() {
    const NEW: &str = "whsec_dGhlIG5ldyBzZWNyZXQgb2YgdGhlIHRlc3Rz";
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = [("old", SECRET), ("new", NEW)].map(|(name, secret)| {
        let file = dir.path().join(name);
        std::fs::write(&file, secret).unwrap();
        format!("{{ file = {file:?} }}")
    });
    let mut receiver = Receiver::start(&[]).await;
    let address = receiver.address;
    let secret = |secret: &str| entry("a", address, &format!("secret = {secret}"));
    let steps = [
        (secret(&old), vec![SECRET]),
        (secret(&format!("[{new}, {old}]")), vec![NEW, SECRET]),
        (secret(&new), vec![NEW]),
    ];
    let mut service = Service::start(&steps[0].0).await;
    for (number, (toml, secrets)) in steps.iter().enumerate() {
        if number > 0 {
            service.reload(toml, "applied").await;
        }
        service.server.terminate(&format!("s{number}")).await;
        let got = receiver.next().await;
        let signatures = got.headers["webhook-signature"].to_str().unwrap();
        assert_eq!(signatures.split(' ').count(), secrets.len(), "{signatures}");
        for known in [SECRET, NEW] {
            let verified = Webhook::new(known).unwrap().verify(&got.body, &got.headers);
            assert_eq!(verified.is_ok(), secrets.contains(&known), "step {number}");
        }
    }
    // A secret that cannot be read changes nothing.
    service
        .reload(&secret("{ file = 'nowhere' }"), "refused")
        .await;
}

#[tokio::test]
async fn a_termination_is_sent_as_a_signed_cloud_event() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, format!("{SECRET}\n")).unwrap();
    let mut receiver = Receiver::start(&[]).await;
    let more = format!("secret = {{ file = {secret:?} }}\nheaders = {{ x-team = 'agents' }}");
    let server = Server::with(&entry("a", receiver.address, &more)).await;
    server.open("s", "", &[("team", "payments")]).await.unwrap();
    let verdict = server.terminate("s").await;
    let got = receiver.next().await;
    assert_eq!((got.method.as_str(), got.uri.path()), ("POST", "/hook"));
    assert_eq!(got.headers["content-type"], "application/cloudevents+json");
    assert_eq!(got.headers["x-team"], "agents");
    assert_eq!(got.id(), verdict.verdict_id);
    Webhook::new(SECRET)
        .unwrap()
        .verify(&got.body, &got.headers)
        .unwrap();
    let event = got.json();
    assert_eq!(event["type"], "session.terminated");
    assert_eq!(event["id"], *verdict.verdict_id);
    assert_eq!(event["subject"], "s");
    assert_eq!(event["data"]["verdict"]["action"], "ACTION_TERMINATE");
    assert_eq!(event["data"]["labels"]["team"], "payments");
    assert_eq!(event["data"]["url"], "", "the console's address is unknown");
    let delivered = "unstuck_notifications_total{receiver=\"a\",outcome=\"delivered\"}";
    server.wait_for_metric(delivered, 1.0).await;
}

#[tokio::test]
async fn a_notification_links_to_the_verdict_in_the_console() {
    let mut receiver = Receiver::start(&[]).await;
    let console = "[server]\nconsole_url = 'https://unstuck.example.com'\n";
    let server = Server::with(&(console.to_owned() + &entry("a", receiver.address, ""))).await;
    let id = server.terminate("s").await.verdict_id;
    let url = format!("https://unstuck.example.com/verdict?id={id}");
    assert_eq!(receiver.next().await.json()["data"]["url"], url);
}

#[tokio::test]
async fn a_receiver_that_fails_gets_the_same_notification_again() {
    let fails = [
        Answer::Status(500),
        Answer::Status(503),
        Answer::Status(429),
    ];
    let mut receiver = Receiver::start(&fails).await;
    let server = Server::with(&entry("a", receiver.address, "")).await;
    let verdict = server.terminate("s").await;
    for _ in 0..4 {
        assert_eq!(receiver.next().await.id(), verdict.verdict_id);
    }
    // The next one is different, so the fourth attempt was accepted.
    let other = server.terminate("t").await;
    assert_eq!(receiver.next().await.id(), other.verdict_id);
    let retries = "unstuck_notification_retries_total{receiver=\"a\"}";
    server.wait_for_metric(retries, 3.0).await;
}

#[tokio::test]
async fn a_receiver_that_hung_gets_the_same_notification_again() {
    let mut receiver = Receiver::start(&[Answer::Never, Answer::Never]).await;
    let server = Server::with(&entry("a", receiver.address, "timeout_secs_max = 1")).await;
    let verdict = server.terminate("s").await;
    for _ in 0..3 {
        assert_eq!(receiver.next().await.id(), verdict.verdict_id);
    }
    let delivered = "unstuck_notifications_total{receiver=\"a\",outcome=\"delivered\"}";
    server.wait_for_metric(delivered, 1.0).await;
}

#[tokio::test]
async fn a_receiver_that_was_down_loses_nothing() {
    let address = unused_address().await;
    let server = Server::with(&entry("a", address, "")).await;
    let mut ended = Vec::new();
    for session in ["s", "t", "u"] {
        ended.push(server.terminate(session).await.verdict_id);
    }
    let mut receiver = Receiver::on(TcpListener::bind(address).await.unwrap(), &[]);
    let mut received = Vec::new();
    for _ in 0..3 {
        received.push(receiver.next().await.id().to_owned());
    }
    received.sort();
    assert_eq!(received, ended);
}

#[tokio::test]
async fn a_receiver_that_hangs_does_not_delay_others() {
    let mut hangs = Receiver::start(&vec![Answer::Never; 64]).await;
    let mut listens = Receiver::start(&[]).await;
    let both = entry("a", hangs.address, "") + &entry("b", listens.address, "");
    let server = Server::with(&both).await;
    for session in ["s", "t", "u"] {
        let verdict = server.terminate(session).await;
        assert_eq!(listens.next().await.id(), verdict.verdict_id);
    }
    hangs.next().await;
}

#[tokio::test]
async fn notifications_that_a_receiver_cannot_process_hold_up_no_others() {
    let mut receiver = Receiver::start_with_poison("poison").await;
    let server = Server::with(&entry("a", receiver.address, "")).await;
    for n in 0..20 {
        server.terminate(&format!("poison-{n}")).await;
    }
    let verdict = server.terminate("fine").await;
    assert_eq!(receiver.next().await.id(), verdict.verdict_id);
    // The others are tried again meanwhile.
    let retried = "unstuck_notification_retries_total{receiver=\"a\"}";
    within(async { while server.metric(retried).await < 20.0 {} }).await;
}

#[tokio::test]
async fn one_notification_that_fails_for_ever_holds_up_none_of_hundreds_that_follow() {
    let mut receiver = Receiver::start_with_poison("poison").await;
    let server = Server::with(&entry("a", receiver.address, "")).await;
    server.terminate("poison").await;
    for n in 0..300 {
        let verdict = server.terminate(&format!("fine-{n}")).await;
        assert_eq!(receiver.next().await.id(), verdict.verdict_id);
    }
}

#[tokio::test]
async fn a_termination_is_sent_though_hundreds_of_others_fail() {
    let mut receiver = Receiver::start_with_poison("poison").await;
    let server = Server::with(&entry("a", receiver.address, "")).await;
    for n in 0..300 {
        let calls = call("t", "{}", "x").times(3);
        server.play(&format!("poison-{n}"), calls).await;
    }
    let verdict = server.terminate("fine").await;
    assert_eq!(receiver.next().await.id(), verdict.verdict_id);
}

#[tokio::test]
async fn a_refused_notification_is_not_sent_again() {
    let mut receiver = Receiver::start(&[Answer::Status(404), Answer::Status(302)]).await;
    let server = Server::with(&entry("a", receiver.address, "")).await;
    for session in ["s", "t", "u"] {
        let verdict = server.terminate(session).await;
        assert_eq!(receiver.next().await.id(), verdict.verdict_id);
    }
    let refused = "unstuck_notifications_total{receiver=\"a\",outcome=\"refused\"}";
    server.wait_for_metric(refused, 2.0).await;
}

#[tokio::test]
async fn a_notification_expires() {
    let receiver = Receiver::start(&vec![Answer::Status(500); 10_000]).await;
    let more = "expiry_secs_max = 1\nretry_millis_max = 500";
    let toml = entry("a", receiver.address, "").replace("retry_millis_max = 20", more);
    let server = Server::with(&toml).await;
    server.terminate("s").await;
    let expired = "unstuck_notifications_total{receiver=\"a\",outcome=\"expired\"}";
    server.wait_for_metric(expired, 1.0).await;
}

#[tokio::test]
async fn a_receiver_gets_only_its_configured_actions() {
    let mut strong = Receiver::start(&[]).await;
    let mut labelled = Receiver::start(&[]).await;
    let server = Server::with(
        &(entry("strong", strong.address, "min_action = 'terminate'")
            + &entry("labelled", labelled.address, "labels = { team = 'a' }")),
    )
    .await;
    for (session, team) in [("s", "a"), ("t", "b")] {
        server.open(session, "", &[("team", team)]).await.unwrap();
        server.play(session, call("t", "{}", "x").times(3)).await;
    }
    let warned = labelled.next().await.json();
    assert_eq!(
        (&warned["type"], &warned["subject"]),
        (&"session.warned".into(), &"s".into())
    );
    server.terminate("t").await;
    let ended = strong.next().await.json();
    assert_eq!(
        (&ended["type"], &ended["subject"]),
        (&"session.terminated".into(), &"t".into())
    );
    server.terminate("s").await;
    assert_eq!(labelled.next().await.json()["subject"], "s");
}

#[tokio::test]
async fn a_brokers_own_endpoint_can_be_called() {
    let mut receiver = Receiver::start(&[]).await;
    let more = "method = 'DELETE'\nbody = '{\"why\": {{ summary | tojson }}}'";
    let toml = entry("kill", receiver.address, more);
    let toml = toml.replace("/hook", "/runs/{{ session_id | urlencode }}");
    let server = Server::with(&toml).await;
    server.terminate("team/run-7").await;
    let got = receiver.next().await;
    assert_eq!(
        (got.method.as_str(), got.uri.path()),
        ("DELETE", "/runs/team%2Frun-7")
    );
    let why = got.json()["why"].as_str().unwrap().to_owned();
    assert!(why.starts_with("TERMINATE session team/run-7"), "{why}");
}

#[tokio::test]
async fn a_pending_notification_is_sent_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let address = unused_address().await;
    std::fs::write(dir.path().join("unstuck.toml"), entry("a", address, "")).unwrap();
    let serve = |dir: &Path| Running::start(unstuck(dir, &["serve"], &[]));
    let mut running = serve(dir.path());
    let ended = running.server().await.terminate("s").await;
    running.child.0.kill().unwrap();
    running.child.0.wait().unwrap();
    let mut receiver = Receiver::on(TcpListener::bind(address).await.unwrap(), &[]);
    let running = serve(dir.path());
    assert_eq!(receiver.next().await.id(), ended.verdict_id);
    let next = running.server().await.terminate("t").await;
    assert_eq!(receiver.next().await.id(), next.verdict_id);
}
