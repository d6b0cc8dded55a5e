//! `unstuck doctor`: whether agents are guarded, and what to do if not.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use serde_json::Value;
use unstuck::domain::clock;

use crate::{
    harness::{CommandOutput, DEADLINE},
    hook_command::{Home, ok, response, serve_tcp, serve_unix, serve_unix_after},
    lifecycle::output,
    local_service::{StartedService, started_pid},
};

fn doctor(home: &Home, args: &[&str]) -> CommandOutput {
    output(home.command(&[&["doctor"], args].concat())).into()
}

/// The report of the only agent, and the exit code.
#[track_caller]
fn report(home: &Home) -> (Value, i32) {
    let ran = doctor(home, &["--output", "json"]);
    let mut reports = ran.objects();
    assert_eq!(reports.len(), 1, "{}", ran.out);
    (reports.remove(0), ran.code.unwrap())
}

#[track_caller]
fn check_silent(home: &Home, problem: &str, repair: &str) {
    let (report, code) = report(home);
    assert_eq!(report["health"], "silent", "{report}");
    let (found, command) = (&report["problem"], &report["repair"]);
    assert!(found.as_str().unwrap().contains(problem), "{report}");
    assert!(command.as_str().unwrap().contains(repair), "{report}");
    assert_eq!(code, 1);
}

/// A home in which Claude Code is guarded and the service answers.
fn guarded() -> Home {
    let home = Home::new();
    home.configure("autostart = false\n");
    let _requests = serve_unix(&home, ok("{}"));
    let init = output(home.command(&["init", "--yes", "--agent", "claude-code"]));
    assert_eq!(init.status.code(), Some(0), "{init:?}");
    home
}

#[test]
fn an_agent_is_guarded_answered_and_seen() {
    let home = Home::new();
    let nobody = doctor(&home, &[]).ends_with(0);
    assert_eq!(nobody.out, "No agent was found on this machine.\n");
    fs::create_dir(home.path(".claude")).unwrap();
    let (unguarded, code) = report(&home);
    assert_eq!(
        (unguarded["health"].as_str(), code),
        (Some("not_guarded"), 0)
    );
    assert_eq!(unguarded["repair"], "unstuck init --agent claude-code");

    let home = guarded();
    let (fresh, code) = report(&home);
    assert_eq!(
        (fresh["health"].as_str(), code),
        (Some("guarded"), 0),
        "{fresh}"
    );
    assert!(fresh["answer_ms"].is_u64() && fresh["last_seen"].is_null());
    assert!(
        fresh["files"][0]
            .as_str()
            .unwrap()
            .ends_with(".claude/settings.json")
    );
    home.hook(&["claude-code"], b"{}", &[]);
    let (report, _) = report(&home);
    assert!(report["last_seen"].as_str().unwrap().ends_with('Z'));
    let table = doctor(&home, &[]).ends_with(0).out;
    assert!(table.contains("Claude Code  yes"), "{table}");
}

