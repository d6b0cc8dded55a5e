//! `unstuck scan`: the transcripts under HOME, and the report of their loops.

use std::{
    fmt::Write,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::CommandOutput;

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
    assert_eq!(summary["bad_lines"], 0);
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
    assert_eq!(count(&[".codex"]), 3);
    let shown = scan(&fixtures(), &["--show", "add7cfd2"]).ends_with(0).out;
    assert!(shown.contains("test_fail_loop"), "{shown}");
    scan(&fixtures(), &["--show", "none"]).ends_with(3);
}

#[test]
fn the_exit_code_says_whether_an_action_was_reached() {
    scan(&fixtures(), &["--fail-on", "warn"]).ends_with(1);
    scan(&fixtures(), &["--fail-on", "terminate"]).ends_with(0);
    scan(&fixtures(), &["--agent", "pi", "--fail-on", "warn"]).ends_with(0);
}

#[test]
fn advice_is_about_what_was_found() {
    let advice = scan(&fixtures(), &["--advice"]).ends_with(0).out;
    assert!(advice.contains("- Do not read a file again"), "{advice}");
    let nothing = scan(&fixtures(), &["--agent", "pi", "--advice"])
        .ends_with(0)
        .out;
    assert!(!nothing.contains("- "), "{nothing}");
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
    for private in ["demo", "readloop go", "Exit code 1", "add7cfd2", "/home"] {
        assert!(!redacted.contains(private), "{private}");
    }
    assert!(redacted.contains("project 1"));
    for outside in ["<script", "http://", "https://", "url(", "@import", "src="] {
        assert!(!redacted.contains(outside), "{outside}");
    }
    let full = page(&["--full"]);
    for text in [
        "demo",
        "readloop go",
        "Exit code 1",
        "claude --resume add7cfd2",
    ] {
        assert!(full.contains(text), "{text}");
    }
}

/// Lines of a Claude Code session: `calls` are tool, argument, result.
fn claude_session(id: &str, day: u32, calls: &[(&str, String, String)]) -> String {
    let mut text = String::new();
    let mut line = |value: Value| writeln!(text, "{value}").unwrap();
    let at = |second: usize| {
        format!(
            "2026-0{}-{:02}T10:{:02}:{:02}Z",
            1 + day / 28,
            1 + day % 28,
            second / 60,
            second % 60
        )
    };
    let common = |uuid: String, time: String| {
        json!({"parentUuid": null, "isSidechain": false, "sessionId": id, "uuid": uuid,
            "timestamp": time, "cwd": format!("/home/dev/project-{}", day % 4), "version": "2.1.0"})
    };
    let with = |mut base: Value, kind: &str, message: Value| {
        base["type"] = kind.into();
        base["message"] = message;
        base
    };
    let prompt = json!({"role": "user", "content": format!("do task {id}")});
    line(with(common(format!("{id}-p"), at(0)), "user", prompt));
    for (n, (tool, arg, result)) in calls.iter().enumerate() {
        let call = json!({"id": format!("{id}-m{n}"), "role": "assistant", "model": "claude-sonnet-4-5",
            "content": [{"type": "tool_use", "id": format!("{id}-t{n}"), "name": tool, "input": {"file_path": arg}}],
            "usage": {"input_tokens": 100, "cache_read_input_tokens": 10_000, "output_tokens": 50}});
        line(with(
            common(format!("{id}-a{n}"), at(2 * n + 1)),
            "assistant",
            call,
        ));
        let answer = json!({"role": "user", "content": [{"type": "tool_result",
            "tool_use_id": format!("{id}-t{n}"), "content": result, "is_error": result.starts_with("Error")}]});
        line(with(
            common(format!("{id}-r{n}"), at(2 * n + 2)),
            "user",
            answer,
        ));
    }
    text
}

/// 300 sessions in 20 weeks; one in ten reads a file again and again, one in fifteen fails
/// in the same way.
fn generated_home() -> TempDir {
    let home = TempDir::new().unwrap();
    let dir = home.path().join(".claude/projects/-home-dev");
    fs::create_dir_all(&dir).unwrap();
    for n in 0..300_u32 {
        let calls: Vec<_> = (0..8 + n % 5)
            .map(|call| match (n % 10, n % 15) {
                (0, _) => ("Read", "src/a.rs".to_owned(), "fn a() {}".to_owned()),
                (_, 1) => (
                    "Read",
                    format!("src/{n}.rs"),
                    "Error: File does not exist.".to_owned(),
                ),
                _ => (
                    "Read",
                    format!("src/{n}-{call}.rs"),
                    format!("fn f{n}_{call}() {{}}"),
                ),
            })
            .collect();
        let id = format!("session-{n:03}");
        fs::write(
            dir.join(format!("{id}.jsonl")),
            claude_session(&id, n % 140, &calls),
        )
        .unwrap();
    }
    home
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
    let call = |n: usize| ("Read", format!("{n}.rs"), format!("content {n}"));
    let text = claude_session("whole", 1, &[call(1), call(2)]);
    let corrupt = text.replacen('\n', "\n{\"type\": nonsense}\n", 1);
    fs::write(dir.join("corrupt.jsonl"), corrupt).unwrap();
    let cut = claude_session("cut", 1, &[call(1), call(2)]);
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
