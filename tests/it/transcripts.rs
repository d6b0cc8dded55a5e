//! Transcripts that agent programs left on disk, replayed: `tests/fixtures/transcripts` is
//! a recorded home directory.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;
use unstuck::{
    ingest::transcripts::{Transcript, TranscriptItem, detect_format, find_format},
    pb::ListVerdictsRequest,
};

use crate::{
    fuzzed::targets,
    harness::{CommandOutput, Server},
};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/transcripts")
}

fn replay(args: &[&str]) -> CommandOutput {
    let output = Command::new(env!("CARGO_BIN_EXE_unstuck"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["replay", "--output", "json"])
        .args(args)
        .output();
    output.unwrap().into()
}

/// `detector ACTION` of the verdicts of WARN and stronger.
fn verdicts(output: &CommandOutput) -> Vec<String> {
    let objects = output.objects().into_iter();
    let verdicts = objects.filter(|object| object.get("verdict_id").is_some());
    let printed = verdicts.map(|verdict| {
        let detector = verdict["detector"].as_str().unwrap();
        let action = verdict["action"].as_str().unwrap();
        format!("{detector} {}", action.trim_start_matches("ACTION_"))
    });
    printed
        .filter(|verdict| !verdict.ends_with(" ALERT"))
        .collect()
}

fn summary(output: &CommandOutput) -> Value {
    output.objects().pop().unwrap()["summary"].clone()
}

#[test]
fn the_recorded_home_gives_its_verdicts() {
    let output = replay(&["tests/fixtures/transcripts"]).ends_with(0);
    assert_eq!(summary(&output)["sessions"], 13);
    let mut found = verdicts(&output);
    found.sort();
    assert_eq!(
        found,
        [
            "read_loop BLOCK",
            "read_loop BLOCK",
            "read_loop WARN",
            "read_loop WARN",
            "test_fail_loop ESCALATE",
            "test_fail_loop ESCALATE",
            "test_fail_loop ESCALATE",
            "test_fail_loop WARN",
            "test_fail_loop WARN",
            "test_fail_loop WARN",
        ]
    );
}

#[test]
fn a_format_is_found_by_content_or_given() {
    let file = "tests/fixtures/transcripts/.claude/projects/-home-dev-demo/test-fail-loop.jsonl";
    let expected = ["test_fail_loop WARN", "test_fail_loop ESCALATE"];
    for args in [&[file][..], &["--format", "claude-code", file]] {
        assert_eq!(verdicts(&replay(args).ends_with(0)), expected);
    }
    // As a trace no line of it is valid.
    replay(&["--format", "ndjson", file]).ends_with(2);
    let unknown = replay(&["--format", "nothing", file]).ends_with(2);
    assert!(unknown.err.contains("claude-code"), "{}", unknown.err);
    let piped = replay(&["--format", "pi", "-"]).ends_with(2);
    assert!(piped.err.contains("name it"), "{}", piped.err);
    let empty = TempDir::new().unwrap();
    let none = replay(&[empty.path().to_str().unwrap()]).ends_with(2);
    assert!(none.err.contains("no transcript"), "{}", none.err);
}

/// What the hooks of a recorded run led to, and what its transcript does.
#[tokio::test]
async fn a_run_gets_the_same_verdicts_by_hooks_and_by_its_transcript() {
    let server = Server::start().await;
    for (hooks, transcript) in [
        ("claude-code-2.1.326.read-loop", "read-loop-compacted.jsonl"),
        ("claude-code-2.1.326.test-fail-loop", "test-fail-loop.jsonl"),
        ("claude-code-2.1.326.mixed", "mixed.jsonl"),
    ] {
        let session = crate::hooks::replay_recorded(&server, "claude-code", hooks).await;
        let of_session = ListVerdictsRequest {
            session_id: session,
            ..ListVerdictsRequest::default()
        };
        let mut live: Vec<_> = server
            .audit(of_session)
            .await
            .unwrap()
            .into_iter()
            .map(|verdict| {
                let action = verdict.action().as_str_name();
                (verdict.event_index, verdict.detector, action)
            })
            .collect();
        live.sort();
        let file = fixtures()
            .join(".claude/projects/-home-dev-demo")
            .join(transcript);
        let objects = replay(&[file.to_str().unwrap()]).ends_with(0).objects();
        let replayed: Vec<_> = objects
            .iter()
            .filter(|object| object.get("verdict_id").is_some())
            .map(|verdict| {
                let index = verdict["event_index"].as_i64().unwrap_or_default();
                let detector = verdict["detector"].as_str().unwrap().to_owned();
                (index as i32, detector, verdict["action"].as_str().unwrap())
            })
            .collect();
        assert_eq!(live, replayed, "{hooks}");
        assert_eq!(replayed.is_empty(), transcript == "mixed.jsonl");
    }
}

/// Builds opencode's database from its recorded rows.
fn opencode_database(dir: &Path) -> PathBuf {
    let path = dir.join("opencode.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .pragma_update(None, "journal_mode", "wal")
        .unwrap();
    let columns = fs::read_to_string(fixtures().join("opencode/columns.txt")).unwrap();
    for line in columns.lines().filter(|line| !line.is_empty()) {
        let (table, columns) = line.split_once(": ").unwrap();
        let sql = format!("CREATE TABLE {table} ({columns})");
        connection.execute(&sql, []).unwrap();
    }
    let rows = fs::read_to_string(fixtures().join("opencode/rows.jsonl")).unwrap();
    for row in rows.lines() {
        let row: serde_json::Map<String, Value> = serde_json::from_str(row).unwrap();
        let fields: Vec<_> = row.iter().filter(|(key, _)| *key != "table").collect();
        let names: Vec<_> = fields.iter().map(|(key, _)| key.as_str()).collect();
        let marks = vec!["?"; names.len()].join(",");
        let table = row["table"].as_str().unwrap();
        let sql = format!("INSERT INTO {table} ({}) VALUES ({marks})", names.join(","));
        let values = fields.iter().map(|(_, value)| -> rusqlite::types::Value {
            match value {
                Value::String(text) => text.clone().into(),
                Value::Number(number) if number.is_i64() => number.as_i64().unwrap().into(),
                Value::Number(number) => number.as_f64().unwrap().into(),
                _ => rusqlite::types::Value::Null,
            }
        });
        connection
            .execute(&sql, rusqlite::params_from_iter(values))
            .unwrap();
    }
    path
}

fn read_items(format: &str, path: &Path) -> Vec<TranscriptItem> {
    let mut items = Vec::new();
    let transcript = Transcript::new(find_format(format).unwrap(), vec![path.to_owned()]);
    transcript.read(&mut |item| items.push(item));
    items
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_database_of_opencode_is_read_and_nothing_is_written() {
    let dir = TempDir::new().unwrap();
    let path = opencode_database(dir.path());
    // Closing the only connection removed the write-ahead log.
    let before = names_in(dir.path());
    assert_eq!(before, ["opencode.db"]);
    let check = || {
        assert_eq!(detect_format(&path).unwrap().name, "opencode");
        let items = read_items("opencode", &path);
        let [
            TranscriptItem::Start(start),
            events @ ..,
            TranscriptItem::End(end),
        ] = &*items
        else {
            panic!("{items:?}");
        };
        assert_eq!((&*start.project, &*start.version), ("demo", "1.18.33"));
        assert_eq!((events.len(), end.calls), (9, 6));
        assert_eq!(end.first_prompt, "mixed go");
        assert_eq!(end.recorded_cost_usd, Some(0.025794));
        assert_eq!(end.usage[0].cached_input_tokens, 1_200);
        assert_eq!(names_in(dir.path()), before);
    };
    check();
    let set_mode =
        |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o500);
    check();
    set_mode(0o700);
}

#[test]
fn the_open_database_of_opencode_is_read_with_its_log() {
    let dir = TempDir::new().unwrap();
    let path = opencode_database(dir.path());
    let opencode = rusqlite::Connection::open(&path).unwrap();
    // Only in the log, until a checkpoint.
    opencode
        .execute("UPDATE session SET version = 'new'", [])
        .unwrap();
    let before = names_in(dir.path());
    assert_eq!(before.len(), 3, "{before:?}");
    let items = read_items("opencode", &path);
    let Some(TranscriptItem::Start(start)) = items.first() else {
        panic!("{items:?}");
    };
    assert_eq!(start.version, "new");
    assert_eq!(names_in(dir.path()), before);
    drop(opencode);
}

#[test]
fn a_line_of_100_mb_is_skipped_within_bounded_memory() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("long.jsonl");
    let file = fs::File::create(&path).unwrap();
    // Zeros without a line break.
    file.set_len(100 * 1024 * 1024).unwrap();
    drop(file);
    let line = r#"{"type":"user","isSidechain":false,"uuid":"1","sessionId":"s","message":{"content":"go"}}"#;
    let mut file = fs::File::options().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut file, format!("\n{line}\n").as_bytes()).unwrap();
    let transcript = Transcript::new(find_format("claude-code").unwrap(), vec![path]);
    let mut problems = Vec::new();
    let mut events = 0;
    let allocated = allocation_counter::measure(|| {
        transcript.read(&mut |item| match item {
            TranscriptItem::Problem(problem) => problems.push((problem.line, problem.what)),
            TranscriptItem::Event(_) => events += 1,
            _ => {}
        });
    });
    assert_eq!(problems, [(1, "the line is longer than 16 MiB".to_owned())]);
    assert_eq!(events, 1);
    // The longest line that is read, and what a growing buffer holds twice.
    assert!(allocated.bytes_max < 64 * 1024 * 1024, "{allocated:?}");
}

/// JSON with the names that the readers look for.
fn json_value() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec![
        "type",
        "message",
        "content",
        "role",
        "id",
        "parentId",
        "sessionId",
        "toolCalls",
        "data",
        "payload",
        "usage",
        "tokens",
        "input",
        "text",
        "parts",
        "timestamp",
        "uuid",
        "version",
        "messages",
        "name",
        "tool_use_id",
        "call_id",
        "output",
        "result",
        "toolRequests",
    ]);
    let text = prop::sample::select(vec![
        "",
        "user",
        "assistant",
        "tool_use",
        "tool_result",
        "message",
        "session",
        "response_item",
        "function_call",
        "event_msg",
        "token_count",
        "gemini",
        "toolResult",
        "2026-11-17T22:10:25Z",
        "session.start",
        "assistant.message",
        "<x>",
        "\u{202e}",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_of_a_transcript_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        targets::transcript(&bytes);
    }

    #[test]
    fn no_json_of_a_transcript_causes_a_panic(values in prop::collection::vec(json_value(), 0..8)) {
        let lines: Vec<_> = values.iter().map(Value::to_string).collect();
        targets::transcript(lines.join("\n").as_bytes());
    }
}
