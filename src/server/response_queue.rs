//! The queue of responses that a stream's client has not read.
//!
//! The queue is bounded by count and bytes. A task that finds it full stops reading
//! requests (backpressure). If a client reads nothing for `slow_reader_timeout` while the
//! queue is full, its stream ends with SLOW_READER after its terminations; every response
//! that it reads, pushed terminations apart, restarts the time. "Read" means that hyper
//! took it to send it. The status is sent when the client reads again, and the stream keeps
//! its permit until then or until the client disconnects. Terminations go into a second
//! queue that is sent first and has no bound. A stream always ends with a status.
//!
//! The time is `limits.slow_reader_secs_max`. Only `wait_until_read` measures it.
//!
//! HTTP connections have their own rule, `listener::WriteDeadline`, and so do watchers of
//! verdicts, which are not queued here: `feed::TooSlow`.

use std::{
    collections::{BTreeSet, VecDeque},
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::FutureExt;
use parking_lot::Mutex;
use prost::Message;
use tokio::{
    sync::Notify,
    time::{self, Instant},
};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::status;
use crate::{
    domain::Verdict,
    pb,
    telemetry::{Metrics, PanicSite},
};

/// A response message of a stream.
pub trait StreamResponse: Message + Sized + 'static {
    /// The response that pushes a termination.
    fn from_termination(verdict: pb::Verdict) -> Self;

    /// Whether later responses are merged into a queued one. If false, `coalesce` is not
    /// called.
    const COALESCES: bool = false;

    /// Merges a later response into this one. `Err` returns it if they cannot be
    /// merged.
    fn coalesce(&mut self, later: Self) -> Result<(), Self> {
        Err(later)
    }

    /// No response before this one may be merged with `later`.
    fn ends_coalescing(&self, _later: &Self) -> bool {
        false
    }

    /// The verdicts in it.
    fn verdicts_mut(&mut self) -> impl Iterator<Item = &mut pb::Verdict>;

    /// Keeps only terminations whose verdict id is not in `seen_ids`, and adds them to
    /// it. Returns false if nothing is left.
    fn keep_terminations_only(&mut self, seen_ids: &mut BTreeSet<String>) -> bool;
}

/// The limits and dependencies of a stream.
pub struct StreamContext {
    /// How many responses may be unread.
    pub unread_responses_max: usize,
    pub response_bytes_max: usize,
    /// How long a client may read nothing while the queue is full. Every response that
    /// it reads restarts the time.
    pub slow_reader_timeout: Duration,
    /// Converts a pushed termination when it is sent.
    pub render: RenderVerdict,
    pub draining: CancellationToken,
    pub metrics: Arc<Metrics>,
}

impl StreamContext {
    /// Whether another response may be queued. An empty queue takes one of any size.
    fn has_capacity(&self, responses: usize, bytes: usize) -> bool {
        let is_below_count = responses < self.unread_responses_max;
        responses == 0 || is_below_count && bytes < self.response_bytes_max
    }
}

type RenderVerdict = Box<dyn Fn(&Verdict) -> pb::Verdict + Send + Sync>;

/// Why nothing more can be sent to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamClosed {
    Disconnected,
    /// The queue was full, and the client read no response for `slow_reader_timeout`.
    SlowReader,
}

/// The response stream that tonic sends. Dropped when the client disconnects.
pub struct ResponseStream<T> {
    queue: Arc<ResponseQueue<T>>,
}

/// The side of the queue that the stream's task writes to.
pub struct ResponseSender<T> {
    queue: Arc<ResponseQueue<T>>,
}

struct ResponseQueue<T> {
    context: StreamContext,
    pending: Mutex<PendingResponses<T>>,
    room_freed: Notify,
    disconnected: CancellationToken,
}

struct PendingResponses<T> {
    /// Shared with the engine, so that they take no memory of their own and need no
    /// bound.
    terminations: VecDeque<Arc<Verdict>>,
    /// With their encoded size.
    responses: VecDeque<(usize, T)>,
    bytes: usize,
    /// When the sender found the queue full. Cleared when a response is read, so that
    /// every response read restarts the timeout.
    queue_full_since: Option<Instant>,
    /// The final status, sent after everything that is queued.
    end: Option<Result<(), Status>>,
    reader_waker: Option<Waker>,
}

