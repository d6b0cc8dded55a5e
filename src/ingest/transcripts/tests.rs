//! Recorded transcripts of the real programs (`tests/fixtures/transcripts`), and damaged
//! files.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

use super::*;
use crate::{
    domain::{EventBody, Role},
    ingest::tests::{describe_turn, outcome_name},
};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/transcripts")
}

fn homes(home: &Path) -> Homes {
    Homes {
        home: home.to_owned(),
        ..Homes::default()
    }
}

fn read_all(transcripts: &[Transcript]) -> Vec<TranscriptItem> {
    let mut items = Vec::new();
    for transcript in transcripts {
        transcript.read(&mut |item| items.push(item));
    }
    items
}

/// An item on one line: what a test compares.
fn describe(item: &TranscriptItem) -> String {
    match item {
        TranscriptItem::Start(start) => format!("start {}", start.session_id),
        TranscriptItem::End(end) => format!("end after {}", end.events),
        TranscriptItem::Problem(problem) => {
            let name = problem.path.file_name().unwrap().to_str().unwrap();
            format!("problem {name}:{}: {}", problem.line, problem.what)
        }
        TranscriptItem::Event(TranscriptEvent { event, usage }) => {
            let agent = match event.agent.as_str() {
                "" => String::new(),
                agent => format!("{agent}: "),
            };
            let tokens: i64 = usage.iter().map(|usage| usage.output_tokens).sum();
            let cost = match tokens {
                0 => String::new(),
                tokens => format!(" ({tokens})"),
            };
            let body = match &event.body {
                EventBody::Call(call) => {
                    let outcome = outcome_name(call.outcome);
                    format!("{} {outcome}", call.tool)
                }
                EventBody::Turn(turn) => {
                    let (role, beginning) = describe_turn(turn);
                    format!("{role} says {beginning}")
                }
                EventBody::Marker(marker) => format!("{:?}", marker.kind),
            };
            format!("{agent}{body}{cost}")
        }
    }
}

fn describe_all(items: &[TranscriptItem]) -> Vec<String> {
    items.iter().map(describe).collect()
}

/// Reads files, given by name and content, in a directory of their own.
fn read_files(format: &str, files: &[(&str, &str)]) -> Vec<String> {
    let dir = TempDir::new().unwrap();
    let format = find_format(format).unwrap();
    let mut paths = Vec::new();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        if !name.contains("subagents") {
            paths.push(path);
        }
    }
    describe_all(&read_all(&[Transcript::new(format, paths)]))
}

fn events_of(items: &[TranscriptItem]) -> Vec<&TranscriptEvent> {
    let events = items.iter().filter_map(|item| match item {
        TranscriptItem::Event(event) => Some(event),
        _ => None,
    });
    events.collect()
}

#[test]
fn the_recorded_home_has_thirteen_sessions() {
    let transcripts = find_transcripts(&homes(&fixtures()), None);
    let items = read_all(&transcripts);
    let starts: Vec<_> = items
        .iter()
        .filter_map(|item| match item {
            TranscriptItem::Start(start) => Some(start),
            _ => None,
        })
        .collect();
    let count = |agent: &str| starts.iter().filter(|start| start.agent == agent).count();
    let expected = [
        ("claude-code", 4),
        ("codex", 3),
        ("gemini", 2),
        ("qwen", 1),
        ("copilot", 1),
        ("pi", 1),
        ("cline", 1),
    ];
    for (agent, sessions) in expected {
        assert_eq!(count(agent), sessions, "{agent}");
    }
    assert_eq!(starts.len(), 13);
    // The recording of Cline does not say where it ran.
    let elsewhere = starts.iter().filter(|start| start.project != "demo");
    assert_eq!(
        elsewhere.map(|start| start.agent).collect::<Vec<_>>(),
        ["cline"]
    );
    let problems = items
        .iter()
        .filter(|item| matches!(item, TranscriptItem::Problem(_)));
    assert_eq!(problems.count(), 0);
    let events = events_of(&items);
    assert_eq!(events.len(), 133);
    assert!(events.iter().all(|event| event.event.time.is_some()));
    // What a program adds is not the user's.
    let local_commands = events.iter().filter(|event| match &event.event.body {
        EventBody::Turn(turn) => {
            turn.role == Role::System
                && (turn.text.starts_with("<command-") || turn.text.starts_with("<local-command-"))
        }
        _ => false,
    });
    assert_eq!(local_commands.count(), 2);
    let ends = items.iter().filter_map(|item| match item {
        TranscriptItem::End(end) => Some(end),
        _ => None,
    });
    for end in ends {
        assert!(end.first_prompt.ends_with(" go"), "{end:?}");
        assert!(!end.main_model().is_empty(), "{end:?}");
        assert!(end.usage.iter().all(|usage| usage.cached_input_tokens > 0));
    }
}

