//! Too many unary calls and calls that do not end are limited, and other callers are still
//! served.

use tokio::task::JoinHandle;
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_client::HealthClient};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;
use unstuck::pb;

use crate::{auth::Tokens, harness::*};

fn rejected(reason: &str) -> String {
    format!("unstuck_rejected_total{{reason=\"{reason}\"}}")
}

/// A call whose message is never sent; returns its status.
async fn unfinished(server: &Server, token: Option<&str>) -> JoinHandle<Status> {
    let channel: Channel = connect(server.grpc, |endpoint| endpoint).await;
    let mut request = Request::new(tokio_stream::pending::<pb::RecordEventRequest>());
    if let Some(token) = token {
        let header = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", header);
    }
    tokio::spawn(async move {
        let mut client = Grpc::new(channel);
        client.ready().await.unwrap();
        let path = PathAndQuery::from_static("/unstuck.v1.DetectionService/RecordEvent");
        let codec = ProstCodec::<_, pb::RecordEventResponse>::default();
        client.streaming(request, path, codec).await.unwrap_err()
    })
}

/// Waits until no permit is left for another call.
async fn is_full(mut call: impl AsyncFnMut() -> Result<pb::EventResult, Status>) -> Status {
    within(async {
        loop {
            match call().await {
                Ok(_) => tokio::task::yield_now().await,
                Err(status) => return status,
            }
        }
    })
    .await
}

#[tokio::test]
async fn beyond_its_rate_a_callers_events_are_refused_and_its_stream_goes_on() {
    let tokens = Tokens::new(&["broker", "admin"]);
    let limit = "[limits]\nevents_per_second_max = 5\n";
    let server = Server::with(&format!("{limit}{}", tokens.config())).await;
    let (requests, outbound) = tokio::sync::mpsc::channel(4);
    let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
    let stream = tokens.request("broker", outbound);
    let answers = within(server.detection.clone().stream_events(stream)).await;
    let mut answers = answers.unwrap().into_inner();
    let many = (0..100).map(|n| ask(&n.to_string()).of("s"));
    requests.send(batch(1, many)).await.unwrap();
    let results = within(answers.message()).await.unwrap().unwrap().results;
    // One second's worth is accepted at once. Each of the others is refused by itself.
    assert!(results[..5].iter().all(|result| result.error.is_none()));
    let refused: Vec<_> = results.iter().filter_map(|it| it.error.as_ref()).collect();
    assert!(refused.len() > 50, "{}", refused.len());
    for error in &refused {
        assert_eq!(error.code, Code::ResourceExhausted as i32);
        assert_eq!(error.reason, "EVENTS_PER_SECOND_MAX");
        let wait = error.retry_after.as_ref().unwrap();
        assert!(wait.seconds == 0 && wait.nanos > 0, "{wait:?}");
    }
    let counted = server_metric(&server, tokens.of("admin"), "events_per_second_max").await;
    assert_eq!(counted, refused.len());

    // Unary calls of the same token share its rate; other callers have their own.
    let record = |name: &str| {
        let event = Some(ask("x").of("t"));
        let request = tokens.request(name, pb::RecordEventRequest { event });
        let mut detection = server.detection.clone();
        async move { within(detection.record_event(request)).await }
    };
    let refused = is_refused(async || record("broker").await.map(drop)).await;
    assert_exhausted(&refused, "EVENTS_PER_SECOND_MAX");
    let details = refused.get_error_details();
    let wait = details.retry_info().unwrap().retry_delay.unwrap();
    assert!(wait.as_millis() <= 200, "{wait:?}");
    record("admin").await.unwrap();
    // Operators are exempt.
    for _ in 0..20 {
        let message = pb::TerminateSessionRequest {
            session_id: "s".to_owned(),
            reason: "enough".to_owned(),
        };
        let request = tokens.request("admin", message);
        within(server.sessions.clone().terminate_session(request))
            .await
            .unwrap();
    }
    // The stream goes on, and has the termination.
    let push = within(answers.message()).await.unwrap().unwrap();
    assert_eq!(push.results[0].session_id, "s");
}

/// Calls until one is refused.
async fn is_refused(mut call: impl AsyncFnMut() -> Result<(), Status>) -> Status {
    within(async {
        loop {
            if let Err(status) = call().await {
                return status;
            }
        }
    })
    .await
}

/// How many were rejected for this reason, as the metrics page tells with a token.
async fn server_metric(server: &Server, token: &str, reason: &str) -> usize {
    let url = format!("http://{}/metrics", server.http);
    unstuck::notify::install_crypto_provider();
    let page = reqwest::Client::new().get(url).bearer_auth(token).send();
    let page = within(page).await.unwrap().text().await.unwrap();
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(&rejected(reason)));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn beyond_calls_max_another_is_refused_and_operators_get_through() {
    let server = Server::with("[limits]\ncalls_max = 1").await;
    let held = unfinished(&server, None).await;
    let refused = is_full(async || server.try_record(ask("x").of("s")).await).await;
    assert_exhausted(&refused, "CALLS_MAX");
    assert!(server.metric(&rejected("calls_max")).await >= 1.0);
    assert_exhausted(&server.get("s").await.unwrap_err(), "CALLS_MAX");

    let watch = server.watch(pb::WatchVerdictsRequest::default()).await;
    assert_exhausted(&watch.map(drop).unwrap_err(), "CALLS_MAX");

    let ended = server.terminate("s").await;
    assert_eq!(ended.action(), pb::Action::Terminate);
    server.reset("s").await.unwrap();
    server.snooze("s", 1_000).await.unwrap();
    let mut events = server.events().await;
    assert_exhausted(&server.get("s").await.unwrap_err(), "CALLS_MAX");
    let answer = events.ask(batch(1, [ask("x").of("t")])).await;
    assert_eq!(answer.results[0].error, None);

    held.abort();
    within(async { while server.get("s").await.is_err() {} }).await;
}

