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
mod load;
mod probe;
mod service;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use chaos::Mischief;
use load::{Account, Pace, Stop};
use probe::{Latencies, percentile};
use service::{Held, Service, sum};

/// Short, and taken by turns, so that whatever else the machine does falls on
/// all of them alike.
const SLICE: Duration = Duration::from_secs(3);
const FACTORS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

/// What is promised: of the events that are served at most, so much is served at
/// twice and at four times the load, and a termination takes so much longer.
const GOODPUT_AT_2: f64 = 0.9;
const GOODPUT_AT_4: f64 = 0.8;
const TERMINATE_TIMES_MAX: f64 = 5.0;
/// The first rounds fill what is kept for reuse; after them memory stands.
const RSS_GROWTH_MAX: f64 = 1.15;

/// What all rounds came to.
#[derive(Default)]
struct Report {
    peaks: Vec<f64>,
    /// Goodput as a share of the round's peak, by factor.
    shares: [Vec<f64>; 4],
    calm: Latencies,
    loaded: Latencies,
    /// At no more than the peak.
    busy: Latencies,
    account: Account,
    mischief: Mischief,
    held: Vec<Held>,
}

#[tokio::main]
async fn main() {
    // `cargo bench` adds one of its own.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let Some(Ok(minutes)) = args.next().map(|text| text.parse::<f64>()) else {
        eprintln!("usage: soak MINUTES");
        std::process::exit(2);
    };
    unstuck::notify::install_tls();
    let mut service = Service::start(env!("CARGO_BIN_EXE_unstuck"));
    let base = service.held();
    println!("before: {:.0} MiB, {} files", base.rss_mib, base.files);
    let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut report = Report::default();
    // The first round warms everything up and is not counted.
    round(&service, &mut Report::default()).await;
    let before = taken_in(&service).await;
    while Instant::now() < until || report.peaks.len() < 3 {
        round(&service, &mut report).await;
        report.held.push(service.held());
        report.last_round();
    }
    let failed = report.judge(before, &mut service, base).await;
    if failed > 0 {
        println!("\n{failed} of the promises do not hold");
        std::process::exit(1);
    }
    println!("\nall hold");
}

async fn taken_in(service: &Service) -> f64 {
    sum(&service.metrics().await, "unstuck_events_total")
}

/// Every load for a slice, with terminations and faults all the while.
async fn round(service: &Service, report: &mut Report) {
    let calm = probed(service, tokio::time::sleep(SLICE)).await.1;
    report.calm.extend(calm);
    let (peak, busy) = troubled(service, Pace::Busy, report).await;
    report.peaks.push(peak);
    report.busy.extend(busy);
    for (n, factor) in FACTORS.into_iter().enumerate() {
        let (goodput, latencies) = troubled(service, Pace::Offered(peak * factor), report).await;
        report.shares[n].push(goodput / peak);
        match factor > 1.0 {
            true => report.loaded.extend(latencies),
            false => report.busy.extend(latencies),
        }
    }
}

/// The goodput of a slice with faults, and what terminations took meanwhile.
async fn troubled(service: &Service, pace: Pace, report: &mut Report) -> (f64, Latencies) {
    let stop = Stop::default();
    let (mischief, (slice, latencies)) = tokio::join!(chaos::run(service, stop.clone()), async {
        let slice = probed(service, load::run(service, pace, SLICE)).await;
        stop.store(true, Relaxed);
        slice
    });
    report.account += slice.account;
    report.mischief += mischief;
    (slice.goodput, latencies)
}