#[test]
fn one_command_guards_all_that_are_not_guarded() {
    let home = Home::new();
    for dir in [".codex", ".pi/agent", ".qwen"] {
        fs::create_dir_all(home.path(dir)).unwrap();
    }
    let repairs = |home: &Home| {
        let table = doctor(home, &[]).ends_with(0).out;
        let lines = table.lines().filter(|line| line.contains("unstuck init"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(repairs(&home), ["to guard them: unstuck init"]);
    // It would change the options of one that is guarded.
    let home = guarded();
    let _requests = serve_unix(&home, ok("{}"));
    for dir in [".pi/agent", ".qwen"] {
        fs::create_dir_all(home.path(dir)).unwrap();
    }
    assert_eq!(
        repairs(&home),
        ["to guard them: unstuck init --agent qwen --agent pi"]
    );
}

#[test]
fn unseen_work_of_opencode_is_found_in_its_database() {
    for (base, variables) in [
        (".local/share", vec![]),
        ("data", vec![("XDG_DATA_HOME", "data")]),
    ] {
        let home = Home::new();
        home.configure("autostart = false\n");
        let _requests = serve_unix(&home, ok("{}"));
        let init = output(home.command(&["init", "--yes", "--agent", "opencode"]));
        assert_eq!(init.status.code(), Some(0), "{init:?}");
        let health = || {
            let mut command = home.command(&["doctor", "--output", "json"]);
            command.envs(variables.iter().map(|(name, dir)| (name, home.path(dir))));
            let ran = CommandOutput::from(output(command));
            ran.objects()[0]["health"].clone()
        };
        let later = clock::now() + Duration::from_secs(600);
        let log = home.write(&format!("{base}/opencode/opencode.db-wal"), "");
        let touch = || {
            let file = fs::File::options().write(true).open(&log).unwrap();
            file.set_modified(later).unwrap();
        };
        touch();
        assert_eq!(health(), "guarded", "{base}");
        fs::write(&log, "frames").unwrap();
        touch();
        assert_eq!(health(), "silent", "{base}");
    }
}

#[test]
fn an_agent_whose_hooks_are_not_answered_is_silent() {
    let home = guarded();
    for (answer, problem) in [
        (response("401 Unauthorized", "", ""), "answered 401"),
        (ok("[]"), "not a JSON object"),
    ] {
        let _requests = serve_unix(&home, answer);
        check_silent(&home, problem, "unstuck serve --local");
    }
    fs::remove_file(home.path("run/unstuck/http.sock")).unwrap();
    check_silent(&home, "not running", "unstuck serve --local");
    let table = doctor(&home, &[]).ends_with(1).out;
    assert!(
        table.contains("claude-code: unstuck serve --local"),
        "{table}"
    );
    // It answers again, but hooks went without since their last answer.
    let _requests = serve_unix(&home, ok("{}"));
    home.hook(&["claude-code"], b"{}", &[]);
    home.hook(&["claude-code"], b"no JSON", &[]);
    check_silent(&home, "unanswered hooks: 1; the payload is not", "unstuck");
    home.configure("enabled = false\n");
    check_silent(&home, "enabled is false", "unstuck config print");
    home.configure("kill = 7\n");
    check_silent(
        &home,
        "cannot use the configuration",
        "unstuck config check",
    );
}

#[test]
fn an_agent_that_does_not_run_its_hooks_is_silent() {
    let home = guarded();
    let path = home.path(".claude/settings.json");
    let settings = fs::read_to_string(&path).unwrap();
    let check = |text: String, problem: &str| {
        assert_ne!(text, settings);
        fs::write(&path, text).unwrap();
        check_silent(&home, problem, "");
        fs::write(&path, &settings).unwrap();
    };
    let off = settings.replacen('{', "{\"disableAllHooks\": true,", 1);
    check(off, "disableAllHooks");
    check(
        settings.replace("/unstuck hook", "/unstuck-of-old hook"),
        "which is not there",
    );
    check(
        settings.replace("PostToolBatch", "PostToolBundle"),
        "not those of this version",
    );
    check(format!("{settings}}}"), "cannot be read");
    // It has worked since, which its sessions show.
    let session = home.write(".claude/projects/p/s.jsonl", "{}\n");
    let later = clock::now() + Duration::from_secs(600);
    let file = fs::File::options().write(true).open(&session).unwrap();
    file.set_modified(later).unwrap();
    check_silent(&home, "was not seen", "unstuck init --agent claude-code");
}

#[test]
fn codex_is_not_guarded_until_its_user_trusts_the_hooks() {
    let home = Home::new();
    home.write(".codex/config.toml", "model = \"gpt-5.1-codex\"\n");
    let args = ["init", "--yes", "--agent", "codex"];
    home.configure("autostart = false\n");
    let _requests = serve_unix(&home, ok("{}"));
    let init = output(home.command(&args));
    assert_eq!(init.status.code(), Some(0), "{init:?}");
    let (before, code) = report(&home);
    assert_eq!(before["health"], "untrusted");
    let problem = before["problem"].as_str().unwrap();
    assert!(problem.starts_with("Codex does not trust"), "{problem}");
    assert_eq!(code, 1);
    assert!(before["repair"].as_str().unwrap().contains("/hooks"));
    // As Codex notes it.
    let file = home.path(".codex/hooks.json");
    let hooks: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let mut config = "model = \"gpt-5.1-codex\"\n".to_owned();
    for event in hooks["hooks"].as_object().unwrap().keys() {
        let mut name = String::new();
        for letter in event.chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.extend(letter.to_lowercase());
        }
        let key = format!("{}:{name}:0:0", file.display());
        config += &format!("[hooks.state.\"{key}\"]\ntrusted_hash = \"sha256:12\"\n");
    }
    home.write(".codex/config.toml", &config);
    let (trusted, code) = report(&home);
    assert_eq!((&trusted["health"], code), (&"guarded".into(), 0));
    home.write(".codex/config.toml", &(config + "enabled = false\n"));
    let (switched_off, _) = report(&home);
    assert_eq!(
        switched_off["problem"],
        "Codex does not trust 1 of its hooks"
    );
}

/// A home in which an agent is guarded by a team's service that wants a token.
fn guarded_by_team(agent: &str, url: &str) -> Home {
    let home = Home::new();
    let args = ["init", "--yes", "--agent", agent, "--http", url];
    let token = ["--token-env", "TEAM_TOKEN"];
    let mut init = home.command(&[&args[..], &token].concat());
    init.env("TEAM_TOKEN", "of-the-team");
    let init = output(init);
    assert_eq!(init.status.code(), Some(0), "{init:?}");
    home
}

#[test]
fn a_teams_service_is_asked_with_the_token_of_the_hooks() {
    for agent in ["claude-code", "codex", "copilot", "pi"] {
        let (url, requests) = serve_tcp(ok("{}"));
        guarded_by_team(agent, &url);
        let head = requests.recv_timeout(DEADLINE).unwrap().head;
        assert!(
            head.contains("authorization: bearer of-the-team"),
            "{agent}: {head}"
        );
    }
}

#[test]
fn an_agent_that_calls_the_service_itself_is_not_missed_in_the_journal() {
    let (url, _requests) = serve_tcp(ok("{}"));
    let home = guarded_by_team("claude-code", &url);
    let session = home.write(".claude/projects/p/s.jsonl", "{}\n");
    let later = clock::now() + Duration::from_secs(600);
    let file = fs::File::options().write(true).open(&session).unwrap();
    file.set_modified(later).unwrap();
    let (report, code) = report(&home);
    assert_eq!(report["health"], "guarded", "{report}");
    assert_eq!((report["problem"].is_null(), code), (true, 0), "{report}");
}

#[test]
fn an_agent_whose_hooks_give_up_before_the_answer_is_silent() {
    let home = guarded();
    // No hook was ever answered.
    home.hook(&["claude-code"], b"no JSON", &[]);
    check_silent(&home, "unanswered hooks: 1", "unstuck");
    let home = Home::new();
    home.configure("autostart = false\n");
    let _requests = serve_unix_after(&home, Duration::from_millis(50), ok("{}"));
    let init = output(home.command(&["init", "--yes", "--agent", "claude-code"]));
    assert_eq!(init.status.code(), Some(0), "{init:?}");
    let own = "[hooks]\nbudget_millis = 1\n";
    home.write(".config/unstuck/unstuck.toml", own);
    check_silent(&home, "no reply within 1 ms", "unstuck");
}

#[test]
fn a_program_may_be_anywhere_and_have_another_name() {
    for name in ["my tools/unstuck", "guard"] {
        let home = Home::new();
        home.configure("autostart = false\n");
        let _requests = serve_unix(&home, ok("{}"));
        let copy = home.path(name);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::hard_link(env!("CARGO_BIN_EXE_unstuck"), &copy)
            .or_else(|_| fs::copy(env!("CARGO_BIN_EXE_unstuck"), &copy).map(drop))
            .unwrap();
        let run = |args: &[&str]| {
            let mut command = std::process::Command::new(&copy);
            let user = home.command(&[]);
            let variables = user.get_envs();
            command.env_clear();
            // Of a program that will not stay there, no hook is written.
            command.env("TMPDIR", home.path("tmp"));
            command.envs(variables.filter_map(|(name, value)| Some((name, value?))));
            command.args(args).stdin(std::process::Stdio::null());
            command.stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::piped());
            let ran: CommandOutput = output(command).into();
            ran
        };
        for agent in ["claude-code", "copilot", "cline", "opencode", "pi"] {
            let install = ["init", "--yes", "--agent", agent];
            run(&install).ends_with(0);
            let again = run(&install).ends_with(0).out;
            assert!(
                again.starts_with("Nothing to change."),
                "{name}, {agent}: {again}"
            );
            let found = run(&["doctor", "--output", "json"]).ends_with(0).objects();
            let found = found.iter().find(|report| report["agent"] == agent);
            assert_eq!(found.unwrap()["health"], "guarded", "{name}, {agent}");
            let removed = run(&[&install[..], &["--remove"]].concat())
                .ends_with(0)
                .out;
            assert!(removed.contains("written"), "{name}, {agent}: {removed}");
        }
    }
}

#[test]
fn it_starts_the_local_service_as_a_hook_does() {
    let home = Home::new();
    let hooks = fs::Permissions::from_mode(0o700);
    fs::set_permissions(home.path("run/unstuck"), hooks).unwrap();
    let init = output(home.command(&["init", "--yes", "--agent", "claude-code"]));
    let service = StartedService(started_pid(&home));
    assert_eq!(init.status.code(), Some(0), "{init:?}");
    let (report, code) = report(&home);
    assert_eq!(
        (report["health"].as_str(), code),
        (Some("guarded"), 0),
        "{report}"
    );
    drop(service);
    // A file of the working directory neither stops it nor is read.
    home.write("work/unstuck.toml", "[hooks]\nenabled = false\n");
    let (report, code) = self::report(&home);
    let _service = StartedService(started_pid(&home));
    assert_eq!(
        (report["health"].as_str(), code),
        (Some("guarded"), 0),
        "{report}"
    );
}
