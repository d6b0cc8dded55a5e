//! The work that a text or an event causes is bounded by its bytes: searched for with
//! generated texts, and with changes to those that cost most.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use unstuck::{
    domain::{Action, Delta, Event, RepetitionSettings, TextRepetition, Verdict, VerdictRecord},
    engine::{Engine, RunMode},
    pb::{self, event::Body, tool_call::Arguments},
    telemetry::Metrics,
    text::{HashKey, RepetitionTracker},
};

#[path = "../../benches/adversarial/mod.rs"]
mod adversarial;
#[path = "../setup/repetition_settings.rs"]
mod repetition_settings;

use crate::setup;
use adversarial::{Genes, Random};
use repetition_settings::repetition_settings;

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

/// The default settings, and those of the profile `classic` with all trackers.
fn both_settings() -> [RepetitionSettings; 2] {
    let default = repetition_settings();
    let classic = RepetitionSettings {
        chunk_window: 400,
        ..default.clone()
    };
    [default, classic]
}

/// Reads a text and returns its work. Fails if that exceeds the bound after any piece.
#[track_caller]
fn work_of(text: &str, settings: &RepetitionSettings) -> u64 {
    const PIECE_BYTES: usize = 512;
    let mut tracker = RepetitionTracker::default();
    let key = HashKey::fixed();
    let (mut rest, mut read) = (text, 0);
    while !rest.is_empty() {
        let piece = &rest[..rest.ceil_char_boundary(PIECE_BYTES)];
        tracker.push(piece, settings, &key);
        read += piece.len();
        let (units, most) = (
            tracker.work_units(),
            RepetitionTracker::work_units_max(read),
        );
        assert!(
            units <= most,
            "{units} units after {read} bytes, at most {most}"
        );
        rest = &rest[piece.len()..];
    }
    tracker.work_units()
}

#[test]
fn no_text_causes_more_work_than_its_bytes_allow() {
    for settings in both_settings() {
        for (name, text) in adversarial::texts(8 * 1_024) {
            println!("{name}");
            work_of(&text, &settings);
        }
    }
}

/// Looks for the text with the most work: changes are kept if they cause more.
#[test]
fn a_search_for_costly_texts_stays_within_the_bound() {
    const BYTES: usize = 6 * 1_024;
    let [default, classic] = both_settings();
    for (seed, settings) in [(1, &default), (2, &default), (3, &default), (4, &classic)] {
        let mut random = Random(seed);
        let mut costly = Genes::random(&mut random);
        let mut most = 0;
        for _ in 0..120 {
            let genes = costly.mutated(&mut random);
            println!("{genes:?}");
            let units = work_of(&genes.text(BYTES), settings);
            if units >= most {
                (costly, most) = (genes, units);
            }
        }
        println!("{most} units: {costly:?}");
    }
}

/// The bound is for texts that are written to reach it. Prose, and 4 KiB of each kind of text
/// that once froze the service, are read without it.
#[test]
fn ordinary_and_known_texts_are_read_completely() {
    let [settings, _] = both_settings();
    let prose = ("prose".to_owned(), adversarial::prose(64 * 1_024));
    let known = adversarial::texts(4 * 1_024).into_iter().take(23);
    for (name, text) in known.chain([prose]) {
        let mut tracker = RepetitionTracker::default();
        tracker.push(&text, &settings, &HashKey::fixed());
        assert!(!tracker.take_work_limited(), "{name}");
    }
}

/// The findings of a text in pieces, each with the character at which it was found.
fn findings(
    text: &str,
    mut piece_chars: impl FnMut() -> usize,
    settings: &RepetitionSettings,
) -> Vec<(usize, TextRepetition)> {
    let mut tracker = RepetitionTracker::default();
    let key = HashKey::fixed();
    let (mut findings, mut rest, mut at) = (Vec::new(), text, 0);
    while !rest.is_empty() {
        let chars = piece_chars();
        let end = rest
            .char_indices()
            .nth(chars)
            .map_or(rest.len(), |(n, _)| n);
        let (mut piece, after) = rest.split_at(end);
        while !piece.is_empty() {
            let (read, found) = tracker.push_until_found(piece, settings, &key);
            at += piece[..read].chars().count();
            findings.extend(found.map(|found| (at, found)));
            piece = &piece[read..];
        }
        rest = after;
    }
    findings
}

