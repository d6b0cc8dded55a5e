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
