//! The circuit breaker on our own terminations, as brokers and operators see it.

use unstuck::pb::Action;

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
    assert!(server.health().await.contains("the breaker is open"));
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
