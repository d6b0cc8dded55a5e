//! `unstuck hook`: a payload in, a reply out, and nothing that could hold up an agent.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    harness::DEADLINE,
    lifecycle::{ChildGuard, output, text},
};

/// A user's home, with the directories of the local service in it.
pub struct Home(TempDir);

impl Home {
    pub fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        for dir in ["run", "run/unstuck", ".config/unstuck", "work"] {
            fs::create_dir_all(home.path(dir)).unwrap();
        }
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(home.path("run/unstuck"), private).unwrap();
        home.configure("");
        home
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes the user's own file, with a budget that is long enough for a busy machine.
    pub fn configure(&self, hooks: &str) {
        let text = format!("[hooks]\nbudget_millis = 60_000\n{hooks}");
        self.write(".config/unstuck/unstuck.toml", &text);
    }

    /// The program in this home, with nothing else of the environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unstuck"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.0.path())
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .current_dir(self.path("work"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a hook with this payload. It must end with 0, whatever happens.
    #[track_caller]
    pub fn hook(&self, args: &[&str], payload: &[u8], variables: &[(&str, &str)]) -> String {
        let file = self.path("payload");
        fs::write(&file, payload).unwrap();
        let mut command = self.command(&[&["hook"], args].concat());
        command.stdin(fs::File::open(file).unwrap());
        command.envs(variables.iter().copied());
        let ran = output(command);
        assert_eq!(ran.status.code(), Some(0), "{ran:?}");
        text(&ran.stdout).to_owned()
    }

    fn http_socket(&self) -> PathBuf {
        self.path("run/unstuck/http.sock")
    }

    /// What the command noted of an agent's hooks.
    pub fn journal(&self, agent: &str) -> Value {
        let path = self.path(&format!(".local/state/unstuck/hooks/{agent}.json"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }
}

/// A request as the fake service got it.
pub struct FakeRequest {
    pub head: String,
    pub body: String,
}

impl FakeRequest {
    fn body(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

pub fn read_request(stream: &mut impl Read) -> Option<FakeRequest> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let count = stream.read(&mut chunk).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&chunk[..count]);
        let read = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = read.split_once("\r\n\r\n") {
            let head = head.to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.unwrap().trim().parse().unwrap() {
                let body = body.to_owned();
                return Some(FakeRequest { head, body });
            }
        }
    }
}

pub fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n{body}")
}

pub fn ok(body: &str) -> String {
    response("200 OK", "", body)
}

/// Answers each connection with this text. An empty one: never.
pub fn serve_unix(home: &Home, answer: String) -> Receiver<FakeRequest> {
    serve_unix_after(home, Duration::ZERO, answer)
}

/// The same, with this time before each answer.
pub fn serve_unix_after(home: &Home, delay: Duration, answer: String) -> Receiver<FakeRequest> {
    let _ = fs::remove_file(home.http_socket());
    let listener = UnixListener::bind(home.http_socket()).unwrap();
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let Some(request) = read_request(&mut stream) else {
                continue;
            };
            let _ = sender.send(request);
            thread::sleep(delay);
            let _ = stream.write_all(answer.as_bytes());
            if answer.is_empty() {
                open.push(stream);
            }
        }
    });
    requests
}

pub fn serve_tcp(answer: String) -> (String, Receiver<FakeRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if let Some(request) = read_request(&mut stream) {
                let _ = sender.send(request);
                let _ = stream.write_all(answer.as_bytes());
            }
        }
    });
    (url, requests)
}

const REPLY: &str = r#"{"systemMessage":"[unstuck] a.rs was read 3 times"}"#;

