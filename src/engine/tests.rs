use std::time::UNIX_EPOCH;

use super::*;
use crate::{
    config::{Config, DEFAULTS, Layers},
    domain::{AgentId, Args, Body, Cost, Role, ToolCall, Turn},
};

fn engine() -> Engine {
    engine_with(&[])
}

fn engine_with(variables: &[(&str, &str)]) -> Engine {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let layers = Layers::load(DEFAULTS, &[], None, variables.iter().map(owned)).unwrap();
    let config = Config::new(&layers).unwrap();
    let metrics = Metrics::new(config.profiles.detectors()).unwrap();
    Engine::new(
        config.profiles,
        config.tools,
        config.engine,
        Arc::new(metrics),
        Clockwork::Replay,
        Box::new(|_| {}),
    )
}

const BECAUSE: Act<'static> = Act {
    reason: "it loops",
    operator: "ann",
};

fn reset(engine: &Engine, secs: u64) -> Arc<Verdict> {
    let announced = engine.announce_reset(&id(), &BECAUSE, after(secs)).unwrap();
    engine.reset(&id(), &announced, after(secs));
    announced
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
    let slot = engine.sessions.get(&id()).unwrap();
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
    engine.sweep(after(700_000), 10);
    assert_eq!(engine.state_bytes(), 0);
}

fn named(id: &str) -> SessionId {
    SessionId::parse(id).unwrap()
}

fn after(secs: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(secs)
}

fn turn(role: Role, turn_id: &str, text: &str) -> Body {
    Body::Turn(Turn {
        turn_id: turn_id.to_owned(),
        role,
        text: text.to_owned(),
    })
}

fn delta(turn_id: &str, text: &str) -> Delta {
    Delta {
        session: id(),
        agent: AgentId::default(),
        turn_id: turn_id.to_owned(),
        channel: crate::domain::Channel::Visible,
        text: text.to_owned(),
        end_of_turn: true,
    }
}

#[test]
fn sessions_that_end_push_out_no_termination() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__TOMBSTONES_MAX", "10")]);
    engine.terminate(&named("bad"), &BECAUSE, after(0));
    for n in 0..50 {
        let id = named(&format!("fine-{n}"));
        engine.open(&id, "", Labels::new(), after(1)).unwrap();
        engine.end(&id, after(1));
    }
    engine.sweep(after(2), 1_000);
    let view = engine.get(&named("bad")).unwrap();
    assert_eq!(view.status, Status::Terminated);
    assert!(engine.get(&named("fine-0")).is_none());
    assert!(engine.get(&named("fine-49")).is_some());
}

#[test]
fn one_id_that_begins_and_ends_again_and_again_leaves_one_tombstone() {
    let engine = engine();
    for _ in 0..100 {
        engine.open(&id(), "", Labels::new(), after(1)).unwrap();
        engine.end(&id(), after(1));
    }
    assert_eq!((engine.idle.len(), engine.ended.len()), (0, 1));
    reset(&engine, 2);
    assert_eq!((engine.idle.len(), engine.ended.len()), (1, 0));
}

#[test]
fn a_session_is_forgotten_when_it_was_idle_and_not_later() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__IDLE_SECS_MAX", "10")]);
    let open = |name: &str, secs| engine.open(&named(name), "", Labels::new(), after(secs));
    open("a", 0).unwrap();
    let mut heard = event("", "", say("on it"));
    heard.session = named("a");
    engine.record(&heard, after(4)).unwrap();
    for secs in 1..14 {
        open(&format!("b{secs}"), secs).unwrap();
        engine.sweep(after(secs), 1_000);
        assert!(engine.get(&named("a")).is_some(), "at {secs} s");
    }
    engine.sweep(after(14), 1_000);
    assert!(engine.get(&named("a")).is_none());
}

#[test]
fn tombstones_count_as_state() {
    let engine = engine();
    let reason = "why ".repeat(200);
    let act = Act {
        reason: &reason,
        ..BECAUSE
    };
    engine.terminate(&id(), &act, after(0));
    assert!(engine.state_bytes() > 800);
    reset(&engine, 1);
    engine.end(&id(), after(1));
    engine.sweep(after(700_000), 10);
    assert_eq!(engine.state_bytes(), 0);
}

