//! Health and reflection are services of tonic and have the same limits as ours.

use std::time::Duration;

use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Response, Status, Streaming, async_trait,
    transport::{Channel, server::TcpIncoming},
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_client::HealthClient,
    health_server::{Health, HealthServer},
};
use tonic_reflection::pb::{
    v1::{
        ServerReflectionRequest, ServerReflectionResponse,
        server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest,
    },
    v1alpha,
};
use tonic_types::StatusExt;
use unstuck::{app::App, pb};

use crate::{
    auth::Tokens,
    harness::*,
    lifecycle::{directory, text, unstuck},
};

fn health(channel: &Channel) -> HealthClient<Channel> {
    HealthClient::new(channel.clone())
}

async fn watch(channel: &Channel) -> Result<Streaming<HealthCheckResponse>, Status> {
    let answer = within(health(channel).watch(HealthCheckRequest::default())).await;
    Ok(answer?.into_inner())
}

struct Reflection {
    asks: mpsc::Sender<ServerReflectionRequest>,
    answers: Streaming<ServerReflectionResponse>,
}

impl Reflection {
    async fn open(channel: &Channel) -> Result<Self, Status> {
        let (asks, requests) = mpsc::channel(1);
        let mut client = ServerReflectionClient::new(channel.clone());
        let requests = ReceiverStream::new(requests);
        let answers = within(client.server_reflection_info(requests)).await?;
        let answers = answers.into_inner();
        Ok(Self { asks, answers })
    }

    async fn ask(&mut self, symbol: &str) -> Result<Option<ServerReflectionResponse>, Status> {
        let message = MessageRequest::FileContainingSymbol(symbol.to_owned());
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(message),
        };
        self.asks.send(request).await.unwrap();
        within(self.answers.message()).await
    }
}

#[track_caller]
fn assert_ended(status: &Status, code: Code, reason: &str) {
    let details = status.get_error_details();
    let info = details.error_info().expect(reason);
    assert_eq!((status.code(), &*info.reason), (code, reason), "{status:?}");
}

#[tokio::test]
async fn streams_of_health_and_reflection_end_with_a_reason_when_the_service_drains() {
    let app = App::bind(config("[limits]\ndrain_secs_max = 600"))
        .await
        .unwrap();
    let address = app.grpc_address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let run = tokio::spawn(app.run(async { stopped.await.unwrap() }));
    let channel = connect(address, |endpoint| endpoint).await;
    let mut watch = watch(&channel).await.unwrap();
    let mut reflection = Reflection::open(&channel).await.unwrap();
    let answer = reflection.ask("unstuck.v1.DetectionService").await.unwrap();
    assert!(answer.is_some());
    let mut silent = Reflection::open(&channel).await.unwrap();
    let (_asks, requests) = mpsc::channel::<v1alpha::ServerReflectionRequest>(1);
    let mut older = v1alpha::server_reflection_client::ServerReflectionClient::new(channel.clone());
    let older = within(older.server_reflection_info(ReceiverStream::new(requests))).await;
    let mut older = older.unwrap().into_inner();
    let serving = within(watch.message()).await.unwrap().unwrap();
    assert_eq!(serving.status(), ServingStatus::Serving);

    stop.send(()).unwrap();
    let last = within(watch.message()).await.unwrap().unwrap();
    assert_eq!(last.status(), ServingStatus::NotServing, "before the end");
    for ended in [
        within(watch.message()).await.unwrap_err(),
        within(reflection.answers.message()).await.unwrap_err(),
        within(silent.answers.message()).await.unwrap_err(),
        within(older.message()).await.unwrap_err(),
    ] {
        assert_ended(&ended, Code::Unavailable, "DRAINING");
    }
    // The drain does not wait for its deadline, which is ten times the one here.
    within(run).await.unwrap().unwrap();
}

#[tokio::test]
async fn reflection_takes_a_stream_permit_and_a_health_watch_takes_none() {
    let server = Server::with("[limits]\nopen_streams_max = 1").await;
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    let held = Reflection::open(&channel).await.unwrap();
    let open = |rpc: &str| format!("unstuck_streams{{rpc=\"{rpc}\"}}");
    assert_eq!(server.metric(&open("ServerReflectionInfo")).await, 1.0);
    let refused = Reflection::open(&channel).await.map(drop).unwrap_err();
    assert_exhausted(&refused, "OPEN_STREAMS_MAX");
    let refused = server.watch(pb::WatchVerdictsRequest::default()).await;
    assert_exhausted(&refused.map(drop).unwrap_err(), "OPEN_STREAMS_MAX");

    let watching = watch(&channel).await.unwrap();
    assert_eq!(server.metric(&open("Watch")).await, 1.0);
    let refused = watch(&channel).await.map(drop).unwrap_err();
    assert_exhausted(&refused, "HEALTH_WATCHES_MAX");
    let mut probe = health(&channel);
    within(probe.check(HealthCheckRequest::default()))
        .await
        .unwrap();

    drop((held, watching));
    server.wait_for_metric(&open("Watch"), 0.0).await;
    server
        .wait_for_metric(&open("ServerReflectionInfo"), 0.0)
        .await;
    watch(&channel).await.unwrap();
    server.events().await;
}

