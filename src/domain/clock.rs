//! The only module that reads the wall clock, for api, console, app and cli.
//! Everywhere else, time is an argument.

use std::time::SystemTime;

#[expect(
    clippy::disallowed_methods,
    reason = "the only place that reads the clock"
)]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// The number of runtime threads, and of calls processed at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