impl<T: StreamResponse> ResponseQueue<T> {
    fn new(context: StreamContext) -> Arc<Self> {
        Arc::new(Self {
            context,
            pending: Mutex::new(PendingResponses {
                terminations: VecDeque::new(),
                responses: VecDeque::new(),
                bytes: 0,
                queue_full_since: None,
                end: None,
                reader_waker: None,
            }),
            room_freed: Notify::new(),
            disconnected: CancellationToken::new(),
        })
    }

    /// Changes the queue and wakes the reader.
    fn update(&self, apply: impl FnOnce(&mut PendingResponses<T>)) {
        let mut pending = self.pending.lock();
        apply(&mut pending);
        let waker = pending.reader_waker.take();
        drop(pending);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn finish(&self, ended: Result<(), Status>) {
        self.update(|pending| pending.end = Some(ended));
    }
}

impl<T: StreamResponse> PendingResponses<T> {
    fn has_room(&self, context: &StreamContext) -> bool {
        context.has_capacity(self.responses.len(), self.bytes)
    }

    /// Whether the last response is over the limits: the responses before it leave no
    /// room for it.
    fn is_over_limit(&self, context: &StreamContext) -> bool {
        self.responses.back().is_some_and(|(bytes, _)| {
            !context.has_capacity(self.responses.len() - 1, self.bytes - bytes)
        })
    }

    fn enqueue(&mut self, response: T) {
        let bytes = response.encoded_len();
        self.bytes += bytes;
        self.responses.push_back((bytes, response));
    }

    /// Merges a response into a queued one. `Err` returns it if none fits.
    fn coalesce(&mut self, mut later: T) -> Result<(), T> {
        for (_, earlier) in self.responses.iter_mut().rev() {
            if earlier.ends_coalescing(&later) {
                break;
            }
            match earlier.coalesce(later) {
                Ok(()) => return Ok(()),
                Err(uncoalesced) => later = uncoalesced,
            }
        }
        Err(later)
    }

    fn dequeue(&mut self) -> Option<T> {
        let (bytes, response) = self.responses.pop_front()?;
        self.bytes -= bytes;
        self.queue_full_since = None;
        Some(response)
    }

    /// For a client that does not read: drops everything but the terminations, each
    /// once.
    fn keep_terminations_only(&mut self) {
        let mut seen_ids: BTreeSet<String> = self
            .terminations
            .iter()
            .map(|verdict| verdict.id.to_string())
            .collect();
        self.bytes = 0;
        self.responses.retain_mut(|(bytes, response)| {
            let is_retained = response.keep_terminations_only(&mut seen_ids);
            *bytes = response.encoded_len();
            self.bytes += if is_retained { *bytes } else { 0 };
            is_retained
        });
    }
}

/// What happened to a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    Queued,
    /// It was merged into one that is not read yet.
    Coalesced,
}

impl<T: StreamResponse> ResponseSender<T> {
    /// Queues a response even if there is no room, because it may report a termination
    /// and the queue outlives the stream's task. The sender bounds the queue: streams
    /// call `wait_until_within_limit` after sending, watches call `wait_for_room` before.
    pub fn send(&self, response: T) -> SendOutcome {
        let mut sent = SendOutcome::Queued;
        self.queue.update(|pending| {
            let coalesced = if T::COALESCES {
                pending.coalesce(response)
            } else {
                Err(response)
            };
            match coalesced {
                Ok(()) => sent = SendOutcome::Coalesced,
                Err(response) => pending.enqueue(response),
            }
        });
        sent
    }

    /// Whether there is room for the queued responses and for others beside them.
    pub fn has_room_beside(&self, responses: usize, bytes: usize) -> bool {
        let pending = self.queue.pending.lock();
        let responses = pending.responses.len() + responses;
        self.queue
            .context
            .has_capacity(responses, pending.bytes + bytes)
    }

    /// Queues a termination before all responses, even if there is no room.
    pub fn send_urgent(&self, verdict: Arc<Verdict>) {
        self.queue
            .update(|pending| pending.terminations.push_back(verdict));
    }

    /// Waits until there is room for another response. Cancel-safe: calling it again does
    /// not restart the timeout.
    pub async fn wait_for_room(&self) -> Result<(), StreamClosed> {
        self.wait_until_read(PendingResponses::has_room).await
    }

