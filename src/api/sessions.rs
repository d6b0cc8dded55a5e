use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use prost::Message;
use tonic::{Request, Response, Status, async_trait, metadata::MetadataMap};

use super::{Api, Invalid, convert, now, present, status};
use crate::{
    auth::Caller,
    domain::{SessionId, Tenant, Verdict, text},
    engine::{Act, Filter, OpenError},
    pb::{self, session_service_server::SessionService},
    server::{admission::caller, aside, outbound::Outbound},
    store::Health,
    telemetry::Rejection,
};

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;
/// A page ends here, whatever was asked for. Clients accept messages of 4 MiB
/// unless told otherwise, and 1,000 sessions that loop are 7 MB.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// Who acts, in an operator's call.
const OPERATOR_KEY: &str = "unstuck-operator";
const OPERATOR_CHARS_MAX: usize = 128;

pub(super) type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl SessionService for Api {
    async fn open_session(
        &self,
        request: Request<pb::OpenSessionRequest>,
    ) -> Answer<pb::OpenSessionResponse> {
        let caller = caller(&request)?;
        let pb::OpenSessionRequest {
            session_id,
            profile,
            labels,
        } = request.into_inner();
        let id = self.session_id(&caller, &session_id)?;
        let labels = convert::labels(labels).map_err(|invalid| self.reject(invalid))?;
        let view = self.engine.open(&id, &profile, labels, now());
        let view = view.inspect_err(|error| self.count(error))?;
        let session = Some(self.session(&view).await);
        Ok(Response::new(pb::OpenSessionResponse { session }))
    }

    async fn end_session(
        &self,
        request: Request<pb::EndSessionRequest>,
    ) -> Answer<pb::EndSessionResponse> {
        let caller = caller(&request)?;
        let pb::EndSessionRequest { session_id } = request.into_inner();
        let id = self.session_id(&caller, &session_id)?;
        let view = self.engine.end(&id, now()).ok_or_else(status::no_session)?;
        let session = Some(self.session(&view).await);
        Ok(Response::new(pb::EndSessionResponse { session }))
    }

    async fn reset_session(
        &self,
        request: Request<pb::ResetSessionRequest>,
    ) -> Answer<pb::ResetSessionResponse> {
        let caller = caller(&request)?;
        let operator = operator(&caller, request.metadata());
        let pb::ResetSessionRequest { session_id, reason } = request.into_inner();
        let id = self.session_id(&caller, &session_id)?;
        let reason = self.reason(reason)?;
        let act = Act {
            reason: &reason,
            operator: &operator,
        };
        self.check_store()?;
        let verdict = self.engine.announce_reset(&id, &act, now());
        let verdict = verdict.ok_or_else(status::no_session)?;
        let shown = self.recorded(&verdict).await?;
        self.engine.reset(&id, &verdict, now());
        tracing::info!(session = ?id, ?operator, ?reason, "an operator reset the session");
        let verdict = Some(shown);
        Ok(Response::new(pb::ResetSessionResponse { verdict }))
    }

    async fn terminate_session(
        &self,
        request: Request<pb::TerminateSessionRequest>,
    ) -> Answer<pb::TerminateSessionResponse> {
        let caller = caller(&request)?;
        let operator = operator(&caller, request.metadata());
        let pb::TerminateSessionRequest { session_id, reason } = request.into_inner();
        let id = self.session_id(&caller, &session_id)?;
        let reason = self.reason(reason)?;
        let act = Act {
            reason: &reason,
            operator: &operator,
        };
        let verdict = self.engine.terminate(&id, &act, now());
        tracing::info!(session = ?id, ?operator, ?reason, "an operator terminated the session");
        let verdict = Some(self.answered(&verdict).await);
        Ok(Response::new(pb::TerminateSessionResponse { verdict }))
    }

    async fn snooze_session(
        &self,
        request: Request<pb::SnoozeSessionRequest>,
    ) -> Answer<pb::SnoozeSessionResponse> {
        let caller = caller(&request)?;
        let operator = operator(&caller, request.metadata());
        let pb::SnoozeSessionRequest {
            session_id,
            duration,
            reason,
        } = request.into_inner();
        let id = self.session_id(&caller, &session_id)?;
        let reason = self.reason(reason)?;
        let duration = convert::snooze(duration).map_err(|invalid| self.reject(invalid))?;
        let act = Act {
            reason: &reason,
            operator: &operator,
        };
        self.check_store()?;
        let now = now();
        let verdict = self.engine.announce_snooze(&id, &act, duration, now)?;
        let shown = self.recorded(&verdict).await?;
        self.engine.snooze(&id, now + duration);
        tracing::info!(session = ?id, ?operator, ?reason, "an operator snoozed the session");
        let verdict = Some(shown);
        Ok(Response::new(pb::SnoozeSessionResponse { verdict }))
    }

    async fn get_session(
        &self,
        request: Request<pb::GetSessionRequest>,
    ) -> Answer<pb::GetSessionResponse> {
        let caller = caller(&request)?;
        let pb::GetSessionRequest { session_id } = request.into_inner();
        let id = self.session_id(&caller, &session_id)?;
        let detail = self.engine.detail(&id).ok_or_else(status::no_session)?;
        let session = Some(self.session(&detail.view).await);
        Ok(Response::new(pb::GetSessionResponse {
            session,
            ..present::detail(&detail)
        }))
    }

    async fn list_sessions(
        &self,
        request: Request<pb::ListSessionsRequest>,
    ) -> Answer<pb::ListSessionsResponse> {
        let caller = caller(&request)?;
        let page = Page::parse(&caller.tenant, request.into_inner());
        let page = page.map_err(|invalid| self.reject(invalid))?;
        let engine = self.engine.clone();
        // All sessions are gone through for a page.
        let list = move || engine.list(&page.filter, page.after.as_deref(), page.size);
        let listed = aside::walk(list).await;
        let (views, last) = listed.map_err(|error| self.server.blocking_failed(&error))?;
        let mut sessions = Vec::with_capacity(views.len());
        for view in &views {
            sessions.push(self.session(view).await);
        }
        let sessions = fitting(sessions.into_iter());
        let cut = sessions.last().filter(|_| sessions.len() < views.len());
        let cut = cut.map(|session| page_token(&session.session_id));
        let next = cut.or_else(|| last.map(|id| page_token(id.as_str())));
        Ok(Response::new(pb::ListSessionsResponse {
            next_page_token: next.unwrap_or_default(),
            sessions,
        }))
    }

    type WatchVerdictsStream = Outbound<pb::WatchVerdictsResponse>;

    async fn watch_verdicts(
        &self,
        request: Request<pb::WatchVerdictsRequest>,
    ) -> Answer<Self::WatchVerdictsStream> {
        let caller = caller(&request)?;
        self.watch(caller, request.into_inner())
    }

    async fn list_verdicts(
        &self,
        request: Request<pb::ListVerdictsRequest>,
    ) -> Answer<pb::ListVerdictsResponse> {
        let caller = caller(&request)?;
        self.audit(&caller, request.into_inner()).await
    }
}

