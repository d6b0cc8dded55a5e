//! The transport under load: many tiny messages, huge messages, and clients that do not
//! read.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{
    Code, Request, Response, Status, Streaming, async_trait,
    transport::{Channel, Server as Transport, server::TcpIncoming},
};
use unstuck::{
    pb::{
        self, StreamDeltasRequest, StreamDeltasResponse, StreamEventsRequest, StreamEventsResponse,
        detection_service_client::DetectionServiceClient,
        detection_service_server::{DetectionService, DetectionServiceServer},
    },
    server,
};

use crate::harness::*;

// Tiny messages

const STREAMS: usize = 64;
/// Three windows of a stream.
const EVENTS: i32 = 3_000;
/// Two windows of a stream: from the second on, which is open a message at a
/// time, every message comes in two frames.
const DELTAS: i32 = 6_600;

/// The number of messages that each stream has sent, by the number of the stream.
type SentCounts = Arc<[watch::Sender<i32>]>;

/// The metadata with the number of a stream.
const STREAM_NUMBER: &str = "stream-number";

/// Reads nothing until the window of a stream is full, and then only while half of it is
/// unread, or when the client has sent all. From then on the window is open a message at a
/// time, so that messages come in two frames. With more than half of it unread the client
/// may have to wait for an update that h2 sends only after the next read.
struct SlowService(SentCounts);

impl SlowService {
    fn answer<Q, A>(
        &self,
        request: Request<Streaming<Q>>,
        (count, message_bytes): (i32, u32),
        answer: fn(Q) -> A,
    ) -> Response<ReceiverStream<Result<A, Status>>>
    where
        Q: Send + 'static,
        A: Send + 'static,
    {
        let number = request
            .metadata()
            .get(STREAM_NUMBER)
            .unwrap()
            .to_str()
            .unwrap();
        let mut sent = self.0[number.parse::<usize>().unwrap()].subscribe();
        let window = (server::STREAM_WINDOW_BYTES / message_bytes) as i32;
        let mut inbound = request.into_inner();
        let (responses, outbound) = mpsc::channel(64);
        tokio::spawn(async move {
            for read in 0.. {
                let unread_min = if read == 0 { window } else { window / 2 };
                let sent_min = count.min(read + unread_min);
                sent.wait_for(|sent| *sent >= sent_min).await.unwrap();
                let Ok(Some(request)) = inbound.message().await else {
                    return;
                };
                if responses.send(Ok(answer(request))).await.is_err() {
                    return;
                }
            }
        });
        Response::new(ReceiverStream::new(outbound))
    }
}

#[async_trait]
impl DetectionService for SlowService {
    async fn check_call(
        &self,
        _request: Request<pb::CheckCallRequest>,
    ) -> Result<Response<pb::CheckCallResponse>, Status> {
        Err(Status::unimplemented("only streams"))
    }

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
        Ok(self.answer(request, (EVENTS, EVENT_BYTES), |request| {
            let sequence = request.sequence;
            let results = Vec::new();
            StreamEventsResponse { sequence, results }
        }))
    }

    type StreamDeltasStream = ReceiverStream<Result<StreamDeltasResponse, Status>>;

    async fn stream_deltas(
        &self,
        request: Request<Streaming<StreamDeltasRequest>>,
    ) -> Result<Response<Self::StreamDeltasStream>, Status> {
        Ok(
            self.answer(request, (DELTAS, server::MESSAGE_BYTES_MIN), |_| {
                StreamDeltasResponse::default()
            }),
        )
    }
}

async fn serve_slowly(mut transport: Transport, sent: SentCounts) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = transport.add_service(DetectionServiceServer::new(SlowService(sent)));
    tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

/// An event on the wire, header included.
const EVENT_BYTES: u32 = 33;

fn tiny_event(n: i32) -> StreamEventsRequest {
    // From 16,384 on, a number of three bytes.
    batch(20_000 + n, [turn("").of("a-tiny-session-x")])
}

/// The smallest that is valid.
fn tiny_delta(_: i32) -> StreamDeltasRequest {
    pieces([piece("s", "", "")])
}

/// Every second poll has nothing, or the client would pack many messages into
/// one frame.
struct TinyMessages<T> {
    message: fn(i32) -> T,
    left: i32,
    is_paused: bool,
    number: usize,
    sent: SentCounts,
}

impl<T> TinyMessages<T> {
    fn request(message: fn(i32) -> T, count: i32, (number, sent): Numbered) -> Request<Self> {
        let mut request = Request::new(Self {
            message,
            left: count,
            is_paused: false,
            number,
            sent,
        });
        request.metadata_mut().insert(STREAM_NUMBER, number.into());
        request
    }
}

