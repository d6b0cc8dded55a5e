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
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use futures_util::task::AtomicWaker;

use crate::domain::Tenant;

/// Clones share the turns.
#[derive(Clone)]
pub struct Turns(Arc<Mutex<Lines>>);

struct Lines {
    /// How many more may work.
    free: usize,
    /// Who waits, by tenant. No line is empty.
    waiting: HashMap<Tenant, VecDeque<Arc<Ticket>>, foldhash::quality::RandomState>,
    /// Whose turn is next.
    order: VecDeque<Tenant>,
}

/// A place in a line.
struct Ticket {
    state: AtomicU8,
    waker: AtomicWaker,
}

const WAITING: u8 = 0;
const CALLED: u8 = 1;
const GONE: u8 = 2;

impl Ticket {
    fn new(waker: &Waker) -> Arc<Self> {
        let ticket = Self {
            state: AtomicU8::new(WAITING),
            waker: AtomicWaker::new(),
        };
        ticket.waker.register(waker);
        Arc::new(ticket)
    }

    /// Whether it still waited.
    fn becomes(&self, state: u8) -> bool {
        let changed = self.state.compare_exchange(WAITING, state, SeqCst, SeqCst);
        changed.is_ok()
    }
}

impl Turns {
    /// So many may work at a time.
    pub fn new(at_a_time: usize) -> Self {
        Self(Arc::new(Mutex::new(Lines {
            free: at_a_time.max(1),
            waiting: HashMap::default(),
            order: VecDeque::new(),
        })))
    }

    /// Runs a future so that each time it is polled is a turn of the tenant's.
    /// While it waits for something it has none.
    pub fn take<F: Future>(&self, tenant: Tenant, future: F) -> Taking<F> {
        let line = self.line(tenant);
        let future = Box::pin(future);
        Taking { line, future }
    }

    /// Where somebody of this tenant waits for turns.
    pub fn line(&self, tenant: Tenant) -> Line {
        Line {
            turns: self.clone(),
            tenant,
            ticket: None,
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn, or a place in the tenant's line. One of a crowd stands in line for each,
    /// also when one is free: the crowd's others come after it.
    fn ask(&self, tenant: &Tenant, is_crowd: bool, waker: &Waker) -> Result<Turn<'_>, Arc<Ticket>> {
        let mut lines = self.lines();
        // Where anybody waits there is none free.
        let free = (lines.free > 0).then(|| {
            lines.free -= 1;
            Turn(self)
        });
        match free {
            Some(turn) if !is_crowd => Ok(turn),
            free => {
                let ticket = Ticket::new(waker);
                lines.stand(tenant, ticket.clone());
                drop(lines);
                // It goes to the first in line, who may be this one.
                drop(free);
                Err(ticket)
            }
        }
    }
}

impl Lines {
    fn stand(&mut self, tenant: &Tenant, ticket: Arc<Ticket>) {
        match self.waiting.get_mut(tenant) {
            Some(line) => line.push_back(ticket),
            None => {
                self.waiting.insert(tenant.clone(), [ticket].into());
                self.order.push_back(tenant.clone());
            }
        }
    }

    /// Calls the first who still waits in the line of the tenant whose turn it is:
    /// who has gone away costs its tenant no turn.
    fn call(&mut self) -> Option<Arc<Ticket>> {
        while let Some(tenant) = self.order.pop_front() {
            let Some(line) = self.waiting.get_mut(&tenant) else {
                continue;
            };
            let mut called = None;
            while called.is_none()
                && let Some(ticket) = line.pop_front()
            {
                called = ticket.becomes(CALLED).then_some(ticket);
            }
            match line.is_empty() {
                true => {
                    self.waiting.remove(&tenant);
                }
                false => self.order.push_back(tenant),
            }
            if called.is_some() {
                return called;
            }
        }
        None
    }
}

/// Given back when it is dropped, to the next who waits.
struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut lines = self.0.lines();
        match lines.call() {
            Some(next) => {
                drop(lines);
                next.waker.wake();
            }
            None => lines.free += 1,
        }
    }
}

thread_local! {
    /// What a future that gives up its turn tells who polls it.
    static HAS_MORE: Cell<bool> = const { Cell::new(false) };
}

/// Ends the turn of who has more to do: it stands in line again, and is called.
/// Only within [`Turns::take`]. (The runtime's own way to yield would put it among
/// the runtime's tasks, where everything else would wait behind it.)
pub async fn end_turn() {
    let mut is_over = false;
    poll_fn(|_| {
        if mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        HAS_MORE.set(true);
        Poll::Pending
    })
    .await;
}

/// Where somebody waits for turns.
pub struct Line {
    turns: Turns,
    tenant: Tenant,
    /// While it waits.
    ticket: Option<Arc<Ticket>>,
}

