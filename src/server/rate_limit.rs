//! `limits.events_per_second_max`: how many events, deltas and unary calls one caller
//! may send per second. A caller is a token or, without tokens, the address of a peer.
//!
//! Each caller has a bucket of one second's worth (GCRA, by `governor`). A stream keeps
//! its caller's bucket, so that an event costs no look-up. The buckets are bounded: one that
//! is full and that no stream has may be evicted, because a new one is equal to it. If there
//! is none, new callers share one bucket.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::StateInformationMiddleware,
    state::{InMemoryState, NotKeyed},
};
use lru::LruCache;
use parking_lot::Mutex;
use thiserror::Error;

use crate::auth::{Caller, CallerKey};

/// Buckets that are kept. There are at most 1,024 tokens, but any number of peers without.
const CALLERS_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4_095);
/// How many of the least recently seen buckets are looked at for one to evict.
const EVICTION_TRIES: usize = 8;

/// The buckets of all callers.
pub struct RateLimits {
    /// `None`: no limit.
    per_second_max: Option<NonZeroU32>,
    callers: Mutex<LruCache<CallerKey, Arc<Bucket>>>,
    /// The bucket of callers for which there is no room.
    shared: CallerRate,
}

/// The rate limit of one caller. The default is without a limit.
#[derive(Clone, Default)]
pub struct CallerRate(Option<Arc<Bucket>>);

struct Bucket {
    per_second_max: NonZeroU32,
    limiter: RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>,
}

impl Bucket {
    fn new(per_second_max: NonZeroU32) -> Self {
        let limiter = RateLimiter::direct(Quota::per_second(per_second_max));
        Self {
            per_second_max,
            limiter: limiter.with_middleware(),
        }
    }

    /// Whether a new bucket would be equal. Takes one event's worth to find out.
    fn is_full(&self) -> bool {
        let rest = self
            .limiter
            .check()
            .map(|state| state.remaining_burst_capacity());
        rest.is_ok_and(|rest| rest + 1 >= self.per_second_max.get())
    }
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
        let per_second_max = NonZeroU32::new(events_per_second_max);
        Self {
            per_second_max,
            callers: Mutex::new(LruCache::new(CALLERS_MAX)),
            shared: CallerRate(per_second_max.map(Bucket::new).map(Arc::new)),
        }
    }

    pub fn caller_rate(&self, caller: &Caller) -> CallerRate {
        let Some(per_second_max) = self.per_second_max else {
            return CallerRate::default();
        };
        let key = caller.key();
        let mut callers = self.callers.lock();
        if let Some(bucket) = callers.get(&key) {
            return CallerRate(Some(bucket.clone()));
        }
        if callers.len() >= CALLERS_MAX.get() && !evict_full_bucket(&mut callers) {
            return self.shared.clone();
        }
        let bucket = Arc::new(Bucket::new(per_second_max));
        callers.put(key, bucket.clone());
        CallerRate(Some(bucket))
    }
}

/// Evicts one of the least recently seen buckets that no stream has and that is full. The
/// others that are looked at count as seen. `false`: there is none among them.
fn evict_full_bucket(callers: &mut LruCache<CallerKey, Arc<Bucket>>) -> bool {
    for _ in 0..EVICTION_TRIES {
        let Some((key, bucket)) = callers.pop_lru() else {
            return true;
        };
        if Arc::strong_count(&bucket) == 1 && bucket.is_full() {
            return true;
        }
        callers.put(key, bucket);
    }
    false
}

impl CallerRate {
    /// Counts one event.
    pub fn check(&self) -> Result<(), RateExceeded> {
        let Some(bucket) = &self.0 else {
            return Ok(());
        };
        let checked = bucket.limiter.check().map(drop);
        checked.map_err(|exceeded| RateExceeded {
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
        let rates = RateLimits::new(1_000);
        for number in 0..5_000 {
            assert!(!is_shared(&rates, &rates.caller_rate(&peer(number))));
        }
        assert_eq!(rates.callers.lock().len(), CALLERS_MAX.get());
        let unlimited = RateLimits::new(0);
        let rate = unlimited.caller_rate(&peer(1));
        assert!((0..10_000).all(|_| rate.check().is_ok()));
        assert_eq!(unlimited.callers.lock().len(), 0);
    }

    fn is_shared(rates: &RateLimits, rate: &CallerRate) -> bool {
        let [Some(shared), Some(bucket)] = [&rates.shared.0, &rate.0] else {
            return false;
        };
        Arc::ptr_eq(shared, bucket)
    }

    #[test]
    fn a_caller_keeps_its_bucket_however_many_others_come() {
        let rates = RateLimits::new(1_000);
        let streams: Vec<CallerRate> = (0..4_096)
            .map(|number| rates.caller_rate(&peer(number)))
            .collect();
        for number in 5_000..6_000 {
            assert!(is_shared(&rates, &rates.caller_rate(&peer(number))));
        }
        let first = rates.caller_rate(&peer(0));
        assert!(first.0.is_some_and(|first| {
            let stream = streams[0].0.as_ref().unwrap();
            Arc::ptr_eq(&first, stream)
        }));
        // Without its stream a caller has a bucket that is full, and it makes room.
        drop(streams);
        let last = rates.caller_rate(&peer(7_000));
        assert!(!is_shared(&rates, &last));
        assert_eq!(rates.callers.lock().len(), CALLERS_MAX.get());
    }

    #[test]
    fn a_bucket_is_full_until_it_is_used_and_not_while_it_fills() {
        let bucket = || Bucket::new(NonZeroU32::new(1_000).unwrap());
        assert!(bucket().is_full());
        // On a busy machine a second may pass between the last use and the question.
        let was_not_full = (0..100).any(|_| {
            let bucket = bucket();
            while bucket.limiter.check().is_ok() {}
            !bucket.is_full()
        });
        assert!(was_not_full);
    }
}