    /// Waits until all queued responses are within the limits. Cancel-safe in the same
    /// way.
    pub async fn wait_until_within_limit(&self) -> Result<(), StreamClosed> {
        self.wait_until_read(|pending, context| !pending.is_over_limit(context))
            .await
    }

    /// Waits until the client has read enough for `is_done`, or has read nothing for
    /// `slow_reader_timeout`.
    async fn wait_until_read(
        &self,
        is_done: impl Fn(&PendingResponses<T>, &StreamContext) -> bool,
    ) -> Result<(), StreamClosed> {
        loop {
            let since = {
                let mut pending = self.queue.pending.lock();
                if is_done(&pending, &self.queue.context) {
                    return Ok(());
                }
                *pending.queue_full_since.get_or_insert_with(Instant::now)
            };
            tokio::select! {
                () = self.queue.room_freed.notified() => {}
                () = self.wait_for_disconnect() => return Err(StreamClosed::Disconnected),
                () = time::sleep_until(since + self.queue.context.slow_reader_timeout) => {
                    self.queue.pending.lock().keep_terminations_only();
                    return Err(StreamClosed::SlowReader);
                }
            }
        }
    }

    /// Waits until the client has disconnected.
    pub async fn wait_for_disconnect(&self) {
        self.queue.disconnected.cancelled().await;
    }
}

