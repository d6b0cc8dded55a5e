use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use prost::Message;
use tonic::{Request, Response, Status, async_trait};

use super::{
    Api, Invalid, convert, now,
    outbound::{self, Outbound, Responses},
    present, status,
};
use crate::{
    domain::SessionId,
    engine::{Filter, OpenError},
    feed::Feed,
    pb::{self, session_service_server::SessionService},
    telemetry::{Rejection, Rpc},
};

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;
/// A page ends here, whatever was asked for. Clients accept messages of 4 MiB
/// unless told otherwise, and 1,000 sessions that loop are 7 MB.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl SessionService for Api {
    async fn open_session(
        &self,
        request: Request<pb::OpenSessionRequest>,
    ) -> Answer<pb::OpenSessionResponse> {
        let pb::OpenSessionRequest {
            session_id,
            profile,
            labels,
        } = request.into_inner();
        let id = self.session_id(&session_id)?;
        let labels = convert::labels(labels).map_err(|invalid| self.reject(invalid))?;
        let view = self.engine.open(&id, &profile, labels, now());
        let view = view.inspect_err(|error| self.count(error))?;
        let session = Some(present::session(&view));
        Ok(Response::new(pb::OpenSessionResponse { session }))
    }

    async fn end_session(
        &self,
        request: Request<pb::EndSessionRequest>,
    ) -> Answer<pb::EndSessionResponse> {
        let pb::EndSessionRequest { session_id } = request.into_inner();
        let id = self.session_id(&session_id)?;
        let view = self.engine.end(&id, now()).ok_or_else(status::no_session)?;
        let session = Some(present::session(&view));
        Ok(Response::new(pb::EndSessionResponse { session }))
    }

    async fn reset_session(
        &self,
        request: Request<pb::ResetSessionRequest>,
    ) -> Answer<pb::ResetSessionResponse> {
        let pb::ResetSessionRequest { session_id, reason } = request.into_inner();
        let id = self.session_id(&session_id)?;
        let reason = self.reason(reason)?;
        let verdict = self.engine.reset(&id, &reason, now());
        let verdict = verdict.ok_or_else(status::no_session)?;
        tracing::info!(session = ?id, reason = ?reason, "an operator reset the session");
        let verdict = Some(present::verdict(&verdict));
        Ok(Response::new(pb::ResetSessionResponse { verdict }))
    }

    async fn terminate_session(
        &self,
        request: Request<pb::TerminateSessionRequest>,
    ) -> Answer<pb::TerminateSessionResponse> {
        let pb::TerminateSessionRequest { session_id, reason } = request.into_inner();
        let id = self.session_id(&session_id)?;
        let reason = self.reason(reason)?;
        let verdict = self.engine.terminate(&id, &reason, now());
        tracing::info!(session = ?id, reason = ?reason, "an operator terminated the session");
        let verdict = Some(present::verdict(&verdict));
        Ok(Response::new(pb::TerminateSessionResponse { verdict }))
    }

    async fn snooze_session(
        &self,
        _request: Request<pb::SnoozeSessionRequest>,
    ) -> Answer<pb::SnoozeSessionResponse> {
        Err(status::not_yet("sessions cannot be snoozed yet"))
    }

    async fn get_session(
        &self,
        request: Request<pb::GetSessionRequest>,
    ) -> Answer<pb::GetSessionResponse> {
        let pb::GetSessionRequest { session_id } = request.into_inner();
        let id = self.session_id(&session_id)?;
        let detail = self.engine.detail(&id).ok_or_else(status::no_session)?;
        Ok(Response::new(present::detail(&detail)))
    }

    async fn list_sessions(
        &self,
        request: Request<pb::ListSessionsRequest>,
    ) -> Answer<pb::ListSessionsResponse> {
        let page = Page::parse(request.into_inner()).map_err(|invalid| self.reject(invalid))?;
        let after = page.after.as_deref();
        let (views, last) = self.engine.list(&page.filter, after, page.size);
        let sessions = fitting(views.iter().map(present::session));
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
        let request = request.into_inner();
        if !request.after_verdict_id.is_empty() {
            return Err(status::not_yet(
                "a watch cannot be resumed after a verdict yet",
            ));
        }
        let watch = convert::watch(request).map_err(|invalid| self.reject(invalid))?;
        let feed = Feed::new(self.engine.verdicts(), watch, self.draining.clone());
        let open = self.metrics.stream(Rpc::WatchVerdicts);
        let (responses_max, draining) = (self.limits.responses_max, self.draining.clone());
        let outbound = outbound::serve(responses_max, draining, |responses| async move {
            let _open = open;
            pass_on(feed, responses).await
        });
        Ok(Response::new(outbound))
    }

    async fn list_verdicts(
        &self,
        _request: Request<pb::ListVerdictsRequest>,
    ) -> Answer<pb::ListVerdictsResponse> {
        Err(status::not_yet("the audit log cannot be listed yet"))
    }
}

