//! The action in force for a session, and what happens to refused calls, as brokers see it.

use unstuck::pb::{
    self, Action, CheckCallResponse, EventResult, Outcome, Role, check_call_request::Arguments,
};

use crate::{
    frozen::wait_until_saved,
    harness::*,
    lifecycle::{Running, directory, output, text, unstuck},
};

const TOOL: &str = "get_order";
const ARGS: &str = r#"{"order_id": 5}"#;
/// hashlib.sha256(b'get_order\0{"order_id":5}').hexdigest()[:32]
const KEY: &str = "f50f774eaca42312f7d73e4f0b7cac69";

/// A call in a loop, and the same as a guard refuses it.
fn order() -> pb::Event {
    call(TOOL, ARGS, "order 5: two lamps, unpaid").costing(100, 20, 0.05)
}

fn refused() -> pb::Event {
    order().change(|call| {
        call.outcome = Outcome::Blocked.into();
        call.result = Some("refused".to_owned());
    })
}

async fn check(server: &Server, session: &str, args: &str) -> CheckCallResponse {
    check_for(server, session, "", Arguments::ArgsJson(args.to_owned())).await
}

async fn check_for(
    server: &Server,
    session: &str,
    agent: &str,
    arguments: Arguments,
) -> CheckCallResponse {
    let mut detection = server.detection.clone();
    let request = pb::CheckCallRequest {
        session_id: session.to_owned(),
        agent_id: agent.to_owned(),
        tool: TOOL.to_owned(),
        arguments: Some(arguments),
    };
    detection.check_call(request).await.unwrap().into_inner()
}

fn standing_action(result: &EventResult) -> Action {
    let standing = result.standing.as_ref();
    standing.map_or(Action::Unspecified, pb::Standing::action)
}

/// Plays calls until they are blocked, and returns the verdict.
async fn block(server: &Server, session: &str) -> pb::Verdict {
    let results = server.play(session, order().times(4)).await;
    let last = verdict(&results[3]).clone();
    assert_eq!(last.action(), Action::Block);
    last
}

#[tokio::test]
async fn refused_calls_of_a_loop_escalate_and_then_terminate() {
    let server = Server::start().await;
    block(&server, "s").await;
    // Other calls between do not reset the count.
    let between = || vec![refused(), ask("colour"), refused(), ask("font"), refused()];
    let results = server.play("s", between()).await;
    assert_eq!(verdicts(&results), [(8, Action::Escalate)]);
    let escalated = verdict(&results[4]);
    assert_eq!(escalated.detector, "exact_repeat");
    assert_eq!(
        escalated.pattern,
        "asked 3 times for what was refused: get_order(order_id=5)"
    );
    assert!(escalated.reason.contains("refusals_escalate"));
    assert_eq!(escalated.members[0].call_key, KEY);
    assert_eq!(escalated.evidence.as_ref().unwrap().count, 3);
    assert_eq!(standing_action(&results[4]), Action::Escalate);
    let results = server.play("s", refused().times(3)).await;
    assert_eq!(verdicts(&results), [(11, Action::Terminate)]);
    assert!(verdict(&results[2]).reason.contains("refusals_terminate"));
}

#[tokio::test]
async fn refused_calls_are_shown_counted_and_priced() {
    let server = Server::start().await;
    block(&server, "s").await;
    server.play("s", refused().times(2)).await;
    let mut sessions = server.sessions.clone();
    let request = pb::GetSessionRequest {
        session_id: "s".to_owned(),
    };
    let detail = sessions.get_session(request).await.unwrap().into_inner();
    let session = detail.session.unwrap();
    assert_eq!(session.events, 6);
    assert!((session.usage.unwrap().cost_usd - 0.30).abs() < 1e-9);
    let wasted = session.wasted.unwrap();
    assert_eq!(wasted.events, 6);
    assert!((wasted.cost_usd - 0.30).abs() < 1e-9);
    let shown = detail
        .timeline
        .iter()
        .filter(|entry| entry.outcome() == Outcome::Blocked);
    assert_eq!(shown.count(), 2);
    assert!(
        detail
            .timeline
            .iter()
            .all(|entry| !entry.loop_id.is_empty())
    );
    let kind = |kind| format!("unstuck_events_total{{kind=\"{kind}\"}}");
    assert_eq!(server.metric(&kind("refused_call")).await, 2.0);
    assert_eq!(server.metric(&kind("tool_call")).await, 4.0);
}

