//! Every limit: what exceeds it is refused, and the rest still works.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use unstuck::{
    domain::{self, Capacities, SessionId, SessionStatus},
    engine::{Engine, RecordError, RunMode},
    pb::{self, Action, Event, Operation, Outcome},
    telemetry::Metrics,
};

use crate::{harness::*, setup};

/// New sessions are refused with this reason, existing ones continue, and an ended
/// session makes room.
async fn check_refusal(toml: &str, reason: &str) {
    let server = Server::with(toml).await;
    let mut taken = 0;
    let refused = loop {
        match server.try_record(ask("x").of(&format!("s{taken}"))).await {
            Ok(_) => taken += 1,
            Err(refused) => break refused,
        }
    };
    assert!(taken >= 3, "{taken}");
    assert_exhausted(&refused, reason);
    assert_exhausted(&server.open("new", "", &[]).await.unwrap_err(), reason);

    let mut events = server.events().await;
    let answer = events
        .ask(batch(1, [ask("x").of("new"), ask("x").of("s0")]))
        .await;
    let error = answer.results[0].error.as_ref().unwrap();
    assert_eq!((error.code, &*error.reason), (8, reason));
    assert_eq!(
        (&*answer.results[0].session_id, indexes(&answer.results)),
        ("new", vec![-1, 1])
    );

    let mut deltas = server.deltas().await;
    let answer = deltas.ask(pieces([piece("new", "t", "let me look")])).await;
    assert_eq!(
        (&*answer.session_id, &*answer.error.unwrap().reason),
        ("new", reason)
    );

    let refused = format!(
        "unstuck_rejected_total{{reason=\"{}\"}}",
        reason.to_lowercase()
    );
    assert_eq!(server.metric(&refused).await, 4.0);
    assert_eq!(
        server.record(ask("x").of("s0")).await.action(),
        Action::Warn
    );

    server.end("s0").await.unwrap();
    assert_eq!(server.record(ask("x").of("new")).await.event_index, 0);
}

#[tokio::test]
async fn beyond_sessions_max_new_sessions_are_refused() {
    check_refusal("[limits]\nsessions_max = 3", "SESSIONS_MAX").await;
}

#[tokio::test]
async fn beyond_state_bytes_max_new_sessions_are_refused() {
    check_refusal("[limits]\nstate_bytes_max = 80_000", "STATE_BYTES_MAX").await;
}

#[tokio::test]
async fn a_terminated_session_makes_room() {
    let server = Server::with("[limits]\nsessions_max = 1").await;
    server.record(ask("x").of("s")).await;
    server.terminate("s").await;
    assert_eq!(server.record(ask("x").of("t")).await.event_index, 0);
}

#[tokio::test]
async fn a_refused_session_leaves_nothing_behind() {
    let server = Server::with("[limits]\nsessions_max = 1").await;
    server.record(ask("x").of("s")).await;
    server.try_record(ask("x").of("t")).await.unwrap_err();
    assert_eq!(
        server.get("t").await.unwrap_err().code(),
        tonic::Code::NotFound
    );
}

#[tokio::test]
async fn beyond_agents_max_the_events_of_another_agent_are_refused() {
    let server = Server::with("[limits]\nagents_max = 2").await;
    server.play("s", vec![ask("x"), ask("x").by("a")]).await;
    let refused = server.try_record(ask("x").by("b").of("s")).await;
    assert_exhausted(&refused.unwrap_err(), "AGENTS_MAX");
    let after = server
        .play("s", vec![ask("x").by("b"), ask("x").by("a"), ask("x")])
        .await;
    assert_eq!(after[0].error.as_ref().unwrap().reason, "AGENTS_MAX");
    assert_eq!(indexes(&after), [-1, 2, 3]);
    assert_eq!(
        server
            .metric("unstuck_rejected_total{reason=\"agents_max\"}")
            .await,
        2.0
    );
}

