use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::{
    domain::{
        Action, AgentId, Args, Cost, Delta, EventBody, Role, SessionStatus, Tenant, ToolCall, Turn,
        clock::SteadyClock,
    },
    testing,
};

fn engine() -> Engine {
    engine_with(&[])
}

fn engine_with(variables: &[(&str, &str)]) -> Engine {
    engine_in_mode(RunMode::Replay, variables)
}

/// A live engine has a breaker.
fn engine_in_mode(run_mode: RunMode, variables: &[(&str, &str)]) -> Engine {
    testing::engine(testing::config(variables), run_mode, Box::new(|_| {}))
}

#[track_caller]
fn assert_metric(engine: &Engine, line: &str) {
    let page = engine.state.metrics.render();
    assert!(page.lines().any(|known| known == line), "{line}\n{page}");
}

/// Panics on an event of the agent `panics`.
pub(super) fn inject_event_panic(event: &Event) {
    assert_ne!(event.agent.as_str(), "panics", "said by an agent");
}

/// Panics on the text `panics`.
pub(super) fn inject_text_panic(text: &str) {
    assert_ne!(text, "panics", "said by an agent");
}

const OPERATOR_REQUEST: OperatorRequest<'static> = OperatorRequest {
    reason: "it loops",
    operator: "ann",
};

fn reset(engine: &Engine, secs: u64) -> Arc<Verdict> {
    let announced = engine
        .issue_reset(&id(), &OPERATOR_REQUEST, after(secs))
        .unwrap();
    engine.apply_reset(&id(), &announced, after(secs));
    announced
}

