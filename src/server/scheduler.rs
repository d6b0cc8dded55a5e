//! Fair scheduling of event work: which tenant's stream or call runs next.
//!
//! # The problem
//!
//! The runtime has one worker thread per core, and recording events keeps a
//! thread busy. Three things go wrong without a scheduler:
//!
//! - A busy thread keeps its core. With more threads than cores the kernel lets a
//!   busy thread run for a tick of 4 ms before it switches, and a termination
//!   meets that wait in each thread that it passes through.
//! - tokio's run queue is first in, first out. A stream that always has another
//!   message and yields with `yield_now` puts itself back into that queue; with
//!   many such streams, connections and operator calls wait behind all of them.
//! - One queue for all tenants is not fair. A tenant with 500 calls under way puts
//!   all of them before the one call of another tenant.
//!
//! # The design
//!
//! - There are as many *slots* as cores. Event work runs only while it holds a
//!   slot. A slot is held during one poll of the future: a future that waits for
//!   its client or for the disk holds none.
//! - A stream that has had messages to read for a *slice* of 100 µs
//!   ([`TIME_SLICE`]) yields. A message that was begun is finished first.
//! - Work without a slot is a *waiter* in its tenant's queue. When a slot is
//!   released it goes to the first waiter of the next tenant, in round robin.
//!   A waiter that was dropped is skipped and costs its tenant nothing.
//! - [`yield_to_others`] enqueues the stream here and not in tokio's run queue.
//!   The run queue stays short: it holds connections, operator calls and the few
//!   futures that were granted a slot.
//! - A unary call runs to its end in one poll. With one worker thread per core a
//!   call is therefore finished before the next one is polled, and no call ever
//!   finds all slots taken. So while calls are *contended* a call queues even if
//!   a slot is free. Admission decides what is contended: more than 16 unary
//!   calls under way that are not all of one tenant.
//! - The hook of an agent program always queues, because a payload of 4 MiB takes
//!   longer than a slice to read. It yields between the events of its payload.
//! - Operator calls, probes and pushed terminations need no slot.
//!
//! Two settings elsewhere belong to the design: the runtime polls the network
//! after every fourth task (`cli/serve.rs`), and a thread gives up its core while
//! a call waits for the store's writer thread (`Api::yield_to_store_writer`).
//!
//! # What it promises
//!
//! - Event work delays anything else on a worker thread by one slice and the
//!   message in hand. Of a hook that is its payload, until it is read, then one event.
//! - A tenant waits for at most one slice per slot of every other tenant,
//!   however much they send. Unary calls of others that can run before its own:
//!   16, which take 0.4 ms, and one for each grant to the other tenant.
//! - A slot is never lost: it is released when the future panics or is dropped,
//!   also after it was granted and before it is polled.
//!
//! # The measurement
//!
//! `scripts/soak` on one core, p99 of a TERMINATE, to its operator and to the
//! stream of its session:
//!
//! | | quiet | under overload |
//! | --- | --- | --- |
//! | a thread more than cores, no slots | not measured | 8.9 and 6.8 ms |
//! | this scheduler, release build | 0.95 and 0.96 ms | 3.13 and 3.19 ms |
//! | the same, 30 minutes | 0.96 and 0.98 ms | 3.27 and 2.93 ms |
//!
//! Goodput of the release build at 2 and 4 times the peak load is 1.07 and 1.04
//! of the peak for streams and 1.19 and 1.16 for unary calls (30 minutes: .99 and
//! .93, 1.12 and 1.06). One call of a tenant beside 500 of another is answered
//! after 20 or fewer of them; without the contended queue it is answered last.
//!
//! Rejected alternatives: giving the core away after half a millisecond of work
//! (6.5 ms under load, goodput at twice the peak .87); queueing all unary calls
//! (goodput at twice the peak between .68 and 1.02 in most rounds); queueing also
//! the calls of a single tenant (goodput at twice the peak .85 instead of 1.1).
//! Operator calls on a runtime of their own and a semaphore per tenant do not give the
//! same promises. The operators' thread would be one more than cores, which is the
//! first row of the table. A semaphore bounds each tenant but not their sum: with one
//! permit each, 50 busy tenants put 50 slices, 5 ms, into the run queue before every
//! connection and termination. A bound for the sum needs an order among the tenants
//! that wait for it, and that is this scheduler.

