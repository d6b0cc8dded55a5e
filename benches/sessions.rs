//! Measures the memory of many sessions, and the time of an event among them:
//!
//! ```text
//! cargo bench --bench sessions                      # 1,000, 100,000 and 1,000,000
//! cargo bench --bench sessions -- 1000              # 1,000
//! cargo bench --bench sessions -- 1000 ids          # events with ids, as many as are retained
//! cargo bench --bench sessions -- --write PAGE      # writes the table to a page
//! ```
//!
//! Each number of sessions is measured in a separate process, so that none is affected
//! by the memory of another.

#![allow(clippy::unwrap_used)]

mod mix;
mod page;

use std::{
    hint::black_box,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use cap::Cap;
use mimalloc::MiMalloc;
use unstuck::{
    domain::{Event, SessionId},
    engine::Engine,
};

/// The allocator of the service, with a count of allocated bytes.
#[global_allocator]
static ALLOCATOR: Cap<MiMalloc> = Cap::new(MiMalloc, usize::MAX);

/// The number of sessions, and whether their events have ids. Sending as many ids as
/// are retained takes a while.
const RUNS: [&[&str]; 4] = [&["1000"], &["100000"], &["1000000"], &["100000", "ids"]];
/// As many calls as the detectors' history holds.
const WINDOW: usize = 32;
/// As many ids as are retained by default to recognise duplicates.
const IDS: usize = 256;
/// Distinct events, more than any cache of texts holds.
const EVENTS: usize = 8_192;
/// Enough for a stable figure.
const MEASURED_EVENTS: usize = 400_000;

const HEAD: &str = "| sessions | bytes a session | resident | a session's first event | an event | two threads | to look one up | to expire one |\n\
                    | --- | --: | --: | --: | --: | --: | --: | --: |\n";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(number) = args.iter().find_map(|arg| arg.parse().ok()) {
        let has_ids = args.iter().any(|arg| arg == "ids");
        return println!("{}", measure(number, has_ids));
    }
    let mut table = HEAD.to_owned();
    for run in RUNS {
        let own = std::env::current_exe().unwrap();
        let mut run = Command::new(own)
            .args(run)
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(run.status.success());
        table.push_str(&String::from_utf8(std::mem::take(&mut run.stdout)).unwrap());
    }
    print!("{table}");
    if let Some(at) = args.iter().position(|arg| arg == "--write") {
        page::write(Path::new(&args[at + 1]), "sessions", &table).unwrap();
    }
}

/// A row of the table.
fn measure(number: usize, has_ids: bool) -> String {
    let mut events = mix::healthy("s", EVENTS);
    let (held, before) = (ALLOCATOR.allocated(), resident_bytes());
    let ids: Vec<SessionId> = (0..number)
        .map(|n| SessionId::parse(&format!("org/team/run-{n:08}")).unwrap())
        .collect();
    let now = mix::now();
    let engine = mix::engine();

    let begun = Instant::now();
    for (n, id) in ids.iter().enumerate() {
        let event = &mut events[n % EVENTS];
        event.session = id.clone();
        engine.record(event, now).unwrap();
    }
    let insert = begun.elapsed() / number as u32;
    let rounds = if has_ids { IDS } else { WINDOW };
    for n in 0..number * (rounds - 1) {
        let event = &mut events[(n * 5 + n / number) % EVENTS];
        event.session = ids[n % number].clone();
        if has_ids {
            event.event_id = format!("{:08}", n / number);
        }
        let recorded = engine.record(event, now).unwrap();
        assert!(recorded.verdict.is_none() && !recorded.duplicate);
    }
    // Without the list of ids, which belongs to the benchmark.
    let own = number * size_of::<SessionId>();
    let bytes = (ALLOCATOR.allocated() - held - own) / number;
    let resident = (resident_bytes() - before - own) / number;
    events.iter_mut().for_each(|event| event.event_id.clear());

    let one = play(&engine, &ids, &events, 1, now);
    let two = play(&engine, &ids, &events, 2, now);
    let lookup = look_up(&engine, &ids);
    let (sweeps, later) = (number.div_ceil(1_000), now + Duration::from_secs(1_000_000));
    let begun = Instant::now();
    for _ in 0..sweeps {
        engine.evict_expired(later, 1_000);
    }
    let expiry = begun.elapsed() / number as u32;
    assert_eq!(engine.live_sessions(), 0);
    let micros = |time: Duration| format!("{:.1} µs", time.as_secs_f64() * 1e6);
    format!(
        "| {number}{} | {bytes} | {resident} | {} | {} | {:.2} | {} | {} |",
        if has_ids { ", with ids" } else { "" },
        micros(insert),
        micros(one),
        one.as_secs_f64() / two.as_secs_f64(),
        micros(lookup),
        micros(expiry),
    )
}

/// The wall-clock time of an event with this many threads, if each event belongs to
/// another session than the last. Includes setting the session id.
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
                let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ thread as u64);
                for n in 0..share {
                    let event = &mut events[n % EVENTS];
                    event.session = ids[random.below(ids.len())].clone();
                    black_box(engine.record(event, now).unwrap());
                }
            });
        }
    });
    begun.elapsed() / MEASURED_EVENTS as u32
}

/// The time to look up a session and build its view.
fn look_up(engine: &Engine, ids: &[SessionId]) -> Duration {
    const LOOKS: u32 = 50_000;
    let mut random = Random(1);
    let begun = Instant::now();
    for _ in 0..LOOKS {
        black_box(engine.get(&ids[random.below(ids.len())]).unwrap());
    }
    begun.elapsed() / LOOKS
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// The second field of `/proc/self/statm`, in pages of 4 KiB.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or_default() * 4096
}
