//! Measures the startup of a service with many terminations on disk: from the start of
//! the program to its first answer.
//!
//! ```text
//! cargo bench --bench start              # a million
//! cargo bench --bench start -- 100000
//! ```

#![allow(clippy::unwrap_used)]

#[path = "../tests/setup/mod.rs"]
mod setup;

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use unstuck::{
    domain::SessionId,
    engine::{Engine, OperatorRequest, RunMode},
    store::{Store, verify},
};

const STARTS: usize = 5;
/// Nothing is removed.
const BYTES_MAX: u64 = 4 << 30;
/// The write queue must not drop any.
const UNWRITTEN_MAX: u32 = 10_000;

fn main() {
    let argument = env::args().skip(1).find_map(|arg| arg.parse().ok());
    let sessions: u32 = argument.unwrap_or(1_000_000);
    let dir = tempfile::tempdir().unwrap();
    let began = Instant::now();
    end_sessions(dir.path(), sessions);
    let written_in = began.elapsed().as_secs_f64();
    let log = verify(&dir.path().join("unstuck-data")).unwrap();
    assert_eq!(log.tombstones, u64::from(sessions));
    println!(
        "{} terminations, {} MB, written in {:.1} s",
        log.records,
        log.bytes / 1_000_000,
        written_in
    );
    let rate = f64::from(sessions) / written_in;
    println!("{rate:.0} verdicts a second in batches");
    println!(
        "a durable commit takes {:.0?} at the median",
        median_commit()
    );
    let mut times: Vec<Duration> = (0..STARTS).map(|_| start(dir.path(), sessions)).collect();
    times.sort();
    println!("ready after {times:.2?}");
}

/// The real time, because the service drops terminations older than a week.
#[expect(
    clippy::disallowed_methods,
    reason = "stands in for the service, which reads the clock"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

const COMMITS: u32 = 1_000;

/// One termination at a time, from the engine until it is on disk.
fn median_commit() -> Duration {
    let dir = tempfile::tempdir().unwrap();
    let (engine, store) = open(dir.path());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let mut times: Vec<Duration> = (0..COMMITS)
        .map(|n| {
            let began = Instant::now();
            let id = SessionId::parse(&format!("run-{n}")).unwrap();
            let outcome = engine.terminate_session(&id, &REQUEST, now());
            assert!(runtime.block_on(store.wait_until_settled_or_timeout(outcome.verdict.id)));
            began.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

const REQUEST: OperatorRequest<'_> = OperatorRequest {
    reason: "it is going in circles",
    operator: "ann",
};

fn open(dir: &Path) -> (Engine, Store) {
    let mut config = setup::config("").unwrap();
    config.store.dir = dir.join("unstuck-data");
    config.store.bytes_max = BYTES_MAX;
    let (store, _) = Store::open(setup::store_options(&config, now())).unwrap();
    let (engine, _) = setup::engine(config, RunMode::Live, store.verdict_sink());
    (engine, store)
}

/// Terminates sessions as an operator does, without the network.
fn end_sessions(dir: &Path, sessions: u32) {
    let (engine, store) = open(dir);
    for n in 0..sessions {
        let id = SessionId::parse(&format!("team-{}/run-{n}", n % 100)).unwrap();
        let id = engine.terminate_session(&id, &REQUEST, now()).verdict.id;
        while n.is_multiple_of(UNWRITTEN_MAX) && !store.is_settled(id) {
            std::thread::yield_now();
        }
    }
    store.close();
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &Path, sessions: u32) -> Duration {
    let began = Instant::now();
    let mut service = Command::new(env!("CARGO_BIN_EXE_unstuck"));
    service
        .current_dir(dir)
        .env("UNSTUCK__SERVER__GRPC", "127.0.0.1:0")
        .env("UNSTUCK__SERVER__HTTP", "127.0.0.1:0")
        .env("UNSTUCK__STORE__BYTES_MAX", BYTES_MAX.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut running = Running(service.spawn().unwrap());
    let lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    let lines = lines.map(Result::unwrap);
    let http = lines
        .filter_map(|line| line.strip_prefix("unstuck: HTTP on ").map(str::to_owned))
        .next();
    let http = http.unwrap();
    let answer = get(&http, "/readyz");
    let ready_after = began.elapsed();
    assert!(answer.ends_with("ready\n"), "{answer}");
    let expected = format!("unstuck_sessions{{status=\"terminated\"}} {sessions}\n");
    let metrics = get(&http, "/metrics");
    assert!(metrics.contains(&expected), "{expected}{metrics}");
    ready_after
}

fn get(http: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(http).unwrap();
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
