//! The way back to a stream's client: a queue with a bound, a lane for
//! terminations that passes everything else, and a reason at the end.

use std::{
    collections::{BTreeSet, VecDeque},
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};

use futures_util::FutureExt;
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

/// What a stream sends.
pub trait StreamResponse: Message + Sized + 'static {
    /// Tells of a termination that came from elsewhere.
    fn from_termination(verdict: pb::Verdict) -> Self;

    /// One that waits may stand for a later one too; else they are not compared.
    const COALESCES: bool = false;

    /// Takes a later response in where one can stand for both; else gives it
    /// back.
    fn coalesce(&mut self, later: Self) -> Result<(), Self> {
        Err(later)
    }

    /// None that came before it can stand for a later one.
    fn ends_coalescing(&self, _later: &Self) -> bool {
        false
    }

    /// Leaves of it, for a client that did not read it, the terminations that are
    /// not among those `told`, which are their verdicts' ids. `false`: none.
    fn keep_terminations_only(&mut self, seen_ids: &mut BTreeSet<String>) -> bool;
}

/// How a stream is served.
pub struct StreamContext {
    /// How much may be unread,
    pub responses_max: usize,
    pub response_bytes_max: usize,
    /// and how long a client may take to make room.
    pub read_timeout: Duration,
    /// How a verdict is shown to the client.
    pub render: RenderVerdict,
    pub draining: CancellationToken,
    pub metrics: Arc<Metrics>,
}

impl StreamContext {
    /// Whether one more may be unread. One is taken whatever its size.
    fn has_capacity(&self, responses: usize, bytes: usize) -> bool {
        let is_below_count = responses < self.responses_max;
        responses == 0 || is_below_count && bytes < self.response_bytes_max
    }
}

type RenderVerdict = Box<dyn Fn(&Verdict) -> pb::Verdict + Send + Sync>;

/// Why nothing more can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamClosed {
    /// The client is gone.
    Disconnected,
    /// It did not read for too long.
    SlowReader,
}

/// What the client reads. Dropped when it is gone.
pub struct ResponseStream<T> {
    queue: Arc<ResponseQueue<T>>,
}

/// Where the stream's task puts what the client is to read.
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
    /// Kept as the engine has them, so that however many there are they hold no
    /// memory of their own: there is no bound that a termination could meet.
    terminations: VecDeque<Arc<Verdict>>,
    /// With their size.
    responses: VecDeque<(usize, T)>,
    bytes: usize,
    /// Since when somebody waits for room.
    full_since: Option<Instant>,
    /// How it ends when all that waits is read.
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
                full_since: None,
                end: None,
                reader_waker: None,
            }),
            room_freed: Notify::new(),
            disconnected: CancellationToken::new(),
        })
    }

    fn lock_pending(&self) -> MutexGuard<'_, PendingResponses<T>> {
        self.pending.lock()
    }

    /// Changes what waits, and wakes the reader.
    fn update(&self, apply: impl FnOnce(&mut PendingResponses<T>)) {
        let mut pending = self.lock_pending();
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

    /// Whether the last one found no room when it came.
    fn is_over_limit(&self, context: &StreamContext) -> bool {
        let last = self.responses.back();
        last.is_some_and(|(bytes, _)| {
            !context.has_capacity(self.responses.len() - 1, self.bytes - bytes)
        })
    }

    fn enqueue(&mut self, response: T) {
        let bytes = response.encoded_len();
        self.bytes += bytes;
        self.responses.push_back((bytes, response));
    }

    /// Lets one that waits stand for this one too.
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
        self.full_since = None;
        Some(response)
    }

    /// Nobody reads it. Terminations stay, each once.
    fn keep_terminations_only(&mut self) {
        let queued_ids = self
            .terminations
            .iter()
            .map(|verdict| verdict.id.to_string());
        let mut seen_ids: BTreeSet<String> = queued_ids.collect();
        self.bytes = 0;
        self.responses.retain_mut(|(bytes, response)| {
            let is_retained = response.keep_terminations_only(&mut seen_ids);
            *bytes = response.encoded_len();
            self.bytes += if is_retained { *bytes } else { 0 };
            is_retained
        });
    }
}

