//! How many events of the healthy mix `unstuck replay` takes in a second, its
//! start included. It has one thread, so that is what one core does.
//!
//! ```text
//! cargo bench --bench replay              # 400 sessions of 612 events, 110 MB
//! cargo bench --bench replay -- 40        # so many sessions
//! cargo bench --bench replay -- --write PAGE
//! ```

#![allow(clippy::unwrap_used)]

mod page;

use std::{
    env, fs,
    io::{BufWriter, Write},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

const ROUNDS: u32 = 7;
/// Of the times in `/proc/<pid>/stat`: the same on every Linux.
const TICKS_A_SECOND: f64 = 100.0;

fn main() {
    let asked = env::args().skip(1).find_map(|arg| arg.parse().ok());
    let sessions: u32 = asked.unwrap_or(400);
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("healthy.ndjson");
    let events = write(&trace, sessions);
    // So that the file is in memory.
    replay(&trace);
    let before = on_core();
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| replay(&trace)).collect();
    times.sort();
    let on_core = (on_core() - before) / f64::from(ROUNDS);
    let rate = |secs: f64| f64::from(events) / secs / 1e3;
    let best = times[0].as_secs_f64();
    println!("{events} events in {times:.2?}");
    let told = format!(
        "{events} events in {best:.2} s at best: {:.0} thousand a second; on average {:.2} µs of a core an event, {:.0} \
         thousand a second.\n",
        rate(best),
        on_core / f64::from(events) * 1e6,
        rate(on_core)
    );
    print!("{told}");
    let mut args = env::args().skip_while(|arg| arg != "--write").skip(1);
    if let Some(page) = args.next() {
        page::write(Path::new(&page), "replay", &told).unwrap();
    }
}

/// The mix over and over, each time as a session of its own; how many events.
fn write(trace: &Path, sessions: u32) -> u32 {
    let mix = include_str!("mixes/healthy.ndjson");
    let mut file = BufWriter::new(fs::File::create(trace).unwrap());
    let mut events = 0;
    for session in 0..sessions {
        let id = format!("\"healthy-{session}\"");
        for line in mix.lines() {
            writeln!(file, "{}", line.replacen("\"healthy\"", &id, 1)).unwrap();
            events += 1;
        }
    }
    file.flush().unwrap();
    events
}

fn replay(trace: &Path) -> Duration {
    let began = Instant::now();
    let mut replay = Command::new(env!("CARGO_BIN_EXE_unstuck"));
    // Away from any `unstuck.toml` of whoever measures.
    replay.current_dir(trace.parent().unwrap());
    let output = replay.arg("replay").arg(trace).output().unwrap();
    let elapsed = began.elapsed();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.ends_with("sessions: no loops.\n"), "{told}");
    elapsed
}

/// Seconds that the replays so far have spent on a core, the kernel's share
/// included.
fn on_core() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // Behind the name of the program, which may hold anything.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = |field: usize| -> f64 {
        let ticks = fields.split(' ').nth(field).unwrap();
        ticks.parse().unwrap()
    };
    // Those of children that were waited for.
    (ticks(13) + ticks(14)) / TICKS_A_SECOND
}
