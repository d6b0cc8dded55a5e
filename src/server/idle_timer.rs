//! The idle timeout of a stream.

use std::{pin::Pin, time::Duration};

use tokio::time::{self, Instant, Sleep};

/// Expires when a client has sent nothing for too long. A reset only reads the clock;
/// the tokio timer is reset only when it fires.
pub struct IdleTimer {
    timeout: Duration,
    last_activity: Instant,
    timer: Pin<Box<Sleep>>,
}

impl IdleTimer {
    pub fn new(secs_max: u64) -> Self {
        let timeout = Duration::from_secs(secs_max);
        Self {
            timeout,
            last_activity: Instant::now(),
            timer: Box::pin(time::sleep(timeout)),
        }
    }

    /// Notes activity, and returns its time.
    pub fn reset(&mut self) -> Instant {
        self.last_activity = Instant::now();
        self.last_activity
    }

    /// Waits until the timeout. Cancel-safe.
    pub async fn expired(&mut self) {
        loop {
            self.timer.as_mut().await;
            let deadline = self.last_activity + self.timeout;
            if deadline <= Instant::now() {
                return;
            }
            self.timer.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_timeout_runs_from_the_last_activity() {
        let start = Instant::now();
        let mut timer = IdleTimer::new(60);
        for _ in 0..3 {
            let expired = time::timeout(Duration::from_secs(50), timer.expired()).await;
            assert!(expired.is_err(), "it expired after 50 of 60 s");
            timer.reset();
        }
        timer.expired().await;
        assert_eq!(start.elapsed(), Duration::from_secs(150 + 60));
    }
}
