//! `unstuck serve --local`: the service of one user, which hooks start by themselves.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Instant,
};

use crate::{
    harness::DEADLINE,
    hook_command::Home,
    lifecycle::{ChildGuard, output, text},
};

/// Asks until there is an answer.
#[track_caller]
fn poll<T>(mut find: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "not within the deadline");
        thread::yield_now();
    }
}

fn start(home: &Home, args: &[&str]) -> ChildGuard {
    let child = ChildGuard::start(home.command(&[&["serve", "--local"], args].concat()));
    poll(|| {
        sockets(home)
            .iter()
            .all(|socket| socket.exists())
            .then_some(())
    });
    child
}

fn sockets(home: &Home) -> [PathBuf; 2] {
    ["http.sock", "grpc.sock"].map(|name| home.path("run/unstuck").join(name))
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

/// The sockets of a process that listen on a port.
fn listening_ports(pid: u32) -> Vec<String> {
    let inodes: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|file| fs::read_link(file.unwrap().path()).ok())
        .filter_map(|link| {
            let link = link.to_str()?.strip_prefix("socket:[")?.to_owned();
            Some(link.trim_end_matches(']').to_owned())
        })
        .collect();
    assert!(!inodes.is_empty(), "its sockets cannot be read");
    let tables =
        ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/net/{name}")).unwrap());
    let lines = tables.iter().flat_map(|table| table.lines());
    let own = lines.filter(|line| {
        let inode = line.split_whitespace().nth(9).unwrap_or_default();
        inodes.iter().any(|own| own == inode)
    });
    own.map(str::to_owned).collect()
}

#[test]
fn only_its_user_can_use_it_and_it_has_no_port() {
    let home = Home::new();
    // A directory that was open to other users before.
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(home.path("run/unstuck"), open).unwrap();
    let service = start(&home, &[]);
    assert_eq!(mode(&home.path("run/unstuck")), 0o700);
    for socket in sockets(&home) {
        assert_eq!(mode(&socket), 0o600, "{socket:?}");
    }
    let state = home.path(".local/state/unstuck");
    assert_eq!(mode(&state), 0o700);
    for file in ["key", "lock", "store"] {
        assert_eq!(mode(&state.join(file)) & 0o077, 0, "{file}");
    }
    assert_eq!(listening_ports(service.0.id()), Vec::<String>::new());
    // One at a time.
    let second = output(home.command(&["serve", "--local"]));
    assert_eq!(second.status.code(), Some(1));
    assert_eq!(
        text(&second.stderr),
        "unstuck: the local service runs already\n"
    );
}

#[test]
fn commands_use_it_where_no_other_service_is_configured() {
    let home = Home::new();
    let nobody = output(home.command(&["health", "--server", "unix:/nowhere/grpc.sock"]));
    assert_eq!(nobody.status.code(), Some(1));
    let mut service = start(&home, &[]);
    let healthy = |args: &[&str]| {
        let ran = output(home.command(&[&["health"], args].concat()));
        text(&ran.stdout) == "serving\n"
    };
    assert!(healthy(&[]));
    let [_, socket] = sockets(&home);
    let server = format!("unix:{}", socket.display());
    assert!(healthy(&["--server", &server]));
    let listed = output(home.command(&["sessions", "--output", "json"]));
    assert_eq!(listed.status.code(), Some(0), "{listed:?}");
    // It is found where XDG_RUNTIME_DIR is another, as under sudo or cron.
    let mut elsewhere = home.command(&["health"]);
    elsewhere.env_remove("XDG_RUNTIME_DIR");
    assert_eq!(text(&output(elsewhere).stdout), "serving\n");
    // A file that names a port comes first.
    home.write("work/unstuck.toml", "[server]\ngrpc = \"127.0.0.1:1\"\n");
    assert!(!healthy(&[]));
    service.signal("TERM");
    assert_eq!(service.0.wait().unwrap().code(), Some(0));
    for socket in sockets(&home) {
        assert!(!socket.exists(), "{socket:?}");
    }
}

#[test]
fn a_file_of_the_working_directory_does_not_change_it() {
    let home = Home::new();
    home.write("work/unstuck.toml", "this is no configuration");
    let _service = start(&home, &[]);
}

/// The process of the service that a hook has started.
pub struct StartedService(pub u32);

impl StartedService {
    fn stat(&self, field: usize) -> String {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields.split_whitespace().nth(field - 3).unwrap().to_owned()
    }
}

