//! Says of each promise whether it held.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::{
    KINDS, Report,
    chaos::Mischief,
    counted,
    load::Account,
    service::{Held, Service, sum},
};

/// What is promised: of the events that are served at most, so much is served at
/// twice and at four times the load, and a termination takes so much longer.
const GOODPUT_AT_2: f64 = 0.9;
const GOODPUT_AT_4: f64 = 0.8;
const TERMINATE_TIMES_MAX: f64 = 5.0;
/// A calm termination is reckoned to take this long at least, in seconds: it passes
/// through four threads, and where others work each waits for a slice of the
/// scheduler's, some 3 ms, whatever the service does.
const CALM_SECS_MIN: f64 = 0.002;
/// The first rounds fill what is kept for reuse; after them memory stands.
const RSS_GROWTH_MAX: f64 = 1.15;

impl Report {
    /// Says what holds; how much does not.
    pub async fn judge(
        &self,
        before: &HashMap<String, f64>,
        service: &mut Service,
        base: Held,
    ) -> usize {
        let counted = counted(before, &service.metrics().await);
        let mut verdict = Judge::default();
        println!();
        for (kind, shares) in KINDS.into_iter().zip(&self.shares) {
            let [_, _, at_2, at_4] = shares.each_ref().map(|shares| median(shares));
            let what = |times| format!("{kind:?}: goodput at {times} times the peak, of it");
            verdict.at_least(&what(2), at_2, GOODPUT_AT_2);
            verdict.at_least(&what(4), at_4, GOODPUT_AT_4);
        }
        for (to, whom) in ["its operator", "its stream"].into_iter().enumerate() {
            let [calm, loaded] = [&self.calm[to], &self.loaded[to]].map(|p99s| {
                let p99s: Vec<f64> = p99s.iter().map(Duration::as_secs_f64).collect();
                median(&p99s)
            });
            println!(
                "       TERMINATE to {whom}: p99 {:.2} ms when calm, {:.2} ms under load",
                calm * 1e3,
                loaded * 1e3
            );
            let what = format!("its p99 to {whom} under load, in calm ones");
            let times = loaded / calm.max(CALM_SECS_MIN);
            verdict.at_most(&what, times, TERMINATE_TIMES_MAX);
        }
        self.judge_account(&mut verdict, counted);
        self.judge_rest(&mut verdict, service, base).await;
        verdict.failed
    }

    /// Every event that was offered is accounted for, here and in the service.
    fn judge_account(&self, verdict: &mut Judge, [taken_in, refused]: [f64; 2]) {
        println!("       {:?}", self.account);
        println!("       {:?}", self.mischief);
        let Account {
            offered,
            accepted,
            refused: told_so,
            held_back,
            ..
        } = self.account;
        let missing = offered - accepted - told_so - held_back;
        verdict.at_most("offered, and not accounted for", missing as f64, 0.0);
        verdict.at_least("faults of each kind", self.mischief.least() as f64, 1.0);
        verdict.at_least("refused for want of room", told_so as f64, 1.0);
        verdict.at_least("held back", held_back as f64, 1.0);
        let known = accepted + self.mischief.accepted + self.probes.accepted;
        let known_refused = told_so + self.mischief.refused;
        // Whoever was cut off does not know how many of its events were taken in.
        let beyond = taken_in + refused - (known + known_refused) as f64;
        let what = "counted by the service, beyond what was answered";
        verdict.at_least(what, beyond, 0.0);
        verdict.at_most(what, beyond, self.mischief.uncertain as f64);
    }

    /// Memory stands while it runs, and all is let go of afterwards.
    async fn judge_rest(&self, verdict: &mut Judge, service: &mut Service, base: Held) {
        let (first, last) = self.held.split_at(self.held.len() / 2);
        let rss = |held: &[Held]| median(&held.iter().map(|held| held.rss_mib).collect::<Vec<_>>());
        let growth = rss(last) / rss(first);
        verdict.at_most(
            "memory in the second half, of the first",
            growth,
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

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

impl std::ops::AddAssign for Mischief {
    fn add_assign(&mut self, other: Self) {
        self.killed += other.killed;
        self.slow += other.slow;
        self.bad += other.bad;
        self.uncertain += other.uncertain;
        self.accepted += other.accepted;
        self.refused += other.refused;
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
