//! Refused calls of all kinds of loops: an agent that ignores everything is stopped.

use unstuck::pb::{
    self, Action, CheckCallRequest, EventResult, Outcome, check_call_request::Arguments,
};

use crate::harness::*;

/// A loop is refused for as many calls as `policy.refusals_terminate` says.
const REFUSALS_TERMINATE: usize = 6;

fn flight(to: &str) -> pb::Event {
    let args = format!("{{\"from\": \"ZRH\", \"to\": \"{to}\"}}");
    call("search_flights", &args, &format!("{to}: none"))
}

fn refuse(event: pb::Event) -> pb::Event {
    event.change(|call| {
        call.outcome = Outcome::Blocked.into();
        call.result = Some("refused".to_owned());
        call.error.clear();
    })
}

/// What a check says of a call before it is made.
async fn check(server: &Server, session: &str, event: &pb::Event) -> Action {
    let Some(pb::event::Body::ToolCall(call)) = &event.body else {
        panic!("not a call");
    };
    let Some(pb::tool_call::Arguments::ArgsJson(args)) = &call.arguments else {
        panic!("no arguments");
    };
    let request = CheckCallRequest {
        session_id: session.to_owned(),
        agent_id: event.agent_id.clone(),
        tool: call.tool.clone(),
        arguments: Some(Arguments::ArgsJson(args.clone())),
    };
    let mut detection = server.detection.clone();
    let checked = detection.check_call(request).await.unwrap().into_inner();
    checked.action()
}

/// An agent goes round these calls and ignores everything. The broker checks each call and
/// refuses it if the answer says so. Returns the answers up to the termination.
async fn run_stubborn(server: &Server, session: &str, lap: &[pb::Event]) -> Vec<EventResult> {
    let mut results = Vec::new();
    for event in lap.iter().cycle().take(100) {
        let event = match check(server, session, event).await {
            Action::Unspecified => event.clone(),
            _ => refuse(event.clone()),
        };
        results.push(server.record(event.of(session)).await);
        if results.last().unwrap().action() == Action::Terminate {
            break;
        }
    }
    results
}

#[tokio::test]
async fn an_agent_that_goes_round_two_or_three_calls_is_stopped_within_twelve() {
    let server = Server::start().await;
    let cities = ["LIS", "OPO", "FAO"];
    let lap = |period: usize| -> Vec<pb::Event> {
        cities[..period].iter().map(|to| flight(to)).collect()
    };
    let found = |results: &[EventResult]| -> Vec<(i32, Action)> {
        let found = verdicts(results).into_iter();
        found.map(|(index, action)| (index + 1, action)).collect()
    };
    let two = run_stubborn(&server, "two", &lap(2)).await;
    assert_eq!(
        found(&two),
        [
            (6, Action::Warn),
            (7, Action::Block),
            (10, Action::Escalate),
            (12, Action::Terminate)
        ]
    );
    assert!(verdict(&two[11]).reason.contains("refusals_terminate"));
    // Each of the three calls is refused before any refusal of a second one counts.
    let three = run_stubborn(&server, "three", &lap(3)).await;
    assert_eq!(
        found(&three),
        [
            (7, Action::Warn),
            (8, Action::Block),
            (11, Action::Escalate),
            (12, Action::Terminate)
        ]
    );
}

#[tokio::test]
async fn a_longer_lap_is_refused_as_a_whole_before_it_is_terminated() {
    let server = Server::start().await;
    // Two laps until the warning, a call until the block, a whole lap and a call refused.
    for (calls, ends_at) in [(4, 14), (5, 17)] {
        let cities = ["LIS", "OPO", "FAO", "FNC", "PDL"];
        let lap: Vec<pb::Event> = cities[..calls].iter().map(|to| flight(to)).collect();
        let results = run_stubborn(&server, &format!("s{calls}"), &lap).await;
        assert_eq!(results.len(), ends_at);
        let blocked = (results.iter()).position(|it| it.action() == Action::Block);
        let refused = results.len() - blocked.unwrap() - 1;
        assert_eq!(refused, calls + 1);
        assert!(refused <= REFUSALS_TERMINATE);
    }
}

