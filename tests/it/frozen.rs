//! Sessions that are frozen to bytes and thawed go on as if nothing had happened.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::Path,
};

use unstuck::{
    domain::SessionId,
    engine::ThawOutcome,
    pb::{self, Verdict},
};

use crate::{
    console,
    harness::*,
    lifecycle::{Running, check_refused, directory, unstuck},
    operators,
    play::{Line, Player},
    traces,
};

/// Freezes the session of the line, removes it, and thaws it again.
#[track_caller]
fn freeze_and_thaw(player: &Player, line: &Line) {
    let id = match line {
        Line::Event(event) => &event.session_id,
        Line::Delta(delta) => &delta.session_id,
    };
    let id = SessionId::parse(id).unwrap();
    let Some(frozen) = player.engine.freezer().freeze(&id) else {
        return;
    };
    let before = player.engine.detail(&id);
    player.engine.freezer().release(&id);
    assert!(!player.engine.contains(&id));
    let thawed = player.engine.freezer().thaw(&frozen, player.now);
    assert_eq!(thawed, ThawOutcome::Whole);
    assert_eq!(
        format!("{:?}", player.engine.detail(&id)),
        format!("{before:?}")
    );
    let again = player.engine.freezer().freeze(&id);
    assert_eq!(again, Some(frozen), "the same bytes");
}

#[test]
fn a_session_frozen_before_every_event_gets_the_same_answers() {
    for (detector, path) in traces::files() {
        let lines = Line::read(&fs::read_to_string(&path).unwrap());
        let (mut uninterrupted, mut interrupted) = (traces::player(&path), traces::player(&path));
        for (number, line) in lines.iter().enumerate() {
            freeze_and_thaw(&interrupted, line);
            assert_eq!(
                format!("{:?}", interrupted.play(line)),
                format!("{:?}", uninterrupted.play(line)),
                "{detector}, line {number}"
            );
        }
        assert_eq!(
            interrupted.engine.live_sessions(),
            uninterrupted.engine.live_sessions()
        );
    }
}

/// A verdict on a line of a trace, as a client sees it.
#[derive(Debug, PartialEq)]
struct ReceivedVerdict {
    session: String,
    line_id: String,
    action: i32,
    detector: String,
    also: Vec<String>,
    pattern: String,
    loop_has_id: bool,
}

/// A client that counts each verdict once, because it is repeated after a termination.
#[derive(Default)]
struct TraceClient {
    known: HashSet<String>,
    received: Vec<ReceivedVerdict>,
}

impl TraceClient {
    async fn play(&mut self, server: &Server, lines: &[Line]) {
        for line in lines {
            match line {
                Line::Event(event) => {
                    let verdict = server.record((**event).clone()).await.verdict;
                    self.receive(&event.session_id, &event.event_id, verdict);
                }
                Line::Delta(delta) => {
                    let stream = server.deltas().await;
                    stream.send(pieces([delta.clone()])).await;
                    for response in stream.finish().await {
                        self.receive(&delta.session_id, &delta.turn_id, response.verdict);
                    }
                }
            }
        }
    }

    fn receive(&mut self, session: &str, line_id: &str, verdict: Option<Verdict>) {
        let Some(verdict) = verdict.filter(|v| self.known.insert(v.verdict_id.clone())) else {
            return;
        };
        self.received.push(ReceivedVerdict {
            session: session.to_owned(),
            line_id: line_id.to_owned(),
            action: verdict.action,
            detector: verdict.detector,
            also: verdict.also,
            pattern: verdict.pattern,
            loop_has_id: !verdict.loop_id.is_empty(),
        });
    }
}

/// The line at which the service is restarted: before the first verdict of the trace, or
/// in the middle of the text that gets it.
fn restart_position(lines: &[Line]) -> usize {
    let announces = |line: &Line| match line {
        Line::Event(event) => event.event_id.contains('='),
        Line::Delta(delta) => delta.turn_id.contains('='),
    };
    let position = lines.iter().position(announces).unwrap();
    match &lines[position] {
        Line::Event(_) => position,
        Line::Delta(_) => position + 4,
    }
}

/// Without a breaker, because nearly all sessions of the traces loop.
const NO_BREAKER: &str = "[breaker]\nshare_max = 1.0\n";

