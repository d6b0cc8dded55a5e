//! What operators say of verdicts, and the texts of the audit log.

use std::path::Path;

use serde_json::json;
use tonic::{Code, Status};
use unstuck::pb::{self, ListVerdictsRequest, Rating, Verdict};

use crate::{
    console,
    harness::*,
    lifecycle::{Running, directory, unstuck},
};

const RIGHT: &str = "unstuck_rated_verdicts{detector=\"exact_repeat\",rating=\"right\"}";
const FALSE_ALARM: &str =
    "unstuck_rated_verdicts{detector=\"exact_repeat\",rating=\"false_alarm\"}";

/// Without this the store is in memory.
fn store_in(dir: &Path) -> String {
    format!("[store]\ndir = {dir:?}\n")
}

async fn rate(
    server: &Server,
    verdict_id: &str,
    rating: Rating,
    reason: &str,
) -> Result<Verdict, Status> {
    let request = pb::RateVerdictRequest {
        verdict_id: verdict_id.to_owned(),
        rating: rating.into(),
        reason: reason.to_owned(),
    };
    let answer = within(server.sessions.clone().rate_verdict(request)).await?;
    Ok(answer.into_inner().verdict.unwrap())
}

/// Plays a loop and returns its verdict.
async fn looping(server: &Server, session: &str) -> Verdict {
    let results = server.play(session, ask("colour").times(3)).await;
    verdict(&results[2]).clone()
}

async fn rated(server: &Server) -> Vec<Verdict> {
    let request = ListVerdictsRequest {
        rated_only: true,
        ..Default::default()
    };
    server.audit(request).await.unwrap()
}

#[tokio::test]
async fn a_rating_is_shown_counted_and_replaced_by_a_later_one() {
    let dir = tempfile::tempdir().unwrap();
    for toml in ["", &store_in(dir.path())] {
        let server = Server::with(toml).await;
        let id = looping(&server, "s").await.verdict_id;
        looping(&server, "t").await;
        assert!(rated(&server).await.is_empty());
        let answer = rate(&server, &id, Rating::FalseAlarm, "it was polling")
            .await
            .unwrap();
        assert_eq!(answer.verdict_id, id);
        let feedback = answer.feedback.unwrap();
        assert_eq!(feedback.rating(), Rating::FalseAlarm);
        assert_eq!(feedback.reason, "it was polling");
        assert_eq!(feedback.operator, "unknown");
        assert!(feedback.time.is_some());
        assert_eq!(server.metric(FALSE_ALARM).await, 1.0);

        rate(&server, &id, Rating::Right, "").await.unwrap();
        let found = rated(&server).await;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].verdict_id, id);
        let feedback = found[0].feedback.as_ref().unwrap();
        assert_eq!((feedback.rating(), &*feedback.reason), (Rating::Right, ""));
        assert_eq!(server.metric(FALSE_ALARM).await, 0.0);
        assert_eq!(server.metric(RIGHT).await, 1.0);

        // Both are in the audit log, as what an operator did.
        let of_operators = ListVerdictsRequest {
            detector: "operator".to_owned(),
            ..Default::default()
        };
        let log = server.audit(of_operators).await.unwrap();
        let patterns: Vec<&str> = log.iter().map(|verdict| &*verdict.pattern).collect();
        let called = format!("an operator called the verdict {id}");
        assert_eq!(
            patterns,
            [format!("{called} a false alarm"), format!("{called} right")]
        );
        assert_eq!(log[0].session_id, "s");
        assert_eq!(log[0].also, ["exact_repeat"]);
    }
}

