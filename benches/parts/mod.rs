//! The parts of an event's path, each as a repeatable step: for timing
//! (`benches/engine.rs`) and for counting instructions (`benches/counts.rs`).

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each benchmark uses some of it"
)]

#[path = "../adversarial/mod.rs"]
pub mod adversarial;
#[path = "../mix/mod.rs"]
pub mod mix;

use std::{
    collections::BTreeMap,
    fs,
    hash::{BuildHasher, Hasher},
    hint::black_box,
    sync::Arc,
};

use adversarial::Genes;
use prost::Message;
use unstuck::{
    detect::{self, CallText, Detector, History},
    domain::{
        AgentId, Capacities, Capacity, Cost, Delta, DetectorId, Event, EventBody, EventPosition,
        Finding, Observation, ObservationBody, SessionId, UsageDelta, Waste,
    },
    engine::{Engine, Profile},
    facts::{EventFacts, FactExtractor},
    pb,
    policy::{AgentPolicy, DetectorResults},
    text::{HashKey, mask},
};

/// Runs one step of a part.
pub type Step = Box<dyn FnMut()>;

/// A part: its name, the number of steps of a sample, and its set-up.
pub struct Part {
    pub name: &'static str,
    /// The steps of one round.
    pub steps: usize,
    pub make: fn() -> Step,
}

/// Several times as many events as any cache of texts holds.
const EVENTS: usize = 16_384;
const LOOPING_SESSIONS: usize = 16;
/// More than the detectors' history holds.
const OBSERVATIONS: usize = 256;
/// Events of the recorded sessions, tool calls and turns.
const HEALTHY: &str = include_str!("../mixes/healthy.ndjson");
const LOOPING: &str = include_str!("../mixes/looping.ndjson");
const HEALTHY_EVENTS: usize = 612;
const LOOPING_EVENTS: usize = 321;
/// Steps with results of their own.
const OWN_STEPS: usize = 8_192;
/// The calls of a session with results of its own: more than a window holds.
const OWN_CALLS: usize = 40;
/// Text results of the mix.
const RESULTS: usize = 52;
/// Turns for the detectors of turns.
const TURNS: usize = 16;
/// Deltas of a text.
const TEXT_DELTAS: usize = 512;
const DELTA_BYTES: usize = 7;
/// The same for long deltas: a text of the same length.
const LONG_DELTAS: usize = 18;
const LONG_DELTA_BYTES: usize = 200;
/// Half of the report.
const TURN_BYTES: usize = 1_827;
/// A report, and a sentence that has repeated for long.
const WRITTEN: &str = include_str!("../../tests/it/texts/report.txt");
const LOOPED: &str = "Wait, but the test still fails, so the mock must be wrong. ";

macro_rules! parts {
    ($($name:literal $steps:expr => $make:expr,)+) => {
        pub const PARTS: &[Part] = &[$(Part { name: $name, steps: $steps, make: $make },)+];
    };
}