#[tokio::test]
async fn one_address_holds_a_quarter_of_the_connections_by_health_watches_and_checks_pass() {
    let server = Server::with("[limits]\nconnections_max = 8").await;
    let here = connect(server.grpc, |endpoint| endpoint).await;
    let held = [watch(&here).await.unwrap(), watch(&here).await.unwrap()];
    let refused = watch(&here).await.map(drop).unwrap_err();
    assert_exhausted(&refused, "HEALTH_WATCHES_MAX");
    let rejected = "unstuck_rejected_total{reason=\"health_watches_max\"}";
    assert_eq!(server.metric(rejected).await, 1.0);
    let checked = within(health(&here).check(HealthCheckRequest::default())).await;
    assert_eq!(
        checked.unwrap().into_inner().status(),
        ServingStatus::Serving
    );
    // Another address has its own share, and the total is half of the connections.
    let other = Some([127, 0, 0, 2].into());
    let there = connect(server.grpc, |endpoint| endpoint.local_address(other)).await;
    let others = [watch(&there).await.unwrap(), watch(&there).await.unwrap()];
    drop(held);
    server
        .wait_for_metric("unstuck_streams{rpc=\"Watch\"}", 2.0)
        .await;
    watch(&here).await.unwrap();
    drop(others);
}

#[tokio::test]
async fn a_health_watch_ends_at_its_age_and_its_client_may_watch_again() {
    let server = Server::with("[limits]\nhealth_watch_secs_max = 1").await;
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    for _ in 0..2 {
        let mut watch = watch(&channel).await.unwrap();
        let serving = within(watch.message()).await.unwrap().unwrap();
        assert_eq!(serving.status(), ServingStatus::Serving);
        let ended = within(watch.message()).await.unwrap_err();
        assert_ended(&ended, Code::Unavailable, "HEALTH_WATCH_SECS_MAX");
    }
    server
        .wait_for_metric("unstuck_streams{rpc=\"Watch\"}", 0.0)
        .await;
}

#[tokio::test]
async fn an_idle_reflection_stream_ends_with_a_reason_and_a_health_watch_continues() {
    let server = Server::with("[limits]\nstream_idle_secs_max = 1").await;
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    let mut watch = watch(&channel).await.unwrap();
    within(watch.message()).await.unwrap().unwrap();
    let mut reflection = Reflection::open(&channel).await.unwrap();
    let ended = within(reflection.answers.message()).await.unwrap_err();
    assert_ended(&ended, Code::Unavailable, "STREAM_IDLE");
    let rejected = "unstuck_rejected_total{reason=\"stream_idle_secs_max\"}";
    assert_eq!(server.metric(rejected).await, 1.0);
    let next = tokio::time::timeout(Duration::from_millis(500), watch.message()).await;
    assert!(next.is_err(), "{next:?}");
}

#[tokio::test]
async fn a_revoked_token_ends_reflection_streams() {
    let mut tokens = Tokens::new(&["broker", "admin"]);
    let server = Server::with(&tokens.config()).await;
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    let mut client = ServerReflectionClient::new(channel);
    let requests = tokio_stream::pending::<ServerReflectionRequest>();
    let answers = within(client.server_reflection_info(tokens.request("broker", requests))).await;
    let mut answers = answers.unwrap().into_inner();
    tokens.remove("broker");
    let ended = within(answers.message()).await.unwrap_err();
    assert_ended(&ended, Code::Unauthenticated, "TOKEN_UNKNOWN");
}

#[tokio::test]
async fn the_messages_of_probes_and_reflection_are_bounded() {
    let server = Server::with("[limits]\nmessage_bytes_max = 10000").await;
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    let service = "x".repeat(1_100);
    let mut probe = health(&channel);
    let refused = within(probe.check(HealthCheckRequest { service })).await;
    assert_eq!(refused.unwrap_err().code(), Code::OutOfRange);
    let rejected = "unstuck_rejected_total{reason=\"message_bytes_max\"}";
    assert_eq!(server.metric(rejected).await, 1.0);

    let mut reflection = Reflection::open(&channel).await.unwrap();
    let unknown = reflection.ask(&"x".repeat(9_000)).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    let mut reflection = Reflection::open(&channel).await.unwrap();
    // The library ends its stream without a status if it cannot read.
    assert_eq!(reflection.ask(&"x".repeat(11_000)).await.unwrap(), None);
}

/// A health service whose text has terminal control codes.
struct HostileHealthService;

#[async_trait]
impl Health for HostileHealthService {
    async fn check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        Err(Status::not_found("no\n\x1b[2J\u{202e}such service"))
    }

    type WatchStream = tokio_stream::Pending<Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(tokio_stream::pending()))
    }
}

#[tokio::test]
async fn the_health_text_of_a_server_cannot_control_the_terminal() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server =
        tonic::transport::Server::builder().add_service(HealthServer::new(HostileHealthService));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let directory = directory(&[]);
    let mut ask = unstuck(directory.path(), &["health", "--server", &address], &[]);
    let output = tokio::task::spawn_blocking(move || ask.output()).await;
    let output = output.unwrap().unwrap();
    assert_eq!(text(&output.stderr), "unstuck: no [2Jsuch service\n");
}
