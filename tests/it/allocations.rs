//! How much the engine allocates per event.

use std::time::{Duration, UNIX_EPOCH};

use unstuck::{
    domain::{AgentId, Args, Event, EventBody, Outcome, ToolCall},
    pb::{self, event::Body::ToolCall as Called, tool_call::Arguments::ArgsJson},
};

use crate::play::Player;

/// More than any window, bound or growing buffer of a session holds.
const BEGINNING: usize = 512;
const STEADY: usize = 512;

/// A coding agent at work: it reads, searches, edits, runs. No call and no result
/// comes twice; files come back. Results have 200 bytes or so. Escapes in JSON, and
/// command lines with quotes within words, are left out: they are unfolded on the
/// heap, see below.
fn healthy(number: usize) -> Event {
    let file = format!("/home/dev/project/src/domain/part_{}.rs", number % 24);
    let (tool, args, result) = match number % 4 {
        0 => (
            "Read",
            format!(r#"{{"file_path": "{file}", "offset": {number}, "limit": 40}}"#),
            format!(
                "     1\tuse std::fmt;\n     2\t\n     3\t/// The area of a window, in points.\n     \
                 4\tpub fn area_{number}(w: u32, h: u32) -> u32 {{\n     5\t    let area = w * h;\n     \
                 6\t    area.min({number})\n     7\t}}\n"
            ),
        ),
        1 => (
            "Grep",
            format!(r#"{{"pattern": "fn area_{number}", "path": "/home/dev/project/src"}}"#),
            format!(
                "{file}:{number}:pub fn area_{number}(w: u32, h: u32) -> u32 {{ // 10:00:{number}\n\
                 {file}:40:    let area = area_{number}(width, height);\n"
            ),
        ),
        2 => (
            "Edit",
            format!(
                r#"{{"file_path": "{file}", "old_string": "w * h", "new_string": "w * {number}"}}"#
            ),
            format!(
                "The file {file} has been updated. Here is a snippet of the edited file:\n    \
                 39\t/// The area of a window, in points.\n    40\tlet area = w * {number};\n    \
                 41\tassert!(area > 0);\n    42\tarea\n"
            ),
        ),
        _ => (
            "Bash",
            format!(r#"{{"command": "cargo test --lib domain::part_{number} 2>&1 | tail -20"}}"#),
            format!(
                "   Compiling project v0.1.{number} (/home/dev/project)\n    Finished `test` profile\n\n\
                 running {number} tests\ntest domain::part_{number}::adds ... ok\n\n\
                 test result: ok. {number} passed; finished in 0.02s\n"
            ),
        ),
    };
    assert!((160..240).contains(&result.len()), "{}", result.len());
    let call = pb::ToolCall {
        tool: tool.to_owned(),
        arguments: Some(ArgsJson(args)),
        outcome: pb::Outcome::Ok.into(),
        result: Some(result),
        ..pb::ToolCall::default()
    };
    let event = pb::Event {
        session_id: "s".to_owned(),
        event_id: format!("event-{number:08}"),
        body: Some(Called(call)),
        ..pb::Event::default()
    };
    Event::try_from(event).unwrap()
}

/// Which call it is, and its target: kept for the next time that it is made.
const ALLOCATIONS_OF_A_NEW_CALL: u64 = 2;

#[test]
fn a_healthy_session_in_its_steady_state_allocates_only_for_new_calls() {
    let player = Player::new();
    let events: Vec<Event> = (0..BEGINNING + STEADY).map(healthy).collect();
    let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let play = |event: &Event| {
        let recorded = player.engine.record(event, now).unwrap();
        assert!(recorded.verdict.is_none(), "{:?}", recorded.verdict);
    };
    events[..BEGINNING].iter().for_each(play);
    for event in &events[BEGINNING..] {
        let taken = allocation_counter::measure(|| play(event));
        assert!(taken.count_total <= ALLOCATIONS_OF_A_NEW_CALL, "{event:?}");
    }
}

/// The recorded healthy mix without repeats: each call and its result have a number.
fn recorded(round: usize) -> Vec<Event> {
    let mix = include_str!("../../benches/mixes/healthy.ndjson").lines();
    let numbered = |(number, line): (usize, &str)| {
        let number = round * 10_000 + number;
        let mut event: pb::Event = serde_json::from_str(line).unwrap();
        event.event_id = format!("event-{number:08}");
        if let Some(Called(call)) = &mut event.body {
            let Some(ArgsJson(args)) = &mut call.arguments else {
                panic!("no arguments: {line}");
            };
            let rest = args.strip_prefix('{').unwrap();
            *args = format!(r#"{{"number":{number},{rest}"#);
            // Another number: one of the arguments would be an echo.
            call.result
                .get_or_insert_default()
                .push_str(&format!(" {}", number + 500_000));
        }
        Event::try_from(event).unwrap()
    };
    mix.enumerate().map(numbered).collect()
}

/// A successful call without escapes in its arguments and with no more words than fit
/// inline.
fn is_plain(call: &ToolCall) -> bool {
    let Args::Text(args) = &call.args else {
        return false;
    };
    let words = args.split(|c: char| !c.is_alphanumeric());
    let words = words.filter(|word| word.contains(char::is_alphabetic));
    call.outcome == Some(Outcome::Ok) && !args.contains('\\') && words.count() <= 32
}

/// These allocate more than a new call: answers that are no, for what they may echo; arguments with escapes, which `serde_json` unfolds into a
/// buffer that grows, and whose target and command line are kept (a tenth of
/// the calls, and half of all bytes); failures, because `test_fail_loop` drops
/// its commands after a user message and starts over (a quarter of the calls);
/// command lines with escapes or with quotes within words; more than 32 words;
/// errors that name the tool.
#[test]
fn few_calls_of_a_recorded_healthy_session_allocate() {
    // In the mix a search fails alike four times, and a verdict allocates.
    let settings = "[detect.error_streak]\nwindow = 0";
    let player = Player::with(settings, unstuck::engine::RunMode::Replay).unwrap();
    let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let play = |event: &Event| {
        let recorded = player.engine.record(event, now).unwrap();
        assert!(recorded.verdict.is_none(), "{:?}", recorded.verdict);
    };
    recorded(0).iter().for_each(play);
    let (mut calls, mut plain, mut plain_allocating) = (0, 0, 0);
    let (mut allocating, mut allocations) = (0, 0);
    for event in &recorded(1) {
        let taken = allocation_counter::measure(|| play(event)).count_total;
        let EventBody::Call(call) = &event.body else {
            assert_eq!(taken, 0, "{event:?}");
            continue;
        };
        let taken = taken.saturating_sub(ALLOCATIONS_OF_A_NEW_CALL);
        if is_plain(call) {
            plain_allocating += u64::from(taken > 0);
            plain += 1;
        }
        calls += 1;
        allocating += u64::from(taken > 0);
        allocations += taken;
    }
    // Most are plain.
    println!("{calls} calls, {plain} plain, {plain_allocating}; {allocating}, {allocations}");
    assert!(plain * 2 > calls, "{plain} of {calls}");
    assert!(
        plain_allocating * 100 <= plain * 25,
        "{plain_allocating} of {plain}"
    );
    assert!(allocating * 100 <= calls * 55, "{allocating} of {calls}");
    assert!(allocations * 100 <= calls * 170, "{allocations} of {calls}");
}

/// An agent that fails with everything: it writes, reads in pieces and runs, always on
/// other paths, so that the detectors store as much as possible.
fn varied_event(session: &str, number: usize) -> Event {
    let file = format!("/home/dev/project/src/part_{}.rs", number / 3 % 300);
    let (tool, args) = match number % 3 {
        0 => ("Write", format!(r#"{{"file_path": "{file}"}}"#)),
        1 => {
            let first = number % 97 * 50 + 1;
            (
                "Read",
                format!(r#"{{"file_path": "{file}", "offset": {first}, "limit": 20}}"#),
            )
        }
        _ => (
            "Bash",
            format!(r#"{{"command": "make part_{}"}}"#, number / 3 % 300),
        ),
    };
    let is_failed = number % 3 == 2 || number.is_multiple_of(2);
    let call = pb::ToolCall {
        tool: tool.to_owned(),
        arguments: Some(ArgsJson(args)),
        outcome: if is_failed {
            pb::Outcome::Error
        } else {
            pb::Outcome::Ok
        }
        .into(),
        error: format!("error {number} of {tool}"),
        content_hash: format!("hash {number}"),
        ..pb::ToolCall::default()
    };
    let event = pb::Event {
        session_id: session.to_owned(),
        body: Some(Called(call)),
        ..pb::Event::default()
    };
    Event::try_from(event).unwrap()
}

/// The budget of bytes protects the process only as far as they are counted.
#[test]
fn detector_memory_counts_as_state() {
    let player = Player::new();
    let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let play = |session: &str, agents: usize, events: usize| {
        let of_agent = |n: usize| Event {
            agent: AgentId::new(&format!("agent-{}", n % agents)),
            ..varied_event(session, n)
        };
        let events: Vec<Event> = (0..events).map(of_agent).collect();
        allocation_counter::measure(|| {
            for event in &events {
                player.engine.record(event, now).unwrap();
            }
        })
    };
    // The first session allocates the shared state.
    play("first", 1, 20_000);
    // One busy session, and many new ones.
    for (session, agents, events) in [("long", 1, 4_000), ("wide", 60, 60 * 7)] {
        let before = player.engine.state_bytes();
        let held = play(session, agents, events);
        let counted = player.engine.state_bytes() - before;
        let held = usize::try_from(held.bytes_current).unwrap();
        assert!(held > 64 * 1024, "they remember little: {held}");
        assert!(counted >= held, "{session}: {counted} counted of {held}");
        assert!(
            counted <= held * 3 / 2,
            "{session}: {counted} counted of {held}"
        );
    }
}
