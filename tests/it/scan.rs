//! `unstuck scan`: the transcripts under HOME, and the report of their loops.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    harness::CommandOutput,
    scan_home::{self, Call, ClaudeSession},
    traces,
};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/transcripts")
}

/// The command with this directory as HOME and nothing else of the environment.
fn command(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unstuck"));
    command.env_clear().env("HOME", home).current_dir(home);
    command.arg("scan").args(args);
    command
}

fn scan(home: &Path, args: &[&str]) -> CommandOutput {
    command(home, args).output().unwrap().into()
}

fn sessions(output: &CommandOutput) -> Vec<Value> {
    let objects = output.objects().into_iter();
    objects
        .filter_map(|mut object| object.get_mut("session").map(Value::take))
        .collect()
}

fn summary(output: &CommandOutput) -> Value {
    output.objects().pop().unwrap()["summary"].clone()
}

fn verdicts(output: &CommandOutput) -> Vec<String> {
    let objects = output.objects().into_iter();
    let verdicts = objects.filter(|object| object.get("verdict_id").is_some());
    let mut named: Vec<_> = verdicts
        .map(|verdict| format!("{} {}", verdict["detector"], verdict["action"]).replace('"', ""))
        .collect();
    named.sort();
    named
}

#[test]
fn the_recorded_home_gives_its_sessions_and_verdicts() {
    let output = scan(&fixtures(), &["--output", "json"]).ends_with(0);
    assert_eq!(sessions(&output).len(), 13);
    let summary = summary(&output);
    assert_eq!(summary["sessions"], 13);
    assert_eq!(summary["looping_sessions"], 5);
    assert_eq!(summary["events"], 133);
    assert_eq!(summary["bad_lines"], 0);
    let wasted = &summary["wasted"];
    assert_eq!(
        (&wasted["events"], &wasted["cached_tokens"]),
        (&json!(52), &json!(10_400))
    );
    assert_eq!(summary["unpriced_models"], json!({"fake-model": 2}));
    assert_eq!(
        summary["priced"],
        json!({"exact": 5, "list": 6, "unknown": 2})
    );
    let expected = [
        ("read_loop ACTION_BLOCK", 2),
        ("read_loop ACTION_WARN", 2),
        ("test_fail_loop ACTION_ESCALATE", 3),
        ("test_fail_loop ACTION_WARN", 3),
    ];
    let expected: Vec<_> = expected
        .into_iter()
        .flat_map(|(verdict, count)| vec![verdict.to_owned(); count])
        .collect();
    assert_eq!(verdicts(&output), expected);
    // The order of threads makes no difference.
    assert_eq!(scan(&fixtures(), &["--output", "json"]).out, output.out);
}

#[test]
fn the_report_names_money_first_and_how_to_reopen_the_worst_session() {
    let report = scan(&fixtures(), &[]).ends_with(0).out;
    let first = report.lines().next().unwrap();
    assert!(
        first.starts_with("5 of 13 sessions looped: $0.12 of $0.24"),
        "{first}"
    );
    assert!(report.contains("claude --resume add7cfd2"), "{report}");
    assert!(report.contains("Cost n/a: 2 sessions"), "{report}");
    // What was found, in the verdict's words.
    assert!(
        report.contains("\n    sh ./t.sh failed 4 runs in a row with a recurring error\n"),
        "{report}"
    );
    assert_eq!(report.lines().last(), Some("guard them: unstuck init"));
}