fn event(agent: &str, event_id: &str, body: EventBody) -> Event {
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

fn current_idle_max(engine: &Engine) -> Duration {
    let (config, state) = (engine.config.load(), engine.tenants.get_or_insert(&id()));
    engine.context(&config, &state).current_idle_max()
}

fn id() -> SessionId {
    SessionId::parse("s").unwrap()
}

fn say(text: &str) -> EventBody {
    EventBody::Turn(Turn {
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
        let event = event("", &event_id(n), EventBody::Call(call));
        engine.record(&event, UNIX_EPOCH).unwrap();
    }
}

fn retained_verdicts(engine: &Engine) -> usize {
    let slot = engine.sessions.get(&id()).unwrap();
    match &*slot {
        Slot::Live(session) => session.retained_verdicts(),
        Slot::Closed(_) => 0,
    }
}

#[test]
fn verdicts_that_no_duplicate_can_ask_for_are_dropped() {
    let engine = engine();
    let once = |name: usize| move |n| if (name, n) == (0, 0) { "e" } else { "" }.to_owned();
    for name in 0..40 {
        new_loop(&engine, name, once(name));
    }
    assert_eq!(retained_verdicts(&engine), 8);
}

#[test]
fn verdicts_that_a_duplicate_may_ask_for_are_kept() {
    let engine = engine();
    for name in 0..40 {
        new_loop(&engine, name, |n| format!("{name}.{n}"));
    }
    assert_eq!(retained_verdicts(&engine), 40);
}

#[test]
fn labels_and_the_texts_of_verdicts_count_as_state() {
    let engine = engine();
    new_loop(&engine, 0, |_| String::new());
    let loud = engine.state_bytes();
    let verdict = engine.get(&id()).unwrap().verdicts.pop().unwrap();
    assert!(loud > verdict.memory_bytes() && verdict.memory_bytes() > size_of::<Verdict>() + 200);

    let labels = Labels::from([("team".to_owned(), "x".repeat(250))]);
    engine.open_session(&id(), "", labels, UNIX_EPOCH).unwrap();
    assert!(engine.state_bytes() >= loud + 254);
    engine.end_session(&id(), UNIX_EPOCH).unwrap();
    engine.evict_expired(after(700_000), 10);
    assert_eq!(engine.state_bytes(), 0);
}

fn named(id: &str) -> SessionId {
    SessionId::parse(id).unwrap()
}

fn after(secs: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(secs)
}

fn turn(role: Role, turn_id: &str, text: &str) -> EventBody {
    EventBody::Turn(Turn {
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
fn ended_sessions_evict_no_termination() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__TOMBSTONES_MAX", "10")]);
    engine.terminate_session(&named("bad"), &OPERATOR_REQUEST, after(0));
    for n in 0..50 {
        let id = named(&format!("fine-{n}"));
        engine
            .open_session(&id, "", Labels::new(), after(1))
            .unwrap();
        engine.end_session(&id, after(1));
    }
    engine.evict_expired(after(2), 1_000);
    let view = engine.get(&named("bad")).unwrap();
    assert_eq!(view.status, SessionStatus::Terminated);
    assert!(engine.get(&named("fine-0")).is_none());
    assert!(engine.get(&named("fine-49")).is_some());
}

#[test]
fn an_id_that_starts_and_ends_repeatedly_leaves_one_tombstone() {
    let engine = engine();
    for _ in 0..100 {
        engine
            .open_session(&id(), "", Labels::new(), after(1))
            .unwrap();
        engine.end_session(&id(), after(1));
    }
    let state = engine.tenants.get_or_insert(&id());
    assert_eq!(
        (state.without_verdicts.len(), state.ended_tombstones.len()),
        (0, 1)
    );
    reset(&engine, 2);
    assert_eq!(
        (state.without_verdicts.len(), state.ended_tombstones.len()),
        (1, 0)
    );
}

#[test]
fn an_idle_session_is_evicted_at_its_deadline() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__IDLE_SECS_MAX", "10")]);
    let open = |name: &str, secs| engine.open_session(&named(name), "", Labels::new(), after(secs));
    open("a", 0).unwrap();
    let mut turn_event = event("", "", say("on it"));
    turn_event.session = named("a");
    engine.record(&turn_event, after(4)).unwrap();
    for secs in 1..14 {
        open(&format!("b{secs}"), secs).unwrap();
        engine.evict_expired(after(secs), 1_000);
        assert!(engine.get(&named("a")).is_some(), "at {secs} s");
    }
    engine.evict_expired(after(14), 1_000);
    assert!(engine.get(&named("a")).is_none());
}

#[test]
fn tombstones_are_counted() {
    let engine = engine();
    let reason = "why ".repeat(200);
    let request = OperatorRequest {
        reason: &reason,
        ..OPERATOR_REQUEST
    };
    engine.terminate_session(&id(), &request, after(0));
    assert!(engine.tombstone_bytes() > 800);
    assert_eq!(engine.state_bytes(), 0);
    reset(&engine, 1);
    assert_eq!(engine.tombstone_bytes(), 0);
    assert!(engine.state_bytes() > 800);
    engine.end_session(&id(), after(1));
    assert!(engine.state_bytes() > 0);
    engine.evict_expired(after(700_000), 10);
    assert_eq!(engine.state_bytes(), 0);
}

/// Terminates `many` unknown sessions, for a long reason.
fn terminate_many(engine: &Engine, tenant: &str, many: usize) {
    let reason = "why ".repeat(200);
    let request = OperatorRequest {
        reason: &reason,
        ..OPERATOR_REQUEST
    };
    for n in 0..many {
        engine.terminate_session(&of_tenant(tenant, &format!("s{n}")), &request, after(1));
    }
}

fn of_tenant(tenant: &str, name: &str) -> SessionId {
    SessionId::parse_for_tenant(&Tenant::parse(tenant).unwrap(), name).unwrap()
}

#[test]
fn terminations_use_no_room_of_sessions_or_of_other_tenants() {
    let limits = [
        ("UNSTUCK__LIMITS__STATE_BYTES_MAX", "200000"),
        ("UNSTUCK__LIMITS__TOMBSTONE_BYTES_MAX", "1000000"),
    ];
    let engine = engine_with(&limits);
    engine.set_tenant_count(2);
    terminate_many(&engine, "few", 100);
    let few = engine.tombstone_bytes();
    terminate_many(&engine, "many", 2_000);
    assert!(engine.tombstone_bytes() > 1_000_000, "{few}");
    engine.evict_expired(after(2), 10_000);
    let left = engine.tombstone_bytes();
    assert!(left <= few + 500_000, "{left}");
    let status = |tenant, name| engine.get(&of_tenant(tenant, name)).map(|view| view.status);
    assert_eq!(status("few", "s0"), Some(SessionStatus::Terminated));
    assert_eq!(status("many", "s0"), None, "the oldest of its own");
    assert_eq!(status("many", "s1999"), Some(SessionStatus::Terminated));
    for tenant in ["few", "many"] {
        let opened = engine.open_session(&of_tenant(tenant, "new"), "", Labels::new(), after(3));
        assert!(opened.is_ok());
    }
}

#[test]
fn terminations_of_sub_agents_stay_within_the_bytes_for_terminations() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__TOMBSTONE_BYTES_MAX", "100000")]);
    for n in 0..200 {
        let session = named(&format!("s{n}"));
        let of_agent = || Event {
            session: session.clone(),
            ..event("helper", "", say("let me look again"))
        };
        let record = |_| engine.record(&of_agent(), after(1)).unwrap().verdict;
        let last = (0..6).map(record).last().flatten().unwrap();
        assert!(last.terminates());
        engine.end_session(&session, after(1));
    }
    assert!(engine.tombstone_bytes() > 100_000);
    engine.evict_expired(after(2), 1_000);
    let left = engine.tombstone_bytes();
    assert!(left > 50_000 && left <= 100_000, "{left}");
    // A restarted session takes the carry-over, and its bytes.
    let last = Event {
        session: named("s199"),
        ..event("helper", "", say("hello"))
    };
    let answer = engine.record(&last, after(3)).unwrap();
    assert!(answer.verdict.is_some_and(|verdict| verdict.terminates()));
    assert!(engine.tombstone_bytes() < left);
}

#[test]
fn labels_of_a_live_session_grow_only_within_the_budget() {
    let engine = engine_with(&[SMALL]);
    let labels = |many: usize| -> Labels {
        let labels = (0..many).map(|n| (format!("label-{n}"), "x".repeat(200)));
        labels.collect()
    };
    let open = |many| {
        engine
            .open_session(&id(), "", labels(many), after(1))
            .map(drop)
    };
    open(2).unwrap();
    engine.state.state_bytes.store(200_000, Relaxed);
    assert!(matches!(
        open(3),
        Err(OpenError::Record(RecordError::StateBytesMax(_)))
    ));
    assert_eq!(engine.get(&id()).unwrap().labels.len(), 2);
    open(2).unwrap();
    open(1).unwrap();
}

#[test]
fn a_refused_event_does_not_extend_the_idle_deadline() {
    let engine = engine_with(&[SMALL, ("UNSTUCK__LIMITS__IDLE_SECS_MAX", "10")]);
    engine
        .record(&event("", "", say("on it")), after(0))
        .unwrap();
    let state = engine.state_bytes();
    engine.state.state_bytes.store(200_000, Relaxed);
    for secs in 1..12 {
        assert!(
            engine
                .record(&event("", "", say("on it")), after(secs))
                .is_err()
        );
        assert!(
            engine
                .record_delta(&delta("t", "on it"), after(secs))
                .is_err()
        );
    }
    engine.state.state_bytes.store(state, Relaxed);
    engine.evict_expired(after(12), 10);
    assert_eq!(engine.live_sessions(), 0);
}

#[test]
fn a_reset_session_counts_and_restarts_only_within_sessions_max() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__SESSIONS_MAX", "1")]);
    let other = || {
        engine
            .open_session(&named("other"), "", Labels::new(), after(1))
            .map(drop)
    };
    engine.terminate_session(&id(), &OPERATOR_REQUEST, after(0));
    reset(&engine, 1);
    assert_eq!(engine.live_sessions(), 1);
    let state = engine.state_bytes();
    assert!(state > 500, "{state}");
    engine.terminate_session(&id(), &OPERATOR_REQUEST, after(2));
    other().unwrap();
    reset(&engine, 3);
    assert_eq!(engine.live_sessions(), 1);
    assert!(engine.get(&id()).is_none(), "it begins with its next event");
    assert_eq!(
        answer(&engine, "s").unwrap_err(),
        RecordError::SessionsMax(1)
    );
    engine.end_session(&named("other"), after(4));
    assert_eq!(answer(&engine, "s").unwrap().index, Some(0));
}

#[test]
fn the_main_agent_is_admitted_despite_the_carry_over_of_an_earlier_session() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__AGENTS_MAX", "2")]);
    end_agent(&engine, "a", 1);
    end_agent(&engine, "b", 2);
    engine.end_session(&id(), after(3));
    assert!(answer(&engine, "s").is_ok());
    let another = engine.record(&event("c", "", say("hello")), after(4));
    assert_eq!(another.unwrap_err(), RecordError::AgentsMax(2));
}

