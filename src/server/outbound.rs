//! The way back to a stream's client: a queue with a bound, a lane for
//! terminations that passes everything else, and a reason at the end.

use std::{
    collections::{BTreeSet, VecDeque},
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

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
    telemetry::{Metrics, Panicked},
};

/// What a stream sends.
pub trait Respond: Message + Sized + 'static {
    /// Tells of a termination that came from elsewhere.
    fn push(verdict: pb::Verdict) -> Self;

    /// One that waits may stand for a later one too; else they are not compared.
    const ABSORBS: bool = false;

    /// Takes a later response in where one can stand for both; else gives it
    /// back.
    fn absorb(&mut self, later: Self) -> Result<(), Self> {
        Err(later)
    }

    /// None that came before it can stand for a later one.
    fn bars(&self, _later: &Self) -> bool {
        false
    }

    /// Leaves of it, for a client that did not read it, the terminations that are
    /// not among those `told`, which are their verdicts' ids. `false`: none.
    fn cut(&mut self, told: &mut BTreeSet<String>) -> bool;
}

/// How a stream is served.
pub struct Terms {
    /// How much may be unread,
    pub responses_max: usize,
    pub response_bytes_max: usize,
    /// and how long a client may take to make room.
    pub patience: Duration,
    /// How a verdict is shown to the client.
    pub show: Show,
    pub draining: CancellationToken,
    pub metrics: Arc<Metrics>,
}

impl Terms {
    /// Whether one more may be unread. One is taken whatever its size.
    fn allow_another(&self, responses: usize, bytes: usize) -> bool {
        let few = responses < self.responses_max;
        responses == 0 || few && bytes < self.response_bytes_max
    }
}

type Show = Box<dyn Fn(&Verdict) -> pb::Verdict + Send + Sync>;

/// Why nothing more can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The client is gone.
    Gone,
    /// It did not read for too long.
    Slow,
}

/// What the client reads. Dropped when it is gone.
pub struct Outbound<T> {
    queue: Arc<Queue<T>>,
}

/// Where the stream's task puts what the client is to read.
pub struct Responses<T> {
    queue: Arc<Queue<T>>,
}

struct Queue<T> {
    terms: Terms,
    waiting: Mutex<Waiting<T>>,
    room: Notify,
    gone: CancellationToken,
}

struct Waiting<T> {
    /// Kept as the engine has them, so that however many there are they hold no
    /// memory of their own: there is no bound that a termination could meet.
    urgent: VecDeque<Arc<Verdict>>,
    /// With their size.
    ordinary: VecDeque<(usize, T)>,
    bytes: usize,
    /// Since when somebody waits for room.
    full_since: Option<Instant>,
    /// How it ends when all that waits is read.
    end: Option<Result<(), Status>>,
    reader: Option<Waker>,
}

impl<T: Respond> Queue<T> {
    fn new(terms: Terms) -> Arc<Self> {
        Arc::new(Self {
            terms,
            waiting: Mutex::new(Waiting {
                urgent: VecDeque::new(),
                ordinary: VecDeque::new(),
                bytes: 0,
                full_since: None,
                end: None,
                reader: None,
            }),
            room: Notify::new(),
            gone: CancellationToken::new(),
        })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what waits, and wakes the reader.
    fn change(&self, change: impl FnOnce(&mut Waiting<T>)) {
        let mut waiting = self.waiting();
        change(&mut waiting);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn end(&self, ended: Result<(), Status>) {
        self.change(|waiting| waiting.end = Some(ended));
    }
}

impl<T: Respond> Waiting<T> {
    fn has_room(&self, terms: &Terms) -> bool {
        terms.allow_another(self.ordinary.len(), self.bytes)
    }

    /// Whether the last one found no room when it came.
    fn is_overfull(&self, terms: &Terms) -> bool {
        let last = self.ordinary.back();
        last.is_some_and(|(bytes, _)| {
            !terms.allow_another(self.ordinary.len() - 1, self.bytes - bytes)
        })
    }

    fn put(&mut self, response: T) {
        let bytes = response.encoded_len();
        self.bytes += bytes;
        self.ordinary.push_back((bytes, response));
    }

    /// Lets one that waits stand for this one too.
    fn absorb(&mut self, mut later: T) -> Result<(), T> {
        for (_, earlier) in self.ordinary.iter_mut().rev() {
            if earlier.bars(&later) {
                break;
            }
            match earlier.absorb(later) {
                Ok(()) => return Ok(()),
                Err(unlike) => later = unlike,
            }
        }
        Err(later)
    }

    fn take(&mut self) -> Option<T> {
        let (bytes, response) = self.ordinary.pop_front()?;
        self.bytes -= bytes;
        self.full_since = None;
        Some(response)
    }

    /// Nobody reads it. Terminations stay, each once.
    fn cut(&mut self) {
        let urgent = self.urgent.iter().map(|verdict| verdict.id.to_string());
        let mut told: BTreeSet<String> = urgent.collect();
        self.bytes = 0;
        self.ordinary.retain_mut(|(bytes, response)| {
            let is_left = response.cut(&mut told);
            *bytes = response.encoded_len();
            self.bytes += if is_left { *bytes } else { 0 };
            is_left
        });
    }
}

/// What came of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Queued,
    /// One that was not read yet stands for both.
    Absorbed,
}

impl<T: Respond> Responses<T> {
    /// Queues a response, room or not: it may tell of a termination, and what is
    /// queued outlives the stream's task. Whoever sends waits before it sends more.
    pub fn send(&self, response: T) -> Sent {
        let mut sent = Sent::Queued;
        self.queue.change(|waiting| {
            let absorbed = match T::ABSORBS {
                true => waiting.absorb(response),
                false => Err(response),
            };
            match absorbed {
                Ok(()) => sent = Sent::Absorbed,
                Err(response) => waiting.put(response),
            }
        });
        sent
    }