#[test]
fn sessions_are_selected_by_agent_project_time_and_id() {
    let count = |args: &[&str]| {
        let args = [args, &["--output", "json"]].concat();
        summary(&scan(&fixtures(), &args).ends_with(0))["sessions"].clone()
    };
    assert_eq!(count(&["--agent", "codex"]), 3);
    assert_eq!(count(&["--project", "demo"]), 12);
    assert_eq!(count(&["--project", "other"]), 0);
    assert_eq!(count(&["--since", "2100-01-01T00:00:00Z"]), 0);
    assert_eq!(count(&["--since", "2020-01-01T00:00:00Z"]), 13);
    assert_eq!(count(&["--since", "2020-01-01"]), 13);
    assert_eq!(count(&[".codex"]), 3);
    assert_eq!(
        count(&["--agent", "claude"]),
        count(&["--agent", "claude-code"])
    );
    let shown = scan(&fixtures(), &["--show", "add7cfd2"]).ends_with(0).out;
    assert!(shown.contains("test_fail_loop"), "{shown}");
    scan(&fixtures(), &["--show", "none"]).ends_with(3);
}

#[test]
fn directories_that_agents_take_from_a_variable_are_scanned() {
    let empty = TempDir::new().unwrap();
    for (variable, dir) in [
        ("CLINE_DIR", ".cline"),
        ("PI_CODING_AGENT_DIR", ".pi/agent"),
    ] {
        let mut command = command(empty.path(), &["--output", "json"]);
        let output: CommandOutput = command
            .env(variable, fixtures().join(dir))
            .output()
            .unwrap()
            .into();
        let found = summary(&output.ends_with(0))["sessions"].as_u64().unwrap();
        assert!(found > 0, "{variable}");
    }
}

#[test]
fn without_sessions_the_reason_is_said() {
    let nothing = |home: &Path, args: &[&str], expected: &str| {
        let out = scan(home, args).ends_with(0).out;
        assert!(out.starts_with(expected), "{args:?}: {out}");
        assert!(!out.contains("docs/"), "{out}");
    };
    nothing(
        &fixtures(),
        &["--project", "nope"],
        "None of 13 sessions matches.\n",
    );
    nothing(
        &fixtures(),
        &["--since", "2100-01-01"],
        "No session is that recent: ",
    );
    let home = TempDir::new().unwrap();
    nothing(home.path(), &[], "No sessions found. Looked in:\n    ");
    let projects = format!("    {}/.claude/projects\n", home.path().display());
    assert!(scan(home.path(), &[]).ends_with(0).out.contains(&projects));
    nothing(
        home.path(),
        &["--agent", "pi"],
        &format!(
            "No sessions found. Looked in:\n    {}/.pi/agent/sessions\n\n",
            home.path().display()
        ),
    );
    fs::create_dir(home.path().join("notes")).unwrap();
    nothing(
        home.path(),
        &["notes"],
        "No sessions found. Looked in:\n    notes\n",
    );
    // A file that is named has a format.
    fs::write(home.path().join("notes/a.txt"), "hello").unwrap();
    let refused = scan(home.path(), &["notes/a.txt"]).ends_with(2).err;
    assert!(
        refused.contains("notes/a.txt: no known format"),
        "{refused}"
    );
    let mut homeless = command(home.path(), &[]);
    let homeless: CommandOutput = homeless.env_remove("HOME").output().unwrap().into();
    assert!(homeless.ends_with(2).err.contains("set HOME"));
}

fn claude_home(sessions: &[&ClaudeSession]) -> TempDir {
    let home = TempDir::new().unwrap();
    let dir = home.path().join(".claude/projects/-home-dev");
    fs::create_dir_all(&dir).unwrap();
    for (at, session) in sessions.iter().enumerate() {
        fs::write(dir.join(format!("{at}.jsonl")), session.text()).unwrap();
    }
    home
}

fn healthy_session(id: &str, day: i64) -> ClaudeSession {
    let mut session = ClaudeSession::new(id, day);
    session.prompt("do it");
    session.call(&Call::read("1.rs", "one"));
    session.call(&Call::read("2.rs", "two"));
    session
}