use std::{
    cell::Cell,
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use crate::domain::Tenant;

/// How long a stream may work without a pause before it yields. Everything else on
/// the thread, operator calls too, waits for as long: short beside the millisecond
/// that a termination takes to reach the disk, long beside the microsecond that it
/// takes to grant the next slot.
pub const TIME_SLICE: Duration = Duration::from_micros(100);

/// The slots and the queues of waiters. Clones share them.
#[derive(Clone)]
pub struct FairScheduler(Arc<Mutex<TenantQueues>>);

struct TenantQueues {
    free_slots: usize,
    /// The waiters of each tenant. No queue is empty.
    waiters: HashMap<Tenant, VecDeque<Arc<Waiter>>, foldhash::quality::RandomState>,
    /// The tenants that have waiters, the next one first.
    tenant_order: VecDeque<Tenant>,
}

/// An entry in a tenant's queue.
struct Waiter {
    state: AtomicU8,
    waker: AtomicWaker,
}

const WAITING: u8 = 0;
const GRANTED: u8 = 1;
const CANCELLED: u8 = 2;

impl Waiter {
    fn new(waker: &Waker) -> Arc<Self> {
        let waiter = Self {
            state: AtomicU8::new(WAITING),
            waker: AtomicWaker::new(),
        };
        waiter.waker.register(waker);
        Arc::new(waiter)
    }

    /// Leaves `WAITING` for another state. Returns false if it already had.
    fn try_transition(&self, state: u8) -> bool {
        self.state
            .compare_exchange(WAITING, state, SeqCst, SeqCst)
            .is_ok()
    }
}

impl FairScheduler {
    pub fn new(slots: usize) -> Self {
        Self(Arc::new(Mutex::new(TenantQueues {
            free_slots: slots.max(1),
            waiters: HashMap::default(),
            tenant_order: VecDeque::new(),
        })))
    }

    /// Wraps a future so that it is polled only with a slot of this tenant. While
    /// it is pending it holds none.
    pub fn schedule<F: Future>(&self, tenant: Tenant, future: F) -> ScheduledFuture<F> {
        ScheduledFuture {
            handle: self.handle(tenant),
            is_contended: false,
            future: Box::pin(future),
        }
    }

    /// The same for work that may take longer than a slice: it queues even if a slot is
    /// free.
    pub fn schedule_contended<F: Future>(&self, tenant: Tenant, future: F) -> ScheduledFuture<F> {
        ScheduledFuture {
            is_contended: true,
            ..self.schedule(tenant, future)
        }
    }

    /// A handle that waits for slots in this tenant's queue.
    pub fn handle(&self, tenant: Tenant) -> SchedulerHandle {
        SchedulerHandle {
            scheduler: self.clone(),
            tenant,
            waiter: None,
        }
    }

    /// Takes a slot, or enqueues a waiter. Contended work is enqueued even if a
    /// slot is free.
    fn acquire_or_enqueue(
        &self,
        tenant: &Tenant,
        is_contended: bool,
        waker: &Waker,
    ) -> Result<SchedulerSlot<'_>, Arc<Waiter>> {
        let mut queues = self.0.lock();
        // If there are waiters, no slot is free.
        let free_slot = (queues.free_slots > 0).then(|| {
            queues.free_slots -= 1;
            SchedulerSlot(self)
        });
        match free_slot {
            Some(slot) if !is_contended => Ok(slot),
            free_slot => {
                let waiter = Waiter::new(waker);
                queues.enqueue(tenant, waiter.clone());
                drop(queues);
                // Granted to the first waiter, which may be this one.
                drop(free_slot);
                Err(waiter)
            }
        }
    }
}

impl TenantQueues {
    fn enqueue(&mut self, tenant: &Tenant, waiter: Arc<Waiter>) {
        match self.waiters.get_mut(tenant) {
            Some(queue) => queue.push_back(waiter),
            None => {
                self.waiters.insert(tenant.clone(), [waiter].into());
                self.tenant_order.push_back(tenant.clone());
            }
        }
    }

    /// Grants a slot to the first waiter of the next tenant. Cancelled waiters are
    /// skipped and do not use up their tenant's turn in the round robin.
    fn grant_next(&mut self) -> Option<Arc<Waiter>> {
        while let Some(tenant) = self.tenant_order.pop_front() {
            let Some(queue) = self.waiters.get_mut(&tenant) else {
                continue;
            };
            let mut granted = None;
            while granted.is_none()
                && let Some(waiter) = queue.pop_front()
            {
                granted = waiter.try_transition(GRANTED).then_some(waiter);
            }
            if queue.is_empty() {
                self.waiters.remove(&tenant);
            } else {
                self.tenant_order.push_back(tenant);
            }
            if granted.is_some() {
                return granted;
            }
        }
        None
    }
}