#[test]
fn every_recorded_file_is_recognised() {
    for transcript in find_transcripts(&homes(&fixtures()), None) {
        for path in &transcript.paths {
            let found = detect_format(path).map(|format| format.name);
            assert_eq!(found, Some(transcript.format.name), "{}", path.display());
        }
    }
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/read-loop.ndjson");
    assert!(detect_format(&trace).is_none());
}

/// What every agent did in the same script: a text and a read, a command, an edit, a
/// command that fails, two reads at once, a text.
#[test]
fn a_mixed_run_of_each_agent_is_read_whole() {
    let cases = [
        (
            "claude-code",
            "mixed.jsonl",
            ["Read", "Bash", "Edit", "Bash"],
            "ok",
        ),
        (
            "gemini",
            "session-mixed.jsonl",
            [
                "read_file",
                "run_shell_command",
                "replace",
                "run_shell_command",
            ],
            "ok",
        ),
        (
            "copilot",
            "events.jsonl",
            ["view", "bash", "edit", "bash"],
            "error",
        ),
        (
            "pi",
            "mixed.jsonl",
            ["read", "bash", "edit", "bash"],
            "error",
        ),
        (
            "cline",
            "1794953414697_wty92.messages.json",
            ["read_files", "run_commands", "editor", "run_commands"],
            "error",
        ),
    ];
    for (agent, file, [read, shell, edit, _], edit_outcome) in cases {
        let format = find_format(agent);
        let mut transcripts = find_transcripts(&homes(&fixtures()), format);
        transcripts.retain(|transcript| transcript.paths[0].ends_with(file));
        let items = describe_all(&read_all(&transcripts));
        let expected = [
            "user says mixed go".to_owned(),
            "agent says Let me look.".to_owned(),
            format!("{read} ok (50)"),
            format!("{shell} ok (50)"),
            format!("{edit} {edit_outcome} (50)"),
            format!("{shell} error (50)"),
            format!("{read} ok (50)"),
            format!("{read} ok"),
            "agent says all done (50)".to_owned(),
            "end after 9".to_owned(),
        ];
        assert_eq!(items[1..], expected, "{agent}");
    }
}

#[test]
fn a_codex_run_has_exit_codes_and_no_turn_of_the_program() {
    let transcripts = find_transcripts(&homes(&fixtures()), find_format("codex"));
    let items = describe_all(&read_all(&transcripts[..1]));
    assert_eq!(
        items[1..],
        [
            "system says <environment_context>\n  ",
            "user says mixed go",
            "agent says Let me look.",
            "exec_command ok (50)",
            "exec_command ok (50)",
            "exec_command error (50)",
            "exec_command ok (50)",
            "exec_command ok",
            "agent says all done (50)",
            "end after 9",
        ]
    );
}

#[test]
fn a_session_says_where_it_comes_from_and_what_it_cost() {
    let transcripts = find_transcripts(&homes(&fixtures()), find_format("claude-code"));
    let items = read_all(&transcripts);
    let start = items.iter().find_map(|item| match item {
        TranscriptItem::Start(start) if start.session_id.starts_with("535a") => Some(start),
        _ => None,
    });
    let start = start.unwrap();
    assert_eq!((&*start.cwd, &*start.project), ("/home/dev/demo", "demo"));
    assert_eq!(start.version, "2.1.326");
    assert_eq!(
        start.reopen,
        format!("claude --resume {}", start.session_id)
    );
    let end = items.iter().find_map(|item| match item {
        TranscriptItem::End(end) if end.compactions == 1 => Some(end),
        _ => None,
    });
    let end = end.unwrap();
    // The last of two totals.
    assert_eq!(end.recorded_cost_usd, Some(0.0622335));
    assert_eq!(end.calls, 12);
    let [usage] = &*end.usage else {
        panic!("{end:?}");
    };
    // 13 responses: 1007 to 1019, each with 200 read from and 30 written to the cache.
    assert_eq!(&*usage.model, "claude-sonnet-4-5");
    assert_eq!(usage.input_tokens, 13_169 + 13 * 230);
    assert_eq!(
        (usage.cached_input_tokens, usage.cache_write_tokens),
        (2_600, 390)
    );
    assert_eq!(usage.output_tokens, 650);
}