#[test]
fn a_report_of_a_healthy_session_leaves_out_what_there_is_none_of() {
    let home = claude_home(&[&healthy_session("fine", 1)]);
    let report = scan(home.path(), &[]).ends_with(0).out;
    assert!(report.starts_with("No loops in 1 session"), "{report}");
    assert!(
        report.contains("Claude Code 1. 2026-03-03, 2 calls."),
        "{report}"
    );
    for absent in ["? to", " to 2026", "no failing", "at most 0", "no events"] {
        assert!(!report.contains(absent), "{absent}: {report}");
    }
    let shown = scan(home.path(), &["--show", "fine"]).ends_with(0).out;
    let headline = shown.lines().nth(1).unwrap();
    assert!(
        headline.starts_with("$0.0") && headline.ends_with(", no loop"),
        "{shown}"
    );
    let page = home.path().join("page.html");
    scan(home.path(), &["--html", page.to_str().unwrap()]).ends_with(0);
    let page = fs::read_to_string(page).unwrap();
    for absent in ["Compactions", "Failing calls", "<dl"] {
        assert!(!page.contains(absent), "{absent}");
    }
}

#[test]
fn weeks_are_those_of_the_calendar() {
    let (first, last) = (healthy_session("first", 0), healthy_session("last", 21));
    let timeless = healthy_session("timeless", 7);
    let home = claude_home(&[&first, &last]);
    let without_times: String = timeless
        .text()
        .lines()
        .map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            line.as_object_mut().unwrap().remove("timestamp");
            format!("{line}\n")
        })
        .collect();
    let file = ".claude/projects/-home-dev/timeless.jsonl";
    fs::write(home.path().join(file), without_times).unwrap();
    let report = scan(home.path(), &[]).ends_with(0).out;
    assert!(report.contains("in 3 sessions"), "{report}");
    let by_week = "by week, 2026-03-02 to 2026-03-23\n  sessions █▁▁█\n";
    assert!(report.contains(by_week), "{report}");
    let page = home.path().join("page.html");
    scan(home.path(), &["--html", page.to_str().unwrap()]).ends_with(0);
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<title>week of ").count(), 4);
    assert!(page.contains("<title>week of 2026-03-09: no sessions, 0 looped</title>"));
    let summary = summary(&scan(home.path(), &["--output", "json"]).ends_with(0));
    let weeks = summary["by_week"].as_object().unwrap();
    assert_eq!(
        weeks.keys().collect::<Vec<_>>(),
        ["2026-03-02", "2026-03-23"]
    );
}

#[test]
fn sums_of_dollars_are_rounded() {
    fn check(value: &Value) {
        match value {
            Value::Object(members) => members.values().for_each(check),
            Value::Array(items) => items.iter().for_each(check),
            Value::Number(number) if number.is_f64() => {
                let text = number.to_string();
                let (_, digits) = text.split_once('.').unwrap();
                assert!(digits.len() <= 9 || text.contains("e-"), "{text}");
            }
            _ => {}
        }
    }
    let home = generated_home();
    let output = scan(home.path(), &["--output", "json"]).ends_with(0);
    check(&summary(&output));
    sessions(&output).iter().for_each(check);
}

#[test]
fn the_exit_code_says_whether_an_action_was_reached() {
    scan(&fixtures(), &["--fail-on", "warn"]).ends_with(1);
    scan(&fixtures(), &["--fail-on", "terminate"]).ends_with(0);
    scan(&fixtures(), &["--agent", "pi", "--fail-on", "warn"]).ends_with(0);
}

/// Nothing stopped the agent: what it did after a verdict that would have ended its run is
/// neither lost nor all of it waste.
#[test]
fn a_session_goes_on_after_a_termination() {
    let home = TempDir::new().unwrap();
    let dir = home.path().join(".claude/projects/-home-dev");
    fs::create_dir_all(&dir).unwrap();
    let mut session = ClaudeSession::new("long", 1);
    session.prompt("do it");
    for _ in 0..45 {
        session.wait(5);
        session.call(&Call::read("a.rs", "fn a() {}"));
    }
    for n in 0..20 {
        session.wait(5);
        session.call(&Call::read(&format!("{n}.rs"), &format!("fn f{n}() {{}}")));
    }
    fs::write(dir.join("long.jsonl"), session.text()).unwrap();
    let output = scan(home.path(), &["--output", "json"]).ends_with(0);
    let summary = summary(&output);
    assert_eq!(summary["terminated_sessions"], 1);
    // Twenty reads, twenty, and five; a guard acts at the third of each.
    assert_eq!(summary["wasted"]["events"], 45);
    assert_eq!(summary["saved"]["events"], 36);
}

