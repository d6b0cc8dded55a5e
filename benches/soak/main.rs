//! Overload and soak test. Measures the service's peak throughput, then offers
//! half, all, twice and four times that while faults are injected, and checks
//! what the service promises.
//!
//! `scripts/soak [MINUTES]` checks everything, also ratios of throughput and
//! latency. Figures are compared only within one run, because all of them are
//! worse on a busy machine.
//!
//! `scripts/soak --functional [MINUTES]` checks only what does not depend on the
//! machine: every event is accounted for, no call fails, and everything is
//! released afterwards. `scripts/test` runs this.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod checks;
mod faults;
mod load;
mod messages;
mod probe;
#[path = "../load/load_generator/raw.rs"]
mod raw;
mod service;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use faults::FaultCounts;
use load::{Account, Kind, Pace, Slice};
use probe::{Latencies, percentile};
use service::{ProcessUsage, Service, sum};

/// Set to end the tasks that run beside the brokers.
pub type Stop = Arc<AtomicBool>;

/// The loads alternate in short slices, so that other work on the machine affects
/// all of them equally.
const SLICE: Duration = Duration::from_millis(1_500);
const FACTORS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
const KINDS: [Kind; 2] = [Kind::Streams, Kind::Calls];
/// A median of fewer rounds says nothing.
const ROUNDS_MIN: usize = 5;

/// What a run checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Also ratios of throughput, latency and memory.
    Timed,
    /// Only what does not depend on how busy the machine is.
    Functional,
}

/// The results of all rounds.
#[derive(Default)]
pub struct Report {
    /// Goodput as a share of the round's peak, by kind and factor.
    shares: [[Vec<f64>; 4]; 2],
    /// The p99 of terminations in each round, to the operator and to the stream:
    /// without load (`calm`), and at twice and four times the peak (`loaded`).
    calm: [Vec<Duration>; 2],
    loaded: [Vec<Duration>; 2],
    account: Account,
    faults: FaultCounts,
    /// Events sent so that there are sessions to terminate.
    probes: Latencies,
    usage: Vec<ProcessUsage>,
}