parts! {
    "event, healthy" EVENTS => healthy_event,
    "event, looping" LOOPING_SESSIONS * mix::LOOPING_EVENTS => looping_event,
    "event, recorded, healthy" HEALTHY_EVENTS => || recorded(HEALTHY, HEALTHY_EVENTS, false),
    "event, recorded, looping" LOOPING_EVENTS => || recorded(LOOPING, LOOPING_EVENTS, true),
    "event, own results" OWN_STEPS => || own_results(512, 0),
    "event, own results of 2 KB" OWN_STEPS / 4 => || own_results(64, 2 << 10),
    "event, own results of 16 KB" OWN_STEPS / 16 => || own_results(16, 16 << 10),
    "delta of 7 characters" TEXT_DELTAS => || delta(DELTA_BYTES, WRITTEN),
    "delta of 200 characters" LONG_DELTAS => || delta(LONG_DELTA_BYTES, WRITTEN),
    "delta of a loop" TEXT_DELTAS => || delta(DELTA_BYTES, LOOPED),
    "facts of a turn" 2 => turn,
    "turn of 1 MiB of spaces" 1 => || odd_turn(" ", 1 << 20),
    "turn of 300,000 marks" 1 => || odd_turn("\u{301}", 300_000),
    "turn of one word of 1 MiB" 1 => || odd_turn("x", 1 << 20),
    "turn of prose" 1 => || turns_of(prose()),
    "text of prose in deltas" 1 => || deltas_of(prose()),
    "text of prose, classic" 1 => || classic_deltas_of(prose()),
    "call with prose" 1 => || calls_of(prose()),
    "Struct of prose" 1 => || struct_call(&adversarial::prose(STRUCT_VALUES * STRUCT_VALUE_BYTES), 1),
    "call without rules" 1 => || rules_call(""),
    "facts of a call" EVENTS => || facts_of(mix::healthy("s", EVENTS)),
    "signature" EVENTS => || facts_of(without_outcomes()),
    "masking" RESULTS => || masking(mask::MaskKind::Result),
    "masking as an error" RESULTS => || masking(mask::MaskKind::Error),
    "history" OBSERVATIONS => history,
    "policy, nothing found" 64 => || policy(Vec::new()),
    "policy, a loop goes on" 64 => || policy(vec![near_repeat()]),
    "budget" OBSERVATIONS => || one::<detect::budget::Budget>(|d| d.budget.own.clone()),
    "infra_outage" OBSERVATIONS => || one::<detect::infra_outage::InfraOutage>(|d| d.infra_outage.own.clone()),
    "polling" OBSERVATIONS => || one::<detect::polling::Polling>(|d| d.polling.own.clone()),
    "fan_out" OBSERVATIONS => || one::<detect::fan_out::FanOut>(|d| d.fan_out.own.clone()),
    "patch_spiral" OBSERVATIONS => || one::<detect::patch_spiral::PatchSpiral>(|d| d.patch_spiral.own.clone()),
    "edit_revert" OBSERVATIONS => || one::<detect::edit_revert::EditRevert>(|d| d.edit_revert.own.clone()),
    "write_churn" OBSERVATIONS => || one::<detect::write_churn::WriteChurn>(|d| d.write_churn.own.clone()),
    "read_loop" OBSERVATIONS => || one::<detect::read_loop::ReadLoop>(|d| d.read_loop.own.clone()),
    "test_fail_loop" OBSERVATIONS => || one::<detect::test_fail_loop::TestFailLoop>(|d| d.test_fail_loop.own.clone()),
    "cycle" OBSERVATIONS => || one::<detect::cycle::Cycle>(|d| d.cycle.own.clone()),
    "exact_repeat" OBSERVATIONS => || one::<detect::exact_repeat::ExactRepeat>(|d| d.exact_repeat.own.clone()),
    "interleaved_repeat" OBSERVATIONS => || one::<detect::interleaved_repeat::InterleavedRepeat>(|d| d.interleaved_repeat.own.clone()),
    "error_streak" OBSERVATIONS => || one::<detect::error_streak::ErrorStreak>(|d| d.error_streak.own.clone()),
    "near_repeat" OBSERVATIONS => || one::<detect::near_repeat::NearRepeat>(|d| d.near_repeat.own.clone()),
    "stagnation" OBSERVATIONS => || one::<detect::stagnation::Stagnation>(|d| d.stagnation.own.clone()),
    "compaction_loop" OBSERVATIONS => || one::<detect::compaction_loop::CompactionLoop>(|d| d.compaction_loop.own.clone()),
    "greeting" TURNS => || one_of_turns::<detect::greeting::Greeting>(|d| d.greeting.own.clone()),
    "monologue" TURNS => || one_of_turns::<detect::monologue::Monologue>(|d| d.monologue.own.clone()),
    "similar_turns" TURNS => || one_of_turns::<detect::similar_turns::SimilarTurns>(|d| d.similar_turns.own.clone()),
    "repetition" TURNS => || one_of_turns::<detect::repetition::Repetition>(|d| d.repetition.own.clone()),
}

