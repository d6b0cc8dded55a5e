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
    refusal::{Answer, Json, Refusal},
};
use crate::{
    pb::{self, session_service_server::SessionService},
    server::rpc,
};

pub(super) async fn get_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<pb::GetSessionResponse> {
    let request = console.request(&headers, &body, "GetSession")?;
    Ok(Json(console.api.get_session(request).await?.into_inner()))
}

pub(super) async fn list_verdicts(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<pb::ListVerdictsResponse> {
    let request = console.request(&headers, &body, "ListVerdicts")?;
    Ok(Json(console.api.list_verdicts(request).await?.into_inner()))
}

pub(super) async fn terminate_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<pb::TerminateSessionResponse> {
    let request = console.request(&headers, &body, "TerminateSession")?;
    let answer = console.api.terminate_session(request).await?;
    Ok(Json(answer.into_inner()))
}

pub(super) async fn reset_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<pb::ResetSessionResponse> {
    let request = console.request(&headers, &body, "ResetSession")?;
    Ok(Json(console.api.reset_session(request).await?.into_inner()))
}

pub(super) async fn snooze_session(
    State(console): State<Console>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<pb::SnoozeSessionResponse> {
    let request = console.request(&headers, &body, "SnoozeSession")?;
    let answer = console.api.snooze_session(request).await?;
    Ok(Json(answer.into_inner()))
}

impl Console {
    /// A request as it would have come in over gRPC, for a caller who may: what it
    /// may see is decided there.
    fn request<T: DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        rpc: &str,
    ) -> Result<Request<T>, Refusal> {
        let caller = self.admit(headers, &path(rpc))?;
        let mut request = Request::new(parsed(headers, body)?);
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
pub(super) struct Me {
    /// Empty: nobody was asked.
    name: String,
    role: &'static str,
    tenant: String,
    /// The acts that may be done. Each is decided again when it is done.
    may: Vec<&'static str>,
}

const ACTS: [(&str, &str); 3] = [
    ("terminate", "TerminateSession"),
    ("snooze", "SnoozeSession"),
    ("reset", "ResetSession"),
];

pub(super) async fn me(State(console): State<Console>, headers: HeaderMap) -> Answer<Me> {
    let caller = console.admit(&headers, &path("ListSessions"))?;
    let allowed = ACTS
        .iter()
        .filter(|(_, rpc)| rpc::facts(&path(rpc)).access.allows(caller.role));
    Ok(Json(Me {
        name: caller.name.to_string(),
        role: caller.role.name(),
        tenant: caller.tenant.name().to_owned(),
        may: allowed.map(|(act, _)| *act).collect(),
    }))
}

/// A form of another page's cannot send this type without asking first.
pub(super) fn parsed<T: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T, Refusal> {
    let kind = headers.get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| kind != "application/json") {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Refusal::new(
            status,
            "CONTENT_TYPE",
            "the content type must be application/json",
        ));
    }
    serde_json::from_slice(body)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, "JSON_INVALID", error))
}