#[tokio::test]
async fn an_invalid_event_is_counted_as_invalid() {
    let server = Server::start().await;
    server.try_record(ask("x")).await.unwrap_err();
    server.play("", ask("x").times(2)).await;
    server.open("s", "nonsense", &[]).await.unwrap_err();
    let refused = "unstuck_rejected_total{reason=\"invalid_argument\"}";
    assert_eq!(server.metric(refused).await, 4.0);
}

// State of detectors

/// `script(n)` has n entries between the first and the last use of one of them. At
/// one less than the bound the last event gets a stronger action than at the bound,
/// where the first entry was evicted, which is counted.
async fn check_eviction(bound: usize, kind: &str, script: impl Fn(usize) -> Vec<Event>) {
    let counter = format!("unstuck_evicted_entries_total{{kind=\"{kind}\"}}");
    let server = Server::start().await;
    let kept = last_action(&server, "kept", script(bound - 1)).await;
    assert_eq!(server.metric(&counter).await, 0.0);
    let evicted = last_action(&server, "evicted", script(bound)).await;
    assert!(evicted < kept, "{evicted:?} {kept:?}");
    assert!(server.metric(&counter).await > 0.0);
}

async fn last_action(server: &Server, session: &str, script: Vec<Event>) -> Action {
    let mut action = Action::Unspecified;
    // A message holds 256 events.
    for events in script.chunks(256) {
        let results = server.play(session, events.to_vec()).await;
        action = results.last().unwrap().action();
    }
    action
}

/// A different word for each number, without digits: those are masked in errors.
fn word(number: usize) -> String {
    let letter = |n: usize| char::from(b'g' + (n % 20) as u8);
    [number / 20, number].map(letter).into_iter().collect()
}

fn writes(path: &str, content: &str) -> Event {
    let args = format!("{{\"path\": \"{path}\", \"content\": \"{content}\"}}");
    call("write_file", &args, "written").change(|call| {
        call.operation = Operation::Write.into();
        call.target = path.to_owned();
        call.content_hash = content.to_owned();
    })
}

fn fails(command: &str) -> Event {
    let args = format!("{{\"command\": \"{command}\"}}");
    call("bash", &args, "").change(|call| {
        call.operation = Operation::Execute.into();
        call.outcome = Outcome::Error.into();
        // An error of its own: the echo of a command would be cut out.
        let own: String = command.chars().rev().collect();
        call.error = format!("{own}: assertion failed: the tests do not pass");
        call.result = None;
    })
}

#[tokio::test]
async fn beyond_paths_max_the_least_recently_used_path_is_evicted() {
    let script = |others: usize| {
        let others = (0..others).map(|n| writes(&word(n), "3"));
        let first = [writes("a", "1"), writes("a", "2")].into_iter();
        // The second return to an old content is reported.
        let returns = [writes("a", "1"), writes("a", "2")];
        first.chain(others).chain(returns).collect()
    };
    check_eviction(Capacities::PATHS_MAX, "path", script).await;
}

#[tokio::test]
async fn beyond_commands_max_the_least_recently_used_command_is_evicted() {
    let script = |others: usize| {
        let others = (0..others).map(|n| format!("make {}", word(n)));
        let one = || "make one".to_owned();
        let runs = [one(), one()].into_iter().chain(others).enumerate();
        // Edits that do not help.
        let runs = runs.flat_map(|(n, run)| [fails(&run), writes("a", &n.to_string())]);
        runs.chain([fails(&one())]).collect()
    };
    check_eviction(Capacities::COMMANDS_MAX, "command", script).await;
}

#[tokio::test]
async fn beyond_loops_max_the_oldest_ended_loop_is_evicted() {
    let script = |others: usize| {
        let others = (0..others).map(word);
        let names = ["x".to_owned()].into_iter().chain(others);
        let names = names.chain(["x".to_owned()]);
        names.flat_map(|name| ask(&name).times(3)).collect()
    };
    check_eviction(Capacities::LOOPS_MAX, "loop", script).await;
}

// Time: with an engine in the test, which sets the clock.

struct EngineWithClock {
    engine: Engine,
    metrics: Arc<Metrics>,
}