/// Parts of which each step has another text, and the step that costs most counts.
/// Beside each the part with prose of the same length, and how many times that it may
/// cost.
pub const WORST_PARTS: &[(Part, &str, u64)] = &[
    (
        Part {
            name: "worst of 200 turns",
            steps: adversarial::COUNT,
            make: || turns_of(adversarial_texts()),
        },
        "turn of prose",
        20,
    ),
    (
        Part {
            name: "worst of 200 texts in deltas",
            steps: adversarial::COUNT,
            make: || deltas_of(adversarial_texts()),
        },
        "text of prose in deltas",
        20,
    ),
    (
        Part {
            name: "worst of 200 calls",
            steps: adversarial::COUNT,
            make: || calls_of(adversarial_texts()),
        },
        "call with prose",
        20,
    ),
    (
        Part {
            name: "worst of 8 calls of 16 KiB",
            steps: SIZED_COUNT,
            make: || calls_of(sized_texts(16 * 1024)),
        },
        "call with prose",
        20,
    ),
    // 16 times the bytes: the cost of a byte grows by a quarter at most.
    (
        Part {
            name: "worst of 8 calls of 256 KiB",
            steps: SIZED_COUNT,
            make: || calls_of(sized_texts(256 * 1024)),
        },
        "worst of 8 calls of 16 KiB",
        20,
    ),
    (
        Part {
            name: "worst of 200 texts, classic",
            steps: adversarial::COUNT,
            make: || classic_deltas_of(adversarial_texts()),
        },
        "text of prose, classic",
        20,
    ),
    (
        Part {
            name: "Struct of 30,000 values",
            steps: 1,
            make: || struct_call("", STRUCT_VALUES),
        },
        "Struct of prose",
        20,
    ),
    (
        Part {
            name: "32 rules over 250 values",
            steps: 1,
            make: || rules_call(&rules()),
        },
        "turn of prose",
        20,
    ),
];

/// The values of the largest Struct, and the bytes of one on the wire.
const STRUCT_VALUES: usize = 30_000;
const STRUCT_VALUE_BYTES: usize = 11;

/// A call whose arguments are a Struct with a text and a list of numbers, from the bytes
/// on the wire to its answer.
fn struct_call(text: &str, numbers: usize) -> Step {
    let numbers: Vec<f64> = (0..numbers).map(|n| n as f64 * 1.5).collect();
    let tree = serde_json::json!({ "command": text, "items": numbers });
    let call = pb::ToolCall {
        tool: "fetch".to_owned(),
        arguments: Some(pb::tool_call::Arguments::Args(
            serde_json::from_value(tree).unwrap(),
        )),
        ..pb::ToolCall::default()
    };
    let event = pb::Event {
        session_id: "s".to_owned(),
        body: Some(pb::event::Body::ToolCall(call)),
        ..pb::Event::default()
    };
    let engine = mix::engine();
    each(vec![event.encode_to_vec()], move |wire: &Vec<u8>| {
        let event = pb::Event::decode(wire.as_slice()).unwrap();
        let event = Event::try_from(event).unwrap();
        black_box(engine.record(&event, mix::now()).unwrap());
        engine.end_session(&event.session, mix::now());
    })
}

/// As many rules as are allowed, each with as many steps as are allowed.
fn rules() -> String {
    let walk = "args.items.exists(i, i == 1) || args.items.exists(i, i == 2)";
    let rule = |n: usize| {
        format!("[[rules]]\nname = \"r{n}\"\nwhen = '''{walk}'''\ncount = 2\nwindow = 4\n")
    };
    (0..32).map(rule).collect()
}

/// A call with a list that the rules walk over.
fn rules_call(rules: &str) -> Step {
    let engine = mix::engine_with(rules);
    let items = vec!["3"; 250].join(",");
    let call = pb::ToolCall {
        tool: "fetch".to_owned(),
        arguments: Some(pb::tool_call::Arguments::ArgsJson(format!(
            "{{\"items\": [{items}]}}"
        ))),
        ..pb::ToolCall::default()
    };
    let event = pb::Event {
        session_id: "s".to_owned(),
        body: Some(pb::event::Body::ToolCall(call)),
        ..pb::Event::default()
    };
    each(
        vec![Event::try_from(event).unwrap()],
        move |event: &Event| {
            black_box(engine.record(event, mix::now()).unwrap());
            engine.end_session(&event.session, mix::now());
        },
    )
}