#[test]
fn a_sub_agent_of_claude_code_is_put_between_by_time_and_its_prompt_is_no_turn() {
    let transcripts = find_transcripts(&homes(&fixtures()), find_format("claude-code"));
    let of_session = transcripts
        .into_iter()
        .find(|transcript| transcript.paths[0].to_str().unwrap().contains("ad30c624"));
    assert_eq!(
        describe_all(&read_all(&[of_session.unwrap()]))[1..],
        [
            "user says task go",
            "Agent ok (50)",
            "agent says done (50)",
            "aabee42d50d1b147f: Read ok (50)",
            "aabee42d50d1b147f: Read ok (50)",
            "system says <task-notification>\n<tas",
            "agent says done (50)",
            "end after 7",
        ]
    );
}

/// Lines of a Claude Code transcript.
fn claude_line(kind: &str, uuid: &str, rest: &str) -> String {
    format!(
        r#"{{"parentUuid":null,"isSidechain":false,"type":"{kind}","uuid":"{uuid}","sessionId":"s","timestamp":"2026-11-17T21:54:50.350Z","cwd":"/w/demo",{rest}}}"#
    ) + "\n"
}

fn prompt(uuid: &str, text: &str) -> String {
    let rest = format!(r#""message":{{"role":"user","content":"{text}"}}"#);
    claude_line("user", uuid, &rest)
}

fn call(uuid: &str, message: &str, id: &str, output_tokens: u32) -> String {
    let rest = format!(
        r#""message":{{"id":"{message}","model":"m","content":[{{"type":"tool_use","id":"{id}","name":"Read","input":{{"file_path":"a"}}}}],"usage":{{"input_tokens":5,"output_tokens":{output_tokens}}}}}"#
    );
    claude_line("assistant", uuid, &rest)
}

fn result(uuid: &str, id: &str) -> String {
    let rest = format!(
        r#""message":{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}","content":"x"}}]}}"#
    );
    claude_line("user", uuid, &rest)
}

#[test]
fn the_usage_of_a_response_over_several_lines_counts_once() {
    let lines = [
        prompt("1", "go"),
        call("2", "m1", "c1", 3),
        call("3", "m1", "c2", 40),
        result("4", "c2"),
        result("5", "c1"),
    ];
    // In the order of the calls, not of the results; the last line has the whole usage.
    assert_eq!(
        read_files("claude-code", &[("s.jsonl", &lines.concat())]),
        [
            "start s",
            "user says go",
            "Read ok (40)",
            "Read ok",
            "end after 3"
        ]
    );
}

#[test]
fn lines_that_a_resumed_session_repeats_count_once() {
    let old = [
        prompt("1", "go"),
        call("2", "m1", "c1", 7),
        result("3", "c1"),
    ]
    .concat();
    let new = [call("4", "m2", "c2", 8), result("5", "c2")].concat();
    let new = new.replace(r#""sessionId":"s""#, r#""sessionId":"t""#);
    let items = read_files(
        "claude-code",
        &[
            ("s.jsonl", &[&*old, &old].concat()),
            ("t.jsonl", &[old, new].concat()),
        ],
    );
    assert_eq!(
        items,
        [
            "start s",
            "user says go",
            "Read ok (7)",
            "end after 2",
            "start t",
            "Read ok (8)",
            "end after 1"
        ]
    );
}

#[test]
fn files_of_one_resumed_session_are_read_together() {
    let dir = TempDir::new().unwrap();
    let project = dir.path().join(".claude/projects/p");
    fs::create_dir_all(&project).unwrap();
    fs::write(
        project.join("a.jsonl"),
        prompt("1", "one") + &prompt("2", "two"),
    )
    .unwrap();
    fs::write(
        project.join("b.jsonl"),
        prompt("1", "one") + &prompt("3", "three"),
    )
    .unwrap();
    fs::write(project.join("c.jsonl"), prompt("4", "four")).unwrap();
    let transcripts = find_transcripts(&homes(dir.path()), None);
    let files: Vec<_> = transcripts.iter().map(|found| found.paths.len()).collect();
    assert_eq!(files, [2, 1]);
}

#[test]
fn what_claude_code_writes_in_the_users_place_is_no_turn_of_the_user() {
    let meta = prompt("2", "reminder").replace(r#""uuid""#, r#""isMeta":true,"uuid""#);
    let summary =
        prompt("3", "continued").replace(r#""uuid""#, r#""isCompactSummary":true,"uuid""#);
    let lines = [
        prompt("1", "go"),
        meta,
        summary,
        prompt("4", "<task-notification>\\n<task-id>"),
        prompt("5", "[Request interrupted by user]"),
        prompt("6", "<local-command-stdout>Compacted"),
        claude_line(
            "system",
            "7",
            r#""subtype":"compact_boundary","compactMetadata":{"preTokens":1299}"#,
        ),
    ];
    assert_eq!(
        read_files("claude-code", &[("s.jsonl", &lines.concat())])[1..],
        [
            "user says go",
            "system says <task-notification>\n<tas",
            "system says [Request interrupted by ",
            "system says <local-command-stdout>Co",
            "Compaction",
            "end after 5"
        ]
    );
}

#[test]
fn an_edit_and_a_read_of_what_it_left_have_the_same_hash_in_a_transcript() {
    let transcripts = find_transcripts(&homes(&fixtures()), find_format("claude-code"));
    let mixed = transcripts
        .iter()
        .filter(|found| found.paths[0].ends_with("mixed.jsonl"));
    let items = read_all(&mixed.cloned().collect::<Vec<_>>());
    let hashes: Vec<_> = events_of(&items)
        .into_iter()
        .filter_map(|event| match &event.event.body {
            EventBody::Call(call) => Some(call.content_hash.clone()),
            _ => None,
        })
        .filter(|hash| !hash.is_empty())
        .collect();
    assert_eq!(hashes.len(), 4);
    assert_ne!(hashes[0], hashes[1]);
    assert!(hashes[1..].iter().all(|hash| *hash == hashes[1]));
}

#[test]
fn long_lines_of_no_use_are_skipped_by_their_type() {
    let lines = [
        prompt("1", "go"),
        // Not even JSON: it is not parsed.
        "{\"type\":\"file-history-snapshot\",\"x\":{[}\n".to_owned(),
        "{ \"type\" : \"progress\", {\n".to_owned(),
        prompt("2", "on"),
    ];
    assert_eq!(
        read_files("claude-code", &[("s.jsonl", &lines.concat())]),
        ["start s", "user says go", "user says on", "end after 2"]
    );
}

#[test]
fn the_longest_of_rewritten_gemini_records_counts() {
    let header = r#"{"sessionId":"g","projectHash":"h","kind":"main"}"#;
    let record = |rest: &str| {
        format!(
            r#"{{"id":"r","timestamp":"2026-11-17T22:05:10.046Z","type":"gemini","content":"","tokens":{{"input":9,"output":5,"cached":0}},"model":"m"{rest}}}"#
        )
    };
    let call = |status: &str, result: &str| {
        format!(
            r#","toolCalls":[{{"id":"c","name":"read_file","args":{{}},"status":"{status}"{result}}}]"#
        )
    };
    let result = r#","result":[{"functionResponse":{"response":{"output":"text"}}}]"#;
    let user = r#"{"id":"u","type":"user","content":[{"text":"go"}]}"#;
    let lines = [
        header,
        user,
        &record(""),
        &record(&call("success", result)),
        &record(&call("executing", "")),
        r#"{"$set":{"lastUpdated":"2026-11-17T22:05:10.046Z"}}"#,
        r#"{"id":"v","type":"user","content":[{"functionResponse":{"id":"c"}}]}"#,
    ];
    assert_eq!(
        read_files("gemini", &[("session-1.jsonl", &lines.join("\n"))]),
        ["start g", "user says go", "read_file ok (5)", "end after 2"]
    );
}

#[test]
fn a_session_of_pi_is_the_branch_that_leads_to_its_last_line() {
    let line = |id: &str, parent: &str, role: &str, text: &str| {
        format!(
            r#"{{"type":"message","id":"{id}","parentId":{parent},"timestamp":"2026-11-17T22:10:25.427Z","message":{{"role":"{role}","content":[{{"type":"text","text":"{text}"}}],"model":"m","usage":{{"input":1,"output":5,"cost":{{"total":0.5}}}}}}}}"#
        )
    };
    let lines = [
        r#"{"type":"session","version":3,"id":"p","cwd":"/w/demo"}"#.to_owned(),
        line("a", "null", "user", "go"),
        line("b", "\"a\"", "assistant", "left"),
        line("c", "\"a\"", "assistant", "right"),
        line("d", "\"c\"", "user", "on"),
    ];
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("p.jsonl");
    fs::write(&path, lines.join("\n")).unwrap();
    let items = read_all(&[Transcript::new(find_format("pi").unwrap(), vec![path])]);
    assert_eq!(
        describe_all(&items),
        [
            "start p",
            "user says go",
            "agent says right (5)",
            "user says on",
            "end after 3"
        ]
    );
    let Some(TranscriptItem::End(end)) = items.last() else {
        panic!("no end");
    };
    assert_eq!(
        end.usage[0].cost_usd,
        Some(1.0),
        "the other branch was paid for too"
    );
}

#[test]
fn what_cannot_be_read_is_reported_with_its_line_and_skipped() {
    let whole = prompt("1", "go");
    let text = format!(
        "{whole}{{\"type\":\n[1]\n\u{0}\u{1}\n{}{}",
        prompt("2", "on"),
        &whole[..60]
    );
    let items = read_files("claude-code", &[("s.jsonl", &text)]);
    assert_eq!(
        items,
        [
            "start s",
            "user says go",
            "problem s.jsonl:2: cut off: the JSON ends too early",
            "problem s.jsonl:3: not a JSON object",
            "problem s.jsonl:4: not a JSON object",
            "user says on",
            "problem s.jsonl:6: cut off: the JSON ends too early",
            "end after 2"
        ]
    );
    for format in FORMATS {
        let name = if matches!(format.name, "cline") {
            "x.messages.json"
        } else {
            "x.jsonl"
        };
        let items = read_files(format.name, &[(name, "")]);
        assert_eq!(items.len(), 1, "{}: {items:?}", format.name);
        assert!(items[0].starts_with("problem "), "{}", items[0]);
    }
    let missing = Transcript::new(find_format("codex").unwrap(), vec!["/nowhere/x".into()]);
    assert!(describe_all(&read_all(&[missing]))[0].starts_with("problem x:0: cannot be read: "));
}

#[test]
fn an_unknown_version_of_a_format_is_reported_and_skipped() {
    let pi = r#"{"type":"session","version":4,"id":"p","cwd":"/w"}
{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"go"}}"#;
    assert_eq!(
        read_files("pi", &[("p.jsonl", pi)]),
        ["problem p.jsonl:1: unknown version 4 of the format"]
    );
    let copilot = r#"{"type":"session.start","data":{"sessionId":"c","version":2}}
{"type":"user.message","data":{"content":"go"}}"#;
    assert_eq!(
        read_files("copilot", &[("events.jsonl", copilot)]),
        ["problem events.jsonl:1: unknown version 2 of the format"]
    );
    let cline = r#"{"version":2,"sessionId":"c","messages":[{"role":"user","content":[{"type":"text","text":"go"}]}]}"#;
    assert_eq!(
        read_files("cline", &[("c.messages.json", cline)]),
        ["problem c.messages.json:0: unknown version 2 of the format"]
    );
}

#[test]
fn a_file_is_read_up_to_its_length_when_it_was_opened() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s.jsonl");
    fs::write(&path, "old\n").unwrap();
    let (bytes, mut file) = files::open(&path).unwrap();
    let mut writer = File::options().append(true).open(&path).unwrap();
    writer.write_all(b"new\n").unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!((bytes, &*text), (4, "old\n"));
}

#[test]
fn an_id_that_is_none_is_replaced_by_one_of_the_file() {
    for id in ["", "with space", &"x".repeat(300)] {
        let text =
            prompt("1", "go").replace(r#""sessionId":"s""#, &format!(r#""sessionId":"{id}""#));
        let items = read_files("claude-code", &[("s.jsonl", &text)]);
        assert_eq!(items[0].len(), "start ".len() + 32, "{}", items[0]);
    }
}

#[test]
fn directories_come_from_the_environment() {
    let homes = Homes::from_environment(|name| match name {
        "HOME" => Some("/home/dev".to_owned()),
        "CODEX_HOME" => Some(String::new()),
        "XDG_DATA_HOME" => Some("/data".to_owned()),
        "CLAUDE_CONFIG_DIR" => Some("/a,/b".to_owned()),
        _ => None,
    });
    assert_eq!(homes.codex, None);
    assert_eq!(homes.data_dir(), Path::new("/data"));
    assert_eq!(homes.config_dir(), Path::new("/home/dev/.config"));
    assert_eq!(homes.claude.as_deref(), Some("/a,/b"));
}

#[test]
fn the_newest_events_of_opencode_are_in_its_log() {
    let dir = TempDir::new().unwrap();
    let base = dir.path().join(".local/share/opencode");
    fs::create_dir_all(&base).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = |name: &str, time| {
        let file = fs::File::create(base.join(name)).unwrap();
        file.set_modified(time).unwrap();
    };
    file("opencode.db", old);
    let modified = || find_transcripts(&homes(dir.path()), find_format("opencode"))[0].modified;
    assert_eq!(modified(), Some(old));
    let new = old + Duration::from_secs(1_000);
    file("opencode.db-wal", new);
    assert_eq!(modified(), Some(new));
}

#[test]
fn a_trajectory_of_harbor_is_read_with_its_sub_agents() {
    let step = |id: u32, second: u32, rest: &str| {
        format!(r#"{{"step_id":{id},"timestamp":"2026-11-17T22:00:{second:02}Z",{rest}}}"#)
    };
    let call = r#""source":"agent","message":"look","tool_calls":[{"tool_call_id":"c","function_name":"bash","arguments":{"command":"ls"}}],"observation":{"results":[{"source_call_id":"c","content":"a\nExit Code: 1"}]},"metrics":{"prompt_tokens":9,"completion_tokens":5,"cached_tokens":3,"cost_usd":0.01}"#;
    let steps = [
        step(1, 1, r#""source":"user","message":"go""#),
        step(2, 2, call),
        step(
            3,
            9,
            r#""source":"agent","message":"old","is_copied_context":true"#,
        ),
        step(
            4,
            8,
            r#""source":"agent","message":"done","metrics":{"completion_tokens":2}"#,
        ),
    ];
    let sub = step(1, 5, call);
    let document = format!(
        r#"{{"schema_version":"ATIF-v1.8","session_id":"h","agent":{{"name":"x","version":"1","model_name":"m"}},"steps":[{}],"subagent_trajectories":[{{"session_id":"sub","steps":[{sub}]}}],"final_metrics":{{"total_cost_usd":0.5}}}}"#,
        steps.join(",")
    );
    assert_eq!(
        read_files("atif", &[("trajectory.json", &document)]),
        [
            "start h",
            "user says go",
            "agent says look",
            "bash error (5)",
            "sub: agent says look",
            "sub: bash error (5)",
            "agent says done (2)",
            "end after 6"
        ]
    );
    let newer = document.replace("ATIF-v1.8", "ATIF-v2.0");
    assert_eq!(
        read_files("atif", &[("trajectory.json", &newer)]),
        ["problem trajectory.json:0: unknown version \"ATIF-v2.0\" of the format"]
    );
}

#[test]
fn the_events_of_openhands_are_one_session_in_the_order_of_their_files() {
    let files = [
        (
            "conv/events/event-00000-a.json",
            r#"{"kind":"MessageEvent","source":"user","timestamp":"2026-11-17T22:00:01.123456","llm_message":{"role":"user","content":[{"type":"text","text":"go"}]}}"#,
        ),
        (
            "conv/events/event-00001-b.json",
            r#"{"kind":"ActionEvent","source":"agent","thought":[{"type":"text","text":"look"}],"tool_name":"terminal","tool_call_id":"c1","tool_call":{"arguments":"{\"command\":\"ls\"}"},"llm_response_id":"r1"}"#,
        ),
        (
            "conv/events/event-00002-c.json",
            r#"{"kind":"ObservationEvent","tool_call_id":"c1","observation":{"content":[{"type":"text","text":"no"}],"exit_code":2}}"#,
        ),
        (
            "conv/events/event-00003-d.json",
            r#"{"kind":"ActionEvent","tool_name":"terminal","tool_call_id":"c2","tool_call":{"arguments":"{}"},"llm_response_id":"r2"}"#,
        ),
        (
            "conv/events/event-00004-e.json",
            r#"{"kind":"UserRejectObservation","tool_call_id":"c2","rejection_reason":"no"}"#,
        ),
        (
            "conv/events/event-00005-f.json",
            r#"{"kind":"Condensation"}"#,
        ),
    ];
    assert_eq!(
        read_files("openhands", &files),
        [
            "start conv",
            "user says go",
            "agent says look",
            "terminal error",
            "terminal blocked",
            "Compaction",
            "end after 5"
        ]
    );
}

#[test]
fn trajectories_of_swe_agents_are_read() {
    let mini = r#"{"trajectory_format":"mini-swe-agent-1.1","info":{"model_stats":{"instance_cost":0.02},"config":{"model":{"model_name":"m"}}},"messages":[{"role":"system","content":"s"},{"role":"user","content":"go"},{"role":"assistant","content":"look","extra":{"actions":[{"command":"ls","tool_call_id":"c1"}],"timestamp":1794953425.5,"response":{"usage":{"prompt_tokens":9,"completion_tokens":5}}}},{"role":"tool","tool_call_id":"c1","content":"x","extra":{"returncode":1,"raw_output":"no"}}]}"#;
    let expected = [
        "start x",
        "user says go",
        "agent says look",
        "bash error (5)",
        "end after 3",
    ];
    assert_eq!(
        read_files("mini-swe-agent", &[("x.traj.json", mini)]),
        expected
    );
    let before = r#"{"messages":[{"role":"user","content":"go"},{"role":"assistant","content":"look\n```bash\nls\n```"},{"role":"user","content":"<returncode>0</returncode>\n<output>\na\n</output>"}]}"#;
    let expected = [
        "start x",
        "user says go",
        "agent says look\n",
        "bash ok",
        "end after 3",
    ];
    assert_eq!(
        read_files("mini-swe-agent", &[("x.traj.json", before)]),
        expected
    );
    let swe = r#"{"trajectory":[{"action":"ls","observation":"a.txt","thought":"look"}],"history":[{"role":"user","content":"demo","is_demo":true},{"role":"user","content":"go"}],"info":{}}"#;
    let expected = [
        "start x",
        "user says go",
        "agent says look",
        "bash unknown",
        "end after 3",
    ];
    assert_eq!(read_files("swe-agent", &[("x.traj", swe)]), expected);
}

/// The recorded telemetry of each producer repeats one call.
#[test]
fn a_repeated_call_is_the_same_call_in_the_telemetry_of_every_producer() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/otlp");
    let cases = [
        ("claude-code-2.1.326.logs.http-json", 6),
        ("copilot-cli-1.0.102.traces", 12),
        ("trim-claude-code-2.1.325.logs", 5),
        ("trim-claude-code-2.1.325.traces", 5),
        ("trim-codex-0.166.logs", 4),
        ("trim-gemini-cli-0.61.logs", 4),
        ("trim-gemini-cli-0.61.traces", 4),
        ("trim-langchain-1.4-openinference.traces", 3),
        ("trim-langchain-1.4-openllmetry.traces", 3),
        ("trim-openai-agents-0.24-openinference.traces", 3),
        ("trim-openai-agents-0.24-openllmetry.traces", 3),
        ("trim-pydantic-ai-2.66.traces", 3),
    ];
    for (name, calls) in cases {
        let path = dir.join(format!("{name}.json"));
        let transcripts = transcripts_at(&path, None);
        assert_eq!(transcripts[0].format.name, "otlp", "{name}");
        let items = read_all(&transcripts);
        let made: Vec<_> = events_of(&items)
            .into_iter()
            .filter_map(|event| match &event.event.body {
                EventBody::Call(call) => Some((call.tool.clone(), call.args.as_text().to_owned())),
                _ => None,
            })
            .collect();
        assert_eq!(made.len(), calls, "{name}: {made:?}");
        if !name.starts_with("claude-code") {
            let distinct: std::collections::HashSet<_> = made.iter().collect();
            assert_eq!(distinct.len(), 1, "{name}: {distinct:?}");
        }
        assert!(
            made.iter().all(|(_, args)| !args.is_empty()),
            "{name}: {made:?}"
        );
    }
}