#[test]
fn advice_is_about_what_was_found() {
    let advice = scan(&fixtures(), &["--advice"]).ends_with(0).out;
    assert!(advice.contains("- Do not read a file again"), "{advice}");
    let nothing = scan(&fixtures(), &["--agent", "pi", "--advice"])
        .ends_with(0)
        .out;
    assert!(!nothing.contains("- "), "{nothing}");
    // There is no such JSON.
    scan(&fixtures(), &["--advice", "--output", "json"]).ends_with(2);
}

#[test]
fn prices_of_the_user_are_used() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("prices.json");
    let price =
        json!({"fake-model": {"input_cost_per_token": 1e-3, "output_cost_per_token": 1e-3}});
    fs::write(&file, price.to_string()).unwrap();
    let args = ["--agent", "qwen", "--output", "json"];
    let unknown = sessions(&scan(&fixtures(), &args).ends_with(0));
    assert_eq!(unknown[0]["cost_usd"], Value::Null);
    let args = [&args[..], &["--prices", file.to_str().unwrap()]].concat();
    let priced = sessions(&scan(&fixtures(), &args).ends_with(0));
    assert!(
        priced[0]["cost_usd"].as_f64().unwrap() > 1.0,
        "{}",
        priced[0]
    );
}

#[test]
fn the_page_is_redacted_unless_it_is_full_and_loads_nothing() {
    let dir = TempDir::new().unwrap();
    let page = |args: &[&str]| {
        let file = dir.path().join("scan.html");
        let args = [&["--html", file.to_str().unwrap()], args].concat();
        scan(&fixtures(), &args).ends_with(0);
        fs::read_to_string(file).unwrap()
    };
    let redacted = page(&[]);
    let private = [
        "demo",
        "readloop go",
        "Exit code 1",
        "add7cfd2",
        "/home",
        "t.sh",
    ];
    for private in private {
        assert!(!redacted.contains(private), "{private}");
    }
    assert!(redacted.contains("project 1"));
    // A reader need not know the names of detectors and actions.
    assert!(redacted.contains("test_fail_loop means: one command or call keeps failing"));
    assert!(redacted.contains("what a guard would have said"));
    assert!(!redacted.contains("Found: "));
    for outside in ["<script", "http://", "https://", "url(", "@import", "src="] {
        assert!(!redacted.contains(outside), "{outside}");
    }
    let full = page(&["--full"]);
    for text in [
        "demo",
        "readloop go",
        "Exit code 3",
        "Found: ",
        "claude --resume add7cfd2",
        "Bash sh .&#x2f;t.sh",
    ] {
        assert!(full.contains(text), "{text}");
    }
}

fn generated_home() -> TempDir {
    let home = TempDir::new().unwrap();
    scan_home::write(home.path());
    home
}

/// What no transcript of Claude Code can show: a cap of the settings, and the state that
/// follows a command.
const NOT_IN_TRANSCRIPTS: &[&str] = &["budget"];

#[test]
fn sessions_that_loop_in_each_way_are_found() {
    let home = generated_home();
    let output = scan(home.path(), &["--output", "json"]).ends_with(0);
    let verdicts = output.objects().into_iter();
    let verdicts: Vec<_> = verdicts
        .filter(|object| object.get("verdict_id").is_some())
        .collect();
    let missing = traces::files().into_iter().map(|(detector, _)| detector);
    let missing = missing.filter(|detector| {
        let is_found = |verdict: &Value| {
            let also = verdict["also"].as_array().into_iter().flatten();
            verdict["detector"] == **detector || also.into_iter().any(|it| *it == **detector)
        };
        !verdicts.iter().any(is_found)
    });
    assert_eq!(missing.collect::<Vec<_>>(), NOT_IN_TRANSCRIPTS);
}

