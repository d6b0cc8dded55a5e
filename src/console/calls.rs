//! Calls of the API, as JSON over HTTP.

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
};
use serde::{Serialize, de::DeserializeOwned};
use tonic::{Request, metadata::MetadataMap};

use super::{
    Console,
    http_error::{HttpError, Json, JsonResult},
};
use crate::{
    pb::{self, session_service_server::SessionService},
    server::rpc,
};

pub(super) async fn get_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<pb::GetSessionResponse> {
    let request = console.parse_request(&headers, &body, "GetSession")?;
    Ok(Json(console.api.get_session(request).await?.into_inner()))
}

pub(super) async fn list_verdicts(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<pb::ListVerdictsResponse> {
    let request = console.parse_request(&headers, &body, "ListVerdicts")?;
    Ok(Json(console.api.list_verdicts(request).await?.into_inner()))
}

pub(super) async fn terminate_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<pb::TerminateSessionResponse> {
    let request = console.parse_request(&headers, &body, "TerminateSession")?;
    let answer = console.api.terminate_session(request).await?;
    Ok(Json(answer.into_inner()))
}

pub(super) async fn reset_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<pb::ResetSessionResponse> {
    let request = console.parse_request(&headers, &body, "ResetSession")?;
    Ok(Json(console.api.reset_session(request).await?.into_inner()))
}

pub(super) async fn snooze_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> JsonResult<pb::SnoozeSessionResponse> {
    let request = console.parse_request(&headers, &body, "SnoozeSession")?;
    let answer = console.api.snooze_session(request).await?;
    Ok(Json(answer.into_inner()))
}

impl Console {
    /// A request as it would have come in over gRPC, for a caller who may: what it
    /// may see is decided there.
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

/// Whom the page speaks to.
#[derive(Debug, Serialize)]
pub(super) struct CallerInfo {
    /// Empty: nobody was asked.
    name: String,
    role: &'static str,
    tenant: String,
    /// The acts that may be done. Each is decided again when it is done.
    may: Vec<&'static str>,
}

const OPERATOR_ACTIONS: [(&str, &str); 3] = [
    ("terminate", "TerminateSession"),
    ("snooze", "SnoozeSession"),
    ("reset", "ResetSession"),
];

pub(super) async fn get_caller(
    State(console): State<Console>,
    headers: HeaderMap,
) -> JsonResult<CallerInfo> {
    let caller = console.admit(&headers, &path("ListSessions"))?;
    let allowed = OPERATOR_ACTIONS
        .iter()
        .filter(|(_, rpc)| rpc::facts(&path(rpc)).access.allows(caller.role));
    Ok(Json(CallerInfo {
        name: caller.name.to_string(),
        role: caller.role.name(),
        tenant: caller.tenant.name().to_owned(),
        may: allowed.map(|(act, _)| *act).collect(),
    }))
}

/// A form of another page's cannot send this type without asking first.
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
