//! `POST /v1/hooks/{agent}`: the hooks of agent programs, without a broker in between.
//!
//! The body is the agent's own payload. `ingest` turns it into events, which are recorded
//! as if they came over gRPC, and turns the verdict into the reply that the agent
//! understands. Invalid input is answered with `{}`, with which every agent continues.
//! `body` parses the payload, `request` takes from it what is recorded, `handler` records it
//! and decides the reply, `session_table` remembers which verdicts were delivered. That is
//! event work, so it is done with a slot of `server::scheduler`. Paths in a payload are never opened here: they are those of another machine.
//!
//! Uses: domain, auth, ingest, telemetry, server, api, console.

mod body;
mod handler;
mod request;
mod session_table;
#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, RawQuery, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::post,
};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    api::Api,
    auth::{Caller, PeerAddress},
    console::{
        AllowedHosts,
        browser_guard::{require_allowed_host, require_same_origin},
        http_error::HttpError,
    },
    ingest::{self, AUTO, AgentSpec, HookPayload, HookQuery, Reply},
    server::{
        ServerContext,
        frame_reader::{MessageLimits, UnreadBytes},
        quota::{Permit, TenantQuota},
        rpc,
        scheduler::yield_to_others,
    },
    telemetry::{HookNames, HookReplyKind, Rejection, UNKNOWN_HOOK_EVENT},
};
use handler::{HookAnswer, HookHandler};
use request::HookRequest;
use session_table::HookSessions;

/// `[hooks]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub enabled: bool,
    pub escalate: EscalateMode,
    /// Not empty.
    pub prefix: String,
    pub hold_throttle: bool,
    pub shadow: bool,
    pub kill: bool,
    pub url: String,
    pub token_env: String,
    pub autostart: bool,
    pub idle_exit_mins: u64,
    pub budget_millis: u64,
}

/// What ESCALATE does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EscalateMode {
    /// The person and the agent get the verdict's text.
    Tell,
    /// The run ends, because there is no person at the terminal.
    Stop,
}

/// The parts of the service that the route uses.
#[derive(Clone)]
pub struct HookDependencies {
    pub api: Api,
    pub server: Arc<ServerContext>,
}

/// The state of the route.
struct Hooks {
    deps: HookDependencies,
    settings: Settings,
    sessions: HookSessions,
    /// Permits for [`REQUESTS_MAX`] requests, until they are answered.
    requests: TenantQuota,
    /// The bytes of payloads until they are recorded: `limits.unread_bytes_max`, apart from
    /// those of gRPC, so that agents do not hold up brokers.
    unread: Arc<MessageLimits>,
}

impl Hooks {
    fn new(deps: HookDependencies, settings: Settings, started_at: SystemTime) -> Self {
        let ServerContext {
            auth,
            limits,
            metrics,
            ..
        } = &*deps.server;
        let unread = MessageLimits::new(
            BODY_BYTES_MAX,
            limits.unread_bytes_max,
            |blocks| TenantQuota::new(blocks, auth.clone()),
            metrics.clone(),
        );
        Self {
            requests: TenantQuota::new(REQUESTS_MAX, auth.clone()),
            unread: Arc::new(unread),
            sessions: HookSessions::new(started_at),
            settings,
            deps,
        }
    }
}

/// The largest payload: the result of a tool, which may be a picture, and the agent's other
/// fields. What has arrived counts against `Hooks::unread` until it is recorded.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Concurrent requests.
const REQUESTS_MAX: usize = 64;
/// The longest delay of a reply because of THROTTLE: less than the 2 seconds after which
/// agents abandon a hook.
const HOLD_TIME_MAX: Duration = Duration::from_millis(1_500);
/// The event of `unstuck doctor`. It is answered, and neither recorded nor counted.
pub const PROBE_EVENT: &str = "unstuck-probe";
/// The response header that asks `unstuck hook` to interrupt the agent, because no reply ends
/// its run.
const INTERRUPT: HeaderName = HeaderName::from_static("unstuck-interrupt");

/// The agents and events that metrics count.
pub fn metric_names() -> HookNames {
    let agents = ingest::AGENTS.iter().map(|agent| {
        let events = agent.events.iter().map(|event| event.name);
        (agent.name, events.chain([UNKNOWN_HOOK_EVENT]).collect())
    });
    agents.chain([(AUTO, vec![UNKNOWN_HOOK_EVENT])]).collect()
}

/// The header of requests from `unstuck hook`, whose timeout is shorter than the delay of a
/// reply.
const COMMAND: HeaderName = HeaderName::from_static("unstuck-command");