fn engine(toml: &str) -> EngineWithClock {
    let (engine, metrics) = setup::engine(config(toml), RunMode::Live, Box::new(|_| {}));
    EngineWithClock { engine, metrics }
}

fn at(secs: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(secs)
}

impl EngineWithClock {
    fn record(&self, event: pb::Event, secs: u64) -> Result<i32, RecordError> {
        let event = domain::Event::try_from(event).unwrap();
        let recorded = self.engine.record(&event, at(secs))?;
        Ok(recorded.index.unwrap_or(-1))
    }

    fn status(&self, session: &str) -> Option<SessionStatus> {
        let id = SessionId::parse(session).unwrap();
        self.engine.get(&id).map(|view| view.status)
    }

    #[track_caller]
    fn assert_metric(&self, line: &str) {
        let page = self.metrics.render();
        assert!(
            page.lines().any(|known| known == line),
            "{line} is not in\n{page}"
        );
    }
}

#[test]
fn a_session_is_evicted_after_its_idle_time() {
    let clocked = engine("[limits]\nidle_secs_max = 60");
    clocked.record(ask("x").of("idle"), 0).unwrap();
    clocked.record(ask("x").of("busy"), 0).unwrap();
    clocked.record(ask("x").of("busy"), 30).unwrap();
    clocked.engine.evict_expired(at(59), 100);
    assert_eq!(clocked.engine.live_sessions(), 2);
    clocked.engine.evict_expired(at(60), 100);
    assert_eq!(
        (clocked.status("idle"), clocked.status("busy")),
        (None, Some(SessionStatus::Active))
    );
    clocked.assert_metric("unstuck_sessions_evicted_total{reason=\"idle\"} 1");
    clocked.engine.evict_expired(at(90), 100);
    assert_eq!(
        (
            clocked.engine.live_sessions(),
            clocked.engine.state_bytes() + clocked.engine.tombstone_bytes()
        ),
        (0, 0)
    );
    clocked.assert_metric("unstuck_sessions{status=\"active\"} 0");
}

#[test]
fn a_sweep_evicts_at_most_its_batch_size() {
    let clocked = engine("[limits]\nidle_secs_max = 60");
    for n in 0..10 {
        clocked.record(ask("x").of(&format!("s{n}")), 0).unwrap();
    }
    clocked.engine.evict_expired(at(60), 4);
    assert_eq!(clocked.engine.live_sessions(), 6);
}

#[test]
fn an_idle_session_is_evicted_for_a_new_one() {
    let clocked = engine("[limits]\nidle_secs_max = 60\nsessions_max = 1");
    clocked.record(ask("x").of("old"), 0).unwrap();
    assert_eq!(
        clocked.record(ask("x").of("new"), 59),
        Err(RecordError::SessionsMax(1))
    );
    clocked.engine.evict_expired(at(60), 100);
    assert_eq!(clocked.record(ask("x").of("new"), 60), Ok(0));
}

#[test]
fn a_restarted_session_has_its_own_deadline() {
    let clocked = engine("[limits]\nidle_secs_max = 60");
    let id = SessionId::parse("s").unwrap();
    clocked.record(ask("x").of("s"), 0).unwrap();
    clocked.engine.end_session(&id, at(1));
    clocked.record(ask("x").of("s"), 50).unwrap();
    clocked.engine.evict_expired(at(60), 100);
    assert_eq!(clocked.status("s"), Some(SessionStatus::Active));
    clocked.engine.evict_expired(at(110), 100);
    assert_eq!(clocked.status("s"), None);
}

#[test]
fn a_restarted_session_counts_once_in_a_sweep() {
    let clocked = engine("[limits]\nidle_secs_max = 60");
    let id = SessionId::parse("busy").unwrap();
    for _ in 0..5 {
        clocked.record(ask("x").of("busy"), 0).unwrap();
        clocked.engine.end_session(&id, at(0));
    }
    clocked.record(ask("x").of("busy"), 59).unwrap();
    clocked.engine.evict_expired(at(60), 100);
    clocked.record(ask("x").of("idle"), 60).unwrap();
    clocked.record(ask("x").of("busy"), 119).unwrap();
    clocked.engine.evict_expired(at(120), 2);
    assert_eq!(
        (clocked.status("idle"), clocked.status("busy")),
        (None, Some(SessionStatus::Active))
    );
}

