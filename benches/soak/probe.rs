//! How long a termination takes: to its operator, and to the stream that has
//! carried its session.

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

/// Sessions that are begun at a time, to be terminated one by one.
const AT_A_TIME: usize = 16;
/// Between two of them, so that they are no load of their own.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Default)]
pub struct Latencies {
    pub answered: Vec<Duration>,
    pub pushed: Vec<Duration>,
    /// Events that were sent on the way.
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

/// Terminates a session after another until it is told to stop, on a thread of
/// its own: what the brokers' work costs here must not count for the service.
pub async fn terminate(service: SocketAddr, stop: Stop) -> Latencies {
    let probing = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(terminate_until(service, stop))
    };
    tokio::task::spawn_blocking(probing).await.unwrap()
}

async fn terminate_until(service: SocketAddr, stop: Stop) -> Latencies {
    let mut operator = SessionServiceClient::new(service::connect(service).await);
    let mut broker = DetectionServiceClient::new(service::connect(service).await);
    let (requests, outbound) = mpsc::channel(1);
    let answers = broker.stream_events(ReceiverStream::new(outbound)).await;
    let mut answers = answers.unwrap().into_inner();
    let mut latencies = Latencies::default();
    let mut sequence = 0;
    while !stop.load(Relaxed) {
        sequence += 1;
        let name = || format!("victim-{}", VICTIMS.fetch_add(1, Relaxed));
        let victims: Vec<String> = (0..AT_A_TIME).map(|_| name()).collect();
        let request = StreamEventsRequest {
            sequence,
            events: victims.iter().map(|victim| single(victim)).collect(),
        };
        requests.send(request).await.unwrap();
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(
            (answer.sequence, answer.results.len()),
            (sequence, AT_A_TIME)
        );
        assert!(answer.results.iter().all(|result| result.error.is_none()));
        latencies.accepted += AT_A_TIME as u64;
        for victim in victims {
            if stop.load(Relaxed) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            let (answered, pushed) = terminated(&mut operator, &mut answers, victim).await;
            latencies.answered.push(answered);
            latencies.pushed.push(pushed);
        }
    }
    latencies
}

/// How long it took to its operator, and to the stream.
async fn terminated(
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
