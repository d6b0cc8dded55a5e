//! Tests of the facts of whole events.

use super::*;
use crate::{
    domain::{AgentId, Args, Capacity, Cost, EventBody, Operation, SessionId},
    text::{failure_report, outage},
    tools::{ToolRule, tool_traits::ToolTraits},
};

fn event(call: ToolCall) -> Event {
    Event {
        session: SessionId::parse("s").unwrap(),
        event_id: String::new(),
        time: None,
        agent: AgentId::default(),
        round_id: String::new(),
        state_hash: String::new(),
        cost: Cost::default(),
        body: EventBody::Call(call),
    }
}

fn facts_with(rules: &str, call: ToolCall) -> (CallFacts, String) {
    #[derive(serde::Deserialize)]
    struct Rules {
        tools: Vec<ToolRule>,
    }
    let parsed: Rules = toml::from_str(rules).unwrap();
    let extractor = FactExtractor::new(
        HashKey::fixed(),
        ToolRules::new(parsed.tools).unwrap(),
        Arc::default(),
    );
    let event = event(call);
    let EventBody::Call(call) = &event.body else {
        unreachable!()
    };
    let extract = extractor.extract_call(&event, call).unwrap();
    (extract.facts, extract.target.to_string())
}

fn call(tool: &str, args: &str) -> ToolCall {
    ToolCall {
        tool: tool.to_owned(),
        args: Args::Text(args.to_owned()),
        ..ToolCall::default()
    }
}

fn signature(args: &str) -> Option<Sig> {
    facts_with("tools = []", call("t", args)).0.call
}

#[track_caller]
fn assert_same(a: &str, b: &str) {
    assert_eq!(signature(a), signature(b), "{a} and {b}");
}

#[track_caller]
fn assert_different(a: &str, b: &str) {
    assert_ne!(signature(a), signature(b), "{a} and {b}");
}