/// `UNSTUCK_REWRITE=1` writes the file.
#[test]
fn the_report_of_three_hundred_sessions_is_as_recorded() {
    let home = generated_home();
    let report = scan(home.path(), &[]).ends_with(0).out;
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/scan-report.txt");
    if std::env::var_os("UNSTUCK_REWRITE").is_some() {
        fs::write(&recorded, &report).unwrap();
    }
    assert_eq!(report, fs::read_to_string(recorded).unwrap());
}

#[test]
fn what_cannot_be_read_is_reported_counted_and_skipped() {
    let home = TempDir::new().unwrap();
    let dir = home.path().join(".claude/projects/-home-dev");
    fs::create_dir_all(&dir).unwrap();
    let session = |id: &str| {
        let mut session = ClaudeSession::new(id, 1);
        session.prompt("do it");
        session.call(&Call::read("1.rs", "one"));
        session.call(&Call::read("2.rs", "two"));
        session.text().to_owned()
    };
    let corrupt = session("whole").replacen('\n', "\n{\"type\": nonsense}\n", 1);
    fs::write(dir.join("corrupt.jsonl"), corrupt).unwrap();
    let cut = session("cut");
    fs::write(dir.join("cut.jsonl"), &cut[..cut.len() - 20]).unwrap();
    fs::write(dir.join("empty.jsonl"), "").unwrap();
    let output = scan(home.path(), &["--output", "json"]).ends_with(0);
    assert_eq!(summary(&output)["sessions"], 2);
    assert_eq!(summary(&output)["bad_lines"], 3);
    for problem in [
        "corrupt.jsonl:2:",
        "cut.jsonl:5: cut off",
        "empty.jsonl: the file is empty",
    ] {
        assert!(output.err.contains(problem), "{problem}: {}", output.err);
    }
}

#[test]
fn nothing_is_written_and_only_the_users_own_configuration_is_read() {
    let home = generated_home();
    // A configuration of the working directory that would be refused.
    fs::write(home.path().join("unstuck.toml"), "nonsense = 1").unwrap();
    let dirs = [
        ".claude/projects/-home-dev",
        ".claude/projects",
        ".claude",
        "",
    ];
    let set_mode = |mode| {
        for dir in dirs {
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(home.path().join(dir), permissions).unwrap();
        }
    };
    let listing = || {
        let mut files: Vec<_> = walk(home.path());
        files.sort();
        files
    };
    let before = listing();
    set_mode(0o555);
    scan(home.path(), &[]).ends_with(0);
    set_mode(0o755);
    assert_eq!(listing(), before);
    // The user's own is read.
    fs::create_dir_all(home.path().join(".config/unstuck")).unwrap();
    fs::write(
        home.path().join(".config/unstuck/unstuck.toml"),
        "nonsense = 1",
    )
    .unwrap();
    scan(home.path(), &[]).ends_with(2);
}

fn walk(dir: &Path) -> Vec<(PathBuf, u64)> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .flat_map(|entry| {
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path())
            } else {
                vec![(entry.path(), entry.metadata().unwrap().len())]
            }
        })
        .collect()
}

/// In a network namespace without interfaces.
#[test]
fn a_machine_without_a_network_gives_the_same_report() {
    let expected = scan(&fixtures(), &[]).ends_with(0).out;
    let output = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--net",
            env!("CARGO_BIN_EXE_unstuck"),
            "scan",
        ])
        .env_clear()
        .env("HOME", fixtures())
        .env("PATH", std::env::var_os("PATH").unwrap())
        .current_dir(fixtures())
        .output()
        .unwrap();
    let isolated: CommandOutput = output.into();
    assert_eq!(isolated.ends_with(0).out, expected);
}
