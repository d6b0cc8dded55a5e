//! `unstuck replay`, as a person or a program runs it.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::CommandOutput;

const READ_LOOP: &str = "examples/read-loop.ndjson";
const SIMILAR_TURNS: &str = "examples/similar-turns.ndjson";
const HEALTHY: &str = "examples/healthy.ndjson";

impl CommandOutput {
    /// `ACTION at index`, in order.
    fn verdicts(&self) -> Vec<String> {
        let objects = self.objects().into_iter();
        let verdicts = objects.filter(|object| object.get("verdict_id").is_some());
        let printed = verdicts.map(|verdict| {
            let action = verdict["action"].as_str().unwrap().to_owned();
            let index = verdict.get("event_index").and_then(Value::as_i64);
            format!("{} at {}", action, index.unwrap_or_default())
        });
        printed.collect()
    }

    fn summary(&self) -> Value {
        self.objects().pop().unwrap()["summary"].clone()
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unstuck"));
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .arg("replay")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn replay_with_stdin(args: &[&str], stdin: &[u8]) -> CommandOutput {
    let mut child = command(args).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // It may exit before it has read all input, after a usage error or an invalid line.
    pipe.write_all(stdin).unwrap_or_default();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    output.into()
}

fn replay(args: &[&str]) -> CommandOutput {
    replay_with_stdin(args, b"")
}

/// Replays the text from standard input and prints JSON.
fn replay_json(trace: &str) -> CommandOutput {
    replay_with_stdin(&["--output", "json", "-"], trace.as_bytes())
}

fn read(session: &str, path: &str) -> String {
    let args = json!({ "path": path }).to_string();
    let call =
        json!({"tool": "read_file", "args_json": args, "outcome": "OUTCOME_OK", "result": "x"});
    json!({"session_id": session, "tool_call": call}).to_string() + "\n"
}

struct Trace {
    _dir: TempDir,
    path: PathBuf,
}

impl Trace {
    fn new(bytes: impl AsRef<[u8]>) -> Self {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("trace.ndjson");
        fs::write(&path, bytes).unwrap();
        Self { _dir: dir, path }
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

#[test]
fn a_read_loop_is_warned_about_at_its_third_read() {
    let ran = replay(&["--output", "json", READ_LOOP]).ends_with(0);
    let verdicts = ran.verdicts();
    assert_eq!(verdicts[0], "ACTION_WARN at 13");
}

#[test]
fn similar_turns_are_warned_about_and_ended() {
    let verdicts = replay(&["--output", "json", SIMILAR_TURNS])
        .ends_with(0)
        .verdicts();
    assert_eq!(verdicts.first().unwrap(), "ACTION_WARN at 9");
    assert_eq!(verdicts.last().unwrap(), "ACTION_TERMINATE at 13");
}

#[test]
fn a_healthy_session_has_no_verdict() {
    let ran = replay(&["--output", "json", HEALTHY]).ends_with(0);
    assert_eq!(ran.verdicts(), [""; 0]);
    assert_eq!(ran.summary()["events"], 37);
    assert_eq!(ran.summary()["saved"]["events"], 0);
    let printed = replay(&[HEALTHY]).out;
    assert_eq!(printed, "37 events in 1 session: no loops.\n");
}

#[test]
fn json_is_proto3_json_with_the_names_of_the_proto() {
    let ran = replay(&["--output", "json", READ_LOOP]);
    let verdict = &ran.objects()[0];
    assert_eq!(verdict["action"], "ACTION_WARN");
    assert_eq!(verdict["session_id"], "coding/invoice-rounding");
    assert_eq!(verdict["event_index"], 13);
    assert_eq!(verdict["time"], "2026-03-11T09:15:10.118Z");
    assert_eq!(verdict["evidence"]["event_indexes"], json!([11, 12, 13]));
    assert_eq!(verdict["trend"]["level"], "TREND_LEVEL_BLIP");
    assert_eq!(verdict["wasted"]["tokens"], 9_714);
    assert!(verdict["correction"].as_str().unwrap().contains("3 times"));
}

#[test]
fn the_last_line_sums_all_files_up() {
    let ran = replay(&["--output", "json", READ_LOOP, SIMILAR_TURNS, HEALTHY]).ends_with(0);
    let summary = ran.summary();
    assert_eq!(summary["events"], 17 + 14 + 37);
    assert_eq!(summary["sessions"], 3);
    assert_eq!(summary["bad_lines"], 0);
    assert_eq!(summary["looping_sessions"], 2);
    assert_eq!(summary["terminated_sessions"], 1);
    let verdicts = &summary["verdicts"];
    assert_eq!(verdicts["total"], ran.verdicts().len());
    let total = |by: &str| {
        let counts = verdicts[by].as_object().unwrap().values();
        counts.map(|count| count.as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(verdicts["total"], total("by_detector"));
    assert_eq!(verdicts["total"], total("by_action"));
    assert!(verdicts["by_action"]["ACTION_TERMINATE"] == 1);
    for sum in ["wasted", "saved"] {
        for part in ["events", "tokens", "cost_usd"] {
            assert!(summary[sum][part].as_f64().unwrap() > 0.0, "{summary}");
        }
    }
}

#[test]
fn events_after_a_termination_count_as_saved_and_repeat_no_verdict() {
    let mut trace = fs::read_to_string(SIMILAR_TURNS).unwrap();
    let before = replay_json(&trace);
    let one_more = json!({
        "session_id": "support/refund-4471",
        "usage": {"input_tokens": 100, "output_tokens": 10, "cost_usd": 0.5},
        "turn": {"role": "ROLE_AGENT", "text": "once more"},
    });
    trace += &format!("{one_more}\n{one_more}\n");
    let after = replay_json(&trace);
    assert_eq!(after.verdicts(), before.verdicts());
    let (before, after) = (before.summary(), after.summary());
    assert_eq!(after["events"], before["events"]);
    let saved = |summary: &Value, part: &str| summary["saved"][part].as_f64().unwrap();
    assert_eq!(saved(&after, "events"), saved(&before, "events") + 2.0);
    assert_eq!(saved(&after, "tokens"), saved(&before, "tokens") + 220.0);
    assert!((saved(&after, "cost_usd") - saved(&before, "cost_usd") - 1.0).abs() < 1e-6);
}

#[test]
fn a_duplicate_event_repeats_no_verdict() {
    let trace = fs::read_to_string(READ_LOOP).unwrap();
    let twice: String = trace
        .lines()
        .map(|line| format!("{line}\n{line}\n"))
        .collect();
    let (once, twice) = (replay_json(&trace), replay_json(&twice));
    assert_eq!(once.out, twice.out);
}

#[test]
fn fail_on_is_met_by_that_action_or_a_stronger_one() {
    let check = |action: &str, file: &str, code| {
        let ran = replay(&["--fail-on", action, "--output", "json", file]).ends_with(code);
        assert!(ran.out.contains("\"summary\""));
    };
    check("alert", READ_LOOP, 1);
    check("BLOCK", READ_LOOP, 1);
    check("ACTION_BLOCK", READ_LOOP, 1);
    check("action_break", READ_LOOP, 0);
    check("terminate", READ_LOOP, 0);
    check("terminate", SIMILAR_TURNS, 1);
    check("alert", HEALTHY, 0);
    let ran = replay(&["--fail-on", "nag", HEALTHY]).ends_with(2);
    assert!(ran.err.contains("one of alert, warn"));
}

#[test]
fn a_verdict_in_shadow_mode_fails_nothing() {
    let config = Trace::new("[profiles.default]\nmode = \"shadow\"\n");
    let args = ["--config", config.path(), "--fail-on", "alert", READ_LOOP];
    let ran = replay(&args).ends_with(0);
    assert!(ran.out.contains("shadow"));
}

#[test]
fn an_invalid_line_is_reported_with_its_number_and_skipped() {
    let good = read("s", "a");
    let trace = Trace::new(format!(
        "{good}\nnot json\n{{\"session_id\":\"s\",\"turm\":{{}}}}\n{{\"session_id\":\"s\"}}\n{good}{good}"
    ));
    let ran = replay(&["--output", "json", trace.path()]).ends_with(0);
    let printed: Vec<&str> = ran.err.lines().collect();
    let prefix = |number| format!("unstuck: {}:{number}: ", trace.path());
    assert_eq!(printed.len(), 3, "{}", ran.err);
    assert!(printed[0].starts_with(&prefix(3)), "{}", printed[0]);
    assert!(printed[1].starts_with(&format!("{}unknown field `turm`", prefix(4))));
    assert_eq!(printed[2], format!("{}body: is required", prefix(5)));
    assert_eq!(ran.verdicts(), ["ACTION_WARN at 2"]);
    assert_eq!(ran.summary()["bad_lines"], 3);
    assert_eq!(ran.summary()["events"], 3);
}

#[test]
fn strict_stops_at_a_bad_line() {
    let trace = format!("{}x\n{}", read("s", "a"), read("s", "a"));
    let args = ["--strict", "--output", "json", "-"];
    let ran = replay_with_stdin(&args, trace.as_bytes()).ends_with(2);
    assert!(ran.err.starts_with("unstuck: -:2: "));
    assert_eq!(ran.err.lines().count(), 1);
    assert_eq!(ran.out, "");
}

#[test]
fn input_without_one_good_line_is_bad_input() {
    let ran = replay_with_stdin(&["-"], b"x\ny\n").ends_with(2);
    assert!(ran.err.ends_with("unstuck: no valid line in the traces\n"));
    replay_with_stdin(&["-"], b"\n\n").ends_with(0);
}

#[test]
fn a_missing_file_is_a_usage_error() {
    for file in ["no/such.ndjson", "examples"] {
        let ran = replay(&["--output", "json", HEALTHY, file]).ends_with(2);
        let printed = format!("unstuck: cannot read {file}: ");
        assert!(ran.err.starts_with(&printed), "{}", ran.err);
        assert_eq!(ran.err.lines().count(), 1);
        assert_eq!(ran.out, "");
    }
    replay(&[]).ends_with(2);
}

#[test]
fn an_unknown_profile_is_a_usage_error() {
    let ran = replay(&["--profile", "nosuch", HEALTHY]).ends_with(2);
    let printed =
        "unstuck: unknown profile \"nosuch\"; known profiles: default, classic, lenient, strict\n";
    assert_eq!(ran.err, printed);
}

#[test]
fn all_sessions_have_the_profile() {
    let replay = |profile| replay(&["--profile", profile, "--output", "json", SIMILAR_TURNS]);
    assert_eq!(replay("strict").verdicts()[0], "ACTION_WARN at 7");
    assert_eq!(replay("default").verdicts()[0], "ACTION_WARN at 9");
    assert_eq!(replay("lenient").verdicts(), ["ACTION_WARN at 13"]);
}

#[test]
fn standard_input_is_a_file_like_others() {
    let trace = fs::read(READ_LOOP).unwrap();
    for output in ["json", "table"] {
        let piped = replay_with_stdin(&["--output", output, "-"], &trace).ends_with(0);
        let named = replay(&["--output", output, READ_LOOP]);
        assert_eq!(piped.out, named.out);
    }
}

#[test]
fn a_verdict_is_printed_when_it_is_issued() {
    let mut child = command(&["--output", "json", "-"]).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(read("s", "a").repeat(3).as_bytes())
        .unwrap();
    // The input is still open: without a flush this would wait for ever.
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.contains("ACTION_WARN"), "{line}");
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_byte_order_mark_and_crlf_do_not_matter() {
    let trace = fs::read_to_string(READ_LOOP).unwrap();
    let windows = Trace::new(format!("\u{feff}{}", trace.replace('\n', "\r\n\r\n")));
    let ran = replay(&["--strict", "--output", "json", windows.path()]).ends_with(0);
    assert_eq!(ran.out, replay_json(&trace).out);
}

#[test]
fn camel_case_is_understood() {
    let trace = fs::read_to_string(READ_LOOP).unwrap();
    let names = [
        ("session_id", "sessionId"),
        ("event_id", "eventId"),
        ("tool_call", "toolCall"),
        ("args_json", "argsJson"),
        ("input_tokens", "inputTokens"),
        ("output_tokens", "outputTokens"),
        ("cost_usd", "costUsd"),
        ("content_hash", "contentHash"),
    ];
    let camel = names.iter().fold(trace.clone(), |trace, (snake, camel)| {
        trace.replace(snake, camel)
    });
    assert_ne!(trace, camel);
    let ran = replay_json(&camel).ends_with(0);
    assert_eq!(ran.out, replay_json(&trace).out);
}

#[test]
fn a_null_field_is_unset() {
    let event = r#"{"session_id": "s", "agent_id": null, "usage": null,
        "tool_call": {"tool": "t", "args": {"a": null}, "error": null}}"#;
    let ran = replay_json(&(event.replace('\n', " ") + "\n").repeat(3)).ends_with(0);
    assert_eq!(ran.verdicts(), ["ACTION_WARN at 2"]);
    assert_eq!(ran.summary()["bad_lines"], 0);
}

#[test]
fn streamed_text_is_a_turn() {
    let delta = |text: &str, end: bool| {
        let delta = json!({"session_id": "s", "text": text, "end_of_turn": end});
        json!({ "delta": delta }).to_string() + "\n"
    };
    let turn = delta("I will look ", false) + &delta("into it now.", true);
    let ran = replay_json(&turn.repeat(4)).ends_with(0);
    assert_eq!(ran.verdicts(), ["ACTION_BREAK at 3"]);
    assert_eq!(ran.summary()["events"], 4);
}

#[test]
fn an_event_without_a_time_has_the_time_of_the_event_before() {
    let timed = r#"{"session_id":"s","time":"2026-01-02T03:04:05Z","turn":{"role":"ROLE_USER","text":"x"}}"#;
    let untimed = read("s", "a").repeat(3) + &read("t", "a").repeat(3);
    let ran = replay_json(&format!("{timed}\n{untimed}"));
    let times: Vec<Value> = ran.objects().iter().map(|o| o["time"].clone()).collect();
    let expected = ["2026-01-02T03:04:05Z", "1970-01-01T00:00:00Z"];
    assert_eq!(times[..2], expected.map(Value::from));
    let printed = replay_with_stdin(&["-"], untimed.as_bytes()).out;
    assert!(!printed.contains("1970"), "{printed}");
}

#[test]
fn server_limits_do_not_apply_to_a_replay() {
    let config = Trace::new("[limits]\nsessions_max = 1\nstate_bytes_max = 1\nidle_secs_max = 1\n");
    let trace: String = (0..50).map(|n| read(&format!("s{n}"), "a")).collect();
    let args = [
        "--strict",
        "--config",
        config.path(),
        "--output",
        "json",
        "-",
    ];
    let ran = replay_with_stdin(&args, trace.repeat(3).as_bytes()).ends_with(0);
    assert_eq!(ran.summary()["looping_sessions"], 50);
}

#[test]
fn huge_amounts_stay_numbers() {
    let event = |time: &str| {
        let usage = json!({"input_tokens": i32::MAX, "cost_usd": 1e308});
        let turn = json!({"role": "ROLE_AGENT", "text": "the same again"});
        json!({"session_id": "s", "time": time, "usage": usage, "turn": turn}).to_string() + "\n"
    };
    let trace = event("0001-01-01T00:00:00Z")
        + &event("9999-12-31T23:59:59.999999999Z")
        + &event("1969-12-31T23:59:59.5Z").repeat(3);
    let ran = replay_json(&trace).ends_with(0);
    assert!(ran.summary()["wasted"]["cost_usd"].is_f64());
    replay_with_stdin(&["-"], trace.as_bytes()).ends_with(0);
}

#[test]
fn two_runs_print_the_same_bytes() {
    for output in ["json", "table"] {
        let args = ["--output", output, READ_LOOP, SIMILAR_TURNS, HEALTHY];
        assert_eq!(replay(&args).out, replay(&args).out);
    }
}

#[test]
fn a_closed_pipe_ends_a_replay_without_an_error() {
    let trace: String = (0..5_000)
        .map(|n| read(&format!("s{n}"), "a").repeat(3))
        .collect();
    let trace = Trace::new(trace);
    for output in ["json", "table"] {
        let mut child = command(&["--output", output, trace.path()])
            .spawn()
            .unwrap();
        let mut first = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut first).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn hostile_text_cannot_control_a_terminal() {
    let path = "a\x1b[2J\x07\u{202e}\u{9b}31m\r\nb";
    let call = read("s", path).replace(
        "\"session_id\"",
        "\"agent_id\":\"\\u001b]0;x\\u0007\",\"session_id\"",
    );
    let bad = "{\"session_id\":\"s\",\"\\u001b[2J\":1}\n";
    let trace = call.repeat(3) + bad;
    for output in ["json", "table"] {
        let ran = replay_with_stdin(&["--output", output, "-"], trace.as_bytes()).ends_with(0);
        assert!(ran.out.contains("[2J"), "{}", ran.out);
        for text in [&ran.out, &ran.err] {
            let steers = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            assert!(!text.contains(steers), "{text:?}");
        }
    }
}

#[test]
fn text_output_has_a_timeline_and_a_summary() {
    let printed = replay(&[READ_LOOP, SIMILAR_TURNS, HEALTHY]).out;
    let expected = [
        "coding/invoice-rounding\n17 events, 47,631 tokens, $0.15, looping\n",
        "  ● WARN at event 13 · read_loop, exact_repeat · 2026-03-11 09:15:10Z\n",
        "    read src/money.rs 3 times, nothing changed\n",
        "    events      11–13\n",
        "    correction  Stop reading \"src/money.rs\"",
        "  ● TERMINATE at event 13 · similar_turns",
        "68 events in 3 sessions, 2 of them looping: ",
    ];
    for part in expected {
        assert!(printed.contains(part), "{part:?} is not in\n{printed}");
    }
    assert!(
        !printed.contains("csv-export"),
        "healthy sessions are only counted"
    );
    assert!(
        printed.lines().all(|line| line.chars().count() <= 80),
        "{printed}"
    );
}
