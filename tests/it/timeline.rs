//! The timeline of a session's loops that `GetSession` returns.

use unstuck::{
    detect,
    pb::{self, GetSessionResponse, Outcome, Role, TimelineKind},
};

use crate::harness::{Build, Server, WORDS, ask, config, like, turn, turn_by, within};

async fn detail(server: &Server, session: &str) -> GetSessionResponse {
    let session_id = session.to_owned();
    let request = pb::GetSessionRequest { session_id };
    let answer = within(server.sessions.clone().get_session(request)).await;
    answer.unwrap().into_inner()
}

/// The numbers of equal calls, in order.
fn same(answer: &GetSessionResponse) -> Vec<i32> {
    answer.timeline.iter().map(|entry| entry.same).collect()
}

#[tokio::test]
async fn equal_calls_share_a_number_and_single_ones_have_none() {
    let server = Server::start().await;
    let events = [
        ask("a"),
        ask("b"),
        ask("once"),
        ask("a"),
        turn("hm"),
        ask("b"),
    ];
    server.play("s", events.to_vec()).await;
    let answer = detail(&server, "s").await;
    assert_eq!(same(&answer), [1, 2, 0, 1, 0, 2]);
    let entry = &answer.timeline[0];
    assert_eq!(entry.event_index, 0);
    assert_eq!(entry.kind(), TimelineKind::ToolCall);
    assert_eq!((&*entry.tool, &*entry.target), ("lookup_setting", "a"));
    assert_eq!(entry.outcome(), Outcome::Ok);
    assert!(entry.time.is_some());
    assert_eq!(answer.timeline[4].kind(), TimelineKind::AgentTurn);
}

#[tokio::test]
async fn events_name_the_loop_that_cites_them_and_the_trends_after_them() {
    let server = Server::start().await;
    let events = [ask("other").times(1), ask("a").times(4)];
    server.play("s", events).await;
    let answer = detail(&server, "s").await;
    let session = answer.session.unwrap();
    let id = &session.last_verdicts[0].loop_id;
    let cited: Vec<bool> = answer.timeline.iter().map(|it| it.loop_id == *id).collect();
    assert_eq!(cited, [false, true, true, true, true]);
    let trend = |entry: &pb::TimelineEntry| {
        let mut samples = entry.trends.iter();
        let sample = samples.find(|sample| sample.detector == "exact_repeat");
        sample.map(|sample| (sample.ema, sample.found))
    };
    let trends: Vec<_> = answer.timeline.iter().map(trend).collect();
    assert_eq!(
        trends,
        [None, None, None, Some((0.3, true)), Some((0.51, true))]
    );
    assert_eq!(session.trend_samples, [0.0, 0.0, 0.0, 0.3, 0.51]);
}

#[tokio::test]
async fn a_trend_fades_in_its_samples() {
    let server = Server::start().await;
    let others: Vec<_> = (0..30).map(|n| ask(&format!("other{n}"))).collect();
    server.play("s", [ask("a").times(3), others]).await;
    let answer = detail(&server, "s").await;
    assert_eq!(answer.session.unwrap().trend_samples, Vec::<f64>::new());
}

#[tokio::test]
async fn a_user_restarts_the_timeline() {
    let server = Server::start().await;
    let events = [
        ask("before").times(2),
        vec![turn_by(Role::User, "go on")],
        ask("after").times(1),
    ];
    server.play("s", events).await;
    let kinds: Vec<_> = detail(&server, "s").await.timeline;
    let kinds: Vec<_> = kinds.iter().map(pb::TimelineEntry::kind).collect();
    assert_eq!(kinds, [TimelineKind::UserTurn, TimelineKind::ToolCall]);
}

