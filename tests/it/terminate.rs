//! A termination reaches every stream of the session once, and stays in force.

use std::collections::BTreeSet;

use tonic::Code;
use unstuck::pb::{
    self, Action, SessionStatus, StreamDeltasResponse, StreamEventsResponse, Verdict,
};

use crate::harness::*;

/// Ends a session after two equal calls: the shortest way to a detector's
/// TERMINATE.
const LOW_LIMITS: &str = "[detect.exact_repeat]\ncount = 2\nterminate_after = 2";

/// A client with this window buffers a few pushes; the server must queue the rest
/// until they are read.
const SMALL_WINDOW_BYTES: u32 = 1_024;

/// The session of a push, and its verdict.
fn pushed(response: StreamEventsResponse) -> (String, Verdict) {
    let StreamEventsResponse { sequence, results } = response;
    let [result] = <[_; 1]>::try_from(results).unwrap();
    assert_eq!(
        (sequence, result.event_index, result.action()),
        (0, -1, Action::Terminate)
    );
    (result.session_id, result.verdict.unwrap())
}

fn delta_pushed(response: StreamDeltasResponse) -> (String, Verdict) {
    assert_eq!(response.action(), Action::Terminate);
    (response.session_id, response.verdict.unwrap())
}

/// A stream that has carried these sessions. No detector finds a loop in an empty turn.
async fn stream_with(server: &Server, sessions: &[&str]) -> EventStream {
    let mut stream = server.events().await;
    let events = sessions.iter().map(|session| turn("").of(session));
    stream.ask(batch(1, events)).await;
    stream
}

async fn delta_stream_with(server: &Server, sessions: &[&str]) -> DeltaStream {
    let mut stream = server.deltas().await;
    for session in sessions {
        stream.ask(pieces([last_delta(session, "", "")])).await;
    }
    stream
}

#[tokio::test]
async fn an_operators_termination_is_pushed_to_every_stream_of_the_session_and_to_no_other() {
    let server = Server::start().await;
    let (mut events, mut deltas) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        events.push(stream_with(&server, &["s", "fence"]).await);
        deltas.push(delta_stream_with(&server, &["s", "fence"]).await);
    }
    let mut other_events = stream_with(&server, &["fence"]).await;
    let mut other_deltas = delta_stream_with(&server, &["fence"]).await;

    let first = ("s".to_owned(), server.terminate("s").await);
    let fence = ("fence".to_owned(), server.terminate("fence").await);

    for stream in &mut events {
        assert_eq!(pushed(stream.receive().await), first);
        // The two are adjacent, so the first was pushed once.
        assert_eq!(pushed(stream.receive().await), fence);
    }
    for stream in &mut deltas {
        assert_eq!(delta_pushed(stream.receive().await), first);
        assert_eq!(delta_pushed(stream.receive().await), fence);
    }
    assert_eq!(pushed(other_events.receive().await), fence);
    assert_eq!(delta_pushed(other_deltas.receive().await), fence);
}

#[tokio::test]
async fn a_stream_that_reads_late_gets_every_termination() {
    let server = Server::start().await;
    let mut stream = events_of(server.detection_with_window(SMALL_WINDOW_BYTES).await).await;
    let sessions: Vec<String> = (0..2_000).map(|n| format!("s{n}")).collect();
    for (n, some) in (1..).zip(sessions.chunks(10)) {
        stream
            .ask(batch(n, some.iter().map(|s| ask("x").of(s))))
            .await;
    }
    for session in &sessions {
        server.terminate(session).await;
    }
    let mut terminated = BTreeSet::new();
    for _ in &sessions {
        let (session, _) = pushed(stream.receive().await);
        assert!(
            terminated.insert(session.clone()),
            "{session} was pushed twice"
        );
    }
    assert_eq!(terminated, sessions.iter().cloned().collect());
    server.terminate("nobody-carried-it").await;
    assert_eq!(
        stream.ask(batch(1, [ask("x").of("fence")])).await.sequence,
        1
    );
}

