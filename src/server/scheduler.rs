//! Whose turn it is to have events looked at.
//!
//! As many are at work at a time as the machine has cores. Who has more to send
//! than a turn allows, or comes while others are at work, waits here and not among
//! the tasks of the runtime: these stay few, so connections are served, and what
//! operators do gets through, however much is sent. They wait by tenant, and the
//! tenants have their turns one after another: who sends much waits behind itself.
//!
//! With a thread a core nobody ever comes while all turns are taken: a single call
//! is over before the next is looked at. So one of many calls stands in line first.

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
};

use parking_lot::{Mutex, MutexGuard};

use futures_util::task::AtomicWaker;

use crate::domain::Tenant;

/// Clones share the turns.
#[derive(Clone)]
pub struct FairScheduler(Arc<Mutex<TenantQueues>>);

struct TenantQueues {
    /// How many more may work.
    free_slots: usize,
    /// Who waits, by tenant. No line is empty.
    waiters: HashMap<Tenant, VecDeque<Arc<Waiter>>, foldhash::quality::RandomState>,
    /// Whose turn is next.
    tenant_order: VecDeque<Tenant>,
}

/// A place in a line.
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

    /// Whether it still waited.
    fn try_transition(&self, state: u8) -> bool {
        let changed = self.state.compare_exchange(WAITING, state, SeqCst, SeqCst);
        changed.is_ok()
    }
}

impl FairScheduler {
    /// So many may work at a time.
    pub fn new(slots: usize) -> Self {
        Self(Arc::new(Mutex::new(TenantQueues {
            free_slots: slots.max(1),
            waiters: HashMap::default(),
            tenant_order: VecDeque::new(),
        })))
    }

    /// Runs a future so that each time it is polled is a turn of the tenant's.
    /// While it waits for something it has none.
    pub fn schedule<F: Future>(&self, tenant: Tenant, future: F) -> ScheduledFuture<F> {
        let handle = self.handle(tenant);
        let future = Box::pin(future);
        ScheduledFuture { handle, future }
    }

    /// Where somebody of this tenant waits for turns.
    pub fn handle(&self, tenant: Tenant) -> SchedulerHandle {
        SchedulerHandle {
            scheduler: self.clone(),
            tenant,
            waiter: None,
        }
    }

    fn lock_queues(&self) -> MutexGuard<'_, TenantQueues> {
        self.0.lock()
    }

    /// A turn, or a place in the tenant's line. One of a crowd stands in line for each,
    /// also when one is free: the crowd's others come after it.
    fn acquire_or_enqueue(
        &self,
        tenant: &Tenant,
        is_contended: bool,
        waker: &Waker,
    ) -> Result<SchedulerSlot<'_>, Arc<Waiter>> {
        let mut queues = self.lock_queues();
        // Where anybody waits there is none free.
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
                // It goes to the first in line, who may be this one.
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

    /// Calls the first who still waits in the line of the tenant whose turn it is:
    /// who has gone away costs its tenant no turn.
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
            match queue.is_empty() {
                true => {
                    self.waiters.remove(&tenant);
                }
                false => self.tenant_order.push_back(tenant),
            }
            if granted.is_some() {
                return granted;
            }
        }
        None
    }
}

/// Given back when it is dropped, to the next who waits.
struct SchedulerSlot<'a>(&'a FairScheduler);

impl Drop for SchedulerSlot<'_> {
    fn drop(&mut self) {
        let mut queues = self.0.lock_queues();
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
    /// What a future that gives up its turn tells who polls it.
    static HAS_YIELDED: Cell<bool> = const { Cell::new(false) };
}

/// Ends the turn of who has more to do: it stands in line again, and is called.
/// Only within [`Turns::take`]. (The runtime's own way to yield would put it among
/// the runtime's tasks, where everything else would wait behind it.)
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

/// Where somebody waits for turns.
pub struct SchedulerHandle {
    scheduler: FairScheduler,
    tenant: Tenant,
    /// While it waits.
    waiter: Option<Arc<Waiter>>,
}

impl SchedulerHandle {
    /// Does this as a turn, when there is one; of a crowd, when the line comes to it.
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
                match waiter.state.load(SeqCst) == GRANTED {
                    true => Ok(SchedulerSlot(&self.scheduler)),
                    false => return Poll::Pending,
                }
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
            // Before the turn is given back, which may well be to this one.
            let waiter = Waiter::new(cx.waker());
            self.scheduler
                .lock_queues()
                .enqueue(&self.tenant, waiter.clone());
            self.waiter = Some(waiter);
        }
        polled
    }
}

impl Drop for SchedulerHandle {
    fn drop(&mut self) {
        let Some(waiter) = &self.waiter else { return };
        match waiter.try_transition(CANCELLED) {
            // Else its task would be held until the line comes to it.
            true => drop(waiter.waker.take()),
            // Who was called and does not come passes the turn on.
            false => drop(SchedulerSlot(&self.scheduler)),
        }
    }
}