/// What came of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    Queued,
    /// One that was not read yet stands for both.
    Coalesced,
}

impl<T: StreamResponse> ResponseSender<T> {
    /// Queues a response, room or not: it may tell of a termination, and what is
    /// queued outlives the stream's task. Whoever sends waits before it sends more.
    pub fn send(&self, response: T) -> SendOutcome {
        let mut sent = SendOutcome::Queued;
        self.queue.update(|pending| {
            let coalesced = match T::COALESCES {
                true => pending.coalesce(response),
                false => Err(response),
            };
            match coalesced {
                Ok(()) => sent = SendOutcome::Coalesced,
                Err(response) => pending.enqueue(response),
            }
        });
        sent
    }

    /// Tells of a termination before all else, room or not.
    pub fn send_urgent(&self, verdict: Arc<Verdict>) {
        self.queue
            .update(|pending| pending.terminations.push_back(verdict));
    }

    /// Waits for room. May be dropped and called again: a slow client does not
    /// gain time by it.
    pub async fn wait_for_room(&self) -> Result<(), StreamClosed> {
        self.wait_until_read(PendingResponses::has_room).await
    }

    /// Waits until all that was sent has found room.
    pub async fn wait_until_within_limit(&self) -> Result<(), StreamClosed> {
        self.wait_until_read(|pending, context| !pending.is_over_limit(context))
            .await
    }

    /// Waits until the client has read so much.
    async fn wait_until_read(
        &self,
        is_done: impl Fn(&PendingResponses<T>, &StreamContext) -> bool,
    ) -> Result<(), StreamClosed> {
        loop {
            let since = {
                let mut waiting = self.queue.lock_pending();
                if is_done(&waiting, &self.queue.context) {
                    return Ok(());
                }
                *waiting.full_since.get_or_insert_with(Instant::now)
            };
            tokio::select! {
                () = self.queue.room_freed.notified() => {}
                () = self.wait_for_disconnect() => return Err(StreamClosed::Disconnected),
                () = time::sleep_until(since + self.queue.context.read_timeout) => {
                    self.queue.lock_pending().keep_terminations_only();
                    return Err(StreamClosed::SlowReader);
                }
            }
        }
    }

    /// Waits until the client is gone.
    pub async fn wait_for_disconnect(&self) {
        self.queue.disconnected.cancelled().await;
    }
}

