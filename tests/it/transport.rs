//! What the transport must bear: many tiny messages, huge ones, and clients
//! that do not read.

use std::{
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{
    Code, Request, Response, Status, Streaming, async_trait,
    transport::{Server as Transport, server::TcpIncoming},
};
use unstuck::{
    app,
    pb::{
        self, StreamEventsRequest, StreamEventsResponse,
        detection_service_client::DetectionServiceClient,
        detection_service_server::{DetectionService, DetectionServiceServer},
    },
};

use crate::harness::*;

// Tiny messages

const STREAMS: usize = 64;
const MESSAGES: i32 = 3_000;

/// Answers every event, but slowly, so that small messages lie unread.
struct Slow;

#[async_trait]
impl DetectionService for Slow {
    async fn record_event(
        &self,
        _: Request<pb::RecordEventRequest>,
    ) -> Result<Response<pb::RecordEventResponse>, Status> {
        Err(Status::unimplemented("only streams"))
    }

    type StreamEventsStream = ReceiverStream<Result<StreamEventsResponse, Status>>;

    async fn stream_events(
        &self,
        request: Request<Streaming<StreamEventsRequest>>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let mut inbound = request.into_inner();
        let (responses, outbound) = mpsc::channel(64);
        tokio::spawn(async move {
            while let Ok(Some(request)) = inbound.message().await {
                // The one sleep in these tests: a reader slower than its client
                // is what the test is about. The windows of all streams fill
                // up, and from then on every message comes in two frames.
                // Nothing is concluded from how long it takes.
                tokio::time::sleep(Duration::from_millis(2)).await;
                let sequence = request.sequence;
                let results = Vec::new();
                let response = StreamEventsResponse { sequence, results };
                if responses.send(Ok(response)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(outbound)))
    }

    type StreamDeltasStream = ReceiverStream<Result<pb::StreamDeltasResponse, Status>>;

    async fn stream_deltas(
        &self,
        _: Request<Streaming<pb::StreamDeltasRequest>>,
    ) -> Result<Response<Self::StreamDeltasStream>, Status> {
        Err(Status::unimplemented("only events"))
    }
}

async fn serve_slowly(mut transport: Transport) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = transport.add_service(DetectionServiceServer::new(Slow));
    tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

/// Requests of 33 bytes on the wire, header included. Every second poll has
/// nothing, or the client would pack many into one frame.
struct Tiny {
    left: i32,
    rests: bool,
}

impl Stream for Tiny {
    type Item = StreamEventsRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.rests = !self.rests;
        if self.rests {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        // From 16,384 on, a number of three bytes.
        let sequence = 20_000 + self.left;
        Poll::Ready(Some(batch(sequence, [turn("").of("a-tiny-session-x")])))
    }
}

/// How many of the messages of all streams on one connection are answered.
async fn answered(address: SocketAddr) -> i32 {
    let channel = connect(address, |endpoint| endpoint).await;
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        let mut client = DetectionServiceClient::new(channel.clone());
        streams.spawn(async move {
            let requests = Tiny {
                left: MESSAGES,
                rests: false,
            };
            let mut answered = 0;
            if let Ok(responses) = client.stream_events(requests).await {
                let mut responses = responses.into_inner();
                while let Ok(Some(_)) = responses.message().await {
                    answered += 1;
                }
            }
            answered
        });
    }
    let each = tokio::time::timeout(4 * DEADLINE, streams.join_all()).await;
    each.expect("an end within the deadline").into_iter().sum()
}

#[test]
fn a_tiny_message_is_tiny() {
    use prost::Message;
    let message = batch(20_000, [turn("").of("a-tiny-session-x")]);
    assert_eq!(5 + message.encoded_len(), 33);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_tiny_message_of_64_streams_is_lost() {
    let limits = config("").app;
    let address = serve_slowly(app::server(&limits)).await;
    assert_eq!(answered(address).await, STREAMS as i32 * MESSAGES);
}

/// Why the settings are there: should this fail one day, they may go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_default_settings_of_the_transport_the_connection_is_lost() {
    let address = serve_slowly(Transport::builder()).await;
    assert!(answered(address).await < STREAMS as i32 * MESSAGES);
}

// Huge messages

fn oversize() -> pb::Event {
    turn(&"x".repeat(1_048_577)).of("s")
}

#[tokio::test]
async fn an_oversize_message_is_refused_and_the_connection_lives() {
    let server = Server::start().await;
    let mut neighbour = server.events().await;
    neighbour.ask(batch(1, [ask("x").of("t")])).await;
    let refused = server.try_record(oversize()).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    assert_eq!(server.record(ask("x").of("s")).await.event_index, 0);
    assert_eq!(
        neighbour.ask(batch(2, [ask("x").of("t")])).await.sequence,
        2
    );
}

#[tokio::test]
async fn an_oversize_message_ends_its_stream_with_the_reason_and_no_other_stream() {
    let server = Server::start().await;
    let mut neighbour = server.events().await;
    let mut events = server.events().await;
    events.ask(batch(1, [ask("x").of("s")])).await;
    events.send(batch(2, [oversize()])).await;
    assert_eq!(events.next().await.unwrap_err().code(), Code::OutOfRange);
    let mut deltas = server.deltas().await;
    deltas
        .send(pieces([piece("s", "", &"x".repeat(1_048_577))]))
        .await;
    assert_eq!(deltas.next().await.unwrap_err().code(), Code::OutOfRange);
    assert_eq!(
        neighbour.ask(batch(1, [ask("x").of("s")])).await.sequence,
        1
    );
}

// Clients that do not read

#[tokio::test]
async fn a_stream_is_read_no_further_while_so_many_responses_are_unread() {
    let server = Server::with("[limits]\nresponses_max = 8").await;
    // With no window at all the transport holds one chunk of responses: those
    // that were ready when it asked, so as many as may be unread.
    let deaf = server.detection_with_window(0).await;
    let stream = events_of(deaf).await;
    let mut watch = server
        .watch(pb::WatchVerdictsRequest::default())
        .await
        .unwrap();
    // Then eight wait in the queue and one for a place in it. The ninth event
    // is a repeat, so that somebody else sees when it was taken.
    let names = ["a", "b", "c", "d", "e", "f", "x", "x", "x"];
    let endless = (10..60).map(|n| format!("later-{n}"));
    for (n, name) in (1..).zip(names.map(str::to_owned).into_iter().chain(endless)) {
        stream.send(batch(n, [ask(&name).of("s")])).await;
    }
    let verdict = within(watch.message())
        .await
        .unwrap()
        .unwrap()
        .verdict
        .unwrap();
    assert_eq!((&*verdict.session_id, verdict.event_index), ("s", 8));
    // Time enough for a server that reads on to take another fifty.
    for _ in 0..500 {
        server.record(turn("").of("t")).await;
    }
    assert!(server.get("s").await.unwrap().events <= 8 + 8 + 1);
}

#[tokio::test]
async fn what_waited_for_a_slow_reader_is_all_there_and_in_order() {
    let server = Server::with("[limits]\nresponses_max = 8").await;
    let mut stream = events_of(server.detection_with_window(64).await).await;
    for n in 1..=60 {
        stream.send(batch(n, [turn("").of("s")])).await;
    }
    for n in 1..=60 {
        let answer = stream.receive().await;
        assert_eq!((answer.sequence, answer.results[0].event_index), (n, n - 1));
    }
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_no_open_stream() {
    let server = Server::start().await;
    let open = "unstuck_streams{rpc=\"StreamEvents\"}";
    let mut left = server.events().await;
    left.ask(batch(1, [ask("x").of("s")])).await;
    assert_eq!(server.metric(open).await, 1.0);
    assert_eq!(left.finish().await, []);
    assert_eq!(server.metric(open).await, 0.0);
}