pub fn started_pid(home: &Home) -> u32 {
    let lock = home.path(".local/state/unstuck/lock");
    poll(|| {
        let text = fs::read_to_string(&lock).ok()?;
        text.lines().nth(1)?.parse().ok()
    })
}

impl Drop for StartedService {
    fn drop(&mut self) {
        let killed = Command::new("kill")
            .args(["-s", "KILL", &self.0.to_string()])
            .status();
        assert!(killed.unwrap().success());
        // Its sockets accept connections, which end without an answer, until its last thread
        // has ended. One that is not waited for stays as a zombie.
        poll(|| match fs::read_dir(format!("/proc/{}/task", self.0)) {
            Ok(threads) => {
                let stat = fs::read_to_string(format!("/proc/{}/stat", self.0));
                let is_zombie = stat.is_ok_and(|stat| stat.contains(") Z "));
                (is_zombie && threads.count() == 1).then_some(())
            }
            Err(_) => Some(()),
        });
    }
}

#[test]
fn a_hook_starts_it_detached_and_with_a_clean_environment() {
    let home = Home::new();
    let secrets = [
        ("API_KEY", "a-secret"),
        ("UNSTUCK__HOOKS__ENABLED", "false"),
    ];
    let reply = home.hook(&["codex"], b"{}", &secrets);
    assert_eq!(reply, "{}\n");
    let service = StartedService(started_pid(&home));
    poll(|| {
        sockets(&home)
            .iter()
            .all(|socket| socket.exists())
            .then_some(())
    });
    let environment = fs::read(format!("/proc/{}/environ", service.0)).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    let names = environment
        .split('\0')
        .filter_map(|it| Some(it.split_once('=')?.0));
    assert_eq!(names.collect::<Vec<_>>(), ["HOME", "XDG_RUNTIME_DIR"]);
    // It leads a session of its own and holds no directory.
    assert_eq!(service.stat(6), service.0.to_string());
    let directory = fs::read_link(format!("/proc/{}/cwd", service.0)).unwrap();
    assert_eq!(directory, Path::new("/"));
    // Two of them are not started.
    for _ in 0..3 {
        home.hook(&["codex"], b"{}", &[]);
    }
    let healthy = output(home.command(&["health"]));
    assert_eq!(text(&healthy.stdout), "serving\n");
    assert_eq!(started_pid(&home), service.0);
}

/// The last reply to a session of Claude Code that reads one file three times.
fn read_loop(home: &Home, session: &str) -> String {
    let read = |n: u32| {
        let call = serde_json::json!({
            "tool_name": "Read",
            "tool_input": {"file_path": "/home/dev/demo/src/money.rs"},
            "tool_use_id": format!("t{n}"),
            "tool_response": "1\thello",
        });
        let payload = serde_json::json!({
            "hook_event_name": "PostToolBatch",
            "session_id": session,
            "cwd": "/home/dev/demo",
            "prompt_id": "p1",
            "tool_calls": [call],
        });
        home.hook(&["claude-code"], payload.to_string().as_bytes(), &[])
    };
    let [_, _, last] = [0, 1, 2].map(read);
    last
}

#[test]
fn what_init_changes_is_in_force_for_the_next_hook() {
    let home = Home::new();
    let init = |args: &[&str]| {
        let args = [&["init", "--yes", "--agent", "claude-code"], args].concat();
        let ran = output(home.command(&args));
        assert_eq!(ran.status.code(), Some(0), "{ran:?}");
        StartedService(started_pid(&home))
    };
    let first = init(&[]);
    assert!(read_loop(&home, "s1").contains("[unstuck]"));
    let second = init(&["--shadow"]);
    assert_ne!(first.0, second.0);
    std::mem::forget(first);
    assert_eq!(read_loop(&home, "s2"), "{}\n");
    let doctor = output(home.command(&["doctor"]));
    assert!(
        text(&doctor.stdout).contains("Claude Code  shadow"),
        "{doctor:?}"
    );
    // One that nothing was changed for runs on.
    let third = init(&["--shadow"]);
    assert_eq!(second.0, third.0);
    std::mem::forget(second);
}

#[test]
fn a_service_that_a_person_has_started_is_not_ended() {
    let home = Home::new();
    let mut service = start(&home, &[]);
    let ran = output(home.command(&["init", "--yes", "--agent", "claude-code", "--shadow"]));
    assert!(
        text(&ran.stdout).contains("restart `unstuck serve --local`"),
        "{ran:?}"
    );
    assert!(service.0.try_wait().unwrap().is_none());
}
