use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use prost::Message;
use tonic::{Request, Response, Status, async_trait, metadata::MetadataMap};

use super::{Api, InvalidArgument, convert, now, present, status};
use crate::{
    auth::Caller,
    domain::{SessionId, Tenant, Verdict, sanitize},
    engine::{OpenError, OperatorRequest, SessionFilter},
    pb::{self, session_service_server::SessionService},
    server::{admission::authenticated_caller, blocking, response_queue::ResponseStream},
    store::StoreHealth,
    telemetry::Rejection,
};

const PAGE_SIZE_DEFAULT: usize = 100;
const PAGE_SIZE_MAX: usize = 1_000;
/// A page ends here, whatever was asked for. Clients accept messages of 4 MiB
/// unless told otherwise, and 1,000 sessions that loop are 7 MB.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// Who acts, in an operator's call.
const OPERATOR_KEY: &str = "unstuck-operator";
const OPERATOR_CHARS_MAX: usize = 128;

pub(super) type RpcResult<T> = Result<Response<T>, Status>;

#[async_trait]
impl SessionService for Api {
    async fn open_session(
        &self,
        request: Request<pb::OpenSessionRequest>,
    ) -> RpcResult<pb::OpenSessionResponse> {
        let caller = authenticated_caller(&request)?;
        let pb::OpenSessionRequest {
            session_id,
            profile,
            labels,
        } = request.into_inner();
        let id = self.parse_session_id(&caller, &session_id)?;
        let labels =
            convert::parse_labels(labels).map_err(|invalid| self.count_rejected(invalid))?;
        let view = self.engine.open_session(&id, &profile, labels, now());
        let view = view.inspect_err(|error| self.count_open_error(error))?;
        let session = Some(self.present_session(&view).await);
        Ok(Response::new(pb::OpenSessionResponse { session }))
    }

    async fn end_session(
        &self,
        request: Request<pb::EndSessionRequest>,
    ) -> RpcResult<pb::EndSessionResponse> {
        let caller = authenticated_caller(&request)?;
        let pb::EndSessionRequest { session_id } = request.into_inner();
        let id = self.parse_session_id(&caller, &session_id)?;
        let view = self
            .engine
            .end_session(&id, now())
            .ok_or_else(status::session_not_found)?;
        let session = Some(self.present_session(&view).await);
        Ok(Response::new(pb::EndSessionResponse { session }))
    }

    async fn reset_session(
        &self,
        request: Request<pb::ResetSessionRequest>,
    ) -> RpcResult<pb::ResetSessionResponse> {
        let caller = authenticated_caller(&request)?;
        let operator = operator_name(&caller, request.metadata());
        let pb::ResetSessionRequest { session_id, reason } = request.into_inner();
        let id = self.parse_session_id(&caller, &session_id)?;
        let reason = self.parse_reason(reason)?;
        let act = OperatorRequest {
            reason: &reason,
            operator: &operator,
        };
        self.check_store_writable()?;
        let verdict = self.engine.issue_reset(&id, &act, now());
        let verdict = verdict.ok_or_else(status::session_not_found)?;
        let shown = self.await_durable(&verdict).await?;
        self.engine.apply_reset(&id, &verdict, now());
        tracing::info!(session = ?id, ?operator, ?reason, "an operator reset the session");
        let verdict = Some(shown);
        Ok(Response::new(pb::ResetSessionResponse { verdict }))
    }

    async fn terminate_session(
        &self,
        request: Request<pb::TerminateSessionRequest>,
    ) -> RpcResult<pb::TerminateSessionResponse> {
        let caller = authenticated_caller(&request)?;
        let operator = operator_name(&caller, request.metadata());
        let pb::TerminateSessionRequest { session_id, reason } = request.into_inner();
        let id = self.parse_session_id(&caller, &session_id)?;
        let reason = self.parse_reason(reason)?;
        let act = OperatorRequest {
            reason: &reason,
            operator: &operator,
        };
        let verdict = self.engine.terminate_session(&id, &act, now());
        tracing::info!(session = ?id, ?operator, ?reason, "an operator terminated the session");
        let verdict = Some(self.present_settled_verdict(&verdict).await);
        Ok(Response::new(pb::TerminateSessionResponse { verdict }))
    }

