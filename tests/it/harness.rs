//! A real server on free ports, typed clients, and builders for events and results.

use std::{
    future::Future,
    io::Write,
    net::SocketAddr,
    process::Output,
    time::{Duration, SystemTime},
};

use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt;
use unstuck::{
    app::App,
    config::{Config, DEFAULTS, Layers, TABLE_KEYS},
    domain::SessionId,
    engine::{Engine, OperatorRequest},
    pb::{
        self, Action, Event, EventResult, Operation, Outcome, Role, StreamDeltasRequest,
        StreamDeltasResponse, StreamEventsRequest, StreamEventsResponse, Verdict,
        detection_service_client::DetectionServiceClient,
        session_service_client::SessionServiceClient,
    },
};

/// The limit of every wait. It only ends a hang, and is long enough for a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Awaits a future, and panics at the deadline.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    let output = tokio::time::timeout(DEADLINE, future).await;
    output.expect("the future did not finish within the deadline")
}

/// The built-in configuration with these overrides. Independent of the environment; the
/// system picks the ports.
pub fn config(toml: &str) -> Config {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(toml.as_bytes()).unwrap();
    let port = |key| (format!("UNSTUCK__SERVER__{key}"), "127.0.0.1:0".to_owned());
    // Without a `[store]` section the store is in memory.
    let memory =
        (!toml.contains("[store]")).then(|| ("UNSTUCK__STORE__DIR".to_owned(), String::new()));
    // A test that wants a key says where.
    let no_key = (!toml.contains("key_file"))
        .then(|| ("UNSTUCK__STORE__KEY_FILE".to_owned(), String::new()));
    let layers = Layers::load(
        DEFAULTS,
        TABLE_KEYS,
        Some(file.path()),
        [port("GRPC"), port("HTTP")]
            .into_iter()
            .chain(memory)
            .chain(no_key),
    );
    Config::new(&layers.unwrap()).unwrap()
}

/// The exit code and the output of a command.
pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl CommandOutput {
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self
    }

    /// The JSON object of each line.
    #[track_caller]
    pub fn objects(&self) -> Vec<Value> {
        let lines = self.out.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// An operator request for tests that use an engine directly.
pub const OPERATOR_REQUEST: OperatorRequest<'static> = OperatorRequest {
    reason: "the test wants it",
    operator: "the test",
};

/// Resets a session of an engine, as the service does.
pub fn reset(engine: &Engine, session: &SessionId, now: SystemTime) {
    if let Some(verdict) = engine.issue_reset(session, &OPERATOR_REQUEST, now) {
        engine.apply_reset(session, &verdict, now);
    }
}

/// Gets a page over plain HTTP.
pub async fn get(url: String) -> reqwest::Result<reqwest::Response> {
    unstuck::notify::install_crypto_provider();
    reqwest::get(url).await
}

// The server

/// A server that runs until the test ends.
#[derive(Clone)]
pub struct Server {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub detection: DetectionServiceClient<Channel>,
    pub sessions: SessionServiceClient<Channel>,
}

impl Server {
    pub async fn start() -> Self {
        Self::with("").await
    }

    pub async fn with(toml: &str) -> Self {
        let app = App::bind(config(toml)).await.unwrap();
        let grpc = app.grpc_address().unwrap();
        let http = app.http_address().unwrap();
        tokio::spawn(app.run(std::future::pending()));
        let channel = connect(grpc, |endpoint| endpoint).await;
        Self {
            grpc,
            http,
            detection: DetectionServiceClient::new(channel.clone()),
            sessions: SessionServiceClient::new(channel),
        }
    }

    /// A client whose streams buffer at most `window_bytes` of unread data.
    pub async fn detection_with_window(
        &self,
        window_bytes: u32,
    ) -> DetectionServiceClient<Channel> {
        DetectionServiceClient::new(self.connect_with_window(window_bytes).await)
    }

    pub async fn sessions_with_window(&self, window_bytes: u32) -> SessionServiceClient<Channel> {
        SessionServiceClient::new(self.connect_with_window(window_bytes).await)
    }

    async fn connect_with_window(&self, window_bytes: u32) -> Channel {
        connect(self.grpc, |endpoint| {
            endpoint.initial_stream_window_size(window_bytes)
        })
        .await
    }

    pub async fn try_record(&self, event: Event) -> Result<EventResult, Status> {
        let event = Some(event);
        let mut detection = self.detection.clone();
        let answer = within(detection.record_event(pb::RecordEventRequest { event })).await?;
        Ok(answer.into_inner().result.unwrap())
    }

    pub async fn record(&self, event: Event) -> EventResult {
        self.try_record(event).await.unwrap()
    }

