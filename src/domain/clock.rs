//! The only place that reads the wall clock, for the edges of the service: inside
//! it, time is an argument.

use std::time::SystemTime;

#[expect(clippy::disallowed_methods, reason = "the edge, where time comes in")]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// How many threads the runtime has, and how many calls are worked on at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
