//! `unstuck rate`, and the ratings as labels for `unstuck eval`.

use std::{net::SocketAddr, process::Output};

use serde_json::Value;
use unstuck::pb;

use crate::{
    fake::FakeService,
    harness::{Build, Server, call, verdict, within},
    lifecycle::{directory, text, unstuck},
};

async fn run(server: SocketAddr, args: &[&str]) -> Output {
    run_with(server, args, &[]).await
}

async fn run_with(server: SocketAddr, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let here = directory(&[]);
    let address = server.to_string();
    let ours = [("UNSTUCK_SERVER", address.as_str()), ("USER", "kim")];
    let mut command = unstuck(here.path(), args, &[&ours, variables].concat());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    within(output).await.unwrap()
}

/// Makes a session loop, and returns the verdict's id.
async fn warn(server: &Server, session: &str) -> String {
    let read = call("read_file", r#"{"path": "a.rs"}"#, "fn main() {}");
    let results = server.play(session, read.times(3)).await;
    verdict(&results[2]).verdict_id.clone()
}

#[tokio::test]
async fn a_verdict_is_rated_and_its_rating_is_listed() {
    let server = Server::start().await;
    let id = warn(&server, "s").await;
    let rate = [
        "rate",
        &id,
        "false-alarm",
        "--reason",
        "the file was changed by hand",
    ];
    let rated = run(server.grpc, &rate).await;
    let line = format!("rated {id} as false alarm: read_loop in s\n");
    assert_eq!(text(&rated.stdout), line, "{rated:?}");
    let listed = run(server.grpc, &["verdicts", "--rated", "--ids"]).await;
    let listed = text(&listed.stdout);
    assert!(
        listed.starts_with(&id) && listed.contains("(rated false alarm)"),
        "{listed}"
    );
    let json = ["rate", &id, "right", "--output", "json"];
    let rated: Value = serde_json::from_slice(&run(server.grpc, &json).await.stdout).unwrap();
    assert_eq!(rated["feedback"]["rating"], "RATING_RIGHT");
    assert_eq!(rated["feedback"]["operator"], "kim");
    // The page of the session has the id to rate.
    let page = run(server.grpc, &["session", "s"]).await;
    assert!(text(&page.stdout).contains(&id), "{page:?}");
    for (id, rating, code) in [
        ("0199d2a4-6f6e-7c11-8a5e-3f0f5a1c2b3d", "right", 3),
        ("nonsense", "right", 2),
        (&*id, "perhaps", 2),
    ] {
        let failed = run(server.grpc, &["rate", id, rating]).await;
        assert_eq!(failed.status.code(), Some(code), "{failed:?}");
    }
}

#[tokio::test]
async fn ratings_are_written_as_labels_that_eval_reads() {
    let server = Server::start().await;
    for (session, rating) in [("loop", "right"), ("fine", "false-alarm")] {
        let id = warn(&server, session).await;
        let rated = run(server.grpc, &["rate", &id, rating]).await;
        assert_eq!(rated.status.code(), Some(0), "{rated:?}");
    }
    warn(&server, "not-rated").await;
    let event = |session: &str| {
        format!(
            r#"{{"session_id": "{session}", "tool_call": {{"tool": "read_file", "args_json": "{{\"path\": \"a.rs\"}}", "outcome": "OUTCOME_OK", "result": "fn main() {{}}"}}}}"#
        ) + "\n"
    };
    let traces = event("loop").repeat(3) + &event("fine").repeat(3);
    let here = directory(&[("traces.ndjson", &traces)]);
    let [labels, traces] = ["labels.jsonl", "traces.ndjson"].map(|file| here.path().join(file));
    let [labels, traces] = [&labels, &traces].map(|path| path.to_str().unwrap());
    let written = run(server.grpc, &["verdicts", "--labels", labels]).await;
    let note = format!("unstuck: 2 labels from 2 rated verdicts in {labels}\n");
    assert_eq!(text(&written.stderr), note);
    let lines = std::fs::read_to_string(labels).unwrap();
    let objects: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (&objects[0]["session_id"], &objects[0]["loop"]),
        (&"fine".into(), &false.into())
    );
    assert_eq!(
        (&objects[1]["session_id"], &objects[1]["loop"]),
        (&"loop".into(), &true.into())
    );
    assert_eq!(objects[1]["first_loop_event"], 0);
    assert_eq!(objects[1]["kind"], "read_loop");
    assert_eq!(objects[1]["labelled_by"], "kim");
    // The team measures with it: one true alarm, one false.
    let measured = run(server.grpc, &["eval", traces, "--labels", labels]).await;
    assert_eq!(measured.status.code(), Some(0), "{measured:?}");
    assert!(text(&measured.stdout).contains("fine"), "{measured:?}");
    let piped = run(server.grpc, &["verdicts", "--labels", "-"]).await;
    assert_eq!(text(&piped.stdout), lines);
}

#[tokio::test]
async fn a_session_that_went_on_and_its_action_in_force_are_shown() {
    let fake = FakeService::default();
    let session = pb::Session {
        session_id: "s".to_owned(),
        status: pb::SessionStatus::Terminated.into(),
        disobeyed: Some(pb::Wasted {
            events: 100,
            cost_usd: 3.0,
            ..Default::default()
        }),
        ..Default::default()
    };
    let page = pb::ListSessionsResponse {
        sessions: vec![session],
        ..Default::default()
    };
    fake.set_session_pages(vec![page.clone(), page.clone(), page]);
    let service = fake.start().await;
    let listed = run(service, &["sessions"]).await;
    assert!(text(&listed.stdout).contains("terminated !"), "{listed:?}");
    let line = "went on after termination: 100 events, $3.00";
    let shown = run(service, &["session", "s"]).await;
    assert!(
        text(&shown.stdout).lines().any(|it| it == line),
        "{shown:?}"
    );
    let red = run_with(service, &["session", "s"], &[("CLICOLOR_FORCE", "1")]).await;
    let red_line = format!("\u{1b}[31m{line}\u{1b}[0m");
    assert!(text(&red.stdout).contains(&red_line), "{red:?}");
    let server = Server::start().await;
    let read = call("read_file", r#"{"path": "a.rs"}"#, "fn main() {}");
    server.play("s", read.times(4)).await;
    let page = run(server.grpc, &["session", "s"]).await;
    let page = text(&page.stdout);
    assert!(page.contains("in force  BLOCK since 20"), "{page}");
    assert!(page.contains("Z, 1 call refused"), "{page}");
}
