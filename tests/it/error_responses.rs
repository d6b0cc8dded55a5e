//! The responses to input that is invalid, or unusual but valid, over real sockets.
//! This test writes `docs/bad-input.md` with `UNSTUCK_REWRITE=1`; otherwise the page must
//! match the responses.

use std::{fmt::Write, fs, path::Path};

use prost::Message;
use tonic::{Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;
use unstuck::pb::{self, Action, Event, event::Body, tool_call::Arguments};

use crate::{
    bad_input::{RawEvents, stream_raw},
    harness::*,
    lifecycle::{directory, output, text, unstuck},
};

/// A table of the page.
struct Table {
    title: &'static str,
    rows: Vec<[String; 3]>,
}

impl Table {
    fn new(title: &'static str) -> Self {
        Self {
            title,
            rows: Vec::new(),
        }
    }

    fn row(&mut self, input: &str, (code, message): (String, String)) {
        // Text of a request must not control the terminal that prints the answer.
        assert!(
            !message.contains(unstuck::domain::sanitize::is_invisible),
            "{message:?}"
        );
        self.rows.push([input.to_owned(), code, message]);
    }
}

fn refusal_row(status: &Status) -> (String, String) {
    let message = match status.code() {
        // The reference differs each time.
        Code::Internal if status.message().contains("reference") => "…".to_owned(),
        _ => status.message().to_owned(),
    };
    (name(status.code() as i32), message)
}

/// The name of the code in the gRPC specification.
fn name(code: i32) -> String {
    let name = format!("{:?}", Code::from(code));
    let mut spelt = String::new();
    for (n, c) in name.chars().enumerate() {
        if c.is_uppercase() && n > 0 && name != "Ok" {
            spelt.push('_');
        }
        spelt.push(c.to_ascii_uppercase());
    }
    spelt
}

fn success_row(how: impl Into<String>) -> (String, String) {
    ("OK".to_owned(), how.into())
}

fn row_of<T>(answer: Result<T, Status>) -> (String, String) {
    match answer {
        Ok(_) => success_row(""),
        Err(status) => refusal_row(&status),
    }
}

fn result(answer: Result<pb::EventResult, Status>) -> (String, String) {
    match answer {
        Err(status) => refusal_row(&status),
        Ok(result) => match result.error {
            Some(error) => (name(error.code), error.message),
            None if result.duplicate => success_row("`duplicate`"),
            None if result.action() == Action::Terminate => success_row("its TERMINATE verdict"),
            None => success_row("counted"),
        },
    }
}

fn long(bytes: usize) -> String {
    "x".repeat(bytes)
}

fn event(change: impl FnOnce(&mut Event)) -> Event {
    let mut event = ask("x").of("s");
    change(&mut event);
    event
}

fn a_call(change: impl FnOnce(&mut pb::ToolCall)) -> Event {
    ask("x").of("s").change(change)
}

fn at(seconds: i64, nanos: i32) -> Event {
    event(|event| event.time = Some(pbjson_types::Timestamp { seconds, nanos }))
}

fn marker(kind: i32, context_tokens: i32) -> Event {
    let marker = pb::Marker {
        kind,
        context_tokens,
    };
    event(|event| event.body = Some(Body::Marker(marker)))
}

fn by(role: i32) -> Event {
    let turn = pb::Turn {
        role,
        ..pb::Turn::default()
    };
    event(|event| event.body = Some(Body::Turn(turn)))
}

fn used(input_tokens: i32, output_tokens: i32, cost_usd: f64) -> Event {
    ask("x")
        .of("s")
        .costing(input_tokens, output_tokens, cost_usd)
}

fn bad_events() -> Vec<(&'static str, Event)> {
    vec![
        ("an empty session id", ask("x")),
        ("a session id of 257 bytes", ask("x").of(&long(257))),
        ("a space in it", ask("x").of("a b")),
        ("a line break in it", ask("x").of("a\nb")),
        ("ESC in it", ask("x").of("a\u{1b}[31mb")),
        ("NUL in it", ask("x").of("a\0b")),
        (
            "U+202E (right-to-left override) in it",
            ask("x").of("a\u{202e}b"),
        ),
        ("U+200B (zero-width space) in it", ask("x").of("a\u{200b}b")),
        ("an event id of 129 bytes", ask("x").of("s").id(&long(129))),
        ("an agent id of 257 bytes", ask("x").of("s").by(&long(257))),
        (
            "a round id of 129 bytes",
            event(|event| event.round_id = long(129)),
        ),
        (
            "a state hash of 257 bytes",
            event(|event| event.state_hash = long(257)),
        ),
        ("no body", event(|event| event.body = None)),
        ("a call without a tool", a_call(|call| call.tool.clear())),
        (
            "a tool name of 129 bytes",
            a_call(|call| call.tool = long(129)),
        ),
        ("an unknown operation", a_call(|call| call.operation = 99)),
        ("an unknown outcome", a_call(|call| call.outcome = -1)),
        (
            "a result hash of 257 bytes",
            a_call(|call| call.result_hash = long(257)),
        ),
        (
            "a content hash of 257 bytes",
            a_call(|call| call.content_hash = long(257)),
        ),
        (
            "an argument hash of 257 bytes",
            a_call(|call| call.arguments = Some(Arguments::ArgsHash(long(257)))),
        ),
        ("a turn without a role", by(0)),
        ("an unknown role", by(99)),
        (
            "a turn id of 129 bytes",
            turn("x").named(&long(129)).of("s"),
        ),
        ("a marker without a kind", marker(0, 0)),
        ("an unknown kind of marker", marker(99, 0)),
        ("-1 tokens of context", marker(1, -1)),
        ("1,000,000,000 nanoseconds", at(0, 1_000_000_000)),
        ("-1 nanoseconds", at(0, -1)),
        ("the year 10000", at(253_402_300_800, 0)),
        ("the year 0", at(-62_135_596_801, 0)),
        ("the largest number of seconds", at(i64::MAX, 0)),
        ("-1 input tokens", used(-1, 0, 0.0)),
        ("-1 output tokens", used(0, -1, 0.0)),
        ("-1 cached input tokens", used(5, 0, 0.0).cached(-1)),
        ("6 of 5 input tokens cached", used(5, 0, 0.0).cached(6)),
        ("a negative cost", used(0, 0, -0.01)),
        ("a cost of NaN", used(0, 0, f64::NAN)),
        ("an infinite cost", used(0, 0, f64::INFINITY)),
    ]
}

async fn events(server: &Server) -> Table {
    let mut table = Table::new("Events, by `RecordEvent`");
    for (input, event) in bad_events() {
        table.row(input, result(server.try_record(event).await));
    }
    assert_eq!(server.get("s").await.unwrap_err().code(), Code::NotFound);
    let oversize = turn(&long(1_048_577)).of("s");
    table.row(
        "a message over 1 MiB",
        result(server.try_record(oversize).await),
    );
    let not_text = record_raw(server, vec![0x0a, 2, 0xff, 0xfe]).await;
    table.row("a session id that is not UTF-8", result(not_text));
    let cut = record_raw(server, vec![0x0a, 9, b'x']).await;
    table.row("a truncated field", result(cut));
    table
}

async fn odd_events(server: &Server) -> Table {
    const MIB: usize = 1_048_576 - 1_024;
    let args = |text: &str| {
        let text = text.to_owned();
        ask("x").change(|call| call.arguments = Some(Arguments::ArgsJson(text)))
    };
    let mut table = Table::new("Unusual events that are accepted, by `RecordEvent`");
    let odd = [
        ("the year 1970", ask("x").at(0)),
        ("the year 9999", ask("x").at(253_402_300_799)),
        ("a session id of 256 bytes", ask("x")),
        ("an empty turn", turn("")),
        ("1 MiB of spaces", turn(&" ".repeat(MIB))),
        ("one word of 1 MiB", turn(&long(MIB))),
        (
            "300,000 combining marks on one letter",
            turn(&format!("a{}", "\u{301}".repeat(300_000))),
        ),
        (
            "1 MiB of escape sequences",
            turn(&"\u{1b}[31m".repeat(MIB / 5)),
        ),
        (
            "zero-width characters between the letters",
            turn("l\u{200b}e\u{200b}t me"),
        ),
        ("arguments that are not JSON", args("ls -la \u{1b}[31m \0")),
        ("truncated JSON", args("{\"path\": \"a")),
        ("100,000 nested arrays", args(&"[".repeat(100_000))),
        (
            "control characters in a tool's name",
            ask("x").change(|call| call.tool = "a\u{1b}[2J\nb".to_owned()),
        ),
        (
            "an agent id with a bidirectional override",
            ask("x").by("\u{202e}agent\n"),
        ),
        (
            "the largest numbers of tokens and dollars",
            ask("x").costing(i32::MAX, i32::MAX, f64::MAX),
        ),
    ];
    for (n, (input, event)) in odd.into_iter().enumerate() {
        let session = if input.contains("256") {
            long(256)
        } else {
            format!("odd-{n}")
        };
        table.row(input, result(server.try_record(event.of(&session)).await));
    }
    let mut later = ask("x").of("odd").encode_to_vec();
    // Field 500, a varint of 1; field 501, three bytes.
    later.extend([0xa0, 0x1f, 1, 0xaa, 0x1f, 3, 1, 2, 3]);
    table.row("unknown fields", result(record_raw(server, later).await));
    let twice = || ask("x").of("odd").id("e");
    server.record(twice()).await;
    table.row(
        "an event sent twice",
        result(server.try_record(twice()).await),
    );
    server.terminate("over").await;
    let late = server.try_record(ask("x").of("over")).await;
    table.row("an event of a terminated session", result(late));
    table
}

async fn streams(server: &Server) -> Table {
    let mut table = Table::new("Streams");
    let ended = async |request| {
        let mut stream = server.events().await;
        stream.send(request).await;
        row_of(stream.next().await)
    };
    table.row(
        "`StreamEvents`: sequence 0",
        ended(batch(0, [ask("x").of("s")])).await,
    );
    table.row("`StreamEvents`: no events", ended(batch(1, [])).await);
    let many = ask("x").of("s").times(257);
    table.row("`StreamEvents`: 257 events", ended(batch(1, many)).await);
    let mut stream = server.events().await;
    let mut answer = stream
        .ask(batch(1, [ask("x"), ask("x").of("stream")]))
        .await;
    let (second, first) = (answer.results.pop(), answer.results.pop());
    table.row(
        "`StreamEvents`: a bad event in a batch, in its result",
        result(Ok(first.unwrap())),
    );
    table.row(
        "`StreamEvents`: the valid event beside it",
        result(Ok(second.unwrap())),
    );
    let raw = RawEvents {
        sequence: 1,
        events: vec![vec![0x0a, 2, 0xff, 0xfe]],
    };
    let path = "/unstuck.v1.DetectionService/StreamEvents";
    let answers: Vec<pb::StreamEventsResponse> = stream_raw(server, path, vec![raw]).await;
    table.row(
        "`StreamEvents`: a session id that is not UTF-8, in its result",
        result(Ok(answers[0].results[0].clone())),
    );

    let mut deltas = server.deltas().await;
    deltas.send(pieces([])).await;
    table.row("`StreamDeltas`: no deltas", row_of(deltas.next().await));
    let long = long(257);
    let delta = || piece("s", "t", "x");
    let bad = [
        ("no session", piece("", "t", "x")),
        ("ESC in the session id", piece("a\u{1b}b", "t", "x")),
        (
            "an agent id of 257 bytes",
            pb::Delta {
                agent_id: long.clone(),
                ..delta()
            },
        ),
        ("a turn id of 257 bytes", piece("s", &long, "x")),
        (
            "an unknown channel",
            pb::Delta {
                channel: 99,
                ..delta()
            },
        ),
    ];
    for (input, delta) in bad {
        let mut stream = server.deltas().await;
        let error = stream.ask(pieces([delta])).await.error.unwrap();
        let input = format!("`StreamDeltas`: {input}, in its response");
        table.row(&input, (name(error.code), error.message));
    }
    let mut stream = server.deltas().await;
    let parts = ["so \u{1f469}", "\u{200d}", "\u{1f4bb}"];
    stream
        .send(pieces(parts.map(|part| piece("emoji", "t", part))))
        .await;
    let answer = stream.ask(pieces([last_delta("emoji", "t", "")])).await;
    assert_eq!(answer.error, None);
    table.row(
        "`StreamDeltas`: a text cut inside an emoji",
        success_row("counted"),
    );
    table
}

async fn sessions(server: &Server) -> Table {
    let mut table = Table::new("Sessions");
    let open = async |labels: &[(&str, &str)]| row_of(server.open("s", "", labels).await);
    let names: Vec<String> = (0..17).map(|n| format!("k{n}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "v")).collect();
    table.row("`OpenSession`: 17 labels", open(&many).await);
    table.row(
        "`OpenSession`: a label's key of 65 bytes",
        open(&[(&long(65), "v")]).await,
    );
    table.row(
        "`OpenSession`: a label without a key",
        open(&[("", "v")]).await,
    );
    table.row(
        "`OpenSession`: a label's value of 257 bytes",
        open(&[("k", &long(257))]).await,
    );
    table.row(
        "`OpenSession`: an unknown profile",
        row_of(server.open("s", "no", &[]).await),
    );
    table.row(
        "`OpenSession`: a terminated session",
        row_of(server.open("over", "", &[]).await),
    );
    table.row(
        "`GetSession`: an unknown session",
        row_of(server.get("no").await),
    );
    table.row(
        "`EndSession`: an unknown session",
        row_of(server.end("no").await),
    );
    table.row(
        "`ResetSession`: an unknown session",
        row_of(server.reset("no").await),
    );
    table.row(
        "`SnoozeSession`: an unknown session",
        row_of(server.snooze("no", 1_000).await),
    );
    table.row(
        "`SnoozeSession`: a terminated one",
        row_of(server.snooze("over", 1_000).await),
    );
    table.row(
        "`SnoozeSession`: for no time",
        row_of(server.snooze("odd", 0).await),
    );
    let week = 7 * 24 * 60 * 60 * 1_000;
    table.row(
        "`SnoozeSession`: for more than 7 days",
        row_of(server.snooze("odd", week + 1).await),
    );
    let rate = async |verdict_id: &str, rating: pb::Rating| {
        let request = pb::RateVerdictRequest {
            verdict_id: verdict_id.to_owned(),
            rating: rating.into(),
            reason: String::new(),
        };
        row_of(within(server.sessions.clone().rate_verdict(request)).await)
    };
    let unknown = "00000000-0000-7000-8000-000000000001";
    table.row("`RateVerdict`: no id", rate("", pb::Rating::Right).await);
    table.row(
        "`RateVerdict`: not an id",
        rate("7", pb::Rating::Right).await,
    );
    table.row(
        "`RateVerdict`: no rating",
        rate(unknown, pb::Rating::Unspecified).await,
    );
    table.row(
        "`RateVerdict`: an unknown verdict",
        rate(unknown, pb::Rating::Right).await,
    );
    let of_operator = server.terminate("over").await.verdict_id;
    table.row(
        "`RateVerdict`: what an operator did",
        rate(&of_operator, pb::Rating::Right).await,
    );
    for (input, reason) in [
        ("no reason", ""),
        ("a blank reason", " \n"),
        ("a reason of 1,025 bytes", &long(1_025)),
    ] {
        let mut sessions = server.sessions.clone();
        let (session_id, reason) = ("odd".to_owned(), reason.to_owned());
        let terminate = pb::TerminateSessionRequest {
            session_id: session_id.clone(),
            reason: reason.clone(),
        };
        let answer = within(sessions.terminate_session(terminate)).await;
        table.row(&format!("`TerminateSession`: {input}"), row_of(answer));
        let reset = pb::ResetSessionRequest {
            session_id: session_id.clone(),
            reason: reason.clone(),
        };
        table.row(
            &format!("`ResetSession`: {input}"),
            row_of(within(sessions.reset_session(reset)).await),
        );
        let snooze = pb::SnoozeSessionRequest {
            session_id,
            reason,
            duration: None,
        };
        table.row(
            &format!("`SnoozeSession`: {input}"),
            row_of(within(sessions.snooze_session(snooze)).await),
        );
    }
    table
}

async fn lists(server: &Server) -> Table {
    let mut table = Table::new("Lists and watches");
    let list = async |change: fn(&mut pb::ListSessionsRequest)| {
        let mut request = pb::ListSessionsRequest::default();
        change(&mut request);
        row_of(server.list(request).await)
    };
    table.row(
        "`ListSessions`: a page of -1",
        list(|request| request.page_size = -1).await,
    );
    table.row(
        "`ListSessions`: a made-up page token",
        list(|request| request.page_token = "x!".to_owned()).await,
    );
    table.row(
        "`ListSessions`: an unknown status",
        list(|request| request.status = 99).await,
    );
    table.row(
        "`ListSessions`: a page of 1,000,000",
        list(|request| request.page_size = 1_000_000).await,
    );
    let audit = async |change: fn(&mut pb::ListVerdictsRequest)| {
        let mut request = pb::ListVerdictsRequest::default();
        change(&mut request);
        row_of(server.audit(request).await)
    };
    table.row(
        "`ListVerdicts`: a page of -1",
        audit(|request| request.page_size = -1).await,
    );
    table.row(
        "`ListVerdicts`: a made-up page token",
        audit(|request| request.page_token = "x!".to_owned()).await,
    );
    table.row(
        "`ListVerdicts`: an unknown action",
        audit(|request| request.min_action = 99).await,
    );
    table.row(
        "`ListVerdicts`: an invalid time",
        audit(|request| {
            let (seconds, nanos) = (0, -1);
            request.start_time = Some(pbjson_types::Timestamp { seconds, nanos });
        })
        .await,
    );
    let watch = async |after: &str| {
        let request = pb::WatchVerdictsRequest {
            after_verdict_id: after.to_owned(),
            ..pb::WatchVerdictsRequest::default()
        };
        row_of(server.watch(request).await)
    };
    table.row("`WatchVerdicts`: after an invalid id", watch("7").await);
    let future = "ffffffff-ffff-7fff-bfff-ffffffffffff";
    table.row(
        "`WatchVerdicts`: after an unknown verdict",
        watch(future).await,
    );
    table
}

async fn limits() -> Table {
    let server =
        Server::with("[limits]\nsessions_max = 1\nagents_max = 1\nopen_streams_max = 1").await;
    let mut table =
        Table::new("Limits, with `sessions_max`, `agents_max` and `open_streams_max` of 1");
    server.record(ask("x").of("s")).await;
    table.row(
        "a second session",
        result(server.try_record(ask("x").of("t")).await),
    );
    table.row(
        "a second agent",
        result(server.try_record(ask("x").of("s").by("a")).await),
    );
    let _first = server.events().await;
    let second = server.watch(pb::WatchVerdictsRequest::default()).await;
    table.row("a second stream", row_of(second));
    table
}

async fn transport(server: &Server) -> Table {
    let mut table = Table::new("Unknown calls and pages");
    let call = call_raw(server, "/unstuck.v1.DetectionService/Guess", Vec::new()).await;
    table.row("an unknown method", row_of(call));
    let call = call_raw(
        server,
        "/unstuck.v2.DetectionService/RecordEvent",
        Vec::new(),
    )
    .await;
    table.row("an unknown service", row_of(call));
    unstuck::notify::install_crypto_provider();
    let http = reqwest::Client::new();
    let page = format!("http://{}/nowhere", server.http);
    let answer = within(http.get(page).send()).await.unwrap();
    table.row(
        "HTTP: an unknown page",
        (answer.status().to_string(), String::new()),
    );
    let page = format!("http://{}/metrics", server.http);
    let answer = within(http.post(page).send()).await.unwrap();
    table.row(
        "HTTP: POST to `/metrics`",
        (answer.status().to_string(), String::new()),
    );
    table
}

/// As [`pb::RecordEventRequest`], with the event as raw bytes.
#[derive(Clone, PartialEq, Message)]
struct RawRequest {
    #[prost(bytes = "vec", tag = "1")]
    event: Vec<u8>,
}

async fn call_raw(
    server: &Server,
    path: &'static str,
    event: Vec<u8>,
) -> Result<pb::RecordEventResponse, Status> {
    let mut grpc = Grpc::new(connect(server.grpc, |endpoint| endpoint).await);
    within(grpc.ready()).await.unwrap();
    let codec = ProstCodec::<RawRequest, pb::RecordEventResponse>::default();
    let path = PathAndQuery::from_static(path);
    let answer = within(grpc.unary(Request::new(RawRequest { event }), path, codec)).await?;
    Ok(answer.into_inner())
}

async fn record_raw(server: &Server, event: Vec<u8>) -> Result<pb::EventResult, Status> {
    let answer = call_raw(server, "/unstuck.v1.DetectionService/RecordEvent", event).await?;
    Ok(answer.result.unwrap())
}

/// The message of the program about a configuration.
fn configuration() -> Table {
    let mut table =
        Table::new("Configuration, by `unstuck config check`; the code is the exit code");
    let huge = format!("# {}\n", "x".repeat(100 * 1024 * 1024));
    let files: [(&str, &[u8]); 16] = [
        ("an unknown key", b"[limits]\nsesions_max = 1\n"),
        ("an unknown section", b"[limit]\nsessions_max = 1\n"),
        (
            "a string for a number",
            b"[limits]\nsessions_max = \"many\"\n",
        ),
        ("a number for a string", b"[store]\ndir = 7\n"),
        ("a limit of 0", b"[limits]\nsessions_max = 0\n"),
        (
            "a limit that is too large",
            b"[limits]\nmessage_bytes_max = 1_000_000_000\n",
        ),
        (
            "a threshold of 0",
            b"[detect.near_repeat]\nsimilarity = 0.0\n",
        ),
        (
            "a threshold above 1",
            b"[detect.near_repeat]\nsimilarity = 1.5\n",
        ),
        (
            "a threshold of NaN",
            b"[detect.near_repeat]\nsimilarity = nan\n",
        ),
        (
            "a count above the window",
            b"[detect.exact_repeat]\ncount = 30\n",
        ),
        ("a store that is too small", b"[store]\nbytes_max = 1\n"),
        ("not TOML", b"[limits\n"),
        ("not UTF-8", b"[limits]\n# \xff\xfe\n"),
        ("100 MB", huge.as_bytes()),
        (
            "a byte order mark",
            b"\xef\xbb\xbf[limits]\nsessions_max = 1\n",
        ),
        ("CRLF line ends", b"[limits]\r\nsessions_max = 1\r\n"),
    ];
    let folder = directory(&[]);
    let check = |file: &str| {
        let output = output(unstuck(
            folder.path(),
            &["config", "check", "--config", file],
            &[],
        ));
        let code = output.status.code().unwrap().to_string();
        let output_text = [text(&output.stdout), text(&output.stderr)].concat();
        (code, output_text.trim().to_owned())
    };
    for (input, bytes) in files {
        fs::write(folder.path().join("unstuck.toml"), bytes).unwrap();
        table.row(input, check("unstuck.toml"));
    }
    table.row("a missing file", check("nowhere.toml"));
    fs::create_dir(folder.path().join("folder")).unwrap();
    table.row("a directory", check("folder"));
    table
}

/// The field at the start of a message, and the rest of the message.
fn split_field<'a>(code: &str, message: &'a str) -> (&'a str, &'a str) {
    let is_field = |text: &str| text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'_' | b'.'));
    match message.split_once(": ") {
        Some((field, rest)) if code == "INVALID_ARGUMENT" && is_field(field) => (field, rest),
        _ => ("", message),
    }
}

