//! Events and their results: order, duplicates, agents, and which events count.

use unstuck::pb::{Action, Operation, Outcome, Role, SessionStatus};

use crate::harness::*;

#[tokio::test]
async fn every_request_is_answered_once_and_in_order() {
    let server = Server::start().await;
    let mut stream = server.events().await;
    let sessions: Vec<String> = (0..100).map(|n| format!("s{n}")).collect();
    let events = |n| sessions.iter().map(move |s| ask(&format!("{n}")).of(s));
    for n in 1..=20 {
        stream.send(batch(n, events(n))).await;
    }
    for n in 1..=20 {
        let answer = stream.receive().await;
        let answered: Vec<_> = answer.results.iter().map(|r| &r.session_id).collect();
        assert_eq!(answer.sequence, n);
        assert_eq!(answered, sessions.iter().collect::<Vec<_>>());
        assert!(answer.results.iter().all(|r| r.event_index == n - 1));
    }
    assert_eq!(stream.finish().await, []);
}

#[tokio::test]
async fn an_invalid_request_ends_its_stream() {
    let server = Server::start().await;
    let rules = [
        (1, 0, "events"),
        (1, 257, "events"),
        (0, 1, "sequence"),
        (-1, 1, "sequence"),
    ];
    for (sequence, count, field) in rules {
        let mut stream = server.events().await;
        let events = ask("x").of("s").times(count);
        stream.send(batch(sequence, events)).await;
        assert_invalid(&stream.next().await.unwrap_err(), field);
    }
}