#[test]
fn a_payload_goes_to_the_service_and_its_reply_to_the_agent() {
    let home = Home::new();
    let requests = serve_unix(&home, ok(REPLY));
    let payload = br#"{"sessionId": "s", "toolName": "view", "ratio": 1.50}"#;
    let args = ["copilot", "--event", "pre Tool/Use", "--session", "ä"];
    let reply = home.hook(&args, payload, &[]);
    assert_eq!(reply, format!("{REPLY}\n"));
    let request = requests.recv_timeout(DEADLINE).unwrap();
    let first = "post /v1/hooks/copilot?event=pre%20tool%2fuse&session=%c3%a4 http/1.1\r\n";
    assert!(request.head.starts_with(first), "{}", request.head);
    assert!(request.head.contains("content-type: application/json"));
    assert!(request.head.contains("host: localhost"));
    // The payload as it is, then what this machine knows.
    let start = r#"{"sessionId": "s", "toolName": "view", "ratio": 1.50,"unstuck":{"#;
    assert!(request.body.starts_with(start), "{}", request.body);
    assert!(request.body()["unstuck"]["host"].is_string());
    let noted = home.journal("copilot");
    assert_eq!(noted["failures"], 0);
    assert!(noted["answered_at"].as_u64().unwrap() > 0);
}

#[test]
fn exit_codes_and_tokens_come_from_the_agents_own_transcript() {
    let home = Home::new();
    let requests = serve_unix(&home, ok("{}"));
    let exit_code = |path: &Path, variables: &[(&str, &str)]| {
        let payload = json!({
            "hook_event_name": "PostToolUse", "tool_use_id": "call_1",
            "session_id": "s", "transcript_path": path,
        });
        home.hook(&["codex"], payload.to_string().as_bytes(), variables);
        let request = requests.recv_timeout(DEADLINE).unwrap();
        request.body()["unstuck"]["exit_code"].clone()
    };
    let line = "{\"item\": {\"id\": \"call_1\", \"exit_code\": 3}}\n";
    let own = home.write(".codex/sessions/a.jsonl", line);
    assert_eq!(exit_code(&own, &[]), 3);
    // Of another directory, it is none of the agent's.
    let foreign = home.write("work/a.jsonl", line);
    assert_eq!(exit_code(&foreign, &[]), Value::Null);
    let moved = home.path("work");
    let codex_home = [("CODEX_HOME", moved.to_str().unwrap())];
    assert_eq!(exit_code(&foreign, &codex_home), 3);
    assert_eq!(exit_code(&own, &codex_home), Value::Null);
    // Further away than the end that is read.
    let long = home.write(
        ".codex/b.jsonl",
        &(line.to_owned() + &"x".repeat(64 * 1024)),
    );
    assert_eq!(exit_code(&long, &[]), Value::Null);

    let line = json!({"message": {
        "model": "m", "content": [{"type": "tool_use", "id": "t1"}],
        "usage": {"input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 7},
    }});
    let path = home.write(".claude/projects/p/s.jsonl", &format!("{line}\n"));
    let payload = json!({
        "hook_event_name": "PostToolBatch", "tool_calls": [{"tool_use_id": "t1"}],
        "transcript_path": path,
    });
    home.hook(&["claude-code"], payload.to_string().as_bytes(), &[]);
    let request = requests.recv_timeout(DEADLINE).unwrap();
    let expected = json!({
        "input_tokens": 105, "output_tokens": 7, "cached_input_tokens": 100, "model": "m",
    });
    assert_eq!(request.body()["unstuck"]["usage"], expected);
}

#[test]
fn whatever_fails_the_agent_goes_on_and_the_reason_is_noted() {
    let home = Home::new();
    home.configure("autostart = false\n");
    let failure = |home: &Home, payload: &[u8]| {
        let reply = home.hook(&["codex"], payload, &[]);
        assert_eq!(reply, "{}\n");
        let noted = home.journal("codex");
        assert!(noted["failures"].as_u64().unwrap() > 0);
        noted["failure"].as_str().unwrap().to_owned()
    };
    assert!(failure(&home, b"{}").contains("not running"));
    // A socket without a listener.
    drop(UnixListener::bind(home.http_socket()).unwrap());
    assert!(failure(&home, b"{}").contains("not running"));
    for (answer, expected) in [
        (response("401 Unauthorized", "", "{}"), "answered 401"),
        (response("500 Oops", "", "{}"), "answered 500"),
        (ok("not JSON"), "not a JSON object"),
        (ok("[]"), "not a JSON object"),
        (
            ok(&(" ".repeat(2 * 1024 * 1024) + "{}")),
            "cannot be reached",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}".to_owned(),
            "cannot be reached",
        ),
        ("SSH-2.0-OpenSSH\r\n".to_owned(), "cannot be reached"),
    ] {
        let _requests = serve_unix(&home, answer);
        let noted = failure(&home, b"{}");
        assert!(noted.contains(expected), "{noted}");
    }
    // A service that does not answer.
    let _requests = serve_unix(&home, String::new());
    home.write(".config/unstuck/unstuck.toml", "");
    assert_eq!(failure(&home, b"{}"), "no reply within 250 ms");
    home.configure("autostart = false\n");
    // What is sent makes no sense.
    let _requests = serve_unix(&home, ok(REPLY));
    for payload in [&b""[..], b"no JSON", b"[]", b"\xff\xfe", b"{\"a\": "] {
        assert!(failure(&home, payload).contains("payload is not"));
    }
    let huge = format!("{{\"a\": \"{}\"}}", "x".repeat(5 * 1024 * 1024));
    assert!(failure(&home, huge.as_bytes()).contains("larger than 4 MiB"));
    // The configuration makes no sense.
    home.configure("kill = 'yes'\n");
    assert!(failure(&home, b"{}").contains("unstuck.toml"));
    let log = fs::read_to_string(home.path(".local/state/unstuck/hooks/hooks.log")).unwrap();
    assert!(
        log.lines()
            .any(|line| line.ends_with("codex: the service answered 401"))
    );
    let own = home.path(".config/unstuck/unstuck.toml");
    fs::remove_file(&own).unwrap();
    let made = Command::new("mkfifo").arg(&own).status().unwrap();
    assert!(made.success());
    assert!(failure(&home, b"{}").contains("not a regular file"));
    fs::remove_file(&own).unwrap();
    // It recovers.
    home.configure("");
    let args = ["codex"];
    assert_eq!(home.hook(&args, b"{}", &[]), format!("{REPLY}\n"));
    assert_eq!(home.journal("codex")["failures"], 0);
}

