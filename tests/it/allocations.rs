//! What the engine takes from the allocator.

use std::time::{Duration, UNIX_EPOCH};

use unstuck::{domain::Event, pb};

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
