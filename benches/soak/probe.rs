//! How long a termination takes: to its operator, and to the stream that has
//! carried its session.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use unstuck::pb::{
    Action, StreamEventsRequest, TerminateSessionRequest,
    detection_service_client::DetectionServiceClient, session_service_client::SessionServiceClient,
};

use crate::{
    load::{Source, Stop},
    service::Service,
};

/// Between two of them, so that they are no load of their own.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Default)]
pub struct Latencies {
    pub answered: Vec<Duration>,
    pub pushed: Vec<Duration>,
    /// Events that were sent on the way and taken in.
    pub accepted: u64,
}

impl Latencies {
    pub fn extend(&mut self, other: Self) {
        self.answered.extend(other.answered);
        self.pushed.extend(other.pushed);
        self.accepted += other.accepted;
    }
}

pub fn percentile(of: &[Duration], share: f64) -> Duration {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted[at.clamp(1, sorted.len()) - 1]
}

static VICTIMS: AtomicU64 = AtomicU64::new(0);

/// Terminates a session after another until it is told to stop.
pub async fn terminate(service: &Service, stop: Stop) -> Latencies {
    let mut operator = SessionServiceClient::new(service.connect().await);
    let mut broker = DetectionServiceClient::new(service.connect().await);
    let (requests, outbound) = mpsc::channel(1);
    let answers = broker.stream_events(ReceiverStream::new(outbound)).await;
    let mut answers = answers.unwrap().into_inner();
    let mut source = Source::new();
    let mut latencies = Latencies::default();
    let mut sequence = 0;
    while !stop.load(Relaxed) {
        tokio::time::sleep(PAUSE).await;
        let session_id = format!("victim-{}", VICTIMS.fetch_add(1, Relaxed));
        sequence += 1;
        let mut event = source.next();
        event.session_id.clone_from(&session_id);
        let request = StreamEventsRequest {
            sequence,
            events: vec![event],
        };
        requests.send(request).await.unwrap();
        let answer = answers.message().await.unwrap().unwrap();
        // There may be no room for another session: this one is not carried.
        if answer.results[0].error.is_some() {
            continue;
        }
        latencies.accepted += 1;
        let began = Instant::now();
        let request = TerminateSessionRequest {
            session_id: session_id.clone(),
            reason: "soak".to_owned(),
        };
        let (ended, pushed) = tokio::join!(
            async {
                let verdict = operator
                    .terminate_session(request)
                    .await
                    .unwrap()
                    .into_inner()
                    .verdict;
                assert!(verdict.is_some_and(|verdict| verdict.durable));
                began.elapsed()
            },
            async {
                let push = answers.message().await.unwrap().unwrap();
                let result = &push.results[0];
                assert_eq!((push.sequence, result.action()), (0, Action::Terminate));
                assert_eq!(result.session_id, session_id);
                began.elapsed()
            },
        );
        latencies.answered.push(ended);
        latencies.pushed.push(pushed);
    }
    latencies
}
