//! Answers to unknown tokens are delayed, longer with each one from the same address.
//! A valid token is never delayed, also not from that address: only the answer
//! UNAUTHENTICATED (HTTP 401) waits, and it holds no permit that another call needs.

use std::{num::NonZeroUsize, pin::Pin, sync::Arc, time::Duration};

use lru::LruCache;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

use crate::auth::PeerAddress;

/// The delay of the first answer. It doubles up to `DELAY_MAX`.
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// An address without an unknown token for this long starts again.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);
/// Addresses that are remembered. The least recent one is evicted.
const ADDRESSES_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4_095);
/// Answers that are delayed at a time. Further ones are sent at once: they must not
/// fill the memory or the streams of connections.
const DELAYED_ANSWERS_MAX: usize = 64;

/// How many unknown tokens came from which address.
pub struct AuthDelays {
    failures: Mutex<LruCache<PeerAddress, Failures>>,
    permits: Arc<Semaphore>,
}

struct Failures {
    delay: Duration,
    last: Instant,
}

/// The wait before an answer, one of `DELAYED_ANSWERS_MAX`.
pub struct AnswerDelay {
    pub sleep: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl AuthDelays {
    pub fn new() -> Self {
        Self {
            failures: Mutex::new(LruCache::new(ADDRESSES_MAX)),
            permits: Arc::new(Semaphore::new(DELAYED_ANSWERS_MAX)),
        }
    }

    /// Counts an unknown token from this address. `None`: answer at once.
    pub fn count_unknown_token(&self, peer: Option<PeerAddress>) -> Option<AnswerDelay> {
        let delay = self.next_delay(peer?, Instant::now());
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        Some(AnswerDelay {
            sleep: Box::pin(sleep(delay)),
            _permit: permit,
        })
    }

    fn next_delay(&self, peer: PeerAddress, now: Instant) -> Duration {
        let mut failures = self.failures.lock();
        let known = failures.get(&peer);
        let delay = known
            .filter(|known| now - known.last < FORGET_AFTER)
            .map_or(DELAY_MIN, |known| (2 * known.delay).min(DELAY_MAX));
        failures.put(peer, Failures { delay, last: now });
        delay
    }
}

impl Default for AuthDelays {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn peer(number: u32) -> PeerAddress {
        PeerAddress::new(Ipv4Addr::from(number).into())
    }

    #[tokio::test(start_paused = true)]
    async fn the_delay_doubles_up_to_5_seconds_and_starts_again_after_a_while() {
        let delays = AuthDelays::new();
        let next = |address| delays.next_delay(peer(address), Instant::now()).as_millis();
        let grown = [(); 8].map(|()| next(1));
        assert_eq!(grown, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(next(2), 100, "another address");
        tokio::time::advance(FORGET_AFTER).await;
        assert_eq!(next(1), 100);
    }

    #[tokio::test]
    async fn delayed_answers_and_remembered_addresses_are_bounded() {
        let delays = AuthDelays::new();
        let mut delayed: Vec<_> = (0..5_000)
            .filter_map(|number| delays.count_unknown_token(Some(peer(number))))
            .collect();
        assert_eq!(delayed.len(), DELAYED_ANSWERS_MAX);
        assert_eq!(delays.failures.lock().len(), ADDRESSES_MAX.get());
        delayed.pop();
        assert!(delays.count_unknown_token(Some(peer(1))).is_some());
        assert!(delays.count_unknown_token(None).is_none());
    }
}