impl Api {
    fn session_id(&self, id: &str) -> Result<SessionId, Status> {
        Ok(convert::session_id(id).map_err(|invalid| self.reject(invalid))?)
    }

    fn count(&self, error: &OpenError) {
        match error {
            OpenError::Terminated => {}
            OpenError::NoProfile(_) => self.metrics.rejected(Rejection::InvalidArgument),
            OpenError::Refused(refused) => self.metrics.rejected(refused.rejection()),
        }
    }

    fn reason(&self, reason: String) -> Result<String, Status> {
        Ok(convert::reason(reason).map_err(|invalid| self.reject(invalid))?)
    }
}

/// Passes verdicts on until the feed is over or the watcher is gone. Only a
/// verdict that has its place is taken from the feed, which notices who is slow.
async fn pass_on(
    mut feed: Feed,
    responses: Responses<pb::WatchVerdictsResponse>,
) -> Result<(), Status> {
    while let Ok(place) = responses.reserve().await {
        let verdict = tokio::select! {
            next = feed.next() => next?,
            () = responses.closed() => break,
        };
        place.send(Ok(pb::WatchVerdictsResponse {
            verdict: Some(present::verdict(&verdict)),
        }));
    }
    Ok(())
}

/// As many as make a page by size, and at least one.
fn fitting(sessions: impl Iterator<Item = pb::Session>) -> Vec<pb::Session> {
    let mut page_bytes = 0;
    let mut page = Vec::new();
    for session in sessions {
        page_bytes += session.encoded_len();
        if page_bytes > PAGE_BYTES_MAX && !page.is_empty() {
            break;
        }
        page.push(session);
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
    fn parse(request: pb::ListSessionsRequest) -> Result<Self, Invalid> {
        let pb::ListSessionsRequest {
            page_size,
            page_token,
            status,
            labels,
        } = request;
        let size = usize::try_from(page_size)
            .map_err(|_| Invalid::field("page_size", "must not be negative"))?;
        Ok(Self {
            filter: Filter {
                status: convert::status(status)?,
                labels: convert::labels(labels)?,
            },
            after: (!page_token.is_empty())
                .then(|| read_page_token(&page_token))
                .transpose()?,
            size: if size == 0 {
                PAGE_DEFAULT
            } else {
                size.min(PAGE_MAX)
            },
        })
    }
}

/// A page begins after the last session of the page before. Encoded, so that
/// nobody builds on what it says.
fn page_token(last: &str) -> String {
    URL_SAFE_NO_PAD.encode(last)
}

fn read_page_token(token: &str) -> Result<String, Invalid> {
    let invalid = || Invalid::field("page_token", "was not given out by this service");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| invalid())?;
    let id = String::from_utf8(bytes).map_err(|_| invalid())?;
    SessionId::parse(&id).map_err(|_| invalid())?;
    Ok(id)
}