impl<T> Stream for TinyMessages<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.is_paused = !self.is_paused;
        if self.is_paused {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.sent[self.number].send_modify(|sent| *sent += 1);
        Poll::Ready(Some((self.message)(self.left)))
    }
}

type Client = DetectionServiceClient<Channel>;

/// The number of a stream, and the counts of all.
type Numbered = (usize, SentCounts);

async fn events_answered(mut client: Client, stream: Numbered) -> i32 {
    let request = TinyMessages::request(tiny_event, EVENTS, stream);
    count(client.stream_events(request).await).await
}

async fn deltas_answered(mut client: Client, stream: Numbered) -> i32 {
    let request = TinyMessages::request(tiny_delta, DELTAS, stream);
    count(client.stream_deltas(request).await).await
}

async fn count<A>(responses: Result<Response<Streaming<A>>, Status>) -> i32 {
    let mut answered = 0;
    if let Ok(responses) = responses {
        let mut responses = responses.into_inner();
        // The timeout is per message, because the whole may take long on a busy machine.
        while let Ok(Some(_)) = within(responses.message()).await {
            answered += 1;
        }
    }
    answered
}

/// How many of the messages of all streams on one connection are answered.
async fn answered<F>(transport: Transport, one: fn(Client, Numbered) -> F) -> i32
where
    F: Future<Output = i32> + Send + 'static,
{
    let sent: SentCounts = (0..STREAMS).map(|_| watch::Sender::new(0)).collect();
    let address = serve_slowly(transport, sent.clone()).await;
    let channel = connect(address, |endpoint| endpoint).await;
    let mut streams = JoinSet::new();
    for number in 0..STREAMS {
        let client = DetectionServiceClient::new(channel.clone());
        streams.spawn(one(client, (number, sent.clone())));
    }
    streams.join_all().await.into_iter().sum()
}

#[test]
fn a_tiny_message_has_the_expected_size() {
    use prost::Message;
    assert_eq!(5 + tiny_event(0).encoded_len(), EVENT_BYTES as usize);
    let smallest = server::MESSAGE_BYTES_MIN as usize;
    assert_eq!(5 + tiny_delta(0).encoded_len(), smallest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_tiny_message_of_64_streams_is_lost() {
    let transport = server::grpc_server(&config("").limits);
    let answered = answered(transport, events_answered).await;
    assert_eq!(answered, STREAMS as i32 * EVENTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_delta_of_64_streams_is_lost_however_small() {
    let transport = server::grpc_server(&config("").limits);
    let answered = answered(transport, deltas_answered).await;
    assert_eq!(answered, STREAMS as i32 * DELTAS);
}

/// The reason for the settings: if this test fails one day, they can be removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_default_settings_of_the_transport_the_connection_is_lost() {
    let answered = answered(Transport::builder(), events_answered).await;
    assert!(answered < STREAMS as i32 * EVENTS);
}

// Huge messages

const OVERSIZE: &str = "unstuck_rejected_total{reason=\"message_bytes_max\"}";

fn oversize() -> pb::Event {
    turn(&"x".repeat(1_048_577)).of("s")
}

#[tokio::test]
async fn an_oversize_message_is_refused_and_the_connection_stays_open() {
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
    assert_eq!(server.metric(OVERSIZE).await, 1.0);
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
    assert_eq!(server.metric(OVERSIZE).await, 2.0);
    assert_eq!(
        neighbour.ask(batch(1, [ask("x").of("s")])).await.sequence,
        1
    );
}

// Clients that do not read

#[tokio::test]
async fn a_stream_is_not_read_while_its_response_queue_is_full() {
    let server = Server::with("[limits]\nunread_responses_max = 8").await;
    // With no window at all the transport holds one chunk of responses: those
    // that were ready when it polled, so as many as may be unread.
    let deaf = server.detection_with_window(0).await;
    let stream = events_of(deaf).await;
    let mut watch = server
        .watch(pb::WatchVerdictsRequest::default())
        .await
        .unwrap();
    // Then eight wait in the queue and one for room in it. The ninth event is a
    // repeat, so that a watcher sees when it was recorded.
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
async fn a_slow_reader_gets_all_queued_responses_in_order() {
    let server = Server::with("[limits]\nunread_responses_max = 8").await;
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
async fn a_disconnected_client_leaves_no_open_stream() {
    let server = Server::start().await;
    let open = "unstuck_streams{rpc=\"StreamEvents\"}";
    let mut left = server.events().await;
    left.ask(batch(1, [ask("x").of("s")])).await;
    assert_eq!(server.metric(open).await, 1.0);
    assert_eq!(left.finish().await, []);
    assert_eq!(server.metric(open).await, 0.0);
}