#[tokio::test]
async fn a_stream_that_reads_late_gets_every_termination_of_sub_agents() {
    let server = Server::with(LOW_LIMITS).await;
    let mut stream = events_of(server.detection_with_window(SMALL_WINDOW_BYTES).await).await;
    let sessions: Vec<String> = (0..30).map(|n| format!("s{n}")).collect();
    let agents: Vec<String> = (0..60).map(|n| format!("a{n}")).collect();
    for (n, session) in (1..).zip(&sessions) {
        stream.ask(batch(n, [ask("x").of(session)])).await;
    }
    for session in &sessions {
        let looping = agents.iter().flat_map(|agent| ask("x").by(agent).times(2));
        server.play(session, looping.collect::<Vec<_>>()).await;
    }
    let mut terminated = BTreeSet::new();
    for _ in 0..sessions.len() * agents.len() {
        let (session, verdict) = pushed(stream.receive().await);
        assert!(terminated.insert((session, verdict.agent_id)));
    }
}

#[tokio::test]
async fn a_detectors_termination_is_pushed_to_the_other_streams_and_not_repeated_on_its_own() {
    let server = Server::with(LOW_LIMITS).await;
    let mut own = stream_with(&server, &["s", "fence"]).await;
    let mut other = stream_with(&server, &["fence"]).await;
    let mut deltas = delta_stream_with(&server, &["s", "fence"]).await;
    other.ask(batch(2, [turn("").of("s")])).await;

    let answer = own.ask(batch(2, ask("x").of("s").times(2))).await;
    let verdict = ("s".to_owned(), verdict(&answer.results[1]).clone());
    let fence = ("fence".to_owned(), server.terminate("fence").await);

    assert_eq!(pushed(own.receive().await), fence);
    assert_eq!(pushed(other.receive().await), verdict);
    assert_eq!(delta_pushed(deltas.receive().await), verdict);
    assert_eq!(delta_pushed(deltas.receive().await), fence);
}

#[tokio::test]
async fn everything_sent_to_a_terminated_session_is_answered_with_its_verdict() {
    let server = Server::start().await;
    server.record(ask("x").of("s").id("e")).await;
    let verdict = Some(server.terminate("s").await);
    for event in [ask("x"), turn("hello"), ask("x").id("e"), ask("x").by("a")] {
        let result = server.record(event.of("s")).await;
        assert_eq!(
            (result.event_index, result.action()),
            (-1, Action::Terminate)
        );
        assert_eq!(result.verdict, verdict);
    }
    let mut stream = server.deltas().await;
    let answer = stream.ask(pieces([piece("s", "t", "let me")])).await;
    assert_eq!(
        (answer.action(), answer.end_of_turn),
        (Action::Terminate, false)
    );
    assert_eq!(answer.verdict, verdict);
    assert_eq!(server.get("s").await.unwrap().events, 1);
}

#[tokio::test]
async fn a_termination_in_a_response_is_not_pushed_again() {
    let server = Server::start().await;
    let mut stream = stream_with(&server, &["fence"]).await;
    server.terminate("s").await;
    let answer = stream.ask(batch(2, [ask("x").of("s")])).await;
    assert_eq!(
        (answer.sequence, answer.results[0].action()),
        (2, Action::Terminate)
    );
    server.terminate("fence").await;
    assert_eq!(pushed(stream.receive().await).0, "fence");
}

#[tokio::test]
async fn an_unknown_session_is_terminated_before_its_first_event() {
    let server = Server::start().await;
    let verdict = server.terminate("s").await;
    assert_eq!((&*verdict.detector, verdict.event_index), ("operator", -1));
    assert_eq!(
        server.record(ask("x").of("s")).await.verdict,
        Some(verdict.clone())
    );
    let session = server.get("s").await.unwrap();
    assert_eq!(
        (session.status(), session.events),
        (SessionStatus::Terminated, 0)
    );
    assert_eq!(session.termination, Some(verdict));
}

