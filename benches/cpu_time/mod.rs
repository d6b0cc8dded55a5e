//! The CPU time of the programs that a benchmark runs.

use std::fs;

/// Ticks per second in `/proc/<pid>/stat`. The same on every Linux.
const TICKS_A_SECOND: f64 = 100.0;

/// CPU seconds of this process's finished children so far, user and kernel.
pub fn children_secs() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // The fields after the program name, which may contain spaces.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = |field: usize| -> f64 {
        let ticks = fields.split(' ').nth(field).unwrap();
        ticks.parse().unwrap()
    };
    (ticks(13) + ticks(14)) / TICKS_A_SECOND
}
