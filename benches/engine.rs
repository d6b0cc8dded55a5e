//! What an event costs, part by part and as a whole:
//!
//! ```text
//! cargo bench --bench engine
//! ```

#![allow(clippy::unwrap_used)]

mod mix;

use std::{
    hash::{BuildHasher, Hasher},
    sync::Arc,
};

use divan::{Bencher, black_box, counter::ItemsCount};
use unstuck::{
    detect::{self, Detector, History, Words},
    domain::{AgentId, Cost, DetectorId, Event, Finding, Moment, Observation, Seen, Used, Waste},
    engine::Profile,
    facts::{EventFacts, Facts, Key, mask},
    policy::{Judge, Sight},
};

fn main() {
    divan::main();
}

/// More events than any cache of texts holds.
const HEALTHY_EVENTS: usize = 16_384;

mod session_step {
    use super::*;

    /// From the event to its answer, all detectors on, nothing to find.
    #[divan::bench]
    fn healthy(bencher: Bencher) {
        let engine = mix::engine();
        let events = mix::healthy("s", HEALTHY_EVENTS);
        let now = mix::now();
        each(bencher, &events, |event| {
            black_box(engine.record(black_box(event), now).unwrap());
        });
    }

    /// Sessions that loop after a few events, each of 64; to begin and to end
    /// them is part of it.
    #[divan::bench(sample_size = 10)]
    fn looping(bencher: Bencher) {
        let engine = mix::engine();
        let mut session = 0;
        let of = |kind: usize| mix::looping(&format!("s{kind}"), kind);
        let sessions: Vec<Vec<Event>> = (0..16).map(of).collect();
        let now = mix::now();
        bencher
            .counter(ItemsCount::new(mix::LOOPING_EVENTS))
            .bench_local(|| {
                session = (session + 1) % sessions.len();
                for event in &sessions[session] {
                    engine.record(black_box(event), now).unwrap();
                }
                engine.end(&sessions[session][0].session, now);
            });
    }
}

mod facts {
    use super::*;

    fn maker() -> Facts {
        let config = mix::config();
        Facts::new(Key::fixed(), config.tools, config.profiles.reader().clone())
    }

    #[divan::bench]
    fn of_a_call(bencher: Bencher) {
        let events = mix::healthy("s", HEALTHY_EVENTS);
        let facts = maker();
        each(bencher, &events, |event| {
            let made = facts.of(black_box(event), None);
            black_box(made.state());
        });
    }

    /// Without a result: tool, canonical arguments, target, words.
    #[divan::bench]
    fn signature(bencher: Bencher) {
        let mut events = mix::healthy("s", HEALTHY_EVENTS);
        for event in &mut events {
            if let unstuck::domain::Body::Call(call) = &mut event.body {
                call.result = None;
                call.error.clear();
            }
        }
        let facts = maker();
        each(bencher, &events, |event| {
            let made = facts.of(black_box(event), None);
            black_box(made.state());
        });
    }

    #[divan::bench]
    fn masking(bencher: Bencher) {
        let texts: Vec<String> = mix::calls()
            .into_iter()
            .filter_map(|call| call.result)
            .collect();
        let state = foldhash::quality::FixedState::default();
        each(bencher, &texts, |text| {
            let mut hasher = state.build_hasher();
            mask::masked_hash(black_box(text), mask::Mask::Result, &mut hasher);
            black_box(hasher.finish());
        });
    }
}

fn each<T>(bencher: Bencher, items: &[T], mut with: impl FnMut(&T)) {
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % items.len();
        with(&items[next]);
    });
}

fn profile() -> Arc<Profile> {
    mix::config().profiles.default().clone()
}