/// A slot. On drop it is granted to the next waiter, or is free.
struct SchedulerSlot<'a>(&'a FairScheduler);

impl Drop for SchedulerSlot<'_> {
    fn drop(&mut self) {
        let mut queues = self.0.0.lock();
        match queues.grant_next() {
            Some(next) => {
                drop(queues);
                next.waker.wake();
            }
            None => queues.free_slots += 1,
        }
    }
}

thread_local! {
    /// Set by a future that yields, for the handle that polls it.
    static HAS_YIELDED: Cell<bool> = const { Cell::new(false) };
}

/// Releases the slot and enqueues the future in its tenant's queue. Works only
/// inside [`FairScheduler::schedule`]. (`tokio::task::yield_now` would put it into
/// tokio's run queue, where everything else would wait behind it.)
pub async fn yield_to_others() {
    let mut has_yielded = false;
    poll_fn(|_| {
        if mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        HAS_YIELDED.set(true);
        Poll::Pending
    })
    .await;
}

/// Waits for slots in one tenant's queue.
pub struct SchedulerHandle {
    scheduler: FairScheduler,
    tenant: Tenant,
    /// Set while it is enqueued.
    waiter: Option<Arc<Waiter>>,
}

impl SchedulerHandle {
    /// Runs `work` with a slot, or returns `Pending` and is woken when one is
    /// granted. If `is_contended`, it queues even if a slot is free.
    pub fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        is_contended: bool,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let slot = match &self.waiter {
            None => self
                .scheduler
                .acquire_or_enqueue(&self.tenant, is_contended, cx.waker()),
            Some(waiter) => {
                waiter.waker.register(cx.waker());
                if waiter.state.load(SeqCst) != GRANTED {
                    return Poll::Pending;
                }
                Ok(SchedulerSlot(&self.scheduler))
            }
        };
        let _slot = match slot {
            Ok(slot) => slot,
            Err(waiter) => {
                self.waiter = Some(waiter);
                return Poll::Pending;
            }
        };
        self.waiter = None;
        let polled = work(cx);
        if HAS_YIELDED.take() {
            // Before the slot is released: it may be granted to this waiter.
            let waiter = Waiter::new(cx.waker());
            let mut queues = self.scheduler.0.lock();
            queues.enqueue(&self.tenant, waiter.clone());
            drop(queues);
            self.waiter = Some(waiter);
        }
        polled
    }
}

impl Drop for SchedulerHandle {
    fn drop(&mut self) {
        let Some(waiter) = &self.waiter else { return };
        if waiter.try_transition(CANCELLED) {
            // The waker would keep the task alive until the waiter is dequeued.
            drop(waiter.waker.take());
        } else {
            // A slot was granted and not used: pass it on.
            drop(SchedulerSlot(&self.scheduler));
        }
    }
}

/// A future that is polled only with a slot.
pub struct ScheduledFuture<F> {
    handle: SchedulerHandle,
    is_contended: bool,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for ScheduledFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.handle
            .poll(cx, this.is_contended, |cx| this.future.as_mut().poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, ready};