pub fn routes(
    deps: HookDependencies,
    settings: Settings,
    hosts: AllowedHosts,
    started_at: SystemTime,
) -> Router {
    if !settings.enabled {
        return Router::new();
    }
    let hooks = Hooks::new(deps, settings, started_at);
    Router::new()
        .route("/v1/hooks/{agent}", post(answer_hook))
        .route_layer(middleware::from_fn(require_same_origin))
        .route_layer(middleware::from_fn_with_state(
            Arc::new(hosts),
            require_allowed_host,
        ))
        .with_state(Arc::new(hooks))
}

async fn answer_hook(
    State(hooks): State<Arc<Hooks>>,
    Extension(peer): Extension<Option<PeerAddress>>,
    Path(agent): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, HttpError> {
    let started_at = Instant::now();
    // Who calls, for which agent, and in which form: before the body is read.
    let caller = hooks.authorize(&headers)?.with_peer(peer);
    let agent = hooks.find_agent(&agent)?;
    require_json(&headers)?;
    let permit = hooks.take_permit(&caller)?;
    let body = hooks.read_body(body, &caller).await?;
    // Record it and decide. A task of its own: the events count also if the agent does not
    // wait for the reply.
    let hook = ReceivedHook {
        hooks: hooks.clone(),
        caller: caller.clone(),
        agent,
        query: parse_query(&query.unwrap_or_default()),
        body,
        _permit: permit,
    };
    let scheduler = &hooks.deps.server.scheduler;
    let answering = scheduler.schedule_contended(caller.tenant, hook.answer());
    let answered = tokio::spawn(answering).await;
    let answer = answered.map_err(|error| hooks.deps.server.blocking_failed(&error))??;
    if let Some(verdict) = &answer.termination {
        hooks.deps.api.settle(verdict).await;
    }
    let delay = reply_delay(&headers, answer.hold_time);
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    // A reply that is delayed on purpose is not slow.
    let duration = started_at.elapsed().saturating_sub(delay);
    hooks.deps.server.metrics.record_hook_duration(duration);
    Ok(respond(&answer.reply))
}

/// How long a reply is delayed because of THROTTLE. `unstuck hook` has no time for it.
fn reply_delay(headers: &HeaderMap, hold_time: Option<Duration>) -> Duration {
    if headers.contains_key(COMMAND) {
        return Duration::ZERO;
    }
    hold_time.unwrap_or_default().min(HOLD_TIME_MAX)
}

/// The agent of a path. `None`: the payload says which.
type NamedAgent = Option<&'static AgentSpec>;

impl Hooks {
    fn authorize(&self, headers: &HeaderMap) -> Result<Caller, HttpError> {
        // The same roles as for an event over gRPC.
        let access = rpc::find("/unstuck.v1.DetectionService/RecordEvent").access;
        let authorization = headers.get(header::AUTHORIZATION);
        let token = authorization.map(HeaderValue::as_bytes);
        let server = &self.deps.server;
        server.auth.authorize(token, access).map_err(|denied| {
            server.metrics.count_rejection(denied.rejection());
            tonic::Status::from(denied).into()
        })
    }

    fn find_agent(&self, name: &str) -> Result<NamedAgent, HttpError> {
        if name == AUTO {
            return Ok(None);
        }
        let found = ingest::find_agent(name).map(Some);
        found.ok_or_else(|| {
            let names: Vec<&str> = ingest::AGENTS.iter().map(|agent| agent.name).collect();
            let message = format!("unknown agent; one of {}, {AUTO}", names.join(", "));
            HttpError::new(StatusCode::NOT_FOUND, "AGENT_UNKNOWN", message)
        })
    }

    fn take_permit(&self, caller: &Caller) -> Result<Permit, HttpError> {
        self.requests.try_acquire(&caller.tenant).map_err(|share| {
            let metrics = &self.deps.server.metrics;
            metrics.count_rejection(Rejection::CallsMax);
            let message = format!("{share} hooks of this tenant are being answered");
            HttpError::new(StatusCode::TOO_MANY_REQUESTS, "CALLS_MAX", message)
        })
    }

    /// A body above the limit is refused with 413, one for which there is no memory with 429.
    async fn read_body(&self, mut body: Body, caller: &Caller) -> Result<HookBody, HttpError> {
        let mut received = HookBody {
            bytes: Vec::new(),
            unread: UnreadBytes::new(self.unread.clone(), caller.tenant.clone()),
        };
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                HttpError::new(StatusCode::BAD_REQUEST, "BODY", error.to_string())
            })?;
            // A request has no trailers that matter.
            let Ok(chunk) = frame.into_data() else {
                continue;
            };
            let total_bytes = received.bytes.len() + chunk.len();
            if total_bytes > BODY_BYTES_MAX {
                let message = format!("a payload has at most {BODY_BYTES_MAX} bytes");
                return Err(HttpError::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "BODY",
                    message,
                ));
            }
            received.unread.reserve(total_bytes)?;
            received.bytes.extend_from_slice(&chunk);
        }
        Ok(received)
    }
}

