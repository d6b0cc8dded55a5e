//! The service with a simulated network and disk that fail on purpose, in simulated
//! time. A seed decides what fails when, and the latency of each message. Three
//! properties hold in every run: an answered termination is never lost, a watcher that
//! resumes sees each verdict once and in order, and an event that is sent again counts
//! once.

#![cfg(test)]

mod clients;
mod disk;
mod host;

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
struct Ledger {
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

type Shared = Rc<RefCell<Ledger>>;

/// A simple generator, so that a seed gives the same run everywhere.
struct Chance(u64);

impl Chance {
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
struct Hardship {
    partitions: bool,
    half_open: bool,
    crashes: bool,
    slow_disk: bool,
}

/// The current fault, and the number of steps left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
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
const TROUBLED: Duration = Duration::from_secs(40);

struct World<'a> {
    sim: turmoil::Sim<'a>,
    host: Host,
    chance: Chance,
    /// Decides whether a power failure is before or after a commit. Separate, so that the other choices do not
    /// depend on it.
    luck: Chance,
    hardship: Hardship,
    trouble: Trouble,
    next: u64,
    steps: u64,
    crashes: usize,
}

impl World<'_> {
    /// Lets the disk work and injects faults.
    fn between(&mut self) {
        self.steps += 1;
        let troubled = STEP * u32::try_from(self.steps).unwrap() < TROUBLED;
        // While the disk is held, answers that need a commit wait.
        let is_held = self.hardship.slow_disk && troubled && self.chance.below(3) == 0;
        if !is_held && self.trouble != Trouble::Down {
            self.host.let_disk_work();
        }
        if self.steps < self.next {
            return;
        }
        self.next = self.steps + 1 + self.chance.below(2 * STEPS_BETWEEN);
        match self.trouble {
            Trouble::None if troubled => self.begin(),
            Trouble::None => {}
            _ => self.end(),
        }
    }

    fn begin(&mut self) {
        let client = CLIENTS[self.chance.below(3) as usize];
        let Hardship {
            partitions,
            half_open,
            crashes,
            ..
        } = self.hardship;
        let possible = [
            (partitions, Trouble::Partition(client)),
            (half_open, Trouble::HalfOpen(client)),
            (crashes, Trouble::Down),
        ];
        let possible: Vec<_> = possible.iter().filter(|(is, _)| *is).collect();
        let pick = self.chance.below(possible.len().max(1) as u64);
        let Some((_, trouble)) = possible.get(pick as usize) else {
            return;
        };
        self.trouble = *trouble;
        match trouble {
            Trouble::None => {}
            Trouble::Partition(client) => self.sim.partition(SERVER, *client),
            Trouble::HalfOpen(client) => self.sim.hold(SERVER, *client),
            Trouble::Down => {
                self.host.lose_power(&mut self.luck);
                self.sim.crash(SERVER);
                self.host.wait_until_gone();
                self.crashes += 1;
            }
        }
    }

    fn end(&mut self) {
        match self.trouble {
            Trouble::Partition(client) => self.sim.repair(SERVER, client),
            Trouble::HalfOpen(client) => self.sim.release(SERVER, client),
            Trouble::Down => self.sim.bounce(SERVER),
            Trouble::None => {}
        }
        self.trouble = Trouble::None;
    }
}

/// Frees the disk: the writer waits for it, and dropping the store waits for the writer.
impl Drop for World<'_> {
    fn drop(&mut self) {
        self.host.free_disk();
    }
}

/// The result of a run.
struct Outcome {
    crashes: usize,
    ledger: Ledger,
}

fn run(seed: u64, hardship: Hardship) -> Outcome {
    let mut builder = turmoil::Builder::new();
    builder
        .rng_seed(seed)
        .tick_duration(STEP)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(20))
        .simulation_duration(Duration::from_secs(300))
        .tcp_capacity(4_096);
    let ledger = Shared::default();
    let host = Host::new(Disk::new());
    let mut sim = builder.build();
    sim.host(SERVER, {
        let host = host.clone();
        move || host.clone().run()
    });
    sim.client("watcher", watcher(ledger.clone()));
    sim.client("broker", broker(ledger.clone()));
    sim.client("operator", operator(ledger.clone()));
    let mut world = World {
        sim,
        host,
        chance: Chance(seed),
        luck: Chance(!seed),
        hardship,
        trouble: Trouble::None,
        // No faults until then.
        next: 10 * STEPS_BETWEEN,
        steps: 0,
        crashes: 0,
    };
    loop {
        match world.sim.step() {
            Ok(true) => break,
            Ok(false) => world.between(),
            Err(error) => panic!("seed {seed}, step {}: {error}", world.steps),
        }
    }
    let crashes = world.crashes;
    drop(world);
    Outcome {
        crashes,
        ledger: Rc::into_inner(ledger).unwrap().into_inner(),
    }
}

#[test]
fn without_faults_nothing_is_sent_twice() {
    let Outcome { ledger, .. } = run(1, Hardship::default());
    assert_eq!((ledger.resent, ledger.reconnected), (0, 0));
    assert!(ledger.terminated.len() >= 20, "{}", ledger.terminated.len());
}

#[test]
fn partitions_and_half_open_connections_lose_and_repeat_nothing() {
    let hardship = Hardship {
        partitions: true,
        half_open: true,
        slow_disk: true,
        ..Hardship::default()
    };
    let (mut resent, mut reconnected) = (0, 0);
    for seed in 0..2 {
        let Outcome { ledger, .. } = run(seed, hardship);
        resent += ledger.resent;
        reconnected += ledger.reconnected;
    }
    assert!(resent > 0 && reconnected > 0, "nothing went wrong");
}

/// Fails if an answer is sent before its commit.
#[test]
fn a_power_failure_loses_no_answered_termination() {
    let hardship = Hardship {
        crashes: true,
        slow_disk: true,
        ..Hardship::default()
    };
    for seed in 0..3 {
        let Outcome { crashes, .. } = run(seed, hardship);
        assert!(crashes >= 3, "seed {seed}: {crashes} crashes");
    }
}

#[test]
fn all_faults_at_once_lose_and_repeat_nothing() {
    let hardship = Hardship {
        partitions: true,
        half_open: true,
        crashes: true,
        slow_disk: true,
    };
    for seed in 10..12 {
        run(seed, hardship);
    }
}
