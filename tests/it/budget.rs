//! Budgets: what a session may use, summed over its agents.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use unstuck::{
    domain::{Action, Verdict},
    engine::RunMode,
    pb,
};

use crate::{
    harness::{Build, Server, call, verdict},
    play::{Line, Player},
};

/// The verdicts on `calls` calls of two agents in turn, each of 10 tokens, a
/// second apart, with a message of the user after the third.
fn verdicts(config: &str, calls: usize) -> Vec<Arc<Verdict>> {
    let mut player = Player::with(config, RunMode::Replay).unwrap();
    let line = |n: usize| {
        let agent = ["a", "b"][n % 2];
        let call = format!(
            r#"{{"session_id": "s", "agent_id": "{agent}", "usage": {{"input_tokens": 8, "output_tokens": 2, "cost_usd": 0.01}}, "tool_call": {{"tool": "t", "args_json": "{{\"n\": {n}}}"}}}}"#
        );
        let user = r#"{"session_id": "s", "turn": {"role": "ROLE_USER", "text": "go on"}}"#;
        if n == 3 {
            format!("{call}\n{user}")
        } else {
            call
        }
    };
    let lines: Vec<String> = (1..=calls).map(line).collect();
    let mut issued: Vec<Arc<Verdict>> = Vec::new();
    for line in Line::read(&lines.join("\n")) {
        player.now += Duration::from_secs(1);
        let verdict = player.play(&line).and_then(|recorded| recorded.verdict);
        issued.extend(verdict.filter(|verdict| issued.iter().all(|known| known.id != verdict.id)));
    }
    issued
}

#[track_caller]
fn check(config: &str, expected: &[(i32, Action, &str, &str)]) {
    let given = verdicts(&format!("[detect.budget]\n{config}"), 12);
    let given: Vec<_> = given
        .iter()
        .map(|v| {
            (
                v.event_index.unwrap(),
                v.action.unwrap(),
                v.agent.as_str(),
                v.pattern.as_str(),
            )
        })
        .collect();
    assert_eq!(given, expected, "{config}");
}

#[test]
fn each_cap_is_reported_at_four_fifths_and_terminates_the_session_when_used_up() {
    check(
        "events_max = 10",
        &[
            (7, Action::Ask, "b", "the session has used 8 of 10 events"),
            (
                9,
                Action::Terminate,
                "",
                "the session has used 10 of 10 events",
            ),
        ],
    );
    check(
        "tokens_max = 50",
        &[
            (4, Action::Ask, "a", "the session has used 40 of 50 tokens"),
            (
                5,
                Action::Terminate,
                "",
                "the session has used 50 of 50 tokens",
            ),
        ],
    );
    check(
        "cost_usd_max = 0.05",
        &[
            (
                4,
                Action::Ask,
                "a",
                "the session has used 0.04 of 0.05 US dollars",
            ),
            (
                5,
                Action::Terminate,
                "",
                "the session has used 0.05 of 0.05 US dollars",
            ),
        ],
    );
    check(
        "wall_secs_max = 5",
        &[
            (4, Action::Ask, "a", "the session has used 4 of 5 seconds"),
            (
                5,
                Action::Terminate,
                "",
                "the session has used 5 of 5 seconds",
            ),
        ],
    );
}

#[test]
fn there_is_no_budget_unless_one_is_set() {
    check("events_max = 0", &[]);
    check("events_max = 10\nenabled = false", &[]);
}

#[test]
fn each_rung_of_each_cap_is_reported_once_for_any_action() {
    check(
        "events_max = 10\ntokens_max = 50\nsoft = 'warn'\nhard = 'warn'",
        &[
            (4, Action::Warn, "a", "the session has used 40 of 50 tokens"),
            (5, Action::Warn, "b", "the session has used 50 of 50 tokens"),
            (7, Action::Warn, "b", "the session has used 8 of 10 events"),
            (9, Action::Warn, "b", "the session has used 10 of 10 events"),
        ],
    );
}

#[test]
fn a_user_message_may_use_up_the_budget() {
    check(
        "events_max = 4",
        &[(
            3,
            Action::Terminate,
            "",
            "the session has used 4 of 4 events",
        )],
    );
}

#[test]
fn turns_count_where_they_end_and_pieces_of_text_do_not() {
    let mut player = Player::with(
        "[detect.budget]\nturns_max = 2\nevents_max = 9",
        RunMode::Replay,
    )
    .unwrap();
    let piece = |turn: &str, end: bool| {
        format!(
            r#"{{"delta": {{"session_id": "s", "turn_id": "{turn}", "text": "word {turn} ", "end_of_turn": {end}}}}}"#
        ) + "\n"
    };
    let text: String = ["one", "two"]
        .iter()
        .map(|turn| piece(turn, false).repeat(20) + &piece(turn, true))
        .collect();
    let given = player.verdicts(&Line::read(&text));
    let of_budget = given.iter().filter(|v| &*v.detector == "budget");
    let of_budget: Vec<_> = of_budget
        .map(|v| (v.event_index.unwrap(), v.action.unwrap()))
        .collect();
    assert_eq!(of_budget, [(1, Action::Terminate)]);
}