#[test]
fn the_bound_does_not_depend_on_how_a_text_is_cut() {
    let mut random = Random(11);
    let mut limited = 0;
    for settings in both_settings() {
        for (name, text) in adversarial::texts(6 * 1_024).into_iter().step_by(3) {
            let one_by_one = findings(&text, || 1, &settings);
            let cut = findings(&text, || 1 + random.below(600), &settings);
            assert_eq!(one_by_one, cut, "{name}");
            let mut tracker = RepetitionTracker::default();
            tracker.push(&text, &settings, &HashKey::fixed());
            limited += usize::from(tracker.take_work_limited());
        }
    }
    println!("{limited} texts reached the bound");
}

/// The verdicts that an engine has issued.
type Verdicts = Arc<Mutex<Vec<Arc<Verdict>>>>;

/// An engine with these settings, its metrics and its verdicts.
fn engine(toml: &str) -> (Engine, Arc<Metrics>, Verdicts) {
    let verdicts = Verdicts::default();
    let sink = {
        let verdicts = verdicts.clone();
        Box::new(move |record: VerdictRecord| verdicts.lock().unwrap().push(record.verdict))
    };
    let (engine, metrics) = setup::engine(setup::config(toml).unwrap(), RunMode::Replay, sink);
    (engine, metrics, verdicts)
}

fn delta(session: &str, text: &str, end_of_turn: bool) -> Delta {
    let delta = pb::Delta {
        session_id: session.to_owned(),
        turn_id: "t".to_owned(),
        text: text.to_owned(),
        end_of_turn,
        ..pb::Delta::default()
    };
    Delta::try_from(delta).unwrap()
}

/// A verdict without its id and the times of its trend.
fn described(verdict: &Verdict) -> String {
    format!(
        "{:?} {} {} {} {:?}",
        verdict.action, verdict.detector, verdict.pattern, verdict.reason, verdict.evidence
    )
}

/// Texts that loop, from one that a WARN is enough for to one that never stops.
fn looping_texts() -> Vec<String> {
    let unit = "Wait, but the test still fails, so the mock must be wrong. ";
    let shuffled: String = (0..160)
        .map(|n| {
            [
                "We look at it again now. ",
                "The test fails as before. ",
                "Maybe the cache is stale. ",
            ][n * n % 7 % 3]
        })
        .collect();
    let counted = |n| format!("Attempt {n} failed, I will try the same command again. ");
    vec![
        format!("Let me look at it first. {}", unit.repeat(4)),
        unit.repeat(9),
        unit.repeat(60),
        format!(
            "{}{}",
            unit.repeat(7),
            "Now I see what it is, and I change the order of both. ".repeat(12)
        ),
        "no ".repeat(900),
        shuffled,
        (0..70).map(counted).collect(),
        "設定ファイルをもう一度確認してから、次の手順に進みます。".repeat(40),
    ]
}

/// What an engine says about texts.
struct Streams {
    engine: Engine,
    verdicts: Verdicts,
    count: usize,
}

/// What is said about one text.
struct Streamed {
    /// All verdicts.
    verdicts: Vec<String>,
    /// For each piece the number of characters up to its end, and the action in the answer.
    answers: Vec<(usize, Option<Action>)>,
}

impl Streams {
    fn new() -> Self {
        let (engine, _, verdicts) = engine("");
        Self {
            engine,
            verdicts,
            count: 0,
        }
    }

    /// Sends a text in pieces of this many characters, in a session of its own.
    fn send(&mut self, text: &str, chars: usize) -> Streamed {
        self.count += 1;
        let session = format!("s{}", self.count);
        let text: Vec<char> = text.chars().collect();
        let (mut at, mut answers) = (0, Vec::new());
        for piece in text.chunks(chars) {
            at += piece.len();
            let delta = delta(&session, &piece.iter().collect::<String>(), false);
            let answer = self.engine.record_delta(&delta, now()).unwrap();
            let new = answer.filter(|answer| answer.is_new_verdict);
            answers.push((at, new.and_then(|answer| answer.verdict?.action)));
        }
        let verdicts = std::mem::take(&mut *self.verdicts.lock().unwrap());
        Streamed {
            verdicts: verdicts.iter().map(|verdict| described(verdict)).collect(),
            answers,
        }
    }
}