fn main() {
    // `cargo bench` adds `--bench`.
    let mut args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let mode = if args.first().is_some_and(|arg| arg == "--functional") {
        args.remove(0);
        Mode::Functional
    } else {
        Mode::Timed
    };
    let Some(Ok(minutes)) = args.first().map(|text| text.parse::<f64>()) else {
        eprintln!("usage: soak [--functional] MINUTES");
        std::process::exit(2);
    };
    // Before the runtime starts: it counts the cores that are left.
    let cores = service::divide_cores();
    match &cores {
        Some(cores) => {
            println!("the service runs on cores {cores}, the load generator on the others")
        }
        None => println!("the service and the load generator share one core"),
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let failed = runtime.block_on(soak(mode, minutes, cores));
    if failed > 0 {
        println!("\n{failed} checks failed");
        std::process::exit(1);
    }
    println!("\nall checks passed");
}

/// Returns the number of failed checks.
async fn soak(mode: Mode, minutes: f64, cores: Option<String>) -> usize {
    unstuck::notify::install_crypto_provider();
    let mut service = Service::start(env!("CARGO_BIN_EXE_unstuck"), mode, cores);
    let base = service.usage();
    println!("before: {:.0} MiB, {} files", base.rss_mib, base.files);
    let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut report = Report::default();
    let rounds_min = match mode {
        Mode::Timed => {
            // The first round warms everything up and is not counted.
            round(&service, &mut Report::default()).await;
            ROUNDS_MIN
        }
        Mode::Functional => 1,
    };
    let before = service.metrics().await;
    while Instant::now() < until || report.usage.len() < rounds_min {
        round(&service, &mut report).await;
        report.usage.push(service.usage());
        report.print_last_round();
    }
    report.check(mode, &before, &mut service, base).await
}

/// Runs each load for one slice, with terminations and faults beside it.
async fn round(service: &Service, report: &mut Report) {
    let calm = with_terminations(service, tokio::time::sleep(SLICE))
        .await
        .1;
    report.calm[0].push(percentile(&calm.answered, 0.99));
    report.calm[1].push(percentile(&calm.pushed, 0.99));
    report.probes.extend(calm);
    let mut loaded = Latencies::default();
    for (kind, name) in KINDS.into_iter().enumerate() {
        let (busy, latencies) = with_faults(service, name, Pace::Busy, report).await;
        report.probes.extend(latencies);
        for (n, factor) in FACTORS.into_iter().enumerate() {
            let pace = Pace::Offered(factor, busy.answered);
            let (slice, latencies) = with_faults(service, name, pace, report).await;
            report.shares[kind][n].push(slice.goodput / busy.goodput);
            print_slice(name, factor, busy.goodput, &slice, &latencies);
            if factor > 1.0 {
                loaded.extend(latencies);
            } else {
                report.probes.extend(latencies);
            }
        }
    }
    report.loaded[0].push(percentile(&loaded.answered, 0.99));
    report.loaded[1].push(percentile(&loaded.pushed, 0.99));
    report.probes.extend(loaded);
}

/// Runs one slice of load with faults, and measures terminations meanwhile.
async fn with_faults(
    service: &Service,
    kind: Kind,
    pace: Pace,
    report: &mut Report,
) -> (Slice, Latencies) {
    let stop = Stop::default();
    let (faults, (slice, latencies)) =
        tokio::join!(faults::run(service.grpc, stop.clone()), async {
            let slice =
                with_terminations(service, load::run(service.grpc, kind, pace, SLICE)).await;
            stop.store(true, Relaxed);
            slice
        });
    report.account += slice.account;
    report.faults += faults;
    (slice, latencies)
}

/// Runs `work`, and terminates sessions until it is done.
async fn with_terminations<T>(service: &Service, work: impl Future<Output = T>) -> (T, Latencies) {
    let stop = Stop::default();
    tokio::join!(
        async {
            let done = work.await;
            stop.store(true, Relaxed);
            done
        },
        probe::terminate(service.grpc, stop.clone()),
    )
}

fn print_slice(kind: Kind, factor: f64, peak: f64, slice: &Slice, latencies: &Latencies) {
    let Slice {
        account, goodput, ..
    } = slice;
    println!(
        "  {kind:?} at {factor} of {peak:.0}/s: {:.2} of the peak; {} late, {} refused, {} not sent of \
         {}; {} terminations, p99 {:.1?}, pushed {:.1?}",
        goodput / peak,
        account.late,
        account.refused,
        account.not_sent,
        account.offered,
        latencies.answered.len(),
        percentile(&latencies.answered, 0.99),
        percentile(&latencies.pushed, 0.99),
    );
}

impl Report {
    fn print_last_round(&self) {
        let last = |of: &[Vec<Duration>; 2]| of.each_ref().map(|p99s| *p99s.last().unwrap());
        let usage = self.usage.last().unwrap();
        println!(
            "TERMINATE p99 {:.1?} calm, {:.1?} loaded; {:.0} MiB, {} files",
            last(&self.calm),
            last(&self.loaded),
            usage.rss_mib,
            usage.files,
        );
    }
}

/// The events that the service has counted since `before`: accepted, and refused
/// because a limit was reached.
fn events_counted(before: &HashMap<String, f64>, now: &HashMap<String, f64>) -> [f64; 2] {
    let since = |series: &str| sum(now, series) - sum(before, series);
    let refused = ["agents_max", "calls_max", "sessions_max", "state_bytes_max"];
    let refused = refused.map(|why| since(&format!("unstuck_rejected_total{{reason=\"{why}\"}}")));
    [since("unstuck_events_total"), refused.iter().sum()]
}
