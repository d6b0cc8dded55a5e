//! Work that takes longer than a time slice. It runs on blocking threads, two at a
//! time of each kind.

use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
};

/// How many of each kind run at a time, over all callers. With one, a short scan would
/// wait for a long one.
const CONCURRENCY_MAX: usize = 2;

/// Reads of the disk, up to 8 MiB each, have permits of their own because a disk may
/// hang.
static READ_PERMITS: Semaphore = Semaphore::const_new(CONCURRENCY_MAX);
static SCAN_PERMITS: Semaphore = Semaphore::const_new(CONCURRENCY_MAX);

/// Runs a read of the audit log when a permit is free. A caller that is dropped before
/// that has started nothing; work that has started runs to its end and holds its permit
/// until then. `Err`: it panicked, or the service shuts down.
pub async fn read_log<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    run_with_permit(&READ_PERMITS, work).await
}

/// Runs a scan of all sessions in the same way.
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
    spawn_blocking(move || {
        let result = work();
        drop(permit);
        result
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

    use super::*;

    #[tokio::test]
    async fn cancelled_callers_leave_no_more_work_than_there_are_permits() {
        let (start, mut started) = tokio::sync::mpsc::channel(20);
        let (open, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for _ in 0..20 {
            let (start, gate) = (start.clone(), gate.clone());
            let caller = tokio::spawn(scan_sessions(move || {
                start.blocking_send(()).unwrap();
                let _ = gate.lock().unwrap().recv();
            }));
            // The task is polled once: it starts its work or waits for a permit.
            tokio::task::yield_now().await;
            caller.abort();
        }
        for _ in 0..CONCURRENCY_MAX {
            started.recv().await.unwrap();
        }
        assert!(started.try_recv().is_err());
        read_log(|| {}).await.unwrap();
        drop(open);
        // The permits are released.
        scan_sessions(|| {}).await.unwrap();
    }
}