#[tokio::test]
async fn progress_and_the_user_reset_the_count_of_refused_calls() {
    let server = Server::start().await;
    let write = call("write_file", r#"{"path": "a.rs", "content": "x"}"#, "ok");
    for (session, reset) in [("a", write), ("b", turn_by(Role::User, "go on"))] {
        block(&server, session).await;
        let results = server
            .play(
                session,
                [refused().times(2), vec![reset], refused().times(2)],
            )
            .await;
        assert_eq!(verdicts(&results), [], "{session}");
    }
}

#[tokio::test]
async fn refused_calls_without_a_reported_loop_lead_to_nothing() {
    let server = Server::start().await;
    let results = server.play("s", refused().times(20)).await;
    assert_eq!(verdicts(&results), []);
    assert!(results.iter().all(|result| result.standing.is_none()));
}

#[tokio::test]
async fn refusals_that_are_switched_off_lead_to_nothing_and_wrong_ones_are_rejected() {
    let server = Server::with("[policy]\nrefusals_escalate = 0\nrefusals_terminate = 0").await;
    block(&server, "s").await;
    let results = server.play("s", refused().times(30)).await;
    assert_eq!(verdicts(&results), []);
    let dir = directory(&[("unstuck.toml", "[policy]\nrefusals_escalate = 6")]);
    let output = unstuck(dir.path(), &["config", "check"], &[])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("the session ends after 6"), "{message}");
}

