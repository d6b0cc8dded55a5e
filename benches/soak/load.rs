//! Simulated brokers, one connection each. Every offered event is accounted for.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    ops::AddAssign,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use prost::{Message, bytes::Bytes};
use tokio::{sync::mpsc, task::JoinSet, time};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Response, Status, Streaming, client::Grpc, codegen::http::uri::PathAndQuery,
    transport::Channel,
};
use unstuck::pb::{RecordEventResponse, StreamEventsResponse};

use crate::{
    messages::{BATCH, Messages},
    raw::Raw,
    service,
};

/// How brokers send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Batches, on a stream each.
    Streams,
    /// Single calls.
    Calls,
}

const BROKERS: usize = 4;
/// Unanswered requests per broker at most. The service allows a stream or a
/// connection four times that.
const UNANSWERED_MAX: usize = 16;
/// Unanswered requests that keep the service busy with a short queue.
const UNANSWERED_BUSY: usize = 6;
/// A caller waits this long. A later answer does not count as goodput.
const IN_TIME: Duration = Duration::from_secs(1);

const STREAM: &str = "/unstuck.v1.DetectionService/StreamEvents";
const CALL: &str = "/unstuck.v1.DetectionService/RecordEvent";

/// How events are offered.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// As fast as they are answered.
    Busy,
    /// The first number times the second number of events per second, by as many
    /// times the brokers, independent of the answers.
    Offered(f64, f64),
}

/// What became of the events that were offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub offered: u64,
    pub accepted: u64,
    /// Accepted, but later than `IN_TIME`.
    pub late: u64,
    /// Answered with an error.
    pub refused: u64,
    /// Dropped by the broker because too many requests are unanswered, as a broker
    /// that fails open does.
    pub not_sent: u64,
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Self) {
        self.offered += other.offered;
        self.accepted += other.accepted;
        self.late += other.late;
        self.refused += other.refused;
        self.not_sent += other.not_sent;
    }
}

/// The result of one slice of time.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub account: Account,
    /// Events per second that were accepted in time.
    pub goodput: f64,
    /// Events per second that were answered.
    pub answered: f64,
}

/// Runs all brokers for `duration`.
pub async fn run(service: SocketAddr, kind: Kind, pace: Pace, duration: Duration) -> Slice {
    let (brokers, rate) = match pace {
        Pace::Busy => (BROKERS, None),
        Pace::Offered(factor, rate) => {
            let brokers = BROKERS * factor.ceil() as usize;
            (brokers, Some(factor * rate / brokers as f64))
        }
    };
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for _ in 0..brokers {
        let channel = service::connect(service).await;
        match kind {
            Kind::Streams => tasks.spawn(stream_events(channel, rate, duration)),
            Kind::Calls => tasks.spawn(call_repeatedly(channel, rate, duration)),
        };
    }
    let mut account = Account::default();
    for one in tasks.join_all().await {
        account += one;
    }
    // Brokers wait for their last answers; that time belongs to the slice.
    let secs = began.elapsed().as_secs_f64();
    let Account {
        offered,
        accepted,
        late,
        refused,
        not_sent,
    } = account;
    assert_eq!(accepted + refused + not_sent, offered, "{account:?}");
    Slice {
        account,
        goodput: (accepted - late) as f64 / secs,
        answered: (accepted + refused) as f64 / secs,
    }
}

/// Decides when the next message is due.
struct Clock {
    began: Instant,
    duration: Duration,
    /// Messages per second; `None`: as many as are answered.
    rate: Option<f64>,
    events_per_message: usize,
    offered: u64,
}

impl Clock {
    fn new(rate: Option<f64>, events_per_message: usize, duration: Duration) -> Self {
        Self {
            began: Instant::now(),
            duration,
            rate: rate.map(|rate| rate / events_per_message as f64),
            events_per_message,
            offered: 0,
        }
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() >= self.duration
    }

    /// Whether another message is due while `unanswered` requests are open.
    fn is_due(&self, unanswered: usize) -> bool {
        match self.rate {
            None => unanswered < UNANSWERED_BUSY,
            Some(rate) => (self.offered as f64) < self.began.elapsed().as_secs_f64() * rate,
        }
    }