#[test]
fn wrong_arguments_and_closed_pipes_do_not_refuse_a_call() {
    let home = Home::new();
    for args in [
        &["codex", "--of-a-later-version"][..],
        &[],
        &["codex", "--token-env", "x"],
        &["../etc"],
    ] {
        assert_eq!(home.hook(args, b"{}", &[]), "{}\n");
    }
    let _requests = serve_unix(&home, ok(REPLY));
    let mut command = home.command(&["hook", "codex"]);
    command.stdin(Stdio::piped());
    let mut child = ChildGuard::start(command);
    drop(child.0.stdout.take());
    child.0.stdin.take().unwrap().write_all(b"{}").unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    // An agent that never closes its end.
    home.write(".config/unstuck/unstuck.toml", "");
    let mut command = home.command(&["hook", "codex"]);
    command.stdin(Stdio::piped());
    let mut child = ChildGuard::start(command);
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_file_of_the_working_directory_decides_nothing() {
    let home = Home::new();
    let (elsewhere, stolen) = serve_tcp(ok("{}"));
    let hostile = format!("[hooks]\nenabled = false\nautostart = false\nurl = \"{elsewhere}\"\n");
    home.write("work/unstuck.toml", &hostile);
    let _requests = serve_unix(&home, ok(REPLY));
    let args = ["codex"];
    assert_eq!(home.hook(&args, b"{}", &[]), format!("{REPLY}\n"));
    assert!(stolen.try_recv().is_err());
    // The same file decides where the user names it.
    let named = [&args[..], &["--config", "unstuck.toml"]].concat();
    assert_eq!(home.hook(&named, b"{}", &[]), "{}\n");
}

#[test]
fn a_token_goes_only_to_the_address_that_it_is_for() {
    let home = Home::new();
    let (url, requests) = serve_tcp(ok(REPLY));
    let (other, of_other) = serve_tcp(ok(REPLY));
    let text = format!("url = \"{url}/base/\"\ntoken_env = \"TEAM_TOKEN\"\n");
    home.configure(&text);
    let secrets = [("TEAM_TOKEN", "of-the-team"), ("UNSTUCK_TOKEN", "own")];
    let args = ["codex"];
    assert_eq!(home.hook(&args, b"{}", &secrets), format!("{REPLY}\n"));
    let request = requests.recv_timeout(DEADLINE).unwrap();
    assert!(
        request
            .head
            .starts_with("post /base/v1/hooks/codex http/1.1\r\n")
    );
    assert!(request.head.contains("authorization: bearer of-the-team"));
    // Another address that the environment or a flag names.
    let mut variables = secrets.to_vec();
    variables.push(("UNSTUCK_HOOKS_URL", &other));
    home.hook(&args, b"{}", &variables);
    let request = of_other.recv_timeout(DEADLINE).unwrap();
    assert!(request.head.contains("authorization: bearer own"));
    let flag = [&args[..], &["--http", &url]].concat();
    home.hook(&flag, b"{}", &variables);
    assert!(
        !requests
            .recv_timeout(DEADLINE)
            .unwrap()
            .head
            .contains("authorization")
    );
    let flag = [&flag[..], &["--token-env", "TEAM_TOKEN"]].concat();
    home.hook(&flag, b"{}", &variables);
    let request = requests.recv_timeout(DEADLINE).unwrap();
    assert!(request.head.contains("authorization: bearer of-the-team"));
    // Without TLS nothing leaves the machine.
    let plain = [&args[..], &["--http", "http://unstuck.example"]].concat();
    assert_eq!(home.hook(&plain, b"{}", &[]), "{}\n");
    let noted = home.journal("codex");
    assert!(noted["failure"].as_str().unwrap().contains("use https"));
}

#[test]
fn a_socket_that_others_could_have_made_is_not_used() {
    let home = Home::new();
    let requests = serve_unix(&home, ok(REPLY));
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(home.path("run/unstuck"), open).unwrap();
    let args = ["codex"];
    assert_eq!(home.hook(&args, b"{}", &[]), "{}\n");
    let noted = home.journal("codex");
    assert!(
        noted["failure"]
            .as_str()
            .unwrap()
            .contains("open to other users")
    );
    assert!(requests.recv_timeout(Duration::ZERO).is_err());
}

/// Runs hooks below a shell that is called like an agent, and returns how often it was
/// interrupted.
fn interruptions(home: &Home, program: &str, hooks: usize, levels: usize) -> usize {
    let shell = home.path(program);
    // A link, because a copy cannot be run while another test's process still has it open.
    let _ = fs::remove_file(&shell);
    symlink("/bin/bash", &shell).unwrap();
    let hook = format!(
        "{} hook codex < {}",
        env!("CARGO_BIN_EXE_unstuck"),
        home.write("payload", r#"{"session_id": "s"}"#).display(),
    );
    // A shell for each further level; `:` keeps it from being replaced by its command.
    let hook = (0..levels).fold(hook, |inner, _| {
        let quoted = inner.replace('\'', r"'\''");
        format!("/bin/bash -c '{quoted}; :'")
    });
    let script = format!(
        "trap 'echo interrupted' INT\n{}",
        format!("{hook}\n").repeat(hooks)
    );
    // A shell cannot trap what it was started to ignore, as a job in the background is.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=INT")
        .arg(&shell)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", home.path(""))
        .env("XDG_RUNTIME_DIR", home.path("run"))
        .args(["-c", &format!("{script}\n:")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ran = output(command);
    text(&ran.stdout).matches("interrupted").count()
}

#[test]
fn an_agent_that_no_reply_ends_is_interrupted_once_and_only_if_allowed() {
    let home = Home::new();
    let interrupt = || response("200 OK", "unstuck-interrupt: 1\r\n", REPLY);
    let _requests = serve_unix(&home, interrupt());
    assert_eq!(interruptions(&home, "codex", 1, 0), 0, "not allowed");
    home.configure("kill = true\n");
    assert_eq!(interruptions(&home, "codex", 2, 0), 1);
    assert_eq!(interruptions(&home, "codex", 1, 6), 1, "in another process");
    assert_eq!(interruptions(&home, "codex", 1, 8), 0, "too far away");
    assert_eq!(interruptions(&home, "another-program", 1, 0), 0);
    let noted = home.journal("codex");
    assert!(noted["failure"].as_str().unwrap().contains("no ancestor"));
    let _requests = serve_unix(&home, ok(REPLY));
    assert_eq!(interruptions(&home, "codex", 1, 0), 0, "not asked for");
}