#[test]
fn another_profile_restarts_a_text() {
    let engine = engine();
    let open = |profile: &str| {
        engine
            .open_session(&id(), profile, Labels::new(), after(1))
            .unwrap()
    };
    open("default");
    let chunk = |text: &str| {
        let chunk = Delta {
            end_of_turn: false,
            ..delta("t", text)
        };
        engine.record_delta(&chunk, after(1)).unwrap();
    };
    chunk(&"a text of some length ".repeat(40));
    let writing = engine.state_bytes();
    open("default");
    assert_eq!(engine.state_bytes(), writing);
    open("lenient");
    assert!(engine.state_bytes() < writing);
}

#[test]
fn a_new_agent_is_refused_when_the_state_is_full() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__STATE_BYTES_MAX", "30000")]);
    let record = |agent: &str| engine.record(&event(agent, "", say("hello")), after(0));
    record("agent-0").unwrap();
    engine.state.state_bytes.store(28_000, Relaxed);
    assert_eq!(
        record("agent-1").err(),
        Some(RecordError::StateBytesMax(30_000))
    );
    assert!(record("agent-0").is_ok(), "who is known goes on");
}

#[test]
fn a_turn_of_a_user_is_never_treated_as_an_agents() {
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
    let streamed = engine
        .record_delta(&delta("t", "hello there"), after(0))
        .unwrap();
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
        EventBody::Call(ToolCall {
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
fn a_session_whose_looping_agent_has_ended_does_not_loop() {
    let engine = engine();
    for _ in 0..6 {
        let event = event("helper", "", say("let me look again"));
        engine.record(&event, after(0)).unwrap();
    }
    let view = engine.get(&id()).unwrap();
    assert_eq!(view.status, SessionStatus::Active);
    assert!(view.trends.is_empty());
}

/// Terminates the agent with six equal turns.
fn end_agent(engine: &Engine, agent: &str, secs: u64) -> Arc<Verdict> {
    let record = |_| engine.record(&event(agent, "", say("let me look again")), after(secs));
    let last = (0..6)
        .map(record)
        .last()
        .and_then(|answer| answer.unwrap().verdict);
    last.filter(|verdict| verdict.terminates()).unwrap()
}

/// The termination that answers an event of the agent, if any.
fn find_termination_id(
    engine: &Engine,
    agent: &str,
    secs: u64,
) -> Option<crate::domain::VerdictId> {
    let answer = engine.record(&event(agent, "", say("hello")), after(secs));
    let verdict = answer.unwrap().verdict;
    Some(verdict.filter(|verdict| verdict.terminates())?.id)
}

#[test]
fn a_terminated_agent_stays_terminated_when_its_session_ends_or_is_evicted() {
    let engine = engine();
    let ended = Some(end_agent(&engine, "helper", 1).id);
    engine.end_session(&id(), after(2));
    assert_eq!(find_termination_id(&engine, "helper", 3), ended);
    assert_eq!(find_termination_id(&engine, "", 3), None);
    engine.evict_expired(after(90_000), 10);
    assert!(engine.get(&id()).is_none(), "it was idle for a day");
    assert_eq!(find_termination_id(&engine, "helper", 90_001), ended);
    reset(&engine, 90_002);
    assert_eq!(find_termination_id(&engine, "helper", 90_003), None);
}

#[test]
fn a_reset_is_written_first_and_clears_only_earlier_events() {
    let engine = engine();
    let before = Some(end_agent(&engine, "first", 1).id);
    let announced = engine
        .issue_reset(&id(), &OPERATOR_REQUEST, after(2))
        .unwrap();
    assert_eq!(
        find_termination_id(&engine, "first", 2),
        before,
        "it is not done yet"
    );
    let since = Some(end_agent(&engine, "second", 2).id);
    engine.apply_reset(&id(), &announced, after(3));
    assert_eq!(find_termination_id(&engine, "first", 3), None);
    assert_eq!(find_termination_id(&engine, "second", 3), since);

    let announced = engine
        .issue_reset(&id(), &OPERATOR_REQUEST, after(4))
        .unwrap();
    let over = engine
        .terminate_session(&id(), &OPERATOR_REQUEST, after(4))
        .verdict;
    engine.apply_reset(&id(), &announced, after(5));
    assert_eq!(find_termination_id(&engine, "", 5), Some(over.id));
}

#[test]
fn a_carried_over_agent_can_be_reset() {
    let engine = engine();
    end_agent(&engine, "helper", 1);
    engine.evict_expired(after(90_000), 10);
    assert!(engine.get(&id()).is_none());
    reset(&engine, 90_001);
    assert_eq!(find_termination_id(&engine, "helper", 90_002), None);
}

#[test]
fn a_carry_over_expires_after_seven_days() {
    let engine = engine();
    end_agent(&engine, "helper", 1);
    engine.end_session(&id(), after(2));
    engine.evict_expired(after(604_802), 10);
    assert_eq!(find_termination_id(&engine, "helper", 604_803), None);
}

fn encoded_termination(name: &str, given: SystemTime) -> (SessionId, crate::domain::EncodedRecord) {
    let encoded = crate::domain::EncodedRecord {
        id: crate::domain::VerdictId::lower_bound_at(given),
        bytes: b"what only its store can read".to_vec().into(),
        decode: |_, _| None,
    };
    (named(name), encoded)
}

/// There may be a million terminations, and startup waits for them.
#[test]
fn a_restored_termination_is_decoded_only_when_requested() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    static READ: AtomicUsize = AtomicUsize::new(0);
    let engine = engine();
    let sessions = (0..1_000).map(|n| {
        let (id, encoded) = encoded_termination(&format!("s{n}"), after(1));
        let unfold = |_, _: &[u8]| {
            READ.fetch_add(1, Relaxed);
            None
        };
        (
            id,
            crate::domain::EncodedRecord {
                decode: unfold,
                ..encoded
            },
        )
    });
    let recovered = crate::domain::RecoveredState {
        sessions: sessions.collect(),
        ..Default::default()
    };
    engine.restore(recovered, after(2), after(2));
    assert_eq!(READ.load(Relaxed), 0);
    engine.get(&named("s7")).unwrap();
    assert!((1..10).contains(&READ.load(Relaxed)));
}

#[test]
fn terminations_are_restored_unless_they_have_expired() {
    let engine = engine();
    let now = after(700_000);
    let recovered = crate::domain::RecoveredState {
        sessions: vec![
            encoded_termination("new", now),
            encoded_termination("old", after(1)),
        ],
        snoozes: vec![(id(), after(700_100))],
        last_verdict: crate::domain::VerdictId::lower_bound_at(after(800_000)),
        ..Default::default()
    };
    engine.restore(recovered, now, now);
    let view = engine.get(&named("new")).unwrap();
    assert_eq!(view.status, SessionStatus::Terminated);
    assert!(
        view.termination.unwrap().terminates(),
        "though it cannot be decoded"
    );
    assert!(engine.get(&named("old")).is_none());
    engine.open_session(&id(), "", Labels::new(), now).unwrap();
    assert_eq!(
        engine.get(&id()).unwrap().snoozed_until,
        Some(after(700_100))
    );
    let next = engine
        .terminate_session(&named("next"), &OPERATOR_REQUEST, now)
        .verdict;
    assert!(next.id > crate::domain::VerdictId::lower_bound_at(after(800_000)));
}

// A panic in one session

fn panic_in(engine: &Engine, session: &str) -> RecordError {
    let mut event = event("panics", "", say("hello"));
    event.session = named(session);
    engine.record(&event, after(1)).unwrap_err()
}

fn answer(engine: &Engine, session: &str) -> Result<RecordOutcome, RecordError> {
    let mut event = event("", "", say("hello"));
    event.session = named(session);
    engine.record(&event, after(2))
}

#[test]
fn a_panic_quarantines_its_session_and_no_other() {
    let engine = engine();
    answer(&engine, "s").unwrap();
    answer(&engine, "other").unwrap();
    let refused = panic_in(&engine, "s");
    assert!(matches!(refused, RecordError::Quarantined(_)));
    assert_eq!(
        answer(&engine, "s").unwrap_err(),
        refused,
        "the same reference"
    );
    assert_eq!(
        engine.record_delta(&delta("t", "x"), after(2)).unwrap_err(),
        refused
    );
    assert_eq!(answer(&engine, "other").unwrap().index, Some(1));
    assert_eq!(
        engine.get(&id()).unwrap().status,
        SessionStatus::Quarantined
    );
    assert_metric(&engine, "unstuck_panics_total{site=\"session\"} 1");
    assert_metric(&engine, "unstuck_sessions{status=\"quarantined\"} 1");
    assert_metric(&engine, "unstuck_sessions{status=\"active\"} 1");

    reset(&engine, 3);
    assert_eq!(answer(&engine, "s").unwrap().index, Some(0));
    assert_metric(&engine, "unstuck_sessions{status=\"quarantined\"} 0");
}

#[test]
fn a_panic_in_a_streamed_text_quarantines_its_session() {
    let engine = engine();
    answer(&engine, "other").unwrap();
    let chunk = |text: &str| {
        let chunk = Delta {
            end_of_turn: false,
            ..delta("t", text)
        };
        engine.record_delta(&chunk, after(1))
    };
    chunk("let me").unwrap();
    chunk(" look").unwrap();
    let refused = chunk("panics").unwrap_err();
    assert!(matches!(refused, RecordError::Quarantined(_)));
    assert_eq!(chunk(" at it").unwrap_err(), refused);
    assert_eq!(answer(&engine, "other").unwrap().index, Some(1));
    assert_metric(&engine, "unstuck_panics_total{site=\"session\"} 1");
    assert_metric(&engine, "unstuck_sessions{status=\"quarantined\"} 1");
    // Its bytes are counted as those of a tombstone.
    engine.terminate_session(&id(), &OPERATOR_REQUEST, after(2));
    let far = after(1_000_000_000);
    for _ in 0..10 {
        engine.evict_expired(far, 1_000);
    }
    assert_eq!((engine.live_sessions(), engine.state_bytes()), (0, 0));
}

#[test]
fn a_panic_before_the_session_is_known_quarantines_it_too() {
    let engine = engine();
    let prepared: Result<(), _> =
        engine.prepare_catching_panic(&id(), after(0), || panic!("on purpose"));
    let refused = prepared.unwrap_err();
    assert_eq!(answer(&engine, "s").unwrap_err(), refused);
}

#[test]
fn a_termination_survives_quarantine() {
    let engine = engine();
    let over = Some(end_agent(&engine, "helper", 1).id);
    panic_in(&engine, "s");
    assert_eq!(find_termination_id(&engine, "helper", 2), over);
    let verdict = engine
        .terminate_session(&id(), &OPERATOR_REQUEST, after(3))
        .verdict;
    assert_eq!(
        answer(&engine, "s").unwrap().verdict.unwrap().id,
        verdict.id
    );
    let prepared: Result<(), _> =
        engine.prepare_catching_panic(&id(), after(4), || panic!("on purpose"));
    assert!(prepared.is_err());
    assert_eq!(engine.get(&id()).unwrap().status, SessionStatus::Terminated);
}

#[test]
fn the_totals_are_right_after_a_panic() {
    let engine = engine();
    new_loop(&engine, 0, |_| String::new());
    panic_in(&engine, "s");
    panic_in(&engine, "new");
    assert_eq!(engine.live_sessions(), 2);
    engine.evict_expired(after(10_000_000), 10);
    assert_eq!((engine.live_sessions(), engine.state_bytes()), (0, 0));
    let state = engine.tenants.get_or_insert(&id());
    assert_eq!(
        (state.without_verdicts.len(), state.with_verdicts.len()),
        (0, 0)
    );
    for status in SessionStatus::ALL {
        let line = format!("unstuck_sessions{{status=\"{}\"}} 0", status.name());
        assert_metric(&engine, &line);
    }
}

// Memory pressure

/// Small enough to be filled by a few dozen sessions.
const SMALL: (&str, &str) = ("UNSTUCK__LIMITS__STATE_BYTES_MAX", "200000");

/// Opens sessions until one is refused; returns how many were accepted.
fn fill(engine: &Engine, prefix: &str, secs: u64) -> usize {
    let open = |n: usize| {
        let id = named(&format!("{prefix}{n}"));
        engine.open_session(&id, "", Labels::new(), after(secs))
    };
    let refused = (0..10_000).position(|n| open(n).is_err());
    refused.unwrap()
}

fn percent(engine: &Engine) -> usize {
    engine.state_bytes() * 100 / 200_000
}

#[test]
fn above_nine_tenths_a_new_session_evicts_an_idle_one() {
    let engine = engine_with(&[SMALL]);
    let first = fill(&engine, "a", 0);
    assert!((90..95).contains(&percent(&engine)), "{}", percent(&engine));
    assert_eq!(
        fill(&engine, "b", 59),
        0,
        "no session was idle for a minute"
    );
    engine
        .open_session(&named("c"), "", Labels::new(), after(60))
        .unwrap();
    assert!(engine.get(&named("a0")).is_none(), "the longest idle");
    assert!(engine.get(&named("a1")).is_some());
    assert_metric(
        &engine,
        "unstuck_sessions_evicted_total{reason=\"pressure\"} 1",
    );
    assert_eq!(fill(&engine, "d", 60), first - 1, "all the others too");
    assert!(percent(&engine) < 95);
}

#[test]
fn sessions_with_verdicts_are_evicted_last_and_terminations_are_kept() {
    let engine = engine_with(&[SMALL]);
    engine.terminate_session(&named("over"), &OPERATOR_REQUEST, after(0));
    new_loop(&engine, 0, |_| String::new());
    let others = fill(&engine, "a", 1);
    let last = named(&format!("a{}", others - 1));
    for n in (0..).take_while(|_| engine.get(&last).is_some()) {
        let id = named(&format!("b{n}"));
        engine
            .open_session(&id, "", Labels::new(), after(100))
            .unwrap();
    }
    assert_eq!(engine.get(&id()).unwrap().status, SessionStatus::Looping);
    // The new sessions are not idle, so this one is evicted.
    fill(&engine, "c", 101);
    assert!(engine.get(&id()).is_none());
    assert_eq!(
        engine.get(&named("over")).unwrap().status,
        SessionStatus::Terminated
    );
}

#[test]
fn above_three_quarters_idle_sessions_are_evicted_sooner() {
    let engine = engine_with(&[SMALL]);
    let day = Duration::from_secs(86_400);
    assert_eq!(current_idle_max(&engine), day);
    for (bytes, hours) in [(150_000, 24), (165_000, 12), (180_000, 0), (300_000, 0)] {
        engine.state.state_bytes.store(bytes, Relaxed);
        let about = current_idle_max(&engine).as_secs() / 3_600;
        assert_eq!(about, hours, "at {bytes} bytes");
    }
    assert_eq!(current_idle_max(&engine), Duration::from_secs(60));
    engine.state.state_bytes.store(0, Relaxed);

    let taken = fill(&engine, "a", 0);
    engine.evict_expired(after(20_000), 10_000);
    let left = engine.live_sessions();
    assert!(left < taken && left > taken / 2, "{left} of {taken}");
    assert!(current_idle_max(&engine) > Duration::from_secs(20_000));
}

#[test]
fn deltas_are_refused_before_events_and_events_last() {
    let engine = engine_with(&[SMALL]);
    answer(&engine, "s").unwrap();
    let full = RecordError::StateBytesMax(200_000);
    let chunk = || engine.record_delta(&delta("", "x"), after(3)).map(drop);
    let at = |bytes| engine.state.state_bytes.store(bytes, Relaxed);
    at(189_000);
    assert_eq!(chunk(), Ok(()));
    at(190_000);
    assert_eq!(chunk(), Err(full));
    assert!(answer(&engine, "s").is_ok());
    at(200_000);
    assert_eq!(answer(&engine, "s").map(drop), Err(full));
    assert_eq!(
        engine
            .open_session(&named("new"), "", Labels::new(), after(3))
            .unwrap_err()
            .to_string(),
        full.to_string()
    );
}

#[test]
fn a_full_service_still_answers_terminated_sessions_and_duplicates() {
    let engine = engine_with(&[SMALL]);
    let over = Some(end_agent(&engine, "helper", 1).id);
    engine
        .record(&event("", "e", say("hello")), after(1))
        .unwrap();
    engine.state.state_bytes.store(200_000, Relaxed);
    assert_eq!(find_termination_id(&engine, "helper", 2), over);
    let again = engine.record(&event("", "e", say("hello")), after(2));
    assert!(again.unwrap().duplicate);
}

// The breaker

/// Six equal turns of a session: it is terminated, or would be.
fn storm(engine: &Engine, sessions: std::ops::Range<usize>, secs: u64) -> Vec<Action> {
    storm_of(engine, |n| named(&format!("s{n}")), sessions, secs)
}

fn storm_of(
    engine: &Engine,
    id: impl Fn(usize) -> SessionId,
    sessions: std::ops::Range<usize>,
    secs: u64,
) -> Vec<Action> {
    let last = |n: usize| {
        let mut event = event("", "", say("let me look again"));
        event.session = id(n);
        let record = |_| engine.record(&event, after(secs)).unwrap();
        let last = (0..6)
            .filter_map(|n| record(n).verdict)
            .reduce(|_, last| last);
        last.and_then(|verdict| verdict.action)
    };
    sessions.filter_map(last).collect()
}

#[test]
fn a_policy_that_would_terminate_a_large_share_of_the_fleet_only_warns() {
    let engine = engine_in_mode(RunMode::Live, &[]);
    let actions = storm(&engine, 0..30, 0);
    let ended = actions
        .iter()
        .filter(|action| **action == Action::Terminate);
    assert_eq!((actions.len(), ended.count()), (30, 20));
    assert_eq!(actions.last(), Some(&Action::Warn));
    assert!(engine.is_any_breaker_open());
    assert_metric(&engine, "unstuck_breaker_open 1");
    assert_metric(&engine, "unstuck_terminations_withheld_total 10");
    let spared = engine.get(&named("s29")).unwrap();
    assert_eq!(spared.status, SessionStatus::Looping);
    let reason = &spared.verdicts.last().unwrap().reason;
    assert!(
        reason.contains("not terminated: the breaker is open"),
        "{reason}"
    );
    assert_eq!(
        engine
            .terminate_session(&named("s29"), &OPERATOR_REQUEST, after(1))
            .verdict
            .action,
        Some(Action::Terminate),
        "operators always may"
    );

    engine.evict_expired(after(301), 10);
    assert!(!engine.is_any_breaker_open());
    assert_metric(&engine, "unstuck_breaker_open 0");
    assert_eq!(storm(&engine, 28..29, 302), [Action::Terminate]);
}

#[test]
fn a_loop_that_goes_on_after_a_withheld_termination_is_terminated() {
    let engine = engine_in_mode(RunMode::Live, &[]);
    storm(&engine, 0..30, 0);
    assert!(engine.is_any_breaker_open());
    let mut looping = event("", "", say("let me look again"));
    looping.session = named("real");
    let actions: Vec<_> = (0..60)
        .map_while(|_| {
            let recorded = engine.record(&looping, after(0)).unwrap();
            let is_over = engine.get(&looping.session).unwrap().status == SessionStatus::Terminated;
            let action = recorded.verdict.and_then(|verdict| verdict.action);
            (!is_over || action == Some(Action::Terminate)).then_some(action)
        })
        .take_while(|action| *action != Some(Action::Terminate))
        .collect();
    // It is withheld with the sixth turn, and given after as many again.
    assert!((10..=14).contains(&actions.len()), "{actions:?}");
    assert!(engine.is_any_breaker_open());
    let status = engine.get(&looping.session).unwrap().status;
    assert_eq!(status, SessionStatus::Terminated);

    // One that does something else after the warning is not.
    let recovered = named("s29");
    for n in 0..60 {
        let mut other = event("", "", say(&format!("step {n}: {}", "x".repeat(n + 1))));
        other.session = recovered.clone();
        engine.record(&other, after(0)).unwrap();
    }
    let status = engine.get(&recovered).unwrap().status;
    assert_ne!(status, SessionStatus::Terminated);
}

#[test]
fn a_wall_clock_that_jumps_evicts_no_session() {
    let engine = engine_in_mode(RunMode::Live, &[]);
    let mut clock = SteadyClock::new(after(0));
    let id = named("s");
    engine
        .open_session(&id, "", Labels::new(), after(0))
        .unwrap();
    for secs in 1..=5 {
        let ten_years = Duration::from_secs(10 * 365 * 24 * 60 * 60);
        let now = clock.read(after(secs) + ten_years, Duration::from_secs(secs));
        engine.evict_expired(now, 10);
    }
    assert!(engine.get(&id).is_some());
}

#[test]
fn a_few_terminations_in_a_large_fleet_and_any_in_a_replay_are_not_held_back() {
    let engine = engine_in_mode(RunMode::Live, &[]);
    for n in 0..200 {
        let id = named(&format!("fine{n}"));
        engine
            .open_session(&id, "", Labels::new(), after(0))
            .unwrap();
    }
    let replay = engine_with(&[]);
    for engine in [engine, replay] {
        let ended = storm(&engine, 0..40, 0);
        assert_eq!(ended, vec![Action::Terminate; 40]);
    }
}

// Tenants

fn tenant_session(tenant: &str, id: &str) -> SessionId {
    SessionId::parse_for_tenant(&crate::domain::Tenant::parse(tenant).unwrap(), id).unwrap()
}

fn open_many(engine: &Engine, tenant: &str, many: std::ops::Range<usize>, secs: u64) -> usize {
    let id = |n| tenant_session(tenant, &format!("s{n}"));
    let opened = |n: &usize| engine.open_session(&id(*n), "", Labels::new(), after(secs));
    many.take_while(|n| opened(n).is_ok()).count()
}

#[test]
fn a_tenant_has_its_share_of_the_sessions_and_no_other_is_refused_for_it() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__SESSIONS_MAX", "10")]);
    engine.set_tenant_count(2);
    assert_eq!(open_many(&engine, "a", 0..20, 0), 5);
    assert_eq!(open_many(&engine, "b", 0..20, 0), 5);
    // Idle sessions of the same tenant are evicted, never those of another.
    assert_eq!(open_many(&engine, "a", 20..25, 1_000), 5);
    assert!(engine.get(&tenant_session("a", "s0")).is_none());
    assert!((0..5).all(|n| engine.get(&tenant_session("b", &format!("s{n}"))).is_some()));
    assert_eq!(engine.live_sessions(), 10);
}

#[test]
fn a_tenant_above_its_share_is_evicted_once_other_tenants_need_room() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__SESSIONS_MAX", "10")]);
    assert_eq!(open_many(&engine, "a", 0..20, 0), 10);
    engine.set_tenant_count(2);
    assert_eq!(open_many(&engine, "b", 0..20, 1_000), 5);
    assert_eq!(
        engine
            .tenants
            .get_or_insert(&tenant_session("a", "s"))
            .live_sessions
            .load(Relaxed),
        5
    );
}