#[test]
fn how_deltas_are_cut_changes_neither_verdicts_nor_their_strength() {
    let mut streams = Streams::new();
    for text in looping_texts() {
        let one_by_one = streams.send(&text, 1);
        assert!(!one_by_one.verdicts.is_empty(), "{text}");
        for chars in (2..=60).chain([200, 1_000, 100_000]) {
            let cut = streams.send(&text, chars);
            let context = format!("{chars} characters at a time: {text}");
            assert_eq!(cut.verdicts, one_by_one.verdicts, "{context}");
            // Each piece is answered with the strongest action of its characters.
            let mut from = 0;
            for (to, action) in cut.answers {
                let answers = one_by_one.answers.iter();
                let within = answers.filter(|(at, _)| (from + 1..=to).contains(at));
                let strongest = within.filter_map(|(_, action)| *action).max();
                assert_eq!(action, strongest, "up to {to}, {context}");
                from = to;
            }
        }
    }
}

#[test]
fn a_turn_in_one_delta_gets_the_strongest_action_of_its_characters() {
    let mut streams = Streams::new();
    for (n, text) in looping_texts().iter().enumerate() {
        let one_by_one = streams.send(text, 1);
        let actions = one_by_one.answers.iter();
        let strongest = actions.filter_map(|(_, action)| *action).max();
        let delta = delta(&format!("whole{n}"), text, true);
        let answer = streams.engine.record_delta(&delta, now()).unwrap();
        let answered = answer.and_then(|answer| answer.verdict?.action);
        assert!(answered >= strongest, "{answered:?} {strongest:?} {text}");
    }
}

fn call(args: String) -> Event {
    let call = pb::ToolCall {
        tool: "fetch".to_owned(),
        arguments: Some(Arguments::ArgsJson(args)),
        ..pb::ToolCall::default()
    };
    let event = pb::Event {
        session_id: "s".to_owned(),
        body: Some(Body::ToolCall(call)),
        ..pb::Event::default()
    };
    Event::try_from(event).unwrap()
}

/// How often a part has skipped a step.
fn limited(metrics: &Metrics, part: &str) -> u64 {
    let series = format!("unstuck_work_limited_total{{part=\"{part}\"}} ");
    let text = metrics.render();
    let line = text.lines().find_map(|line| line.strip_prefix(&series));
    line.unwrap().parse().unwrap()
}

#[test]
fn rules_together_take_no_more_steps_than_one_may() {
    let walk = "args.items.exists(i, i == 1) || args.items.exists(i, i == 2)";
    let rule = |n: usize| {
        format!("[[rules]]\nname = \"r{n}\"\nwhen = '''{walk}'''\ncount = 2\nwindow = 4\n")
    };
    let rules: String = (0..32).map(rule).collect();
    let (engine, metrics, _) = engine(&rules);
    // Few values: all rules are evaluated.
    engine
        .record(&call("{\"items\": [3, 4, 5]}".to_owned()), now())
        .unwrap();
    assert_eq!(limited(&metrics, "rules"), 0);
    // As many as may be: the last rules abstain.
    let items = vec!["3"; 250].join(",");
    engine
        .record(&call(format!("{{\"items\": [{items}]}}")), now())
        .unwrap();
    assert_eq!(limited(&metrics, "rules"), 1);
}

/// A text that has been found to reach the bound.
#[test]
fn a_text_beyond_the_bound_is_counted() {
    let (engine, metrics, _) = engine("");
    let [settings, _] = both_settings();
    let is_limited = |text: &str| {
        let mut tracker = RepetitionTracker::default();
        tracker.push(text, &settings, &HashKey::fixed());
        tracker.take_work_limited()
    };
    let texts = adversarial::texts(64 * 1_024);
    let text = texts
        .into_iter()
        .map(|(_, text)| text)
        .find(|text| is_limited(text));
    let text = text.expect("one of the texts reaches the bound");
    for chars in [1_000, 60_000] {
        for piece in text.chars().collect::<Vec<_>>().chunks(chars) {
            let piece: String = piece.iter().collect();
            engine
                .record_delta(&delta("s", &piece, false), now())
                .unwrap();
        }
        engine.end_session(&delta("s", "", true).session, now());
    }
    assert!(limited(&metrics, "repetition") >= 2);
}