#[test]
fn a_new_agent_is_refused_when_there_is_too_much_state() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__STATE_BYTES_MAX", "3000")]);
    let record = |agent: &str| engine.record(&event(agent, "", say("hello")), after(0));
    let refused = (0..100).find_map(|n| record(&format!("agent-{n}")).err());
    assert_eq!(refused, Some(Refused::Bytes(3_000)));
    assert!(record("agent-0").is_ok(), "who is known goes on");
}

#[test]
fn a_users_turn_is_never_taken_for_an_agents() {
    let engine = engine();
    let record = |role, event_id: &str| {
        let event = event("", event_id, turn(role, "1", "the same words"));
        engine.record(&event, after(0)).unwrap()
    };
    assert!(!record(Role::Agent, "e0").duplicate);
    assert!(!record(Role::User, "e1").duplicate);
    assert!(
        !record(Role::Agent, "e2").duplicate,
        "sent whole, not streamed"
    );
}

#[test]
fn a_streamed_turn_counts_once_and_costs_what_its_turn_says() {
    let engine = engine();
    let streamed = engine.delta(&delta("t", "hello there"), after(0)).unwrap();
    let mut whole = event("", "e0", turn(Role::Agent, "t", "hello there"));
    whole.cost.output_tokens = 7;
    for _ in 0..2 {
        let answer = engine.record(&whole, after(1)).unwrap();
        assert!(answer.duplicate);
        assert_eq!(answer.index, streamed.as_ref().unwrap().index);
    }
    let view = engine.get(&id()).unwrap();
    assert_eq!((view.events, view.turns), (1, 1));
    assert_eq!(view.cost.output_tokens, 7, "once");
}

#[test]
fn a_changed_state_on_any_event_is_progress() {
    let engine = engine();
    let call = || {
        Body::Call(ToolCall {
            tool: "t".to_owned(),
            args: Args::Text("{}".to_owned()),
            ..ToolCall::default()
        })
    };
    let record = |state: &str, body| {
        let mut event = event("", "", body);
        event.state_hash = state.to_owned();
        engine.record(&event, after(0)).unwrap().verdict
    };
    for _ in 0..5 {
        assert!(record("here", call()).is_none());
        assert!(record("there", turn(Role::System, "", "moved")).is_none());
    }
    let found = (0..3).filter_map(|_| record("here", call())).count();
    assert_eq!(found, 1, "it is a loop without the changes");
}

#[test]
fn a_session_whose_looping_agent_is_over_does_not_loop() {
    let engine = engine();
    for _ in 0..6 {
        let event = event("helper", "", say("let me look again"));
        engine.record(&event, after(0)).unwrap();
    }
    let view = engine.get(&id()).unwrap();
    assert_eq!(view.status, Status::Active);
    assert!(view.trends.is_empty());
}

/// Ends the agent: six equal turns.
fn end_agent(engine: &Engine, agent: &str, secs: u64) -> Arc<Verdict> {
    let record = |_| engine.record(&event(agent, "", say("let me look again")), after(secs));
    let last = (0..6)
        .map(record)
        .last()
        .and_then(|answer| answer.unwrap().verdict);
    last.filter(|verdict| verdict.terminates()).unwrap()
}

/// What an event of the agent is answered with, where that is a termination.
fn latched(engine: &Engine, agent: &str, secs: u64) -> Option<crate::domain::VerdictId> {
    let answer = engine.record(&event(agent, "", say("hello")), after(secs));
    let verdict = answer.unwrap().verdict;
    Some(verdict.filter(|verdict| verdict.terminates())?.id)
}

