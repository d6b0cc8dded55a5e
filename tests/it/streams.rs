//! Streams that are too many, silent, or not read are limited.

use tonic::{Code, Status};
use tonic_types::StatusExt;
use unstuck::pb::{self, Action};

use crate::harness::*;

fn rejected(reason: &str) -> String {
    format!("unstuck_rejected_total{{reason=\"{reason}\"}}")
}

#[track_caller]
fn assert_ended(status: &Status, code: Code, reason: &str) {
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!((status.code(), &*info.reason), (code, reason), "{status:?}");
}

#[tokio::test]
async fn beyond_open_streams_max_another_is_refused_until_one_ends() {
    let server = Server::with("[limits]\nopen_streams_max = 2").await;
    let events = server.events().await;
    let _deltas = server.deltas().await;
    let watch = || server.watch(pb::WatchVerdictsRequest::default());
    assert_exhausted(&watch().await.unwrap_err(), "OPEN_STREAMS_MAX");
    assert_eq!(server.metric(&rejected("open_streams_max")).await, 1.0);
    assert_eq!(server.record(ask("x").of("s")).await.event_index, 0);
    events.finish().await;
    watch().await.unwrap();
}

#[tokio::test]
async fn a_stream_on_which_nothing_is_sent_ends_with_a_reason() {
    let server = Server::with("[limits]\nstream_idle_secs_max = 1").await;
    let (mut events, mut deltas) = (server.events().await, server.deltas().await);
    assert_ended(
        &events.next().await.unwrap_err(),
        Code::Unavailable,
        "STREAM_IDLE",
    );
    assert_ended(
        &deltas.next().await.unwrap_err(),
        Code::Unavailable,
        "STREAM_IDLE",
    );
    assert_eq!(server.metric(&rejected("stream_idle_secs_max")).await, 2.0);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected_and_gets_the_reason() {
    let server = Server::with("[limits]\nunread_responses_max = 2\nslow_reader_secs_max = 1").await;
    // With no window the transport takes none of them.
    let events = events_of(server.detection_with_window(0).await).await;
    let mut neighbour = server.events().await;
    for n in 1..=20 {
        events.send(batch(n, [ask("x").of("s")])).await;
    }
    server
        .wait_for_metric(&rejected("slow_reader_secs_max"), 1.0)
        .await;
    let recorded = server.get("s").await.unwrap().events;
    assert!(recorded < 20, "{recorded}");
    assert_eq!(
        neighbour.ask(batch(1, [ask("x").of("t")])).await.sequence,
        1,
        "the others go on"
    );
    // Its unread responses stay queued for the client and hold its permit.
    let streams = "unstuck_streams{rpc=\"StreamEvents\"}";
    assert_eq!(server.metric(streams).await, 2.0);
    drop(events);
    server.wait_for_metric(streams, 1.0).await;
}

#[tokio::test]
async fn a_stream_holds_its_permit_until_its_last_response_is_read() {
    let server = Server::with("[limits]\nopen_streams_max = 1").await;
    // Once a client reads one byte, the transport takes the whole response.
    let events = events_of(server.detection_with_window(1).await).await;
    events.send(batch(1, [ask("x").of("s")])).await;
    let unread = events.half_close();
    within(async { while server.get("s").await.is_err() {} }).await;
    let open = async || {
        let requests = tokio_stream::pending();
        within(server.detection.clone().stream_events(requests)).await
    };
    // Time enough for the stream's task to end.
    for _ in 0..200 {
        server.record(turn("").of("t")).await;
    }
    assert_exhausted(&open().await.unwrap_err(), "OPEN_STREAMS_MAX");
    drop(unread);
    within(async { while open().await.is_err() {} }).await;
}

#[tokio::test]
async fn a_client_that_reads_late_gets_the_reason_of_the_end() {
    let server = Server::with("[limits]\nunread_responses_max = 2\nslow_reader_secs_max = 1").await;
    // Two responses fit.
    let mut events = events_of(server.detection_with_window(64).await).await;
    for n in 1..=20 {
        events.send(batch(n, [turn("").of("s")])).await;
    }
    server
        .wait_for_metric(&rejected("slow_reader_secs_max"), 1.0)
        .await;
    let mut read = 0;
    let status = loop {
        match events.next().await {
            Ok(Some(_)) => read += 1,
            Ok(None) => panic!("a clean end after {read}"),
            Err(status) => break status,
        }
    };
    assert_exhausted(&status, "SLOW_READER");
    assert!(read < 20, "{read}");
}

#[tokio::test]
async fn no_answered_termination_is_lost_when_a_slow_reader_is_disconnected() {
    let server = Server::with("[limits]\nunread_responses_max = 2\nslow_reader_secs_max = 1").await;
    for n in 1..=20 {
        server.terminate(&format!("s{n}")).await;
    }
    let mut events = events_of(server.detection_with_window(64).await).await;
    for n in 1..=20 {
        let event = ask("x").of(&format!("s{n}"));
        events.send(batch(n, [event])).await;
    }
    server
        .wait_for_metric(&rejected("slow_reader_secs_max"), 1.0)
        .await;
    let mut received = 0;
    let status = loop {
        match events.next().await {
            Ok(answer) => {
                let answer = answer.unwrap();
                assert_eq!(answer.results[0].action(), Action::Terminate);
                received += 1;
            }
            Err(status) => break status,
        }
    };
    assert_exhausted(&status, "SLOW_READER");
    let recorded = server.metric("unstuck_event_duration_seconds_count").await;
    assert!(recorded < 20.0, "{recorded}");
    // The last of them waited for room when the stream was closed.
    assert_eq!(f64::from(received), recorded);
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_disconnected() {
    let server = Server::with("[limits]\nunread_responses_max = 1\nslow_reader_secs_max = 1").await;
    let mut deaf = server.sessions_with_window(0).await;
    let request = pb::WatchVerdictsRequest::default();
    let watch = within(deaf.watch_verdicts(request)).await.unwrap();
    for n in 0..10 {
        server.terminate(&format!("s{n}")).await;
    }
    server
        .wait_for_metric(&rejected("slow_reader_secs_max"), 1.0)
        .await;
    drop(watch);
    server
        .wait_for_metric("unstuck_streams{rpc=\"WatchVerdicts\"}", 0.0)
        .await;
}

#[tokio::test]
async fn a_watcher_that_falls_too_far_behind_is_asked_to_resume() {
    let limits = "[limits]\nunread_responses_max = 1\nslow_reader_secs_max = 600";
    let eager = "[detect.exact_repeat]\ncount = 2";
    let server = Server::with(&format!("{limits}\n{eager}")).await;
    let mut slow = server.sessions_with_window(1_024).await;
    let watch = slow.watch_verdicts(pb::WatchVerdictsRequest::default());
    let mut watch = within(watch).await.unwrap().into_inner();
    // One verdict per session, more than a watcher's queue holds.
    let mut events = server.events().await;
    for n in 1..=36 {
        let twice = |of| {
            let session = format!("s{n}-{of}");
            [ask("x").of(&session), ask("x").of(&session)]
        };
        events.ask(batch(n, (0..128).flat_map(twice))).await;
    }
    let status = loop {
        match within(watch.message()).await {
            Ok(verdict) => assert!(verdict.is_some(), "a clean end"),
            Err(status) => break status,
        }
    };
    assert_exhausted(&status, "WATCHER_TOO_SLOW");
    assert_eq!(server.metric(&rejected("watcher_too_slow")).await, 1.0);
}

/// A stream with a full queue whose client has read nothing.
async fn full_stream(server: &Server) -> EventStream {
    let stream = events_of(server.detection_with_window(64).await).await;
    for n in 1..=60 {
        let name = if n < 9 {
            format!("n{n}")
        } else {
            "x".to_owned()
        };
        stream.send(batch(n, [ask(&name).of("s")])).await;
    }
    stream
}

#[tokio::test]
async fn a_termination_overtakes_a_full_queue() {
    let server = Server::with("[limits]\nunread_responses_max = 4").await;
    let mut stream = full_stream(&server).await;
    // By then the queue is full, and the stream waits for room.
    let events = async || server.get("s").await.map_or(0, |session| session.events);
    within(async { while events().await < 6 {} }).await;
    let verdict = server.terminate("s").await;
    // Sixty answers and the push; those that the transport had are before it.
    let mut pushed_at = None;
    let mut latched = 0;
    for n in 0..61 {
        let answer = stream.receive().await;
        let result = &answer.results[0];
        if answer.sequence == 0 {
            assert_eq!(
                result.verdict.as_ref().unwrap().verdict_id,
                verdict.verdict_id
            );
            assert_eq!(pushed_at.replace(n), None, "once");
        } else if result.action() == Action::Terminate {
            latched += 1;
        }
    }
    assert!(
        pushed_at.is_some_and(|at| at < 60 - latched),
        "{pushed_at:?}, {latched}"
    );
}

#[tokio::test]
async fn unread_responses_about_one_text_are_coalesced_and_counted() {
    let server = Server::with("[limits]\nunread_responses_max = 4").await;
    server.terminate("s").await;
    let stream = deltas_of(server.detection_with_window(0).await).await;
    // A neighbour on the same stream, whose end of turn shows that all was read.
    const DELTAS: usize = 200;
    for _ in 0..DELTAS {
        stream.send(pieces([piece("s", "t", "let me look")])).await;
    }
    stream.send(pieces([last_delta("end", "", "")])).await;
    within(async { while server.get("end").await.is_err() {} }).await;
    let coalesced = server.metric("unstuck_responses_coalesced_total").await;
    assert!(coalesced > 0.0);

    drop(stream);
    let mut stream = server.deltas().await;
    let answer = stream.ask(pieces([piece("s", "t", "let me look")])).await;
    assert_eq!((answer.action(), answer.coalesced), (Action::Terminate, 0));
}

#[tokio::test]
async fn every_response_is_read_or_counted_as_coalesced() {
    let server = Server::with("[limits]\nunread_responses_max = 4").await;
    server.terminate("s").await;
    let mut stream = deltas_of(server.detection_with_window(400).await).await;
    const DELTAS: i32 = 200;
    for _ in 0..DELTAS {
        stream.send(pieces([piece("s", "t", "let me look")])).await;
    }
    stream.send(pieces([last_delta("end", "", "")])).await;
    let mut received = 0;
    loop {
        let answer = stream.receive().await;
        if answer.end_of_turn {
            break;
        }
        assert_eq!(answer.action(), Action::Terminate);
        received += 1 + answer.coalesced;
    }
    assert_eq!(received, DELTAS);
    let counted = server.metric("unstuck_responses_coalesced_total").await;
    assert!(counted > 0.0 && counted < f64::from(DELTAS));
}
