//! The only module that reads the clocks, for api, console, app and cli. Everywhere
//! else, time is an argument.
//!
//! [`now`] is the service's time: the wall clock at startup plus the time that has
//! passed by the monotonic clock. A wall clock that jumps must not make sessions,
//! tombstones or snoozes expire. The difference to the wall clock is corrected
//! slowly, so that a clock that was set right is followed after a while.

use std::{
    sync::OnceLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

/// The service's time follows the wall clock by at most one part in this many: an hour
/// is corrected in 16 hours, and an age is wrong by 6 per cent at most.
const CORRECTION_DIVISOR: u32 = 16;

/// Beyond this difference the wall clock was wrong at the start, or is now.
const DIFFERENCE_MAX: Duration = Duration::from_secs(60);

/// A wall clock that is further ahead of the last run at a start may be wrong. A weekend
/// without the service is not.
const AHEAD_MAX: Duration = Duration::from_secs(3 * 24 * 60 * 60);

/// A wall clock that was steady for this long is right.
const STEADY_MIN: Duration = Duration::from_secs(60 * 60);

/// The time by which sessions, terminations and verdicts expire. A start with a wrong
/// wall clock must not delete them, so if it is far ahead of the last run, this time goes
/// on from there until the wall clock was steady for an hour.
#[derive(Clone, Copy, Debug)]
pub struct ExpiryClock {
    ahead: Duration,
    started_at: Instant,
}

impl ExpiryClock {
    /// `last_run` is `None` without a previous run.
    pub fn new(now: SystemTime, last_run: Option<SystemTime>) -> Self {
        let ahead = last_run.and_then(|last_run| now.duration_since(last_run).ok());
        Self {
            ahead: ahead.filter(|ahead| *ahead > AHEAD_MAX).unwrap_or_default(),
            started_at: Instant::now(),
        }
    }

    pub fn now(&self) -> SystemTime {
        now() - self.held_back().unwrap_or_default()
    }

    /// How far this time is behind the service's. `None`: they agree.
    pub fn held_back(&self) -> Option<Duration> {
        self.held_back_after(self.started_at.elapsed(), large_difference())
    }

    fn held_back_after(&self, elapsed: Duration, difference: Option<Duration>) -> Option<Duration> {
        let is_steady = elapsed >= STEADY_MIN && difference.is_none();
        (!self.ahead.is_zero() && !is_steady).then_some(self.ahead)
    }
}

/// The service's time.
pub fn now() -> SystemTime {
    static CLOCK: OnceLock<(Instant, Mutex<SteadyClock>)> = OnceLock::new();
    let (started_at, clock) = CLOCK.get_or_init(|| {
        let clock = SteadyClock::new(wall_now());
        (Instant::now(), Mutex::new(clock))
    });
    let mut clock = clock.lock();
    clock.read(wall_now(), started_at.elapsed())
}

/// How much the service's time and the wall clock differ, if that is more than a minute.
pub fn large_difference() -> Option<Duration> {
    large_difference_between(now(), wall_now())
}

fn large_difference_between(time: SystemTime, wall: SystemTime) -> Option<Duration> {
    let difference = wall
        .duration_since(time)
        .unwrap_or_else(|ahead| ahead.duration());
    (difference > DIFFERENCE_MAX).then_some(difference)
}

/// The wall clock, for what others compare with theirs: the signature of a webhook.
#[expect(
    clippy::disallowed_methods,
    reason = "the only place that reads the clock"
)]
pub fn wall_now() -> SystemTime {
    SystemTime::now()
}

/// Milliseconds since 1970; 0 for an earlier time.
pub fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A time that never jumps.
#[derive(Debug)]
pub struct SteadyClock {
    time: SystemTime,
    /// The monotonic clock at the last reading.
    elapsed: Duration,
}

impl SteadyClock {
    pub fn new(wall: SystemTime) -> Self {
        Self {
            time: wall,
            elapsed: Duration::ZERO,
        }
    }

