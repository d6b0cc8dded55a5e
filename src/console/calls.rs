//! Calls of the API as JSON over HTTP.

use std::collections::BTreeMap;

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tonic::{Request, metadata::MetadataMap};

use super::{
    Console,
    http_error::{HttpError, Json, JsonResult},
};
use crate::{
    ingest,
    pb::{self, session_service_server::SessionService},
    server::rpc,
};

pub(super) async fn get_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<pb::GetSessionResponse> {
    let request = console.parse_request(&headers, &body, "GetSession")?;
    let response = console.deps.api.get_session(request).await?;
    Ok(Json(response.into_inner()))
}

pub(super) async fn list_verdicts(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<pb::ListVerdictsResponse> {
    let request = console.parse_request(&headers, &body, "ListVerdicts")?;
    let response = console.deps.api.list_verdicts(request).await?;
    Ok(Json(response.into_inner()))
}

pub(super) async fn terminate_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<pb::TerminateSessionResponse> {
    let request = console.parse_request(&headers, &body, "TerminateSession")?;
    let response = console.deps.api.terminate_session(request).await?;
    Ok(Json(response.into_inner()))
}

pub(super) async fn reset_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<pb::ResetSessionResponse> {
    let request = console.parse_request(&headers, &body, "ResetSession")?;
    let response = console.deps.api.reset_session(request).await?;
    Ok(Json(response.into_inner()))
}

pub(super) async fn snooze_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<pb::SnoozeSessionResponse> {
    let request = console.parse_request(&headers, &body, "SnoozeSession")?;
    let response = console.deps.api.snooze_session(request).await?;
    Ok(Json(response.into_inner()))
}

pub(super) async fn rate_verdict(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<pb::RateVerdictResponse> {
    let request = console.parse_request(&headers, &body, "RateVerdict")?;
    let response = console.deps.api.rate_verdict(request).await?;
    Ok(Json(response.into_inner()))
}

/// The id of a verdict.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VerdictQuery {
    verdict_id: String,
}

#[derive(Debug, Serialize)]
pub(super) struct VerdictResponse {
    verdict: pb::Verdict,
}

/// One verdict, with its rating, for callers that may read the audit log.
pub(super) async fn get_verdict(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<VerdictResponse> {
    let caller = console.admit(&headers, &path("ListVerdicts"))?;
    let VerdictQuery { verdict_id } = parse_body(&headers, &body)?;
    let verdict = console.deps.api.find_verdict(&caller, &verdict_id).await?;
    Ok(Json(VerdictResponse { verdict }))
}

impl Console {
    /// Authorizes the caller and builds the request as if it came over gRPC. What
    /// the caller may see is decided by the handler.
    fn parse_request<T: DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        rpc: &str,
    ) -> Result<Request<T>, HttpError> {
        let caller = self.admit(headers, &path(rpc))?;
        let mut request = Request::new(parse_body(headers, body)?);
        *request.metadata_mut() = MetadataMap::from_headers(headers.clone());
        request.extensions_mut().insert(caller);
        Ok(request)
    }
}

/// The path of an rpc of the session service.
pub(super) fn path(rpc: &str) -> String {
    format!("/unstuck.v1.SessionService/{rpc}")
}

/// The signed-in caller.
#[derive(Debug, Serialize)]
pub(super) struct CallerInfo {
    /// Empty if the service has no tokens.
    name: String,
    role: &'static str,
    tenant: String,
    /// The allowed actions, for the page's buttons. Each call is authorized again.
    permissions: Vec<&'static str>,
    /// By the name of the agent program, the command that opens a session again; `{}` is
    /// its id.
    resume_commands: BTreeMap<&'static str, &'static str>,
}

const OPERATOR_ACTIONS: [(&str, &str); 4] = [
    ("terminate", "TerminateSession"),
    ("snooze", "SnoozeSession"),
    ("reset", "ResetSession"),
    ("rate", "RateVerdict"),
];

pub(super) async fn get_caller(
    State(console): State<Console>,
    headers: HeaderMap,
) -> JsonResult<CallerInfo> {
    let caller = console.admit(&headers, &path("ListSessions"))?;
    let allowed = OPERATOR_ACTIONS
        .iter()
        .filter(|(_, rpc)| rpc::find(&path(rpc)).access.allows(caller.role));
    Ok(Json(CallerInfo {
        name: caller.name.to_string(),
        role: caller.role.name(),
        tenant: caller.tenant.name().to_owned(),
        permissions: allowed.map(|(action, _)| *action).collect(),
        resume_commands: ingest::AGENTS
            .iter()
            .map(|agent| (agent.name, agent.resume))
            .collect(),
    }))
}

/// Requires the JSON content type, which a form of another page cannot send
/// without a CORS preflight.
pub(super) fn parse_body<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: &[u8],
) -> Result<T, HttpError> {
    let content_type = headers.get(header::CONTENT_TYPE);
    if content_type.is_none_or(|kind| kind != "application/json") {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(HttpError::new(
            status,
            "CONTENT_TYPE",
            "the content type must be application/json",
        ));
    }
    serde_json::from_slice(body)
        .map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, "JSON_INVALID", error))
}
