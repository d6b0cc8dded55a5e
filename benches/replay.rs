//! Measures how many events of the healthy mix `unstuck replay` processes per second,
//! startup included. It has one thread, so this is the throughput of one core.
//!
//! ```text
//! cargo bench --bench replay              # 400 sessions of 612 events, 110 MB
//! cargo bench --bench replay -- 40        # 40 sessions
//! cargo bench --bench replay -- --write PAGE
//! ```

#![allow(clippy::unwrap_used)]

mod cpu_time;
mod page;

use std::{
    env, fs,
    io::{BufWriter, Write},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

const ROUNDS: u32 = 7;

fn main() {
    let argument = env::args().skip(1).find_map(|arg| arg.parse().ok());
    let sessions: u32 = argument.unwrap_or(400);
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("healthy.ndjson");
    let events = write(&trace, sessions);
    // Reads the file into the page cache.
    replay(&trace);
    let before = cpu_time::children_secs();
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| replay(&trace)).collect();
    times.sort();
    let on_core = (cpu_time::children_secs() - before) / f64::from(ROUNDS);
    let rate = |secs: f64| f64::from(events) / secs / 1e3;
    let best = times[0].as_secs_f64();
    println!("{events} events in {times:.2?}");
    let summary = format!(
        "{events} events in {best:.2} s at best: {:.0} thousand a second; on average {:.2} µs of a core an event, {:.0} \
         thousand a second.\n",
        rate(best),
        on_core / f64::from(events) * 1e6,
        rate(on_core)
    );
    print!("{summary}");
    let mut args = env::args().skip_while(|arg| arg != "--write").skip(1);
    if let Some(page) = args.next() {
        page::write(Path::new(&page), "replay", &summary).unwrap();
    }
}

/// Writes the mix repeatedly, each time as a new session. Returns the number of events.
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
    // A directory without an `unstuck.toml`.
    replay.current_dir(trace.parent().unwrap());
    let output = replay.arg("replay").arg(trace).output().unwrap();
    let elapsed = began.elapsed();
    let summary = String::from_utf8(output.stdout).unwrap();
    assert!(summary.ends_with("sessions: no loops.\n"), "{summary}");
    elapsed
}