impl Line {
    /// Does this as a turn, when there is one; of a crowd, when the line comes to it.
    pub fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        is_crowd: bool,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let turn = match &self.ticket {
            None => self.turns.ask(&self.tenant, is_crowd, cx.waker()),
            Some(ticket) => {
                ticket.waker.register(cx.waker());
                match ticket.state.load(SeqCst) == CALLED {
                    true => Ok(Turn(&self.turns)),
                    false => return Poll::Pending,
                }
            }
        };
        let _turn = match turn {
            Ok(turn) => turn,
            Err(ticket) => {
                self.ticket = Some(ticket);
                return Poll::Pending;
            }
        };
        self.ticket = None;
        let polled = work(cx);
        if HAS_MORE.take() {
            // Before the turn is given back, which may well be to this one.
            let ticket = Ticket::new(cx.waker());
            self.turns.lines().stand(&self.tenant, ticket.clone());
            self.ticket = Some(ticket);
        }
        polled
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Some(ticket) = &self.ticket else { return };
        match ticket.becomes(GONE) {
            // Else its task would be held until the line comes to it.
            true => drop(ticket.waker.take()),
            // Who was called and does not come passes the turn on.
            false => drop(Turn(&self.turns)),
        }
    }
}

/// A future that takes turns.
pub struct Taking<F> {
    line: Line,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Taking<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.line
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

    fn free(turns: &Turns) -> usize {
        let lines = turns.lines();
        assert!(lines.waiting.is_empty() && lines.order.is_empty());
        lines.free
    }

    /// Works for so many turns, and says so each time.
    async fn work(name: &'static str, many: usize, done: Arc<Mutex<Vec<&'static str>>>) {
        for _ in 0..many {
            done.lock().unwrap().push(name);
            end_turn().await;
        }
    }

    #[tokio::test]
    async fn tenants_have_their_turns_one_after_another_however_much_one_sends() {
        let turns = Turns::new(1);
        let done = Arc::default();
        let held = turns.ask(&tenant("x"), false, Waker::noop()).ok().unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..100 {
            tasks.spawn(turns.take(tenant("many"), work("many", 2, Arc::clone(&done))));
        }
        tasks.spawn(turns.take(tenant("few"), work("few", 3, Arc::clone(&done))));
        // All of the crowd stand before the other one does.
        let waiting = || {
            turns
                .lines()
                .waiting
                .values()
                .map(VecDeque::len)
                .sum::<usize>()
        };
        while waiting() < 101 {
            yield_now().await;
        }
        drop(held);
        tasks.join_all().await;
        let done = done.lock().unwrap();
        assert_eq!(done.len(), 203);
        let last = done.iter().rposition(|name| *name == "few").unwrap();
        assert!(last <= 12, "some of theirs for each of its own: {last}");
        assert_eq!(free(&turns), 1);
    }

    #[tokio::test]
    async fn who_goes_away_or_panics_leaves_its_turn_to_the_next() {
        let turns = Turns::new(1);
        let ours = tenant("ours");
        let held = turns.ask(&ours, false, Waker::noop()).ok().unwrap();
        let comes = || turns.take(ours.clone(), std::future::ready(()));
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

        let panics = turns.take(ours.clone(), async { panic!("on purpose") });
        let panics = std::panic::AssertUnwindSafe(panics).catch_unwind();
        assert!(panics.await.is_err());
        assert_eq!(free(&turns), 1);
    }

    #[tokio::test]
    async fn who_goes_away_costs_its_tenant_no_turn() {
        let turns = Turns::new(1);
        let held = turns.ask(&tenant("x"), false, Waker::noop()).ok().unwrap();
        let comes = |name: &str| turns.take(tenant(name), std::future::ready(()));
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
        let turns = Turns::new(1);
        let done = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for (name, many) in [("many", 100), ("few", 1)] {
            for _ in 0..many {
                let (mut line, done) = (turns.line(tenant(name)), done.clone());
                // A turn is free for each when it comes.
                tasks.spawn(poll_fn(move |cx| {
                    line.poll(cx, true, |_| {
                        done.lock().unwrap().push(name);
                        Poll::Ready(())
                    })
                }));
            }
        }
        tasks.join_all().await;
        let done = done.lock().unwrap();
        assert_eq!(done.len(), 101);
        let few = done.iter().position(|name| *name == "few").unwrap();
        assert!(few <= 2, "some of theirs for the one: {few}");
        assert_eq!(free(&turns), 1);
    }

    #[tokio::test]
    async fn who_waits_for_something_holds_up_nobody() {
        let turns = Turns::new(1);
        let mut idle = turns.take(tenant("a"), std::future::pending::<()>());
        assert!((&mut idle).now_or_never().is_none());
        assert_eq!(free(&turns), 1);
        assert!(turns.take(tenant("b"), async {}).now_or_never().is_some());
    }
}