    async fn snooze_session(
        &self,
        request: Request<pb::SnoozeSessionRequest>,
    ) -> RpcResult<pb::SnoozeSessionResponse> {
        let caller = authenticated_caller(&request)?;
        let operator = operator_name(&caller, request.metadata());
        let pb::SnoozeSessionRequest {
            session_id,
            duration,
            reason,
        } = request.into_inner();
        let id = self.parse_session_id(&caller, &session_id)?;
        let reason = self.parse_reason(reason)?;
        let duration = convert::parse_snooze_duration(duration)
            .map_err(|invalid| self.count_rejected(invalid))?;
        let act = OperatorRequest {
            reason: &reason,
            operator: &operator,
        };
        self.check_store_writable()?;
        let now = now();
        let verdict = self.engine.issue_snooze(&id, &act, duration, now)?;
        let shown = self.await_durable(&verdict).await?;
        self.engine.apply_snooze(&id, now + duration);
        tracing::info!(session = ?id, ?operator, ?reason, "an operator snoozed the session");
        let verdict = Some(shown);
        Ok(Response::new(pb::SnoozeSessionResponse { verdict }))
    }

    async fn get_session(
        &self,
        request: Request<pb::GetSessionRequest>,
    ) -> RpcResult<pb::GetSessionResponse> {
        let caller = authenticated_caller(&request)?;
        let pb::GetSessionRequest { session_id } = request.into_inner();
        let id = self.parse_session_id(&caller, &session_id)?;
        let detail = self
            .engine
            .detail(&id)
            .ok_or_else(status::session_not_found)?;
        let session = Some(self.present_session(&detail.view).await);
        Ok(Response::new(pb::GetSessionResponse {
            session,
            ..present::detail_to_pb(&detail)
        }))
    }

    async fn list_sessions(
        &self,
        request: Request<pb::ListSessionsRequest>,
    ) -> RpcResult<pb::ListSessionsResponse> {
        let caller = authenticated_caller(&request)?;
        let query = SessionListQuery::parse(&caller.tenant, request.into_inner());
        let query = query.map_err(|invalid| self.count_rejected(invalid))?;
        let engine = self.engine.clone();
        // All sessions are gone through for a page.
        let list = move || engine.list_sessions(&query.filter, query.after.as_deref(), query.size);
        let listed = blocking::scan_sessions(list).await;
        let (views, last) = listed.map_err(|error| self.server.blocking_failed(&error))?;
        let mut sessions = Vec::with_capacity(views.len());
        for view in &views {
            sessions.push(self.present_session(view).await);
        }
        let sessions = collect_page(sessions.into_iter());
        let truncated_after = sessions.last().filter(|_| sessions.len() < views.len());
        let truncated_token = truncated_after.map(|session| encode_page_token(&session.session_id));
        let next = truncated_token.or_else(|| last.map(|id| encode_page_token(id.as_str())));
        Ok(Response::new(pb::ListSessionsResponse {
            next_page_token: next.unwrap_or_default(),
            sessions,
        }))
    }

    type WatchVerdictsStream = ResponseStream<pb::WatchVerdictsResponse>;

    async fn watch_verdicts(
        &self,
        request: Request<pb::WatchVerdictsRequest>,
    ) -> RpcResult<Self::WatchVerdictsStream> {
        let caller = authenticated_caller(&request)?;
        self.serve_watch(caller, request.into_inner())
    }

    async fn list_verdicts(
        &self,
        request: Request<pb::ListVerdictsRequest>,
    ) -> RpcResult<pb::ListVerdictsResponse> {
        let caller = authenticated_caller(&request)?;
        self.query_audit_log(&caller, request.into_inner()).await
    }
}

impl Api {
    fn parse_session_id(&self, caller: &Caller, id: &str) -> Result<SessionId, Status> {
        let id = convert::parse_session_id(&caller.tenant, id);
        Ok(id.map_err(|invalid| self.count_rejected(invalid))?)
    }