impl<T: StreamResponse> Stream for ResponseStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut waiting = self.queue.lock_pending();
        if let Some(verdict) = waiting.terminations.pop_front() {
            drop(waiting);
            return Poll::Ready(Some(Ok(T::from_termination((self.queue.context.render)(
                &verdict,
            )))));
        }
        if let Some(response) = waiting.dequeue() {
            drop(waiting);
            self.queue.room_freed.notify_one();
            return Poll::Ready(Some(Ok(response)));
        }
        match waiting.end.replace(Ok(())) {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(why)) => Poll::Ready(Some(Err(why))),
            None => {
                waiting.end = None;
                waiting.reader_waker = Some(cx.waker().clone());
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

/// Serves a stream in a task of its own until it is over or the service drains.
/// However it ends, the client is told why.
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
    let stream = stream(ResponseSender {
        queue: queue.clone(),
    });
    tokio::spawn(async move {
        let context = &served.context;
        // Unheeded, a panic would look like a clean end.
        let stream = AssertUnwindSafe(stream).catch_unwind();
        let ended = tokio::select! {
            ended = stream => ended.unwrap_or_else(|_| {
                context.metrics.count_panic(PanicSite::Stream);
                Err(status::internal())
            }),
            () = context.draining.cancelled() => Err(status::draining()),
            // Nobody reads what the stream would say, and its permit is released.
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

    fn terms(responses_max: usize) -> StreamContext {
        let metrics = Arc::new(Metrics::new([]).unwrap());
        StreamContext {
            responses_max,
            response_bytes_max: 1_000,
            read_timeout: Duration::from_secs(10),
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

    /// Something to say about a text that goes on.
    fn said(turn_id: &str, action: pb::Action) -> Response {
        Response {
            action: action.into(),
            end_of_turn: false,
            ..response(turn_id)
        }
    }

    fn queue(responses_max: usize) -> (ResponseSender<Response>, ResponseStream<Response>) {
        let queue = ResponseQueue::new(terms(responses_max));
        let outbound = ResponseStream {
            queue: queue.clone(),
        };
        (ResponseSender { queue }, outbound)
    }

    fn has_room(responses: &ResponseSender<Response>) -> bool {
        let queue = &responses.queue;
        queue.lock_pending().has_room(&queue.context)
    }

    /// What the client gets: the turns, and the code at the end.
    async fn all(mut outbound: ResponseStream<Response>) -> (Vec<String>, Code) {
        let mut seen = Vec::new();
        while let Some(next) = outbound.next().await {
            match next {
                Ok(response) => seen.push(response.turn_id),
                Err(status) => return (seen, status.code()),
            }
        }
        (seen, Code::Ok)
    }

    #[tokio::test]
    async fn a_stream_that_is_done_ends_in_peace() {
        let outbound = serve(terms(1), |responses| async move {
            for turn in ["1", "2"] {
                responses.wait_for_room().await.unwrap();
                responses.send(response(turn));
            }
            Ok(())
        });
        assert_eq!(
            all(outbound).await,
            (vec!["1".into(), "2".into()], Code::Ok)
        );
    }

    #[tokio::test]
    async fn a_panic_ends_the_stream_with_a_reference_and_no_detail() {
        let terms = terms(1);
        let metrics = terms.metrics.clone();
        let mut outbound = serve::<Response, _>(terms, |_| async { panic!("said by an agent") });
        let status = outbound.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(status.message().contains("reference"), "{status:?}");
        assert!(!format!("{status:?}").contains("agent"), "{status:?}");
        let counted = "unstuck_panics_total{site=\"stream\"} 1";
        assert!(metrics.render().contains(counted));
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_cut_and_told_why() {
        let (responses, outbound) = queue(1);
        responses.send(response("1"));
        // Asked again and again, it is still ten seconds from the first time.
        let began = Instant::now();
        let over = loop {
            let asked = time::timeout(Duration::from_secs(3), responses.wait_for_room()).await;
            if let Ok(answer) = asked {
                break answer;
            }
        };
        assert_eq!(over, Err(StreamClosed::SlowReader));
        assert_eq!(began.elapsed(), Duration::from_secs(10));
        responses.queue.finish(Err(status::slow_reader()));
        assert_eq!(all(outbound).await, (vec![], Code::ResourceExhausted));
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_a_little_goes_on() {
        let (responses, mut outbound) = queue(1);
        for _ in 0..5 {
            responses.send(response("1"));
            assert!(!has_room(&responses));
            let slow = async {
                time::sleep(Duration::from_secs(9)).await;
                outbound.next().await.unwrap().unwrap();
            };
            let (room, ()) = tokio::join!(responses.wait_for_room(), slow);
            assert_eq!(room, Ok(()));
        }
    }

    #[tokio::test]
    async fn a_large_response_fills_the_queue_by_itself() {
        let (responses, _outbound) = queue(64);
        responses.send(response(&"x".repeat(1_000)));
        assert!(!has_room(&responses));
        assert_eq!(
            responses.wait_until_within_limit().await,
            Ok(()),
            "nobody waits for it alone"
        );
    }

    #[tokio::test]
    async fn who_is_gone_is_waited_for_no_longer() {
        let (responses, outbound) = queue(1);
        responses.send(response("1"));
        drop(outbound);
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
        engine.terminate_session(&SessionId::parse("s").unwrap(), &act, UNIX_EPOCH)
    }

    #[tokio::test]
    async fn a_termination_passes_a_full_queue_and_survives_a_cut() {
        let (responses, mut outbound) = queue(1);
        responses.send(response("1"));
        responses.send_urgent(termination());
        responses.queue.lock_pending().keep_terminations_only();
        responses.queue.finish(Ok(()));
        let first = outbound.next().await.unwrap().unwrap();
        assert_eq!(first.action(), pb::Action::Terminate);
        assert_eq!(all(outbound).await, (vec![], Code::Ok), "the rest was cut");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_terminates_and_finds_no_room_survives_a_cut_and_a_drain() {
        let answers = |responses: ResponseSender<Response>| async move {
            responses.send(response("1"));
            responses.send(said("2", pb::Action::Terminate));
            match responses.wait_until_within_limit().await {
                Err(StreamClosed::SlowReader) => Err(status::slow_reader()),
                // Who reads while it drains makes room, and then it waits for more.
                _ => std::future::pending().await,
            }
        };
        let cut = serve(terms(1), answers);
        time::sleep(Duration::from_secs(11)).await;
        let ended = (vec!["2".into()], Code::ResourceExhausted);
        assert_eq!(all(cut).await, ended);

        let terms = terms(1);
        let draining = terms.draining.clone();
        let drained = serve(terms, answers);
        time::sleep(Duration::from_secs(1)).await;
        draining.cancel();
        let ended = (vec!["1".into(), "2".into()], Code::Unavailable);
        assert_eq!(all(drained).await, ended);
    }

    #[tokio::test]
    async fn of_a_termination_that_was_answered_often_a_cut_leaves_one() {
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
        let queue = ResponseQueue::new(terms(64));
        queue.update(|waiting| {
            for _ in 0..32 {
                waiting.enqueue(answer(&results));
            }
            waiting.keep_terminations_only();
            let left: Vec<_> = waiting.responses.iter().map(|(_, left)| left).collect();
            let each_once = pb::StreamEventsResponse {
                sequence: 0,
                results: vec![terminated("a"), terminated("b")],
            };
            assert_eq!(left, [&each_once]);
            assert_eq!(waiting.bytes, each_once.encoded_len());
        });
    }

    #[tokio::test]
    async fn a_stream_ends_when_its_client_is_gone() {
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        let outbound = serve::<Response, _>(terms(1), |_| async move {
            let _guard = guard;
            std::future::pending().await
        });
        drop(outbound);
        ended.cancelled().await;
    }

    #[tokio::test]
    async fn what_is_said_of_a_text_stands_for_none_after_its_end() {
        let (responses, outbound) = queue(8);
        let sent = [
            said("", pb::Action::Escalate),
            response(""),
            said("", pb::Action::Break),
            said("", pb::Action::Warn),
        ]
        .map(|response| responses.send(response));
        let (queued, absorbed) = (SendOutcome::Queued, SendOutcome::Coalesced);
        assert_eq!(sent, [queued, queued, queued, absorbed]);
        responses.queue.finish(Ok(()));
        assert_eq!(all(outbound).await.0.len(), 3);
    }

    #[tokio::test]
    async fn what_is_said_again_of_one_text_is_said_once_with_the_strongest_action() {
        let (responses, mut outbound) = queue(2);
        let sent = [
            said("t", pb::Action::Warn),
            said("t", pb::Action::Terminate),
            said("t", pb::Action::Break),
            said("u", pb::Action::Warn),
        ]
        .map(|response| responses.send(response));
        let (queued, absorbed) = (SendOutcome::Queued, SendOutcome::Coalesced);
        assert_eq!(sent, [queued, absorbed, absorbed, queued]);
        assert_eq!(responses.send(response("t")), queued, "the end of a turn");
        responses.queue.finish(Ok(()));
        let first = outbound.next().await.unwrap().unwrap();
        assert_eq!(
            (first.action(), first.coalesced),
            (pb::Action::Terminate, 2)
        );
        let rest = vec!["u".into(), "t".into()];
        assert_eq!(all(outbound).await, (rest, Code::Ok));
    }
}
