//! Invalid input is rejected, and valid input that resembles it is accepted.

use prost::Message;
use tonic::{Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;
use unstuck::pb::{self, Action, Event, Role, event::Body};

use crate::harness::*;

/// A valid event with one invalid change.
fn wrong(change: impl FnOnce(&mut Event)) -> Event {
    let mut event = ask("x").of("s");
    change(&mut event);
    event
}

fn wrong_call(change: impl FnOnce(&mut pb::ToolCall)) -> Event {
    ask("x").of("s").change(change)
}

fn costing(input_tokens: i32, output_tokens: i32, cost_usd: f64) -> Event {
    ask("x")
        .of("s")
        .costing(input_tokens, output_tokens, cost_usd)
}

fn at(seconds: i64, nanos: i32) -> Event {
    wrong(|event| event.time = Some(pbjson_types::Timestamp { seconds, nanos }))
}

fn with_body(body: Body) -> Event {
    wrong(|event| event.body = Some(body))
}

fn marker(kind: i32, context_tokens: i32) -> Event {
    with_body(Body::Marker(pb::Marker {
        kind,
        context_tokens,
    }))
}

fn turn_by_role(role: i32) -> Event {
    with_body(Body::Turn(pb::Turn {
        role,
        ..Default::default()
    }))
}

fn bad_events() -> Vec<(Event, &'static str)> {
    let long = |bytes: usize| "x".repeat(bytes);
    vec![
        (ask("x"), "session_id"),
        (ask("x").of(&long(257)), "session_id"),
        (ask("x").of("a b"), "session_id"),
        (ask("x").of("a\nb"), "session_id"),
        (ask("x").of("a\u{1b}[31mb"), "session_id"),
        (ask("x").of("a\0b"), "session_id"),
        (ask("x").of("a\u{202e}b"), "session_id"),
        (ask("x").of("a\u{200b}b"), "session_id"),
        (ask("x").of("s").id(&long(129)), "event_id"),
        (ask("x").of("s").by(&long(257)), "agent_id"),
        (wrong(|event| event.round_id = long(129)), "round_id"),
        (wrong(|event| event.state_hash = long(257)), "state_hash"),
        (wrong(|event| event.body = None), "body"),
        (wrong_call(|call| call.tool.clear()), "tool_call.tool"),
        (wrong_call(|call| call.tool = long(129)), "tool_call.tool"),
        (
            wrong_call(|call| call.operation = 99),
            "tool_call.operation",
        ),
        (wrong_call(|call| call.outcome = -1), "tool_call.outcome"),
        (
            wrong_call(|call| call.result_hash = long(257)),
            "tool_call.result_hash",
        ),
        (
            wrong_call(|call| call.content_hash = long(257)),
            "tool_call.content_hash",
        ),
        (
            wrong_call(|call| {
                call.arguments = Some(pb::tool_call::Arguments::ArgsHash(long(257)));
            }),
            "tool_call.args_hash",
        ),
        (turn_by_role(0), "turn.role"),
        (turn_by_role(99), "turn.role"),
        (turn("x").named(&long(129)).of("s"), "turn.turn_id"),
        (marker(0, 0), "marker.kind"),
        (marker(99, 0), "marker.kind"),
        (marker(1, -1), "marker.context_tokens"),
        (at(0, 1_000_000_000), "time"),
        (at(0, -1), "time"),
        (at(253_402_300_800, 0), "time"),
        (at(-62_135_596_801, 0), "time"),
        (at(i64::MAX, 0), "time"),
        (costing(-1, 0, 0.0), "usage.input_tokens"),
        (costing(0, -1, 0.0), "usage.output_tokens"),
        (costing(5, 0, 0.0).cached(-1), "usage.cached_input_tokens"),
        (costing(5, 0, 0.0).cached(6), "usage.cached_input_tokens"),
        (costing(0, 0, -0.01), "usage.cost_usd"),
        (costing(0, 0, f64::NAN), "usage.cost_usd"),
        (costing(0, 0, f64::INFINITY), "usage.cost_usd"),
    ]
}

/// Checks that the text has no terminal control codes.
#[track_caller]
fn assert_plain(text: &str) {
    assert!(
        !text.contains(unstuck::domain::sanitize::is_invisible),
        "{text:?}"
    );
}

#[tokio::test]
async fn a_bad_event_is_an_invalid_argument_that_names_its_field() {
    let server = Server::start().await;
    for (event, field) in bad_events() {
        let status = server.try_record(event).await.unwrap_err();
        assert_invalid(&status, field);
        assert_plain(status.message());
    }
    assert_eq!(server.get("s").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_bad_event_on_a_stream_is_answered_in_order() {
    let server = Server::start().await;
    let (events, fields): (Vec<_>, Vec<_>) = bad_events().into_iter().unzip();
    let mut stream = server.events().await;
    let results = stream.ask(batch(1, events)).await.results;
    let errors: Vec<_> = results.iter().map(|r| r.error.as_ref().unwrap()).collect();
    assert_eq!(errors.iter().map(|e| &*e.field).collect::<Vec<_>>(), fields);
    for (result, error) in results.iter().zip(errors) {
        assert_eq!(
            (error.code, result.event_index),
            (Code::InvalidArgument as i32, -1)
        );
        assert!(!error.reason.is_empty() && error.message.contains(&*error.field));
        for text in [&error.message, &result.session_id, &result.event_id] {
            assert_plain(text);
        }
    }
}

#[tokio::test]
async fn a_bad_delta_is_answered_and_names_its_field() {
    let server = Server::start().await;
    let mut stream = server.deltas().await;
    let long = "x".repeat(257);
    let delta = || piece("s", "t", "x");
    let bad = [
        (piece("", "t", "x"), "session_id"),
        (piece("a\u{1b}b", "t", "x"), "session_id"),
        (
            pb::Delta {
                agent_id: long.clone(),
                ..delta()
            },
            "agent_id",
        ),
        (piece("s", &long, "x"), "turn_id"),
        (
            pb::Delta {
                channel: 99,
                ..delta()
            },
            "channel",
        ),
    ];
    for (delta, field) in bad {
        let answer = stream.ask(pieces([delta])).await;
        assert_eq!(answer.error.unwrap().field, field);
        assert_plain(&answer.session_id);
    }
}

#[tokio::test]
async fn an_operator_action_needs_a_session_and_a_reason() {
    let server = Server::start().await;
    let acts = [
        ("", "why", "session_id"),
        ("a\u{1b}b", "why", "session_id"),
        ("s", "", "reason"),
        ("s", " \n", "reason"),
        ("s", &"x".repeat(1_025), "reason"),
    ];
    for (session, reason, field) in acts {
        let (session_id, reason) = (session.to_owned(), reason.to_owned());
        let terminate = pb::TerminateSessionRequest {
            session_id: session_id.clone(),
            reason: reason.clone(),
        };
        let mut sessions = server.sessions.clone();
        let status = within(sessions.terminate_session(terminate))
            .await
            .unwrap_err();
        assert_invalid(&status, field);
        assert_plain(status.message());
        let reset = pb::ResetSessionRequest { session_id, reason };
        let status = within(sessions.reset_session(reset)).await.unwrap_err();
        assert_invalid(&status, field);
    }
}

// Unusual but valid input

/// Sent three times, the event is accepted and found as an ordinary loop.
async fn check_harmless(server: &Server, session: &str, event: Event) {
    let results = server.play(session, event.times(3)).await;
    assert_eq!(verdicts(&results), [(2, Action::Warn)], "{session}");
}

#[tokio::test]
async fn unusual_calls_are_calls() {
    let server = Server::start().await;
    let args = |text: &str| {
        let text = text.to_owned();
        ask("x").change(|call| call.arguments = Some(pb::tool_call::Arguments::ArgsJson(text)))
    };
    let result = |text: String| ask("x").change(|call| call.result = Some(text));
    for (session, event) in [
        ("1970", ask("x").at(0)),
        ("9999", ask("x").at(253_402_300_799)),
        ("year-1", ask("x").at(-62_135_596_800)),
        ("cut-json", args("{\"path\": \"a")),
        ("no-json", args("ls -la \u{1b}[31m \0")),
        ("empty-json", args("")),
        ("deep-json", args(&"[".repeat(100_000))),
        ("empty-result", result(String::new())),
        (
            "control-tool",
            ask("x").change(|call| call.tool = "a\u{1b}[2J\nb".to_owned()),
        ),
        ("long-session-id", ask("x")),
        ("costly", ask("x").costing(i32::MAX, i32::MAX, f64::MAX)),
        ("odd-ids", ask("x").by("\u{202e}agent\n")),
    ] {
        check_harmless(&server, session, event).await;
    }
    check_harmless(&server, &"x".repeat(256), ask("x")).await;
}

#[tokio::test]
async fn huge_texts_are_texts() {
    let server = Server::start().await;
    const BYTES: usize = 1_048_576 - 1_024;
    let texts = [
        ("spaces", " ".repeat(BYTES)),
        ("marks", format!("a{}", "\u{301}".repeat(300_000))),
        ("one-token", "x".repeat(BYTES)),
        ("newlines", "\n".repeat(BYTES)),
        ("escapes", "\u{1b}[31m".repeat(BYTES / 5)),
        ("digits", "7".repeat(BYTES)),
        ("braces", "{".repeat(BYTES)),
        ("zero-width", "\u{200b}".repeat(BYTES / 3)),
    ];
    for (name, text) in texts {
        let as_turn = turn(&text).of(name);
        assert_eq!(server.record(as_turn).await.event_index, 0, "{name}");
        let as_result = ask("x")
            .of(name)
            .change(|call| call.result = Some(text.clone()));
        assert_eq!(server.record(as_result).await.event_index, 1, "{name}");
        let as_error = ask("x").of(name).change(|call| call.error = text.clone());
        assert_eq!(server.record(as_error).await.event_index, 2, "{name}");
        let mut stream = server.deltas().await;
        let answer = stream.ask(pieces([last_delta(name, "", &text)])).await;
        assert_eq!((answer.end_of_turn, answer.error), (true, None), "{name}");
    }
}

#[tokio::test]
async fn zero_width_characters_change_nothing() {
    let server = Server::start().await;
    let sprinkled = |text: &str, n: usize| {
        let unseen = ["\u{200b}", "\u{200d}", "\u{feff}", "\u{ad}", "\u{2060}", ""][n];
        text.replace('e', &format!("e{unseen}"))
    };
    let turns = WORDS.iter().enumerate();
    let turns = turns.map(|(n, word)| turn(&sprinkled(&like(word), n)));
    let actions = verdicts(&server.play("turns", turns.collect::<Vec<_>>()).await);
    assert_eq!(
        actions,
        [
            (3, Action::Warn),
            (4, Action::Escalate),
            (5, Action::Terminate)
        ]
    );
    let calls =
        (0..3).map(|n| ask("x").change(|call| call.result = Some(sprinkled("never decided", n))));
    let actions = verdicts(&server.play("calls", calls.collect::<Vec<_>>()).await);
    assert_eq!(actions, [(2, Action::Warn)]);
}

#[tokio::test]
async fn an_emoji_may_come_in_parts() {
    let server = Server::start().await;
    let mut stream = server.deltas().await;
    let parts = [
        "so \u{1f469}",
        "\u{200d}",
        "\u{1f4bb}",
        "\u{fe0f}",
        " it is done then",
    ];
    for n in 0..4 {
        let turn_id = format!("t{n}");
        stream
            .send(pieces(parts.map(|part| piece("s", &turn_id, part))))
            .await;
        let answer = stream.ask(pieces([last_delta("s", &turn_id, "")])).await;
        let expected = if n == 3 {
            Action::Break
        } else {
            Action::Unspecified
        };
        assert_eq!(answer.action(), expected);
    }
}

#[tokio::test]
async fn empty_turns_of_every_role_are_turns() {
    let server = Server::start().await;
    let roles = [Role::Agent, Role::User, Role::System];
    let results = server
        .play("s", roles.map(|role| turn_by(role, "")).to_vec())
        .await;
    assert_eq!(indexes(&results), [0, 1, 2]);
}

// Bytes that no client of ours would write

/// As [`pb::RecordEventRequest`], with the event as raw bytes.
#[derive(Clone, PartialEq, Message)]
struct RawRequest {
    #[prost(bytes = "vec", tag = "1")]
    event: Vec<u8>,
    /// A field of a later version.
    #[prost(string, tag = "1000")]
    later: String,
}

async fn record_raw(server: &Server, event: Vec<u8>) -> Result<pb::EventResult, Status> {
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    let mut grpc = Grpc::new(channel);
    within(grpc.ready()).await.unwrap();
    let path = PathAndQuery::from_static("/unstuck.v1.DetectionService/RecordEvent");
    let request = Request::new(RawRequest {
        event,
        later: "from the future".to_owned(),
    });
    let codec = ProstCodec::<RawRequest, pb::RecordEventResponse>::default();
    let answer = within(grpc.unary(request, path, codec)).await?;
    Ok(answer.into_inner().result.unwrap())
}

/// As [`pb::StreamEventsRequest`], with the events as they stand on the wire.
#[derive(Clone, PartialEq, Message)]
pub struct RawEvents {
    #[prost(int32, tag = "1")]
    pub sequence: i32,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub events: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct RawDeltas {
    #[prost(bytes = "vec", repeated, tag = "1")]
    deltas: Vec<Vec<u8>>,
}

/// The responses to these requests on one stream.
pub async fn stream_raw<Q, A>(server: &Server, rpc: &'static str, requests: Vec<Q>) -> Vec<A>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let channel = connect(server.grpc, |endpoint| endpoint).await;
    let mut grpc = Grpc::new(channel);
    within(grpc.ready()).await.unwrap();
    let path = PathAndQuery::from_static(rpc);
    let request = Request::new(tokio_stream::iter(requests));
    let codec = ProstCodec::<Q, A>::default();
    let mut answers = within(grpc.streaming(request, path, codec))
        .await
        .unwrap()
        .into_inner();
    let mut received = Vec::new();
    while let Some(answer) = within(answers.message()).await.unwrap() {
        received.push(answer);
    }
    received
}

/// Arguments that are nested more deeply than a decoder follows.
fn deeply_nested(session: &str) -> Event {
    use pbjson_types::{Struct, Value, value::Kind};
    let nest = |inner: Struct| Struct {
        fields: [("a".to_owned(), Value::from(Kind::StructValue(inner)))].into(),
    };
    let args = (0..40).fold(Struct::default(), |args, _| nest(args));
    ask("x")
        .of(session)
        .id("deep")
        .change(|call| call.arguments = Some(pb::tool_call::Arguments::Args(args)))
}

#[tokio::test]
async fn an_undecodable_event_is_answered_in_its_place_and_the_stream_goes_on() {
    let server = Server::start().await;
    let good = |session: &str| ask("x").of(session).encode_to_vec();
    let mut not_utf8 = good("b");
    // The event's id, field 2.
    not_utf8.extend([0x12, 2, 0xff, 0xfe]);
    let events = vec![
        good("a"),
        deeply_nested("a").encode_to_vec(),
        not_utf8,
        vec![0x0a, 9, b'x'],
        // A session id that would steer a terminal, then half a field.
        vec![0x0a, 2, 0x1b, b'c', 0x12],
        good("b"),
    ];
    let requests = vec![
        RawEvents {
            sequence: 1,
            events,
        },
        RawEvents {
            sequence: 2,
            events: vec![good("a")],
        },
    ];
    let path = "/unstuck.v1.DetectionService/StreamEvents";
    let answers: Vec<pb::StreamEventsResponse> = stream_raw(&server, path, requests).await;
    let [first, second] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!(indexes(&first.results), [0, -1, -1, -1, -1, 0]);
    assert_eq!(indexes(&second.results), [1]);
    let bad = &first.results[1..5];
    for (position, result) in (1..).zip(bad) {
        let error = result.error.as_ref().unwrap();
        let field = format!("events[{position}]");
        assert_eq!((error.code, &error.field), (3, &field));
        assert_eq!(error.reason, "UNDECODABLE");
        assert_plain(&error.message);
    }
    // Ids that were read before the undecodable field are sent back if they are valid.
    let ids: Vec<_> = bad.iter().map(|r| (&*r.session_id, &*r.event_id)).collect();
    assert_eq!(ids, [("a", "deep"), ("b", ""), ("", ""), ("", "")]);
    let counted = "unstuck_rejected_total{reason=\"undecodable\"}";
    assert_eq!(server.metric(counted).await, 4.0);
}

#[tokio::test]
async fn an_undecodable_delta_is_answered_and_the_stream_goes_on() {
    let server = Server::start().await;
    let mut not_utf8 = piece("s", "t", "").encode_to_vec();
    // The text, field 5.
    not_utf8.extend([0x2a, 2, 0xff, 0xfe]);
    let deltas = vec![
        piece("s", "t", "so ").encode_to_vec(),
        not_utf8,
        last_delta("s", "t", "it is").encode_to_vec(),
    ];
    let path = "/unstuck.v1.DetectionService/StreamDeltas";
    let answers: Vec<pb::StreamDeltasResponse> =
        stream_raw(&server, path, vec![RawDeltas { deltas }]).await;
    let [bad, end] = &answers[..] else {
        panic!("{answers:?}");
    };
    let error = bad.error.as_ref().unwrap();
    assert_eq!((error.code, &*error.field), (3, "deltas[1]"));
    assert_eq!((&*bad.session_id, &*bad.turn_id), ("s", "t"));
    assert_eq!((end.end_of_turn, &end.error), (true, &None));
}

#[tokio::test]
async fn fields_of_a_later_version_are_ignored() {
    let server = Server::start().await;
    let mut event = ask("x").of("s").encode_to_vec();
    // Field 500, a varint of 1; field 501, three bytes.
    event.extend([0xa0, 0x1f, 1, 0xaa, 0x1f, 3, 1, 2, 3]);
    assert_eq!(record_raw(&server, event).await.unwrap().event_index, 0);
}

#[tokio::test]
async fn bytes_that_are_no_message_do_no_harm() {
    let server = Server::start().await;
    // A session id that is not UTF-8; a field that is cut short.
    for event in [vec![0x0a, 2, 0xff, 0xfe], vec![0x0a, 9, b'x']] {
        assert_eq!(
            record_raw(&server, event).await.unwrap_err().code(),
            Code::Internal
        );
    }
    assert_eq!(server.record(ask("x").of("s")).await.event_index, 0);
}
