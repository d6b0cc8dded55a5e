//! Sessions that go on after their termination.

use unstuck::pb::{self, Action, EventResult, ListVerdictsRequest, Verdict};

use crate::{
    harness::*,
    lifecycle::{Running, directory, output, text, unstuck},
    notify::{Receiver, entry},
};

const EVENTS: &str = "unstuck_disobeyed_events_total";
const SESSIONS: &str = "unstuck_disobeying_sessions_total";
const COST: &str = "unstuck_disobeyed_cost_usd_total";

/// Terminates a session or sub-agent after two equal calls.
const HASTY: &str = "[detect.exact_repeat]\ncount = 2\nterminate_after = 2\n";

fn late() -> pb::Event {
    ask("colour").costing(100, 20, 0.03)
}

async fn disobeyed(server: &Server, session: &str) -> Option<pb::Wasted> {
    server.get(session).await.unwrap().disobeyed
}

/// Sends an event until the first one counts: those of two seconds were under way.
async fn go_on(server: &Server, event: &pb::Event) -> pb::Wasted {
    loop {
        server.record(event.clone()).await;
        if let Some(wasted) = disobeyed(server, &event.session_id).await {
            return wasted;
        }
    }
}

async fn reports(server: &Server) -> Vec<Verdict> {
    let log = server.audit(ListVerdictsRequest::default()).await.unwrap();
    let of_reports = log.into_iter();
    of_reports
        .filter(|verdict| verdict.pattern.starts_with("went on after termination"))
        .collect()
}

#[tokio::test]
async fn a_session_that_goes_on_is_counted_and_reported_at_1_10_and_100_events() {
    let mut receiver = Receiver::start(&[]).await;
    let toml = entry("kill", receiver.address, "min_action = \"terminate\"\n");
    let dir = directory(&[("unstuck.toml", &toml)]);
    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    let mut stream = server.events().await;
    stream.ask(batch(1, [ask("size").of("s")])).await;
    let termination = server.terminate("s").await;
    // The termination is pushed.
    assert_eq!(
        stream.receive().await.results[0].action(),
        Action::Terminate
    );
    assert_eq!(receiver.next().await.json()["type"], "session.terminated");

    let first = go_on(&server, &late().of("s")).await;
    assert_eq!((first.events, first.tokens), (1, 120));
    for _ in 0..99 {
        let result: EventResult = server.record(late().of("s")).await;
        assert_eq!(result.verdict.unwrap().verdict_id, termination.verdict_id);
    }
    let all = disobeyed(&server, "s").await.unwrap();
    assert_eq!((all.events, all.tokens), (100, 12_000));
    assert!((all.cost_usd - 3.0).abs() < 1e-9);
    assert_eq!(server.metric(EVENTS).await, 100.0);
    assert_eq!(server.metric(SESSIONS).await, 1.0);
    assert!((server.metric(COST).await - 3.0).abs() < 1e-9);
    // It is listed before sessions that only work.
    server.play("busy", vec![ask("a"), ask("b")]).await;
    let address = server.grpc.to_string();
    let list = output(unstuck(
        dir.path(),
        &["sessions", "--server", &address],
        &[],
    ));
    let list = text(&list.stdout).to_owned();
    let line_of = |id: &str| {
        list.lines()
            .position(|line| line.contains(&format!(" {id} ")))
    };
    assert!(line_of("s") < line_of("busy"), "{list}");
    assert!(list.contains("1 went on after termination"), "{list}");
    let terminated = "unstuck_sessions_terminated_total{cause=\"operator\"}";
    assert_eq!(server.metric(terminated).await, 1.0);

    for (events, cost) in [
        ("1 event", "0.03"),
        ("10 events", "0.30"),
        ("100 events", "3.00"),
    ] {
        let event = receiver.next().await.json();
        assert_eq!(event["type"], "session.disobeyed");
        assert_eq!(event["subject"], "s");
        let verdict = &event["data"]["verdict"];
        assert_eq!(verdict["action"], "ACTION_TERMINATE");
        assert_eq!(verdict["detector"], "operator");
        let expected = format!("went on after termination: {events}, ${cost}");
        assert_eq!(verdict["pattern"], expected);
    }
    // Nothing is pushed again: the next answer is that to the next event.
    let answer = stream.ask(batch(2, [late().of("s")])).await;
    assert_eq!(answer.sequence, 2);
    assert_eq!(reports(&server).await.len(), 3);

    // Killed.
    drop(running);
    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    assert_eq!(disobeyed(&server, "s").await.unwrap().events, 100);
    assert_eq!(reports(&server).await.len(), 3);
    server.record(late().of("s")).await;
    assert_eq!(disobeyed(&server, "s").await.unwrap().events, 101);

    server.reset("s").await.unwrap();
    server.record(late().of("s")).await;
    assert_eq!(disobeyed(&server, "s").await, None);
    drop(running);
    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    server.terminate("s").await;
    assert_eq!(disobeyed(&server, "s").await, None);
}

#[tokio::test]
async fn a_sub_agent_that_goes_on_is_counted_and_events_sent_again_are_not() {
    let server = Server::with(HASTY).await;
    let of_helper = |event: pb::Event, event_id: &str| pb::Event {
        agent_id: "helper".to_owned(),
        event_id: event_id.to_owned(),
        ..event.of("s")
    };
    for n in 0..2 {
        let event = of_helper(late(), &format!("e{n}"));
        server.record(event).await;
    }
    let first = go_on(&server, &of_helper(late(), "")).await;
    assert_eq!(first.events, 1);
    // The broker lost the answer to an event from before, and sends it again.
    server.record(of_helper(late(), "e0")).await;
    assert_eq!(disobeyed(&server, "s").await.unwrap().events, 1);
    // The main agent was not terminated.
    server.record(ask("size").of("s")).await;
    assert_eq!(disobeyed(&server, "s").await.unwrap().events, 1);
    // A streamed text counts once.
    let mut deltas = server.deltas().await;
    let of_helper = |delta: pb::Delta| pb::Delta {
        agent_id: "helper".to_owned(),
        ..delta
    };
    let texts = [
        of_helper(piece("s", "t", "one ")),
        of_helper(last_delta("s", "t", "two")),
    ];
    for delta in texts {
        deltas.ask(pieces([delta])).await;
    }
    assert_eq!(disobeyed(&server, "s").await.unwrap().events, 2);
    let reports = reports(&server).await;
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].agent_id, "helper");
    assert_eq!(reports[0].detector, "exact_repeat");
}