    /// Sends events of one session on a stream and returns their results.
    pub async fn play(&self, session: &str, events: impl Script) -> Vec<EventResult> {
        let mut stream = self.events().await;
        let events = events.events().into_iter().map(|event| event.of(session));
        let answer = stream.ask(batch(1, events)).await;
        answer.results
    }

    pub async fn events(&self) -> EventStream {
        events_of(self.detection.clone()).await
    }

    pub async fn deltas(&self) -> DeltaStream {
        deltas_of(self.detection.clone()).await
    }

    pub async fn open(
        &self,
        session: &str,
        profile: &str,
        labels: &[(&str, &str)],
    ) -> Result<pb::Session, Status> {
        let request = pb::OpenSessionRequest {
            session_id: session.to_owned(),
            profile: profile.to_owned(),
            labels: self::labels(labels),
        };
        let answer = within(self.sessions.clone().open_session(request)).await?;
        Ok(answer.into_inner().session.unwrap())
    }

    pub async fn get(&self, session: &str) -> Result<pb::Session, Status> {
        let session_id = session.to_owned();
        let request = pb::GetSessionRequest { session_id };
        let answer = within(self.sessions.clone().get_session(request)).await?;
        Ok(answer.into_inner().session.unwrap())
    }

    pub async fn end(&self, session: &str) -> Result<pb::Session, Status> {
        let session_id = session.to_owned();
        let request = pb::EndSessionRequest { session_id };
        let answer = within(self.sessions.clone().end_session(request)).await?;
        Ok(answer.into_inner().session.unwrap())
    }

    pub async fn terminate(&self, session: &str) -> Verdict {
        let request = pb::TerminateSessionRequest {
            session_id: session.to_owned(),
            reason: "it is going in circles".to_owned(),
        };
        let answer = within(self.sessions.clone().terminate_session(request)).await;
        answer.unwrap().into_inner().verdict.unwrap()
    }

    pub async fn reset(&self, session: &str) -> Result<Verdict, Status> {
        let request = pb::ResetSessionRequest {
            session_id: session.to_owned(),
            reason: "it was repaired".to_owned(),
        };
        let answer = within(self.sessions.clone().reset_session(request)).await?;
        Ok(answer.into_inner().verdict.unwrap())
    }

    pub async fn list(
        &self,
        request: pb::ListSessionsRequest,
    ) -> Result<pb::ListSessionsResponse, Status> {
        let answer = within(self.sessions.clone().list_sessions(request)).await?;
        Ok(answer.into_inner())
    }

    pub async fn snooze(&self, session: &str, millis: u64) -> Result<Verdict, Status> {
        let request = pb::SnoozeSessionRequest {
            session_id: session.to_owned(),
            duration: Some(Duration::from_millis(millis).into()),
            reason: "it is being looked at".to_owned(),
        };
        let answer = within(self.sessions.clone().snooze_session(request)).await?;
        Ok(answer.into_inner().verdict.unwrap())
    }

