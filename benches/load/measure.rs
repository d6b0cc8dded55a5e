//! Runs a load against both servers alternately.

use std::time::Duration;

use super::{
    child::{Program, Server},
    load_generator::drive::{self, End, Failure, Pace},
    scenario::Scenario,
};

/// Duration, rounds and cores of a measurement.
pub struct Plan {
    pub time: Duration,
    pub rounds: usize,
    /// The number of cores, and the one reserved for the server.
    pub cores: usize,
    pub core: Option<usize>,
    pub unstuck: Program,
}

/// Medians of the rounds. Ratios are computed within a round, in which both servers had
/// the same conditions.
pub struct Row {
    pub name: String,
    pub scenario: usize,
    pub bare: Figures,
    pub unstuck: Figures,
    /// Unstuck's figures divided by the bare server's: throughput, events per CPU second, 99th
    /// percentile of a typical interval and of a whole run.
    pub throughput: f64,
    pub core: f64,
    pub p99: f64,
    pub whole_p99: f64,
    /// Messages per second at which latencies were measured.
    pub rate: f64,
    /// Verdicts per thousand results.
    pub verdicts: f64,
}

pub struct Figures {
    pub events_per_sec: f64,
    pub cpu_micros: f64,
    pub p50_micros: f64,
    /// Of a typical interval.
    pub p99_micros: f64,
}

/// The share of the slower server's throughput at which latencies are measured. Queues
/// are then mostly empty, so a slow answer is caused by the server.
const STEADY: f64 = 0.5;

#[derive(Clone, Copy)]
struct Sample {
    messages_per_sec: f64,
    cpu_micros: f64,
    p50_micros: f64,
    p99_micros: f64,
    whole_p99_micros: f64,
    verdicts: f64,
}

struct Pair {
    bare: Vec<Sample>,
    unstuck: Vec<Sample>,
}

pub async fn measure(plan: &Plan, number: usize, scenario: &Scenario) -> Result<Row, Failure> {
    let bare = Server::start(&Program::BareServer, plan.core).await?;
    let unstuck = Server::start(&plan.unstuck, plan.core).await?;
    let mut bench = Bench {
        scenario,
        servers: [bare, unstuck],
        runs: 0,
    };
    bench.rounds(Pace::FlatOut, 1, plan.time / 4).await?;
    let flat_out = bench.rounds(Pace::FlatOut, plan.rounds, plan.time).await?;
    let of = |samples: &[Sample], f: fn(&Sample) -> f64| median(samples.iter().map(f));
    let messages = |sample: &Sample| sample.messages_per_sec;
    let slower = of(&flat_out.bare, messages).min(of(&flat_out.unstuck, messages));
    let rate = STEADY * slower;
    let steady = bench
        .rounds(Pace::Steady(rate), plan.rounds, plan.time)
        .await?;
    let figures = |flat_out: &[Sample], steady: &[Sample]| Figures {
        events_per_sec: of(flat_out, messages) * scenario.batch as f64,
        cpu_micros: of(flat_out, |sample| sample.cpu_micros),
        p50_micros: of(steady, |sample| sample.p50_micros),
        p99_micros: of(steady, |sample| sample.p99_micros),
    };
    Ok(Row {
        name: scenario.name.clone(),
        scenario: number,
        bare: figures(&flat_out.bare, &steady.bare),
        unstuck: figures(&flat_out.unstuck, &steady.unstuck),
        throughput: flat_out
            .ratio(|bare, unstuck| unstuck.messages_per_sec / bare.messages_per_sec),
        core: flat_out.ratio(|bare, unstuck| bare.cpu_micros / unstuck.cpu_micros),
        p99: steady.ratio(|bare, unstuck| unstuck.p99_micros / bare.p99_micros),
        whole_p99: steady.ratio(|bare, unstuck| unstuck.whole_p99_micros / bare.whole_p99_micros),
        rate,
        verdicts: of(&flat_out.unstuck, |sample| sample.verdicts),
    })
}

struct Bench<'a> {
    scenario: &'a Scenario,
    /// The bare server, then Unstuck.
    servers: [Server; 2],
    runs: usize,
}

impl Bench<'_> {
    async fn rounds(&mut self, pace: Pace, rounds: usize, time: Duration) -> Result<Pair, Failure> {
        let (mut bare, mut unstuck) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            // The order alternates.
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for which in order {
                let sample = self.once(which, pace, time).await?;
                [&mut bare, &mut unstuck][which].push(sample);
            }
        }
        Ok(Pair { bare, unstuck })
    }

    async fn once(&mut self, which: usize, pace: Pace, time: Duration) -> Result<Sample, Failure> {
        self.runs += 1;
        let server = &self.servers[which];
        let load = self.scenario.load(pace, End::After(time), self.runs);
        let before = server.cpu()?;
        let outcome = drive::run(server.grpc, &load).await?;
        let cpu = server.cpu()? - before;
        let events = outcome.messages as f64 * self.scenario.batch as f64;
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let quantile = |quantile| micros(outcome.latency.value_at_quantile(quantile));
        Ok(Sample {
            messages_per_sec: outcome.messages as f64 / outcome.elapsed.as_secs_f64(),
            cpu_micros: cpu.as_secs_f64() * 1e6 / events,
            p50_micros: quantile(0.5),
            p99_micros: micros(outcome.typical_p99),
            whole_p99_micros: quantile(0.99),
            verdicts: 1e3 * outcome.verdicts as f64 / outcome.checked_results.max(1) as f64,
        })
    }
}

impl Pair {
    fn ratio(&self, of: impl Fn(&Sample, &Sample) -> f64) -> f64 {
        let rounds = self.bare.iter().zip(&self.unstuck);
        median(rounds.map(|(bare, unstuck)| of(bare, unstuck)))
    }
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1);
    let (lower, upper) = (values.get(middle / 2), values.get(middle.div_ceil(2)));
    lower
        .zip(upper)
        .map_or(f64::NAN, |(lower, upper)| (lower + upper) / 2.0)
}