#[tokio::test]
async fn a_termination_tells_the_status_that_the_session_had() {
    let server = Server::start().await;
    server.play("live", ask("x")).await;
    server.play("over", ask("x")).await;
    server.end("over").await.unwrap();
    for (session, previous) in [
        ("unknown", SessionStatus::Unspecified),
        ("live", SessionStatus::Active),
        ("over", SessionStatus::Ended),
        ("live", SessionStatus::Terminated),
    ] {
        let request = pb::TerminateSessionRequest {
            session_id: session.to_owned(),
            reason: "it is going in circles".to_owned(),
        };
        let answer = within(server.sessions.clone().terminate_session(request)).await;
        let answer = answer.unwrap().into_inner();
        assert_eq!(answer.previous_status(), previous, "{session}");
    }
}

#[tokio::test]
async fn a_second_termination_returns_the_first_verdict() {
    let server = Server::start().await;
    let mut stream = stream_with(&server, &["s", "fence"]).await;
    let first = server.terminate("s").await;
    assert_eq!(server.terminate("s").await, first);
    server.terminate("fence").await;
    assert_eq!(pushed(stream.receive().await).1, first);
    assert_eq!(pushed(stream.receive().await).0, "fence");
}

#[tokio::test]
async fn a_reset_session_continues_and_a_later_termination_is_pushed_again() {
    let server = Server::start().await;
    let mut stream = stream_with(&server, &["s"]).await;
    let first = server.terminate("s").await;
    assert_eq!(pushed(stream.receive().await).1, first);
    server.reset("s").await.unwrap();
    let answer = stream.ask(batch(2, [ask("x").of("s")])).await;
    assert_eq!(
        (answer.results[0].event_index, answer.results[0].action()),
        (0, Action::Unspecified)
    );
    let second = server.terminate("s").await;
    assert_ne!(second.verdict_id, first.verdict_id);
    assert_eq!(pushed(stream.receive().await).1, second);
}

#[tokio::test]
async fn a_reset_clears_the_termination_of_a_sub_agent() {
    let server = Server::with(LOW_LIMITS).await;
    server.play("s", ask("x").by("a").times(2)).await;
    server.reset("s").await.unwrap();
    assert_eq!(server.record(ask("x").by("a").of("s")).await.event_index, 0);
}

#[tokio::test]
async fn a_terminated_session_that_ends_stays_terminated() {
    let server = Server::start().await;
    let verdict = server.terminate("s").await;
    assert_eq!(
        server.end("s").await.unwrap().status(),
        SessionStatus::Terminated
    );
    assert_eq!(server.record(ask("x").of("s")).await.verdict, Some(verdict));
}

#[tokio::test]
async fn a_terminated_session_cannot_be_opened() {
    let server = Server::start().await;
    server.terminate("s").await;
    let status = server.open("s", "", &[]).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn terminations_are_counted_by_cause() {
    let server = Server::with(LOW_LIMITS).await;
    server.terminate("s").await;
    server.terminate("s").await;
    server.play("t", ask("x").times(3)).await;
    let total = |cause: &str| format!("unstuck_sessions_terminated_total{{cause=\"{cause}\"}}");
    assert_eq!(server.metric(&total("operator")).await, 1.0);
    assert_eq!(server.metric(&total("exact_repeat")).await, 1.0);
    assert_eq!(
        server
            .metric("unstuck_sessions{status=\"terminated\"}")
            .await,
        2.0
    );
}

#[tokio::test]
async fn beyond_stream_sessions_max_a_termination_comes_with_the_next_answer_and_is_not_pushed() {
    let server = Server::with("[limits]\nstream_sessions_max = 2").await;
    let mut stream = stream_with(&server, &["a", "b"]).await;
    // Now another session is the least recently active.
    stream.ask(batch(3, [ask("x").of("a")])).await;
    stream.ask(batch(4, [ask("x").of("c")])).await;
    let evicted = "unstuck_evicted_entries_total{kind=\"stream_session\"}";
    assert_eq!(server.metric(evicted).await, 1.0);
    for session in ["b", "a", "c"] {
        server.terminate(session).await;
    }
    for session in ["a", "c"] {
        assert_eq!(pushed(stream.receive().await).0, session);
    }
    let answer = stream.ask(batch(5, [ask("x").of("b")])).await;
    assert_eq!(answer.sequence, 5);
    assert_eq!(answer.results[0].action(), Action::Terminate);
}
