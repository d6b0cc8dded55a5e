//! `limits.events_per_second_max`: how many events, deltas and unary calls one caller
//! may send per second. A caller is a token or, without tokens, the address of a peer.
//!
//! Each caller has a bucket of one second's worth (GCRA, by `governor`). A stream keeps
//! its caller's bucket, so that an event costs no look-up.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter, clock::Clock};
use lru::LruCache;
use parking_lot::Mutex;
use thiserror::Error;

use crate::auth::{Caller, CallerKey};

/// Buckets that are kept. There are at most 1,024 tokens; of peers without a token the
/// least recently seen is evicted, whose bucket is full again by then.
const CALLERS_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4_095);

/// The buckets of all callers.
pub struct RateLimits {
    /// `None`: no limit.
    per_second_max: Option<NonZeroU32>,
    callers: Mutex<LruCache<CallerKey, Arc<Bucket>>>,
}

/// The rate limit of one caller. The default is without a limit.
#[derive(Clone, Default)]
pub struct CallerRate(Option<Arc<Bucket>>);

struct Bucket {
    per_second_max: NonZeroU32,
    limiter: DefaultDirectRateLimiter,
}

/// The caller is above its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("limits.events_per_second_max of {per_second_max} events per second is exceeded")]
pub struct RateExceeded {
    pub per_second_max: u32,
    /// When the next event would be accepted.
    pub retry_after: Duration,
}

impl RateLimits {
    /// 0: no limit.
    pub fn new(events_per_second_max: u32) -> Self {
        Self {
            per_second_max: NonZeroU32::new(events_per_second_max),
            callers: Mutex::new(LruCache::new(CALLERS_MAX)),
        }
    }

    pub fn caller_rate(&self, caller: &Caller) -> CallerRate {
        let bucket = self.per_second_max.map(|per_second_max| {
            let mut callers = self.callers.lock();
            let bucket = callers.get_or_insert(caller.key(), || {
                Arc::new(Bucket {
                    per_second_max,
                    limiter: RateLimiter::direct(Quota::per_second(per_second_max)),
                })
            });
            bucket.clone()
        });
        CallerRate(bucket)
    }
}

impl CallerRate {
    /// Counts one event.
    pub fn check(&self) -> Result<(), RateExceeded> {
        let Some(bucket) = &self.0 else {
            return Ok(());
        };
        bucket.limiter.check().map_err(|exceeded| RateExceeded {
            per_second_max: bucket.per_second_max.get(),
            retry_after: exceeded.wait_time_from(bucket.limiter.clock().now()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::auth::PeerAddress;

    fn peer(number: u32) -> Caller {
        let address = IpAddr::from(Ipv4Addr::from(number));
        Caller::anonymous().with_peer(Some(PeerAddress::new(address)))
    }

    #[test]
    fn a_caller_above_its_rate_is_refused_and_another_is_not() {
        let rates = RateLimits::new(2);
        let rate = rates.caller_rate(&peer(1));
        // The bucket fills while a busy machine delays the test.
        while rate.check().is_ok() {}
        // Another stream of the same caller has the same bucket.
        let another = rates.caller_rate(&peer(1));
        let exceeded = loop {
            if let Err(exceeded) = another.check() {
                break exceeded;
            }
        };
        assert_eq!(exceeded.per_second_max, 2);
        assert!(exceeded.retry_after <= Duration::from_millis(500));
        assert!(rates.caller_rate(&peer(2)).check().is_ok());
    }

    #[test]
    fn the_buckets_of_callers_are_bounded_and_0_is_no_limit() {
        let rates = RateLimits::new(1);
        for number in 0..5_000 {
            assert!(rates.caller_rate(&peer(number)).check().is_ok());
        }
        assert_eq!(rates.callers.lock().len(), CALLERS_MAX.get());
        let unlimited = RateLimits::new(0);
        let rate = unlimited.caller_rate(&peer(1));
        assert!((0..10_000).all(|_| rate.check().is_ok()));
        assert_eq!(unlimited.callers.lock().len(), 0);
    }
}
