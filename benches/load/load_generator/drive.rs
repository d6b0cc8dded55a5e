//! The load generator. It is open-loop: messages are due by the clock, independent of the
//! server, and latency is measured from the due time. A server that stalls is therefore
//! charged for every message that had to wait.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::{Stream, task::AtomicWaker};
use hdrhistogram::Histogram;
use prost::{Message, bytes::Bytes};
use tokio::task::JoinSet;
use tonic::{
    Request, Status, Streaming,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use unstuck::pb::{EventResult, RecordEventResponse, StreamDeltasResponse, StreamEventsResponse};

use super::{
    mix::{Envelope, Script, Source},
    pacer::Pacer,
    raw::Raw,
};

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A load.
#[derive(Clone)]
pub struct Load {
    pub script: Script,
    pub envelope: Envelope,
    /// Events or deltas per message.
    pub batch: usize,
    /// Streams of one connection, or concurrent unary calls.
    pub streams: usize,
    /// Unanswered messages per stream. Does not apply to deltas.
    pub unanswered_max: usize,
    pub pace: Pace,
    /// How long the first message is overdue when the load begins.
    pub overdue: Duration,
    pub end: End,
    /// Part of the session ids, so that each run has its own.
    pub run: usize,
}

#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// As many messages as the server accepts.
    FlatOut,
    /// Messages per second over all streams.
    Steady(f64),
}

#[derive(Clone, Copy, Debug)]
pub enum End {
    After(Duration),
    /// Messages per stream.
    Messages(u64),
}

/// The result of a load.
pub struct Outcome {
    pub messages: u64,
    pub responses: u64,
    pub elapsed: Duration,
    /// In nanoseconds, from the due time of a message.
    pub latency: Histogram<u64>,
    /// The median of the 99th percentiles of all intervals of [`INTERVAL`]: the value while
    /// the machine does not stall.
    pub typical_p99: u64,
    /// How many of the checked results had a verdict.
    pub verdicts: u64,
    pub checked_results: u64,
}

/// One response in this many is decoded.
const CHECK_INTERVAL: u64 = 64;
/// On a virtual machine that its host stalls for milliseconds every second, a stall
/// spoils one or two intervals, but the 99th percentile of the whole run.
pub const INTERVAL: Duration = Duration::from_millis(50);

pub async fn run(server: SocketAddr, load: &Load) -> Result<Outcome, Failure> {
    let channel = Endpoint::from_shared(format!("http://{server}"))?
        .tcp_nodelay(true)
        .connect()
        .await?;
    let schedule = Schedule::new(load);
    let mut streams = JoinSet::new();
    for stream in 0..load.streams {
        let source = Source::new(
            load.script.clone(),
            load.envelope,
            load.batch,
            load.run,
            stream,
        );
        let counts = ResponseCounts::new(load, schedule.begin);
        let (grpc, schedule) = (Grpc::new(channel.clone()), schedule.of(stream));
        match load.envelope {
            Envelope::RecordEvent => streams.spawn(call(grpc, source, schedule, counts)),
            Envelope::StreamEvents | Envelope::StreamDeltas => {
                let unanswered_max = load.unanswered_max;
                streams.spawn(run_stream(grpc, source, schedule, counts, unanswered_max))
            }
        };
    }
    let mut outcome = ResponseCounts::new(load, schedule.begin);
    while let Some(counts) = streams.join_next().await {
        outcome.add(counts??);
    }
    outcome.outcome(schedule.begin.elapsed())
}

/// The due times of a stream's messages.
#[derive(Clone)]
struct Schedule {
    pacer: Option<Pacer>,
    begin: Instant,
    first: Duration,
    interval: Duration,
    end: End,
    streams: usize,
}

impl Schedule {
    fn new(load: &Load) -> Self {
        let interval = match load.pace {
            Pace::FlatOut => Duration::ZERO,
            Pace::Steady(rate) => Duration::from_secs_f64(load.streams as f64 / rate),
        };
        Self {
            pacer: matches!(load.pace, Pace::Steady(_)).then(Pacer::start),
            begin: Instant::now() - load.overdue,
            first: Duration::ZERO,
            interval,
            end: load.end,
            streams: load.streams,
        }
    }

