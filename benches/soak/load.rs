//! Brokers, each with a connection of its own, and the account of every event
//! that was offered to them.

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
/// Requests that a broker has unanswered at most; what the service lets a stream
/// or a connection have is four times that.
const UNANSWERED_MAX: usize = 16;
/// Enough to keep the service busy, and a short queue.
const UNANSWERED_BUSY: usize = 6;
/// Whoever calls waits no longer for an answer: one that comes later serves
/// nobody.
const IN_TIME: Duration = Duration::from_secs(1);

const STREAM: &str = "/unstuck.v1.DetectionService/StreamEvents";
const CALL: &str = "/unstuck.v1.DetectionService/RecordEvent";

/// How events are offered.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// As fast as they are answered.
    Busy,
    /// So many times this many a second, by as many times the brokers, whatever
    /// becomes of them.
    Offered(f64, f64),
}

/// What became of the events that were offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub offered: u64,
    pub accepted: u64,
    /// Of those: too late for whoever called.
    pub late: u64,
    /// Answered with an error.
    pub refused: u64,
    /// Not sent: so much is unanswered that a broker lets go of what it has, as
    /// one that fails open does.
    pub held_back: u64,
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Self) {
        self.offered += other.offered;
        self.accepted += other.accepted;
        self.late += other.late;
        self.refused += other.refused;
        self.held_back += other.held_back;
    }
}

/// What a slice of time came to.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub account: Account,
    /// Events a second that were accepted in time,
    pub goodput: f64,
    /// and that were answered at all.
    pub answered: f64,
}

/// All brokers for a while.
pub async fn run(service: SocketAddr, kind: Kind, pace: Pace, how_long: Duration) -> Slice {
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
            Kind::Streams => tasks.spawn(streamer(channel, rate, how_long)),
            Kind::Calls => tasks.spawn(caller(channel, rate, how_long)),
        };
    }
    let mut account = Account::default();
    for one in tasks.join_all().await {
        account += one;
    }
    // Brokers wait for their last answers, which belong to the slice.
    let secs = began.elapsed().as_secs_f64();
    let Account {
        offered,
        accepted,
        late,
        refused,
        held_back,
    } = account;
    assert_eq!(accepted + refused + held_back, offered, "{account:?}");
    Slice {
        account,
        goodput: (accepted - late) as f64 / secs,
        answered: (accepted + refused) as f64 / secs,
    }
}

/// What is due by the clock, in messages of so many events.
struct Clock {
    began: Instant,
    how_long: Duration,
    /// `None`: whatever can be sent.
    rate: Option<f64>,
    events: usize,
    offered: u64,
}

impl Clock {
    fn new(rate: Option<f64>, events: usize, how_long: Duration) -> Self {
        Self {
            began: Instant::now(),
            how_long,
            rate: rate.map(|rate| rate / events as f64),
            events,
            offered: 0,
        }
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() >= self.how_long
    }

    /// Whether another one is to be offered, with so many unanswered.
    fn wants(&self, unanswered: usize) -> bool {
        match self.rate {
            None => unanswered < UNANSWERED_BUSY,
            Some(rate) => (self.offered as f64) < self.began.elapsed().as_secs_f64() * rate,
        }
    }

    /// One is offered. Whether it can be sent.
    fn offer(&mut self, unanswered: usize, account: &mut Account) -> bool {
        self.offered += 1;
        account.offered += self.events as u64;
        let is_sent = unanswered < UNANSWERED_MAX;
        if !is_sent {
            account.held_back += self.events as u64;
        }
        is_sent
    }
}

async fn streamer(channel: Channel, rate: Option<f64>, how_long: Duration) -> Account {
    let (requests, outbound) = mpsc::channel(UNANSWERED_MAX);
    let mut client = Grpc::new(channel);
    client.ready().await.unwrap();
    let stream = Request::new(ReceiverStream::new(outbound));
    let path = PathAndQuery::from_static(STREAM);
    let answers = client.streaming(stream, path, Raw).await;
    let mut answers = answers.expect("a stream is served").into_inner();
    let messages = Messages::batches();
    let mut clock = Clock::new(rate, BATCH, how_long);
    let mut ticks = time::interval(Duration::from_millis(2));
    let mut account = Account::default();
    let mut unanswered = VecDeque::new();
    let mut sequence = 0;
    while !clock.is_over() || !unanswered.is_empty() {
        while !clock.is_over() && clock.wants(unanswered.len()) {
            if clock.offer(unanswered.len(), &mut account) {
                sequence += 1;
                // There is room: no more are unanswered than the channel holds.
                requests.try_send(messages.next(Some(sequence))).unwrap();
                unanswered.push_back(sequence);
            }
        }
        tokio::select! {
            biased;
            answer = answered(&mut answers) => {
                assert_eq!(unanswered.pop_front(), Some(answer.sequence), "in order, each once");
                assert_eq!(answer.results.len(), BATCH);
                let refused = answer.results.iter().filter(|result| result.error.is_some());
                let refused = refused.count() as u64;
                account.refused += refused;
                account.accepted += BATCH as u64 - refused;
            }
            _ = ticks.tick() => {}
        }
    }
    account
}

/// The next answer. A stream that ends is a connection lost.
async fn answered(answers: &mut Streaming<Bytes>) -> StreamEventsResponse {
    loop {
        let next = answers.message().await.expect("the stream is there");
        let answer = StreamEventsResponse::decode(next.expect("the stream goes on")).unwrap();
        if answer.sequence != 0 {
            return answer;
        }
    }
}

async fn caller(channel: Channel, rate: Option<f64>, how_long: Duration) -> Account {
    let messages = Messages::singles();
    let mut clock = Clock::new(rate, 1, how_long);
    let mut ticks = time::interval(Duration::from_millis(2));
    let mut account = Account::default();
    let mut unanswered = FuturesUnordered::new();
    while !clock.is_over() || !unanswered.is_empty() {
        while !clock.is_over() && clock.wants(unanswered.len()) {
            if clock.offer(unanswered.len(), &mut account) {
                unanswered.push(called(channel.clone(), messages.next(None)));
            }
        }
        tokio::select! {
            biased;
            Some((is_accepted, took)) = unanswered.next() => match is_accepted {
                true => {
                    account.accepted += 1;
                    account.late += u64::from(took > IN_TIME);
                }
                false => account.refused += 1,
            },
            _ = ticks.tick() => {}
        }
    }
    account
}

/// Whether a call was accepted, and how long it took. It is refused for want of
/// room, or served; anything else is a connection lost.
async fn called(channel: Channel, message: Bytes) -> (bool, Duration) {
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
