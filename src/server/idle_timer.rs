use std::{pin::Pin, time::Duration};

use tokio::time::{self, Instant, Sleep};

/// Waits until a client has said nothing for too long. Each word of it costs a
/// look at the clock; the timer is set anew only when it goes off.
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

    /// Something was said, at this time.
    pub fn reset(&mut self) -> Instant {
        self.last_activity = Instant::now();
        self.last_activity
    }

    /// May be dropped and called again.
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
    async fn it_lasts_from_the_last_word_on() {
        let began = Instant::now();
        let mut silence = IdleTimer::new(60);
        for _ in 0..3 {
            let broken = time::timeout(Duration::from_secs(50), silence.expired()).await;
            assert!(broken.is_err(), "a word came before");
            silence.reset();
        }
        silence.expired().await;
        assert_eq!(began.elapsed(), Duration::from_secs(150 + 60));
    }
}
