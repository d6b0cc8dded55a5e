//! Measures the latency of a termination: to the operator that requests it, and to
//! the stream that carries the session.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};
use unstuck::pb::{
    Action, StreamEventsRequest, StreamEventsResponse, TerminateSessionRequest,
    detection_service_client::DetectionServiceClient, session_service_client::SessionServiceClient,
};

use crate::{Stop, messages::single, service};

/// Sessions that are opened together and then terminated one by one.
const SESSIONS_PER_BATCH: usize = 16;
/// Between two terminations, so that they add no load.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Default)]
pub struct Latencies {
    pub answered: Vec<Duration>,
    pub pushed: Vec<Duration>,
    /// Events sent to open the sessions.
    pub accepted: u64,
}

impl Latencies {
    pub fn extend(&mut self, other: Self) {
        self.answered.extend(other.answered);
        self.pushed.extend(other.pushed);
        self.accepted += other.accepted;
    }
}

/// Zero if there are no latencies: a stalled machine may terminate nothing in a
/// slice.
pub fn percentile(latencies: &[Duration], share: f64) -> Duration {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// Terminates one session after the other until `stop` is set. Runs on a separate
/// thread, so that the brokers' work is not measured as latency of the service.
pub async fn terminate(service: SocketAddr, stop: Stop) -> Latencies {
    tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(terminate_until(service, stop))
    })
    .await
    .unwrap()
}

async fn terminate_until(service: SocketAddr, stop: Stop) -> Latencies {
    let mut operator = SessionServiceClient::new(service::connect(service).await);
    let mut broker = DetectionServiceClient::new(service::connect(service).await);
    let (requests, outbound) = mpsc::channel(1);
    let response = broker.stream_events(ReceiverStream::new(outbound)).await;
    let mut answers = response.unwrap().into_inner();
    let mut latencies = Latencies::default();
    let mut sequence = 0;
    loop {
        sequence += 1;
        let sessions: Vec<String> = (0..SESSIONS_PER_BATCH)
            .map(|_| format!("terminated-{}", SESSIONS.fetch_add(1, Relaxed)))
            .collect();
        let request = StreamEventsRequest {
            sequence,
            events: sessions.iter().map(|session| single(session)).collect(),
        };
        requests.send(request).await.unwrap();
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(
            (answer.sequence, answer.results.len()),
            (sequence, SESSIONS_PER_BATCH)
        );
        assert!(answer.results.iter().all(|result| result.error.is_none()));
        latencies.accepted += SESSIONS_PER_BATCH as u64;
        for session in sessions {
            tokio::time::sleep(PAUSE).await;
            let (answered, pushed) = terminate_one(&mut operator, &mut answers, session).await;
            latencies.answered.push(answered);
            latencies.pushed.push(pushed);
            // Checked last, so that at least one session is terminated.
            if stop.load(Relaxed) {
                return latencies;
            }
        }
    }
}

/// Returns the latency to the operator, and to the stream.
async fn terminate_one(
    operator: &mut SessionServiceClient<Channel>,
    answers: &mut Streaming<StreamEventsResponse>,
    session_id: String,
) -> (Duration, Duration) {
    let began = Instant::now();
    let request = TerminateSessionRequest {
        session_id: session_id.clone(),
        reason: "soak".to_owned(),
    };
    tokio::join!(
        async {
            let answer = operator.terminate_session(request).await.unwrap();
            let verdict = answer.into_inner().verdict;
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
    )
}
