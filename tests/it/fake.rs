//! A fake service with scripted responses that records its requests, for behaviour that a
//! real service shows only rarely.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::net::TcpListener;
use tokio_stream::{Iter, iter};
use tonic::{
    Request, Response, Status, async_trait,
    transport::{Server, server::TcpIncoming},
};
use unstuck::pb::{
    self,
    session_service_server::{SessionService, SessionServiceServer},
};

type Answer<T> = Result<Response<T>, Status>;
type Items = Vec<Result<pb::WatchVerdictsResponse, Status>>;

#[derive(Default)]
struct State {
    /// Each call, as `rpc by operator: request`, or `rpc by operator with token: request`.
    requests: Vec<String>,
    pages: Vec<pb::ListVerdictsResponse>,
    session_pages: Vec<pb::ListSessionsResponse>,
    watches: Vec<Result<Items, Status>>,
}

#[derive(Clone, Default)]
pub struct FakeService(Arc<Mutex<State>>);

impl FakeService {
    pub async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = SessionServiceServer::new(self.clone());
        let server = Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        address
    }

    /// The pages of the audit log, in the order of the requests.
    pub fn set_verdict_pages(&self, pages: Vec<pb::ListVerdictsResponse>) {
        self.0.lock().unwrap().pages = pages;
    }

    pub fn set_session_pages(&self, pages: Vec<pb::ListSessionsResponse>) {
        self.0.lock().unwrap().session_pages = pages;
    }

    /// The items of each watch in turn; the last item ends it.
    pub fn set_watches(&self, watches: Vec<Result<Items, Status>>) {
        self.0.lock().unwrap().watches = watches;
    }

    pub fn requests(&self) -> Vec<String> {
        self.0.lock().unwrap().requests.clone()
    }

    fn log_request<Q: serde::Serialize>(&self, rpc: &str, request: &Request<Q>) {
        let operator = request.metadata().get("unstuck-operator");
        let operator = operator.map_or("", |name| name.to_str().unwrap());
        let token = request.metadata().get("authorization");
        let token = token.map_or_else(String::new, |it| format!(" with {}", it.to_str().unwrap()));
        let json = serde_json::to_string(request.get_ref()).unwrap();
        let line = format!("{rpc} by {operator}{token}: {json}");
        self.0.lock().unwrap().requests.push(line);
    }
}

fn next<T>(list: &mut Vec<T>) -> Result<T, Status> {
    if list.is_empty() {
        return Err(Status::failed_precondition(
            "the test has no further answer",
        ));
    }
    Ok(list.remove(0))
}

#[async_trait]
impl SessionService for FakeService {
    async fn list_verdicts(
        &self,
        request: Request<pb::ListVerdictsRequest>,
    ) -> Answer<pb::ListVerdictsResponse> {
        self.log_request("list", &request);
        Ok(Response::new(next(&mut self.0.lock().unwrap().pages)?))
    }

    async fn list_sessions(
        &self,
        request: Request<pb::ListSessionsRequest>,
    ) -> Answer<pb::ListSessionsResponse> {
        self.log_request("sessions", &request);
        let pages = &mut self.0.lock().unwrap().session_pages;
        Ok(Response::new(next(pages)?))
    }

    type WatchVerdictsStream = Iter<std::vec::IntoIter<Result<pb::WatchVerdictsResponse, Status>>>;

    async fn watch_verdicts(
        &self,
        request: Request<pb::WatchVerdictsRequest>,
    ) -> Answer<Self::WatchVerdictsStream> {
        self.log_request("watch", &request);
        let items = next(&mut self.0.lock().unwrap().watches)??;
        Ok(Response::new(iter(items)))
    }

    async fn snooze_session(
        &self,
        request: Request<pb::SnoozeSessionRequest>,
    ) -> Answer<pb::SnoozeSessionResponse> {
        self.log_request("snooze", &request);
        Ok(Response::new(pb::SnoozeSessionResponse::default()))
    }

    async fn rate_verdict(
        &self,
        request: Request<pb::RateVerdictRequest>,
    ) -> Answer<pb::RateVerdictResponse> {
        self.log_request("rate", &request);
        Ok(Response::new(pb::RateVerdictResponse::default()))
    }

    async fn reset_session(
        &self,
        request: Request<pb::ResetSessionRequest>,
    ) -> Answer<pb::ResetSessionResponse> {
        self.log_request("reset", &request);
        Ok(Response::new(pb::ResetSessionResponse::default()))
    }

    async fn open_session(
        &self,
        _: Request<pb::OpenSessionRequest>,
    ) -> Answer<pb::OpenSessionResponse> {
        Err(Status::unimplemented("no test needs it"))
    }

    async fn end_session(
        &self,
        _: Request<pb::EndSessionRequest>,
    ) -> Answer<pb::EndSessionResponse> {
        Err(Status::unimplemented("no test needs it"))
    }

    async fn terminate_session(
        &self,
        request: Request<pb::TerminateSessionRequest>,
    ) -> Answer<pb::TerminateSessionResponse> {
        self.log_request("terminate", &request);
        Ok(Response::new(pb::TerminateSessionResponse::default()))
    }

    async fn get_session(
        &self,
        _: Request<pb::GetSessionRequest>,
    ) -> Answer<pb::GetSessionResponse> {
        let page = next(&mut self.0.lock().unwrap().session_pages)?;
        Ok(Response::new(pb::GetSessionResponse {
            session: page.sessions.into_iter().next(),
            ..Default::default()
        }))
    }
}