    fn count_open_error(&self, error: &OpenError) {
        match error {
            OpenError::Terminated => {}
            OpenError::NoProfile(_) => self
                .server
                .metrics
                .count_rejection(Rejection::InvalidArgument),
            OpenError::Record(refused) => self.server.metrics.count_rejection(refused.rejection()),
        }
    }

    /// An act that must outlive the process is refused while nothing can.
    fn check_store_writable(&self) -> Result<(), Status> {
        match self.store.health() {
            StoreHealth::WriteFailing => Err(status::store_not_writable()),
            StoreHealth::InMemory | StoreHealth::Healthy | StoreHealth::DamagedTail(_) => Ok(()),
        }
    }

    /// Waits until an announced act is on disk, where there is one.
    async fn await_durable(&self, verdict: &Verdict) -> Result<pb::Verdict, Status> {
        let durable = self.store.wait_until_settled(verdict.id).await;
        match self.store.health() {
            StoreHealth::InMemory => {}
            _ if durable => {}
            _ => return Err(status::store_not_writable()),
        }
        Ok(self.present_verdict(verdict))
    }

    fn parse_reason(&self, reason: String) -> Result<String, Status> {
        Ok(convert::parse_reason(reason).map_err(|invalid| self.count_rejected(invalid))?)
    }
}

/// Who acts: as the credential has it, else as the caller says, which where
/// nobody is asked is no more than that.
fn operator_name(caller: &Caller, metadata: &MetadataMap) -> String {
    if !caller.name.is_empty() {
        return caller.name.to_string();
    }
    let claimed = metadata
        .get(OPERATOR_KEY)
        .and_then(|said| said.to_str().ok());
    let claimed = sanitize::quote(claimed.unwrap_or_default(), OPERATOR_CHARS_MAX);
    if claimed.is_empty() {
        return "unknown".to_owned();
    }
    claimed
}

/// As many as make a page by size, and at least one.
pub(super) fn collect_page<M: Message>(messages: impl Iterator<Item = M>) -> Vec<M> {
    let mut page_bytes = 0;
    let mut page = Vec::new();
    for message in messages {
        page_bytes += message.encoded_len();
        if page_bytes > PAGE_BYTES_MAX && !page.is_empty() {
            break;
        }
        page.push(message);
    }
    page
}

/// What part of the list is asked for.
struct SessionListQuery {
    filter: SessionFilter,
    after: Option<String>,
    size: usize,
}

impl SessionListQuery {
    fn parse(tenant: &Tenant, request: pb::ListSessionsRequest) -> Result<Self, InvalidArgument> {
        let pb::ListSessionsRequest {
            page_size,
            page_token,
            status,
            labels,
        } = request;
        let id = |id: &str| SessionId::parse(id).ok().map(|id| id.to_string());
        Ok(Self {
            filter: SessionFilter {
                tenant: tenant.clone(),
                status: convert::parse_status(status)?,
                labels: convert::parse_labels(labels)?,
            },
            after: decode_page_token(&page_token, id)?,
            size: self::parse_page_size(page_size)?,
        })
    }
}

pub(super) fn parse_page_size(requested: i32) -> Result<usize, InvalidArgument> {
    let size = usize::try_from(requested)
        .map_err(|_| InvalidArgument::new("page_size", "must not be negative"))?;
    Ok(match size {
        0 => PAGE_SIZE_DEFAULT,
        size => size.min(PAGE_SIZE_MAX),
    })
}

/// A page begins after the last entry of the page before. Encoded, so that
/// nobody builds on what it says.
pub(super) fn encode_page_token(last: &str) -> String {
    URL_SAFE_NO_PAD.encode(last)
}

/// Empty: the start.
pub(super) fn decode_page_token<T>(
    token: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, InvalidArgument> {
    if token.is_empty() {
        return Ok(None);
    }
    let text = URL_SAFE_NO_PAD.decode(token).ok();
    let text = text.and_then(|bytes| String::from_utf8(bytes).ok());
    let last = text.and_then(|text| parse(&text));
    let invalid = || InvalidArgument::new("page_token", "was not given out by this service");
    last.map(Some).ok_or_else(invalid)
}