impl Api {
    fn session_id(&self, caller: &Caller, id: &str) -> Result<SessionId, Status> {
        let id = convert::session_id(&caller.tenant, id);
        Ok(id.map_err(|invalid| self.reject(invalid))?)
    }

    fn count(&self, error: &OpenError) {
        match error {
            OpenError::Terminated => {}
            OpenError::NoProfile(_) => self.server.metrics.rejected(Rejection::InvalidArgument),
            OpenError::Refused(refused) => self.server.metrics.rejected(refused.rejection()),
        }
    }

    /// An act that must outlive the process is refused while nothing can.
    fn check_store(&self) -> Result<(), Status> {
        match self.store.health() {
            Health::Failing => Err(status::not_durable()),
            Health::Memory | Health::Fine | Health::SetAside(_) => Ok(()),
        }
    }

    /// Waits until an announced act is on disk, where there is one.
    async fn recorded(&self, verdict: &Verdict) -> Result<pb::Verdict, Status> {
        let durable = self.store.settled(verdict.id).await;
        match self.store.health() {
            Health::Memory => {}
            _ if durable => {}
            _ => return Err(status::not_durable()),
        }
        Ok(self.shown(verdict))
    }

    fn reason(&self, reason: String) -> Result<String, Status> {
        Ok(convert::reason(reason).map_err(|invalid| self.reject(invalid))?)
    }
}

/// Who acts: as the credential has it, else as the caller says, which where
/// nobody is asked is no more than that.
fn operator(caller: &Caller, metadata: &MetadataMap) -> String {
    if !caller.name.is_empty() {
        return caller.name.to_string();
    }
    let said = metadata
        .get(OPERATOR_KEY)
        .and_then(|said| said.to_str().ok());
    let said = text::quoted(said.unwrap_or_default(), OPERATOR_CHARS_MAX);
    if said.is_empty() {
        return "unknown".to_owned();
    }
    said
}

/// As many as make a page by size, and at least one.
pub(super) fn fitting<M: Message>(all: impl Iterator<Item = M>) -> Vec<M> {
    let mut page_bytes = 0;
    let mut page = Vec::new();
    for message in all {
        page_bytes += message.encoded_len();
        if page_bytes > PAGE_BYTES_MAX && !page.is_empty() {
            break;
        }
        page.push(message);
    }
    page
}

/// What part of the list is asked for.
struct Page {
    filter: Filter,
    after: Option<String>,
    size: usize,
}

impl Page {
    fn parse(tenant: &Tenant, request: pb::ListSessionsRequest) -> Result<Self, Invalid> {
        let pb::ListSessionsRequest {
            page_size,
            page_token,
            status,
            labels,
        } = request;
        let id = |id: &str| SessionId::parse(id).ok().map(|id| id.to_string());
        Ok(Self {
            filter: Filter {
                tenant: tenant.clone(),
                status: convert::status(status)?,
                labels: convert::labels(labels)?,
            },
            after: read_page_token(&page_token, id)?,
            size: self::page_size(page_size)?,
        })
    }
}

pub(super) fn page_size(asked: i32) -> Result<usize, Invalid> {
    let size =
        usize::try_from(asked).map_err(|_| Invalid::field("page_size", "must not be negative"))?;
    Ok(match size {
        0 => PAGE_DEFAULT,
        size => size.min(PAGE_MAX),
    })
}

/// A page begins after the last entry of the page before. Encoded, so that
/// nobody builds on what it says.
pub(super) fn page_token(last: &str) -> String {
    URL_SAFE_NO_PAD.encode(last)
}

/// Empty: the start.
pub(super) fn read_page_token<T>(
    token: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Invalid> {
    if token.is_empty() {
        return Ok(None);
    }
    let text = URL_SAFE_NO_PAD.decode(token).ok();
    let text = text.and_then(|bytes| String::from_utf8(bytes).ok());
    let last = text.and_then(|text| parse(&text));
    let invalid = || Invalid::field("page_token", "was not given out by this service");
    last.map(Some).ok_or_else(invalid)
}