    /// The time after `elapsed` on the monotonic clock since the start, while the wall
    /// clock shows `wall`.
    pub fn read(&mut self, wall: SystemTime, elapsed: Duration) -> SystemTime {
        let step = elapsed.saturating_sub(self.elapsed);
        self.elapsed = self.elapsed.max(elapsed);
        let correction_max = step / CORRECTION_DIVISOR;
        self.time += step;
        match wall.duration_since(self.time) {
            Ok(behind) => self.time += behind.min(correction_max),
            Err(ahead) => self.time -= ahead.duration().min(correction_max),
        }
        self.time
    }
}

/// The number of runtime threads, and of calls processed at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

    fn start() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
    }

    /// Reads once a second for so long, while the wall clock is off by this.
    fn run(clock: &mut SteadyClock, secs: std::ops::Range<u64>, offset: i64) -> SystemTime {
        let mut last = clock.time;
        for n in secs {
            let elapsed = Duration::from_secs(n);
            let wall = start() + elapsed;
            let by = Duration::from_secs(offset.unsigned_abs());
            let wall = if offset < 0 { wall - by } else { wall + by };
            let time = clock.read(wall, elapsed);
            assert!(time >= last, "it went back");
            last = time;
        }
        last
    }

    #[test]
    fn a_jump_of_ten_years_for_five_seconds_is_less_than_a_second() {
        for years in [1, -1] {
            let mut clock = SteadyClock::new(start());
            run(&mut clock, 0..100, 0);
            let jump = years * TEN_YEARS.as_secs() as i64;
            let during = run(&mut clock, 100..105, jump);
            let expected = start() + Duration::from_secs(104);
            let off = during
                .duration_since(expected)
                .unwrap_or_else(|error| error.duration());
            assert!(off < Duration::from_secs(1), "{off:?}");
            let after = run(&mut clock, 105..200, 0);
            assert_eq!(after, start() + Duration::from_secs(199));
        }
    }

    #[test]
    fn only_a_difference_of_more_than_a_minute_is_large() {
        for secs in [0, 60, 61] {
            let later = start() + Duration::from_secs(secs);
            let expected = (secs > 60).then_some(Duration::from_secs(secs));
            assert_eq!(large_difference_between(start(), later), expected);
            assert_eq!(large_difference_between(later, start()), expected);
        }
    }

    #[test]
    fn expiry_waits_for_a_clock_that_is_far_ahead_of_the_last_run_and_steady() {
        let held_back = |ahead: Duration, elapsed: Duration, difference: Option<Duration>| {
            let clock = ExpiryClock::new(start() + ahead, Some(start()));
            clock.held_back_after(elapsed, difference)
        };
        let (wrong, minute) = (Some(TEN_YEARS), Duration::from_secs(60));
        assert_eq!(held_back(AHEAD_MAX, minute, None), None);
        assert_eq!(held_back(TEN_YEARS, minute, None), wrong);
        assert_eq!(held_back(TEN_YEARS, STEADY_MIN, None), None);
        // The wall clock was set right meanwhile.
        assert_eq!(held_back(TEN_YEARS, STEADY_MIN, wrong), wrong);
        let behind = ExpiryClock::new(start(), Some(start() + TEN_YEARS));
        assert_eq!(behind.held_back(), None);
        assert_eq!(ExpiryClock::new(start(), None).held_back(), None);
    }

    #[test]
    fn a_wall_clock_that_was_set_is_followed_slowly() {
        let mut clock = SteadyClock::new(start());
        let minute = run(&mut clock, 0..61, 3_600);
        let gained = minute.duration_since(start()).unwrap() - Duration::from_secs(60);
        assert_eq!(gained, Duration::from_millis(3_750));
        let next_day = run(&mut clock, 61..60_000, 3_600);
        assert_eq!(next_day, start() + Duration::from_secs(59_999 + 3_600));
    }
}