#[test]
fn a_tenant_has_its_share_of_the_memory() {
    let engine = engine_with(&[SMALL]);
    engine.set_tenant_count(2);
    let few = open_many(&engine, "a", 0..10_000, 0);
    // The last one of the other may have gone a little over.
    assert!(open_many(&engine, "b", 0..10_000, 0) + 1 >= few);
    let bytes = |tenant| {
        let state = engine.tenants.get_or_insert(&tenant_session(tenant, "s"));
        state.state_bytes.load(Relaxed)
    };
    assert!((90_000..=100_000).contains(&bytes("a")), "{}", bytes("a"));
    assert_eq!(bytes("a") + bytes("b"), engine.state_bytes());
}

#[test]
fn the_terminations_of_one_tenant_evict_none_of_another() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__TOMBSTONES_MAX", "10")]);
    engine.set_tenant_count(2);
    engine.terminate_session(&tenant_session("b", "over"), &OPERATOR_REQUEST, after(0));
    for n in 0..50 {
        engine.terminate_session(
            &tenant_session("a", &format!("s{n}")),
            &OPERATOR_REQUEST,
            after(1),
        );
    }
    engine.evict_expired(after(2), 1_000);
    assert!(engine.get(&tenant_session("b", "over")).is_some());
    let state = engine.tenants.get_or_insert(&tenant_session("a", "s"));
    assert_eq!(state.terminated_tombstones.len(), 5);
}