/// What the detectors see of a healthy session, and a history that is full.
fn observations() -> (Vec<Observation>, History) {
    let config = mix::config();
    let facts = Facts::new(Key::fixed(), config.tools, config.profiles.reader().clone());
    let events = mix::healthy("s", 256);
    let mut history = History::default();
    let mut observations = Vec::new();
    for (index, event) in (0..).zip(&events) {
        let EventFacts::Call(made) = facts.of(event, None) else {
            continue;
        };
        let observation = Observation {
            at: Moment {
                index,
                time: mix::now(),
                progress: index as u32 / 4,
                moves: 0,
                calls: index as u32,
                round: None,
            },
            seen: Seen::Call(made.facts),
            used: Used::default(),
        };
        let words = Words {
            tool: "bash",
            target: &made.target,
            event_id: "",
        };
        history.push(&mut observation.clone(), Cost::default(), &words);
        observations.push(observation);
    }
    (observations, history)
}

mod detector {
    use super::*;

    fn one<D: Detector>(bencher: Bencher, settings: impl Fn(&detect::Settings) -> D::Settings) {
        let settings = settings(&profile().detect);
        let (observations, history) = observations();
        let mut detector = D::default();
        each(bencher, &observations, |now| {
            black_box(detector.observe(black_box(now), &history, &settings));
        });
    }

    macro_rules! detectors {
        ($($name:ident: $detector:ident,)+) => {
            $(#[divan::bench]
            fn $name(bencher: Bencher) {
                one::<detect::$name::$detector>(bencher, |detect| detect.$name.own.clone());
            })+
        };
    }

    detectors! {
        budget: Budget,
        infra_outage: InfraOutage,
        polling: Polling,
        fan_out: FanOut,
        patch_spiral: PatchSpiral,
        edit_revert: EditRevert,
        write_churn: WriteChurn,
        read_loop: ReadLoop,
        test_fail_loop: TestFailLoop,
        cycle: Cycle,
        exact_repeat: ExactRepeat,
        interleaved_repeat: InterleavedRepeat,
        error_streak: ErrorStreak,
        near_repeat: NearRepeat,
        stagnation: Stagnation,
        compaction_loop: CompactionLoop,
        repetition: Repetition,
        greeting: Greeting,
        monologue: Monologue,
        similar_turns: SimilarTurns,
    }

    /// The history: a call in, the oldest out.
    #[divan::bench]
    fn history(bencher: Bencher) {
        let (observations, mut history) = observations();
        let words = Words {
            tool: "bash",
            target: "/home/dev/project/src/domain/text.rs",
            event_id: "",
        };
        let mut next = 0;
        bencher
            .with_inputs(|| {
                next = (next + 1) % observations.len();
                observations[next].clone()
            })
            .bench_local_values(|mut now| history.push(&mut now, Cost::default(), &words));
    }
}

mod policy {
    use super::*;

    fn judge(bencher: Bencher, findings: &[(DetectorId, Finding)]) {
        let profile = profile();
        let mut judge = Judge::default();
        let agent = AgentId::default();
        let mut index = 0;
        bencher.bench_local(|| {
            index += 1;
            let sight = Sight {
                agent: &agent,
                at: Moment {
                    index,
                    time: mix::now(),
                    progress: 0,
                    moves: 0,
                    calls: 0,
                    round: None,
                },
                looked: 0xffff,
                findings: black_box(findings),
                totals: Waste::default(),
            };
            judge.judge(&sight, &profile.policy, |_| Waste::default())
        });
    }

    #[divan::bench]
    fn nothing_found(bencher: Bencher) {
        judge(bencher, &[]);
    }

    /// A loop that was reported and goes on.
    #[divan::bench]
    fn a_loop_goes_on(bencher: Bencher) {
        let (observations, _) = observations();
        let call = observations
            .iter()
            .find_map(|now| now.ordinary()?.call)
            .unwrap();
        let finding = Finding {
            count: 4,
            period: 1,
            similarity: 1.0,
            confidence: 1.0,
            bar: None,
            extends: true,
            events: [7].into_iter().collect(),
            name: [call].into_iter().collect(),
            calls: [call].into_iter().collect(),
        };
        let exact = detect::NAMES
            .iter()
            .position(|name| *name == "near_repeat")
            .unwrap();
        judge(bencher, &[(DetectorId(exact as u8), finding)]);
    }
}