    use futures_util::FutureExt;
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::parse(name).unwrap()
    }

    /// The free slots of a scheduler that has no waiters.
    fn free_slots(scheduler: &FairScheduler) -> usize {
        let queues = scheduler.0.lock();
        assert!(queues.waiters.is_empty() && queues.tenant_order.is_empty());
        queues.free_slots
    }

    fn waiter_count(scheduler: &FairScheduler) -> usize {
        let queues = scheduler.0.lock();
        queues.waiters.values().map(VecDeque::len).sum()
    }

    /// Takes the only slot, so that everything else has to queue.
    fn take_slot(scheduler: &FairScheduler) -> SchedulerSlot<'_> {
        let slot = scheduler.acquire_or_enqueue(&tenant("x"), false, Waker::noop());
        slot.ok().unwrap()
    }

    /// A future of this tenant that waits for a slot.
    fn enqueued(scheduler: &FairScheduler, name: &str) -> ScheduledFuture<Ready<()>> {
        let mut future = scheduler.schedule(tenant(name), ready(()));
        assert!((&mut future).now_or_never().is_none());
        future
    }

    /// Works for this many slices and logs each.
    async fn work(name: &'static str, slices: usize, log: Arc<Mutex<Vec<&'static str>>>) {
        for _ in 0..slices {
            log.lock().push(name);
            yield_to_others().await;
        }
    }

    #[tokio::test]
    async fn tenants_run_in_round_robin_however_much_one_sends() {
        let scheduler = FairScheduler::new(1);
        let log = Arc::default();
        let slot = take_slot(&scheduler);
        let mut tasks = JoinSet::new();
        for _ in 0..100 {
            tasks.spawn(scheduler.schedule(tenant("many"), work("many", 2, Arc::clone(&log))));
        }
        tasks.spawn(scheduler.schedule(tenant("few"), work("few", 3, Arc::clone(&log))));
        // Everything is enqueued before the first slot is granted.
        while waiter_count(&scheduler) < 101 {
            yield_now().await;
        }
        drop(slot);
        tasks.join_all().await;
        let log = log.lock();
        assert_eq!(log.len(), 203);
        let last = log.iter().rposition(|name| *name == "few").unwrap();
        assert!(last <= 12, "the third slice of `few` ran at {last}");
        assert_eq!(free_slots(&scheduler), 1);
    }

    #[tokio::test]
    async fn a_future_that_is_dropped_or_panics_releases_its_slot() {
        let scheduler = FairScheduler::new(1);
        let slot = take_slot(&scheduler);
        let [waiting, granted, mut last] = [(); 3].map(|()| enqueued(&scheduler, "a"));
        drop(waiting);
        drop(slot);
        assert!((&mut last).now_or_never().is_none(), "granted to another");
        drop(granted);
        assert!(last.now_or_never().is_some());
        assert_eq!(free_slots(&scheduler), 1);

        let panics = scheduler.schedule(tenant("a"), async { panic!("on purpose") });
        let caught = std::panic::AssertUnwindSafe(panics).catch_unwind().await;
        assert!(caught.is_err());
        assert_eq!(free_slots(&scheduler), 1);
    }

    #[tokio::test]
    async fn a_cancelled_waiter_does_not_use_up_its_tenants_turn() {
        let scheduler = FairScheduler::new(1);
        let slot = take_slot(&scheduler);
        let cancelled: Vec<_> = (0..50).map(|_| enqueued(&scheduler, "a")).collect();
        let last = enqueued(&scheduler, "a");
        let others: Vec<_> = (0..50).map(|_| enqueued(&scheduler, "b")).collect();
        drop(cancelled);
        drop(slot);
        assert!(last.now_or_never().is_some(), "the first that is granted");
        drop(others);
        assert_eq!(free_slots(&scheduler), 1);
    }

    #[tokio::test]
    async fn contended_work_queues_even_if_a_slot_is_free() {
        let scheduler = FairScheduler::new(1);
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for (name, count) in [("many", 100), ("few", 1)] {
            for _ in 0..count {
                let (mut handle, log) = (scheduler.handle(tenant(name)), log.clone());
                // A slot is free whenever one of these is first polled.
                tasks.spawn(poll_fn(move |cx| {
                    handle.poll(cx, true, |_| {
                        log.lock().push(name);
                        Poll::Ready(())
                    })
                }));
            }
        }
        tasks.join_all().await;
        let log = log.lock();
        assert_eq!(log.len(), 101);
        let few = log.iter().position(|name| *name == "few").unwrap();
        assert!(few <= 2, "{few} of `many` ran before `few`");
        assert_eq!(free_slots(&scheduler), 1);
    }

    #[tokio::test]
    async fn a_contended_future_queues_even_if_a_slot_is_free() {
        let scheduler = FairScheduler::new(1);
        let mut future = scheduler.schedule_contended(tenant("a"), ready(()));
        // It is enqueued, and then granted the slot as the first waiter.
        assert!((&mut future).now_or_never().is_none());
        assert!(future.now_or_never().is_some());
        assert_eq!(free_slots(&scheduler), 1);
    }

    #[tokio::test]
    async fn a_pending_future_holds_no_slot() {
        let scheduler = FairScheduler::new(1);
        let mut pending = scheduler.schedule(tenant("a"), std::future::pending::<()>());
        assert!((&mut pending).now_or_never().is_none());
        assert_eq!(free_slots(&scheduler), 1);
        let other = scheduler.schedule(tenant("b"), async {});
        assert!(other.now_or_never().is_some());
    }
}
