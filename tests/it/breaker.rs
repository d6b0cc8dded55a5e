//! The circuit breaker on our own terminations, as brokers and operators see it.

use unstuck::pb::{Action, Event, Outcome};

use crate::harness::*;

#[tokio::test]
async fn an_open_breaker_turns_terminations_into_warnings_and_is_reported() {
    let server = Server::with("[breaker]\nsessions_min = 3").await;
    let mut actions = Vec::new();
    for n in 0..6 {
        let turns = turn("let me look again").times(6);
        let results = server.play(&format!("s{n}"), turns).await;
        let last = results.iter().rev().find(|result| result.verdict.is_some());
        actions.push(last.unwrap().action());
    }
    let [ended, warned] = [Action::Terminate, Action::Warn];
    assert_eq!(actions, [ended, ended, ended, warned, warned, warned]);
    // Nothing beside it says that all is well.
    assert_eq!(
        server.health().await.trim(),
        "degraded; the breaker is open: detectors warn instead of terminating"
    );
    assert_eq!(server.metric("unstuck_breaker_open").await, 1.0);
    assert_eq!(
        server.metric("unstuck_terminations_withheld_total").await,
        3.0
    );
    assert_eq!(
        server.terminate("s5").await.action(),
        ended,
        "operators may"
    );
}

/// A server whose breaker decoys have opened.
async fn server_with_open_breaker(config: &str) -> Server {
    let server = Server::with(&format!("[breaker]\nsessions_min = 20\n{config}")).await;
    for n in 0..24 {
        let turns = turn("let me look again").times(6);
        server.play(&format!("decoy{n}"), turns).await;
    }
    assert_eq!(server.metric("unstuck_breaker_open").await, 1.0);
    server
}

/// The event at which a session is terminated.
async fn ended_at(server: &Server, calls: Vec<Event>) -> Option<usize> {
    let results = server.play("real", calls).await;
    let at = results
        .iter()
        .position(|result| result.action() == Action::Terminate);
    assert_eq!(server.metric("unstuck_breaker_open").await, 1.0);
    at
}

#[tokio::test]
async fn a_real_loop_ends_though_decoys_have_opened_the_breaker() {
    let server = server_with_open_breaker("").await;
    let calls = call("fetch", r#"{"url": "http://a"}"#, "ok").times(60);
    let at = ended_at(&server, calls).await;
    assert!(at.is_some_and(|at| at < 60), "{at:?}");
}

/// The broker refuses the calls as the verdicts ask, and reports the refusals.
#[tokio::test]
async fn refused_calls_of_a_loop_end_though_the_breaker_is_open() {
    let server = server_with_open_breaker("").await;
    let fetch = || call("fetch", r#"{"url": "http://a"}"#, "ok");
    let refused = fetch().change(|call| {
        call.outcome = Outcome::Blocked.into();
        call.result = Some("refused".to_owned());
    });
    let mut calls = fetch().times(4);
    calls.extend(refused.times(56));
    let at = ended_at(&server, calls).await;
    assert!(at.is_some_and(|at| at < 60), "{at:?}");
}

#[tokio::test]
async fn loops_that_alternate_end_though_the_breaker_is_open() {
    let server = server_with_open_breaker("").await;
    let rounds = (0..8).flat_map(|n| {
        let args = format!(r#"{{"url": "http://{}"}}"#, n % 4);
        call("fetch", &args, "ok").times(22)
    });
    let at = ended_at(&server, rounds.collect()).await;
    assert!(at.is_some_and(|at| at < 66), "{at:?}");
}

#[tokio::test]
async fn a_budget_ends_a_session_though_the_breaker_is_open() {
    let server = server_with_open_breaker("[detect.budget]\nevents_max = 40").await;
    let calls = (0..60).map(|n| call("fetch", &format!(r#"{{"n": {n}}}"#), &format!("page {n}")));
    let at = ended_at(&server, calls.collect()).await;
    assert_eq!(at, Some(39));
}
