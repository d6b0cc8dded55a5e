//! The benchmarks' events: calls of real agents, combined into healthy and looping
//! sessions.
//!
//! `calls.ndjson` holds 60 calls: two thirds were recorded (InterCode, TRAIL,
//! Who&When; all MIT), their results cut to about 200 bytes; one third has the
//! shape of a coding agent's reads, searches, edits and test runs. On average
//! the arguments have 90 bytes, and the result 190 where there is one (52).

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each benchmark uses some of it"
)]

#[path = "../../tests/setup/mod.rs"]
mod setup;

use std::time::{Duration, SystemTime};

use unstuck::{
    config::Config,
    domain::Event,
    engine::{Engine, RunMode},
    pb::{self, event::Body},
};

/// Events of a looping session: the first few are healthy.
pub const LOOPING_EVENTS: usize = 64;

/// The clock of every benchmark.
pub fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

pub fn calls() -> Vec<pb::ToolCall> {
    let lines = include_str!("calls.ndjson").lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A call that is different from all others, with a different result.
fn varied(call: &pb::ToolCall, number: usize) -> pb::ToolCall {
    use pb::tool_call::Arguments;

    let mut call = call.clone();
    if let Some(Arguments::ArgsJson(json)) = &mut call.arguments {
        *json = match json.strip_suffix("\"}") {
            Some(rest) => format!("{rest} x{number}\"}}"),
            None => format!("{}, \"n\": {number}}}", json.trim_end_matches('}')),
        };
    }
    for text in [&mut call.error].into_iter().chain(&mut call.result) {
        if !text.is_empty() {
            *text = format!("x{number} {text}");
        }
    }
    call
}

fn event(session: &str, call: pb::ToolCall) -> Event {
    let event = pb::Event {
        session_id: session.to_owned(),
        body: Some(Body::ToolCall(call)),
        ..pb::Event::default()
    };
    Event::try_from(event).unwrap()
}

/// Events of a session in which every call is different.
pub fn healthy(session: &str, count: usize) -> Vec<Event> {
    let calls = calls();
    let of = |number: usize| event(session, varied(&calls[number % calls.len()], number));
    (0..count).map(of).collect()
}

/// The events of a session that ends in a loop of this kind.
pub fn looping(session: &str, kind: usize) -> Vec<Event> {
    let calls = calls();
    let nth = |tool: &[&str], number: usize| {
        let mut of_tool = calls.iter().filter(|call| tool.contains(&&*call.tool));
        let count = of_tool.clone().count();
        of_tool.nth(number % count).unwrap().clone()
    };
    let of = |number: usize| match (number, kind % 4) {
        (..8, _) => varied(&calls[(number + kind) % calls.len()], number),
        // The same call repeatedly.
        (_, 0) => nth(&["bash", "sql"], kind),
        // A cycle of three calls.
        (_, 1) => nth(&["Grep", "bash"], kind + number % 3),
        // Repeated reads of known files.
        (_, 2) => nth(&["Read"], kind + number % 5),
        // Different edits, and a test that fails in the same way.
        (_, _) if number.is_multiple_of(2) => varied(&nth(&["Edit"], kind), number),
        (_, _) => {
            let mut run = nth(&["bash"], kind);
            run.outcome = pb::Outcome::Error.into();
            run.error = "exit code 1".to_owned();
            run
        }
    };
    (0..LOOPING_EVENTS)
        .map(|number| event(session, of(number)))
        .collect()
}

pub fn config() -> Config {
    setup::config("").unwrap()
}

/// The default profile, without a limit of sessions.
pub fn engine() -> Engine {
    engine_with("")
}

/// An engine with these settings besides the built-in ones, without a limit of sessions.
pub fn engine_with(toml: &str) -> Engine {
    let mut config = setup::config(toml).unwrap();
    config.engine.sessions_max = usize::MAX;
    config.engine.state_bytes_max = usize::MAX;
    setup::engine_without_sink(config, RunMode::Live)
}
