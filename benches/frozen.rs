//! Measures the size of a frozen session, and the time to freeze, seal, open and thaw it:
//!
//! ```text
//! cargo bench --bench frozen
//! ```

#![allow(clippy::unwrap_used)]

#[path = "../tests/setup/mod.rs"]
mod setup;

use std::{
    hint::black_box,
    time::{Duration, Instant, SystemTime},
};

use mimalloc::MiMalloc;
use unstuck::{
    domain::{Event, SessionId},
    engine::RunMode,
    pb::{self, event::Body},
    secret::Secret,
};

/// The allocator of the service.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How long each step is measured.
const TIME: Duration = Duration::from_millis(300);

fn main() {
    println!(
        "| calls | head, bytes | window, bytes | freeze head, µs | freeze, µs | seal, µs | open, µs | thaw, µs |"
    );
    println!("| --: | --: | --: | --: | --: | --: | --: | --: |");
    for calls in [2, 33, 300] {
        measure(calls);
    }
}

fn measure(calls: usize) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let config = setup::config("").unwrap();
    let engine = setup::engine_without_sink(config, RunMode::Replay);
    let id = SessionId::parse("coding/session").unwrap();
    for n in 0..calls {
        engine.record(&call(n), now).unwrap();
    }
    let frozen = engine.freezer().freeze(&id).unwrap();
    let window = frozen.window.clone().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let secret = Secret::load_or_create(&dir.path().join("key")).unwrap();
    let sealer = secret.sealer();
    let sealed = sealer.seal(&id, &window).unwrap();
    let micros = [
        best(|| {
            engine.freezer().mark_changed(&id);
            black_box(engine.freezer().freeze_changed_head(&id));
        }),
        best(|| drop(black_box(engine.freezer().freeze(&id)))),
        best(|| drop(black_box(sealer.seal(&id, &window)))),
        best(|| drop(black_box(sealer.open(&id, sealed.clone())))),
        best(|| {
            engine.freezer().release(&id);
            black_box(engine.freezer().thaw(&frozen, now));
        }),
    ]
    .map(|micros| format!("{micros:.1}"));
    let (head, window) = (frozen.head.len(), window.len());
    println!("| {calls} | {head} | {window} | {} |", micros.join(" | "));
}

/// Microseconds of the best round of 100.
fn best(mut step: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = Duration::MAX;
    while begin.elapsed() < TIME {
        let round = Instant::now();
        (0..100).for_each(|_| step());
        best = best.min(round.elapsed());
    }
    best.as_secs_f64() * 1e6 / 100.0
}

/// A healthy call: another file each time, every fourth one written.
fn call(n: usize) -> Event {
    let path = format!("src/module_{n}/handler.rs");
    let tool = if n % 4 == 3 {
        "write_file"
    } else {
        "read_file"
    };
    let call = pb::ToolCall {
        tool: tool.to_owned(),
        arguments: Some(pb::tool_call::Arguments::ArgsJson(format!(
            "{{\"path\": \"{path}\"}}"
        ))),
        target: path,
        outcome: pb::Outcome::Ok.into(),
        result: Some(format!("fn handler_{n}() {{ todo!() }}")),
        ..Default::default()
    };
    let event = pb::Event {
        session_id: "coding/session".to_owned(),
        event_id: format!("event-{n:08}"),
        body: Some(Body::ToolCall(call)),
        ..Default::default()
    };
    Event::try_from(event).unwrap()
}
