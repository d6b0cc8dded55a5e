//! Wakes tasks when they are due. tokio's timers have a resolution of one millisecond,
//! which is longer than most answers take; a sleeping thread is off by microseconds.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

#[derive(Clone)]
pub struct Pacer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// The waiting tasks by due time. The number distinguishes tasks with the same time.
#[derive(Default)]
struct Waiting {
    wakers: BTreeMap<(Instant, u64), Waker>,
    count: u64,
}

impl Pacer {
    pub fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let weak = Arc::downgrade(&shared);
        thread::spawn(move || wake_all(&weak));
        Self(shared)
    }

    pub async fn until(&self, due: Instant) {
        poll_fn(|cx| self.poll_until(due, cx)).await;
    }

    pub fn poll_until(&self, due: Instant, cx: &Context<'_>) -> Poll<()> {
        if Instant::now() >= due {
            return Poll::Ready(());
        }
        let mut waiting = self.0.waiting();
        waiting.count += 1;
        let key = (due, waiting.count);
        let is_next = waiting
            .wakers
            .first_key_value()
            .is_none_or(|(next, _)| key < *next);
        waiting.wakers.insert(key, cx.waker().clone());
        drop(waiting);
        if is_next {
            self.0.changed.notify_one();
        }
        Poll::Pending
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often the thread checks whether the pacer is still in use.
const IDLE: Duration = Duration::from_millis(50);

fn wake_all(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let mut waiting = shared.waiting();
        let now = Instant::now();
        while let Some(next) = waiting.wakers.first_entry()
            && next.key().0 <= now
        {
            next.remove().wake();
        }
        let next = waiting.wakers.first_key_value();
        let pause = next.map_or(IDLE, |((due, _), _)| *due - now);
        // Checks again, whether woken or timed out.
        drop(shared.changed.wait_timeout(waiting, pause.min(IDLE)));
    }
}
