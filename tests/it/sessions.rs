//! The session service: queries and actions of operators and controllers.

use std::collections::BTreeSet;

use tonic::{Code, Status};
use unstuck::pb::{
    Abstention, Action, ListSessionsRequest, OpenSessionRequest, SessionStatus,
    WatchVerdictsRequest, WatchVerdictsResponse,
};

use crate::harness::*;

#[tokio::test]
async fn a_session_that_is_opened_again_keeps_its_state() {
    let server = Server::start().await;
    server.open("s", "lenient", &[("team", "a")]).await.unwrap();
    server.play("s", ask("x").times(2)).await;
    let session = server.open("s", "", &[("team", "b")]).await.unwrap();
    assert_eq!((&*session.profile, session.events), ("default", 2));
    assert_eq!(session.labels, labels(&[("team", "b")]));
    assert_eq!(server.record(ask("x").of("s")).await.action(), Action::Warn);
}

#[tokio::test]
async fn an_unknown_profile_is_refused_with_the_known_names() {
    let server = Server::start().await;
    let status = server.open("s", "stricter", &[]).await.unwrap_err();
    assert_invalid(&status, "profile");
    assert!(
        status
            .message()
            .contains("default, classic, lenient, strict"),
        "{}",
        status.message()
    );
    assert_eq!(server.get("s").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn labels_are_bounded() {
    let server = Server::start().await;
    let many = |count: usize| (0..count).map(|n| (format!("k{n}"), String::new()));
    let one = |key: usize, value: usize| std::iter::once(("k".repeat(key), "v".repeat(value)));
    let open = async |labels: Vec<(String, String)>| {
        let request = OpenSessionRequest {
            session_id: "s".to_owned(),
            labels: labels.into_iter().collect(),
            ..Default::default()
        };
        within(server.sessions.clone().open_session(request)).await
    };
    for fine in [
        many(16).collect(),
        one(64, 256).collect(),
        one(1, 0).collect(),
    ] {
        open(fine).await.unwrap();
    }
    let bad = [
        many(17).collect(),
        one(65, 0).collect(),
        one(0, 1).collect(),
        one(1, 257).collect(),
    ];
    for labels in bad {
        assert_invalid(&open(labels).await.unwrap_err(), "labels");
    }
}

#[tokio::test]
async fn an_ended_session_restarts_with_its_next_event() {
    let server = Server::start().await;
    server.open("s", "strict", &[("team", "a")]).await.unwrap();
    server.play("s", ask("x").id("e").times(1)).await;
    assert_eq!(
        server.end("s").await.unwrap().status(),
        SessionStatus::Ended
    );
    let result = server.record(ask("x").id("e").of("s")).await;
    assert_eq!((result.event_index, result.duplicate), (0, false));
    let session = server.get("s").await.unwrap();
    assert_eq!(
        (session.status(), session.events),
        (SessionStatus::Active, 1)
    );
}

#[tokio::test]
async fn an_unknown_session_is_not_found() {
    let server = Server::start().await;
    for answer in [server.get("s").await, server.end("s").await] {
        assert_eq!(answer.unwrap_err().code(), Code::NotFound);
    }
    assert_eq!(server.reset("s").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_session_loops_while_its_loop_is_active() {
    let server = Server::start().await;
    let mut seen = Vec::new();
    for name in ["x", "x", "x", "y"] {
        server.record(ask(name).of("s")).await;
        seen.push(server.get("s").await.unwrap().status());
    }
    let (active, looping) = (SessionStatus::Active, SessionStatus::Looping);
    assert_eq!(seen, [active, active, looping, active]);
}

#[tokio::test]
async fn a_session_shows_its_totals_trends_and_last_verdicts() {
    let server = Server::start().await;
    let loops = (0..10).flat_map(|n| ask(&format!("x{n}")).costing(10, 1, 0.5).times(3));
    let results = server
        .play("s", loops.chain([turn("so")]).collect::<Vec<_>>())
        .await;
    let session = server.get("s").await.unwrap();
    let usage = session.usage.unwrap();
    assert_eq!((session.events, session.turns, session.agents), (31, 1, 1));
    assert_eq!(
        (usage.input_tokens, usage.output_tokens, usage.cost_usd),
        (300, 30, 15.0)
    );
    assert_eq!(session.wasted.unwrap().events, 30);
    let [trend] = &session.trends[..] else {
        panic!("{:?}", session.trends)
    };
    assert_eq!((&*trend.agent_id, &*trend.detector), ("", "exact_repeat"));
    let last: Vec<_> = session
        .last_verdicts
        .iter()
        .map(|v| v.event_index)
        .collect();
    assert_eq!(last, [8, 11, 14, 17, 20, 23, 26, 29]);
    assert_eq!(session.last_verdicts.last(), results[29].verdict.as_ref());
}

#[tokio::test]
async fn a_detector_with_missing_fields_differs_from_one_without_matches() {
    let server = Server::start().await;
    let blind = ask("x").change(|call| call.arguments = None);
    assert_eq!(verdicts(&server.play("s", blind.times(5)).await), []);
    let abstention = Abstention {
        detector: "exact_repeat".to_owned(),
        field: "tool_call.args".to_owned(),
        events: 5,
    };
    let session = server.get("s").await.unwrap();
    assert!(session.abstentions.contains(&abstention), "{session:?}");
}

// Lists

/// The ids of every page.
async fn pages(server: &Server, request: ListSessionsRequest) -> Vec<Vec<String>> {
    let mut request = request;
    let mut pages = Vec::new();
    loop {
        let page = server.list(request.clone()).await.unwrap();
        pages.push(page.sessions.into_iter().map(|s| s.session_id).collect());
        if page.next_page_token.is_empty() {
            return pages;
        }
        request.page_token = page.next_page_token;
    }
}

async fn begin(server: &Server, sessions: &[String]) {
    let mut stream = server.events().await;
    for (n, some) in (1..).zip(sessions.chunks(250)) {
        stream
            .ask(batch(n, some.iter().map(|s| ask("x").of(s))))
            .await;
    }
}

fn page_size(page_size: i32) -> ListSessionsRequest {
    ListSessionsRequest {
        page_size,
        ..Default::default()
    }
}

#[tokio::test]
async fn the_pages_of_a_list_hold_every_session_once_and_in_order() {
    let server = Server::start().await;
    let mut sessions: Vec<String> = (0..2_500).map(|n| format!("s{n}")).collect();
    begin(&server, &sessions).await;
    sessions.sort();
    for (page_limit, given) in [
        (1_000, 1_000),
        (5_000, 1_000),
        (999, 999),
        (0, 100),
        (2_499, 1_000),
    ] {
        let pages = pages(&server, page_size(page_limit)).await;
        assert_eq!(pages.concat(), sessions, "{page_limit} at a time");
        assert!(
            pages[..pages.len() - 1]
                .iter()
                .all(|page| page.len() == given)
        );
    }
}

#[tokio::test]
async fn a_page_is_no_larger_than_a_client_accepts() {
    use prost::Message;
    let server = Server::start().await;
    let sessions: Vec<String> = (0..700).map(|n| format!("s{n:03}")).collect();
    let mut stream = server.events().await;
    // Eight verdicts each, as many as a session shows: 3.5 KB.
    let looping = (0..8).flat_map(|n| ask(&format!("x{n}")).times(3));
    for (n, session) in (1..).zip(&sessions) {
        let events = looping.clone().map(|event| event.of(session));
        stream.ask(batch(n, events)).await;
    }
    let mut request = page_size(1_000);
    let mut seen = Vec::new();
    let mut sizes = Vec::new();
    loop {
        let page = server.list(request.clone()).await.unwrap();
        sizes.push(page.encoded_len());
        seen.extend(page.sessions.into_iter().map(|s| s.session_id));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(seen, sessions);
    assert!(
        sizes.len() > 1 && sizes.iter().all(|bytes| *bytes < 1_100_000),
        "{sizes:?}"
    );
}

#[tokio::test]
async fn a_list_whose_last_page_is_full_ends_there() {
    let server = Server::start().await;
    begin(&server, &["a", "b", "c", "d"].map(str::to_owned)).await;
    assert_eq!(pages(&server, page_size(2)).await, [["a", "b"], ["c", "d"]]);
}

#[tokio::test]
async fn sessions_that_start_between_pages_disturb_no_page() {
    let server = Server::start().await;
    let stay: Vec<String> = (0..100).map(|n| format!("s{n:03}")).collect();
    begin(&server, &stay).await;
    let mut request = page_size(7);
    let mut seen = Vec::new();
    for n in 0.. {
        let page = server.list(request.clone()).await.unwrap();
        seen.extend(page.sessions.into_iter().map(|s| s.session_id));
        // One sorts before every page, one after it.
        begin(&server, &[format!("a{n}"), format!("t{n}")]).await;
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let stayed: Vec<_> = seen
        .iter()
        .filter(|id| id.starts_with('s'))
        .cloned()
        .collect();
    assert_eq!(stayed, stay);
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len());
}

#[tokio::test]
async fn a_list_is_filtered_by_status_and_labels() {
    let server = Server::start().await;
    let (red, blue) = (("team", "red"), ("team", "blue"));
    for (session, labels) in [
        ("a", vec![red]),
        ("b", vec![red, ("env", "ci")]),
        ("c", vec![blue]),
    ] {
        server.open(session, "", &labels).await.unwrap();
    }
    server.play("b", ask("x").times(3)).await;
    server.end("c").await.unwrap();
    server.terminate("d").await;
    let list = async |status: SessionStatus, wanted: &[(&str, &str)]| {
        let request = ListSessionsRequest {
            status: status.into(),
            labels: labels(wanted),
            ..Default::default()
        };
        pages(&server, request).await.concat().concat()
    };
    assert_eq!(list(SessionStatus::Unspecified, &[]).await, "abcd");
    assert_eq!(list(SessionStatus::Active, &[]).await, "a");
    assert_eq!(list(SessionStatus::Looping, &[]).await, "b");
    assert_eq!(list(SessionStatus::Ended, &[]).await, "c");
    assert_eq!(list(SessionStatus::Terminated, &[]).await, "d");
    assert_eq!(list(SessionStatus::Unspecified, &[red]).await, "ab");
    assert_eq!(
        list(SessionStatus::Unspecified, &[red, ("env", "ci")]).await,
        "b"
    );
    assert_eq!(list(SessionStatus::Looping, &[blue]).await, "");
}

#[tokio::test]
async fn an_unknown_page_token_is_refused() {
    let server = Server::start().await;
    assert_invalid(&server.list(page_size(-1)).await.unwrap_err(), "page_size");
    for token in ["!", "AA", "/w", "c w"] {
        let request = ListSessionsRequest {
            page_token: token.to_owned(),
            ..Default::default()
        };
        assert_invalid(&server.list(request).await.unwrap_err(), "page_token");
    }
    let request = ListSessionsRequest {
        status: 99,
        ..Default::default()
    };
    assert_invalid(&server.list(request).await.unwrap_err(), "status");
}

// Watches

#[tokio::test]
async fn a_watch_receives_only_verdicts_that_match_its_filter() {
    let server = Server::start().await;
    server.open("a", "", &[("team", "red")]).await.unwrap();
    server.open("b", "", &[("team", "blue")]).await.unwrap();
    let any = WatchVerdictsRequest::default;
    let watches = [
        (any(), "b:WARN b:ESCALATE c:TERMINATE a:WARN a:BLOCK"),
        (
            WatchVerdictsRequest {
                session_id: "a".into(),
                ..any()
            },
            "a:WARN a:BLOCK",
        ),
        (
            WatchVerdictsRequest {
                labels: labels(&[("team", "red")]),
                ..any()
            },
            "a:WARN a:BLOCK",
        ),
        (
            WatchVerdictsRequest {
                detector: "exact_repeat".into(),
                ..any()
            },
            "a:WARN a:BLOCK",
        ),
        (
            WatchVerdictsRequest {
                min_action: Action::Block.into(),
                ..any()
            },
            "b:ESCALATE c:TERMINATE a:BLOCK",
        ),
    ];
    let mut streams = Vec::new();
    for (request, expected) in watches {
        streams.push((server.watch(request).await.unwrap(), expected));
    }
    let mut operators = server
        .watch(WatchVerdictsRequest {
            detector: "operator".into(),
            ..any()
        })
        .await
        .unwrap();

    let similar = WORDS[..5].iter().map(|word| turn(&like(word)));
    server.play("b", similar.collect::<Vec<_>>()).await;
    server.terminate("c").await;
    // Every filter matches the last verdict, so it marks the end.
    server.play("a", ask("x").times(4)).await;

    for (mut stream, expected) in streams {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|last| last != "a:BLOCK") {
            let verdict = within(stream.message())
                .await
                .unwrap()
                .unwrap()
                .verdict
                .unwrap();
            let action = verdict.action().as_str_name().trim_start_matches("ACTION_");
            seen.push(format!("{}:{action}", verdict.session_id));
        }
        assert_eq!(seen.join(" "), expected);
    }
    let verdict = within(operators.message())
        .await
        .unwrap()
        .unwrap()
        .verdict
        .unwrap();
    assert_eq!(
        (&*verdict.session_id, verdict.action()),
        ("c", Action::Terminate)
    );
}

#[tokio::test]
async fn an_invalid_watch_filter_is_refused() {
    let server = Server::start().await;
    let any = WatchVerdictsRequest::default;
    let bad = [
        (
            WatchVerdictsRequest {
                session_id: "a b".into(),
                ..any()
            },
            "session_id",
        ),
        (
            WatchVerdictsRequest {
                min_action: 99,
                ..any()
            },
            "min_action",
        ),
        (
            WatchVerdictsRequest {
                labels: labels(&[("", "x")]),
                ..any()
            },
            "labels",
        ),
    ];
    for (request, field) in bad {
        assert_invalid(&server.watch(request).await.unwrap_err(), field);
    }
}

#[tokio::test]
async fn a_slow_watcher_gets_its_queued_verdicts_and_then_the_reason() {
    let server = Server::with("[detect.exact_repeat]\ncount = 2").await;
    // What fits into the client's window, the server's buffer and its queue is
    // far below the 6,000 verdicts that are issued while the client does not read.
    let mut sessions = server.sessions_with_window(65_535).await;
    let watch = within(sessions.watch_verdicts(WatchVerdictsRequest::default())).await;
    let mut watch = watch.unwrap().into_inner();
    let mut stream = server.events().await;
    for n in 0..50 {
        let looping = (0..120).flat_map(|m| ask("x").of(&format!("{n}-{m}")).times(2));
        stream.ask(batch(n + 1, looping)).await;
    }
    let mut seen = Vec::new();
    let status: Status = loop {
        match within(watch.message()).await {
            Ok(Some(WatchVerdictsResponse { verdict })) => seen.push(verdict.unwrap()),
            Ok(None) => panic!("it ended without a reason"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    // The received verdicts have no gap.
    let expected = (0..seen.len()).map(|k| format!("{}-{}", k / 120, k % 120));
    assert!(seen.iter().map(|v| v.session_id.clone()).eq(expected));
    assert!(seen.len() < 6_000 && seen.is_sorted_by_key(|v| v.verdict_id.clone()));
}