#[tokio::test]
async fn what_cannot_be_rated_is_refused() {
    let server = Server::start().await;
    let id = looping(&server, "s").await.verdict_id;
    let refused = |rated: Result<Verdict, Status>| rated.unwrap_err();
    assert_invalid(
        &refused(rate(&server, "", Rating::Right, "").await),
        "verdict_id",
    );
    assert_invalid(
        &refused(rate(&server, "7", Rating::Right, "").await),
        "verdict_id",
    );
    let unspecified = rate(&server, &id, Rating::Unspecified, "").await;
    assert_invalid(&refused(unspecified), "rating");
    let long = rate(&server, &id, Rating::Right, &"x".repeat(1_025)).await;
    assert_invalid(&refused(long), "reason");
    for unknown in [
        "00000000-0000-7000-8000-000000000001",
        "ffffffff-ffff-7fff-bfff-ffffffffffff",
    ] {
        let refused = refused(rate(&server, unknown, Rating::Right, "").await);
        assert_eq!(refused.code(), Code::NotFound, "{refused:?}");
    }
    let terminated = server.terminate("s").await.verdict_id;
    let refused = refused(rate(&server, &terminated, Rating::Right, "").await);
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(rated(&server).await.is_empty());
}

#[tokio::test]
async fn a_rating_survives_a_kill() {
    let dir = directory(&[]);
    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    let id = looping(&server, "s").await.verdict_id;
    let wrong = rate(&server, &id, Rating::FalseAlarm, "polling").await;
    wrong.unwrap();
    // Killed.
    drop(running);

    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    let found = rated(&server).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].feedback.as_ref().unwrap().reason, "polling");
    // The counts are read at the start.
    server.wait_for_metric(FALSE_ALARM, 1.0).await;
    rate(&server, &id, Rating::Right, "").await.unwrap();
    assert_eq!(server.metric(FALSE_ALARM).await, 0.0);
}

#[tokio::test]
async fn the_audit_log_has_texts_while_they_are_in_memory() {
    let dir = directory(&[]);
    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    let looping = looping(&server, "s").await;
    assert!(looping.pattern.contains("colour"), "{}", looping.pattern);
    let listed = server.audit(ListVerdictsRequest::default()).await.unwrap();
    assert_eq!(listed[0].pattern, looping.pattern);
    assert_eq!(listed[0].members, looping.members);
    assert!(listed[0].durable);
    // Killed.
    drop(running);

    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    let listed = server.audit(ListVerdictsRequest::default()).await.unwrap();
    assert!(listed[0].pattern.starts_with("exact_repeat: count 3"));
}

/// The latest verdicts are not in memory after a restart, those of a stored session are.
#[tokio::test]
async fn the_audit_log_has_the_texts_of_sessions_that_a_restart_restored() {
    let dir = directory(&[]);
    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    let looping = looping(&server, "s").await;
    running.stop().await;

    let running = Running::start(unstuck(dir.path(), &["serve"], &[]));
    let server = running.server().await;
    let listed = server.audit(ListVerdictsRequest::default()).await.unwrap();
    assert_eq!(listed[0].pattern, looping.pattern);
    assert_eq!(listed[0].correction, looping.correction);
}

#[tokio::test]
async fn precision_counts_each_rated_verdict_once_by_its_week() {
    let dir = tempfile::tempdir().unwrap();
    for toml in ["", &store_in(dir.path())] {
        let server = Server::with(toml).await;
        let precision = async || console::post_json(&server, "precision", json!({})).await;
        assert_eq!(precision().await, json!({"detectors": {}}));
        let ids = [
            looping(&server, "a").await.verdict_id,
            looping(&server, "b").await.verdict_id,
        ];
        // The second rating of a verdict replaces the first.
        for (id, rating) in [
            (&ids[0], Rating::FalseAlarm),
            (&ids[0], Rating::Right),
            (&ids[1], Rating::FalseAlarm),
        ] {
            rate(&server, id, rating, "").await.unwrap();
        }
        let none = json!({"right": 0, "all": 0});
        let mut weeks = vec![none; 8];
        weeks[7] = json!({"right": 1, "all": 2});
        let expected = json!({"detectors": {"exact_repeat": weeks}});
        assert_eq!(precision().await, expected, "{toml}");
    }
}