    /// All pages of the requested part of the audit log.
    pub async fn audit(&self, request: pb::ListVerdictsRequest) -> Result<Vec<Verdict>, Status> {
        let mut verdicts = Vec::new();
        let mut request = request;
        loop {
            let answer = within(self.sessions.clone().list_verdicts(request.clone())).await?;
            let page = answer.into_inner();
            verdicts.extend(page.verdicts);
            if page.next_page_token.is_empty() {
                return Ok(verdicts);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// The body of `/healthz`.
    pub async fn health(&self) -> String {
        let page = within(get(format!("http://{}/healthz", self.http))).await;
        within(page.unwrap().text()).await.unwrap()
    }

    /// Asks for the health until it is as expected.
    pub async fn health_until(&self, is_expected: impl Fn(&str) -> bool) -> String {
        let asked = async {
            loop {
                let health = self.health().await;
                if is_expected(&health) {
                    return health;
                }
            }
        };
        within(asked).await
    }

    /// The watch is open when this returns.
    pub async fn watch(
        &self,
        request: pb::WatchVerdictsRequest,
    ) -> Result<Streaming<pb::WatchVerdictsResponse>, Status> {
        let answer = within(self.sessions.clone().watch_verdicts(request)).await?;
        Ok(answer.into_inner())
    }

    /// Waits until a series has a value.
    pub async fn wait_for_metric(&self, series: &str, value: f64) {
        within(async { while self.metric(series).await != value {} }).await;
    }

    /// The value of a series, such as `unstuck_streams{rpc="StreamEvents"}`.
    pub async fn metric(&self, series: &str) -> f64 {
        let page = within(get(format!("http://{}/metrics", self.http))).await;
        let page = within(page.unwrap().text()).await.unwrap();
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{series} is not in\n{page}"))
    }
}

pub async fn connect(address: SocketAddr, with: impl FnOnce(Endpoint) -> Endpoint) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    within(with(endpoint).connect()).await.unwrap()
}

// Streams

/// A bidirectional stream.
pub struct Duplex<Q, A> {
    requests: mpsc::Sender<Q>,
    responses: Streaming<A>,
}

pub type EventStream = Duplex<StreamEventsRequest, StreamEventsResponse>;
pub type DeltaStream = Duplex<StreamDeltasRequest, StreamDeltasResponse>;

/// Requests that may wait for the transport.
const REQUESTS_MAX: usize = 64;

pub async fn events_of(mut client: DetectionServiceClient<Channel>) -> EventStream {
    let (requests, outbound) = mpsc::channel(REQUESTS_MAX);
    let answer = within(client.stream_events(ReceiverStream::new(outbound))).await;
    let responses = answer.unwrap().into_inner();
    Duplex {
        requests,
        responses,
    }
}

pub async fn deltas_of(mut client: DetectionServiceClient<Channel>) -> DeltaStream {
    let (requests, outbound) = mpsc::channel(REQUESTS_MAX);
    let answer = within(client.stream_deltas(Request::new(ReceiverStream::new(outbound)))).await;
    let responses = answer.unwrap().into_inner();
    Duplex {
        requests,
        responses,
    }
}

impl<Q, A> Duplex<Q, A> {
    pub async fn send(&self, request: Q) {
        within(self.requests.send(request)).await.ok().unwrap();
    }

    /// The next response, or how the stream ended.
    pub async fn next(&mut self) -> Result<Option<A>, Status> {
        within(self.responses.message()).await
    }

    pub async fn receive(&mut self) -> A {
        let next = self.next().await.unwrap();
        next.expect("the stream goes on")
    }

    pub async fn ask(&mut self, request: Q) -> A {
        self.send(request).await;
        self.receive().await
    }

    /// Closes the sending side without reading.
    pub fn half_close(self) -> Streaming<A> {
        self.responses
    }

    /// Closes the sending side and returns the remaining responses.
    pub async fn finish(self) -> Vec<A> {
        let Self {
            requests,
            mut responses,
        } = self;
        drop(requests);
        let mut rest = Vec::new();
        while let Some(response) = within(responses.message()).await.unwrap() {
            rest.push(response);
        }
        rest
    }
}

pub fn batch(sequence: i32, events: impl IntoIterator<Item = Event>) -> StreamEventsRequest {
    let events = events.into_iter().collect();
    StreamEventsRequest { sequence, events }
}

pub fn pieces(deltas: impl IntoIterator<Item = pb::Delta>) -> StreamDeltasRequest {
    let deltas = deltas.into_iter().collect();
    StreamDeltasRequest { deltas }
}

// Events

/// A successful call without a session.
pub fn call(tool: &str, args_json: &str, result: &str) -> Event {
    body(pb::event::Body::ToolCall(pb::ToolCall {
        tool: tool.to_owned(),
        arguments: Some(pb::tool_call::Arguments::ArgsJson(args_json.to_owned())),
        outcome: Outcome::Ok.into(),
        result: Some(result.to_owned()),
        ..Default::default()
    }))
}

/// A call that is equal only to others of the same `name`; neither a read, a write nor a
/// run.
pub fn ask(name: &str) -> Event {
    let args = format!("{{\"name\": \"{name}\"}}");
    call("lookup_setting", &args, &format!("{name}: not decided")).change(|call| {
        call.operation = Operation::Other.into();
        call.target = name.to_owned();
    })
}

/// A turn of the assistant.
pub fn turn(text: &str) -> Event {
    turn_by(Role::Agent, text)
}

pub fn turn_by(role: Role, text: &str) -> Event {
    body(pb::event::Body::Turn(pb::Turn {
        turn_id: String::new(),
        role: role.into(),
        text: text.to_owned(),
    }))
}

/// The marker of a new run.
pub fn new_run() -> Event {
    body(pb::event::Body::Marker(pb::Marker {
        kind: pb::MarkerKind::NewRun.into(),
        context_tokens: 0,
    }))
}

/// Turns that differ in one word: 14 of 16 words are the same, which is more than 0.85.
pub fn like(word: &str) -> String {
    format!("first I will check whether the {word} setting of this team can really be found")
}

/// Turns that are similar to each other.
pub const WORDS: [&str; 6] = ["colour", "font", "shape", "border", "margin", "shadow"];

/// The last delta of a text.
pub fn last_delta(session: &str, turn_id: &str, text: &str) -> pb::Delta {
    pb::Delta {
        end_of_turn: true,
        ..piece(session, turn_id, text)
    }
}

/// A delta of a text that continues.
pub fn piece(session: &str, turn_id: &str, text: &str) -> pb::Delta {
    pb::Delta {
        session_id: session.to_owned(),
        turn_id: turn_id.to_owned(),
        text: text.to_owned(),
        ..Default::default()
    }
}

fn body(body: pb::event::Body) -> Event {
    Event {
        body: Some(body),
        ..Default::default()
    }
}

/// Setters for the rest of an event.
pub trait Build: Sized {
    fn of(self, session: &str) -> Event;
    fn id(self, event_id: &str) -> Event;
    fn by(self, agent: &str) -> Event;
    /// Seconds since 1970.
    fn at(self, secs: i64) -> Event;
    fn costing(self, input_tokens: i32, output_tokens: i32, cost_usd: f64) -> Event;
    /// Of the input tokens of `costing`.
    fn cached(self, tokens: i32) -> Event;
    fn named(self, turn_id: &str) -> Event;
    fn change(self, change: impl FnOnce(&mut pb::ToolCall)) -> Event;
    fn times(self, count: usize) -> Vec<Event>;
}

impl Build for Event {
    fn of(mut self, session: &str) -> Event {
        self.session_id = session.to_owned();
        self
    }

    fn id(mut self, event_id: &str) -> Event {
        self.event_id = event_id.to_owned();
        self
    }

    fn by(mut self, agent: &str) -> Event {
        self.agent_id = agent.to_owned();
        self
    }

    fn at(mut self, seconds: i64) -> Event {
        self.time = Some(pbjson_types::Timestamp { seconds, nanos: 0 });
        self
    }

    fn costing(mut self, input_tokens: i32, output_tokens: i32, cost_usd: f64) -> Event {
        self.usage = Some(pb::Usage {
            input_tokens,
            output_tokens,
            cost_usd,
            ..pb::Usage::default()
        });
        self
    }

    fn cached(mut self, tokens: i32) -> Event {
        self.usage.get_or_insert_default().cached_input_tokens = tokens;
        self
    }

    fn named(mut self, turn_id: &str) -> Event {
        if let Some(pb::event::Body::Turn(turn)) = &mut self.body {
            turn.turn_id = turn_id.to_owned();
        }
        self
    }

    fn change(mut self, change: impl FnOnce(&mut pb::ToolCall)) -> Event {
        if let Some(pb::event::Body::ToolCall(call)) = &mut self.body {
            change(call);
        }
        self
    }

    fn times(self, count: usize) -> Vec<Event> {
        vec![self; count]
    }
}

/// The input of [`Server::play`]: events and lists of events, in order.
pub trait Script {
    fn events(self) -> Vec<Event>;
}

impl Script for Event {
    fn events(self) -> Vec<Event> {
        vec![self]
    }
}

impl Script for Vec<Event> {
    fn events(self) -> Vec<Event> {
        self
    }
}

impl<const N: usize> Script for [Vec<Event>; N] {
    fn events(self) -> Vec<Event> {
        self.concat()
    }
}

// Results

/// The indexes of events with a verdict, and its action.
pub fn verdicts(results: &[EventResult]) -> Vec<(i32, Action)> {
    let verdict = |result: &EventResult| {
        let verdict = result.verdict.as_ref()?;
        Some((result.event_index, verdict.action()))
    };
    results.iter().filter_map(verdict).collect()
}

pub fn indexes(results: &[EventResult]) -> Vec<i32> {
    results.iter().map(|result| result.event_index).collect()
}

/// The verdict of a result; panics without one.
#[track_caller]
pub fn verdict(result: &EventResult) -> &Verdict {
    let verdict = result.verdict.as_ref();
    verdict.unwrap_or_else(|| panic!("no verdict in {result:?}"))
}

pub fn verdict_ids<'a>(results: impl IntoIterator<Item = &'a EventResult>) -> Vec<String> {
    let id = |result: &EventResult| verdict(result).verdict_id.clone();
    results.into_iter().map(id).collect()
}

/// Asserts a status that names one field.
#[track_caller]
pub fn assert_invalid(status: &Status, field: &str) {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let details = status.get_error_details();
    let violations = &details.bad_request().unwrap().field_violations;
    let fields: Vec<&str> = violations.iter().map(|v| v.field.as_str()).collect();
    assert_eq!(fields, [field]);
}

/// Asserts a status that asks to retry later.
#[track_caller]
pub fn assert_exhausted(status: &Status, reason: &str) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let details = status.get_error_details();
    assert_eq!(details.error_info().unwrap().reason, reason);
    let wait = details.retry_info().unwrap().retry_delay;
    assert!(wait > Some(Duration::ZERO), "{wait:?}");
}

pub fn labels(labels: &[(&str, &str)]) -> std::collections::HashMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    labels.iter().map(owned).collect()
}
