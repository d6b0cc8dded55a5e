//! The service with a simulated network and disk that fail on purpose, in simulated
//! time. A seed decides what fails when, and the latency of each message. Three
//! properties hold in every run: an answered termination is never lost, a watcher that
//! resumes sees each verdict once and in order, and an event that is sent again counts
//! once.

#![cfg(test)]

mod clients;
mod disk;
mod host;
#[path = "../../setup/mod.rs"]
mod setup;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use clients::{broker, operator, watcher};
use disk::Disk;
use host::{Host, SERVER};

/// What the clients received, in order.
#[derive(Default)]
struct Observed {
    /// The answered termination of each session.
    terminated: BTreeMap<String, String>,
    /// What the watcher saw.
    watched: Vec<String>,
    /// Counts of events, to check that faults occur.
    resent: usize,
    reconnected: usize,
    /// The broker and the operator are done.
    done: BTreeSet<&'static str>,
}

type SharedObserved = Rc<RefCell<Observed>>;

/// A simple generator, so that a seed gives the same run everywhere.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// The faults of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    partitions: bool,
    half_open: bool,
    crashes: bool,
    slow_disk: bool,
}

/// The current fault.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// No message is delivered, and messages in flight are lost.
    Partition(&'static str),
    /// No message is delivered, without an error.
    HalfOpen(&'static str),
    /// The process has crashed.
    Down,
}

const CLIENTS: [&str; 3] = ["broker", "operator", "watcher"];
/// The steps between two faults: about a fifth of a second of simulated time.
const STEPS_BETWEEN: u64 = 40;
const STEP: Duration = Duration::from_millis(5);
/// The period with faults. All clients must finish after it.
const FAULT_PERIOD: Duration = Duration::from_secs(40);

struct Simulation<'a> {
    sim: turmoil::Sim<'a>,
    host: Host,
    rng: Rng,
    /// Decides whether a power failure is before or after a commit. Separate, so that the
    /// other choices do not depend on it.
    power_rng: Rng,
    faults: Faults,
    fault: Fault,
    /// The step at which a fault starts or ends.
    next_change: u64,
    steps: u64,
    crashes: usize,
}

impl Simulation<'_> {
    /// Lets the disk work and injects faults.
    fn after_step(&mut self) {
        self.steps += 1;
        let may_fail = STEP * u32::try_from(self.steps).unwrap() < FAULT_PERIOD;
        // While the disk is held, answers that need a commit wait.
        let is_held = self.faults.slow_disk && may_fail && self.rng.below(3) == 0;
        if !is_held && self.fault != Fault::Down {
            self.host.let_disk_work();
        }
        if self.steps < self.next_change {
            return;
        }
        self.next_change = self.steps + 1 + self.rng.below(2 * STEPS_BETWEEN);
        match self.fault {
            Fault::None if may_fail => self.start_fault(),
            Fault::None => {}
            _ => self.end_fault(),
        }
    }

    fn start_fault(&mut self) {
        let client = CLIENTS[self.rng.below(3) as usize];
        let Faults {
            partitions,
            half_open,
            crashes,
            ..
        } = self.faults;
        let possible = [
            (partitions, Fault::Partition(client)),
            (half_open, Fault::HalfOpen(client)),
            (crashes, Fault::Down),
        ];
        let possible: Vec<_> = possible.iter().filter(|(is, _)| *is).collect();
        let pick = self.rng.below(possible.len().max(1) as u64);
        let Some((_, fault)) = possible.get(pick as usize) else {
            return;
        };
        self.fault = *fault;
        match fault {
            Fault::None => {}
            Fault::Partition(client) => self.sim.partition(SERVER, *client),
            Fault::HalfOpen(client) => self.sim.hold(SERVER, *client),
            Fault::Down => {
                self.host.lose_power(&mut self.power_rng);
                self.sim.crash(SERVER);
                self.host.wait_until_stopped();
                self.crashes += 1;
            }
        }
    }

    fn end_fault(&mut self) {
        match self.fault {
            Fault::Partition(client) => self.sim.repair(SERVER, client),
            Fault::HalfOpen(client) => self.sim.release(SERVER, client),
            Fault::Down => self.sim.bounce(SERVER),
            Fault::None => {}
        }
        self.fault = Fault::None;
    }
}

/// Frees the disk: the writer waits for it, and dropping the store waits for the writer.
impl Drop for Simulation<'_> {
    fn drop(&mut self) {
        self.host.free_disk();
    }
}

/// The result of a run.
struct RunOutcome {
    crashes: usize,
    observed: Observed,
}

fn run(seed: u64, faults: Faults) -> RunOutcome {
    let mut builder = turmoil::Builder::new();
    builder
        .rng_seed(seed)
        .tick_duration(STEP)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(20))
        .simulation_duration(Duration::from_secs(300))
        .tcp_capacity(4_096);
    let observed = SharedObserved::default();
    let host = Host::new(Disk::new());
    let mut sim = builder.build();
    sim.host(SERVER, {
        let host = host.clone();
        move || host.clone().run()
    });
    sim.client("watcher", watcher(observed.clone()));
    sim.client("broker", broker(observed.clone()));
    sim.client("operator", operator(observed.clone()));
    let mut simulation = Simulation {
        sim,
        host,
        rng: Rng(seed),
        power_rng: Rng(!seed),
        faults,
        fault: Fault::None,
        // No faults until then.
        next_change: 10 * STEPS_BETWEEN,
        steps: 0,
        crashes: 0,
    };
    loop {
        match simulation.sim.step() {
            Ok(true) => break,
            Ok(false) => simulation.after_step(),
            Err(error) => panic!("seed {seed}, step {}: {error}", simulation.steps),
        }
    }
    let crashes = simulation.crashes;
    drop(simulation);
    RunOutcome {
        crashes,
        observed: Rc::into_inner(observed).unwrap().into_inner(),
    }
}

#[test]
fn without_faults_nothing_is_sent_twice() {
    let RunOutcome { observed, .. } = run(1, Faults::default());
    assert_eq!((observed.resent, observed.reconnected), (0, 0));
    assert!(
        observed.terminated.len() >= 20,
        "{}",
        observed.terminated.len()
    );
}

#[test]
fn partitions_and_half_open_connections_lose_and_repeat_nothing() {
    let faults = Faults {
        partitions: true,
        half_open: true,
        slow_disk: true,
        ..Faults::default()
    };
    let (mut resent, mut reconnected) = (0, 0);
    for seed in 0..2 {
        let RunOutcome { observed, .. } = run(seed, faults);
        resent += observed.resent;
        reconnected += observed.reconnected;
    }
    assert!(resent > 0 && reconnected > 0, "nothing went wrong");
}

/// Fails if an answer is sent before its commit.
#[test]
fn a_power_failure_loses_no_answered_termination() {
    let faults = Faults {
        crashes: true,
        slow_disk: true,
        ..Faults::default()
    };
    for seed in 0..3 {
        let RunOutcome { crashes, .. } = run(seed, faults);
        assert!(crashes >= 3, "seed {seed}: {crashes} crashes");
    }
}

#[test]
fn all_faults_at_once_lose_and_repeat_nothing() {
    let faults = Faults {
        partitions: true,
        half_open: true,
        crashes: true,
        slow_disk: true,
    };
    for seed in 10..12 {
        run(seed, faults);
    }
}