/// The length of an adversarial text, and of the prose that it is compared with.
const ADVERSARIAL_BYTES: usize = 64 * 1024;
/// The rule of the profile `classic` for text, besides those of the default.
const CLASSIC: &str = "[detect.repetition]\nchunk_window = 200\n";
/// The file with the texts of a search: `benches/counts.rs` writes it for its children.
pub const SEARCHED_TEXTS: &str = "UNSTUCK_SEARCHED_TEXTS";
/// The length of these texts: shorter, so that a generation takes seconds.
pub const SEARCHED_BYTES: usize = 16 * 1024;

fn adversarial_texts() -> Vec<String> {
    if let Some(file) = std::env::var_os(SEARCHED_TEXTS) {
        let lines = fs::read_to_string(file).unwrap();
        let genes = lines.lines().map(Genes::of_lineage);
        return genes.map(|genes| genes.text(SEARCHED_BYTES)).collect();
    }
    let texts = adversarial::texts(ADVERSARIAL_BYTES);
    assert_eq!(texts.len(), adversarial::COUNT);
    texts.into_iter().map(|(_, text)| text).collect()
}

/// The texts of calls of two lengths.
const SIZED_COUNT: usize = 8;

fn sized_texts(bytes: usize) -> Vec<String> {
    let texts = adversarial::texts(bytes);
    let some = texts.into_iter().step_by(adversarial::COUNT / SIZED_COUNT);
    some.map(|(_, text)| text).collect()
}

fn prose() -> Vec<String> {
    vec![adversarial::prose(ADVERSARIAL_BYTES)]
}

/// Turns, each in a session of its own.
fn turns_of(texts: Vec<String>) -> Step {
    let engine = mix::engine();
    let turns = texts.into_iter().map(agent_turn).collect();
    each(turns, move |event: &Event| {
        black_box(engine.record(event, mix::now()).unwrap());
        engine.end_session(&event.session, mix::now());
    })
}

/// The same texts in deltas of 64 characters.
fn deltas_of(texts: Vec<String>) -> Step {
    deltas_with(mix::engine(), texts)
}

/// The same with the text rules of the profile `classic` besides those of the default.
fn classic_deltas_of(texts: Vec<String>) -> Step {
    deltas_with(mix::engine_with(CLASSIC), texts)
}

fn deltas_with(engine: Engine, texts: Vec<String>) -> Step {
    const DELTA_CHARS: usize = 64;
    let of_text = |text: String| -> Vec<Delta> {
        let chars: Vec<char> = text.chars().collect();
        let pieces = chars.chunks(DELTA_CHARS);
        pieces
            .map(|piece| {
                let delta = pb::Delta {
                    session_id: "s".to_owned(),
                    text: piece.iter().collect(),
                    ..pb::Delta::default()
                };
                Delta::try_from(delta).unwrap()
            })
            .collect()
    };
    let texts = texts.into_iter().map(of_text).collect();
    each(texts, move |deltas: &Vec<Delta>| {
        for delta in deltas {
            black_box(engine.record_delta(delta, mix::now()).unwrap());
        }
        engine.end_session(&deltas[0].session, mix::now());
    })
}

/// Calls with the text as a command line, as arguments, as a result and as an error.
fn calls_of(texts: Vec<String>) -> Step {
    let engine = mix::engine();
    let of_text = |text: String| -> Vec<Event> {
        let event = |args: String, result: &str, error: &str| {
            let call = pb::ToolCall {
                tool: "bash".to_owned(),
                arguments: Some(pb::tool_call::Arguments::ArgsJson(args)),
                result: Some(result.to_owned()),
                error: error.to_owned(),
                ..pb::ToolCall::default()
            };
            let event = pb::Event {
                session_id: "s".to_owned(),
                body: Some(pb::event::Body::ToolCall(call)),
                ..pb::Event::default()
            };
            Event::try_from(event).unwrap()
        };
        let command = serde_json::json!({ "command": text }).to_string();
        let list = serde_json::json!({ "command": text.split(' ').collect::<Vec<_>>() });
        vec![
            event(command, "", ""),
            event(list.to_string(), "", ""),
            event(text.clone(), "", ""),
            event(format!("{{\"items\": [{text}]}}"), &text, ""),
            event("{}".to_owned(), "", &text),
        ]
    };
    let texts = texts.into_iter().map(of_text).collect();
    each(texts, move |events: &Vec<Event>| {
        for event in events {
            black_box(engine.record(event, mix::now()).unwrap());
        }
        engine.end_session(&events[0].session, mix::now());
    })
}

