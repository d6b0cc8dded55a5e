//! Durability across restarts: no verdict that was sent is lost, none is invented, and
//! every one is explained.

use std::{
    collections::BTreeMap,
    fs,
    hash::BuildHasher,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::JoinSet};
use tonic::Code;
use tonic_types::StatusExt;
use unstuck::pb::{
    Action, ListSessionsRequest, ListVerdictsRequest, SessionStatus, TerminateSessionRequest,
    Verdict, WatchVerdictsRequest,
};

use crate::{
    harness::*,
    lifecycle::{Running, check_refused, directory, output, text, unstuck},
};

/// Ends a session after two equal calls.
const LOW_LIMITS: &str = "[detect.exact_repeat]\ncount = 2\nterminate_after = 2\n";

fn serve(dir: &Path) -> Running {
    Running::start(unstuck(dir, &["serve"], &[]))
}

/// The service of a directory, killed and started again.
async fn restarted(mut running: Running, dir: &Path) -> (Running, Server) {
    running.child.0.kill().unwrap();
    running.child.0.wait().unwrap();
    let running = serve(dir);
    let server = running.server().await;
    (running, server)
}

/// `unstuck audit verify`, as an object.
fn verified(dir: &Path) -> serde_json::Value {
    let args = ["audit", "verify", "--output", "json"];
    let output = output(unstuck(dir, &args, &[]));
    let report = serde_json::from_str(text(&output.stdout));
    report.unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}

fn store_file(dir: &Path, name: &str) -> std::path::PathBuf {
    dir.join("unstuck-data").join(name)
}

/// A server in this process that keeps its store in a directory.
async fn server_in(dir: &Path, toml: &str) -> Server {
    Server::with(&format!("[store]\ndir = {dir:?}\n{toml}")).await
}

fn ids(verdicts: &[Verdict]) -> Vec<&str> {
    verdicts.iter().map(|v| v.verdict_id.as_str()).collect()
}

fn after(verdict_id: &str) -> WatchVerdictsRequest {
    WatchVerdictsRequest {
        after_verdict_id: verdict_id.to_owned(),
        ..Default::default()
    }
}

/// A random number below `end`.
fn random_below(end: u64) -> u64 {
    std::hash::RandomState::new().hash_one(0) % end
}

// Kill -9

/// Ends sessions one after another until the service is gone, half of them by
/// an operator and half by a detector, and sends each answer to the channel.
async fn end_sessions(server: Server, name: String, answered: mpsc::Sender<(String, Verdict)>) {
    for n in 0.. {
        let session = format!("{name}-{n}");
        let verdict = if n % 2 == 0 {
            let request = TerminateSessionRequest {
                session_id: session.clone(),
                reason: "it is going in circles".to_owned(),
            };
            let answer = server.sessions.clone().terminate_session(request).await;
            answer.ok().and_then(|answer| answer.into_inner().verdict)
        } else {
            let _ = server.try_record(ask("x").of(&session)).await;
            let result = server.try_record(ask("x").of(&session)).await;
            result.ok().and_then(|result| result.verdict)
        };
        let Some(verdict) = verdict else { break };
        assert!(verdict.durable, "{verdict:?}");
        if answered.send((session, verdict)).await.is_err() {
            break;
        }
    }
}

/// Kills the service of a directory again and again while sessions are ended.
/// Returns the answers by session.
async fn kill_again_and_again(dir: &Path, rounds: usize) -> BTreeMap<String, Verdict> {
    let mut all = BTreeMap::new();
    for round in 0..rounds {
        let mut running = serve(dir);
        let (tell, mut answered) = mpsc::channel(1_000);
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let name = format!("r{round}-c{client}");
            clients.spawn(end_sessions(running.server().await, name, tell.clone()));
        }
        drop(tell);
        // The number of answers decides when, not a clock.
        for _ in 0..random_below(20) {
            let (session, verdict) = within(answered.recv()).await.unwrap();
            all.insert(session, verdict);
        }
        running.child.0.kill().unwrap();
        running.child.0.wait().unwrap();
        // Answers sent before the kill may arrive after it.
        while let Some((session, verdict)) = within(answered.recv()).await {
            all.insert(session, verdict);
        }
        clients.join_all().await;
    }
    all
}

