//! The program as a person or a supervisor runs it: its output, and how it starts, stops
//! and fails.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
};

use tempfile::TempDir;
use tonic::Code;
use unstuck::pb::{
    self, Action, detection_service_client::DetectionServiceClient,
    session_service_client::SessionServiceClient,
};

use crate::harness::*;

/// A directory with these files, in which the program runs.
pub fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

/// The program, with none of this machine's settings and ports of its own.
pub fn unstuck(directory: &Path, args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unstuck"));
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("UNSTUCK") || key == "RUST_LOG" {
            command.env_remove(key);
        }
    }
    command
        .current_dir(directory)
        .args(args)
        .env("UNSTUCK__SERVER__GRPC", "127.0.0.1:0")
        .env("UNSTUCK__SERVER__HTTP", "127.0.0.1:0")
        // The contexts of the user who runs the tests do not matter.
        .env("XDG_CONFIG_HOME", directory.join(".config"))
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Ends the process when the test does, however that ends.
pub struct ChildGuard(pub Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl ChildGuard {
    pub fn start(mut command: Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }
}

/// Runs `work` on a thread of its own and waits for it, within the deadline.
fn waited<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::sync_channel(1);
    thread::spawn(move || done.send(work()));
    result
        .recv_timeout(DEADLINE)
        .expect("an end within the deadline")
}

/// The output of a command that ends by itself.
pub fn output(command: Command) -> Output {
    let mut child = ChildGuard::start(command);
    let (stdout, stderr) = (child.0.stdout.take(), child.0.stderr.take());
    let (stdout, stderr) = waited(move || (read(stdout), read(stderr)));
    Output {
        status: child.0.wait().unwrap(),
        stdout,
        stderr,
    }
}