    /// The streams alternate.
    fn of(&self, stream: usize) -> Self {
        let first = self.interval.mul_f64(stream as f64 / self.streams as f64);
        Self {
            first,
            ..self.clone()
        }
    }

    /// The due time of message `n`; `None`: there are no more.
    fn due(&self, n: u64) -> Option<Instant> {
        let due = match self.pacer {
            None => Instant::now(),
            Some(_) => self.begin + self.first + self.interval.mul_f64(n as f64),
        };
        let goes_on = match self.end {
            End::After(time) => due < self.begin + time,
            End::Messages(messages) => n < messages,
        };
        goes_on.then_some(due)
    }

    fn poll_until(&self, due: Instant, cx: &Context<'_>) -> Poll<()> {
        let wait = |pacer: &Pacer| pacer.poll_until(due, cx);
        self.pacer.as_ref().map_or(Poll::Ready(()), wait)
    }

    async fn until(&self, due: Instant) {
        if let Some(pacer) = &self.pacer {
            pacer.until(due).await;
        }
    }
}

/// Sends unary calls one after the other.
async fn call(
    mut grpc: Grpc<Channel>,
    mut source: Source,
    schedule: Schedule,
    mut counts: ResponseCounts,
) -> Result<ResponseCounts, Failure> {
    let path = path(Envelope::RecordEvent);
    while let Some(due) = schedule.due(counts.messages) {
        schedule.until(due).await;
        counts.messages += 1;
        grpc.ready().await?;
        let request = Request::new(source.message().bytes);
        let response = grpc.unary(request, path.clone(), Raw).await?;
        counts.take(&response.into_inner(), due)?;
    }
    Ok(counts)
}

/// Runs a stream until everything sent is answered.
async fn run_stream(
    mut grpc: Grpc<Channel>,
    source: Source,
    schedule: Schedule,
    mut counts: ResponseCounts,
    unanswered_max: usize,
) -> Result<ResponseCounts, Failure> {
    let path = path(counts.envelope);
    let sent = Arc::new(Sent::default());
    let feed = Feed {
        source,
        schedule,
        unanswered_max,
        sent: sent.clone(),
    };
    grpc.ready().await?;
    let response = grpc.streaming(Request::new(feed), path, Raw).await?;
    let mut responses: Streaming<Bytes> = response.into_inner();
    while let Some(response) = responses.message().await? {
        if counts.is_push(&response)? {
            continue;
        }
        let due = sent.due().pop_front().ok_or("a response too many")?;
        sent.room.wake();
        counts.take(&response, due)?;
    }
    counts.messages = sent.messages.load(Relaxed);
    if !sent.due().is_empty() {
        return Err("the stream ended before all was answered".into());
    }
    Ok(counts)
}

fn path(envelope: Envelope) -> PathAndQuery {
    PathAndQuery::from_static(match envelope {
        Envelope::RecordEvent => "/unstuck.v1.DetectionService/RecordEvent",
        Envelope::StreamEvents => "/unstuck.v1.DetectionService/StreamEvents",
        Envelope::StreamDeltas => "/unstuck.v1.DetectionService/StreamDeltas",
    })
}

/// What a stream has sent, shared with the reader of the answers.
#[derive(Default)]
struct Sent {
    messages: AtomicU64,
    /// The due time of each outstanding response.
    due: Mutex<VecDeque<Instant>>,
    room: AtomicWaker,
}

impl Sent {
    fn due(&self) -> MutexGuard<'_, VecDeque<Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The requests of a stream.
struct Feed {
    source: Source,
    schedule: Schedule,
    unanswered_max: usize,
    sent: Arc<Sent>,
}

impl Stream for Feed {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = self.get_mut();
        let messages = this.sent.messages.load(Relaxed);
        let Some(due) = this.schedule.due(messages) else {
            return Poll::Ready(None);
        };
        if this.schedule.poll_until(due, cx).is_pending() {
            return Poll::Pending;
        }
        let mut waiting = this.sent.due();
        if waiting.len() >= this.unanswered_max {
            // The reader locks before it wakes this task, so no wake is missed.
            this.sent.room.register(cx.waker());
            return Poll::Pending;
        }
        let message = this.source.message();
        waiting.extend((0..message.responses).map(|_| due));
        drop(waiting);
        this.sent.messages.fetch_add(1, Relaxed);
        Poll::Ready(Some(message.bytes))
    }
}

