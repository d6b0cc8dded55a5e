//! What the engine takes from the allocator.

use std::time::{Duration, UNIX_EPOCH};

use unstuck::{
    domain::{AgentId, Event},
    pb,
};

use crate::play::Player;

/// More than any window, bound or growing buffer of a session holds.
const BEGINNING: usize = 512;
const STEADY: usize = 512;

/// A coding agent at work: it reads, searches, edits, runs. No call and no result
/// comes twice; files come back. Escapes in JSON, and command lines with quotes
/// within words, are left out: `serde_json` and `shlex` unfold them on the heap.
fn healthy(number: usize) -> Event {
    let file = format!("/home/dev/project/src/domain/part_{}.rs", number % 24);
    let (tool, args, result) = match number % 4 {
        0 => (
            "Read",
            format!(r#"{{"file_path": "{file}", "offset": {number}, "limit": 40}}"#),
            format!("     1\tuse std::fmt;\n     2\tpub fn area_{number}(w: u32) -> u32 {{\n"),
        ),
        1 => (
            "Grep",
            format!(r#"{{"pattern": "fn area_{number}", "path": "/home/dev/project/src"}}"#),
            format!("{file}:{number}:pub fn area_{number}(w: u32) -> u32 {{ at 10:00:{number} }}"),
        ),
        2 => (
            "Edit",
            format!(
                r#"{{"file_path": "{file}", "old_string": "w * h", "new_string": "w * {number}"}}"#
            ),
            "The file has been updated.".to_owned(),
        ),
        _ => (
            "Bash",
            format!(r#"{{"command": "cargo test --lib domain::part_{number} 2>&1 | tail -20"}}"#),
            format!("running {number} tests\ntest result: ok. {number} passed; finished in 0.02s"),
        ),
    };
    let call = pb::ToolCall {
        tool: tool.to_owned(),
        arguments: Some(pb::tool_call::Arguments::ArgsJson(args)),
        outcome: pb::Outcome::Ok.into(),
        result: Some(result),
        ..pb::ToolCall::default()
    };
    let event = pb::Event {
        session_id: "s".to_owned(),
        event_id: format!("event-{number:08}"),
        body: Some(pb::event::Body::ToolCall(call)),
        ..pb::Event::default()
    };
    Event::try_from(event).unwrap()
}

#[test]
fn a_healthy_session_in_its_steady_state_allocates_nothing() {
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
        assert_eq!(taken.count_total, 0, "{event:?}");
    }
}

/// An agent at odds with everything: it writes, reads in pieces and runs, each on
/// ever other paths and in vain, which is what detectors have to remember most of.
fn at_odds(session: &str, number: usize) -> Event {
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
        arguments: Some(pb::tool_call::Arguments::ArgsJson(args)),
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
        body: Some(pb::event::Body::ToolCall(call)),
        ..pb::Event::default()
    };
    Event::try_from(event).unwrap()
}

/// The budget of bytes protects the process only as far as they are counted.
#[test]
fn what_detectors_remember_counts_as_state() {
    let player = Player::new();
    let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let play = |session: &str, agents: usize, events: usize| {
        let of_agent = |n: usize| Event {
            agent: AgentId::new(&format!("agent-{}", n % agents)),
            ..at_odds(session, n)
        };
        let events: Vec<Event> = (0..events).map(of_agent).collect();
        allocation_counter::measure(|| {
            for event in &events {
                player.engine.record(event, now).unwrap();
            }
        })
    };
    // What all sessions share is taken by the first.
    play("first", 1, 4_000);
    // One that does much, and many that have just begun.
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