const CLIENTS: usize = 4;

/// Every answered termination is in force and in the log, and no other, except those that a
/// client had last requested without an answer. Returns their number.
async fn check_nothing_lost_or_invented(dir: &Path, answered: &BTreeMap<String, Verdict>) -> usize {
    let running = serve(dir);
    let server = running.server().await;
    for (session, verdict) in answered {
        let event = server.record(ask("y").of(session)).await;
        let still = event
            .verdict
            .unwrap_or_else(|| panic!("{session} was lost"));
        assert_eq!(still.verdict_id, verdict.verdict_id, "{session}");
    }
    let log = server.audit(ListVerdictsRequest::default()).await.unwrap();
    let ended: BTreeMap<&str, &str> = log
        .iter()
        .filter(|verdict| verdict.action() == Action::Terminate)
        // The events above are reported: the sessions go on.
        .filter(|verdict| !verdict.pattern.starts_with("went on after termination"))
        .map(|verdict| (verdict.session_id.as_str(), verdict.verdict_id.as_str()))
        .collect();
    for (session, verdict) in answered {
        let logged = ended.get(session.as_str());
        assert_eq!(logged, Some(&verdict.verdict_id.as_str()), "{session}");
    }
    assert_eq!(terminated(&server).await, ended.len());
    let unanswered = ended.keys().filter(|s| !answered.contains_key(**s));
    for session in unanswered.clone() {
        let (name, n) = session.rsplit_once('-').unwrap();
        let next = format!("{name}-{}", n.parse::<u32>().unwrap() + 1);
        assert!(!ended.contains_key(&*next), "{session} was invented");
    }
    let unanswered = unanswered.count();
    let (status, log) = running.stop().await;
    assert!(status.success(), "{log}");
    let report = verified(dir);
    assert_eq!(report["sound"], true, "{report}");
    unanswered
}