#[tokio::test]
async fn a_request_may_hold_256_events() {
    let server = Server::start().await;
    let results = server.play("s", turn("").times(256)).await;
    assert_eq!(indexes(&results), (0..256).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_invalid_event_does_not_affect_other_events_of_its_request() {
    let server = Server::start().await;
    let mut stream = server.events().await;
    let bodiless = || unstuck::pb::Event::default().of("s").id("e");
    let events = [ask("x").of("s"), bodiless(), ask("x").of("s"), bodiless()];
    let results = stream.ask(batch(1, events)).await.results;
    assert_eq!(indexes(&results), [0, -1, 1, -1]);
    let error = results[1].error.as_ref().unwrap();
    let names = (error.code, error.field.as_str(), error.reason.as_str());
    assert_eq!(names, (3, "body", "FIELD_REQUIRED"));
    assert_eq!((&*results[1].session_id, &*results[1].event_id), ("s", "e"));
    assert_eq!(
        stream.ask(batch(2, [ask("x").of("s")])).await.results[0].action(),
        Action::Warn
    );
}

// Duplicates

#[tokio::test]
async fn a_duplicate_on_any_stream_gets_the_first_answer_and_does_not_count() {
    let server = Server::start().await;
    let named = |n: usize| ask("x").of("s").id(&format!("e{n}"));
    let first = server
        .play("s", (0..3).map(named).collect::<Vec<_>>())
        .await;
    let again = [
        server.record(named(2)).await,
        server.play("s", named(2)).await.remove(0),
    ];
    for result in again {
        assert!(result.duplicate);
        assert_eq!((result.event_index, result.action()), (2, Action::Warn));
        assert_eq!(verdict(&result), verdict(&first[2]));
    }
    assert!(server.record(named(1)).await.verdict.is_none());
    assert_eq!(server.get("s").await.unwrap().events, 3);
}

#[tokio::test]
async fn an_event_id_is_evicted_after_enough_newer_ids() {
    let server = Server::with("[limits]\nevent_ids_max = 4").await;
    let named = |name: &str| ask(name).id(name);
    let events = ["a", "b", "c", "d", "e"].map(named).to_vec();
    server.play("s", events).await;
    let again = server.play("s", vec![named("b"), named("a")]).await;
    assert_eq!(
        again.iter().map(|r| r.duplicate).collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(indexes(&again), [1, 5]);
}

#[tokio::test]
async fn the_same_id_in_another_session_is_another_event() {
    let server = Server::start().await;
    server.record(ask("x").of("s").id("e")).await;
    assert!(!server.record(ask("x").of("t").id("e")).await.duplicate);
}

// Agents

#[tokio::test]
async fn equal_calls_of_different_agents_do_not_add_up() {
    let server = Server::start().await;
    let round = || ["", "a", "b"].map(|agent| ask("x").by(agent)).to_vec();
    let results = server.play("s", [round(), round(), round()]).await;
    assert_eq!(
        verdicts(&results),
        [(6, Action::Warn), (7, Action::Warn), (8, Action::Warn)]
    );
    let agents: Vec<_> = results[6..].iter().map(|r| &*verdict(r).agent_id).collect();
    assert_eq!(agents, ["", "a", "b"]);
    assert_eq!(server.get("s").await.unwrap().agents, 3);
}

#[tokio::test]
async fn a_sub_agents_termination_ends_that_sub_agent_only() {
    let server = Server::start().await;
    let looping = server.play("s", ask("x").by("a").times(20)).await;
    assert_eq!(looping[19].action(), Action::Terminate);
    let after = server
        .play("s", vec![ask("y").by("a"), ask("y"), ask("y").by("b")])
        .await;
    assert_eq!(indexes(&after), [-1, 20, 21]);
    assert_eq!(verdict(&after[0]), verdict(&looping[19]));
    assert_eq!(verdict(&after[0]).agent_id, "a");
    assert_eq!(after[1].verdict, None);
    let session = server.get("s").await.unwrap();
    assert_ne!(session.status(), SessionStatus::Terminated);
    assert_eq!(session.termination, None);
}

#[tokio::test]
async fn a_write_by_another_agent_is_progress() {
    let server = Server::start().await;
    let write = call("write_file", r#"{"path": "a.rs", "content": "1"}"#, "ok").by("b");
    let reads = || call("read_file", r#"{"path": "a.rs"}"#, "fn main() {}").times(2);
    assert_eq!(
        verdicts(&server.play("s", [reads(), vec![write], reads()]).await),
        []
    );
    assert_eq!(
        verdicts(&server.play("t", [reads(), reads()]).await).len(),
        2
    );
}

// What counts

#[tokio::test]
async fn a_blocked_call_has_an_index_but_does_not_count() {
    let server = Server::start().await;
    let blocked = ask("x").change(|call| call.outcome = Outcome::Blocked.into());
    let events = [ask("x").times(2), blocked.times(3), ask("x").times(1)];
    let results = server.play("s", events).await;
    assert_eq!(indexes(&results), [0, 1, 2, 3, 4, 5]);
    assert_eq!(verdicts(&results), [(5, Action::Warn)]);
    let evidence = verdict(&results[5]).evidence.clone().unwrap();
    assert_eq!((evidence.count, evidence.event_indexes), (3, vec![0, 1, 5]));
}

#[tokio::test]
async fn a_users_turn_restarts_the_counts() {
    let server = Server::start().await;
    let user = vec![turn_by(Role::User, "no, the other one")];
    let results = server
        .play("s", [ask("x").times(2), user, ask("x").times(3)])
        .await;
    assert_eq!(verdicts(&results), [(5, Action::Warn)]);
}

#[tokio::test]
async fn a_system_turn_does_not_reset_counts() {
    let server = Server::start().await;
    let nudge = vec![turn_by(Role::System, "please continue")];
    let results = server
        .play("s", [ask("x").times(2), nudge, ask("x").times(1)])
        .await;
    assert_eq!(verdicts(&results), [(3, Action::Warn)]);
}

#[tokio::test]
async fn a_call_of_an_exempt_tool_has_an_index_and_does_not_count() {
    let server = Server::with("[[tools]]\nname = \"lookup_*\"\nclass = \"exempt\"").await;
    let results = server.play("s", ask("x").times(30)).await;
    assert_eq!((results[29].event_index, verdicts(&results)), (29, vec![]));
}

// Profiles

#[tokio::test]
async fn a_shadow_verdict_is_reported_and_not_acted_on() {
    let server = Server::with("[profiles.quiet]\nmode = \"shadow\"").await;
    server.open("s", "quiet", &[]).await.unwrap();
    let results = server.play("s", ask("x").times(25)).await;
    let expected = [
        (2, Action::Warn),
        (3, Action::Block),
        (19, Action::Terminate),
    ];
    assert_eq!(verdicts(&results), expected);
    assert!(results.iter().all(|r| r.action() == Action::Unspecified));
    assert!(
        [2, 3, 19]
            .iter()
            .all(|n: &usize| verdict(&results[*n]).shadow)
    );
    assert_eq!(results[24].event_index, 24);
    assert_eq!(
        server.get("s").await.unwrap().status(),
        SessionStatus::Looping
    );
}

#[tokio::test]
async fn each_session_uses_its_own_profile() {
    let server = Server::start().await;
    server.open("strict", "strict", &[]).await.unwrap();
    server.open("lenient", "lenient", &[]).await.unwrap();
    let strict = verdicts(&server.play("strict", ask("x").times(8)).await);
    assert_eq!(
        strict,
        [
            (2, Action::Warn),
            (3, Action::Block),
            (7, Action::Terminate)
        ]
    );
    let lenient = verdicts(&server.play("lenient", ask("x").times(40)).await);
    assert_eq!(lenient, [(4, Action::Warn), (5, Action::Block)]);
}

// Time

#[tokio::test]
async fn a_verdict_has_the_time_of_its_event() {
    let server = Server::start().await;
    let events = (0..3)
        .map(|n| ask("x").at(1_000_000 + n))
        .collect::<Vec<_>>();
    let results = server.play("s", events).await;
    assert_eq!(
        verdict(&results[2]).time.as_ref().unwrap().seconds,
        1_000_002
    );
}

#[tokio::test]
async fn an_operation_that_was_sent_overrides_the_table() {
    let server = Server::start().await;
    let write = ask("x").change(|call| call.operation = Operation::Write.into());
    let pattern = server.play("s", write.times(3)).await;
    let pattern = &verdict(&pattern[2]).pattern;
    assert!(pattern.starts_with("wrote x 3 times"), "{pattern}");
}
