use std::{pin::Pin, time::Duration};

use tokio::time::{self, Instant, Sleep};

/// Waits until a client has said nothing for too long. Each word of it costs a
/// look at the clock; the timer is set anew only when it goes off.
pub struct Silence {
    longest: Duration,
    heard: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Silence {
    pub fn new(secs_max: u64) -> Self {
        let longest = Duration::from_secs(secs_max);
        Self {
            longest,
            heard: Instant::now(),
            alarm: Box::pin(time::sleep(longest)),
        }
    }

    /// Something was said, at this time.
    pub fn broken(&mut self) -> Instant {
        self.heard = Instant::now();
        self.heard
    }

    /// May be dropped and called again.
    pub async fn lasts(&mut self) {
        loop {
            self.alarm.as_mut().await;
            let end = self.heard + self.longest;
            if end <= Instant::now() {
                return;
            }
            self.alarm.as_mut().reset(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_lasts_from_the_last_word_on() {
        let began = Instant::now();
        let mut silence = Silence::new(60);
        for _ in 0..3 {
            let broken = time::timeout(Duration::from_secs(50), silence.lasts()).await;
            assert!(broken.is_err(), "a word came before");
            silence.broken();
        }
        silence.lasts().await;
        assert_eq!(began.elapsed(), Duration::from_secs(150 + 60));
    }
}
