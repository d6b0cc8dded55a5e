//! The command line against a running service, as a person or a script uses it.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use tonic::Status;
use unstuck::pb::{self, SessionStatus};

use crate::{
    fake::FakeService,
    harness::{Build, CommandOutput, Server, ask, call, within},
};

impl CommandOutput {
    /// The first words of each line.
    fn first_words(&self, count: usize) -> Vec<String> {
        let words = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().take(count).collect();
            words.join(" ")
        };
        self.out.lines().map(words).collect()
    }
}

fn command(server: SocketAddr, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unstuck"));
    let ours = |key: &std::ffi::OsString| key.to_string_lossy().starts_with("UNSTUCK");
    for (key, _) in std::env::vars_os().filter(|(key, _)| ours(key)) {
        command.env_remove(key);
    }
    command
        .args(args)
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE")
        .env("UNSTUCK_SERVER", server.to_string())
        .env("USER", "kim")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the command; the service runs in this process.
async fn run_command(mut command: Command) -> CommandOutput {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = within(output).await.unwrap();
    output.into()
}

pub async fn unstuck(server: SocketAddr, args: &[&str]) -> CommandOutput {
    run_command(command(server, args)).await
}

async fn status(server: &Server, session: &str) -> SessionStatus {
    server.get(session).await.unwrap().status()
}

#[tokio::test]
async fn sessions_are_listed_the_worst_first() {
    let server = Server::start().await;
    server.play("a-fine", ask("x")).await;
    server
        .open("b-warned", "", &[("team", "web")])
        .await
        .unwrap();
    server.play("b-warned", ask("x").times(3)).await;
    server.play("c-blocked", ask("x").times(4)).await;
    server.play("d-over", ask("x").times(20)).await;
    let ran = unstuck(server.grpc, &["sessions"]).await.ends_with(0);
    let expected = [
        "STATUS SESSION",
        "looping c-blocked",
        "looping b-warned",
        "active a-fine",
        "terminated d-over",
        "",
        "4 sessions:",
    ];
    assert_eq!(ran.first_words(2), expected);
    let row = ran.out.lines().nth(2).unwrap();
    for shown in ["team=web", "exact_repeat", "WARN", "▁▁▄"] {
        assert!(row.contains(shown), "{row}");
    }
    let ran = unstuck(server.grpc, &["sessions", "--label", "team=web"]).await;
    assert_eq!(ran.first_words(2)[1], "looping b-warned");
    let args = ["sessions", "--status", "looping", "--output", "json"];
    let objects = unstuck(server.grpc, &args).await.ends_with(0).objects();
    let ids: Vec<_> = objects.iter().map(|it| it["session_id"].clone()).collect();
    assert_eq!(ids, ["b-warned", "c-blocked"]);
    assert!(objects[0]["create_time"].as_str().unwrap().ends_with('Z'));
}

#[tokio::test]
async fn all_pages_are_listed() {
    let fake = FakeService::default();
    let page = |id: &str, next: &str| pb::ListSessionsResponse {
        sessions: vec![pb::Session {
            session_id: id.to_owned(),
            ..Default::default()
        }],
        next_page_token: next.to_owned(),
        ..Default::default()
    };
    fake.set_session_pages(vec![page("a", "t1"), page("b", "")]);
    let ran = unstuck(fake.start().await, &["sessions"])
        .await
        .ends_with(0);
    assert_eq!(ran.first_words(2)[1..3], ["unknown a", "unknown b"]);
    assert!(fake.requests()[1].contains(r#""page_token":"t1""#));
}

#[tokio::test]
async fn sessions_are_sorted_searched_and_limited() {
    let server = Server::start().await;
    // A loop that cost more is the later one, so that no two orders are equal.
    for (session, team, calls, cost) in [
        ("c", "web", 3, 0.1),
        ("a", "ops", 4, 0.2),
        ("b", "Web", 1, 0.0),
    ] {
        server.open(session, "", &[("team", team)]).await.unwrap();
        let calls = ask("x").costing(100, 10, cost).times(calls);
        server.play(session, calls).await;
    }
    let list = async |args: &[&str]| {
        let args = [&["sessions"], args].concat();
        let ran = unstuck(server.grpc, &args).await.ends_with(0);
        let rows = ran.first_words(2).into_iter().skip(1);
        let ids = rows.map_while(|row| row.split_once(' ').map(|(_, id)| id.to_owned()));
        (ids.collect::<Vec<_>>().join(" "), ran.out)
    };
    for (args, ids) in [
        (&[] as &[&str], "a c b"),
        (&["--sort", "id"], "a b c"),
        (&["--sort", "cost"], "a c b"),
        (&["--sort", "age"], "c a b"),
        (&["--sort", "last-seen"], "b a c"),
        (&["--search", "WEB"], "c b"),
        (&["--search", "web exact_repeat"], "c"),
        (&["--sort", "age", "--limit", "2"], "c a"),
    ] {
        assert_eq!(list(args).await.0, ids, "{args:?}");
    }
    let (_, out) = list(&["--limit", "1"]).await;
    let summary = "3 sessions: 2 looping, 1 active. Wasted in loops: 7 events";
    assert!(
        out.contains(summary) && out.contains("Only the first 1 are shown."),
        "{out}"
    );
    let args = [
        "sessions", "--output", "json", "--sort", "age", "--limit", "2",
    ];
    let objects = unstuck(server.grpc, &args).await.ends_with(0).objects();
    let ids: Vec<_> = objects.iter().map(|it| it["session_id"].clone()).collect();
    assert_eq!(ids, ["c", "a"]);
}

#[tokio::test]
async fn no_page_is_requested_beyond_the_limit() {
    let fake = FakeService::default();
    let session = |id: &str| pb::Session {
        session_id: id.to_owned(),
        ..Default::default()
    };
    let page = pb::ListSessionsResponse {
        sessions: vec![session("a"), session("b")],
        next_page_token: "more".to_owned(),
        ..Default::default()
    };
    fake.set_session_pages(vec![page.clone(), page]);
    fake.set_verdict_pages(vec![pb::ListVerdictsResponse {
        verdicts: vec![verdict("v2"), verdict("v1")],
        next_page_token: "more".to_owned(),
    }]);
    let server = fake.start().await;
    // A second page would fail: the service has no further answer.
    let json = ["sessions", "--limit", "2", "--output", "json"];
    let objects = unstuck(server, &json).await.ends_with(0).objects();
    assert_eq!(objects.len(), 2);
    let table = ["sessions", "--limit", "1", "--sort", "id"];
    let ran = unstuck(server, &table).await.ends_with(0);
    assert!(
        ran.out.contains("Only the first 1 are shown."),
        "{}",
        ran.out
    );
    let newest = ["verdicts", "--newest", "--limit", "1", "--output", "json"];
    let objects = unstuck(server, &newest).await.ends_with(0).objects();
    assert_eq!(objects[0]["verdict_id"], "v2");
    assert_eq!(objects.len(), 1);
    assert_eq!(fake.requests().len(), 3);
    assert!(fake.requests()[2].contains(r#""newest_first":true"#));
}

#[tokio::test]
async fn the_audit_log_is_searched_and_shows_zones_and_operators() {
    let server = Server::start().await;
    server.play("support/1", ask("x").times(3)).await;
    server.play("coding/2", ask("x").times(3)).await;
    let reset = ["reset", "coding/2", "--reason", "a new budget"];
    unstuck(server.grpc, &reset).await.ends_with(0);
    let search = ["verdicts", "--search", "BUDGET kim"];
    let ran = unstuck(server.grpc, &search).await.ends_with(0);
    assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
    assert!(ran.out.contains("coding/2") && ran.out.contains("kim: a new budget"));
    // `2026-03-11 09:15:10Z`
    assert_eq!(ran.out.find('Z'), Some(19), "{}", ran.out);
    let terminate = [
        "terminate",
        "support/1",
        "--reason",
        "x",
        "--operator",
        "alex",
    ];
    unstuck(server.grpc, &terminate).await.ends_with(0);
    let page = unstuck(server.grpc, &["session", "support/1"]).await;
    let page = page.ends_with(0).out;
    let rows: Vec<&str> = page.lines().map(str::trim).collect();
    assert!(rows.contains(&"by          alex"), "{page}");
    let heading = rows.iter().find(|row| row.starts_with("● TERMINATE"));
    assert!(heading.unwrap().ends_with('Z'), "{page}");
}

#[tokio::test]
async fn a_session_shows_its_loop_at_a_glance_and_why_it_was_reported() {
    let server = Server::start().await;
    let lap = || vec![ask("a"), ask("b")];
    server.play("s", [lap(), lap(), lap()]).await;
    let page = unstuck(server.grpc, &["session", "s"])
        .await
        .ends_with(0)
        .out;
    assert!(page.contains("A ·   lookup_setting  a"), "{page}");
    assert!(page.contains("· B   lookup_setting  b"), "{page}");
    for part in [
        "s  looping",
        "◀ WARN cycle",
        "rule               the same calls repeat in the same order",
        "fires at           3 laps of 2 to 10 calls in the last 30 calls",
        "events             0–5 (3 laps of 2)",
        "would not fire if  a call that is not part of the cycle",
        "correction         Stop this cycle",
        "wasted             6 events",
    ] {
        assert!(page.contains(part), "{part:?} is not in {page}");
    }
}

#[tokio::test]
async fn a_closed_session_shows_its_post_mortem() {
    let server = Server::start().await;
    server.play("s", ask("x").times(4)).await;
    let snooze = ["snooze", "s", "--for", "1h", "--reason", "a demo"];
    unstuck(server.grpc, &snooze).await.ends_with(0);
    server.terminate("s").await;
    let page = unstuck(server.grpc, &["session", "s"]).await.ends_with(0);
    let headings: Vec<&str> = page
        .out
        .lines()
        .filter_map(|line| line.trim().strip_prefix("● ")?.split_whitespace().next())
        .collect();
    assert_eq!(
        headings,
        ["WARN", "BLOCK", "NOTE", "TERMINATE"],
        "{}",
        page.out
    );
}

#[tokio::test]
async fn a_session_as_json_is_the_answer_of_the_service() {
    let server = Server::start().await;
    server.play("s", ask("a").times(3)).await;
    let args = ["session", "s", "--output", "json"];
    let objects = unstuck(server.grpc, &args).await.ends_with(0).objects();
    assert_eq!(objects.len(), 1);
    assert_eq!(objects[0]["timeline"][2]["same"], 1);
    assert_eq!(objects[0]["explanations"][0]["detector"], "exact_repeat");
    assert_eq!(objects[0]["session"]["status"], "SESSION_STATUS_LOOPING");
}

#[tokio::test]
async fn missing_sessions_failures_and_usage_errors_have_different_exit_codes() {
    let server = Server::start().await;
    let not_found = unstuck(server.grpc, &["session", "nobody"])
        .await
        .ends_with(3);
    assert_eq!(not_found.err, "unstuck: there is no such session\n");
    let reset = ["reset", "nobody", "--reason", "x"];
    unstuck(server.grpc, &reset).await.ends_with(3);
    for wrong in [
        &["session", "a b"] as &[&str],
        &["reset", "s"],
        &["terminate", "--reason", "x"],
        &["terminate", "s", "--label", "a=b", "--reason", "x"],
        &[
            "terminate",
            "--label",
            "a=b",
            "--status",
            "ended",
            "--reason",
            "x",
        ],
        &["sessions", "--label", "nonsense"],
        &["sessions", "--watch"],
        &["snooze", "s", "--for", "soon", "--reason", "x"],
        &["verdicts", "--since", "whenever"],
        &["watch", "--min-action", "shout"],
    ] {
        unstuck(server.grpc, wrong).await.ends_with(2);
    }
}

#[tokio::test]
async fn an_unreachable_service_is_named_with_a_hint() {
    let closed_port = "127.0.0.1:1".parse().unwrap();
    let ran = unstuck(closed_port, &["sessions"]).await.ends_with(1);
    assert!(
        ran.err.contains("cannot connect to 127.0.0.1:1"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("UNSTUCK_SERVER"), "{}", ran.err);
}

/// What `terminate` says of an id that the service does not know.
const UNKNOWN_NOTE: &str =
    "no such session was live; a tombstone was written, and events of this id are refused";

#[tokio::test]
async fn a_termination_that_stopped_nothing_says_so() {
    let server = Server::start().await;
    server.play("over", ask("x")).await;
    server.end("over").await.unwrap();
    let args = ["terminate", "over", "--reason", "x"];
    let ran = unstuck(server.grpc, &args).await.ends_with(0);
    let note = "the session had ended; a tombstone was written, and events of this id are refused";
    assert_eq!(ran.out, format!("terminated over: {note}\n"));
    // JSON has the entry of the audit log; the note is on standard error.
    let args = ["terminate", "typo", "--reason", "x", "--output", "json"];
    let ran = unstuck(server.grpc, &args).await.ends_with(0);
    assert!(
        ran.err.contains(&format!("unstuck: typo: {UNKNOWN_NOTE}")),
        "{}",
        ran.err
    );
    assert_eq!(ran.objects()[0]["session_id"], "typo");
}

#[tokio::test]
async fn sessions_are_terminated_by_id_and_continue_after_a_reset() {
    let server = Server::start().await;
    server.play("a", ask("x")).await;
    let terminate = |reason| ["terminate", "a", "unheard-of", "--reason", reason];
    let ran = unstuck(server.grpc, &terminate("over budget")).await;
    let ran = ran.ends_with(0);
    assert_eq!(
        ran.out,
        format!("terminated a\nterminated unheard-of: {UNKNOWN_NOTE}\n")
    );
    // This service has a store in memory only.
    let forgets =
        "unstuck: a: the termination is not on disk and does not survive a restart of the service";
    assert_eq!(ran.err.lines().next(), Some(forgets));
    assert_eq!(status(&server, "a").await, SessionStatus::Terminated);
    let again = unstuck(server.grpc, &terminate("again")).await.ends_with(0);
    let before = "a is already terminated, by kim: over budget";
    assert_eq!(again.out.lines().next(), Some(before));
    let args = ["reset", "a", "--reason", "more budget", "--output", "json"];
    let objects = unstuck(server.grpc, &args).await.ends_with(0).objects();
    assert_eq!(objects[0]["reason"], "more budget");
    assert_eq!(status(&server, "a").await, SessionStatus::Active);
}

#[tokio::test]
async fn a_failure_for_one_session_does_not_stop_the_others() {
    let server = Server::start().await;
    let args = ["terminate", "a", "b c", "d", "--reason", "x"];
    let ran = unstuck(server.grpc, &args).await.ends_with(1);
    assert_eq!(
        ran.out,
        format!("terminated a: {UNKNOWN_NOTE}\nterminated d: {UNKNOWN_NOTE}\n")
    );
    assert!(ran.err.contains("1 session could not be terminated"));
    let one = ["terminate", "b c", "--reason", "x"];
    unstuck(server.grpc, &one).await.ends_with(2);
}

#[tokio::test]
async fn many_sessions_are_counted_before_they_are_terminated() {
    let server = Server::start().await;
    for (session, team, calls) in [("a", "web", 3), ("b", "web", 1), ("c", "ops", 3)] {
        server.open(session, "", &[("team", team)]).await.unwrap();
        server.play(session, ask("x").times(calls)).await;
    }
    let filter = ["terminate", "--label", "team=web"];
    let with = |more: &[&'static str]| [&filter[..], more].concat();
    let dry = unstuck(server.grpc, &with(&["--dry-run"]))
        .await
        .ends_with(0);
    assert!(dry.out.ends_with("2 live sessions match\n"), "{}", dry.out);
    let unasked = unstuck(server.grpc, &with(&["--reason", "x"])).await;
    let why = "2 live sessions would be terminated. Not a terminal: pass --yes";
    assert!(unasked.ends_with(2).err.contains(why));
    assert_eq!(status(&server, "a").await, SessionStatus::Looping);

    let looping = ["--detector", "exact_repeat", "--reason", "x", "--yes"];
    let ran = unstuck(server.grpc, &with(&looping)).await.ends_with(0);
    assert_eq!(ran.out, "terminated a\n");
    assert_eq!(status(&server, "b").await, SessionStatus::Active);
    assert_eq!(status(&server, "c").await, SessionStatus::Looping);
}

#[tokio::test]
async fn a_detector_that_is_only_in_also_selects_no_session() {
    let server = Server::start().await;
    let read = call("read_file", r#"{"path": "a.rs"}"#, "fn main() {}");
    let results = server.play("s", read.times(3)).await;
    let verdict = results[2].verdict.as_ref().unwrap();
    assert_eq!(verdict.detector, "read_loop");
    assert_eq!(verdict.also, ["exact_repeat"]);
    let filter = |detector| ["terminate", "--dry-run", "--detector", detector];
    for (detector, count) in [
        ("exact_repeat", "no live sessions match\n"),
        ("read_loop", "1 live session matches\n"),
    ] {
        let dry = unstuck(server.grpc, &filter(detector)).await.ends_with(0);
        assert!(dry.out.ends_with(count), "{detector}: {}", dry.out);
    }
}

#[tokio::test]
async fn an_operator_acts_under_a_name() {
    let fake = FakeService::default();
    let server = fake.start().await;
    let snooze = ["snooze", "s", "--for", "30m", "--reason", "a demo"];
    let ran = unstuck(server, &snooze).await.ends_with(0);
    assert!(ran.out.starts_with("snoozed s until "), "{}", ran.out);
    let reset = ["reset", "s", "--reason", "x", "--operator", "alex"];
    unstuck(server, &reset).await.ends_with(0);
    assert_eq!(
        fake.requests(),
        [
            r#"snooze by kim: {"session_id":"s","duration":"1800s","reason":"a demo"}"#,
            r#"reset by alex: {"session_id":"s","reason":"x"}"#,
        ]
    );
}

#[tokio::test]
async fn the_audit_log_is_listed_page_by_page() {
    let fake = FakeService::default();
    let page = |id: &str, next: &str| pb::ListVerdictsResponse {
        verdicts: vec![verdict(id)],
        next_page_token: next.to_owned(),
    };
    fake.set_verdict_pages(vec![page("v1", "more"), page("v2", "")]);
    let args = [
        "verdicts",
        "--since",
        "2026-03-11T10:00:00+01:00",
        "--label",
        "team=web",
        "--detector",
        "cycle",
        "--min-action",
        "block",
        "--output",
        "json",
    ];
    let objects = unstuck(fake.start().await, &args)
        .await
        .ends_with(0)
        .objects();
    let ids: Vec<_> = objects.iter().map(|it| it["verdict_id"].clone()).collect();
    assert_eq!(ids, ["v1", "v2"]);
    for (requests, token) in fake.requests().iter().zip(["", "more"]) {
        let (_, request) = requests.split_once(": ").unwrap();
        let request: Value = serde_json::from_str(request).unwrap();
        assert_eq!(request["page_token"].as_str().unwrap_or_default(), token);
        assert_eq!(request["labels"]["team"], "web");
        assert_eq!(request["detector"], "cycle");
        assert_eq!(request["min_action"], "ACTION_BLOCK");
        assert_eq!(request["start_time"], "2026-03-11T09:00:00+00:00");
    }
}

fn verdict(id: &str) -> pb::Verdict {
    pb::Verdict {
        verdict_id: id.to_owned(),
        session_id: "s".to_owned(),
        ..Default::default()
    }
}

/// Ends the process when the test does.
struct Watching(Child);

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn first_line(pipe: impl Read + Send + 'static) -> String {
    let line = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(pipe).read_line(&mut line).unwrap();
        line
    });
    within(line).await.unwrap()
}

#[tokio::test]
async fn an_interrupted_watch_resumes_after_the_last_verdict() {
    let fake = FakeService::default();
    let shown = |id: &str| {
        let verdict = Some(verdict(id));
        Ok(pb::WatchVerdictsResponse { verdict })
    };
    let slow = Status::resource_exhausted("the watcher was too slow");
    fake.set_watches(vec![
        Ok(vec![shown("v1"), shown("v2"), Err(slow)]),
        Err(Status::unavailable("starting")),
        Ok(vec![shown("v3")]),
    ]);
    let args = ["watch", "--session", "s", "--output", "json"];
    let command = command(fake.start().await, &args);
    let ran = run_command(command).await.ends_with(1);
    let ids: Vec<_> = ran
        .objects()
        .iter()
        .map(|it| it["verdict_id"].clone())
        .collect();
    assert_eq!(ids, ["v1", "v2", "v3"]);
    let requests = fake.requests();
    assert!(!requests[0].contains("after_verdict_id"), "{}", requests[0]);
    for (requests, after) in requests[1..].iter().zip(["v2", "v2", "v3"]) {
        assert!(
            requests.contains(&format!(r#""after_verdict_id":"{after}""#)),
            "{requests}"
        );
    }
    let lines: Vec<&str> = ran.err.lines().collect();
    assert!(
        lines[1].contains("connection lost (the watcher was too slow); resuming after the last")
    );
    assert!(lines[3].contains("reconnected"), "{lines:?}");
}

#[tokio::test]
async fn a_watch_prints_each_verdict_at_once() {
    let server = Server::start().await;
    let args = ["watch", "--detector", "operator", "--output", "table"];
    let mut child = Watching(command(server.grpc, &args).spawn().unwrap());
    let line = first_line(child.0.stderr.take().unwrap()).await;
    assert_eq!(line, format!("unstuck: watching {}\n", server.grpc));
    server.terminate("s").await;
    let line = first_line(child.0.stdout.take().unwrap()).await;
    let words: Vec<&str> = line.split_whitespace().skip(2).take(2).collect();
    assert_eq!(words, ["TERMINATE", "operator"], "{line}");
    assert!(line.contains("terminated by an operator: it is going in circles"));
}

#[tokio::test]
async fn agent_text_cannot_control_the_terminal_of_an_operator() {
    let server = Server::start().await;
    let hostile = "\u{1b}[2J\u{9b}31m\u{202e}x\r\ny\u{7}";
    let args = serde_json::json!({ "path": hostile }).to_string();
    let read = call("read_file", &args, "same").change(|call| call.target = hostile.to_owned());
    server.play("s", read.times(3)).await;
    for args in [
        &["sessions"] as &[&str],
        &["sessions", "--output", "json"],
        &["session", "s"],
        &["session", "s", "--output", "json"],
        &["terminate", "--detector", "read_loop", "--dry-run"],
    ] {
        let ran = unstuck(server.grpc, args).await.ends_with(0);
        let steers = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!ran.out.contains(steers), "{args:?}: {:?}", ran.out);
    }
}

#[tokio::test]
async fn colours_are_printed_to_terminals_or_on_request() {
    let server = Server::start().await;
    server.play("s", ask("x").times(3)).await;
    let coloured = async |variables: &[(&str, &str)]| {
        let mut command = command(server.grpc, &["session", "s"]);
        command.envs(variables.iter().copied());
        run_command(command)
            .await
            .ends_with(0)
            .out
            .contains('\u{1b}')
    };
    assert!(!coloured(&[]).await);
    assert!(coloured(&[("CLICOLOR_FORCE", "1")]).await);
    assert!(!coloured(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]).await);
}

#[tokio::test]
async fn a_reader_that_closes_its_pipe_is_no_failure() {
    let fake = FakeService::default();
    // More than a pipe holds.
    let sessions = (0..5_000).map(|number| pb::Session {
        session_id: format!("a-rather-long-name-{number}"),
        ..Default::default()
    });
    fake.set_session_pages(vec![pb::ListSessionsResponse {
        sessions: sessions.collect(),
        ..Default::default()
    }]);
    let args = ["sessions", "--output", "json"];
    let mut child = command(fake.start().await, &args).spawn().unwrap();
    let mut first = [0; 1];
    let code = tokio::task::spawn_blocking(move || {
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut first).unwrap();
        drop(out);
        child.wait().unwrap().code()
    });
    assert_eq!(within(code).await.unwrap(), Some(0));
}

#[test]
fn shells_and_man_know_every_command() {
    let closed_port = "127.0.0.1:1".parse().unwrap();
    let printed = |args: &[&str]| {
        let output = command(closed_port, args).output().unwrap();
        assert!(output.status.success(), "{args:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for args in [
        &["completions", "bash"] as &[&str],
        &["completions", "zsh"],
        &["completions", "fish"],
        &["man"],
    ] {
        let text = printed(args);
        for command in [
            "sessions",
            "session",
            "watch",
            "verdicts",
            "terminate",
            "snooze",
        ] {
            assert!(text.contains(command), "{command} is not in {args:?}");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    printed(&["man", "--directory", directory.path().to_str().unwrap()]);
    let page = directory.path().join("unstuck-terminate.1");
    assert!(std::fs::read_to_string(page).unwrap().contains("dry"));
}