/// A body that has arrived whole.
struct HookBody {
    bytes: Vec<u8>,
    unread: UnreadBytes,
}

/// A hook whose body has been read.
struct ReceivedHook {
    hooks: Arc<Hooks>,
    caller: Caller,
    agent: NamedAgent,
    query: HookQuery,
    body: HookBody,
    _permit: Permit,
}

impl ReceivedHook {
    /// Works in slices: see `server::scheduler`.
    async fn answer(self) -> Result<HookAnswer, HttpError> {
        let Self {
            hooks,
            caller,
            agent,
            query,
            body,
            _permit,
        } = self;
        let HookBody {
            bytes,
            unread: _unread,
        } = body;
        // Read the payload and release it.
        let Some(request) = hooks.read_request(&caller, agent, query, bytes) else {
            return Ok(HookAnswer::go_on());
        };
        // It may have been long.
        yield_to_others().await;
        // Record its events and decide, with the session here and saved afterwards.
        let api = &hooks.deps.api;
        let session = request.session.clone();
        api.take_session(&session).await;
        let names = (request.agent.name, request.event.name);
        let answer = HookHandler {
            api: hooks.deps.api.for_caller(&caller),
            settings: &hooks.settings,
            sessions: &hooks.sessions,
            request,
        }
        .answer()
        .await;
        api.save_session(&session).await;
        let kind = answer
            .as_ref()
            .map_or(HookReplyKind::None, |answer| answer.kind);
        let metrics = &hooks.deps.server.metrics;
        metrics.count_hook(names.0, Some(names.1), kind);
        answer.or_else(go_on_unless_exhausted)
    }
}

impl Hooks {
    /// What is recorded of a body. `None`: nothing.
    fn read_request(
        &self,
        caller: &Caller,
        agent: NamedAgent,
        query: HookQuery,
        body: Vec<u8>,
    ) -> Option<HookRequest> {
        let metrics = &self.deps.server.metrics;
        if query.event == PROBE_EVENT {
            return None;
        }
        let parsed = body::parse(&body);
        drop(body);
        let body = parsed.unwrap_or_else(|| {
            metrics.count_unreadable_hook();
            Value::Null
        });
        let Some(agent) = agent.or_else(|| ingest::recognise_agent(&body)) else {
            metrics.count_hook(AUTO, None, HookReplyKind::None);
            return None;
        };
        let prefix = &self.settings.prefix;
        let payload = HookPayload::new(agent, &caller.tenant, &query, prefix, &body)
            .inspect_err(|why| {
                tracing::debug!(agent = agent.name, %why, "a hook's payload is not used");
                metrics.count_hook(agent.name, None, HookReplyKind::None);
            })
            .ok()?;
        let request = HookRequest::new(&payload, &query);
        if request.has_refused_labels {
            metrics.count_rejection(Rejection::InvalidArgument);
        }
        Some(request)
    }
}

/// The answer to a failed call: an error for a caller above its limits. After any other
/// failure the agent continues.
fn go_on_unless_exhausted(status: tonic::Status) -> Result<HookAnswer, HttpError> {
    let error = HttpError::from(status);
    if error.status() == StatusCode::TOO_MANY_REQUESTS {
        return Err(error);
    }
    tracing::debug!(
        reason = error.error().reason,
        "a hook is answered without its events"
    );
    Ok(HookAnswer::go_on())
}

/// The JSON content type, which a form of another page cannot send without a CORS
/// preflight. Parameters such as a character set are allowed.
fn require_json(headers: &HeaderMap) -> Result<(), HttpError> {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(HttpError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "CONTENT_TYPE",
        "the content type must be application/json",
    ))
}

/// `event=NAME&session=ID&label.k=v`. What is not known is ignored.
fn parse_query(query: &str) -> HookQuery {
    let mut parsed = HookQuery::default();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "event" => parsed.event = value.into_owned(),
            "session" => parsed.session = value.into_owned(),
            key => {
                if let Some(label) = key.strip_prefix("label.") {
                    parsed.labels.insert(label.to_owned(), value.into_owned());
                }
            }
        }
    }
    parsed
}

fn respond(reply: &Reply) -> Response {
    let text = reply.body.to_string();
    let mut response = ([(header::CONTENT_TYPE, "application/json")], text).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if reply.interrupt {
        headers.insert(INTERRUPT, HeaderValue::from_static("1"));
    }
    response
}