    /// Tells of a termination before all else, room or not.
    pub fn urge(&self, verdict: Arc<Verdict>) {
        self.queue
            .change(|waiting| waiting.urgent.push_back(verdict));
    }

    /// Waits for room. May be dropped and called again: a slow client does not
    /// gain time by it.
    pub async fn room(&self) -> Result<(), Over> {
        self.reading(Waiting::has_room).await
    }

    /// Waits until all that was sent has found room.
    pub async fn fit(&self) -> Result<(), Over> {
        self.reading(|waiting, terms| !waiting.is_overfull(terms))
            .await
    }

    /// Waits until the client has read so much.
    async fn reading(&self, enough: impl Fn(&Waiting<T>, &Terms) -> bool) -> Result<(), Over> {
        loop {
            let since = {
                let mut waiting = self.queue.waiting();
                if enough(&waiting, &self.queue.terms) {
                    return Ok(());
                }
                *waiting.full_since.get_or_insert_with(Instant::now)
            };
            tokio::select! {
                () = self.queue.room.notified() => {}
                () = self.gone() => return Err(Over::Gone),
                () = time::sleep_until(since + self.queue.terms.patience) => {
                    self.queue.waiting().cut();
                    return Err(Over::Slow);
                }
            }
        }
    }

    /// Waits until the client is gone.
    pub async fn gone(&self) {
        self.queue.gone.cancelled().await;
    }
}

impl<T: Respond> Stream for Outbound<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut waiting = self.queue.waiting();
        if let Some(verdict) = waiting.urgent.pop_front() {
            drop(waiting);
            return Poll::Ready(Some(Ok(T::push((self.queue.terms.show)(&verdict)))));
        }
        if let Some(response) = waiting.take() {
            drop(waiting);
            self.queue.room.notify_one();
            return Poll::Ready(Some(Ok(response)));
        }
        match waiting.end.replace(Ok(())) {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(why)) => Poll::Ready(Some(Err(why))),
            None => {
                waiting.end = None;
                waiting.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Outbound<T> {
    fn drop(&mut self) {
        self.queue.gone.cancel();
    }
}

/// Serves a stream in a task of its own until it is over or the service drains.
/// However it ends, the client is told why.
pub fn serve<T, F>(terms: Terms, stream: impl FnOnce(Responses<T>) -> F) -> Outbound<T>
where
    T: Respond,
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    let queue = Queue::new(terms);
    let served = queue.clone();
    let stream = stream(Responses {
        queue: queue.clone(),
    });
    tokio::spawn(async move {
        let terms = &served.terms;
        // Unheeded, a panic would look like a clean end.
        let stream = AssertUnwindSafe(stream).catch_unwind();
        let ended = tokio::select! {
            ended = stream => ended.unwrap_or_else(|_| {
                terms.metrics.panicked(Panicked::Stream);
                Err(status::internal())
            }),
            () = terms.draining.cancelled() => Err(status::draining()),
            // Nobody reads what the stream would say, and its permit is released.
            () = served.gone.cancelled() => return,
        };
        served.end(ended);
    });
    Outbound { queue }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tokio_stream::StreamExt;
    use tonic::Code;

    use super::*;
    use crate::{
        config::{Config, DEFAULTS, Layers},
        domain::SessionId,
        engine::{Act, Clockwork, Engine},
    };

    type Response = pb::StreamDeltasResponse;

    fn terms(responses_max: usize) -> Terms {
        let metrics = Arc::new(Metrics::new([]).unwrap());
        Terms {
            responses_max,
            response_bytes_max: 1_000,
            patience: Duration::from_secs(10),
            show: Box::new(crate::api::present_verdict),
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

    fn queue(responses_max: usize) -> (Responses<Response>, Outbound<Response>) {
        let queue = Queue::new(terms(responses_max));
        let outbound = Outbound {
            queue: queue.clone(),
        };
        (Responses { queue }, outbound)
    }

    fn has_room(responses: &Responses<Response>) -> bool {
        let queue = &responses.queue;
        queue.waiting().has_room(&queue.terms)
    }

    /// What the client gets: the turns, and the code at the end.
    async fn all(mut outbound: Outbound<Response>) -> (Vec<String>, Code) {
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
                responses.room().await.unwrap();
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
        let counted = "unstuck_panics_total{where=\"stream\"} 1";
        assert!(metrics.render().contains(counted));
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_cut_and_told_why() {
        let (responses, outbound) = queue(1);
        responses.send(response("1"));
        // Asked again and again, it is still ten seconds from the first time.
        let began = Instant::now();
        let over = loop {
            let asked = time::timeout(Duration::from_secs(3), responses.room()).await;
            if let Ok(answer) = asked {
                break answer;
            }
        };
        assert_eq!(over, Err(Over::Slow));
        assert_eq!(began.elapsed(), Duration::from_secs(10));
        responses.queue.end(Err(status::slow_reader()));
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
            let (room, ()) = tokio::join!(responses.room(), slow);
            assert_eq!(room, Ok(()));
        }
    }

    #[tokio::test]
    async fn a_large_response_fills_the_queue_by_itself() {
        let (responses, _outbound) = queue(64);
        responses.send(response(&"x".repeat(1_000)));
        assert!(!has_room(&responses));
        assert_eq!(responses.fit().await, Ok(()), "nobody waits for it alone");
    }

    #[tokio::test]
    async fn who_is_gone_is_waited_for_no_longer() {
        let (responses, outbound) = queue(1);
        responses.send(response("1"));
        drop(outbound);
        assert_eq!(responses.room().await, Err(Over::Gone));
    }

    fn termination() -> Arc<Verdict> {
        let layers = Layers::load(DEFAULTS, &[], None, []).unwrap();
        let config = Config::new(&layers).unwrap();
        let engine = Engine::new(
            config.profiles,
            config.tools,
            config.engine,
            Arc::new(Metrics::new([]).unwrap()),
            Clockwork::Replay,
            Box::new(|_| {}),
        );
        let act = Act {
            reason: "it loops",
            operator: "ann",
        };
        engine.terminate(&SessionId::parse("s").unwrap(), &act, UNIX_EPOCH)
    }

    #[tokio::test]
    async fn a_termination_passes_a_full_queue_and_survives_a_cut() {
        let (responses, mut outbound) = queue(1);
        responses.send(response("1"));
        responses.urge(termination());
        responses.queue.waiting().cut();
        responses.queue.end(Ok(()));
        let first = outbound.next().await.unwrap().unwrap();
        assert_eq!(first.action(), pb::Action::Terminate);
        assert_eq!(all(outbound).await, (vec![], Code::Ok), "the rest was cut");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_terminates_and_finds_no_room_survives_a_cut_and_a_drain() {
        let answers = |responses: Responses<Response>| async move {
            responses.send(response("1"));
            responses.send(said("2", pb::Action::Terminate));
            match responses.fit().await {
                Err(Over::Slow) => Err(status::slow_reader()),
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
        let queue = Queue::new(terms(64));
        queue.change(|waiting| {
            for _ in 0..32 {
                waiting.put(answer(&results));
            }
            waiting.cut();
            let left: Vec<_> = waiting.ordinary.iter().map(|(_, left)| left).collect();
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
        let (queued, absorbed) = (Sent::Queued, Sent::Absorbed);
        assert_eq!(sent, [queued, queued, queued, absorbed]);
        responses.queue.end(Ok(()));
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
        let (queued, absorbed) = (Sent::Queued, Sent::Absorbed);
        assert_eq!(sent, [queued, absorbed, absorbed, queued]);
        assert_eq!(responses.send(response("t")), queued, "the end of a turn");
        responses.queue.end(Ok(()));
        let first = outbound.next().await.unwrap().unwrap();
        assert_eq!(
            (first.action(), first.coalesced),
            (pb::Action::Terminate, 2)
        );
        let rest = vec!["u".into(), "t".into()];
        assert_eq!(all(outbound).await, (rest, Code::Ok));
    }
}
