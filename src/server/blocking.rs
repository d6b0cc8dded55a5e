//! Work that takes longer than a turn: on threads of its own, few at a time.

use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
};

/// As many of each kind at a time, of all who ask. One alone would wait for the
/// longest.
const CONCURRENCY_MAX: usize = 2;

/// Those that read the disk, up to 8 MiB of it, have places of their own: it may
/// hang.
static READ_PERMITS: Semaphore = Semaphore::const_new(CONCURRENCY_MAX);
static SCAN_PERMITS: Semaphore = Semaphore::const_new(CONCURRENCY_MAX);

/// Reads the audit log, once there is a place for that. Who gives up before that
/// has not asked; what was begun goes on to its end, and has its place as long.
/// `Err`: it panicked, or the service ends.
pub async fn read_log<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    run_with_permit(&READ_PERMITS, work).await
}

/// Goes through all sessions, in the same way.
pub async fn scan_sessions<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    run_with_permit(&SCAN_PERMITS, work).await
}

async fn run_with_permit<T: Send + 'static>(
    permits: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let permit = permits.acquire().await;
    let task = spawn_blocking(move || {
        let done = work();
        drop(permit);
        done
    });
    task.await
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
            let asked = tokio::spawn(scan_sessions(move || {
                begun.fetch_add(1, SeqCst);
                let _ = gate.lock().unwrap().recv();
            }));
            // The task is polled once: it starts its work or waits for a permit.
            tokio::task::yield_now().await;
            asked.abort();
        }
        while begun.load(SeqCst) < CONCURRENCY_MAX {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(begun.load(SeqCst), CONCURRENCY_MAX);
        read_log(|| {}).await.unwrap();
        drop(open);
        // And those have their places back.
        scan_sessions(|| {}).await.unwrap();
    }
}