/// How many sessions are terminated.
async fn terminated(server: &Server) -> usize {
    let mut request = ListSessionsRequest {
        status: SessionStatus::Terminated.into(),
        page_size: 1_000,
        ..Default::default()
    };
    let mut sessions = 0;
    loop {
        let page = server.list(request.clone()).await.unwrap();
        sessions += page.sessions.len();
        if page.next_page_token.is_empty() {
            return sessions;
        }
        request.page_token = page.next_page_token;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_200_kills_none_loses_or_invents_a_termination() {
    const DIRECTORIES: usize = 4;
    const ROUNDS: usize = 50;
    let mut all = JoinSet::new();
    for _ in 0..DIRECTORIES {
        all.spawn(async {
            let dir = directory(&[("unstuck.toml", LOW_LIMITS)]);
            let answered = kill_again_and_again(dir.path(), ROUNDS).await;
            let unanswered = check_nothing_lost_or_invented(dir.path(), &answered).await;
            (answered.len(), unanswered)
        });
    }
    let ended = all.join_all().await;
    let answered: usize = ended.iter().map(|(answered, _)| answered).sum();
    let unanswered: usize = ended.iter().map(|(_, unanswered)| unanswered).sum();
    assert!(answered > 0);
    say(&format!(
        "200 kills: {answered} terminations answered, {unanswered} more on disk, none lost"
    ));
}

/// Prints a measurement past the captured output of the test.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[tokio::test]
async fn a_termination_a_sub_agents_and_a_reset_hold_after_a_kill() {
    let toml = format!("{LOW_LIMITS}[profiles.mine]\nmode = \"enforce\"\n");
    let dir = directory(&[("unstuck.toml", &toml)]);
    let running = serve(dir.path());
    let server = running.server().await;
    server.open("s", "mine", &[("team", "blue")]).await.unwrap();
    server.play("s", ask("x").times(2)).await;
    server.play("t", ask("x").by("helper").times(2)).await;
    server.terminate("u").await;
    let free = server.reset("u").await.unwrap();
    assert!(free.durable);

    let (running, server) = restarted(running, dir.path()).await;
    let session = server.get("s").await.unwrap();
    assert_eq!(session.status(), SessionStatus::Terminated);
    assert_eq!((&*session.profile, session.events), ("mine", 2));
    assert_eq!(session.labels, labels(&[("team", "blue")]));
    let latched = server.record(ask("y").of("s")).await;
    assert_eq!(latched.verdict, session.termination);
    assert_eq!(
        verdict(&latched).pattern,
        "exact_repeat: count 2, tools lookup_setting, events 0, 1"
    );
    let helper = server.record(ask("y").by("helper").of("t")).await;
    assert_eq!(helper.action(), Action::Terminate);
    assert_eq!(server.record(ask("y").of("t")).await.event_index, 0);
    assert_eq!(server.record(ask("y").of("u")).await.event_index, 0);

    server.reset("s").await.unwrap();
    server.reset("t").await.unwrap();
    let (_running, server) = restarted(running, dir.path()).await;
    for event in [ask("y").of("s"), ask("y").by("helper").of("t")] {
        assert_eq!(server.record(event).await.event_index, 0);
    }
}

#[tokio::test]
async fn a_new_verdict_sorts_after_those_from_before_a_restart() {
    let dir = directory(&[]);
    let running = serve(dir.path());
    let first = running.server().await.terminate("a").await;
    let (_running, server) = restarted(running, dir.path()).await;
    let second = server.terminate("b").await;
    assert!(second.verdict_id > first.verdict_id);
}

// Watchers

#[tokio::test]
async fn a_watcher_cut_off_and_resumed_100_times_under_load_sees_each_verdict_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_in(dir.path(), LOW_LIMITS).await;
    let first = server.watch(WatchVerdictsRequest::default()).await.unwrap();
    let (stop, mut stopped) = mpsc::channel::<()>(1);
    let load = tokio::spawn({
        let server = server_in_same(&server).await;
        async move {
            for n in 0.. {
                if stopped
                    .try_recv()
                    .is_err_and(|e| e == mpsc::error::TryRecvError::Disconnected)
                {
                    break;
                }
                server.play(&format!("s{n}"), ask("x").times(2)).await;
            }
        }
    });
    let mut seen: Vec<String> = Vec::new();
    let mut watch = first;
    for _ in 0..100 {
        for _ in 0..1 + random_below(20) {
            let next = within(watch.message()).await.unwrap().unwrap();
            seen.push(next.verdict.unwrap().verdict_id);
        }
        drop(watch);
        watch = server.watch(after(seen.last().unwrap())).await.unwrap();
    }
    drop(stop);
    load.await.unwrap();
    let log = server.audit(ListVerdictsRequest::default()).await.unwrap();
    while seen.len() < log.len() {
        let next = within(watch.message()).await.unwrap().unwrap();
        seen.push(next.verdict.unwrap().verdict_id);
    }
    assert_eq!(seen, ids(&log));
}

/// Another client of the same server.
async fn server_in_same(server: &Server) -> Server {
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    Server {
        grpc: server.grpc,
        http: server.http,
        detection: unstuck::pb::detection_service_client::DetectionServiceClient::new(
            channel.clone(),
        ),
        sessions: unstuck::pb::session_service_client::SessionServiceClient::new(channel),
    }
}

#[tokio::test]
async fn a_watcher_resumes_across_restarts() {
    let dir = directory(&[("unstuck.toml", LOW_LIMITS)]);
    let mut running = serve(dir.path());
    let mut server = running.server().await;
    let first = server.terminate("first").await;
    let mut seen = vec![first.verdict_id];
    for round in 0..3 {
        server.play(&format!("a{round}"), ask("x").times(2)).await;
        (running, server) = restarted(running, dir.path()).await;
        server.play(&format!("b{round}"), ask("x").times(2)).await;
        let mut watch = server.watch(after(seen.last().unwrap())).await.unwrap();
        for session in [format!("a{round}"), format!("b{round}")] {
            let next = within(watch.message())
                .await
                .unwrap()
                .unwrap()
                .verdict
                .unwrap();
            assert_eq!((next.session_id, next.durable), (session, true));
            seen.push(next.verdict_id);
        }
    }
    let log = server.audit(ListVerdictsRequest::default()).await.unwrap();
    assert_eq!(seen, ids(&log));
}

#[tokio::test]
async fn a_watch_is_resumed_only_after_a_verdict_that_is_kept() {
    const LONG_AGO: &str = "01900000-0000-7000-8000-000000000000";
    const NOT_YET: &str = "ff000000-0000-7000-8000-000000000000";
    let dir = tempfile::tempdir().unwrap();
    for server in [server_in(dir.path(), "").await, Server::start().await] {
        let verdict = server.terminate("s").await;
        for (id, reason) in [
            (LONG_AGO, "VERDICT_NOT_RETAINED"),
            (NOT_YET, "VERDICT_UNKNOWN"),
        ] {
            let status = server.watch(after(id)).await.unwrap_err();
            assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
            let details = status.get_error_details();
            assert_eq!(details.error_info().unwrap().reason, reason);
        }
        let status = server.watch(after("the last one")).await.unwrap_err();
        assert_invalid(&status, "after_verdict_id");
        let mut watch = server.watch(after(&verdict.verdict_id)).await.unwrap();
        server.terminate("t").await;
        let next = within(watch.message())
            .await
            .unwrap()
            .unwrap()
            .verdict
            .unwrap();
        assert_eq!(next.session_id, "t");
    }
}

#[tokio::test]
async fn a_slow_watcher_resumes_after_its_last_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_in(dir.path(), "[detect.exact_repeat]\ncount = 2").await;
    let mut narrow = server.sessions_with_window(65_535).await;
    let watch = within(narrow.watch_verdicts(WatchVerdictsRequest::default())).await;
    let mut watch = watch.unwrap().into_inner();
    let mut stream = server.events().await;
    for n in 0..50 {
        let looping = (0..120).flat_map(|m| ask("x").of(&format!("{n}-{m}")).times(2));
        stream.ask(batch(n + 1, looping)).await;
    }
    let mut seen = Vec::new();
    let status = loop {
        match within(watch.message()).await {
            Ok(next) => seen.push(next.unwrap().verdict.unwrap().verdict_id),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(seen.len() < 6_000);
    let mut watch = server.watch(after(seen.last().unwrap())).await.unwrap();
    while seen.len() < 6_000 {
        let next = within(watch.message()).await.unwrap().unwrap();
        seen.push(next.verdict.unwrap().verdict_id);
    }
    let log = server.audit(ListVerdictsRequest::default()).await.unwrap();
    assert_eq!(seen, ids(&log));
}

#[tokio::test]
async fn a_termination_reaches_64_open_streams_and_one_that_opens_later() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_in(dir.path(), "").await;
    let mut streams = Vec::new();
    for _ in 0..64 {
        let mut stream = server.events().await;
        stream.ask(batch(1, [turn("").of("s")])).await;
        streams.push(stream);
    }
    // All 64 streams of that connection are taken.
    let operator = server_in_same(&server).await;
    let began = Instant::now();
    let verdict = operator.terminate("s").await;
    let answered = began.elapsed();
    assert!(verdict.durable);
    let verdict = Some(verdict);
    for stream in &mut streams {
        assert_eq!(stream.receive().await.results[0].verdict, verdict);
    }
    say(&format!(
        "a terminate was answered after {answered:?} and had reached 64 streams after {:?}",
        began.elapsed()
    ));
    let mut later = operator.events().await;
    let answer = later.ask(batch(1, [turn("").of("s")])).await;
    assert_eq!(answer.results[0].verdict, verdict);
}

// The audit log

#[tokio::test]
async fn the_audit_log_is_filtered_by_the_query() {
    let dir = tempfile::tempdir().unwrap();
    let server = server_in(dir.path(), "").await;
    server.open("a", "", &[("team", "blue")]).await.unwrap();
    server.play("a", ask("x").at(1_000).times(3)).await;
    server.play("b", ask("x").at(2_000).times(4)).await;
    let ended = server.terminate("a").await;
    let time = |seconds| Some(pbjson_types::Timestamp { seconds, nanos: 0 });
    let all = ListVerdictsRequest::default;
    let cases = [
        (all(), "a warn, b warn, b block, a terminate"),
        (
            ListVerdictsRequest {
                session_id: "a".to_owned(),
                ..all()
            },
            "a warn, a terminate",
        ),
        (
            ListVerdictsRequest {
                labels: labels(&[("team", "blue")]),
                ..all()
            },
            "a warn, a terminate",
        ),
        (
            ListVerdictsRequest {
                labels: labels(&[("team", "red")]),
                ..all()
            },
            "",
        ),
        (
            ListVerdictsRequest {
                detector: "operator".to_owned(),
                ..all()
            },
            "a terminate",
        ),
        (
            ListVerdictsRequest {
                min_action: Action::Block.into(),
                ..all()
            },
            "b block, a terminate",
        ),
        (
            ListVerdictsRequest {
                start_time: time(1_001),
                ..all()
            },
            "b warn, b block, a terminate",
        ),
        (
            ListVerdictsRequest {
                end_time: time(2_000),
                ..all()
            },
            "a warn",
        ),
    ];
    for (request, expected) in cases {
        for page_size in [0, 1, 2, 1_000] {
            let request = ListVerdictsRequest {
                page_size,
                ..request.clone()
            };
            let listed = server.audit(request.clone()).await.unwrap();
            let back = ListVerdictsRequest {
                newest_first: true,
                ..request
            };
            let mut back = server.audit(back).await.unwrap();
            back.reverse();
            assert_eq!(
                back, listed,
                "the newest first is the same, the other way round"
            );
            let short = |v: &Verdict| {
                let action = v.action().as_str_name().trim_start_matches("ACTION_");
                format!("{} {}", v.session_id, action.to_lowercase())
            };
            let listed: Vec<String> = listed.iter().map(short).collect();
            assert_eq!(listed.join(", "), expected);
        }
    }
    let log = server.audit(all()).await.unwrap();
    assert_eq!(log.last(), Some(&ended), "an operator's words are kept");
    assert_eq!(log[0].members[0].target, "x", "its session is in memory");
}

#[tokio::test]
async fn an_invalid_audit_log_filter_is_refused() {
    let server = Server::start().await;
    let all = ListVerdictsRequest::default;
    let cases = [
        (
            ListVerdictsRequest {
                page_size: -1,
                ..all()
            },
            "page_size",
        ),
        (
            ListVerdictsRequest {
                page_token: "x!".to_owned(),
                ..all()
            },
            "page_token",
        ),
        (
            ListVerdictsRequest {
                min_action: 99,
                ..all()
            },
            "min_action",
        ),
        (
            ListVerdictsRequest {
                start_time: Some(pbjson_types::Timestamp {
                    seconds: 0,
                    nanos: -1,
                }),
                ..all()
            },
            "start_time",
        ),
    ];
    for (request, field) in cases {
        assert_invalid(&server.audit(request).await.unwrap_err(), field);
    }
}

#[tokio::test]
async fn an_operator_action_names_its_actor() {
    let server = Server::start().await;
    let text_with_canary = |name: &str| {
        let mut request = tonic::Request::new(TerminateSessionRequest {
            session_id: name.chars().filter(char::is_ascii_alphabetic).collect(),
            reason: "it loops".to_owned(),
        });
        let metadata = request.metadata_mut();
        metadata.insert("unstuck-operator", name.parse().unwrap());
        request
    };
    let long = "n".repeat(200);
    let cut = format!("{}…", "n".repeat(128));
    for (name, shown) in [
        ("ann@example.org", "ann@example.org"),
        ("a \"b\"", "a 'b'"),
        (&long, &cut),
    ] {
        let answer = within(
            server
                .sessions
                .clone()
                .terminate_session(text_with_canary(name)),
        )
        .await;
        let verdict = answer.unwrap().into_inner().verdict.unwrap();
        assert_eq!(verdict.operator, shown);
    }
    assert_eq!(server.terminate("s").await.operator, "unknown");
    let detected = server.play("t", ask("x").times(3)).await;
    assert_eq!(verdict(&detected[2]).operator, "");
}

#[tokio::test]
async fn no_agent_text_is_on_disk_unless_it_is_switched_on() {
    const CANARY: &str = "kanarienvogel";
    for (toml, expected) in [("", false), ("[audit]\ntext = true\n", true)] {
        let dir = directory(&[("unstuck.toml", &format!("{LOW_LIMITS}{toml}"))]);
        let running = serve(dir.path());
        let server = running.server().await;
        let events = ask(CANARY).times(2);
        let results = server.play("calls", events).await;
        assert!(verdict(&results[1]).pattern.contains(CANARY));
        let text_with_canary = like(CANARY);
        server.play("turns", turn(&text_with_canary).times(6)).await;
        running.stop().await;
        let written = fs::read_dir(dir.path().join("unstuck-data")).unwrap();
        let written: Vec<u8> = written
            .flat_map(|file| fs::read(file.unwrap().path()).unwrap())
            .collect();
        let found = String::from_utf8_lossy(&written).contains(CANARY);
        assert_eq!(found, expected);

        let running = serve(dir.path());
        let server = running.server().await;
        for verdict in server.audit(ListVerdictsRequest::default()).await.unwrap() {
            assert_eq!(verdict.pattern.contains(CANARY), expected, "{verdict:?}");
            assert!(!verdict.pattern.is_empty() && !verdict.reason.is_empty());
            assert!(verdict.evidence.unwrap().count > 1);
        }
    }
}

// A disk that fails, and damage

#[tokio::test]
async fn damage_is_refused_in_one_line_that_names_the_file() {
    let dir = directory(&[]);
    let running = serve(dir.path());
    let server = running.server().await;
    server.terminate("s").await;
    server.terminate("t").await;
    running.stop().await;
    let path = store_file(dir.path(), "unstuck.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    let changes = [
        (
            "DELETE FROM tombstones WHERE session = 's'",
            "its terminations are not those",
        ),
        ("DELETE FROM records WHERE record = 2", "its end is missing"),
    ];
    for (change, why) in changes {
        connection.execute_batch(change).unwrap();
        check_refused(
            unstuck(dir.path(), &["serve"], &[]),
            &["unstuck.db is damaged", why],
        );
        let check = output(unstuck(dir.path(), &["audit", "verify"], &[]));
        assert_eq!(check.status.code(), Some(1));
        let named = text(&check.stderr);
        assert!(named.contains("unstuck.db is damaged"), "{named}");
    }
    assert_eq!(verified(dir.path())["sound"], false);
}

#[tokio::test]
async fn a_second_process_on_the_same_directory_is_refused() {
    let dir = directory(&[]);
    let running = serve(dir.path());
    running.server().await.terminate("s").await;
    check_refused(
        unstuck(dir.path(), &["serve"], &[]),
        &["unstuck-data", "in use by another process"],
    );
    let report = verified(dir.path());
    assert_eq!(
        (&report["sound"], &report["in_use"]),
        (&true.into(), &true.into())
    );
    assert_eq!(report["records"], 1);
}

#[test]
fn without_an_audit_log_there_is_nothing_to_verify() {
    let dir = directory(&[]);
    let verify = |args: &[&str], variables: &[(&str, &str)]| {
        let args = [&["audit", "verify"], args].concat();
        unstuck(dir.path(), &args, variables)
    };
    check_refused(verify(&[], &[]), &["unstuck-data"]);
    check_refused(verify(&["--dir", "."], &[]), &["no audit log"]);
    check_refused(
        verify(&[], &[("UNSTUCK__STORE__DIR", "")]),
        &["memory only"],
    );
}

#[tokio::test]
async fn a_memory_only_store_is_reported_and_empty_after_a_restart() {
    let dir = directory(&[("unstuck.toml", "[store]\ndir = \"\"\n")]);
    let running = serve(dir.path());
    let server = running.server().await;
    assert_eq!(server.health().await, "ok; state is kept in memory only\n");
    let verdict = server.terminate("s").await;
    assert!(!verdict.durable);
    assert_eq!(
        server.audit(ListVerdictsRequest::default()).await.unwrap(),
        [verdict]
    );
    server.reset("s").await.unwrap();
    let (_running, server) = restarted(running, dir.path()).await;
    assert!(
        server
            .audit(ListVerdictsRequest::default())
            .await
            .unwrap()
            .is_empty()
    );
    let sessions = server.list(ListSessionsRequest::default()).await.unwrap();
    assert!(sessions.sessions.is_empty());
}

// Snoozes

#[tokio::test]
async fn a_snoozed_session_is_recorded_and_not_acted_on_until_it_is_reset() {
    let dir = directory(&[("unstuck.toml", LOW_LIMITS)]);
    let running = serve(dir.path());
    let server = running.server().await;
    server.record(turn("").of("s")).await;
    let entry = server.snooze("s", 3_600_000).await.unwrap();
    assert_eq!((&*entry.detector, entry.durable), ("operator", true));
    assert_eq!(entry.reason, "it is being looked at");
    assert!(server.get("s").await.unwrap().snoozed_until.is_some());
    let (_running, server) = restarted(running, dir.path()).await;
    let results = server.play("s", ask("x").times(3)).await;
    assert_eq!(results[1].action(), Action::Unspecified);
    let given = verdict(&results[1]);
    assert_eq!((given.action(), given.shadow), (Action::Terminate, true));
    server.reset("s").await.unwrap();
    assert_eq!(server.get("s").await.unwrap().snoozed_until, None);
    let results = server.play("s", ask("x").times(2)).await;
    assert_eq!(results[1].action(), Action::Terminate);
}

#[tokio::test]
async fn a_snooze_expires_and_a_session_that_still_loops_is_then_terminated() {
    let server = Server::with(LOW_LIMITS).await;
    server.record(turn("").of("s")).await;
    server.snooze("s", 300).await.unwrap();
    let mut shadows = 0;
    loop {
        let result = server.record(ask("x").of("s")).await;
        if result.action() == Action::Terminate {
            break;
        }
        shadows += usize::from(result.verdict.is_some_and(|verdict| verdict.shadow));
        let session = server.get("s").await.unwrap();
        assert_ne!(session.status(), SessionStatus::Terminated);
    }
    assert_eq!(shadows, 1, "it was said once, and then meant");
    let session = server.get("s").await.unwrap();
    assert_eq!(session.snoozed_until, None);
}

#[tokio::test]
async fn an_invalid_snooze_is_refused() {
    let server = Server::start().await;
    let status = server.snooze("nobody", 1_000).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    server.terminate("over").await;
    let status = server.snooze("over", 1_000).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    server.record(turn("").of("s")).await;
    assert_invalid(&server.snooze("s", 0).await.unwrap_err(), "duration");
    let week = 7 * 24 * 60 * 60 * 1_000;
    assert_invalid(&server.snooze("s", week + 1).await.unwrap_err(), "duration");
    let unreasoned = unstuck::pb::SnoozeSessionRequest {
        session_id: "s".to_owned(),
        duration: Some(Duration::from_secs(1).into()),
        reason: " ".to_owned(),
    };
    let status = within(server.sessions.clone().snooze_session(unreasoned)).await;
    assert_invalid(&status.unwrap_err(), "reason");
}