// Post-mortems

/// Runs a looping session to its end. Returns the bytes of its timeline.
fn loop_and_end(engine: &Engine, session: &SessionId) -> usize {
    for _ in 0..3 {
        let call = ToolCall {
            tool: "tool".to_owned(),
            args: Args::Text("{}".to_owned()),
            ..ToolCall::default()
        };
        let mut call = event("", "", EventBody::Call(call));
        call.session = session.clone();
        engine.record(&call, after(0)).unwrap();
    }
    engine.end_session(session, after(0)).unwrap();
    let detail = engine.detail(session).unwrap();
    assert_eq!(
        (detail.view.status, detail.view.verdicts.len()),
        (SessionStatus::Ended, 1)
    );
    assert_eq!(detail.timeline.len(), 3);
    detail
        .timeline
        .iter()
        .map(|entry| entry.memory_bytes())
        .sum()
}

fn retained_events(engine: &Engine, session: &SessionId) -> usize {
    engine.detail(session).unwrap().timeline.len()
}

#[test]
fn a_post_mortem_is_kept_until_the_session_restarts_or_is_evicted() {
    let engine = engine();
    let bytes = loop_and_end(&engine, &id());
    assert!(bytes > 300 && engine.state_bytes() > bytes);
    engine
        .open_session(&id(), "", Labels::new(), after(1))
        .unwrap();
    assert_eq!(retained_events(&engine, &id()), 0);
    loop_and_end(&engine, &id());
    engine.terminate_session(&id(), &OPERATOR_REQUEST, after(2));
    reset(&engine, 3);
    assert_eq!(retained_events(&engine, &id()), 0);
    loop_and_end(&engine, &id());
    engine.evict_expired(after(700_000), 10);
    assert_eq!(engine.state_bytes(), 0);
}