/// A code and a message, and the inputs that get it with the invalid field.
type GroupedAnswer<'a> = (&'a str, &'a str, Vec<(&'a str, &'a str)>);

/// Per table: the answers by code, inputs with the same answer on one line.
fn page(tables: &[Table]) -> String {
    let mut page = "# Answers to bad input\n\n\
        `tests/it/error_responses.rs` writes this page from the answers of a real server and fails when one changes; \
        `UNSTUCK_REWRITE=1 cargo test --test it error_responses` updates it. \
        A line is a message, then the inputs that get it, each with the field that the message names first.\n\n\
        The status details name the field (`BadRequest`), a reason for programs (`ErrorInfo`) \
        and, for a limit, when to retry (`RetryInfo`). Input is never repeated unescaped.\n"
        .to_owned();
    for table in tables {
        writeln!(page, "\n## {}", table.title).unwrap();
        let mut codes: Vec<&str> = Vec::new();
        let mut answers: Vec<GroupedAnswer> = Vec::new();
        for [input, code, message] in &table.rows {
            if !codes.contains(&code.as_str()) {
                codes.push(code);
            }
            let (field, rest) = split_field(code, message);
            match answers
                .iter_mut()
                .find(|answer| answer.0 == code && answer.1 == rest)
            {
                Some((_, _, inputs)) => inputs.push((input, field)),
                None => answers.push((code, rest, vec![(input, field)])),
            }
        }
        for code in codes {
            write!(page, "\n{code}:\n\n").unwrap();
            for (_, message, inputs) in answers.iter().filter(|answer| answer.0 == code) {
                let inputs: Vec<String> = inputs
                    .chunk_by(|a, b| a.1 == b.1)
                    .map(|chunk| {
                        let inputs: Vec<&str> = chunk.iter().map(|(input, _)| *input).collect();
                        let field = match chunk[0].1 {
                            "" => String::new(),
                            field => format!(" (`{field}`)"),
                        };
                        format!("{}{field}", inputs.join("; "))
                    })
                    .collect();
                let message = message.replace('\n', " ");
                let arrow = if message.is_empty() { "" } else { " ← " };
                writeln!(page, "- {message}{arrow}{}", inputs.join("; ")).unwrap();
            }
        }
    }
    page
}

#[tokio::test]
async fn every_answer_to_bad_input_is_on_the_page() {
    let server = Server::start().await;
    let tables = [
        events(&server).await,
        odd_events(&server).await,
        streams(&server).await,
        sessions(&server).await,
        lists(&server).await,
        limits().await,
        transport(&server).await,
        tokio::task::spawn_blocking(configuration).await.unwrap(),
    ];
    let inputs: usize = tables.iter().map(|table| table.rows.len()).sum();
    assert!(inputs >= 100, "{inputs}");
    let page = page(&tables);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/bad-input.md");
    if std::env::var_os("UNSTUCK_REWRITE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    for (line, (is, was)) in (1..).zip(page.lines().zip(written.lines())) {
        assert_eq!(is, was, "docs/bad-input.md:{line}");
    }
    assert_eq!(page.len(), written.len(), "docs/bad-input.md");
}