/// The recorded instruction counts.
pub const BASE_LINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/counts.toml");

pub fn base_line() -> BTreeMap<String, u64> {
    let text = fs::read_to_string(BASE_LINE).unwrap_or_default();
    toml::from_str(&text).unwrap()
}

/// Calls `with` on each item in a cycle.
fn each<T: 'static>(items: Vec<T>, mut with: impl FnMut(&T) + 'static) -> Step {
    let mut next = 0;
    Box::new(move || {
        next = (next + 1) % items.len();
        with(black_box(&items[next]));
    })
}

/// From the event to its answer, with all detectors and no loop.
fn healthy_event() -> Step {
    let engine = mix::engine();
    each(mix::healthy("s", EVENTS), move |event| {
        let recorded = engine.record(event, mix::now()).unwrap();
        // An ended session costs almost nothing.
        assert!(recorded.verdict.is_none());
    })
}

/// The sessions of the load benchmark from their first event to their last, including
/// their start and end.
fn recorded(lines: &str, count: usize, is_stuck: bool) -> Step {
    let event = |line: &str| {
        let event: pb::Event = serde_json::from_str(line).unwrap();
        Event::try_from(event).unwrap()
    };
    let events: Vec<Event> = lines.lines().map(event).collect();
    assert_eq!(events.len(), count);
    let engine = mix::engine();
    let verdicts = events.iter().filter(|event| {
        let recorded = engine.record(event, mix::now()).unwrap();
        recorded.verdict.is_some()
    });
    assert_eq!(verdicts.count() > 0, is_stuck);
    let engine = mix::engine();
    let mut in_session = 0;
    each(events, move |event| {
        engine.record(event, mix::now()).unwrap();
        in_session = (in_session + 1) % count;
        if in_session == 0 {
            engine.end_session(&event.session, mix::now());
        }
    })
}

/// Recorded calls of many sessions in turn, each event with an id and a result that no
/// other event had, so that no cache of results helps. The results have at least this many
/// bytes. Writing the id and the result's first word is part of a step.
fn own_results(sessions: usize, bytes: usize) -> Step {
    let event = |line: &str| {
        let event: pb::Event = serde_json::from_str(line).unwrap();
        Event::try_from(event).unwrap()
    };
    let has_result = |event: &Event| {
        let EventBody::Call(call) = &event.body else {
            return false;
        };
        call.result.is_some()
    };
    let recorded: Vec<Event> = HEALTHY.lines().map(event).filter(has_result).collect();
    let own = |number: usize| {
        let session = number % sessions;
        // Each session is another part of the recording.
        let mut at = session * 7 + number / sessions;
        let mut event = recorded[at % recorded.len()].clone();
        event.session = SessionId::parse(&format!("s{session}")).unwrap();
        event.event_id = own_word(0);
        if let EventBody::Call(call) = &mut event.body
            && let Some(result) = &mut call.result
        {
            result.insert_str(0, &(own_word(0) + " "));
            while result.len() < bytes {
                at += 1;
                if let EventBody::Call(other) = &recorded[at % recorded.len()].body {
                    result.push('\n');
                    result.push_str(other.result.as_deref().unwrap_or_default());
                }
            }
        }
        event
    };
    let mut events: Vec<Event> = (0..sessions * OWN_CALLS).map(own).collect();
    let engine = mix::engine();
    let mut number = 0;
    Box::new(move || {
        let at = number % events.len();
        number += 1;
        let (event, word) = (&mut events[at], own_word(number));
        event.event_id.replace_range(.., &word);
        if let EventBody::Call(call) = &mut event.body
            && let Some(result) = &mut call.result
        {
            result.replace_range(..word.len(), &word);
        }
        let outcome = engine.record(black_box(event), mix::now()).unwrap();
        assert!(outcome.verdict.is_none());
    })
}

/// A word of eight letters for each number, which masking keeps.
fn own_word(number: usize) -> String {
    let letter = |n: usize| char::from(b'a' + (number >> (4 * n) & 15) as u8);
    (0..8).map(letter).collect()
}