/// A future that takes turns.
pub struct ScheduledFuture<F> {
    handle: SchedulerHandle,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for ScheduledFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.handle
            .poll(cx, false, |cx| this.future.as_mut().poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::parse(name).unwrap()
    }

    fn free(turns: &FairScheduler) -> usize {
        let lines = turns.lock_queues();
        assert!(lines.waiters.is_empty() && lines.tenant_order.is_empty());
        lines.free_slots
    }

    /// Works for so many turns, and says so each time.
    async fn work(name: &'static str, many: usize, done: Arc<Mutex<Vec<&'static str>>>) {
        for _ in 0..many {
            done.lock().push(name);
            yield_to_others().await;
        }
    }

    #[tokio::test]
    async fn tenants_have_their_turns_one_after_another_however_much_one_sends() {
        let turns = FairScheduler::new(1);
        let done = Arc::default();
        let held = turns
            .acquire_or_enqueue(&tenant("x"), false, Waker::noop())
            .ok()
            .unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..100 {
            tasks.spawn(turns.schedule(tenant("many"), work("many", 2, Arc::clone(&done))));
        }
        tasks.spawn(turns.schedule(tenant("few"), work("few", 3, Arc::clone(&done))));
        // All of the crowd stand before the other one does.
        let waiting = || {
            turns
                .lock_queues()
                .waiters
                .values()
                .map(VecDeque::len)
                .sum::<usize>()
        };
        while waiting() < 101 {
            yield_now().await;
        }
        drop(held);
        tasks.join_all().await;
        let done = done.lock();
        assert_eq!(done.len(), 203);
        let last = done.iter().rposition(|name| *name == "few").unwrap();
        assert!(last <= 12, "some of theirs for each of its own: {last}");
        assert_eq!(free(&turns), 1);
    }

    #[tokio::test]
    async fn who_goes_away_or_panics_leaves_its_turn_to_the_next() {
        let turns = FairScheduler::new(1);
        let ours = tenant("ours");
        let held = turns
            .acquire_or_enqueue(&ours, false, Waker::noop())
            .ok()
            .unwrap();
        let comes = || turns.schedule(ours.clone(), std::future::ready(()));
        let [mut waits, mut called, mut last] = [comes(), comes(), comes()];
        for one in [&mut waits, &mut called, &mut last] {
            assert!(one.now_or_never().is_none());
        }
        drop(waits);
        drop(held);
        assert!((&mut last).now_or_never().is_none(), "another was called");
        drop(called);
        assert!(last.now_or_never().is_some());
        assert_eq!(free(&turns), 1);

        let panics = turns.schedule(ours.clone(), async { panic!("on purpose") });
        let panics = std::panic::AssertUnwindSafe(panics).catch_unwind();
        assert!(panics.await.is_err());
        assert_eq!(free(&turns), 1);
    }

    #[tokio::test]
    async fn who_goes_away_costs_its_tenant_no_turn() {
        let turns = FairScheduler::new(1);
        let held = turns
            .acquire_or_enqueue(&tenant("x"), false, Waker::noop())
            .ok()
            .unwrap();
        let comes = |name: &str| turns.schedule(tenant(name), std::future::ready(()));
        let stand = |name: &str| {
            let mut one = comes(name);
            assert!((&mut one).now_or_never().is_none());
            one
        };
        let gone: Vec<_> = (0..50).map(|_| stand("a")).collect();
        let last = stand("a");
        let others: Vec<_> = (0..50).map(|_| stand("b")).collect();
        drop(gone);
        drop(held);
        assert!(last.now_or_never().is_some(), "the first that is called");
        drop(others);
        assert_eq!(free(&turns), 1);
    }

    #[tokio::test]
    async fn of_a_crowd_nobody_works_before_the_line_comes_to_it() {
        let turns = FairScheduler::new(1);
        let done = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for (name, many) in [("many", 100), ("few", 1)] {
            for _ in 0..many {
                let (mut line, done) = (turns.handle(tenant(name)), done.clone());
                // A turn is free for each when it comes.
                tasks.spawn(poll_fn(move |cx| {
                    line.poll(cx, true, |_| {
                        done.lock().push(name);
                        Poll::Ready(())
                    })
                }));
            }
        }
        tasks.join_all().await;
        let done = done.lock();
        assert_eq!(done.len(), 101);
        let few = done.iter().position(|name| *name == "few").unwrap();
        assert!(few <= 2, "some of theirs for the one: {few}");
        assert_eq!(free(&turns), 1);
    }

    #[tokio::test]
    async fn who_waits_for_something_holds_up_nobody() {
        let turns = FairScheduler::new(1);
        let mut idle = turns.schedule(tenant("a"), std::future::pending::<()>());
        assert!((&mut idle).now_or_never().is_none());
        assert_eq!(free(&turns), 1);
        assert!(
            turns
                .schedule(tenant("b"), async {})
                .now_or_never()
                .is_some()
        );
    }
}
