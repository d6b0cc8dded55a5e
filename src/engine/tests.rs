use std::time::UNIX_EPOCH;

use super::*;
use crate::{
    config::{Config, DEFAULTS, Layers},
    detect,
    domain::{AgentId, Args, Body, Cost, Role, ToolCall, Turn},
};

fn engine() -> Engine {
    let layers = Layers::load(DEFAULTS, &[], None, []).unwrap();
    let config = Config::new(&layers).unwrap();
    let metrics = Metrics::new(detect::NAMES.iter().copied()).unwrap();
    Engine::new(
        config.profiles,
        config.tools,
        config.engine,
        Arc::new(metrics),
        Clockwork::Replay,
    )
}

fn event(agent: &str, event_id: &str, body: Body) -> Event {
    Event {
        session: id(),
        event_id: event_id.to_owned(),
        time: None,
        agent: AgentId::new(agent),
        round_id: String::new(),
        state_hash: String::new(),
        cost: Cost::default(),
        body,
    }
}

fn id() -> SessionId {
    SessionId::parse("s").unwrap()
}

fn say(text: &str) -> Body {
    Body::Turn(Turn {
        turn_id: String::new(),
        role: Role::Agent,
        text: text.to_owned(),
    })
}

#[test]
fn a_terminated_agent_answers_a_duplicate_with_its_termination() {
    let engine = engine();
    let record = |n: usize| {
        let event = event("helper", &format!("e{n}"), say("let me look again"));
        engine.record(&event, UNIX_EPOCH).unwrap()
    };
    let last = (0..6).map(record).last().and_then(|answer| answer.verdict);
    let termination = last.filter(|verdict| verdict.terminates()).unwrap();
    for answer in [record(0), record(5), record(6)] {
        assert_eq!((answer.index, answer.duplicate), (None, false));
        assert_eq!(answer.verdict.unwrap().id, termination.id);
    }
}

/// Three equal calls that are new: a WARN.
fn new_loop(engine: &Engine, name: usize, event_id: impl Fn(usize) -> String) {
    for n in 0..3 {
        let call = ToolCall {
            tool: "tool".to_owned(),
            args: Args::Text(format!("{{\"n\":{name}}}")),
            ..ToolCall::default()
        };
        let event = event("", &event_id(n), Body::Call(call));
        engine.record(&event, UNIX_EPOCH).unwrap();
    }
}

fn kept(engine: &Engine) -> usize {
    let slot = engine.sessions.get("s").unwrap();
    match &*slot {
        Slot::Live(session) => session.verdicts_kept(),
        Slot::Gone(_) => 0,
    }
}

#[test]
fn verdicts_that_nobody_can_ask_for_are_let_go() {
    let engine = engine();
    let once = |name: usize| move |n| if (name, n) == (0, 0) { "e" } else { "" }.to_owned();
    for name in 0..40 {
        new_loop(&engine, name, once(name));
    }
    assert_eq!(kept(&engine), 8);
}

#[test]
fn verdicts_that_a_duplicate_may_ask_for_are_kept() {
    let engine = engine();
    for name in 0..40 {
        new_loop(&engine, name, |n| format!("{name}.{n}"));
    }
    assert_eq!(kept(&engine), 40);
}

#[test]
fn labels_and_the_words_of_verdicts_count_as_state() {
    let engine = engine();
    new_loop(&engine, 0, |_| String::new());
    let loud = engine.state_bytes();
    let verdict = engine.get(&id()).unwrap().verdicts.pop().unwrap();
    assert!(loud > verdict.bytes() && verdict.bytes() > size_of::<Verdict>() + 200);

    let labels = Labels::from([("team".to_owned(), "x".repeat(250))]);
    engine.open(&id(), "", labels, UNIX_EPOCH).unwrap();
    assert!(engine.state_bytes() >= loud + 254);
    engine.end(&id(), UNIX_EPOCH).unwrap();
    assert_eq!(engine.state_bytes(), 0);
}