#[test]
fn key_order_and_white_space_do_not_matter() {
    assert_same(r#"{"a":1,"b":[1,2]}"#, r#" { "b" : [ 1 , 2 ] , "a" : 1 } "#);
    assert_same(r#"{"a":{"x":1,"y":2}}"#, r#"{"a":{"y":2,"x":1}}"#);
    assert_same("ls   -la", " ls -la\n");
}

#[test]
fn an_object_and_its_json_text_are_equal() {
    assert_same(r#"{"command":"ls"}"#, r#""{\"command\": \"ls\"}""#);
}

#[test]
fn numbers_are_compared_by_value() {
    assert_same(r#"{"n":1}"#, r#"{"n":1.0}"#);
    assert_same(r#"{"n":0}"#, r#"{"n":-0.0}"#);
    assert_different(r#"{"n":9007199254740993}"#, r#"{"n":9007199254740992}"#);
}

#[test]
fn different_arguments_differ() {
    assert_different(r#"{"a":1}"#, r#"{"a":2}"#);
    assert_different(r#"{"a":1}"#, r#"{"b":1}"#);
    assert_different(r#"{"a":"1"}"#, r#"{"a":1}"#);
    assert_different(r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#);
    assert_different(r#"{"a":{"b":1},"c":2}"#, r#"{"a":{"c":2},"b":1}"#);
    assert_different(r#"{"a":null}"#, "{}");
    assert_different(r#"{"a":1}"#, r#"{"a":1"#);
    assert_different(r#"{"code":"a b"}"#, r#"{"code":"a  b"}"#);
}

#[test]
fn zero_width_characters_in_arguments_change_nothing() {
    assert_same("{\"a\":\"x\u{200b}y\"}", r#"{"a":"xy"}"#);
    assert_same("\u{feff}{\"a\"\u{200b}:1}", r#"{"a":1}"#);
    assert_same("ls \u{200b} -la", "ls -la");
    assert_same("{\"a\":\"x\\u0007\"}", "{\"a\":\"x\\u0007\u{200b}\"}");
}

#[test]
fn zero_width_characters_in_a_target_change_nothing() {
    let of = |path| facts_with("tools = []", call("write", path)).0.target;
    assert_eq!(of("{\"path\":\"a\u{200b}.rs\"}"), of("{\"path\":\"a.rs\"}"));
    let sent = |target: &str| ToolCall {
        target: target.to_owned(),
        ..ToolCall::default()
    };
    let of = |target| facts_with("tools = []", sent(target)).0.target;
    assert_eq!(of("a\u{200b}.rs"), of("a.rs"));
}

#[test]
fn calls_of_different_tools_differ() {
    let of = |tool| facts_with("tools = []", call(tool, "{}")).0.call;
    assert_ne!(of("read"), of("write"));
}

#[test]
fn unknown_arguments_have_no_signature() {
    let (facts, _) = facts_with("tools = []", ToolCall::default());
    assert_eq!(facts.call, None);
}

#[test]
fn ignored_arguments_do_not_distinguish_calls() {
    let rules = r#"tools = [{ name = "ex*", ignore_args = ["display"] }]"#;
    let of = |args| facts_with(rules, call("EXEC", args)).0.call;
    assert_eq!(
        of(r#"{"code":"ls","display":1}"#),
        of(r#"{"display":2,"code":"ls"}"#)
    );
    assert_ne!(of(r#"{"code":"ls"}"#), of(r#"{"code":"rm"}"#));
}

#[test]
fn a_cached_call_key_is_that_of_its_call() {
    let extractor = FactExtractor::new(HashKey::fixed(), ToolRules::default(), Arc::default());
    let too_long = format!("\"{}\"", "a".repeat(call_key::ARGS_BYTES_MAX));
    let args = [r#"{"a": 1}"#, r#"{"a": 2}"#, "ls -l", "", &too_long];
    // The second round is answered from the cache.
    for _ in 0..2 {
        for tool in ["read", "write"] {
            for args in args {
                let expected = call_key::call_key(tool, args);
                assert_eq!(
                    extractor.call_key(tool, args),
                    expected,
                    "{tool} {args:.20}"
                );
            }
        }
    }
    assert_ne!(extractor.call_key("read", args[0]), None);
    assert_eq!(extractor.call_key("read", args[2]), None);
}

#[test]
fn the_target_is_the_argument_with_the_best_rank() {
    let of = |args| facts_with("tools = []", call("t", args)).1;
    assert_eq!(of(r#"{"query":"x","path":"src/a.rs"}"#), "src/a.rs");
    assert_eq!(of(r#"{"path":"a\u0062c"}"#), "abc");
    assert_eq!(of(r#"{"n":1}"#), "");
    assert_eq!(of("cat a.txt"), "cat a.txt");
}

#[test]
fn the_target_of_a_search_is_its_search_term() {
    let of = |tool| facts_with("tools = []", call(tool, r#"{"path":"src","pattern":"x"}"#)).1;
    assert_eq!(of("grep"), "x");
    assert_eq!(of("read_file"), "src");
}

#[test]
fn a_shell_call_is_classified_by_its_command() {
    use crate::domain::{CallKind, Operation};
    let of = |args| facts_with("tools = []", call("bash", args));
    let (facts, target) = of(r#"{"command":"sed -n '3,9p' a.rs"}"#);
    assert_eq!(
        (facts.operation, target.as_str()),
        (Operation::Read, "a.rs")
    );
    assert_eq!(facts.lines, Some((3, 9)));
    assert_eq!(
        of(r#"{"command":"sed -i s/a/b/ a.rs"}"#).0.operation,
        Operation::Edit
    );
    assert_eq!(
        of(r#"{"command":"pytest"}"#).0.operation,
        Operation::Execute
    );
    assert_eq!(of(r#"{"command":""}"#).0.kind, CallKind::Poll);
}

#[test]
fn a_run_that_reports_failed_tests_has_failed_even_with_a_pipe() {
    let facts_of = |tool: &str, command: &str, result: &str| {
        let call = ToolCall {
            outcome: Some(Outcome::Ok),
            result: Some(result.to_owned()),
            ..call(tool, &format!(r#"{{"command":"{command}"}}"#))
        };
        facts_with("tools = []", call).0
    };
    let piped = |result| facts_of("bash", "pytest -q | tail -3", result);
    let failed = piped("E assert 1 == 2\n1 failed, 3 passed in 0.12s");
    assert!(failed.failed());
    assert_eq!(
        failed.error,
        piped("E assert 1 == 2\n1 failed, 3 passed in 1.47s").error
    );
    assert_ne!(
        failed.error,
        piped("E assert 1 == 2\n2 failed, 2 passed in 0.12s").error
    );
    assert!(!piped("4 passed in 0.12s").failed());
    assert!(!facts_of("bash", "cat test.log", "1 failed, 3 passed in 0.12s").failed());
}

#[test]
fn the_target_of_a_patch_is_its_file() {
    let args = r#"{"input":"*** Begin Patch\n*** Update File: src/a.rs\n@@\n*** End Patch"}"#;
    assert_eq!(
        facts_with("tools = []", call("apply_patch", args)).1,
        "src/a.rs"
    );
}

#[test]
fn lines_are_read_from_the_arguments_of_common_agents() {
    let of = |args| facts_with("tools = []", call("read", args)).0.lines;
    assert_eq!(of(r#"{"path":"a","offset":10,"limit":5}"#), Some((10, 14)));
    assert_eq!(
        of(r#"{"path":"a","offset":"200","limit":200}"#),
        Some((200, 399))
    );
    assert_eq!(
        of(r#"{"path":"a","start_line":3,"end_line":9}"#),
        Some((3, 9))
    );
    assert_eq!(of(r#"{"path":"a","view_range":[3,9]}"#), Some((3, 9)));
    assert_eq!(of(r#"{"path":"a","limit":9}"#), Some((1, 9)));
    assert_eq!(of(r#"{"path":"a"}"#), None);
}

#[test]
fn an_acknowledgement_and_the_answer_of_a_write_have_no_response() {
    let of = |tool, result: &str| {
        let sent = ToolCall {
            result: Some(result.to_owned()),
            outcome: Some(Outcome::Ok),
            ..call(tool, "{}")
        };
        facts_with("tools = []", sent).0.response
    };
    assert!(of("t", "3 rows").is_some());
    assert_eq!(of("t", " OK\n"), None);
    assert_eq!(of("t", ""), of("t", "[]"));
    assert_eq!(of("write_file", "file updated, 12 lines"), None);
}

#[test]
fn the_operation_comes_from_the_tool_unless_it_was_sent() {
    use crate::domain::Operation;
    let of = |tool| facts_with("tools = []", call(tool, "{}")).0.operation;
    assert_eq!(of("Read"), Operation::Read);
    assert_eq!(of("mcp__fs__read_file"), Operation::Read);
    assert_eq!(of("functions.bash"), Operation::Execute);
    assert_eq!(of("frobnicate"), Operation::Other);
    let sent = ToolCall {
        operation: Some(Operation::Write),
        ..call("Read", "{}")
    };
    assert_eq!(facts_with("tools = []", sent).0.operation, Operation::Write);
}

fn outcome(result: Option<&str>, error: &str) -> (Sig, Sig) {
    let (facts, _) = facts_with(
        "tools = []",
        ToolCall {
            result: result.map(str::to_owned),
            error: error.to_owned(),
            ..call("t", "{}")
        },
    );
    (facts.masked_outcome, facts.raw_outcome)
}

#[test]
fn an_outcome_has_a_masked_and_a_raw_signature() {
    let (masked, raw) = outcome(Some("done at 12:00:01"), "");
    let (masked_later, raw_later) = outcome(Some("done at 12:00:59"), "");
    assert_eq!(masked, masked_later);
    assert_ne!(raw, raw_later);
}

#[test]
fn an_unknown_outcome_differs_from_an_empty_one() {
    assert_ne!(outcome(None, "").0, outcome(Some(""), "").0);
    assert_ne!(outcome(Some("x"), "").0, outcome(None, "x").0);
}

fn write(path: &str, args: &str, content: &str) -> CallFacts {
    let sent = ToolCall {
        target: path.to_owned(),
        content_hash: content.to_owned(),
        ..call("write_file", args)
    };
    facts_with("tools = []", sent).0
}

#[test]
fn a_write_is_progress_when_it_changes_something() {
    let mut progress = ProgressCounter::default();
    let mut after = |write: &CallFacts| progress.record_write(write, &Capacity::new(9));
    assert_eq!(after(&write("a", "1", "x")), 1);
    assert_eq!(after(&write("a", "2", "x")), 1, "the same content");
    assert_eq!(after(&write("a", "2", "y")), 2);
    assert_eq!(after(&write("b", "3", "")), 3);
    assert_eq!(after(&write("b", "3", "")), 3, "the same write");
    assert_eq!(after(&write("b", "4", "")), 4);
}

#[test]
fn the_next_write_to_an_evicted_path_is_a_change() {
    let (mut progress, capacity) = (ProgressCounter::default(), Capacity::new(2));
    for (path, count) in [("a", 1), ("b", 2), ("b", 2), ("c", 3), ("b", 3), ("a", 4)] {
        assert_eq!(
            progress.record_write(&write(path, "1", "x"), &capacity),
            count,
            "{path}"
        );
    }
    assert_eq!(capacity.evicted(), 2);
}

#[test]
fn a_write_that_changed_nothing_or_a_plan_is_no_progress() {
    let mut progress = ProgressCounter::default();
    let mut after = |tool: &str, args: &str, result: &str, content: &str| {
        let sent = ToolCall {
            result: Some(result.to_owned()),
            content_hash: content.to_owned(),
            ..call(tool, args)
        };
        let (facts, _) = facts_with("tools = []", sent);
        progress.record_write(&facts, &Capacity::new(9))
    };
    let edit = |text: &str| format!(r#"{{"path": "a", "old_str": "{text}", "new_str": "x"}}"#);
    assert_eq!(after("str_replace", &edit("1"), "edited", ""), 1);
    let none = "No replacement was performed.";
    assert_eq!(after("str_replace", &edit("2"), none, ""), 1);
    assert_eq!(after("str_replace", &edit("3"), none, "another"), 2);
    let todos = r#"{"todos": [{"content": "a", "status": "pending"}]}"#;
    assert_eq!(after("TodoWrite", todos, "Todos have been modified", ""), 2);
}

#[test]
fn a_move_that_changed_nothing_is_no_progress() {
    let moved = |changed_nothing| {
        let stash = CallFacts {
            moves_world: true,
            changed_nothing,
            ..write("a", "1", "x")
        };
        ProgressCounter::default().record_write(&stash, &Capacity::new(9))
    };
    assert_eq!([moved(false), moved(true)], [1, 0]);
}

#[test]
fn a_failed_write_is_no_progress() {
    let failed = CallFacts {
        outcome: Some(Outcome::Error),
        ..write("a", "1", "x")
    };
    assert_eq!(
        ProgressCounter::default().record_write(&failed, &Capacity::new(9)),
        0
    );
}

#[test]
fn a_changed_state_is_progress() {
    let mut progress = ProgressCounter::default();
    let mut after = |state| {
        progress.record_state(Some(Sig::new(state)));
        progress.record_state(None);
        progress.count()
    };
    assert_eq!(after(1), 0, "the first state is no change");
    assert_eq!(after(1), 0);
    assert_eq!(after(2), 1);
}

#[test]
fn a_statement_that_changes_data_is_a_write_and_a_query_is_not() {
    let operation = |query: &str| {
        let args = format!("{{\"query\": \"{query}\"}}");
        facts_with("tools = []", call("execute_sql", &args))
            .0
            .operation
    };
    assert_eq!(operation("INSERT INTO t VALUES (1)"), Operation::Write);
    assert_eq!(operation("SELECT * FROM t"), Operation::Other);
}

#[test]
fn white_space_in_very_long_plain_arguments_matters() {
    let same = |bytes: usize| {
        let of = |gap: &str| {
            let args = Args::Text(format!("{}{gap}end", "x".repeat(bytes)));
            args::ParsedArguments::parse(
                &args,
                same_call::ArgumentFilter::default(),
                &HashKey::fixed(),
            )
            .hash
        };
        of(" ") == of("  ")
    };
    assert!(same(64 * 1_024 - 5));
    assert!(!same(64 * 1_024));
}

#[test]
fn a_long_error_is_searched_at_its_start_and_a_long_report_at_its_end() {
    let filler = |bytes: usize| "x ".repeat(bytes / 2);
    let is_outage = |before| outage::is_outage_error(&(filler(before) + "connection refused"));
    assert!(is_outage(2_000) && !is_outage(2_048));
    let is_report = |after| {
        failure_report::reports_failed_run(&("1 failed, 3 passed ".to_owned() + &filler(after)))
    };
    assert!(is_report(2_000) && !is_report(2_048));
}

#[test]
fn an_answer_that_something_is_under_way_makes_a_call_a_poll() {
    let kind = |tool: &str, args: &str, outcome, result: &str| {
        let answered = ToolCall {
            outcome: Some(outcome),
            result: Some(result.to_owned()),
            ..call(tool, args)
        };
        facts_with("tools = []", answered).0.kind
    };
    use Outcome::{Error, Ok};
    let pending = "{\"state\": \"processing\"}";
    let check = "{\"command\": \"gh pr checks 4\"}";
    let checks = "exit code 8\nbuild\tpending\t0\nlint\tpass\t41s";
    assert_eq!(kind("get_export", "{}", Ok, pending), CallKind::Poll);
    assert_eq!(kind("bash", check, Ok, "PENDING Priority"), CallKind::Poll);
    assert_eq!(kind("bash", check, Error, checks), CallKind::Poll);
    let ordinary = [
        kind("get_export", "{}", Ok, "{\"state\": \"ready\"}"),
        kind("bash", check, Error, &checks.replace('8', "1")),
        kind("read_file", "{\"path\": \"a\"}", Ok, "RUNNING"),
        kind("bash", "{\"command\": \"cat a\"}", Ok, "RUNNING"),
        kind("create_export", "{}", Ok, pending),
        kind("TodoRead", "{}", Ok, "[{\"status\": \"in_progress\"}]"),
    ];
    assert_eq!(ordinary, [CallKind::Ordinary; 6]);
}

#[test]
fn a_poll_is_the_same_poll_whatever_time_it_waits() {
    let key = |command: &str| {
        let args = format!("{{\"command\": \"{command}\"}}");
        facts_with("tools = []", call("bash", &args)).0.poll_key
    };
    assert!(key("sleep 5; tail log").is_some());
    assert_eq!(key("sleep 5; tail log"), key("sleep 90; tail log"));
    assert_ne!(key("sleep 5; tail a"), key("sleep 5; tail b"));
    assert_eq!(key("tail log"), None);
}

#[test]
fn a_reworded_report_of_a_sub_agent_is_the_same_outcome() {
    let outcome = |tool: &str, report: &str| {
        let asked = ToolCall {
            outcome: Some(Outcome::Ok),
            result: Some(report.to_owned()),
            ..call(tool, r#"{"prompt": "Find where webhooks are signed."}"#)
        };
        facts_with("tools = []", asked).0.masked_outcome
    };
    let [first, reworded, other] = [
        "Signing happens in hook/sign.go.",
        "The code in hook/sign.go signs them.",
        "The code in hook/send.go signs them.",
    ];
    assert_eq!(outcome("Task", first), outcome("Task", reworded));
    assert_ne!(outcome("Task", first), outcome("Task", other));
    assert_ne!(outcome("read_page", first), outcome("read_page", reworded));
}

#[test]
fn a_move_or_change_whose_answer_says_no_is_none() {
    let changed_nothing = |tool: &str, args: &str, result: &str| {
        let answered = ToolCall {
            outcome: Some(Outcome::Ok),
            result: Some(result.to_owned()),
            ..call(tool, args)
        };
        facts_with("tools = []", answered).0.changed_nothing
    };
    let stash = r#"{"command": "git stash"}"#;
    assert!(changed_nothing("bash", stash, "No local changes to save"));
    assert!(!changed_nothing("bash", stash, "Saved working directory"));
    let replaced = |n: u32| format!(r#"{{"replies": [{{"occurrencesChanged": {n}}}]}}"#);
    let replace = |n| changed_nothing("slides_replace_all_text", "{}", &replaced(n));
    assert!(replace(0) && !replace(3));
}

#[test]
fn the_short_answer_of_an_action_tool_is_a_receipt() {
    let is_receipt =
        |tool, result| ToolTraits::from_name(tool).is_action && ack::is_receipt_sized(Some(result));
    assert!(is_receipt("send_email", "Email sent successfully"));
    assert!(is_receipt("browserClick", "Clicked element"));
    assert!(!is_receipt("browser", "captcha required"));
    assert!(!is_receipt("send_email", &"x".repeat(200)));
}

#[test]
fn a_failed_wait_is_a_poll_while_nobody_answers() {
    let kind = |command: &str, error: &str| {
        let failed = ToolCall {
            outcome: Some(Outcome::Error),
            error: error.to_owned(),
            ..call("bash", &format!("{{\"command\": \"{command}\"}}"))
        };
        facts_with("tools = []", failed).0.kind
    };
    let refused = "Exit code 7\ncurl: (7) Failed to connect: Connection refused";
    let polls = [
        kind("sleep 3 && curl -sf localhost", "Exit code 7"),
        kind("cd /w; sleep 3; curl -s localhost", refused),
        kind("until nc -z db 5432; do sleep 1; done", "Exit code 124"),
        kind("pg_isready", "localhost:5432 - no response"),
        kind("gh run watch 8", "Command timed out after 2m 0.0s"),
    ];
    assert_eq!(polls, [CallKind::Poll; 5]);
    let others = [
        kind("sleep 3 && npm test", "Tests: 1 failed, 2 passed"),
        kind("node app.js & sleep 3; curl -sf localhost", "Exit code 7"),
        kind("npm test", "Command timed out after 2m 0.0s"),
        kind("curl -sf localhost", "Exit code 7"),
    ];
    assert_eq!(others, [CallKind::Ordinary; 4]);
    assert_eq!(kind("curl -s localhost", refused), CallKind::Outage);
}

#[test]
fn an_error_object_is_a_failure_of_a_tool_but_not_of_a_file_or_a_command() {
    let outcome = |tool: &str, args: &str| {
        let answered = ToolCall {
            outcome: Some(Outcome::Ok),
            result: Some("{\"error\": \"no city\"}".to_owned()),
            ..call(tool, args)
        };
        facts_with("tools = []", answered).0.outcome
    };
    assert_eq!(
        outcome("get_weather", "{\"days\": 2}"),
        Some(Outcome::Error)
    );
    assert_eq!(
        outcome("bash", "{\"command\": \"./ask\"}"),
        Some(Outcome::Ok)
    );
    assert_eq!(
        outcome("read_file", "{\"path\": \"a.json\"}"),
        Some(Outcome::Ok)
    );
}

#[test]
fn times_and_ids_do_not_distinguish_answers_that_are_no() {
    let response = |query: &str, result: &str| {
        let answered = ToolCall {
            outcome: Some(Outcome::Ok),
            result: Some(result.to_owned()),
            ..call("find_note", &format!("{{\"q\": \"{query}\"}}"))
        };
        facts_with("tools = []", answered).0.response
    };
    let first = response("rent", "No notes found for rent (0.13 seconds)");
    assert!(first.is_some());
    assert_eq!(
        first,
        response("lease", "No notes found for lease (0.92 seconds)")
    );
    assert_ne!(
        first,
        response("lease", "No lists found for lease (0.92 seconds)")
    );
}

#[test]
fn a_call_that_repeats_has_the_facts_of_the_first() {
    let extractor = FactExtractor::new(HashKey::fixed(), ToolRules::default(), Arc::default());
    let facts = |call: ToolCall| {
        let event = event(call);
        let EventFacts::Call(extract) = extractor.extract(&event, None) else {
            unreachable!()
        };
        format!("{:?} {}", extract.facts, extract.target)
    };
    let line = call("bash", r#"{"command": "sed -i s/a/b/ f.rs"}"#);
    let failed = ToolCall {
        outcome: Some(Outcome::Error),
        ..line.clone()
    };
    let on_target = ToolCall {
        target: "g.rs".to_owned(),
        ..line.clone()
    };
    let hashed = ToolCall {
        args: Args::Hash(line.args.as_text().to_owned()),
        ..line.clone()
    };
    let other_tool = ToolCall {
        tool: "edit".to_owned(),
        ..line.clone()
    };
    let calls = [line, failed, on_target, hashed, other_tool];
    let first = calls.clone().map(facts);
    assert_eq!(calls.map(facts), first);
    for (n, one) in first.iter().enumerate() {
        assert!(first[..n].iter().all(|other| other != one), "{one}");
    }
}

#[test]
fn a_long_call_is_not_cached() {
    let extractor = FactExtractor::new(HashKey::fixed(), ToolRules::default(), Arc::default());
    for (length, is_cached) in [(1_024, true), (1_025, false)] {
        let one = || {
            extractor
                .identify_call(&call("t", &"x".repeat(length)))
                .unwrap()
        };
        assert_eq!(Arc::ptr_eq(&one(), &one()), is_cached, "{length}");
    }
}