/// They need no token and hold memory.
#[tokio::test]
async fn unfinished_health_checks_of_an_address_are_bounded() {
    let server = Server::with("[limits]\ncalls_max = 2").await;
    let mut client = Grpc::new(connect(server.grpc, |endpoint| endpoint).await);
    let held = tokio::spawn(async move {
        client.ready().await.unwrap();
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let silent = Request::new(tokio_stream::pending());
        client.client_streaming(silent, path, codec).await.map(drop)
    });
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    let check = async || {
        let mut probe = HealthClient::new(channel.clone());
        within(probe.check(HealthCheckRequest::default()))
            .await
            .map(drop)
    };
    assert_exhausted(&is_refused(check).await, "CALLS_MAX");
    assert_eq!(server.record(ask("x").of("s")).await.event_index, 0);
    held.abort();
    within(async { while check().await.is_err() {} }).await;
}

/// A list that is requested and not read.
async fn unread(channel: Channel) -> Streaming<pb::ListSessionsResponse> {
    let mut client = Grpc::new(channel);
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/unstuck.v1.SessionService/ListSessions");
    let request = Request::new(pb::ListSessionsRequest::default());
    let codec = ProstCodec::default();
    let answer = within(client.server_streaming(request, path, codec)).await;
    answer.unwrap().into_inner()
}

#[tokio::test]
async fn a_large_answer_holds_its_permit_until_it_is_read() {
    const PAGES_MAX: usize = 256;
    let server = Server::start().await;
    server.record(ask("x").of("s")).await;
    // A client that reads its answers is not limited.
    let reads = || {
        let mut sessions = server.sessions.clone();
        async move {
            let listed = sessions.list_sessions(pb::ListSessionsRequest::default());
            within(listed).await.map(drop)
        }
    };
    for _ in 0..2 * PAGES_MAX {
        reads().await.unwrap();
    }
    let mut deaf = Vec::new();
    for _ in 0..PAGES_MAX / 64 {
        // Once a client reads one byte, the transport takes the whole response.
        let one_byte = |endpoint: Endpoint| endpoint.initial_stream_window_size(1);
        let channel = connect(server.grpc, one_byte).await;
        for _ in 0..64 {
            deaf.push(unread(channel.clone()).await);
        }
    }
    assert_exhausted(&reads().await.unwrap_err(), "PAGES_MAX");
    assert_eq!(server.record(ask("y").of("s")).await.event_index, 1);
    drop(deaf);
    within(async { while reads().await.is_err() {} }).await;
}

#[tokio::test]
async fn a_call_that_exceeds_its_deadline_is_ended() {
    let server = Server::with("[limits]\ncalls_max = 1\ncall_secs_max = 5").await;
    let ended = within(unfinished(&server, None).await).await.unwrap();
    let details = ended.get_error_details();
    let reason = &details.error_info().unwrap().reason;
    assert_eq!(
        (ended.code(), &**reason),
        (Code::DeadlineExceeded, "CALL_SECS_MAX")
    );
    assert_eq!(server.metric(&rejected("call_secs_max")).await, 1.0);
    assert_eq!(server.record(ask("x").of("s")).await.event_index, 0);
}

#[tokio::test]
async fn a_tenant_has_its_share_of_calls_and_streams_and_no_more() {
    let tokens = Tokens::new(&["broker@a", "broker@b"]);
    let limits = "[limits]\ncalls_max = 2\nopen_streams_max = 2\n";
    let server = Server::with(&format!("{limits}{}", tokens.config())).await;
    let record = async |of: &str| {
        let event = Some(ask("x").of("s"));
        let request = tokens.request(of, pb::RecordEventRequest { event });
        let answer = within(server.detection.clone().record_event(request)).await?;
        Ok(answer.into_inner().result.unwrap())
    };
    let _held = unfinished(&server, Some(tokens.of("broker@a"))).await;
    let refused = is_full(async || record("broker@a").await).await;
    assert_exhausted(&refused, "CALLS_MAX");
    assert!(refused.message().contains("this tenant's share is 1"));
    assert_eq!(record("broker@b").await.unwrap().event_index, 0);

    let open = async |of: &str| {
        let request = tokens.request(of, tokio_stream::pending());
        within(server.detection.clone().stream_events(request)).await
    };
    let _first = open("broker@a").await.unwrap();
    assert_exhausted(&open("broker@a").await.unwrap_err(), "OPEN_STREAMS_MAX");
    open("broker@b").await.unwrap();
}