#[tokio::test]
async fn a_restart_in_the_middle_of_each_loop_changes_no_verdict() {
    for (detector, path) in traces::files() {
        let settings = fs::read_to_string(path.with_extension("toml")).unwrap_or_default();
        let settings = format!("{NO_BREAKER}{settings}");
        let lines = Line::read(&fs::read_to_string(&path).unwrap());

        check_restart(&detector, &settings, &lines, restart_position(&lines)).await;
    }
}

/// Plays a trace with a restart at the position and without one. The verdicts are the same.
async fn check_restart(name: &str, settings: &str, lines: &[Line], position: usize) {
    let mut uninterrupted = TraceClient::default();
    uninterrupted
        .play(&Server::with(settings).await, lines)
        .await;

    let dir = directory(&[("unstuck.toml", settings)]);
    let serve = || {
        Running::start(unstuck(
            dir.path(),
            &["serve", "--config", "unstuck.toml"],
            &[],
        ))
    };
    let (before, after) = lines.split_at(position);
    let mut interrupted = TraceClient::default();
    let running = serve();
    interrupted.play(&running.server().await, before).await;
    let (status, log) = running.stop().await;
    assert!(status.success(), "{log}");
    let running = serve();
    interrupted.play(&running.server().await, after).await;
    assert_eq!(interrupted.received, uninterrupted.received, "{name}");
    assert!(!uninterrupted.received.is_empty(), "{name}");
}

#[tokio::test]
async fn a_restart_in_the_middle_of_what_a_rule_counts_changes_no_verdict() {
    let rules = fs::read_to_string("examples/rules.toml").unwrap();
    let lines = Line::read(&fs::read_to_string("examples/rules.ndjson").unwrap());
    for position in (3..lines.len()).step_by(5) {
        check_restart("rules", &format!("{NO_BREAKER}{rules}"), &lines, position).await;
    }
}

/// Saves a session whole, stops the service, and starts it again after a change of its
/// files. Returns the second log.
async fn restart_after(change: impl FnOnce(&Path)) -> String {
    let dir = directory(&[]);
    let serve = || Running::start(unstuck(dir.path(), &["serve"], &[]));
    let running = serve();
    let server = running.server().await;
    server
        .open("s", "default", &[("team", "payments")])
        .await
        .unwrap();
    server.play("s", ask("colour").times(2)).await;
    assert!(running.stop().await.0.success());
    change(dir.path());
    let running = serve();
    let server = running.server().await;
    let session = server.get("s").await.unwrap();
    assert_eq!(session.labels["team"], "payments");
    let (status, log) = running.stop().await;
    assert!(status.success(), "{log}");
    log
}

fn change_saved(dir: &Path, sql: &str) {
    let database = rusqlite::Connection::open(dir.join("unstuck-data/unstuck.db")).unwrap();
    assert_eq!(database.execute(sql, []).unwrap(), 1);
}

#[tokio::test]
async fn state_of_another_version_or_key_is_ignored_with_a_log_line() {
    let warning = "part of the state of sessions cannot be used and was ignored";
    let log = restart_after(|_| {}).await;
    assert!(!log.contains(warning), "{log}");
    // The first byte is the version.
    let other_head = "UPDATE sessions SET head = CAST(x'ff' || substr(head, 2) AS BLOB)";
    let log = restart_after(|dir| change_saved(dir, other_head)).await;
    assert!(log.contains(warning), "{log}");
    assert!(log.contains("other_versions=1"), "{log}");
    let other_key = |dir: &Path| fs::remove_file(dir.join("unstuck.key")).unwrap();
    let log = restart_after(other_key).await;
    assert!(log.contains(warning), "{log}");
    assert!(log.contains("not_opened=1"), "{log}");
}

#[test]
fn a_key_inside_the_directory_of_the_store_is_refused() {
    let dir = directory(&[]);
    fs::create_dir(dir.path().join("unstuck-data")).unwrap();
    fs::create_dir(dir.path().join("keys")).unwrap();
    std::os::unix::fs::symlink("unstuck-data", dir.path().join("link")).unwrap();
    let command = |key_file| {
        let variables = [("UNSTUCK__STORE__KEY_FILE", key_file)];
        unstuck(dir.path(), &["config", "check"], &variables)
    };
    for key_file in [
        "unstuck-data/key",
        "./unstuck-data/new/key",
        "keys/../unstuck-data/key",
        "link/key",
    ] {
        let why = ["store.key_file", "inside store.dir"];
        check_refused(command(key_file), &why);
    }
    for key_file in ["keys/key", "unstuck-data/../key"] {
        assert!(command(key_file).status().unwrap().success(), "{key_file}");
    }
}

