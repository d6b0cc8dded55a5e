//! Those who behave badly while the others are served.

use std::{net::SocketAddr, sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::{io::AsyncWriteExt, net::TcpStream, sync::mpsc, time::sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use unstuck::pb::{
    Delta, Event, EventResult, StreamDeltasRequest, StreamEventsRequest,
    detection_service_client::DetectionServiceClient,
};

use crate::{Stop, messages::single, service};

/// How often somebody did what.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mischief {
    pub killed: u64,
    pub slow: u64,
    pub bad: u64,
    /// Events of which nobody knows whether they were taken in.
    pub uncertain: u64,
    /// Events that were sent by those who read their answers,
    pub accepted: u64,
    /// and those for which there was no room.
    pub refused: u64,
}

/// Goes on until it is told to stop.
pub async fn run(service: SocketAddr, stop: Stop) -> Mischief {
    let mut done = Mischief::default();
    while !stop.load(Relaxed) {
        kill_a_connection(service, &mut done).await;
        read_slowly(service, &mut done).await;
        send_nonsense(service, &mut done).await;
        sleep(Duration::from_millis(100)).await;
    }
    done
}

impl Mischief {
    fn count(&mut self, result: &EventResult) {
        match result.error {
            None => self.accepted += 1,
            Some(_) => self.refused += 1,
        }
    }
}

/// Whose events they are.
const SESSION: &str = "of-a-rogue";
/// Requests of a slow reader: more than lie unread in its window.
const SLOWLY: i32 = 50;

type Outbound = mpsc::Sender<StreamEventsRequest>;

fn request(sequence: i32) -> StreamEventsRequest {
    StreamEventsRequest {
        sequence,
        events: vec![single(SESSION)],
    }
}

/// Sends and is gone, in the middle of it.
async fn kill_a_connection(service: SocketAddr, done: &mut Mischief) {
    let mut client = DetectionServiceClient::new(service::connect(service).await);
    let (requests, outbound): (Outbound, _) = mpsc::channel(8);
    for sequence in 1..=8 {
        requests.send(request(sequence)).await.unwrap();
    }
    let answers = client.stream_events(ReceiverStream::new(outbound)).await;
    drop((answers, client));
    done.uncertain += 8;
    done.killed += 1;
    // And one that never says what it speaks.
    let mut mute = TcpStream::connect(service).await.unwrap();
    mute.write_all(b"PRI * HT").await.ok();
}

/// Takes its time over its answers, and then reads all of them.
async fn read_slowly(service: SocketAddr, done: &mut Mischief) {
    let endpoint = Endpoint::from_shared(format!("http://{service}")).unwrap();
    let narrow = endpoint
        .initial_stream_window_size(1_024)
        .connect()
        .await
        .unwrap();
    let mut client = DetectionServiceClient::new(narrow);
    let (requests, outbound): (Outbound, _) = mpsc::channel(SLOWLY as usize);
    let answers = client.stream_events(ReceiverStream::new(outbound)).await;
    let mut answers = answers.unwrap().into_inner();
    for sequence in 1..=SLOWLY {
        requests.send(request(sequence)).await.unwrap();
    }
    drop(requests);
    sleep(Duration::from_millis(300)).await;
    let mut read = 0;
    while let Some(answer) = answers
        .message()
        .await
        .expect("who is slow for so short is not cut")
    {
        read += 1;
        assert_eq!(answer.sequence, read);
        done.count(&answer.results[0]);
    }
    assert_eq!(read, SLOWLY);
    done.slow += 1;
}

/// Sends what breaks the rules: the answer says so, and the next one is served.
async fn send_nonsense(service: SocketAddr, done: &mut Mischief) {
    let mut client = DetectionServiceClient::new(service::connect(service).await);
    let nameless = Event {
        session_id: String::new(),
        ..single(SESSION)
    };
    let empty = Event {
        body: None,
        ..single(SESSION)
    };
    let events = vec![nameless, empty, single(SESSION)];
    let stream = tokio_stream::once(StreamEventsRequest {
        sequence: 1,
        events,
    });
    let mut answers = client.stream_events(stream).await.unwrap().into_inner();
    let results = answers.message().await.unwrap().unwrap().results;
    assert!(results[0].error.is_some() && results[1].error.is_some());
    done.count(&results[2]);

    // Too large, and of no number: each ends its stream with a reason.
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
    done.bad += 4;
}
