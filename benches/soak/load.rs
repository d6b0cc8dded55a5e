//! Brokers, each with a connection and a stream of its own, and the account of
//! every event that was offered to them.

use std::{
    collections::VecDeque,
    ops::AddAssign,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::JoinSet, time};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use unstuck::pb::{
    self, Event, StreamEventsRequest, StreamEventsResponse,
    detection_service_client::DetectionServiceClient, event::Body, tool_call::Arguments,
};

use crate::service::Service;

pub const BROKERS: usize = 6;
/// Events in a request, and requests that a broker has unanswered at most: what
/// the service lets a stream have.
const BATCH: usize = 8;
const UNANSWERED_MAX: usize = 64;
/// Enough to keep the service busy, and no queue to speak of.
const UNANSWERED_BUSY: usize = 4;
const SESSIONS: u64 = 20;
/// A long result is work for the service and none for its client.
const RESULT_BYTES: usize = 4_000;

/// How a broker offers events.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// As fast as they are answered.
    Busy,
    /// So many a second, whatever becomes of them.
    Offered(f64),
}

/// What became of the events that were offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub offered: u64,
    pub accepted: u64,
    /// Answered with an error.
    pub refused: u64,
    /// Not sent: the service reads no further while so much is unanswered.
    pub held_back: u64,
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Self) {
        self.offered += other.offered;
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.held_back += other.held_back;
    }
}

/// What a slice of time came to.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub account: Account,
    /// Accepted events a second.
    pub goodput: f64,
}

/// All brokers for a while.
pub async fn run(service: &Service, pace: Pace, how_long: Duration) -> Slice {
    let began = Instant::now();
    let mut brokers = JoinSet::new();
    for _ in 0..BROKERS {
        let client = DetectionServiceClient::new(service.connect().await);
        let pace = match pace {
            Pace::Busy => Pace::Busy,
            Pace::Offered(rate) => Pace::Offered(rate / BROKERS as f64),
        };
        brokers.spawn(broker(client, pace, how_long));
    }
    let mut account = Account::default();
    while let Some(one) = brokers.join_next().await {
        account += one.unwrap();
    }
    // Brokers wait for their last answers, which belong to the slice.
    let goodput = account.accepted as f64 / began.elapsed().as_secs_f64();
    let Account {
        offered,
        accepted,
        refused,
        held_back,
    } = account;
    assert_eq!(accepted + refused + held_back, offered, "{account:?}");
    Slice { account, goodput }
}

type Client = DetectionServiceClient<tonic::transport::Channel>;

async fn broker(mut client: Client, pace: Pace, how_long: Duration) -> Account {
    let (requests, outbound) = mpsc::channel(UNANSWERED_MAX);
    let answers = client.stream_events(ReceiverStream::new(outbound)).await;
    let mut broker = Broker {
        requests,
        answers: answers.expect("a stream is served").into_inner(),
        unanswered: VecDeque::new(),
        sequence: 0,
        account: Account::default(),
        source: Source::new(),
    };
    let began = Instant::now();
    let mut ticks = time::interval(Duration::from_millis(2));
    while began.elapsed() < how_long {
        if let Pace::Busy = pace {
            while broker.unanswered.len() < UNANSWERED_BUSY {
                broker.offer();
            }
            broker.answer().await;
            continue;
        }
        tokio::select! {
            biased;
            () = broker.answer(), if !broker.unanswered.is_empty() => {}
            _ = ticks.tick() => {}
        }
        if let Pace::Offered(rate) = pace {
            let due = (began.elapsed().as_secs_f64() * rate) as u64;
            while broker.account.offered < due {
                broker.offer();
            }
        }
    }
    while !broker.unanswered.is_empty() {
        broker.answer().await;
    }
    broker.account
}

struct Broker {
    requests: mpsc::Sender<StreamEventsRequest>,
    answers: Streaming<StreamEventsResponse>,
    /// The sequences that have no answer yet, and how many events each has.
    unanswered: VecDeque<(i32, usize)>,
    sequence: i32,
    account: Account,
    source: Source,
}

impl Broker {
    /// Offers a batch: it is sent, or held back and lost to the detectors, as
    /// from a broker that fails open.
    fn offer(&mut self) {
        self.account.offered += BATCH as u64;
        if self.unanswered.len() >= UNANSWERED_MAX {
            self.account.held_back += BATCH as u64;
            return;
        }
        self.sequence += 1;
        let events = (0..BATCH).map(|_| self.source.next()).collect();
        let request = StreamEventsRequest {
            sequence: self.sequence,
            events,
        };
        // There is room: no more are unanswered than the channel holds.
        self.requests
            .try_send(request)
            .expect("the stream is there");
        self.unanswered.push_back((self.sequence, BATCH));
    }

    /// The next answer. A stream that ends is a connection lost.
    async fn answer(&mut self) {
        let next = self.answers.message().await;
        let answer = next
            .expect("the stream is there")
            .expect("the stream goes on");
        if answer.sequence == 0 {
            return;
        }
        let expected = self.unanswered.pop_front();
        assert_eq!(
            expected,
            Some((answer.sequence, answer.results.len())),
            "in order, each once"
        );
        for result in answer.results {
            match result.error {
                None => self.account.accepted += 1,
                Some(_) => self.account.refused += 1,
            }
        }
    }
}

/// Events that are no loop: every call is another and has another result.
pub struct Source {
    name: u64,
    next: u64,
    result: String,
}

static SOURCES: AtomicU64 = AtomicU64::new(0);

impl Source {
    pub fn new() -> Self {
        Self {
            name: SOURCES.fetch_add(1, Relaxed),
            next: 0,
            result: "all of these lines were read and none of them was found wanting\n"
                .repeat(RESULT_BYTES / 64),
        }
    }

    pub fn next(&mut self) -> Event {
        self.next += 1;
        let Self { name, next, result } = self;
        // One event in four is the first of another session, for which there is
        // room or not.
        let session = match *next % 4 {
            0 => format!("visitor-{name}-{next}"),
            _ => format!("session-{name}-{}", *next % SESSIONS),
        };
        let word = word(*next);
        Event {
            session_id: session,
            event_id: format!("e{next}"),
            body: Some(Body::ToolCall(pb::ToolCall {
                tool: "lookup_setting".to_owned(),
                arguments: Some(Arguments::ArgsJson(format!("{{\"name\": \"{word}\"}}"))),
                outcome: pb::Outcome::Ok.into(),
                result: Some(format!("{word} {result}")),
                ..Default::default()
            })),
            ..Default::default()
        }
    }
}

/// A word for a number, in letters: digits would be masked.
fn word(mut n: u64) -> String {
    let mut word = String::new();
    loop {
        word.push(char::from(b'g' + (n % 20) as u8));
        n /= 20;
        if n == 0 {
            return word;
        }
    }
}

/// Set when those that run beside the brokers are to end.
pub type Stop = Arc<AtomicBool>;