/// Sessions of 64 events that loop after a few, including their start and end.
fn looping_event() -> Step {
    let engine: Engine = mix::engine();
    let of = |kind: usize| mix::looping(&format!("s{kind}"), kind);
    let events: Vec<Event> = (0..LOOPING_SESSIONS).flat_map(of).collect();
    let mut in_session = 0;
    each(events, move |event| {
        engine.record(event, mix::now()).unwrap();
        in_session = (in_session + 1) % mix::LOOPING_EVENTS;
        if in_session == 0 {
            engine.end_session(&event.session, mix::now());
        }
    })
}

/// A text in deltas of this many bytes, repeatedly, including its end.
fn delta(bytes: usize, text: &str) -> Step {
    let count = if bytes == DELTA_BYTES {
        TEXT_DELTAS
    } else {
        LONG_DELTAS
    };
    let text = text.repeat((count * bytes).div_ceil(text.len()));
    let pieces = text.as_bytes().chunks(bytes).take(count);
    let deltas: Vec<Delta> = pieces
        .enumerate()
        .map(|(n, piece)| {
            let delta = pb::Delta {
                session_id: "s".to_owned(),
                text: String::from_utf8_lossy(piece).into_owned(),
                end_of_turn: n == count - 1,
                ..pb::Delta::default()
            };
            Delta::try_from(delta).unwrap()
        })
        .collect();
    let engine = mix::engine();
    each(deltas, move |delta| {
        black_box(engine.record_delta(delta, mix::now()).unwrap());
        if delta.end_of_turn {
            // The same turn repeatedly would be a loop.
            engine.end_session(&delta.session, mix::now());
        }
    })
}

fn agent_turn(text: String) -> Event {
    let turn = pb::Turn {
        role: pb::Role::Agent.into(),
        text,
        ..pb::Turn::default()
    };
    let event = pb::Event {
        session_id: "s".to_owned(),
        body: Some(pb::event::Body::Turn(turn)),
        ..pb::Event::default()
    };
    Event::try_from(event).unwrap()
}

/// The facts of whole turns.
fn turn() -> Step {
    let facts = extractor();
    let turns = WRITTEN.as_bytes().chunks(TURN_BYTES);
    let turns = turns.map(|text| agent_turn(String::from_utf8_lossy(text).into_owned()));
    let profile = profile();
    each(turns.collect(), move |event| {
        black_box(facts.extract(event, profile.repeat_settings()).state());
    })
}

/// An unusual turn, from the event to its answer: no text may stall the service.
fn odd_turn(of: &str, times: usize) -> Step {
    let engine = mix::engine();
    each(vec![agent_turn(of.repeat(times))], move |event| {
        black_box(engine.record(event, mix::now()).unwrap());
    })
}

fn facts_of(events: Vec<Event>) -> Step {
    let facts = extractor();
    each(events, move |event| {
        let made = facts.extract(event, None);
        black_box(made.state());
    })
}

/// Calls without a result: tool, canonical arguments, target, words.
fn without_outcomes() -> Vec<Event> {
    let mut events = mix::healthy("s", EVENTS);
    for event in &mut events {
        if let EventBody::Call(call) = &mut event.body {
            call.result = None;
            call.error.clear();
        }
    }
    events
}

fn extractor() -> FactExtractor {
    let config = mix::config();
    FactExtractor::new(
        HashKey::fixed(),
        config.tools,
        config.profiles.analyzers().clone(),
    )
}

fn masking(how: mask::MaskKind) -> Step {
    let texts = mix::calls().into_iter().filter_map(|call| call.result);
    let texts: Vec<String> = texts.collect();
    assert_eq!(texts.len(), RESULTS);
    let state = foldhash::quality::FixedState::default();
    each(texts, move |text| {
        let mut hasher = state.build_hasher();
        mask::hash_masked(text, how, &mut hasher);
        black_box(hasher.finish());
    })
}

fn profile() -> Arc<Profile> {
    mix::config().profiles.default().clone()
}

/// The context of an event in a new session.
fn moment(index: i32) -> EventPosition {
    EventPosition {
        index,
        time: mix::now(),
        progress: 0,
        state_changes: 0,
        calls: 0,
        round: None,
    }
}