#[test]
fn a_terminated_agent_stays_so_when_its_session_ends_or_is_forgotten() {
    let engine = engine();
    let ended = Some(end_agent(&engine, "helper", 1).id);
    engine.end(&id(), after(2));
    assert_eq!(latched(&engine, "helper", 3), ended);
    assert_eq!(latched(&engine, "", 3), None);
    engine.sweep(after(90_000), 10);
    assert!(engine.get(&id()).is_none(), "it was idle for a day");
    assert_eq!(latched(&engine, "helper", 90_001), ended);
    reset(&engine, 90_002);
    assert_eq!(latched(&engine, "helper", 90_003), None);
}

#[test]
fn a_reset_is_announced_first_and_forgets_only_what_was_before() {
    let engine = engine();
    let before = Some(end_agent(&engine, "first", 1).id);
    let announced = engine.announce_reset(&id(), &BECAUSE, after(2)).unwrap();
    assert_eq!(latched(&engine, "first", 2), before, "it is not done yet");
    let since = Some(end_agent(&engine, "second", 2).id);
    engine.reset(&id(), &announced, after(3));
    assert_eq!(latched(&engine, "first", 3), None);
    assert_eq!(latched(&engine, "second", 3), since);

    let announced = engine.announce_reset(&id(), &BECAUSE, after(4)).unwrap();
    let over = engine.terminate(&id(), &BECAUSE, after(4));
    engine.reset(&id(), &announced, after(5));
    assert_eq!(latched(&engine, "", 5), Some(over.id));
}

#[test]
fn an_agent_that_waits_for_its_session_can_be_reset() {
    let engine = engine();
    end_agent(&engine, "helper", 1);
    engine.sweep(after(90_000), 10);
    assert!(engine.get(&id()).is_none());
    reset(&engine, 90_001);
    assert_eq!(latched(&engine, "helper", 90_002), None);
}

#[test]
fn what_a_session_leaves_is_forgotten_after_seven_days() {
    let engine = engine();
    end_agent(&engine, "helper", 1);
    engine.end(&id(), after(2));
    engine.sweep(after(604_802), 10);
    assert_eq!(latched(&engine, "helper", 604_803), None);
}

fn folded(name: &str, given: SystemTime) -> (SessionId, crate::domain::Folded) {
    let folded = crate::domain::Folded {
        id: crate::domain::VerdictId::at(given),
        record: b"what only its store can read".to_vec().into(),
        unfold: |_, _| None,
    };
    (named(name), folded)
}

/// There may be a million, and the service waits for them at its start.
#[test]
fn a_termination_that_stood_is_read_when_it_is_asked_for_and_not_before() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    static READ: AtomicUsize = AtomicUsize::new(0);
    let engine = engine();
    let sessions = (0..1_000).map(|n| {
        let (id, folded) = folded(&format!("s{n}"), after(1));
        let unfold = |_, _: &[u8]| {
            READ.fetch_add(1, Relaxed);
            None
        };
        (id, crate::domain::Folded { unfold, ..folded })
    });
    let standing = crate::domain::Standing {
        sessions: sessions.collect(),
        ..Default::default()
    };
    engine.restore(standing, after(2));
    assert_eq!(READ.load(Relaxed), 0);
    engine.get(&named("s7")).unwrap();
    assert!((1..10).contains(&READ.load(Relaxed)));
}

#[test]
fn what_stood_is_restored_unless_it_has_expired() {
    let engine = engine();
    let now = after(700_000);
    let standing = crate::domain::Standing {
        sessions: vec![folded("new", now), folded("old", after(1))],
        snoozes: vec![(id(), after(700_100))],
        last: crate::domain::VerdictId::at(after(800_000)),
        ..Default::default()
    };
    engine.restore(standing, now);
    let view = engine.get(&named("new")).unwrap();
    assert_eq!(view.status, Status::Terminated);
    assert!(
        view.termination.unwrap().terminates(),
        "though nobody can read it"
    );
    assert!(engine.get(&named("old")).is_none());
    engine.open(&id(), "", Labels::new(), now).unwrap();
    assert_eq!(
        engine.get(&id()).unwrap().snoozed_until,
        Some(after(700_100))
    );
    let next = engine.terminate(&named("next"), &BECAUSE, now);
    assert!(next.id > crate::domain::VerdictId::at(after(800_000)));
}
