//! `unstuck doctor`: whether agents are guarded, and what to do if not.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use serde_json::Value;
use unstuck::domain::clock;

use crate::{
    harness::CommandOutput,
    hook_command::{Home, ok, response, serve_unix},
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
fn an_agent_is_guarded_answered_and_heard() {
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
    assert!(fresh["answer_ms"].is_u64() && fresh["last_heard"].is_null());
    assert!(
        fresh["files"][0]
            .as_str()
            .unwrap()
            .ends_with(".claude/settings.json")
    );
    home.hook(&["claude-code"], b"{}", &[]);
    let (heard, _) = report(&home);
    assert!(heard["last_heard"].as_str().unwrap().ends_with('Z'));
    let table = doctor(&home, &[]).ends_with(0).out;
    assert!(table.contains("Claude Code  yes"), "{table}");
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
    check_silent(&home, "was not heard", "unstuck init --agent claude-code");
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