/// The observations of a healthy session, and a full history.
fn observations() -> (Vec<Observation>, History) {
    let facts = extractor();
    let events = mix::healthy("s", OBSERVATIONS);
    let mut history = History::default();
    let mut observations = Vec::new();
    for (index, event) in (0..).zip(&events) {
        let EventFacts::Call(made) = facts.extract(event, None) else {
            continue;
        };
        let observation = Observation {
            at: EventPosition {
                progress: index as u32 / 4,
                calls: index as u32,
                ..moment(index)
            },
            body: ObservationBody::Call(made.facts),
            usage: UsageDelta::default(),
            world_moves: 0,
            new_results: 0,
            capacities: Capacities::default(),
        };
        let words = CallText {
            tool: "bash",
            target: &made.target,
            event_id: "",
            args: "",
        };
        history.push(&mut observation.clone(), Cost::default(), &words);
        observations.push(observation);
    }
    (observations, history)
}

fn one<D: Detector + 'static>(settings: fn(&detect::Settings) -> D::Settings) -> Step
where
    D::Settings: 'static,
{
    let settings = settings(&profile().detect);
    let (observations, history) = observations();
    let mut detector = D::default();
    each(observations, move |now| {
        black_box(detector.observe(now, &history, &settings));
    })
}

/// The same for detectors of turns: different turns, and a full history of them.
fn one_of_turns<D: Detector + 'static>(settings: fn(&detect::Settings) -> D::Settings) -> Step
where
    D::Settings: 'static,
{
    let profile = profile();
    let settings = settings(&profile.detect);
    let facts = extractor();
    let mut history = History::default();
    let mut observations = Vec::new();
    let texts = WRITTEN.as_bytes().chunks(WRITTEN.len().div_ceil(TURNS));
    for (index, text) in (0..).zip(texts) {
        let event = agent_turn(String::from_utf8_lossy(text).into_owned());
        let EventFacts::Turn(facts, _) = facts.extract(&event, profile.repeat_settings()) else {
            continue;
        };
        let observation = Observation {
            at: moment(index),
            body: ObservationBody::Turn(facts),
            usage: UsageDelta::default(),
            world_moves: 0,
            new_results: 0,
            capacities: Capacities::default(),
        };
        history.push(
            &mut observation.clone(),
            Cost::default(),
            &CallText::default(),
        );
        observations.push(observation);
    }
    assert_eq!(observations.len(), TURNS);
    let mut detector = D::default();
    each(observations, move |now| {
        black_box(detector.observe(now, &history, &settings));
    })
}

/// Adds a call and removes the oldest.
fn history() -> Step {
    let (observations, mut history) = observations();
    let words = CallText {
        tool: "bash",
        target: "/home/dev/project/src/domain/text.rs",
        event_id: "",
        args: r#"{"command": "cat src/domain/text.rs"}"#,
    };
    each(observations, move |now| {
        history.push(&mut now.clone(), Cost::default(), &words);
    })
}

fn policy(findings: Vec<(DetectorId, Finding)>) -> Step {
    let profile = profile();
    let mut policy = AgentPolicy::default();
    let agent = AgentId::default();
    let room = Capacity::new(Capacities::LOOPS_MAX);
    let mut index = 0;
    Box::new(move || {
        index += 1;
        let results = DetectorResults {
            agent: &agent,
            at: moment(index),
            checked: 0xffff,
            findings: black_box(&findings),
            totals: Waste::default(),
            loop_capacity: &room,
        };
        black_box(policy.decide(&results, &profile.policy, |_| Waste::default()));
    })
}

/// A reported loop that continues.
fn near_repeat() -> (DetectorId, Finding) {
    let (observations, _) = observations();
    let mut calls = observations.iter();
    let call = calls.find_map(|now| now.ordinary_call()?.call).unwrap();
    let finding = Finding {
        count: 4,
        period: 1,
        similarity: 1.0,
        confidence: 1.0,
        level: None,
        action_max: None,
        consecutive: false,
        extends: true,
        events: [7].into_iter().collect(),
        loop_key: [call].into_iter().collect(),
        calls: [call].into_iter().collect(),
    };
    let mut names = detect::NAMES.iter();
    let rank = names.position(|name| *name == "near_repeat").unwrap();
    (DetectorId(rank as u8), finding)
}