#[tokio::test]
async fn every_answer_has_the_action_in_force() {
    let server = Server::start().await;
    let results = server.play("s", order().times(6)).await;
    let none = Action::Unspecified;
    let [warn, block] = [Action::Warn, Action::Block];
    let standing: Vec<Action> = results.iter().map(standing_action).collect();
    assert_eq!(standing, [none, none, warn, block, block, block]);
    let new: Vec<Action> = results.iter().map(EventResult::action).collect();
    assert_eq!(new, [none, none, warn, block, none, none]);
    let standing = results[5].standing.clone().unwrap();
    assert_eq!(standing.verdict_id, verdict(&results[3]).verdict_id);
    assert_eq!(standing.since, verdict(&results[3]).time);
    assert_eq!(standing.blocked, [KEY]);
    let session = server.get("s").await.unwrap();
    assert_eq!(session.standing, Some(standing.clone()));
    // Another call does not end a block; progress does.
    let other = server.record(ask("colour").of("s")).await;
    assert_eq!(other.standing, Some(standing));
    let write = call("write_file", r#"{"path": "a.rs", "content": "x"}"#, "ok");
    assert_eq!(server.record(write.of("s")).await.standing, None);
}

#[tokio::test]
async fn a_warning_is_in_force_while_its_loop_goes_on() {
    let server = Server::start().await;
    let results = server
        .play("s", [order().times(3), vec![ask("colour")]])
        .await;
    assert_eq!(standing_action(&results[2]), Action::Warn);
    assert!(results[2].standing.as_ref().unwrap().blocked.is_empty());
    assert_eq!(results[3].standing, None);
}

#[tokio::test]
async fn a_block_ends_with_the_user_a_new_run_and_a_reset() {
    let server = Server::start().await;
    for (session, event) in [("a", turn_by(Role::User, "go on")), ("b", new_run())] {
        block(&server, session).await;
        let result = server.record(event.of(session)).await;
        assert_eq!(result.standing, None, "{session}");
        assert_eq!(
            check(&server, session, ARGS).await,
            CheckCallResponse::default()
        );
    }
    block(&server, "c").await;
    server.reset("c").await.unwrap();
    assert_eq!(
        check(&server, "c", ARGS).await,
        CheckCallResponse::default()
    );
}

#[tokio::test]
async fn no_action_is_in_force_in_shadow_mode_or_while_snoozed() {
    let server = Server::with("[profiles.default]\nmode = \"shadow\"").await;
    let results = server.play("s", order().times(6)).await;
    assert!(results[3].verdict.is_some());
    assert!(results.iter().all(|result| result.standing.is_none()));
    let server = Server::start().await;
    block(&server, "s").await;
    server.snooze("s", 3_600_000).await.unwrap();
    assert_eq!(server.record(order().of("s")).await.standing, None);
    assert_eq!(
        check(&server, "s", ARGS).await,
        CheckCallResponse::default()
    );
}

#[tokio::test]
async fn agents_are_separate_and_duplicates_and_turns_have_the_action_in_force() {
    let server = Server::start().await;
    let events = order()
        .times(4)
        .into_iter()
        .map(|event| event.by("sub"))
        .collect::<Vec<_>>();
    let results = server.play("s", events).await;
    assert_eq!(standing_action(&results[3]), Action::Block);
    assert_eq!(server.record(order().of("s").id("e")).await.standing, None);
    let args = || Arguments::ArgsJson(ARGS.to_owned());
    let of_sub = check_for(&server, "s", "sub", args()).await;
    assert_eq!(of_sub.action(), Action::Block);
    assert_eq!(
        check_for(&server, "s", "", args()).await,
        CheckCallResponse::default()
    );

    block(&server, "t").await;
    server.record(ask("colour").of("t").id("e")).await;
    let duplicate = server.record(ask("colour").of("t").id("e")).await;
    assert!(duplicate.duplicate);
    assert_eq!(standing_action(&duplicate), Action::Block);
    let mut deltas = server.deltas().await;
    let text = "I will look at the next order and see what is left to do for it.";
    let end = deltas.ask(pieces([last_delta("t", "1", text)])).await;
    assert!(end.end_of_turn);
    assert_eq!(end.standing.unwrap().action(), Action::Block);
}

#[tokio::test]
async fn a_termination_holds_in_every_answer_also_that_to_a_check() {
    let server = Server::start().await;
    server.record(order().of("s")).await;
    let termination = server.terminate("s").await;
    let result = server.record(order().of("s")).await;
    let standing = result.standing.unwrap();
    assert_eq!(standing.action(), Action::Terminate);
    assert_eq!(standing.verdict_id, termination.verdict_id);
    let checked = check(&server, "s", "{}").await;
    assert_eq!(checked.action(), Action::Terminate);
    assert_eq!(checked.verdict.unwrap().verdict_id, termination.verdict_id);
    assert_eq!(checked.standing, Some(standing.clone()));
    assert_eq!(server.get("s").await.unwrap().standing, Some(standing));
}

#[tokio::test]
async fn a_termination_holds_for_operators_after_a_restart_too() {
    let dir = directory(&[]);
    let serve = || Running::start(unstuck(dir.path(), &["serve"], &[]));
    let running = serve();
    let termination = running.server().await.terminate("s").await;
    // Killed.
    drop(running);
    let running = serve();
    let session = running.server().await.get("s").await.unwrap();
    let standing = session.standing.expect("a standing");
    assert_eq!(standing.action(), Action::Terminate);
    assert_eq!(standing.verdict_id, termination.verdict_id);
}

#[tokio::test]
async fn a_check_says_whether_a_call_is_refused_and_changes_nothing() {
    let server = Server::start().await;
    let blocked = block(&server, "s").await;
    let spellings = [
        Arguments::ArgsJson(ARGS.to_owned()),
        Arguments::ArgsJson("{ \"order_id\":5.0 }".to_owned()),
        Arguments::Args(serde_json::from_str(ARGS).unwrap()),
    ];
    for arguments in spellings {
        let checked = check_for(&server, "s", "", arguments).await;
        assert_eq!(checked.action(), Action::Block);
        assert_eq!(checked.verdict.unwrap().verdict_id, blocked.verdict_id);
        assert_eq!(checked.standing.unwrap().blocked, [KEY]);
    }
    let other = check(&server, "s", r#"{"order_id": 6}"#).await;
    assert_eq!(other.action(), Action::Unspecified);
    assert_eq!(other.verdict, None);
    assert_eq!(other.standing.unwrap().action(), Action::Block);
    assert_eq!(server.get("s").await.unwrap().events, 4);

    assert_eq!(
        check(&server, "unknown", ARGS).await,
        CheckCallResponse::default()
    );
    assert_eq!(
        server.get("unknown").await.unwrap_err().code(),
        tonic::Code::NotFound
    );
    let mut detection = server.detection.clone();
    let request = |session: &str, tool: &str| pb::CheckCallRequest {
        session_id: session.to_owned(),
        tool: tool.to_owned(),
        ..Default::default()
    };
    let status = detection.check_call(request("s", "")).await.unwrap_err();
    assert_invalid(&status, "tool");
    let status = detection.check_call(request("", TOOL)).await.unwrap_err();
    assert_invalid(&status, "session_id");
}

#[tokio::test]
async fn a_question_to_a_person_is_asked_before_the_call() {
    let server = Server::with("[detect.exact_repeat]\nsoft = \"ask\"\nhard = \"ask\"").await;
    let results = server.play("s", order().times(3)).await;
    assert_eq!(verdict(&results[2]).action(), Action::Ask);
    assert_eq!(check(&server, "s", ARGS).await.action(), Action::Ask);
    assert_eq!(
        check(&server, "s", "{}").await.action(),
        Action::Unspecified
    );
}

#[tokio::test]
async fn members_say_which_call_and_patterns_how_they_differ() {
    let server = Server::start().await;
    let flight = |to: &str| {
        let args = format!("{{\"from\": \"ZRH\", \"to\": \"{to}\", \"description\": \"to {to}\"}}");
        call("search_flights", &args, &format!("{to}: none"))
    };
    let lap = || vec![flight("LIS"), flight("OPO")];
    let results = server.play("s", [lap(), lap(), lap()]).await;
    let found = verdict(&results[5]);
    assert_eq!(
        found.pattern,
        "went round 3 times through search_flights(ZRH→LIS), search_flights(ZRH→OPO)"
    );
    let keys: Vec<&str> = found
        .members
        .iter()
        .map(|member| &*member.call_key)
        .collect();
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().all(|key| key.len() == 32), "{keys:?}");
    assert_ne!(keys[0], keys[1]);
    // Only hashed arguments have no key, and a check recognises them all the same.
    let hashed = order().change(|call| {
        call.arguments = Some(pb::tool_call::Arguments::ArgsHash("h".to_owned()));
    });
    let results = server.play("t", hashed.times(4)).await;
    assert_eq!(verdict(&results[3]).members[0].call_key, "");
    let checked = check_for(&server, "t", "", Arguments::ArgsHash("h".to_owned())).await;
    assert_eq!(checked.action(), Action::Block);
}

/// The agent ignores everything. The broker only does what the README says.
#[tokio::test]
async fn an_agent_that_ignores_everything_is_stopped_within_twelve_calls() {
    let server = Server::start().await;
    let mut is_refused = false;
    let mut calls = 0;
    loop {
        calls += 1;
        assert!(calls <= 12, "{calls} calls");
        let event = if is_refused { refused() } else { order() };
        let result = server.record(event.of("s")).await;
        let standing = result.standing.clone().unwrap_or_default();
        is_refused = standing.blocked.iter().any(|key| key == KEY);
        if result.action() == Action::Terminate {
            break;
        }
    }
    assert_eq!(calls, 10);
}

#[tokio::test]
async fn a_check_knows_of_loops_that_are_escalated_without_a_block() {
    let toml = "[detect.exact_repeat]\nsoft = \"warn\"\nhard = \"escalate\"\n";
    let server = Server::with(toml).await;
    let results = server.play("s", order().times(4)).await;
    assert_eq!(verdict(&results[3]).action(), Action::Escalate);
    let checked = check(&server, "s", ARGS).await;
    assert_eq!(checked.action(), Action::Escalate);
    assert_eq!(
        check(&server, "s", r#"{"order_id": 6}"#).await.action(),
        Action::Unspecified
    );
}

#[tokio::test]
async fn the_action_in_force_survives_a_restart_and_a_crash() {
    for is_crash in [false, true] {
        let dir = directory(&[]);
        let serve = || Running::start(unstuck(dir.path(), &["serve"], &[]));
        let mut running = serve();
        let server = running.server().await;
        let blocked = block(&server, "s").await;
        if is_crash {
            wait_until_saved(dir.path(), &server, "s").await;
            running.child.0.kill().unwrap();
            running.child.0.wait().unwrap();
        } else {
            assert!(running.stop().await.0.success());
        }
        let running = serve();
        let server = running.server().await;
        let checked = check(&server, "s", ARGS).await;
        assert_eq!(checked.action(), Action::Block, "crash: {is_crash}");
        // An operator sees it, and finds it by its detector.
        let session = server.get("s").await.unwrap();
        let last = session.last_verdicts.last().expect("a verdict");
        assert_eq!(last.verdict_id, blocked.verdict_id, "crash: {is_crash}");
        let selected = output(unstuck(
            dir.path(),
            &[
                "terminate",
                "--detector",
                &blocked.detector,
                "--dry-run",
                "--server",
                &server.grpc.to_string(),
            ],
            &[],
        ));
        assert!(text(&selected.stdout).contains(" s "), "{selected:?}");
        let result = server.record(refused().of("s")).await;
        let standing = result.standing.unwrap();
        assert_eq!(standing.verdict_id, blocked.verdict_id);
        // The keys are agents' text, which is saved only at a stop, and sealed. After a crash
        // a key is learned from the call.
        assert_eq!(standing.blocked, [KEY]);
        assert!(!result.state_lost);
    }
}

#[tokio::test]
async fn a_session_that_was_opened_keeps_its_profile_if_the_service_is_killed_at_once() {
    let dir = directory(&[]);
    let serve = || Running::start(unstuck(dir.path(), &["serve"], &[]));
    let running = serve();
    let server = running.server().await;
    let team = [("team", "blue")];
    server.open("s", "lenient", &team).await.unwrap();
    // Killed.
    drop(running);
    let running = serve();
    let session = running.server().await.get("s").await.unwrap();
    assert_eq!(session.profile, "lenient");
    assert_eq!(session.labels, labels(&team));
}

#[tokio::test]
async fn a_session_whose_state_is_lost_says_so_until_it_is_opened() {
    let dir = directory(&[]);
    let serve = || Running::start(unstuck(dir.path(), &["serve"], &[]));
    let running = serve();
    let server = running.server().await;
    server.play("s", order().times(2)).await;
    assert!(running.stop().await.0.success());
    let database = rusqlite::Connection::open(dir.path().join("unstuck-data/unstuck.db")).unwrap();
    let changed = database
        .execute("UPDATE sessions SET head = x'ff'", [])
        .unwrap();
    assert_eq!(changed, 1);
    drop(database);
    let running = serve();
    let server = running.server().await;
    // Also in the answer to an event that is sent again, because the first was missed.
    let event = pb::Event {
        event_id: "e".to_owned(),
        ..ask("font").of("s")
    };
    for is_again in [false, true] {
        let result = server.record(event.clone()).await;
        assert_eq!((result.duplicate, result.state_lost), (is_again, true));
    }
    let mut deltas = server.deltas().await;
    let answer = deltas.ask(pieces([last_delta("s", "t", "done")])).await;
    assert!(answer.state_lost);
    server.open("s", "lenient", &[]).await.unwrap();
    assert!(!server.record(ask("size").of("s")).await.state_lost);
}

#[tokio::test]
async fn refused_calls_of_a_sub_agent_terminate_only_that_agent() {
    let server = Server::start().await;
    let of_helper = |event: pb::Event| pb::Event {
        agent_id: "helper".to_owned(),
        ..event.of("s")
    };
    let mut stream = server.events().await;
    let mut sequence = 0;
    let mut actions = Vec::new();
    let calls = std::iter::repeat_n(order(), 4);
    for event in calls.chain(std::iter::repeat_n(refused(), 6)) {
        sequence += 1;
        let answer = stream.ask(batch(sequence, [of_helper(event)])).await;
        let result = &answer.results[0];
        actions.push(result.action());
        assert_eq!(
            result.verdict.as_ref().map_or("helper", |it| &it.agent_id),
            "helper"
        );
    }
    let expected = [
        (2, Action::Warn),
        (3, Action::Block),
        (6, Action::Escalate),
        (9, Action::Terminate),
    ];
    for (position, action) in actions.into_iter().enumerate() {
        let known = expected.iter().find(|(at, _)| *at == position);
        assert_eq!(
            action,
            known.map_or(Action::Unspecified, |(_, action)| *action)
        );
    }
    // The main agent has a count of its own.
    let result = server.record(refused().of("s")).await;
    assert_eq!(
        (result.action(), result.standing),
        (Action::Unspecified, None)
    );
}