/// Something, with terminations beside it.
async fn probed<T>(service: &Service, what: impl Future<Output = T>) -> (T, Latencies) {
    let stop: Stop = Arc::new(AtomicBool::new(false));
    tokio::join!(
        async {
            let done = what.await;
            stop.store(true, Relaxed);
            done
        },
        probe::terminate(service, stop.clone()),
    )
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

impl Report {
    fn last_round(&self) {
        let share = |shares: &Vec<f64>| format!("{:.2}", shares.last().unwrap());
        let shares: Vec<String> = self.shares.iter().map(share).collect();
        let held = self.held.last().unwrap();
        println!(
            "peak {:>7.0}/s, at .5 1 2 4 of it {} of it; {:.0} MiB, {} files",
            self.peaks.last().unwrap(),
            shares.join(" "),
            held.rss_mib,
            held.files,
        );
    }

    /// Says what holds; how much does not.
    async fn judge(&self, before: f64, service: &mut Service, base: Held) -> usize {
        let taken_in = taken_in(service).await - before;
        let mut verdict = Judge::default();
        let [_, _, at_2, at_4] = self.shares.each_ref().map(|shares| median(shares));
        verdict.at_least(
            "goodput at 2 times the peak, of the peak",
            at_2,
            GOODPUT_AT_2,
        );
        verdict.at_least(
            "goodput at 4 times the peak, of the peak",
            at_4,
            GOODPUT_AT_4,
        );
        for (what, calm, loaded) in [
            ("answered", &self.calm.answered, &self.loaded.answered),
            ("pushed", &self.calm.pushed, &self.loaded.pushed),
        ] {
            let (calm, loaded) = (percentile(calm, 0.99), percentile(loaded, 0.99));
            println!("TERMINATE {what}: p99 {calm:?} when calm, {loaded:?} under load");
            let times = loaded.as_secs_f64() / calm.as_secs_f64();
            verdict.at_most(
                "its p99 under load, in calm ones",
                times,
                TERMINATE_TIMES_MAX,
            );
        }
        let Account {
            offered,
            accepted,
            refused,
            held_back,
        } = self.account;
        println!(
            "offered {offered}: accepted {accepted}, refused {refused}, held back {held_back}"
        );
        println!(
            "{:?}, {} terminations",
            self.mischief,
            self.calm.answered.len() + self.loaded.answered.len()
        );
        verdict.at_least("mischief of each kind", self.mischief.least() as f64, 1.0);
        verdict.at_least("refused for want of room", refused as f64, 1.0);
        // Whoever was cut off does not know how many of its events were taken in.
        let probes = [&self.calm, &self.busy, &self.loaded];
        let known =
            accepted + self.mischief.accepted + probes.iter().map(|of| of.accepted).sum::<u64>();
        verdict.at_least(
            "taken in, beyond what was accepted",
            taken_in - known as f64,
            0.0,
        );
        let most = self.mischief.uncertain as f64;
        verdict.at_most(
            "taken in, beyond what was accepted",
            taken_in - known as f64,
            most,
        );
        self.judge_rest(&mut verdict, service, base).await;
        verdict.failed
    }

    /// Memory stands while it runs, and all is let go of afterwards.
    async fn judge_rest(&self, verdict: &mut Judge, service: &mut Service, base: Held) {
        let (first, last) = self.held.split_at(self.held.len() / 2);
        let rss = |held: &[Held]| median(&held.iter().map(|held| held.rss_mib).collect::<Vec<_>>());
        verdict.at_most(
            "memory in the second half, of the first",
            rss(last) / rss(first),
            RSS_GROWTH_MAX,
        );
        // What is idle or over is let go of within seconds.
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let metrics = service.metrics().await;
            let left = ["unstuck_sessions", "unstuck_streams", "unstuck_state_bytes"];
            let left: f64 = left.iter().map(|name| sum(&metrics, name)).sum();
            let files = service.held().files.saturating_sub(base.files);
            if (left == 0.0 && files <= 2) || Instant::now() > deadline {
                verdict.at_most("sessions, streams and bytes that are left", left, 0.0);
                verdict.at_most("files that are left open", files as f64, 2.0);
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

impl std::ops::AddAssign for Mischief {
    fn add_assign(&mut self, other: Self) {
        self.killed += other.killed;
        self.slow += other.slow;
        self.bad += other.bad;
        self.uncertain += other.uncertain;
        self.accepted += other.accepted;
    }
}

impl Mischief {
    fn least(&self) -> u64 {
        self.killed.min(self.slow).min(self.bad)
    }
}

#[derive(Default)]
struct Judge {
    failed: usize,
}

impl Judge {
    fn at_least(&mut self, what: &str, is: f64, least: f64) {
        self.say(what, is, ">=", least, is >= least);
    }

    fn at_most(&mut self, what: &str, is: f64, most: f64) {
        self.say(what, is, "<=", most, is <= most);
    }

    fn say(&mut self, what: &str, is: f64, relation: &str, bound: f64, holds: bool) {
        println!(
            "{} {what}: {is:.2} {relation} {bound}",
            if holds { "ok    " } else { "FAILED" }
        );
        self.failed += usize::from(!holds);
    }
}
