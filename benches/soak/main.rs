//! Overload and soak: finds what the service can take, offers it half, all,
//! twice and four times that, with faults, and says whether it held.
//!
//! `scripts/soak [MINUTES]`. The figures of one run are compared with each
//! other and with nothing else: on a busy machine all of them are worse.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod chaos;
mod judge;
mod load;
mod messages;
mod probe;
#[path = "../load/rig/raw.rs"]
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

use chaos::Mischief;
use load::{Account, Kind, Pace, Slice};
use probe::{Latencies, percentile};
use service::{Held, Service, sum};

/// Set when those that run beside the brokers are to end.
pub type Stop = Arc<AtomicBool>;

/// Short, and taken by turns, so that whatever else the machine does falls on
/// all of them alike.
const SLICE: Duration = Duration::from_millis(1_500);
const FACTORS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
const KINDS: [Kind; 2] = [Kind::Streams, Kind::Calls];
/// Fewer say nothing of a median.
const ROUNDS_MIN: usize = 5;

/// What all rounds came to.
#[derive(Default)]
pub struct Report {
    /// Of streams, and of single calls.
    peaks: [Vec<f64>; 2],
    /// Goodput as a share of the round's peak, by factor.
    shares: [[Vec<f64>; 4]; 2],
    /// The p99 of terminations in each round: while nothing else happens, and at
    /// twice and four times the peak; to the operator, and to the stream.
    calm: [Vec<Duration>; 2],
    loaded: [Vec<Duration>; 2],
    account: Account,
    mischief: Mischief,
    /// What was sent to have something to terminate.
    probes: Latencies,
    held: Vec<Held>,
}

fn main() {
    // `cargo bench` adds one of its own.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let Some(Ok(minutes)) = args.next().map(|text| text.parse::<f64>()) else {
        eprintln!("usage: soak MINUTES");
        std::process::exit(2);
    };
    // Before there are threads of ours, which would count the cores.
    let cores = service::divide_cores();
    match &cores {
        Some(cores) => println!("the service has cores {cores} for itself"),
        None => println!("the service shares its core with the generator"),
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let failed = runtime.block_on(soak(minutes, cores));
    if failed > 0 {
        println!("\n{failed} of the promises do not hold");
        std::process::exit(1);
    }
    println!("\nall hold");
}

/// How much does not hold.
async fn soak(minutes: f64, cores: Option<String>) -> usize {
    unstuck::notify::install_crypto_provider();
    let mut service = Service::start(env!("CARGO_BIN_EXE_unstuck"), cores);
    let base = service.held();
    println!("before: {:.0} MiB, {} files", base.rss_mib, base.files);
    let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut report = Report::default();
    // The first round warms everything up and is not counted.
    round(&service, &mut Report::default()).await;
    let before = service.metrics().await;
    while Instant::now() < until || report.held.len() < ROUNDS_MIN {
        round(&service, &mut report).await;
        report.held.push(service.held());
        report.last_round();
    }
    report.judge(&before, &mut service, base).await
}

/// Every load for a slice, with terminations and faults all the while.
async fn round(service: &Service, report: &mut Report) {
    let calm = probed(service, tokio::time::sleep(SLICE)).await.1;
    report.calm[0].push(percentile(&calm.answered, 0.99));
    report.calm[1].push(percentile(&calm.pushed, 0.99));
    report.probes.extend(calm);
    let mut loaded = Latencies::default();
    for (kind, name) in KINDS.into_iter().enumerate() {
        let (busy, latencies) = troubled(service, name, Pace::Busy, report).await;
        report.probes.extend(latencies);
        report.peaks[kind].push(busy.goodput);
        for (n, factor) in FACTORS.into_iter().enumerate() {
            let pace = Pace::Offered(factor, busy.answered);
            let (slice, latencies) = troubled(service, name, pace, report).await;
            report.shares[kind][n].push(slice.goodput / busy.goodput);
            say(name, factor, busy.goodput, &slice, &latencies);
            match factor > 1.0 {
                true => loaded.extend(latencies),
                false => report.probes.extend(latencies),
            }
        }
    }
    report.loaded[0].push(percentile(&loaded.answered, 0.99));
    report.loaded[1].push(percentile(&loaded.pushed, 0.99));
    report.probes.extend(loaded);
}

/// A slice with faults, and what terminations took meanwhile.
async fn troubled(
    service: &Service,
    kind: Kind,
    pace: Pace,
    report: &mut Report,
) -> (Slice, Latencies) {
    let stop = Stop::default();
    let (mischief, (slice, latencies)) =
        tokio::join!(chaos::run(service.grpc, stop.clone()), async {
            let slice = probed(service, load::run(service.grpc, kind, pace, SLICE)).await;
            stop.store(true, Relaxed);
            slice
        });
    report.account += slice.account;
    report.mischief += mischief;
    (slice, latencies)
}

/// Something, with terminations beside it.
async fn probed<T>(service: &Service, what: impl Future<Output = T>) -> (T, Latencies) {
    let stop = Stop::default();
    tokio::join!(
        async {
            let done = what.await;
            stop.store(true, Relaxed);
            done
        },
        probe::terminate(service.grpc, stop.clone()),
    )
}

fn say(kind: Kind, factor: f64, peak: f64, slice: &Slice, latencies: &Latencies) {
    let Slice {
        account, goodput, ..
    } = slice;
    println!(
        "  {kind:?} at {factor} of {peak:.0}/s: {:.2} of it; {} late, {} refused, {} held back of \
         {}; {} terminations, p99 {:.1?}, pushed {:.1?}",
        goodput / peak,
        account.late,
        account.refused,
        account.held_back,
        account.offered,
        latencies.answered.len(),
        percentile(&latencies.answered, 0.99),
        percentile(&latencies.pushed, 0.99),
    );
}

impl Report {
    fn last_round(&self) {
        let last = |of: &[Vec<Duration>; 2]| of.each_ref().map(|p99s| *p99s.last().unwrap());
        let held = self.held.last().unwrap();
        println!(
            "TERMINATE p99 {:.1?} calm, {:.1?} loaded; {:.0} MiB, {} files",
            last(&self.calm),
            last(&self.loaded),
            held.rss_mib,
            held.files,
        );
    }
}

/// What the service has counted since: events it took in, and events it refused
/// for want of room.
fn counted(before: &HashMap<String, f64>, now: &HashMap<String, f64>) -> [f64; 2] {
    let since = |series: &str| sum(now, series) - sum(before, series);
    let refused = ["agents_max", "calls_max", "sessions_max", "state_bytes_max"];
    let refused = refused.map(|why| since(&format!("unstuck_rejected_total{{reason=\"{why}\"}}")));
    [since("unstuck_events_total"), refused.iter().sum()]
}
