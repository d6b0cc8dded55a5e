//! Faults injected while the brokers are served: killed connections, slow readers
//! and invalid messages.

use std::{net::SocketAddr, ops::AddAssign, sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::{io::AsyncWriteExt, net::TcpStream, sync::mpsc, time::sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use unstuck::pb::{
    Delta, Event, EventResult, StreamDeltasRequest, StreamEventsRequest,
    detection_service_client::DetectionServiceClient,
};

use crate::{Stop, messages::single, service};

/// How many faults were injected, and what became of their events.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultCounts {
    pub killed: u64,
    pub slow: u64,
    pub bad: u64,
    /// Events whose answer was not read: accepted or not.
    pub uncertain: u64,
    /// Events that were answered without an error.
    pub accepted: u64,
    /// Events that were refused by a limit.
    pub refused: u64,
}

/// Injects each fault at least once, and until `stop` is set.
pub async fn run(service: SocketAddr, stop: Stop) -> FaultCounts {
    let mut counts = FaultCounts::default();
    loop {
        kill_a_connection(service, &mut counts).await;
        read_slowly(service, &mut counts).await;
        send_invalid(service, &mut counts).await;
        if stop.load(Relaxed) {
            return counts;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

impl FaultCounts {
    /// The number of faults of the rarest kind.
    pub fn least(&self) -> u64 {
        self.killed.min(self.slow).min(self.bad)
    }

    fn count(&mut self, result: &EventResult) {
        match result.error {
            None => self.accepted += 1,
            Some(_) => self.refused += 1,
        }
    }
}

impl AddAssign for FaultCounts {
    fn add_assign(&mut self, other: Self) {
        self.killed += other.killed;
        self.slow += other.slow;
        self.bad += other.bad;
        self.uncertain += other.uncertain;
        self.accepted += other.accepted;
        self.refused += other.refused;
    }
}

/// The session of all these events.
const SESSION: &str = "faulty";
/// Requests of a slow reader: their responses exceed its window.
const SLOW_REQUESTS: i32 = 50;

type Requests = mpsc::Sender<StreamEventsRequest>;

fn request(sequence: i32) -> StreamEventsRequest {
    StreamEventsRequest {
        sequence,
        events: vec![single(SESSION)],
    }
}

/// Sends events and disconnects without reading the answers.
async fn kill_a_connection(service: SocketAddr, counts: &mut FaultCounts) {
    let mut client = DetectionServiceClient::new(service::connect(service).await);
    let (requests, outbound): (Requests, _) = mpsc::channel(8);
    for sequence in 1..=8 {
        requests.send(request(sequence)).await.unwrap();
    }
    let answers = client.stream_events(ReceiverStream::new(outbound)).await;
    drop((answers, client));
    counts.uncertain += 8;
    counts.killed += 1;
    // A connection that ends in the middle of the HTTP/2 preface.
    let mut incomplete = TcpStream::connect(service).await.unwrap();
    incomplete.write_all(b"PRI * HT").await.ok();
}

/// Waits before it reads its answers, and then reads all of them.
async fn read_slowly(service: SocketAddr, counts: &mut FaultCounts) {
    let endpoint = Endpoint::from_shared(format!("http://{service}")).unwrap();
    let channel = endpoint
        .initial_stream_window_size(1_024)
        .connect()
        .await
        .unwrap();
    let mut client = DetectionServiceClient::new(channel);
    let (requests, outbound): (Requests, _) = mpsc::channel(SLOW_REQUESTS as usize);
    let response = client.stream_events(ReceiverStream::new(outbound)).await;
    let mut answers = response.unwrap().into_inner();
    for sequence in 1..=SLOW_REQUESTS {
        requests.send(request(sequence)).await.unwrap();
    }
    drop(requests);
    sleep(Duration::from_millis(300)).await;
    let mut read = 0;
    while let Some(answer) = answers
        .message()
        .await
        .expect("a reader that is slow for a moment is not disconnected")
    {
        read += 1;
        assert_eq!(answer.sequence, read);
        counts.count(&answer.results[0]);
    }
    assert_eq!(read, SLOW_REQUESTS);
    counts.slow += 1;
}

/// Sends invalid events and messages. The answer names the error, and the next
/// event is served.
async fn send_invalid(service: SocketAddr, counts: &mut FaultCounts) {
    let mut client = DetectionServiceClient::new(service::connect(service).await);
    let without_session = Event {
        session_id: String::new(),
        ..single(SESSION)
    };
    let without_body = Event {
        body: None,
        ..single(SESSION)
    };
    let events = vec![without_session, without_body, single(SESSION)];
    let stream = tokio_stream::once(StreamEventsRequest {
        sequence: 1,
        events,
    });
    let mut answers = client.stream_events(stream).await.unwrap().into_inner();
    let results = answers.message().await.unwrap().unwrap().results;
    assert!(results[0].error.is_some() && results[1].error.is_some());
    counts.count(&results[2]);

    // A message that is too large and one without a sequence: both end their stream
    // with an error.
    let large = Delta {
        session_id: "large".to_owned(),
        text: "x".repeat(2 << 20),
        ..Default::default()
    };
    let deltas = tokio_stream::once(StreamDeltasRequest {
        deltas: vec![large],
    });
    let mut answers = client.stream_deltas(deltas).await.unwrap().into_inner();
    assert!(answers.message().await.is_err());
    let unnumbered = tokio_stream::once(StreamEventsRequest {
        sequence: 0,
        events: vec![single(SESSION)],
    });
    let mut answers = client.stream_events(unnumbered).await.unwrap().into_inner();
    assert!(answers.message().await.is_err());
    counts.bad += 4;
}