/// The results of one stream.
struct ResponseCounts {
    envelope: Envelope,
    messages: u64,
    responses: u64,
    begin: Instant,
    /// The interval in which each response was due, and its latency in nanoseconds.
    latencies: Vec<(u32, u64)>,
    verdicts: u64,
    checked_results: u64,
}

impl ResponseCounts {
    fn new(load: &Load, begin: Instant) -> Self {
        Self {
            envelope: load.envelope,
            messages: 0,
            responses: 0,
            begin,
            latencies: Vec::new(),
            verdicts: 0,
            checked_results: 0,
        }
    }

    fn take(&mut self, response: &Bytes, due: Instant) -> Result<(), Failure> {
        let nanos = due.elapsed().as_nanos().try_into()?;
        let interval = (due - self.begin).as_nanos() / INTERVAL.as_nanos();
        self.latencies.push((interval.try_into()?, nanos));
        self.responses += 1;
        if self.responses % CHECK_INTERVAL == 1 {
            self.check_response(response)?;
        }
        Ok(())
    }

    /// A verdict in the middle of a text, which answers no final delta.
    fn is_push(&mut self, response: &Bytes) -> Result<bool, Failure> {
        if self.envelope != Envelope::StreamDeltas {
            return Ok(false);
        }
        let response = StreamDeltasResponse::decode(response.clone())?;
        let is_push = !response.end_of_turn;
        self.verdicts += u64::from(response.verdict.is_some());
        self.checked_results += 1;
        Ok(is_push)
    }

    /// Fails on a refusal: refusals are cheap and would falsify the result.
    fn check_response(&mut self, response: &Bytes) -> Result<(), Failure> {
        let response = response.clone();
        match self.envelope {
            Envelope::RecordEvent => {
                let result = RecordEventResponse::decode(response)?.result;
                self.look(&result.ok_or("a response without a result")?)?;
            }
            Envelope::StreamEvents => {
                for result in StreamEventsResponse::decode(response)?.results {
                    self.look(&result)?;
                }
            }
            Envelope::StreamDeltas => {
                let delta = StreamDeltasResponse::decode(response)?;
                fail_on(delta.error.map(|error| error.message))?;
            }
        }
        Ok(())
    }

    fn look(&mut self, result: &EventResult) -> Result<(), Failure> {
        self.verdicts += u64::from(result.verdict.is_some());
        self.checked_results += 1;
        if result.duplicate {
            return Err("an event was treated as a duplicate".into());
        }
        fail_on(result.error.as_ref().map(|error| error.message.clone()))
    }

    fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.responses += other.responses;
        self.latencies.extend(other.latencies);
        self.verdicts += other.verdicts;
        self.checked_results += other.checked_results;
    }

    fn outcome(mut self, elapsed: Duration) -> Result<Outcome, Failure> {
        let (latency, typical_p99) = summarize(&mut self.latencies)?;
        Ok(Outcome {
            messages: self.messages,
            responses: self.responses,
            elapsed,
            latency,
            typical_p99,
            verdicts: self.verdicts,
            checked_results: self.checked_results,
        })
    }
}

/// All latencies, and the 99th percentile of a typical interval.
pub fn summarize(latencies: &mut [(u32, u64)]) -> Result<(Histogram<u64>, u64), Failure> {
    latencies.sort_unstable_by_key(|(interval, _)| *interval);
    let mut all = histogram()?;
    let mut p99s = Vec::new();
    for interval in latencies.chunk_by(|one, next| one.0 == next.0) {
        let mut of_interval = histogram()?;
        for (_, nanos) in interval {
            of_interval.saturating_record(*nanos);
        }
        all.add(&of_interval)?;
        p99s.push(of_interval.value_at_quantile(0.99));
    }
    p99s.sort_unstable();
    let typical = p99s.get(p99s.len() / 2).copied();
    Ok((all, typical.unwrap_or_default()))
}

/// Up to a minute, with three digits.
fn histogram() -> Result<Histogram<u64>, Failure> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

fn fail_on(error: Option<String>) -> Result<(), Failure> {
    error.map_or(Ok(()), |message| {
        Err(Status::internal(format!("an event was refused: {message}")).into())
    })
}