#[tokio::test]
async fn after_a_kill_profile_labels_and_loops_are_there_and_windows_fill_again() {
    let dir = directory(&[]);
    let settings = "[profiles.strict.detect.exact_repeat]\ncount = 2\n";
    fs::write(dir.path().join("unstuck.toml"), settings).unwrap();
    let serve = || {
        Running::start(unstuck(
            dir.path(),
            &["serve", "--config", "unstuck.toml"],
            &[],
        ))
    };
    let mut running = serve();
    let server = running.server().await;
    server
        .open("s", "strict", &[("team", "payments")])
        .await
        .unwrap();
    let warned = server
        .play("s", vec![ask("colour").id("e1"), ask("colour").id("e2")])
        .await;
    let first = warned[1].verdict.clone().unwrap();
    wait_until_saved(dir.path(), &server, "s").await;
    assert!(!saved_sessions(dir.path())["s"].has_window);
    running.child.0.kill().unwrap();
    running.child.0.wait().unwrap();

    let running = serve();
    let server = running.server().await;
    let session = server.get("s").await.unwrap();
    assert_eq!(session.profile, "strict");
    assert_eq!(session.labels["team"], "payments");
    assert_eq!(session.events, 2);
    // An event that was recorded is still a duplicate; the window fills again, and the
    // loop that was reported is known: it gets a stronger action.
    let again = vec![ask("colour").id("e2"), ask("colour"), ask("colour")];
    let results = server.play("s", again).await;
    assert!(results[0].duplicate);
    assert_eq!(results[1].verdict, None);
    let second = results[2].verdict.clone().unwrap();
    assert_eq!(second.loop_id, first.loop_id);
    assert!(second.action > first.action, "{second:?}");
}

/// Waits until the store has the session as it is after its last event.
pub async fn wait_until_saved(dir: &Path, server: &Server, session: &str) {
    let last_event = server.get(session).await.unwrap().last_event_time.unwrap();
    let last_event_ms = last_event.seconds * 1_000 + i64::from(last_event.nanos) / 1_000_000;
    wait_until(|| {
        let saved = saved_sessions(dir);
        saved
            .get(session)
            .is_some_and(|saved| saved.last_seen_ms == last_event_ms)
    })
    .await;
}

