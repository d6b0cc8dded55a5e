//! `POST /v1/hooks/{agent}`: the hooks of agent programs, without a broker in between.
//!
//! The body is the agent's own payload. `ingest` turns it into events, which are recorded
//! as if they came over gRPC, and turns the verdict into the reply that the agent
//! understands. Invalid input is answered with `{}`, with which every agent continues.
//! `handler` decides the reply, `session_table` remembers which verdicts were delivered.
//! Paths in a payload are never opened here: they are those of another machine.
//!
//! Uses: domain, auth, ingest, telemetry, server, api, console.

mod body;
mod handler;
mod session_table;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use axum::{
    Extension, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, RawQuery, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::post,
};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    api::Api,
    auth::{Auth, Caller, PeerAddress},
    console::{
        AllowedHosts,
        browser_guard::{require_allowed_host, require_same_origin},
        http_error::HttpError,
    },
    ingest::{self, AUTO, AgentSpec, HookPayload, HookQuery, Reply},
    server::{quota::TenantQuota, rpc},
    telemetry::{HookNames, HookReplyKind, Metrics, Rejection, UNKNOWN_HOOK_EVENT},
};
use handler::{HookAnswer, HookHandler};
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
    pub auth: Arc<Auth>,
    pub api: Api,
    pub metrics: Arc<Metrics>,
}

/// The state of the route.
struct Hooks {
    deps: HookDependencies,
    settings: Settings,
    sessions: HookSessions,
    /// Bounds the memory of the bodies that are being read.
    requests: TenantQuota,
}

/// The largest payload: the result of a tool and the agent's other fields.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Concurrent requests; 64 bodies take at most 256 MiB.
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
    let hooks = Hooks {
        requests: TenantQuota::new(REQUESTS_MAX, deps.auth.clone()),
        sessions: HookSessions::new(started_at),
        deps,
        settings,
    };
    Router::new()
        .route("/v1/hooks/{agent}", post(answer_hook))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
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
    request: axum::extract::Request,
) -> Result<Response, HttpError> {
    let started_at = Instant::now();
    // Who calls, for which agent, and in which form: before the body is read.
    let caller = hooks.authorize(&headers)?.with_peer(peer);
    let agent = hooks.find_agent(&agent)?;
    require_json(&headers)?;
    let permit = hooks.take_permit(&caller)?;
    let body = read_body(request).await?;
    // Record it and decide. No lock is held across an await.
    let answer = hooks
        .answer(&caller, agent, query.as_deref(), &body)
        .await?;
    drop((permit, body));
    if let Some(verdict) = &answer.termination {
        hooks.deps.api.settle(verdict).await;
    }
    let delay = reply_delay(&headers, answer.hold_time);
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    // A reply that is delayed on purpose is not slow.
    let duration = started_at.elapsed().saturating_sub(delay);
    hooks.deps.metrics.record_hook_duration(duration);
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
        let authorized = self.deps.auth.authorize(token, access);
        authorized.map_err(|denied| {
            self.deps.metrics.count_rejection(denied.rejection());
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

    fn take_permit(&self, caller: &Caller) -> Result<impl Drop + use<>, HttpError> {
        self.requests.try_acquire(&caller.tenant).map_err(|share| {
            self.deps.metrics.count_rejection(Rejection::CallsMax);
            let message = format!("{share} hooks of this tenant are being answered");
            HttpError::new(StatusCode::TOO_MANY_REQUESTS, "CALLS_MAX", message)
        })
    }

    async fn answer(
        &self,
        caller: &Caller,
        agent: NamedAgent,
        query: Option<&str>,
        body: &[u8],
    ) -> Result<HookAnswer, HttpError> {
        let metrics = &self.deps.metrics;
        let query = parse_query(query.unwrap_or_default());
        if query.event == PROBE_EVENT {
            return Ok(HookAnswer::go_on());
        }
        let body = body::parse(body).unwrap_or_else(|| {
            metrics.count_unreadable_hook();
            Value::Null
        });
        let Some(agent) = agent.or_else(|| ingest::recognise_agent(&body)) else {
            metrics.count_hook(AUTO, None, HookReplyKind::None);
            return Ok(HookAnswer::go_on());
        };
        let prefix = &self.settings.prefix;
        let payload = match HookPayload::new(agent, &caller.tenant, &query, prefix, &body) {
            Ok(payload) => payload,
            Err(why) => {
                tracing::debug!(agent = agent.name, %why, "a hook's payload is not used");
                metrics.count_hook(agent.name, None, HookReplyKind::None);
                return Ok(HookAnswer::go_on());
            }
        };
        // Decide, with the session here and saved afterwards.
        let api = &self.deps.api;
        api.take_session(&payload.session).await;
        let answer = HookHandler {
            api: self.deps.api.for_caller(caller),
            settings: &self.settings,
            sessions: &self.sessions,
            payload: &payload,
            labels: &query.labels,
        }
        .answer();
        api.save_session(&payload.session).await;
        let kind = answer
            .as_ref()
            .map_or(HookReplyKind::None, |answer| answer.kind);
        metrics.count_hook(agent.name, Some(payload.event.name), kind);
        answer.or_else(go_on_unless_exhausted)
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

/// A body above the limit is refused with 413.
async fn read_body(request: axum::extract::Request) -> Result<Bytes, HttpError> {
    use axum::extract::FromRequest;

    Bytes::from_request(request, &()).await.map_err(|rejected| {
        let status = rejected.status();
        HttpError::new(status, "BODY", rejected.body_text())
    })
}

/// `event=NAME&session=ID&label.k=v`. What is not known is ignored.
fn parse_query(query: &str) -> HookQuery {
    let mut parsed = HookQuery::default();
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value);
        match &*decode(key) {
            "event" => parsed.event = value,
            "session" => parsed.session = value,
            key => {
                if let Some(label) = key.strip_prefix("label.") {
                    parsed.labels.insert(label.to_owned(), value);
                }
            }
        }
    }
    parsed
}

fn decode(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_the_event_the_session_and_labels() {
        let query = parse_query("event=preToolUse&session=a%2Fb&label.team=pay+ments&x=1&&=");
        assert_eq!((&*query.event, &*query.session), ("preToolUse", "a/b"));
        assert_eq!(query.labels.len(), 1);
        assert_eq!(query.labels["team"], "pay ments");
    }

    #[test]
    fn a_reply_is_delayed_by_its_wait_but_not_for_the_command_nor_for_long() {
        let mut headers = HeaderMap::new();
        let delay =
            |headers: &HeaderMap, secs| reply_delay(headers, Some(Duration::from_secs(secs)));
        assert_eq!(reply_delay(&headers, None), Duration::ZERO);
        assert_eq!(delay(&headers, 1), Duration::from_secs(1));
        assert_eq!(delay(&headers, 60), HOLD_TIME_MAX);
        headers.insert(COMMAND, HeaderValue::from_static("1"));
        assert_eq!(delay(&headers, 1), Duration::ZERO);
    }

    #[test]
    fn only_json_is_accepted() {
        let check = |kind: &'static str| {
            let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))];
            require_json(&headers.into_iter().collect()).is_ok()
        };
        assert!(check("application/json"));
        assert!(check("Application/JSON; charset=utf-8"));
        for kind in [
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/jsonp",
        ] {
            assert!(!check(kind), "{kind}");
        }
    }
}
