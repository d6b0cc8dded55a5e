//! Checks the results of a run and prints each check.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::{
    KINDS, Mode, Report, events_counted,
    load::Account,
    service::{ProcessUsage, Service, sum},
};

/// The share of the peak goodput that must be served at twice and at four times
/// the peak load.
const GOODPUT_AT_2: f64 = 0.9;
const GOODPUT_AT_4: f64 = 0.8;
/// How many times longer a termination may take under load.
const TERMINATE_TIMES_MAX: f64 = 5.0;
/// The least latency assumed for a termination without load, in seconds. It passes
/// through four threads, and on a machine with other work each of them waits for a
/// scheduler slice of about 3 ms, independent of the service.
const CALM_SECS_MIN: f64 = 0.002;
/// The first rounds fill caches and free lists; after them memory must not grow.
const RSS_GROWTH_MAX: f64 = 1.15;
/// Hang guard. Sessions, tombstones and streams are released within seconds.
const RELEASE_DEADLINE: Duration = Duration::from_secs(120);

impl Report {
    /// Prints all checks of the mode. Returns how many failed.
    pub async fn check(
        &self,
        mode: Mode,
        before: &HashMap<String, f64>,
        service: &mut Service,
        base: ProcessUsage,
    ) -> usize {
        let counted = events_counted(before, &service.metrics().await);
        let mut checks = Checks::default();
        println!();
        if mode == Mode::Timed {
            self.check_goodput(&mut checks);
            self.check_terminations(&mut checks);
            self.check_memory(&mut checks);
            // Whether the load reaches a limit depends on the machine.
            let refused = self.account.refused as f64;
            checks.at_least("events refused by a limit", refused, 1.0);
        }
        self.check_accounting(&mut checks, counted);
        check_release(&mut checks, service, base).await;
        checks.failed
    }

    fn check_goodput(&self, checks: &mut Checks) {
        for (kind, shares) in KINDS.into_iter().zip(&self.shares) {
            let [_, _, at_2, at_4] = shares.each_ref().map(|shares| median(shares));
            checks.at_least(
                &format!("{kind:?}: goodput at 2 times the peak load, as a share of the peak"),
                at_2,
                GOODPUT_AT_2,
            );
            checks.at_least(
                &format!("{kind:?}: goodput at 4 times the peak load, as a share of the peak"),
                at_4,
                GOODPUT_AT_4,
            );
        }
        let not_sent = self.account.not_sent as f64;
        checks.at_least("events not sent because of backpressure", not_sent, 1.0);
    }

    fn check_terminations(&self, checks: &mut Checks) {
        for (n, target) in ["the operator", "the stream"].into_iter().enumerate() {
            let [calm, loaded] = [&self.calm[n], &self.loaded[n]].map(|p99s| {
                let secs: Vec<f64> = p99s.iter().map(Duration::as_secs_f64).collect();
                median(&secs)
            });
            println!(
                "       TERMINATE to {target}: p99 {:.2} ms without load, {:.2} ms under load",
                calm * 1e3,
                loaded * 1e3
            );
            checks.at_most(
                &format!("p99 to {target} under load, as a multiple of the p99 without load"),
                loaded / calm.max(CALM_SECS_MIN),
                TERMINATE_TIMES_MAX,
            );
        }
    }

    fn check_memory(&self, checks: &mut Checks) {
        let (first, last) = self.usage.split_at(self.usage.len() / 2);
        checks.at_most(
            "memory in the second half of the run, as a multiple of the first half",
            median_rss(last) / median_rss(first),
            RSS_GROWTH_MAX,
        );
    }

    /// Every offered event is accounted for, by the client and by the service.
    fn check_accounting(&self, checks: &mut Checks, [accepted_there, refused_there]: [f64; 2]) {
        println!("       {:?}", self.account);
        println!("       {:?}", self.faults);
        let Account {
            offered,
            accepted,
            refused,
            not_sent,
            ..
        } = self.account;
        let missing = offered - accepted - refused - not_sent;
        checks.at_most("offered events not accounted for", missing as f64, 0.0);
        let terminations = self.probes.answered.len() as f64;
        checks.at_least("durable terminations, each pushed", terminations, 1.0);
        checks.at_least("faults of each kind", self.faults.least() as f64, 1.0);
        let known_accepted = accepted + self.faults.accepted + self.probes.accepted;
        let known_refused = refused + self.faults.refused;
        // A client that was disconnected does not know how many of its events were
        // accepted.
        let beyond = accepted_there + refused_there - (known_accepted + known_refused) as f64;
        let name = "events counted by the service beyond those answered";
        checks.at_least(name, beyond, 0.0);
        checks.at_most(name, beyond, self.faults.uncertain as f64);
    }
}

/// Everything is released after the load: sessions, streams, memory, files.
async fn check_release(checks: &mut Checks, service: &mut Service, base: ProcessUsage) {
    const FILES_MAX: usize = 2;
    let deadline = Instant::now() + RELEASE_DEADLINE;
    loop {
        let metrics = service.metrics().await;
        let left: f64 = ["unstuck_sessions", "unstuck_streams", "unstuck_state_bytes"]
            .iter()
            .map(|name| sum(&metrics, name))
            .sum();
        let files = service.usage().files.saturating_sub(base.files);
        if (left == 0.0 && files <= FILES_MAX) || Instant::now() > deadline {
            checks.at_most("sessions, streams and bytes not released", left, 0.0);
            checks.at_most("files left open", files as f64, FILES_MAX as f64);
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn median_rss(usage: &[ProcessUsage]) -> f64 {
    let mib: Vec<f64> = usage.iter().map(|usage| usage.rss_mib).collect();
    median(&mib)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Prints checks and counts those that fail.
#[derive(Default)]
struct Checks {
    failed: usize,
}

impl Checks {
    fn at_least(&mut self, name: &str, value: f64, min: f64) {
        self.print(name, value, ">=", min, value >= min);
    }

    fn at_most(&mut self, name: &str, value: f64, max: f64) {
        self.print(name, value, "<=", max, value <= max);
    }

    fn print(&mut self, name: &str, value: f64, relation: &str, bound: f64, passed: bool) {
        let result = if passed { "ok    " } else { "FAILED" };
        println!("{result} {name}: {value:.2} {relation} {bound}");
        self.failed += usize::from(!passed);
    }
}
