//! SessionService: opening, ending and listing sessions, and operator actions.

use tonic::{Request, Response, Status, async_trait, metadata::MetadataMap};

use super::{
    Api, InvalidArgument, convert, now,
    paging::{collect_page, decode_page_token, encode_page_token, parse_page_size},
    peers::Peers,
    present, status,
};
use crate::{
    auth::Caller,
    domain::{SessionId, SessionStatus, Tenant, Verdict, sanitize},
    engine::{ListFilter, OpenError, OperatorRequest, TerminationOutcome},
    pb::{self, session_service_server::SessionService},
    server::{admission::authenticated_caller, blocking, response_queue::ResponseStream},
    store::StoreHealth,
    telemetry::Rejection,
};

/// The metadata key of the operator's name.
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
        self.own(&id).await;
        let view = self
            .engine
            .open_session(&id, &profile, labels, now())
            .inspect_err(|error| self.count_open_error(error))?;
        // A crash must not change the session's profile.
        let durable = self.store.wait_until_saved(&id).await;
        self.save_changed(&id).await;
        let session = Some(self.present_session(&view).await);
        Ok(Response::new(pb::OpenSessionResponse { session, durable }))
    }

    async fn end_session(
        &self,
        request: Request<pb::EndSessionRequest>,
    ) -> RpcResult<pb::EndSessionResponse> {
        let caller = authenticated_caller(&request)?;
        let pb::EndSessionRequest { session_id } = request.into_inner();
        let id = self.parse_session_id(&caller, &session_id)?;
        self.own(&id).await;
        let view = self
            .engine
            .end_session(&id, now())
            .ok_or_else(status::session_not_found)?;
        if let Some(cluster) = &self.cluster {
            cluster.end(&id).await;
        }
        self.store.remove_session(id);
        let session = Some(self.present_session(&view).await);
        Ok(Response::new(pb::EndSessionResponse { session }))
    }

    async fn reset_session(
        &self,
        request: Request<pb::ResetSessionRequest>,
    ) -> RpcResult<pb::ResetSessionResponse> {
        let operator = Operator::identify(&request)?;
        let pb::ResetSessionRequest { session_id, reason } = request.into_inner();
        let action = self.parse_operator_action(operator, &session_id, reason)?;
        self.check_store_writable()?;
        self.own(&action.session).await;
        let verdict = self
            .engine
            .issue_reset(&action.session, &action.request(), now())
            .ok_or_else(status::session_not_found)?;
        let message = self.await_durable(&verdict).await?;
        let reset = || self.engine.apply_reset(&action.session, &verdict, now());
        match &self.cluster {
            Some(cluster) => cluster.reset(&action.session, verdict.id, reset).await,
            None => reset(),
        }
        action.log("reset");
        let verdict = Some(message);
        Ok(Response::new(pb::ResetSessionResponse { verdict }))
    }

    async fn terminate_session(
        &self,
        request: Request<pb::TerminateSessionRequest>,
    ) -> RpcResult<pb::TerminateSessionResponse> {
        let operator = Operator::identify(&request)?;
        let pb::TerminateSessionRequest { session_id, reason } = request.into_inner();
        let action = self.parse_operator_action(operator, &session_id, reason)?;
        self.own(&action.session).await;
        let TerminationOutcome {
            verdict,
            previous_status,
        } = self
            .engine
            .terminate_session(&action.session, &action.request(), now());
        let OperatorAction {
            session,
            operator,
            reason,
        } = action;
        tracing::info!(
            ?session,
            ?operator,
            ?reason,
            previous_status = previous_status.map(SessionStatus::name),
            "an operator terminated the session"
        );
        let previous_status =
            previous_status.map_or(pb::SessionStatus::Unspecified, present::status_to_pb);
        Ok(Response::new(pb::TerminateSessionResponse {
            verdict: Some(self.present_settled_verdict(&verdict).await),
            previous_status: previous_status.into(),
        }))
    }

    async fn snooze_session(
        &self,
        request: Request<pb::SnoozeSessionRequest>,
    ) -> RpcResult<pb::SnoozeSessionResponse> {
        let operator = Operator::identify(&request)?;
        let pb::SnoozeSessionRequest {
            session_id,
            duration,
            reason,
        } = request.into_inner();
        let action = self.parse_operator_action(operator, &session_id, reason)?;
        let duration = convert::parse_snooze_duration(duration)
            .map_err(|invalid| self.count_rejected(invalid))?;
        self.check_store_writable()?;
        self.own(&action.session).await;
        let now = now();
        let verdict =
            self.engine
                .issue_snooze(&action.session, &action.request(), duration, now)?;
        let message = self.await_durable(&verdict).await?;
        self.engine.apply_snooze(&action.session, now + duration);
        self.save_changed(&action.session).await;
        self.wait_until_settled(verdict.id).await;
        action.log("snoozed");
        let verdict = Some(message);
        Ok(Response::new(pb::SnoozeSessionResponse { verdict }))
    }

    async fn rate_verdict(
        &self,
        request: Request<pb::RateVerdictRequest>,
    ) -> RpcResult<pb::RateVerdictResponse> {
        let operator = Operator::identify(&request)?;
        self.record_rating(operator, request.into_inner()).await
    }

    async fn get_session(
        &self,
        request: Request<pb::GetSessionRequest>,
    ) -> RpcResult<pb::GetSessionResponse> {
        let caller = authenticated_caller(&request)?;
        let pb::GetSessionRequest { session_id } = request.into_inner();
        let id = self.parse_session_id(&caller, &session_id)?;
        let elsewhere = match &self.cluster {
            Some(cluster) => cluster.detail(&id).await,
            None => None,
        };
        let detail = elsewhere
            .or_else(|| self.engine.detail(&id))
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
        let peers = Peers::new(self.cluster.as_ref(), request.metadata());
        let request = request.into_inner();
        if request.worst_first {
            return self.list_worst_sessions(&caller, request, peers).await;
        }
        let query = SessionListQuery::parse(&caller.tenant, request.clone())
            .map_err(|invalid| self.count_rejected(invalid))?;
        let size = query.size;
        let restored = self.engine.restored_summary();
        let engine = self.engine.clone();
        // A page needs a scan of all sessions.
        let (views, last) = blocking::scan_sessions(move || {
            engine.list_sessions(&query.filter, query.after.as_deref(), query.size)
        })
        .await
        .map_err(|error| self.server.blocking_failed(&error))?;
        let mut sessions = Vec::with_capacity(views.len());
        let replica = self.cluster.as_ref().map_or("", |cluster| cluster.name());
        for view in &views {
            sessions.push(pb::Session {
                replica: replica.to_owned(),
                ..self.present_session(view).await
            });
        }
        let sessions = collect_page(sessions.into_iter());
        let truncated_after = sessions.last().filter(|_| sessions.len() < views.len());
        let truncated_token = truncated_after.map(|session| encode_page_token(&session.session_id));
        let next = truncated_token.or_else(|| last.map(|id| encode_page_token(id.as_str())));
        let page = pb::ListSessionsResponse {
            next_page_token: next.unwrap_or_default(),
            data_since: restored.map(|summary| present::time_to_pb(summary.data_since)),
            replicas: Vec::new(),
            counts: Default::default(),
            sessions,
        };
        Ok(Response::new(match peers {
            Some(peers) => {
                let merged = peers.merge_sessions(&request, page, size, encode_page_token);
                merged.await
            }
            None => page,
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
    /// In a cluster, takes a session.
    pub(super) async fn own(&self, session: &SessionId) {
        if let Some(cluster) = &self.cluster {
            cluster.own([session]).await;
        }
    }

    /// In a cluster, saves a session that was changed by something else than an event.
    pub(super) async fn save_changed(&self, session: &SessionId) {
        if let Some(cluster) = &self.cluster {
            cluster.save_changed(session).await;
        }
    }

    fn parse_session_id(&self, caller: &Caller, id: &str) -> Result<SessionId, Status> {
        Ok(convert::parse_session_id(&caller.tenant, id)
            .map_err(|invalid| self.count_rejected(invalid))?)
    }

    pub(super) fn count_open_error(&self, error: &OpenError) {
        match error {
            OpenError::Terminated => {}
            OpenError::NoProfile(_) => self
                .server
                .metrics
                .count_rejection(Rejection::InvalidArgument),
            OpenError::Record(refused) => self.server.metrics.count_rejection(refused.rejection()),
        }
    }

    /// Rejects an action that must survive a restart while the store cannot be
    /// written.
    pub(super) fn check_store_writable(&self) -> Result<(), Status> {
        match self.store.health() {
            StoreHealth::WriteFailing(_) | StoreHealth::Stalled(_) => {
                Err(status::store_not_writable())
            }
            StoreHealth::InMemory | StoreHealth::Healthy => Ok(()),
        }
    }

    /// Waits until a reset, snooze or rating is on disk, if there is a disk. An error means that
    /// it has not happened.
    pub(super) async fn await_durable(&self, verdict: &Verdict) -> Result<pb::Verdict, Status> {
        if !self.store.settle_or_withdraw(verdict.id).await {
            return Err(status::store_not_writable());
        }
        Ok(self.present_verdict(verdict))
    }

    /// Parses what reset, terminate and snooze have in common.
    fn parse_operator_action(
        &self,
        operator: Operator,
        session_id: &str,
        reason: String,
    ) -> Result<OperatorAction, Status> {
        let Operator { caller, name } = operator;
        Ok(OperatorAction {
            session: self.parse_session_id(&caller, session_id)?,
            reason: convert::parse_reason(reason)
                .map_err(|invalid| self.count_rejected(invalid))?,
            operator: name,
        })
    }
}

/// The caller of an operator action, and the name that the audit log records.
pub(super) struct Operator {
    pub caller: Caller,
    pub name: String,
}

impl Operator {
    /// The name is that of the token. Without authentication it is the metadata
    /// `unstuck-operator`, which is only a claim.
    fn identify<T>(request: &Request<T>) -> Result<Self, Status> {
        let caller = authenticated_caller(request)?;
        let name = if caller.name.is_empty() {
            claimed_name(request.metadata())
        } else {
            caller.name.to_string()
        };
        Ok(Self { caller, name })
    }
}

fn claimed_name(metadata: &MetadataMap) -> String {
    let value = metadata
        .get(OPERATOR_KEY)
        .and_then(|value| value.to_str().ok());
    let name = sanitize::quote(value.unwrap_or_default(), OPERATOR_CHARS_MAX);
    if name.is_empty() {
        return "unknown".to_owned();
    }
    name
}

/// An operator's request to reset, terminate or snooze a session.
struct OperatorAction {
    session: SessionId,
    operator: String,
    reason: String,
}

impl OperatorAction {
    fn request(&self) -> OperatorRequest<'_> {
        OperatorRequest {
            reason: &self.reason,
            operator: &self.operator,
        }
    }

    fn log(self, action: &str) {
        let Self {
            session,
            operator,
            reason,
        } = self;
        tracing::info!(
            ?session,
            ?operator,
            ?reason,
            "an operator {action} the session"
        );
    }
}

/// The parameters of ListSessions.
struct SessionListQuery {
    filter: ListFilter,
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
            // Of the list by severity.
            worst_first: _,
            search: _,
            detector: _,
            min_action: _,
        } = request;
        Ok(Self {
            filter: ListFilter {
                tenant: tenant.clone(),
                status: convert::parse_status(status)?,
                labels: convert::parse_labels(labels)?,
            },
            after: decode_page_token(&page_token, |last| {
                SessionId::parse(last).ok().map(|id| id.to_string())
            })?,
            size: parse_page_size(page_size)?,
        })
    }
}