/// Calls that fail alike, or get the same answer, with varying arguments.
fn varied(detector: &str, n: usize) -> pb::Event {
    let fails = |error: &str, event: pb::Event| {
        event.change(|call| {
            call.outcome = Outcome::Error.into();
            call.result = None;
            call.error = error.to_owned();
        })
    };
    match detector {
        "error_streak" => fails(
            "permission denied: the token has no scope for this",
            call(
                "fetch_page",
                &format!("{{\"url\": \"https://a.example/{n}\"}}"),
                "",
            ),
        ),
        "test_fail_loop" => fails(
            "assertion failed: left == right, src/order.rs",
            call("run_shell_command", r#"{"command": "cargo test"}"#, ""),
        ),
        "near_repeat" => {
            let words = ["paper", "builds", "lazy", "kern", "tobias"];
            let query: Vec<&str> = (0..5).map(|at| words[(at + n) % 5]).collect();
            let args = format!("{{\"query\": \"{} 2019\"}}", query.join(" "));
            call(
                "google_web_search",
                &args,
                "No search results found for this query.",
            )
        }
        "stagnation" => {
            let tools = ["search_mail", "list_orders", "find_invoice", "query_ledger"];
            let args = format!("{{\"name\": \"{}\"}}", WORDS[n % WORDS.len()].repeat(n + 1));
            call(tools[n % tools.len()], &args, "No results found.")
        }
        _ => panic!("{detector}"),
    }
}

#[tokio::test]
async fn refused_calls_count_for_loops_that_an_error_or_an_answer_makes() {
    let server = Server::start().await;
    for detector in [
        "error_streak",
        "test_fail_loop",
        "near_repeat",
        "stagnation",
    ] {
        let mut made = Vec::new();
        let mut escalated = None;
        while escalated.is_none() {
            // A broker hands the session over, so it is stopped within twelve calls.
            assert!(made.len() < 12, "{detector}");
            made.push(varied(detector, made.len()));
            let result = server
                .record(made.last().unwrap().clone().of(detector))
                .await;
            escalated = result.verdict.filter(|it| it.action() == Action::Escalate);
        }
        let escalated = escalated.unwrap();
        let found_by = [std::slice::from_ref(&escalated.detector), &escalated.also].concat();
        assert!(found_by.iter().any(|it| it == detector), "{found_by:?}");
        // A broker that cannot escalate refuses what the check names.
        let mut refused = Vec::new();
        for event in made.iter().rev() {
            if check(&server, detector, event).await == Action::Escalate {
                refused.push(refuse(event.clone()));
            }
        }
        assert!(!refused.is_empty(), "{detector}");
        let refused: Vec<pb::Event> = refused
            .into_iter()
            .cycle()
            .take(REFUSALS_TERMINATE)
            .collect();
        let results = server.play(detector, refused).await;
        let actions: Vec<Action> = results.iter().map(EventResult::action).collect();
        let none = Action::Unspecified;
        let expected = [none, none, Action::Escalate, none, none, Action::Terminate];
        assert_eq!(actions, expected, "{detector}");
    }
}

#[tokio::test]
async fn refused_calls_count_for_a_loop_of_more_calls_than_it_is_recognised_by() {
    let server = Server::start().await;
    let made: Vec<pb::Event> = (0..24).map(|n| varied("error_streak", n)).collect();
    let results = server.play("s", made.clone()).await;
    assert!(results.iter().all(|it| it.action() != Action::Terminate));
    // A broker with rules of its own may refuse those too that no verdict names.
    let last = made.into_iter().rev().take(REFUSALS_TERMINATE).map(refuse);
    let results = server.play("s", last.collect::<Vec<_>>()).await;
    assert_eq!(results[5].action(), Action::Terminate);
}

#[tokio::test]
async fn refused_calls_count_for_loops_of_reads_of_one_file() {
    let server = Server::start().await;
    let read = |from: usize| {
        let args = format!("{{\"path\": \"a.rs\", \"offset\": {from}, \"limit\": 10}}");
        call("read_file", &args, "fn main() {}")
    };
    let blocked = server.play("s", read(1).times(4)).await;
    assert_eq!(blocked[3].action(), Action::Block);
    assert_eq!(verdict(&blocked[3]).detector, "read_loop");
    // A write of the file is not a part of the loop, nor is a read of another.
    let write = call("write_file", r#"{"path": "a.rs", "content": "x"}"#, "ok");
    let other = call("read_file", r#"{"path": "b.rs"}"#, "fn other() {}");
    let others = [refuse(write).times(6), refuse(other).times(6)];
    assert_eq!(verdicts(&server.play("s", others).await), []);
    let refused: Vec<pb::Event> = (0..6).map(|n| refuse(read(100 * (n + 1)))).collect();
    let results = server.play("s", refused).await;
    assert_eq!(results[2].action(), Action::Escalate);
    assert_eq!(results[5].action(), Action::Terminate);
}

#[tokio::test]
async fn a_new_run_and_an_end_reset_the_count_of_refused_calls() {
    let server = Server::start().await;
    let refused = || refuse(flight("LIS")).times(2);
    server.play("a", flight("LIS").times(4)).await;
    let results = server
        .play("a", [refused(), vec![new_run()], refused()])
        .await;
    assert_eq!(verdicts(&results), []);
    server.play("b", flight("LIS").times(4)).await;
    server.play("b", refused()).await;
    server.end("b").await.unwrap();
    let results = server.play("b", [refused(), refused(), refused()]).await;
    assert_eq!(verdicts(&results), []);
    assert!(results.iter().all(|it| it.standing.is_none()));
}

#[tokio::test]
async fn agents_count_their_refused_calls_apart() {
    let server = Server::start().await;
    for agent in ["", "sub", "other"] {
        server.play("s", flight("LIS").by(agent).times(4)).await;
    }
    let both = || vec![refuse(flight("LIS")), refuse(flight("LIS")).by("sub")];
    let results = server.play("s", [both(), both()]).await;
    assert_eq!(verdicts(&results), []);
    let results = server.play("s", both()).await;
    let actions: Vec<Action> = results.iter().map(EventResult::action).collect();
    assert_eq!(actions, [Action::Escalate, Action::Escalate]);
    let other = server
        .record(refuse(flight("LIS")).by("other").of("s"))
        .await;
    assert_eq!(other.action(), Action::Unspecified);
}

#[tokio::test]
async fn a_check_recognises_other_spellings_of_a_command() {
    let server = Server::start().await;
    let shell = |command: &str| {
        let args = serde_json::json!({"command": command, "description": command.len()});
        call(
            "run_shell_command",
            &args.to_string(),
            "no such table: orders",
        )
    };
    let results = server
        .play("s", shell("sqlite3 shop.db 'select 1'").times(4))
        .await;
    assert_eq!(results[3].action(), Action::Block);
    for same in [
        "sqlite3 shop.db \"select 1\"",
        "sqlite3   shop.db 'select 1'",
    ] {
        assert_eq!(
            check(&server, "s", &shell(same)).await,
            Action::Block,
            "{same}"
        );
    }
    let other = shell("sqlite3 shop.db 'select 2'");
    assert_eq!(check(&server, "s", &other).await, Action::Unspecified);
}

/// Runs a command line four times, which blocks it.
async fn block_command(server: &Server, session: &str, line: &str, output: &str) {
    let results = server.play(session, command(line, output).times(4)).await;
    assert_eq!(results[3].action(), Action::Block, "{line}");
}

fn command(line: &str, output: &str) -> pb::Event {
    call("bash", &format!("{{\"command\": \"{line}\"}}"), output)
}

#[tokio::test]
async fn only_the_command_that_loops_is_refused() {
    let server = Server::start().await;
    block_command(&server, "pipe", "echo 1+1 | ./parse", "tree: ?").await;
    block_command(
        &server,
        "first",
        "cd a && terraform plan",
        "no changes to a",
    )
    .await;
    block_command(&server, "none", "make plan", "no changes to a").await;
    server
        .record(command("cd a && ls", "main.tf").of("second"))
        .await;
    block_command(
        &server,
        "second",
        "cd b && terraform plan",
        "no changes to b",
    )
    .await;
    for (session, line, action) in [
        ("pipe", "echo 1+1 | ./parse", Action::Block),
        ("pipe", "echo 9*9 | ./parse", Action::Unspecified),
        ("first", "cd a && terraform plan", Action::Block),
        ("first", "terraform plan", Action::Block),
        ("first", "cd b && terraform plan", Action::Unspecified),
        ("none", "make plan", Action::Block),
        ("none", "cd b && make plan", Action::Unspecified),
        ("second", "cd b && terraform plan", Action::Block),
        ("second", "cd c && terraform plan", Action::Unspecified),
        ("second", "cd a && terraform plan", Action::Unspecified),
    ] {
        let checked = check(&server, session, &command(line, "").of(session)).await;
        assert_eq!(checked, action, "{session}: {line}");
    }
}
