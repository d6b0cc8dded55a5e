//! Work that takes longer than a turn: on threads of its own, few at a time.
//!
//! Uses: nothing.

use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
};

/// As many at a time, of all who ask: each reads a part of the log, up to 8 MiB of
/// it, or goes through all sessions. One alone would wait for the longest.
const AT_ONCE: usize = 2;

static PLACES: Semaphore = Semaphore::const_new(AT_ONCE);

/// Does the work once there is a place for it. Who gives up before that has not
/// asked; what was begun goes on to its end, and has its place as long. `Err`: it
/// panicked, or the service ends.
pub async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let place = PLACES.acquire().await;
    let working = spawn_blocking(move || {
        let done = work();
        drop(place);
        done
    });
    working.await
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc, Mutex,
            atomic::{AtomicUsize, Ordering::SeqCst},
            mpsc,
        },
        time::Duration,
    };

    use super::*;

    #[tokio::test]
    async fn who_asks_and_gives_up_leaves_no_more_work_than_there_are_places() {
        let begun = Arc::new(AtomicUsize::new(0));
        let (open, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for _ in 0..20 {
            let (begun, gate) = (begun.clone(), gate.clone());
            let asked = tokio::spawn(run(move || {
                begun.fetch_add(1, SeqCst);
                let _ = gate.lock().unwrap().recv();
            }));
            tokio::time::sleep(Duration::from_millis(5)).await;
            asked.abort();
        }
        assert!((1..=AT_ONCE).contains(&begun.load(SeqCst)));
        drop(open);
        // And those have their places back.
        run(|| {}).await.unwrap();
    }
}
