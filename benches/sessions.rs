//! What many sessions hold, and what an event costs among them:
//!
//! ```text
//! cargo bench --bench sessions              # 1,000, 100,000 and 1,000,000
//! cargo bench --bench sessions -- 1000      # so many
//! ```
//!
//! Each number of sessions is measured in a process of its own, so that none
//! finds what another left behind.

#![allow(clippy::unwrap_used)]

mod mix;

use std::{
    hint::black_box,
    process::Command,
    thread,
    time::{Duration, Instant, SystemTime},
};

use cap::Cap;
use mimalloc::MiMalloc;
use unstuck::{
    domain::{Event, SessionId},
    engine::Engine,
};

/// The service's own allocator, with a count of what it has given out.
#[global_allocator]
static ALLOCATOR: Cap<MiMalloc> = Cap::new(MiMalloc, usize::MAX);

const NUMBERS: [usize; 3] = [1_000, 100_000, 1_000_000];
/// As many as the detectors look back on.
const WINDOW: usize = 32;
/// Enough for a steady figure, and more than any cache of texts holds.
const MEASURED_EVENTS: usize = 400_000;

fn main() {
    let numbers: Vec<usize> = std::env::args()
        .filter_map(|arg| arg.parse().ok())
        .collect();
    match numbers[..] {
        [] => {
            for number in NUMBERS {
                let own = std::env::current_exe().unwrap();
                let status = Command::new(own).arg(number.to_string()).status().unwrap();
                assert!(status.success(), "{number} sessions");
            }
        }
        _ => numbers.into_iter().for_each(measure),
    }
}

fn measure(number: usize) {
    let mut events = mix::healthy("s", 8_192);
    let ids: Vec<SessionId> = (0..number)
        .map(|n| SessionId::parse(&format!("org/team/run-{n:08}")).unwrap())
        .collect();
    let (held, before) = (ALLOCATOR.allocated(), resident_bytes());
    let now = mix::now();
    let engine = mix::engine();

    let begun = Instant::now();
    for (n, id) in ids.iter().enumerate() {
        let event = &mut events[n % 8_192];
        event.session = id.clone();
        engine.record(event, now).unwrap();
    }
    let insert = begun.elapsed() / number as u32;
    for n in 0..number * (WINDOW - 1) {
        let event = &mut events[(n * 5 + n / number) % 8_192];
        event.session = ids[n % number].clone();
        engine.record(event, now).unwrap();
    }
    let bytes = (ALLOCATOR.allocated() - held) / number;
    let resident = (resident_bytes() - before) / number;
    let own = engine.state_bytes() / number;

    let one = play(&engine, &ids, &events, 1, now);
    let two = play(&engine, &ids, &events, 2, now);
    let (sweeps, later) = (number.div_ceil(1_000), now + Duration::from_secs(1_000_000));
    let begun = Instant::now();
    for _ in 0..sweeps {
        engine.sweep(later, 1_000);
    }
    let expiry = begun.elapsed() / number as u32;
    assert_eq!(engine.live(), 0);
    println!(
        "sessions={number} allocated_bytes={bytes} resident_bytes={resident} own_count_bytes={own} \
         first_event_ns={} event_ns={} two_threads={:.2} expiry_ns={}",
        insert.as_nanos(),
        one.as_nanos(),
        one.as_secs_f64() / two.as_secs_f64(),
        expiry.as_nanos(),
    );
}

/// What an event costs where each is of another session than the last, as the
/// wall clock has it, with so many threads. To name its session is part of it.
fn play(
    engine: &Engine,
    ids: &[SessionId],
    events: &[Event],
    threads: usize,
    now: SystemTime,
) -> Duration {
    let share = MEASURED_EVENTS / threads;
    let owned: Vec<Vec<Event>> = (0..threads).map(|_| events.to_vec()).collect();
    let begun = Instant::now();
    thread::scope(|scope| {
        for (thread, mut events) in owned.into_iter().enumerate() {
            scope.spawn(move || {
                let mut random = 0x9e37_79b9_7f4a_7c15u64 ^ thread as u64;
                for n in 0..share {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let event = &mut events[n % 8_192];
                    event.session = ids[(random >> 33) as usize % ids.len()].clone();
                    black_box(engine.record(event, now).unwrap());
                }
            });
        }
    });
    begun.elapsed() / MEASURED_EVENTS as u32
}

/// Of `/proc/self/statm`: the second figure, in pages of 4 KiB.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or_default() * 4096
}