impl<T: StreamResponse> Stream for ResponseStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut pending = self.queue.pending.lock();
        if let Some(verdict) = pending.terminations.pop_front() {
            drop(pending);
            let message = (self.queue.context.render)(&verdict);
            return Poll::Ready(Some(Ok(T::from_termination(message))));
        }
        if let Some(response) = pending.dequeue() {
            drop(pending);
            self.queue.room_freed.notify_one();
            return Poll::Ready(Some(Ok(response)));
        }
        match pending.end.replace(Ok(())) {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(status)) => Poll::Ready(Some(Err(status))),
            None => {
                pending.end = None;
                pending.reader_waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for ResponseStream<T> {
    fn drop(&mut self) {
        self.queue.disconnected.cancel();
    }
}

/// Runs a stream in a task until it ends or the service drains. The client always gets
/// a final status.
pub fn serve<T, F>(
    context: StreamContext,
    stream: impl FnOnce(ResponseSender<T>) -> F,
) -> ResponseStream<T>
where
    T: StreamResponse,
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    let queue = ResponseQueue::new(context);
    let served = queue.clone();
    let stream_task = stream(ResponseSender {
        queue: queue.clone(),
    });
    tokio::spawn(async move {
        let context = &served.context;
        // Uncaught, a panic would look like a successful end.
        let stream = AssertUnwindSafe(stream_task).catch_unwind();
        let ended = tokio::select! {
            ended = stream => ended.unwrap_or_else(|_| {
                context.metrics.count_panic(PanicSite::Stream);
                Err(status::internal())
            }),
            () = context.draining.cancelled() => Err(status::draining()),
            // There is no client to send a status to.
            () = served.disconnected.cancelled() => return,
        };
        served.finish(ended);
    });
    ResponseStream { queue }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tokio_stream::StreamExt;
    use tonic::Code;

    use super::*;
    use crate::{
        domain::SessionId,
        engine::{OperatorRequest, RunMode},
        testing,
    };

    type Response = pb::StreamDeltasResponse;

    fn stream_context(unread_responses_max: usize) -> StreamContext {
        let metrics = Arc::new(Metrics::new([]).unwrap());
        StreamContext {
            unread_responses_max,
            response_bytes_max: 1_000,
            slow_reader_timeout: Duration::from_secs(10),
            render: Box::new(crate::api::present_verdict),
            draining: CancellationToken::new(),
            metrics,
        }
    }

    fn response(turn_id: &str) -> Response {
        Response {
            session_id: "s".to_owned(),
            turn_id: turn_id.to_owned(),
            end_of_turn: true,
            ..Response::default()
        }
    }

    /// A response about a turn that has not ended.
    fn action_response(turn_id: &str, action: pb::Action) -> Response {
        Response {
            action: action.into(),
            end_of_turn: false,
            ..response(turn_id)
        }
    }

    fn queue(unread_responses_max: usize) -> (ResponseSender<Response>, ResponseStream<Response>) {
        let queue = ResponseQueue::new(stream_context(unread_responses_max));
        let stream = ResponseStream {
            queue: queue.clone(),
        };
        (ResponseSender { queue }, stream)
    }

    fn has_room(responses: &ResponseSender<Response>) -> bool {
        let queue = &responses.queue;
        queue.pending.lock().has_room(&queue.context)
    }

    /// What the client receives: the turns, and the code at the end.
    async fn read_all(mut stream: ResponseStream<Response>) -> (Vec<String>, Code) {
        let mut seen = Vec::new();
        while let Some(next) = stream.next().await {
            match next {
                Ok(response) => seen.push(response.turn_id),
                Err(status) => return (seen, status.code()),
            }
        }
        (seen, Code::Ok)
    }

    #[tokio::test]
    async fn a_finished_stream_ends_with_ok() {
        let stream = serve(stream_context(1), |responses| async move {
            for turn in ["1", "2"] {
                responses.wait_for_room().await.unwrap();
                responses.send(response(turn));
            }
            Ok(())
        });
        assert_eq!(
            read_all(stream).await,
            (vec!["1".into(), "2".into()], Code::Ok)
        );
    }

    #[tokio::test]
    async fn a_panic_ends_the_stream_with_a_reference_and_no_detail() {
        let context = stream_context(1);
        let metrics = context.metrics.clone();
        let mut stream = serve::<Response, _>(context, |_| async { panic!("said by an agent") });
        let status = stream.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(status.message().contains("reference"), "{status:?}");
        assert!(!format!("{status:?}").contains("agent"), "{status:?}");
        let counted = "unstuck_panics_total{site=\"stream\"} 1";
        assert!(metrics.render().contains(counted));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected_with_a_reason() {
        let (responses, stream) = queue(1);
        responses.send(response("1"));
        // Repeated calls do not extend the ten seconds.
        let start = Instant::now();
        let closed = loop {
            let waited = time::timeout(Duration::from_secs(3), responses.wait_for_room()).await;
            if let Ok(result) = waited {
                break result;
            }
        };
        assert_eq!(closed, Err(StreamClosed::SlowReader));
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        responses.queue.finish(Err(status::slow_reader()));
        assert_eq!(read_all(stream).await, (vec![], Code::ResourceExhausted));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_not_disconnected() {
        let (responses, mut stream) = queue(1);
        for _ in 0..5 {
            responses.send(response("1"));
            assert!(!has_room(&responses));
            let slow = async {
                time::sleep(Duration::from_secs(9)).await;
                stream.next().await.unwrap().unwrap();
            };
            let (room, ()) = tokio::join!(responses.wait_for_room(), slow);
            assert_eq!(room, Ok(()));
        }
    }

    #[tokio::test]
    async fn a_large_response_fills_the_queue_by_itself() {
        let (responses, _stream) = queue(64);
        responses.send(response(&"x".repeat(1_000)));
        assert!(!has_room(&responses));
        assert_eq!(
            responses.wait_until_within_limit().await,
            Ok(()),
            "a single response is always within the limit"
        );
    }

    #[tokio::test]
    async fn a_wait_for_room_ends_when_the_client_disconnects() {
        let (responses, stream) = queue(1);
        responses.send(response("1"));
        drop(stream);
        assert_eq!(
            responses.wait_for_room().await,
            Err(StreamClosed::Disconnected)
        );
    }

    fn termination() -> Arc<Verdict> {
        let engine = testing::engine(testing::config(&[]), RunMode::Replay, Box::new(|_| {}));
        let act = OperatorRequest {
            reason: "it loops",
            operator: "ann",
        };
        engine
            .terminate_session(&SessionId::parse("s").unwrap(), &act, UNIX_EPOCH)
            .verdict
    }

    #[tokio::test]
    async fn a_termination_is_sent_before_a_full_queue_and_kept_for_a_slow_reader() {
        let (responses, mut stream) = queue(1);
        responses.send(response("1"));
        responses.send_urgent(termination());
        responses.queue.pending.lock().keep_terminations_only();
        responses.queue.finish(Ok(()));
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!(first.action(), pb::Action::Terminate);
        assert_eq!(
            read_all(stream).await,
            (vec![], Code::Ok),
            "the rest was dropped"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_terminates_is_kept_without_room_for_a_slow_reader_and_a_drain() {
        let answers = |responses: ResponseSender<Response>| async move {
            responses.send(response("1"));
            responses.send(action_response("2", pb::Action::Terminate));
            match responses.wait_until_within_limit().await {
                Err(StreamClosed::SlowReader) => Err(status::slow_reader()),
                // A client that reads during the drain makes room.
                _ => std::future::pending().await,
            }
        };
        let slow = serve(stream_context(1), answers);
        time::sleep(Duration::from_secs(11)).await;
        let ended = (vec!["2".into()], Code::ResourceExhausted);
        assert_eq!(read_all(slow).await, ended);

        let context = stream_context(1);
        let draining = context.draining.clone();
        let drained = serve(context, answers);
        time::sleep(Duration::from_secs(1)).await;
        draining.cancel();
        let ended = (vec!["1".into(), "2".into()], Code::Unavailable);
        assert_eq!(read_all(drained).await, ended);
    }

    #[tokio::test]
    async fn a_termination_in_many_unread_responses_is_kept_once() {
        let terminated = |verdict_id: &str| pb::EventResult {
            action: pb::Action::Terminate.into(),
            verdict: Some(pb::Verdict {
                verdict_id: verdict_id.to_owned(),
                action: pb::Action::Terminate.into(),
                ..pb::Verdict::default()
            }),
            ..pb::EventResult::default()
        };
        let results = vec![terminated("a"), pb::EventResult::default(), terminated("b")];
        let answer = |results: &[pb::EventResult]| pb::StreamEventsResponse {
            sequence: 7,
            results: results.to_vec(),
        };
        let queue = ResponseQueue::new(stream_context(64));
        queue.update(|pending| {
            for _ in 0..32 {
                pending.enqueue(answer(&results));
            }
            pending.keep_terminations_only();
            let left: Vec<_> = pending.responses.iter().map(|(_, left)| left).collect();
            let each_once = pb::StreamEventsResponse {
                sequence: 0,
                results: vec![terminated("a"), terminated("b")],
            };
            assert_eq!(left, [&each_once]);
            assert_eq!(pending.bytes, each_once.encoded_len());
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_its_client_disconnects() {
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        let stream = serve::<Response, _>(stream_context(1), |_| async move {
            let _guard = guard;
            std::future::pending().await
        });
        drop(stream);
        let waited = time::timeout(Duration::from_secs(10), ended.cancelled()).await;
        assert!(waited.is_ok(), "the task still runs");
    }

    #[tokio::test]
    async fn responses_are_not_coalesced_across_the_end_of_a_turn() {
        let (responses, stream) = queue(8);
        let sent = [
            action_response("", pb::Action::Escalate),
            response(""),
            action_response("", pb::Action::Break),
            action_response("", pb::Action::Warn),
        ]
        .map(|response| responses.send(response));
        let (queued, coalesced) = (SendOutcome::Queued, SendOutcome::Coalesced);
        assert_eq!(sent, [queued, queued, queued, coalesced]);
        responses.queue.finish(Ok(()));
        assert_eq!(read_all(stream).await.0.len(), 3);
    }

    #[tokio::test]
    async fn responses_about_one_turn_are_coalesced_to_the_strongest_action() {
        let (responses, mut stream) = queue(2);
        let sent = [
            action_response("t", pb::Action::Warn),
            action_response("t", pb::Action::Terminate),
            action_response("t", pb::Action::Break),
            action_response("u", pb::Action::Warn),
        ]
        .map(|response| responses.send(response));
        let (queued, coalesced) = (SendOutcome::Queued, SendOutcome::Coalesced);
        assert_eq!(sent, [queued, coalesced, coalesced, queued]);
        assert_eq!(responses.send(response("t")), queued, "the end of a turn");
        responses.queue.finish(Ok(()));
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!(
            (first.action(), first.coalesced),
            (pb::Action::Terminate, 2)
        );
        let rest = vec!["u".into(), "t".into()];
        assert_eq!(read_all(stream).await, (rest, Code::Ok));
    }
}