#[tokio::test]
async fn a_timeline_of_many_agents_has_the_latest_events() {
    let server = Server::start().await;
    for agent in 0..12 {
        let calls = (0..30).map(|call| ask(&format!("{agent}-{call}")).by(&format!("a{agent}")));
        server.play("s", calls.collect::<Vec<_>>()).await;
    }
    let timeline = detail(&server, "s").await.timeline;
    let indexes: Vec<i32> = timeline.iter().map(|entry| entry.event_index).collect();
    assert_eq!(indexes, (360 - 256..360).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_terminated_session_keeps_its_timeline_and_explanation() {
    let server = Server::start().await;
    server.play("s", ask("a").times(20)).await;
    let answer = detail(&server, "s").await;
    assert_eq!(same(&answer), [1; 20]);
    let detectors: Vec<&str> = answer.explanations.iter().map(|it| &*it.detector).collect();
    assert_eq!(detectors, ["exact_repeat"]);
    let session = answer.session.unwrap();
    let actions = session.last_verdicts.iter().map(pb::Verdict::action);
    let all = [pb::Action::Warn, pb::Action::Block, pb::Action::Terminate];
    assert_eq!(actions.collect::<Vec<_>>(), all);
    assert_eq!(session.last_verdicts.last(), session.termination.as_ref());
}

#[tokio::test]
async fn a_session_that_an_operator_terminated_keeps_its_timeline() {
    let server = Server::start().await;
    server.play("s", vec![ask("a"), ask("b")]).await;
    server.terminate("s").await;
    let answer = detail(&server, "s").await;
    assert_eq!(same(&answer), [0, 0]);
    assert_eq!(answer.session.unwrap().last_verdicts.len(), 1);
}

#[tokio::test]
async fn an_explanation_names_the_settings_in_force() {
    let server = Server::with("[detect.exact_repeat]\ncount = 5").await;
    server.play("s", ask("a").times(5)).await;
    let answer = detail(&server, "s").await;
    let explanation = &answer.explanations[0];
    assert_eq!(explanation.threshold, "5 in a row");
    assert!(
        explanation.rule.contains("the same call"),
        "{explanation:?}"
    );
    assert!(
        explanation.would_not_fire_if.contains("another result"),
        "{explanation:?}"
    );
}

/// The rule that the verdict matched, not the other rule of its detector.
#[tokio::test]
async fn a_new_start_is_explained_by_its_own_rule() {
    let server = Server::start().await;
    let start = |topic: &str| {
        let announced = turn(&format!("Let me try a different approach: {topic}."));
        let failing = ask(topic).change(|call| {
            call.outcome = Outcome::Error.into();
            call.error = format!("cannot {topic}");
            call.result = None;
        });
        [announced, failing]
    };
    let topics = [
        "read the logs",
        "query the database",
        "ask the vendor",
        "look again",
    ];
    let events = topics.map(start).concat();
    let results = server.play("s", events[..7].to_vec()).await;
    let verdict = results[6].verdict.as_ref().unwrap();
    let starts = "announced a new start 3 times without progress";
    assert!(verdict.pattern.starts_with(starts), "{}", verdict.pattern);
    let answer = detail(&server, "s").await;
    let explained = answer.explanations.iter();
    let explained: Vec<&str> = explained.map(|it| &*it.rule).collect();
    assert_eq!(
        explained,
        ["turns keep announcing a new start, without progress"]
    );
    assert!(
        answer.explanations[0]
            .threshold
            .starts_with("3 starts within the last 8 turns")
    );

    let similar = WORDS.map(|word| turn(&like(word)));
    server.play("t", similar[..4].to_vec()).await;
    let answer = detail(&server, "t").await;
    let of_overlap = answer.explanations.iter();
    let of_overlap: Vec<_> = of_overlap
        .filter(|it| it.detector == "similar_turns")
        .collect();
    assert_eq!(
        of_overlap[0].rule,
        "several turns in a row repeat earlier turns"
    );
}

#[test]
fn every_detector_explains_why_it_fires_and_what_resets_it() {
    let config = config("");
    let settings = &config.profiles.default().detect;
    for name in detect::NAMES {
        let explained = settings.explain(name, &[]).unwrap();
        for text in [
            explained.rule,
            &explained.threshold,
            explained.would_not_fire_if,
        ] {
            assert!(!text.is_empty() && !text.ends_with('.'), "{name}: {text:?}");
        }
    }
    assert_eq!(settings.explain("nonsense", &[]), None);
}