#[test]
fn a_clock_that_goes_back_crosses_no_threshold_twice() {
    let mut player = Player::with(
        "[detect.budget]\nwall_secs_max = 10\nhard = 'ask'",
        RunMode::Replay,
    )
    .unwrap();
    let start: SystemTime = player.now;
    let mut issued = 0;
    for (n, secs) in [0, 8, 2, 8, 9, 3, 8].into_iter().enumerate() {
        player.now = start + Duration::from_secs(secs);
        let line = format!(r#"{{"session_id": "s", "tool_call": {{"tool": "t{n}"}}}}"#);
        let lines = Line::read(&line);
        issued += usize::from(player.play(&lines[0]).unwrap().verdict.is_some());
    }
    assert_eq!(issued, 1);
}

/// A loop with a stronger action does not hide the budget.
#[test]
fn a_budget_is_reported_beside_a_loop() {
    let mut player = Player::with("[detect.budget]\nevents_max = 10", RunMode::Replay).unwrap();
    let line = r#"{"session_id": "s", "tool_call": {"tool": "t", "args_json": "{}", "outcome": "OUTCOME_OK", "result": "x"}}"#;
    let issued = player.verdicts(&Line::read(&format!("{line}\n").repeat(10)));
    let given: Vec<_> = issued
        .iter()
        .map(|v| {
            let also: Vec<&str> = v.other_detectors.iter().map(|name| &**name).collect();
            (
                v.event_index.unwrap(),
                v.action.unwrap(),
                v.detector.to_string(),
                also.contains(&"budget"),
            )
        })
        .collect();
    assert_eq!(
        given,
        [
            (2, Action::Warn, "exact_repeat".to_owned(), false),
            (3, Action::Block, "exact_repeat".to_owned(), false),
            (7, Action::Block, "exact_repeat".to_owned(), true),
            (9, Action::Terminate, "budget".to_owned(), false),
        ]
    );
    let [_, _, reached, ended] = &issued[..] else {
        panic!("four verdicts")
    };
    assert_eq!(
        reached.reason,
        "the loop continued after the first report; 80 % of the session's budget is used"
    );
    let texts = [&*ended.pattern, &*ended.reason, &*ended.other_detectors[0]];
    assert_eq!(
        texts,
        [
            "the session has used 10 of 10 events",
            "the session's budget is used up",
            "exact_repeat",
        ]
    );
    assert!(ended.correction.starts_with("Start nothing new"));
}

/// A loop that comes back does not raise the action of a budget's share.
#[test]
fn a_share_of_the_budget_terminates_nothing_beside_a_loop_that_comes_back() {
    let config = "[detect.budget]\nevents_max = 10\n[detect.exact_repeat]\nhard = 'warn'";
    let mut player = Player::with(config, RunMode::Replay).unwrap();
    let call = |tool: &str| {
        format!(
            r#"{{"session_id": "s", "tool_call": {{"tool": "{tool}", "args_json": "{{}}", "outcome": "OUTCOME_OK", "result": "x"}}}}"#
        ) + "\n"
    };
    let lines = call("t").repeat(3) + &call("b") + &call("c") + &call("t").repeat(3);
    let given = player.verdicts(&Line::read(&lines));
    let last = given.last().unwrap();
    assert_eq!(
        (last.event_index, last.action),
        (Some(7), Some(Action::Ask))
    );
    assert_eq!(last.reason, "80 % of the session's budget is used");
    assert_eq!(&*last.detector, "budget");
}

#[tokio::test]
async fn a_budget_that_ends_a_session_beside_a_read_loop_has_its_own_label_and_correction() {
    let server = Server::with("[detect.budget]\nevents_max = 10").await;
    let reads = call("read_file", r#"{"path": "a.rs"}"#, "fn main() {}").times(10);
    let results = server.play("s", reads).await;
    assert_eq!(verdict(&results[3]).detector, "read_loop");
    let ended = verdict(&results[9]);
    assert_eq!(ended.action(), pb::Action::Terminate);
    assert_eq!(ended.detector, "budget");
    assert_eq!(ended.pattern, "the session has used 10 of 10 events");
    let correction = &ended.correction;
    assert!(correction.starts_with("Start nothing new"), "{correction}");
}