#[test]
fn a_tombstone_holds_until_it_expires() {
    let clocked = engine("[limits]\nidle_secs_max = 60\ntombstone_secs_max = 600");
    let id = SessionId::parse("s").unwrap();
    clocked.record(ask("x").of("s"), 0).unwrap();
    clocked
        .engine
        .terminate_session(&id, &OPERATOR_REQUEST, at(10));
    clocked.engine.evict_expired(at(609), 100);
    assert_eq!(clocked.record(ask("x").of("s"), 609), Ok(-1));
    clocked.engine.evict_expired(at(610), 100);
    assert_eq!(clocked.record(ask("x").of("s"), 610), Ok(0));
    clocked.assert_metric("unstuck_sessions_evicted_total{reason=\"tombstone\"} 1");
}

#[test]
fn beyond_tombstones_max_the_oldest_is_evicted() {
    let clocked = engine("[limits]\ntombstones_max = 2");
    for (secs, session) in (0..).zip(["a", "b", "c"]) {
        let id = SessionId::parse(session).unwrap();
        clocked
            .engine
            .terminate_session(&id, &OPERATOR_REQUEST, at(secs));
    }
    clocked.engine.evict_expired(at(3), 100);
    let terminated = Some(SessionStatus::Terminated);
    let left = ["a", "b", "c"].map(|session| clocked.status(session));
    assert_eq!(left, [None, terminated, terminated]);
}

#[test]
fn the_state_of_a_session_stops_growing() {
    let clocked = engine("");
    let id = SessionId::parse("s").unwrap();
    clocked
        .engine
        .open_session(&id, "lenient", Default::default(), at(0))
        .unwrap();
    // One event with an id, then endless loops without ids: no duplicate can ask for
    // their verdicts, so they are not kept.
    clocked.record(ask("first").of("s").id("e"), 0).unwrap();
    let lap = |n: usize| [ask("x").times(5), ask(&format!("y{}", n % 40)).times(1)].concat();
    let bytes = |laps: std::ops::Range<usize>| {
        // Verdicts are dropped a few at a time.
        let each = laps.flat_map(lap).map(|event| {
            clocked.record(event.of("s"), 0).unwrap();
            clocked.engine.state_bytes()
        });
        each.max().unwrap()
    };
    let settled = bytes(0..100);
    assert_eq!(bytes(100..1_000), settled);
}

#[test]
fn the_totals_are_zero_without_sessions() {
    let clocked = engine("");
    let id = |n: usize| SessionId::parse(&format!("s{n}")).unwrap();
    for n in 0..40 {
        for event in ask("x").of(id(n).as_str()).times(1 + n) {
            clocked.record(event, 0).unwrap();
        }
        match n % 4 {
            0 => drop(clocked.engine.end_session(&id(n), at(0))),
            1 => drop(
                clocked
                    .engine
                    .terminate_session(&id(n), &OPERATOR_REQUEST, at(0)),
            ),
            2 => reset(&clocked.engine, &id(n), at(0)),
            _ => {}
        }
    }
    assert!(clocked.engine.live_sessions() > 0 && clocked.engine.state_bytes() > 0);
    clocked.engine.evict_expired(at(10_000_000), 1_000);
    assert_eq!(
        (
            clocked.engine.live_sessions(),
            clocked.engine.state_bytes() + clocked.engine.tombstone_bytes()
        ),
        (0, 0)
    );
    for status in SessionStatus::ALL {
        clocked.assert_metric(&format!(
            "unstuck_sessions{{status=\"{}\"}} 0",
            status.name()
        ));
    }
    clocked
        .assert_metric("unstuck_sessions_in_trend{detector=\"exact_repeat\",level=\"chronic\"} 0");
}