#[test]
fn terminating_a_closed_session_returns_its_post_mortem() {
    let engine = engine();
    loop_and_end(&engine, &id());
    engine.terminate_session(&id(), &OPERATOR_REQUEST, after(1));
    assert_eq!(retained_events(&engine, &id()), 3);
}

#[test]
fn a_session_that_ended_without_verdicts_has_no_post_mortem() {
    let engine = engine();
    engine
        .record(&event("", "", say("done")), after(0))
        .unwrap();
    engine.end_session(&id(), after(0));
    assert_eq!(retained_events(&engine, &id()), 0);
}

#[test]
fn post_mortems_stay_within_their_bytes_and_the_newest_of_each_tenant_are_kept() {
    let engine = engine_with(&[("UNSTUCK__LIMITS__POST_MORTEM_BYTES_MAX", "20000")]);
    engine.set_tenant_count(2);
    loop_and_end(&engine, &tenant_session("b", "s"));
    let all = || (0..40).map(|n| tenant_session("a", &format!("s{n}")));
    for session in all() {
        loop_and_end(&engine, &session);
    }
    let kept: Vec<bool> = all()
        .map(|session| retained_events(&engine, &session) > 0)
        .collect();
    let few = kept.iter().filter(|is_kept| **is_kept).count();
    assert!((2..10).contains(&few), "{few}");
    assert!(kept[40 - few..].iter().all(|is_kept| *is_kept), "{kept:?}");
    assert_eq!(
        retained_events(&engine, &tenant_session("b", "s")),
        3,
        "of another tenant"
    );
}

#[test]
fn post_mortems_are_evicted_first_when_memory_is_short() {
    let engine = engine_with(&[SMALL]);
    loop_and_end(&engine, &id());
    engine.terminate_session(&id(), &OPERATOR_REQUEST, after(0));
    fill(&engine, "a", 0);
    assert_eq!(retained_events(&engine, &id()), 0);
    assert_eq!(engine.get(&id()).unwrap().status, SessionStatus::Terminated);
}

#[test]
fn the_breaker_of_one_tenant_holds_back_no_other() {
    let engine = engine_in_mode(RunMode::Live, &[]);
    engine.set_tenant_count(2);
    let of = |tenant: &'static str| move |n| tenant_session(tenant, &format!("s{n}"));
    let ended = storm_of(&engine, of("many"), 0..30, 0);
    assert_eq!(ended.last(), Some(&Action::Warn));
    let ended = storm_of(&engine, of("few"), 0..5, 1);
    assert_eq!(ended, vec![Action::Terminate; 5]);
    assert!(engine.is_any_breaker_open());
    assert_metric(&engine, "unstuck_breaker_open 1");
    engine.evict_expired(after(301), 10);
    assert!(!engine.is_any_breaker_open());
    assert_metric(&engine, "unstuck_breaker_open 0");
}