fn read(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    pipe.unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A service that runs.
pub struct Running {
    pub child: ChildGuard,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    stderr: ChildStderr,
}

impl Running {
    pub fn start(command: Command) -> Self {
        let mut child = ChildGuard::start(command);
        let stdout = child.0.stdout.take().unwrap();
        let stderr = child.0.stderr.take().unwrap();
        let [grpc, http] = waited(move || {
            let mut lines = BufReader::new(stdout).lines().map(Result::unwrap);
            ["gRPC", "HTTP"].map(|kind| {
                let line = lines.next().expect("a line with an address");
                let address = line.strip_prefix(&format!("unstuck: {kind} on "));
                address.expect(&line).parse().unwrap()
            })
        });
        Self {
            child,
            grpc,
            http,
            stderr,
        }
    }

    pub async fn server(&self) -> Server {
        let channel = connect(self.grpc, |endpoint| endpoint).await;
        Server {
            grpc: self.grpc,
            http: self.http,
            detection: DetectionServiceClient::new(channel.clone()),
            sessions: SessionServiceClient::new(channel),
        }
    }

    pub async fn stop(self) -> (ExitStatus, String) {
        self.child.signal("TERM");
        self.ended().await
    }

    /// Reads the log until this text is in it.
    pub async fn wait_for_log(mut self, expected: &'static str) -> Self {
        let reading = tokio::task::spawn_blocking(move || {
            let (mut log, mut byte) = (Vec::new(), [0]);
            while !log.ends_with(expected.as_bytes()) {
                self.stderr.read_exact(&mut byte).unwrap();
                log.extend(byte);
            }
            self
        });
        within(reading).await.unwrap()
    }

    /// Stops the service; returns its exit status and its log. The test's connections are
    /// still polled, because they have to acknowledge the shutdown.
    pub async fn ended(self) -> (ExitStatus, String) {
        let Self {
            mut child, stderr, ..
        } = self;
        let log = tokio::task::spawn_blocking(|| read(Some(stderr)));
        let log = within(log).await.unwrap();
        (child.0.wait().unwrap(), text(&log).to_owned())
    }
}

// Start and stop

#[tokio::test]
async fn without_a_command_it_serves() {
    let directory = directory(&[]);
    let running = Running::start(unstuck(directory.path(), &[], &[]));
    let server = running.server().await;
    assert_eq!(server.record(ask("x").of("s")).await.event_index, 0);
    let ready = within(get(format!("http://{}/readyz", running.http))).await;
    assert!(ready.unwrap().status().is_success());
}

#[tokio::test]
async fn a_drain_ends_streams_with_a_reason_and_exits_with_zero() {
    for signal in ["TERM", "INT"] {
        let directory = directory(&[]);
        // If the drain waited for its deadline, the test would time out.
        let patient = [("UNSTUCK__LIMITS__DRAIN_SECS_MAX", "3600")];
        let running = Running::start(unstuck(directory.path(), &["serve"], &patient));
        let server = running.server().await;
        let mut events = server.events().await;
        let mut deltas = server.deltas().await;
        let mut watch = server
            .watch(pb::WatchVerdictsRequest::default())
            .await
            .unwrap();
        events.ask(batch(1, [ask("x").of("s")])).await;
        deltas.ask(pieces([last_delta("s", "", "")])).await;

        running.child.signal(signal);
        assert_eq!(events.next().await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(deltas.next().await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(
            within(watch.message()).await.unwrap_err().code(),
            Code::Unavailable
        );
        let (status, log) = running.ended().await;
        assert_eq!(status.code(), Some(0), "{log}");
    }
}

#[tokio::test]
async fn an_unread_stream_gets_its_responses_and_then_the_reason() {
    let directory = directory(&[]);
    let variables = [
        ("UNSTUCK__LIMITS__UNREAD_RESPONSES_MAX", "1"),
        // Long enough that a busy machine is not taken for a slow reader.
        ("UNSTUCK__LIMITS__SLOW_READER_SECS_MAX", "3600"),
        ("UNSTUCK__LIMITS__DRAIN_SECS_MAX", "3600"),
    ];
    let running = Running::start(unstuck(directory.path(), &["serve"], &variables));
    let server = running.server().await;
    let mut heeds = server.events().await;
    let mut deaf = events_of(server.detection_with_window(1).await).await;
    for n in 1..=60 {
        deaf.send(batch(n, [turn("").of("s")])).await;
    }
    // Time enough for the server to take what it has room for.
    for _ in 0..200 {
        server.record(turn("").of("t")).await;
    }
    running.child.signal("TERM");
    assert_eq!(heeds.next().await.unwrap_err().code(), Code::Unavailable);
    let mut answered = 0;
    let status = loop {
        match deaf.next().await {
            Ok(Some(answer)) => {
                answered += 1;
                assert_eq!(answer.sequence, answered);
            }
            Ok(None) => panic!("it ended without a reason after {answered} answers"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(answered < 60);
    assert_eq!(running.ended().await.0.code(), Some(0));
}

#[tokio::test]
async fn a_client_that_does_not_read_delays_shutdown_only_until_the_deadline() {
    let directory = directory(&[]);
    let hasty = [("UNSTUCK__LIMITS__DRAIN_SECS_MAX", "1")];
    let running = Running::start(unstuck(directory.path(), &["serve"], &hasty));
    let server = running.server().await;
    let deaf = events_of(server.detection_with_window(0).await).await;
    deaf.send(batch(1, [ask("x").of("s")])).await;
    // The event is recorded, and its response cannot be sent.
    within(async { while server.get("s").await.is_err() {} }).await;
    let (status, log) = running.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test]
async fn an_unread_log_pipe_delays_nothing() {
    let directory = directory(&[]);
    let chatty = [("RUST_LOG", "trace")];
    let running = Running::start(unstuck(directory.path(), &["serve"], &chatty));
    let server = running.server().await;
    // A pipe holds a few hundred lines, and every call writes dozens.
    within(async {
        while server.metric("unstuck_log_lines_dropped_total").await == 0.0 {
            server.record(turn("").of("s")).await;
        }
    })
    .await;
    // The shutdown is not delayed either.
    running.child.signal("TERM");
    let mut child = running.child;
    let status = tokio::task::spawn_blocking(move || child.0.wait().unwrap());
    assert_eq!(within(status).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn health_reports_whether_a_server_is_serving() {
    let directory = directory(&[]);
    let running = Running::start(unstuck(directory.path(), &["serve"], &[]));
    let address = running.grpc.to_string();
    let ask = |address: &str| unstuck(directory.path(), &["health", "--server", address], &[]);
    let serving = output(ask(&address));
    assert_eq!(
        (serving.status.code(), text(&serving.stdout)),
        (Some(0), "serving\n")
    );
    running.stop().await;
    let gone = output(ask(&address));
    let complaint = format!("unstuck: cannot connect to \"{address}\"\n");
    assert_eq!(
        (gone.status.code(), text(&gone.stderr)),
        (Some(1), &*complaint)
    );
}

#[tokio::test]
async fn health_uses_the_address_of_the_configuration() {
    let configured = |toml: String| directory(&[("unstuck.toml", &toml), ("c.toml", &toml)]);
    let elsewhere = directory(&[]);
    let running = Running::start(unstuck(elsewhere.path(), &["serve"], &[]));
    let port = running.grpc.port();
    let beside = configured(format!("[server]\ngrpc = \"0.0.0.0:{port}\"\n"));
    let file = beside.path().join("c.toml").display().to_string();
    let ask = |directory: &Path, args: &[&str], grpc: Option<&str>| {
        let mut command = unstuck(directory, args, &[]);
        match grpc {
            Some(address) => command.env("UNSTUCK__SERVER__GRPC", address),
            None => command.env_remove("UNSTUCK__SERVER__GRPC"),
        };
        output(command)
    };
    let here = elsewhere.path();
    for output in [
        ask(beside.path(), &["health"], None),
        ask(here, &["health", "--config", &file], None),
        ask(here, &["health"], Some(&format!("127.0.0.1:{port}"))),
        ask(here, &["health"], Some(&format!("0.0.0.0:{port}"))),
    ] {
        let complaint = text(&output.stderr);
        assert_eq!(text(&output.stdout), "serving\n", "{complaint}");
    }
    check_refused(
        unstuck(here, &["health"], &[]),
        &["server.grpc", "--server"],
    );
}

#[test]
fn printed_commands_can_be_typed() {
    let directory = directory(&[]);
    let everywhere = [
        ("UNSTUCK__SERVER__GRPC", "0.0.0.0:0"),
        ("UNSTUCK__SERVER__HTTP", "0.0.0.0:0"),
    ];
    let mut child = ChildGuard::start(unstuck(directory.path(), &["--insecure"], &everywhere));
    let stdout = child.0.stdout.take().unwrap();
    let lines: Vec<String> = waited(move || {
        let lines = BufReader::new(stdout).lines().map(Result::unwrap);
        lines.take(7).collect()
    });
    let port = |line: &str| line.rsplit_once(':').unwrap().1.to_owned();
    let (grpc, http) = (port(&lines[0]), port(&lines[1]));
    assert_eq!(
        lines,
        [
            format!("unstuck: gRPC on 0.0.0.0:{grpc}"),
            format!("unstuck: HTTP on 0.0.0.0:{http}"),
            "unstuck: store in ./unstuck-data; press Ctrl-C to stop".to_owned(),
            "try: cargo run --release -- replay examples/read-loop.ndjson".to_owned(),
            format!("     UNSTUCK_SERVER=127.0.0.1:{grpc} python3 examples/broker.py"),
            format!("     curl http://127.0.0.1:{http}/metrics"),
            format!("     open the console in a browser: http://127.0.0.1:{http}/"),
        ]
    );
}

// Configuration and usage errors

/// One line on standard error that holds all of these, and exit code 2.
#[track_caller]
pub fn check_refused(command: Command, says: &[&str]) {
    let output = output(command);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(complaint.starts_with("unstuck: "), "{complaint}");
    for part in says {
        assert!(complaint.contains(part), "{part:?} is not in {complaint}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (variable, key) in [
        ("UNSTUCK__SERVER__GRPC", "server.grpc"),
        ("UNSTUCK__SERVER__HTTP", "server.http"),
    ] {
        let directory = directory(&[]);
        let command = unstuck(directory.path(), &[], &[(variable, &address)]);
        check_refused(command, &[&address, key, "in use"]);
    }
}

#[test]
fn an_invalid_configuration_is_refused_in_one_line() {
    let cases: [(&str, &[&str]); 14] = [
        (
            "[limits]\nsesions_max = 5",
            &["c.toml:2", "`limits.sesions_max`", "`sessions_max`"],
        ),
        ("[limts]\n", &["c.toml:1", "limts", "`limits`"]),
        (
            "\n[limits]\nsessions_max = \"many\"",
            &["c.toml:3", "limits.sessions_max", "integer"],
        ),
        (
            "[limits]\nsessions_max = 0",
            &["c.toml:2", "limits.sessions_max"],
        ),
        (
            "[limits]\nstreams_max = 1_000",
            &["c.toml:2", "limits.streams_max", "more than 81"],
        ),
        (
            "[detect.exact_repeat]\ncount = 11",
            &["c.toml:2", "detect.exact_repeat.count", "11", "10"],
        ),
        (
            "[detect.similar_turns]\nsimilarity = 1.5",
            &["c.toml:2", "detect.similar_turns.similarity"],
        ),
        (
            "[detect.exact_repeat]\nsoft = \"escalate\"",
            &["c.toml:2", "detect.exact_repeat.soft"],
        ),
        (
            "[profiles.strict.detect.exact_repeat]\ncount = 11",
            &["c.toml:2", "profiles.strict.detect.exact_repeat.count"],
        ),
        ("[limits\n", &["c.toml:1", "syntax"]),
        (
            "[[notify]]\nname = 'a'\nurl = 'ftp://example.com'",
            &["invalid `notify`[0].url"],
        ),
        (
            "[[notify]]\nname = 'a'\nurl = 'https://example.com'\nsecret = { file = 'nowhere' }",
            &["invalid `notify`[0].secret", "nowhere"],
        ),
        (
            "[tls]\ncert = 'nowhere.pem'\nkey = 'nowhere.key'",
            &["[tls]", "nowhere"],
        ),
        (
            "[auth]\ntokens = 'nowhere.toml'",
            &["[auth] tokens", "nowhere.toml"],
        ),
    ];
    for (toml, says) in cases {
        let directory = directory(&[("c.toml", toml)]);
        for args in [
            &["--config", "c.toml"][..],
            &["config", "check", "--config", "c.toml"],
        ] {
            check_refused(unstuck(directory.path(), args, &[]), says);
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let directory = directory(&[]);
    let command = unstuck(directory.path(), &["--config", "absent.toml"], &[]);
    check_refused(command, &["absent.toml"]);
    let command = unstuck(directory.path(), &["--config", "."], &[]);
    check_refused(command, &["cannot read"]);
}

#[test]
fn an_unusable_variable_is_named() {
    let directory = directory(&[]);
    let cases = [
        ("UNSTUCK__SERVER__GRPC", "nonsense", "server.grpc"),
        (
            "UNSTUCK__LIMITS__SESSIONS_MAX",
            "many",
            "limits.sessions_max",
        ),
        ("UNSTUCK__LIMITS__SESIONS_MAX", "5", "`sessions_max`"),
    ];
    for (variable, value, key) in cases {
        let command = unstuck(directory.path(), &[], &[(variable, value)]);
        check_refused(command, &[variable, key]);
    }
}

#[test]
fn an_unknown_flag_is_a_usage_error() {
    let directory = directory(&[]);
    let output = output(unstuck(directory.path(), &["--nonsense"], &[]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--nonsense"));
}

// Valid configuration

#[test]
fn a_printed_configuration_loads_again() {
    let directory = directory(&[("c.toml", "[limits]\nsessions_max = 7\n")]);
    let print = |file: &str| {
        let output = output(unstuck(
            directory.path(),
            &["config", "print", "--config", file],
            &[],
        ));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout).to_owned()
    };
    let printed = print("c.toml");
    assert!(printed.contains("sessions_max = 7"), "{printed}");
    fs::write(directory.path().join("printed.toml"), &printed).unwrap();
    assert_eq!(print("printed.toml"), printed);
    let check = unstuck(
        directory.path(),
        &["config", "check", "--config", "printed.toml"],
        &[],
    );
    assert_eq!(text(&output(check).stdout), "printed.toml: ok\n");
}

#[test]
fn a_file_in_the_working_directory_is_found_and_variables_win_over_it() {
    let directory = directory(&[(
        "unstuck.toml",
        "[limits]\nsessions_max = 7\nagents_max = 8\n",
    )]);
    let variables = [("UNSTUCK__LIMITS__SESSIONS_MAX", "9")];
    let output = output(unstuck(directory.path(), &["config", "print"], &variables));
    let printed = text(&output.stdout);
    assert!(printed.contains("sessions_max = 9"), "{printed}");
    assert!(printed.contains("agents_max = 8"), "{printed}");
}

#[test]
fn a_file_from_another_system_loads() {
    let directory = directory(&[("c.toml", "\u{feff}[limits]\r\nsessions_max = 7\r\n")]);
    let check = unstuck(
        directory.path(),
        &["config", "check", "--config", "c.toml"],
        &[],
    );
    assert_eq!(text(&output(check).stdout), "c.toml: ok\n");
}

// Logs

/// Sends a marked text in every field that can hold one, and ends the session.
pub async fn send_in_every_field(server: &Server, marker: &str) {
    let call = call(marker, &format!("{{\"path\": \"{marker}\"}}"), marker).change(|call| {
        call.error = marker.to_owned();
        call.content_hash = marker.to_owned();
    });
    server.play("s", call.times(4)).await;
    server
        .play("s", turn(&format!("{marker} {}", like("colour"))).times(4))
        .await;
    let mut deltas = server.deltas().await;
    deltas.ask(pieces([last_delta("s", "", marker)])).await;
    server
        .try_record(turn(marker).of(&format!("{marker} ")))
        .await
        .unwrap_err();
    server.open("s", marker, &[]).await.unwrap_err();
    let result = server.play("s", turn(&like("colour")).times(6)).await;
    assert_eq!(result[5].action(), Action::Terminate);
    server.terminate("t").await;
}

#[tokio::test]
async fn no_log_line_carries_agent_text() {
    let directory = directory(&[]);
    let verbose = [("RUST_LOG", "debug,h2=info,hyper=info")];
    let running = Running::start(unstuck(directory.path(), &["serve"], &verbose));
    send_in_every_field(&running.server().await, "MARKED-TEXT").await;
    let (_, log) = running.stop().await;
    for line in [
        "an operator terminated the session",
        "session is looping session=\"s\" detector=\"exact_repeat\" action=\"block\"",
        "session is terminated session=\"s\" detector=\"monologue\" action=\"terminate\"",
    ] {
        assert!(log.contains(line), "{line} is not in\n{log}");
    }
    assert!(!log.contains("MARKED-TEXT"), "{log}");
}

#[tokio::test]
async fn a_termination_is_logged_once_despite_later_events() {
    let directory = directory(&[]);
    let running = Running::start(unstuck(directory.path(), &["serve"], &[]));
    let server = running.server().await;
    // At the default level, where a warning and a block leave no line.
    server.play("events", turn(&like("colour")).times(8)).await;
    let mut deltas = server.deltas().await;
    for n in 0..8 {
        let text = like("colour");
        deltas
            .ask(pieces([last_delta("deltas", &n.to_string(), &text)]))
            .await;
    }
    server.play("calls", ask("x").times(5)).await;
    let (_, log) = running.stop().await;
    let lines = |session: &str, action: &str| {
        let is = |line: &&str| {
            line.contains("WARN")
                && line.contains(&format!("session=\"{session}\""))
                && line.contains(&format!("action=\"{action}\""))
        };
        log.lines().filter(is).count()
    };
    assert_eq!(lines("events", "terminate"), 1, "{log}");
    assert_eq!(lines("deltas", "terminate"), 1, "{log}");
    assert!(!log.contains("\"calls\""), "{log}");
}

#[tokio::test]
async fn a_termination_during_a_streamed_text_is_logged_once() {
    let levels = ["soft", "hard", "final_action"].map(|level| format!("{level} = \"terminate\"\n"));
    let config = format!("[detect.repetition]\n{}", levels.concat());
    let directory = directory(&[("unstuck.toml", &config)]);
    let running = Running::start(unstuck(directory.path(), &["serve"], &[]));
    let deltas = running.server().await.deltas().await;
    for _ in 0..40 {
        let text = "Let me look at it once more before I go on. ";
        deltas.send(pieces([piece("s", "t", text)])).await;
    }
    // Unread responses may be coalesced.
    let answers = deltas.finish().await.into_iter();
    let answers: i32 = answers.map(|answer| 1 + answer.coalesced).sum();
    assert!(answers > 1, "the termination, and it again");
    let (_, log) = running.stop().await;
    let lines = log
        .lines()
        .filter(|line| line.contains("session is terminated"));
    let lines: Vec<_> = lines.collect();
    let [line] = lines[..] else { panic!("{log}") };
    assert!(line.contains("WARN") && line.contains("action=\"terminate\""));
}

#[tokio::test]
async fn json_logs_have_one_object_per_line() {
    let directory = directory(&[]);
    let args = ["serve", "--log-format", "json"];
    let running = Running::start(unstuck(directory.path(), &args, &[]));
    let server = running.server().await;
    server.record(turn("on it").of("s")).await;
    server.terminate("s").await;
    let (_, log) = running.stop().await;
    let lines = log
        .lines()
        .map(|line| serde_json::from_str(line).expect(line));
    let lines: Vec<serde_json::Value> = lines.collect();
    let terminated = lines.iter().find(|line| line["session"] == "\"s\"");
    let terminated = terminated.unwrap_or_else(|| panic!("{log}"));
    assert_eq!(terminated["message"], "an operator terminated the session");
    assert_eq!(terminated["previous_status"], "active");
}

// Public addresses

#[test]
fn a_public_address_needs_tls_and_tokens_or_the_insecure_flag() {
    let tokens = crate::auth::Tokens::new(&["admin"]);
    let open = ("UNSTUCK__SERVER__GRPC", "0.0.0.0:0");
    let path = tokens.path();
    let auth = ("UNSTUCK__AUTH__TOKENS", path.to_str().unwrap());
    for (variables, key) in [
        (vec![open], "server.grpc"),
        (vec![open, auth], "server.grpc"),
        (vec![("UNSTUCK__SERVER__HTTP", "[::]:0")], "server.http"),
    ] {
        let directory = directory(&[]);
        let refused = output(unstuck(directory.path(), &["serve"], &variables));
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let error = text(&refused.stderr);
        assert!(
            error.contains(key) && error.contains("--insecure"),
            "{error}"
        );
        let check = ["config", "check", "--insecure"];
        let checked = |args| output(unstuck(directory.path(), args, &variables));
        let [refused, accepted] = [checked(&check[..2]), checked(&check)];
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert_eq!(text(&refused.stderr), error);
        assert_eq!(accepted.status.code(), Some(0), "{accepted:?}");
        let serve = unstuck(directory.path(), &["serve", "--insecure"], &variables);
        let running = Running::start(serve);
        assert!(running.grpc.port() > 0);
    }
    // Anywhere on the loopback is fine.
    for loopback in ["127.0.0.2:0", "[::ffff:127.0.0.1]:0"] {
        let directory = directory(&[]);
        let variables = [("UNSTUCK__SERVER__GRPC", loopback)];
        Running::start(unstuck(directory.path(), &["serve"], &variables));
    }
}