    /// Offers one message. Returns whether it may be sent.
    fn offer(&mut self, unanswered: usize, account: &mut Account) -> bool {
        self.offered += 1;
        account.offered += self.events_per_message as u64;
        let is_sent = unanswered < UNANSWERED_MAX;
        if !is_sent {
            account.not_sent += self.events_per_message as u64;
        }
        is_sent
    }
}

async fn stream_events(channel: Channel, rate: Option<f64>, duration: Duration) -> Account {
    let (requests, outbound) = mpsc::channel(UNANSWERED_MAX);
    let mut client = Grpc::new(channel);
    client.ready().await.unwrap();
    let stream = Request::new(ReceiverStream::new(outbound));
    let path = PathAndQuery::from_static(STREAM);
    let answers = client.streaming(stream, path, Raw).await;
    let mut answers = answers.expect("a stream is served").into_inner();
    let messages = Messages::batches();
    let mut clock = Clock::new(rate, BATCH, duration);
    let mut ticks = time::interval(Duration::from_millis(2));
    let mut account = Account::default();
    let mut unanswered = VecDeque::new();
    let mut sequence = 0;
    while !clock.is_over() || !unanswered.is_empty() {
        while !clock.is_over() && clock.is_due(unanswered.len()) {
            if clock.offer(unanswered.len(), &mut account) {
                sequence += 1;
                // The channel has room for UNANSWERED_MAX messages.
                requests.try_send(messages.next(Some(sequence))).unwrap();
                unanswered.push_back(sequence);
            }
        }
        tokio::select! {
            biased;
            answer = next_answer(&mut answers) => {
                assert_eq!(unanswered.pop_front(), Some(answer.sequence), "in order, each once");
                assert_eq!(answer.results.len(), BATCH);
                let errors = answer.results.iter().filter(|result| result.error.is_some());
                let refused = errors.count() as u64;
                account.refused += refused;
                account.accepted += BATCH as u64 - refused;
            }
            _ = ticks.tick() => {}
        }
    }
    account
}

/// The next answer that is not a pushed termination. Panics if the stream ends.
async fn next_answer(answers: &mut Streaming<Bytes>) -> StreamEventsResponse {
    loop {
        let next = answers.message().await.expect("the stream fails");
        let answer = StreamEventsResponse::decode(next.expect("the stream ends")).unwrap();
        if answer.sequence != 0 {
            return answer;
        }
    }
}

async fn call_repeatedly(channel: Channel, rate: Option<f64>, duration: Duration) -> Account {
    let messages = Messages::singles();
    let mut clock = Clock::new(rate, 1, duration);
    let mut ticks = time::interval(Duration::from_millis(2));
    let mut account = Account::default();
    let mut unanswered = FuturesUnordered::new();
    while !clock.is_over() || !unanswered.is_empty() {
        while !clock.is_over() && clock.is_due(unanswered.len()) {
            if clock.offer(unanswered.len(), &mut account) {
                unanswered.push(call(channel.clone(), messages.next(None)));
            }
        }
        tokio::select! {
            biased;
            Some((is_accepted, latency)) = unanswered.next() => {
                if is_accepted {
                    account.accepted += 1;
                    account.late += u64::from(latency > IN_TIME);
                } else {
                    account.refused += 1;
                }
            }
            _ = ticks.tick() => {}
        }
    }
    account
}

/// Sends one call. Returns whether it was accepted, and its latency. Panics on any
/// error other than a limit that was reached.
async fn call(channel: Channel, message: Bytes) -> (bool, Duration) {
    let began = Instant::now();
    let mut client = Grpc::new(channel);
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static(CALL);
    let answer: Result<Response<Bytes>, Status> =
        client.unary(Request::new(message), path, Raw).await;
    let is_accepted = match answer {
        Ok(answer) => {
            let answer = RecordEventResponse::decode(answer.into_inner()).unwrap();
            assert!(answer.result.unwrap().error.is_none());
            true
        }
        Err(status) => {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
            false
        }
    };
    (is_accepted, began.elapsed())
}
