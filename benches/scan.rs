//! Measures `unstuck scan` over a generated set of Claude Code transcripts, beside a plain
//! pass of `serde_json` over the same lines.
//!
//! ```text
//! cargo bench --bench scan              # 273 sessions, 18,500 calls, 335 MB
//! cargo bench --bench scan -- 20        # 20 sessions
//! cargo bench --bench scan -- --write PAGE
//! ```
//!
//! The set is as large as that of a real machine, with its long lines: each result is in
//! its line twice, some responses have long thoughts, and a quarter of the bytes are in
//! lines that are of no use (`file-history-snapshot`). Results are source code with quotes
//! and line breaks, so that nearly every text has escapes.

#![allow(clippy::unwrap_used)]

mod cpu_time;
mod page;

use std::{
    env,
    fmt::Write as _,
    fs,
    hint::black_box,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use mimalloc::MiMalloc;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const SESSIONS: usize = 273;
const CALLS: usize = 68;
const ROUNDS: usize = 5;

/// The targets, for the whole set on 2 cores: seconds, MiB, and the rate on one core as a
/// share of `serde_json`'s.
const WALL_SECS_MAX: f64 = 3.0;
const MEMORY_MIB_MAX: f64 = 150e6 / 1024.0 / 1024.0;
const RATIO_MIN: f64 = 0.5;

fn main() {
    let argument = env::args().skip(1).find_map(|arg| arg.parse().ok());
    let sessions = argument.unwrap_or(SESSIONS);
    let home = tempfile::tempdir().unwrap();
    let files = write_home(home.path(), sessions);
    let bytes: u64 = files
        .iter()
        .map(|file| file.metadata().unwrap().len())
        .sum();
    let megabytes = bytes as f64 / 1e6;
    let calls = sessions * CALLS;
    // Reads the files into the page cache.
    scan(home.path());
    let before = cpu_time::children_secs();
    let mut runs: Vec<(Duration, u64)> = (0..ROUNDS).map(|_| scan(home.path())).collect();
    let on_core = (cpu_time::children_secs() - before) / ROUNDS as f64;
    runs.sort();
    let wall = runs[ROUNDS / 2].0.as_secs_f64();
    let memory = runs.iter().map(|(_, kib)| *kib).max().unwrap() as f64 / 1024.0;
    let values = pass(&files, |line| {
        black_box(serde_json::from_slice::<Value>(line).unwrap());
    });
    let skipped = pass(&files, |line| {
        black_box(serde_json::from_slice::<IgnoredAny>(line).unwrap());
    });
    let rate = |secs: f64| megabytes / secs;
    let ratio = values / on_core;
    let targets = [
        (
            format!("{WALL_SECS_MAX} s of wall time"),
            wall <= WALL_SECS_MAX,
        ),
        (format!("{MEMORY_MIB_MAX:.0} MiB"), memory <= MEMORY_MIB_MAX),
        (format!("a ratio of {RATIO_MIN}"), ratio >= RATIO_MIN),
    ];
    let targets = targets.map(|(target, is_reached)| {
        format!(
            "{target} {}",
            if is_reached { "reached" } else { "NOT reached" }
        )
    });
    let note = match (sessions, thread::available_parallelism().unwrap().get()) {
        (SESSIONS, 2) => "",
        _ => ", which are for the whole set on 2 cores",
    };
    let summary = format!(
        "{sessions} sessions, {calls} calls, {megabytes:.0} MB on {} cores: {wall:.2} s of wall time at the median of {ROUNDS}, \
         {:.0} MB/s; at most {memory:.0} MiB resident. On one core {:.0} MB/s; `serde_json` reads the same lines with {:.0} MB/s \
         into values (ratio {:.2}), and skips them with {:.0} MB/s (ratio {:.2}). \
         Targets: {}{note}.\n",
        thread::available_parallelism().unwrap(),
        rate(wall),
        rate(on_core),
        rate(values),
        ratio,
        rate(skipped),
        skipped / on_core,
        targets.join(", "),
    );
    print!("{summary}");
    let mut args = env::args().skip_while(|arg| arg != "--write").skip(1);
    if let Some(page) = args.next() {
        page::write(Path::new(&page), "scan", &summary).unwrap();
    }
}

fn write_home(home: &Path, sessions: usize) -> Vec<PathBuf> {
    let dir = home.join(".claude/projects/-home-dev-demo");
    fs::create_dir_all(&dir).unwrap();
    let paths = (0..sessions).map(|session| {
        let path = dir.join(format!("session-{session:04}.jsonl"));
        fs::write(&path, write_session(session)).unwrap();
        path
    });
    paths.collect()
}

/// One session in thirty reads a file again and again.
fn write_session(session: usize) -> String {
    let id = format!("session-{session:04}");
    let mut text = String::new();
    let mut line = |mut value: Value, kind: &str, number: usize| {
        let time = format!(
            "2026-0{}-{:02}T10:{:02}:{:02}Z",
            1 + session % 9,
            1 + session % 28,
            number / 60,
            number % 60
        );
        value["sessionId"] = id.as_str().into();
        value["uuid"] = format!("{id}-{kind}-{number}").into();
        value["timestamp"] = time.into();
        value["cwd"] = "/home/dev/demo".into();
        value["version"] = "2.1.326".into();
        value["isSidechain"] = false.into();
        value["parentUuid"] = Value::Null;
        writeln!(text, "{{\"type\":\"{kind}\",{}", &value.to_string()[1..]).unwrap();
    };
    line(
        json!({"message": {"role": "user", "content": "make the tests pass"}}),
        "user",
        0,
    );
    for call in 0..CALLS {
        let is_looping = session.is_multiple_of(30) && call > 30;
        let seed = if is_looping {
            session
        } else {
            session * 1_000 + call
        };
        let content = source(seed, 3_000 + seed % 5_000);
        let path = format!("/home/dev/demo/src/file_{seed}.rs");
        let use_id = format!("toolu_{session}_{call}");
        let usage = json!({"input_tokens": 12, "cache_read_input_tokens": 40_000 + call,
            "cache_creation_input_tokens": 900, "output_tokens": 310});
        let thought = if call.is_multiple_of(3) { 2_600 } else { 200 };
        let blocks = json!([
            {"type": "thinking", "thinking": source(seed + 7, thought), "signature": "x".repeat(thought / 2)},
            {"type": "tool_use", "id": use_id, "name": "Read", "input": {"file_path": path}},
        ]);
        let message = json!({"id": format!("msg_{session}_{call}"), "role": "assistant",
            "model": "claude-sonnet-4-5", "content": blocks, "usage": usage});
        line(json!({"message": message}), "assistant", 2 * call + 1);
        let lines = content.lines().count();
        let result = json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": use_id, "content": content}]});
        let structured = json!({"type": "text", "file": {"filePath": path, "content": content,
            "numLines": lines, "startLine": 1, "totalLines": lines}});
        line(
            json!({"message": result, "toolUseResult": structured}),
            "user",
            2 * call + 2,
        );
        let snapshot = json!({"snapshot": {"trackedFileBackups": {"a": source(seed + 1, 3_900)}}});
        line(snapshot, "file-history-snapshot", 2 * call + 2);
    }
    text
}

/// Text like source code, of about this number of bytes.
fn source(seed: usize, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 64);
    let mut state = seed as u64 + 1;
    while text.len() < bytes {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (a, b) = (state >> 33 & 0xfff, state >> 45 & 0xff);
        writeln!(
            text,
            "    let value_{a} = parse(\"field_{b}\", {a})?; // checked by the caller"
        )
        .unwrap();
    }
    text
}

/// The wall time, and the peak of the resident memory in KiB.
fn scan(home: &Path) -> (Duration, u64) {
    let began = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_unstuck"));
    command
        .arg("scan")
        .env_clear()
        .env("HOME", home)
        .current_dir(home);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak = peak.max(kib.unwrap_or_default());
        thread::sleep(Duration::from_millis(2));
    }
    let elapsed = began.elapsed();
    let output = child.wait_with_output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.contains("sessions looped"), "{report}");
    (elapsed, peak)
}

/// The CPU time of a pass over all lines, at best.
fn pass(files: &[PathBuf], read: impl Fn(&[u8])) -> f64 {
    let run = || {
        let began = Instant::now();
        for file in files {
            let file = fs::File::open(file).unwrap();
            let mut reader = BufReader::with_capacity(256 * 1024, file);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).unwrap() > 0 {
                read(&line);
                line.clear();
            }
        }
        began.elapsed().as_secs_f64()
    };
    (0..3).map(|_| run()).fold(f64::MAX, f64::min)
}