/// Reads the database again until the condition is true.
async fn wait_until(is_true: impl Fn() -> bool) {
    within(async {
        while !is_true() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[derive(Debug, PartialEq)]
struct SavedSession {
    last_seen_ms: i64,
    has_window: bool,
}

/// The sessions in the store.
fn saved_sessions(dir: &Path) -> BTreeMap<String, SavedSession> {
    let path = dir.join("unstuck-data/unstuck.db");
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let Ok(database) = rusqlite::Connection::open_with_flags(path, flags) else {
        return BTreeMap::new();
    };
    let sql = "SELECT session, last_seen_ms, recent IS NOT NULL FROM sessions";
    let Ok(mut statement) = database.prepare(sql) else {
        return BTreeMap::new();
    };
    let rows = statement.query_map([], |row| {
        let saved = SavedSession {
            last_seen_ms: row.get(1)?,
            has_window: row.get(2)?,
        };
        Ok((row.get(0)?, saved))
    });
    rows.unwrap().map(Result::unwrap).collect()
}

#[tokio::test]
async fn what_agents_wrote_is_saved_sealed_or_not_at_all() {
    let secret = "nobody-may-read-this";
    for key_file in ["./unstuck.key", ""] {
        let dir = directory(&[]);
        let variables = [("UNSTUCK__STORE__KEY_FILE", key_file)];
        let running = Running::start(unstuck(dir.path(), &["serve"], &variables));
        let server = running.server().await;
        let event = call("lookup", &format!("{{\"q\": \"{secret}\"}}"), secret);
        let event = event.change(|call| call.target = secret.to_owned());
        server
            .play("s", vec![event.clone(), event, turn(secret)])
            .await;
        assert!(running.stop().await.0.success());
        let has_window = !key_file.is_empty();
        assert_eq!(saved_sessions(dir.path())["s"].has_window, has_window);
        assert_eq!(dir.path().join("unstuck.key").exists(), has_window);
        for file in fs::read_dir(dir.path().join("unstuck-data")).unwrap() {
            let bytes = fs::read(file.unwrap().path()).unwrap();
            let found = bytes
                .windows(secret.len())
                .any(|part| part == secret.as_bytes());
            assert!(!found, "key_file = {key_file:?}");
        }
    }
}

#[tokio::test]
async fn a_session_that_has_ended_or_was_terminated_is_not_restored() {
    let dir = directory(&[]);
    let serve = || Running::start(unstuck(dir.path(), &["serve"], &[]));
    let running = serve();
    let server = running.server().await;
    for session in ["ended", "terminated", "live"] {
        server.play(session, ask("colour")).await;
    }
    wait_until(|| saved_sessions(dir.path()).len() == 3).await;
    server.end("ended").await.unwrap();
    server.terminate("terminated").await;
    assert!(running.stop().await.0.success());
    let saved: Vec<_> = saved_sessions(dir.path()).into_keys().collect();
    assert_eq!(saved, ["live"]);
    let running = serve();
    let server = running.server().await;
    assert!(server.get("ended").await.is_err());
    assert_eq!(server.get("live").await.unwrap().events, 1);
}

#[tokio::test]
async fn sessions_that_cannot_be_read_say_that_their_state_may_be_lost() {
    let dir = directory(&[]);
    let serve = || Running::start(unstuck(dir.path(), &["serve"], &[]));
    let running = serve();
    let server = running.server().await;
    server.open("s", "lenient", &[]).await.unwrap();
    assert!(running.stop().await.0.success());
    let file = dir.path().join("unstuck-data/unstuck.db");
    let database = rusqlite::Connection::open(file).unwrap();
    let sql = "ALTER TABLE sessions RENAME COLUMN head TO unreadable";
    database.execute(sql, []).unwrap();
    drop(database);
    let running = serve();
    let server = running.server().await;
    let result = server.record(ask("colour").of("s")).await;
    assert!(result.state_lost);
    server.open("s", "", &[]).await.unwrap();
    assert!(!server.record(ask("font").of("s")).await.state_lost);
}

#[tokio::test]
async fn after_a_kill_snoozes_hold_and_lists_say_since_when_there_are_data() {
    let dir = directory(&[]);
    let serve = || Running::start(unstuck(dir.path(), &["serve"], &[]));
    let mut running = serve();
    let server = running.server().await;
    server.play("s", ask("colour").times(4)).await;
    server.snooze("s", 3_600_000).await.unwrap();
    wait_until_saved(dir.path(), &server, "s").await;
    running.child.0.kill().unwrap();
    running.child.0.wait().unwrap();

    let running = serve();
    let server = running.server().await;
    let session = server.get("s").await.unwrap();
    assert!(session.snoozed_until.is_some(), "{session:?}");
    let results = server.play("s", ask("colour").times(4)).await;
    let found = results.iter().filter_map(|it| it.verdict.as_ref());
    assert!(found.clone().all(|it| it.shadow));
    assert!(results.iter().all(|it| it.standing.is_none()));
    let page = server
        .list(pb::ListSessionsRequest::default())
        .await
        .unwrap();
    let since = page.data_since.unwrap();
    let listed = operators::unstuck(server.grpc, &["sessions"])
        .await
        .ends_with(0);
    let summary = listed.out.lines().last().unwrap().to_owned();
    assert!(summary.contains("1 session: 1 "), "{summary}");
    assert!(
        summary.contains(" Data since 20") && summary.ends_with("Z."),
        "{summary}"
    );
    let fleet = console::post_json(&server, "fleet", serde_json::json!({})).await;
    assert_eq!(fleet["sessions"][0]["session_id"], "s");
    assert_eq!(fleet["data"]["restored"]["partial"], 1, "{fleet}");
    let since_ms = fleet["data"]["data_since_ms"].as_i64().unwrap();
    assert_eq!(since_ms / 1_000, since.seconds);
    // The database is older than this process.
    assert!(Some(since_ms) < fleet["data"]["started_ms"].as_i64());
}
