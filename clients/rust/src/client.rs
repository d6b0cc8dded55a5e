//! A client for a broker: calls with a deadline, and both services.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tonic::{
    Request, Response, Status, service::interceptor::InterceptedService, transport::Channel,
};

use crate::{
    Credentials, InvalidOptions, Options,
    pb::{
        self, detection_service_client::DetectionServiceClient,
        session_service_client::SessionServiceClient,
    },
};

/// The longest time that an agent waits for an answer, unless it is set.
pub const DEADLINE: Duration = Duration::from_millis(250);

/// A channel whose calls carry the caller's credentials.
pub type Authorized = InterceptedService<Channel, Credentials>;

/// A client of one service. Clones share the connection: one is enough for a process.
#[derive(Clone, Debug)]
pub struct Client {
    detection: DetectionServiceClient<Authorized>,
    sessions: SessionServiceClient<Authorized>,
    deadline: Duration,
}

impl Client {
    /// Connects with the first call, and again when the connection is lost: the service may
    /// start later than this program. Must be called within a Tokio runtime.
    pub fn connect_lazy(options: &Options) -> Result<Self, InvalidOptions> {
        let channel = options.endpoint()?.connect_lazy();
        let credentials = options.credentials()?;
        Ok(Self {
            detection: DetectionServiceClient::with_interceptor(
                channel.clone(),
                credentials.clone(),
            ),
            sessions: SessionServiceClient::with_interceptor(channel, credentials),
            deadline: DEADLINE,
        })
    }

    /// The same client with another deadline for [`record`](Self::record),
    /// [`check`](Self::check) and [`open_session`](Self::open_session).
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Records one event. With an error of any kind the agent continues: the event may be
    /// sent again, and counts once if it has an `event_id`.
    pub async fn record(&self, event: pb::Event) -> Result<pb::EventResult, Status> {
        let request = pb::RecordEventRequest { event: Some(event) };
        let mut service = self.detection.clone();
        let response = self.within_deadline(request, async |it| service.record_event(it).await);
        Ok(response.await?.result.unwrap_or_default())
    }

    /// Asks whether a call would be refused now. Changes nothing.
    pub async fn check(
        &self,
        request: pb::CheckCallRequest,
    ) -> Result<pb::CheckCallResponse, Status> {
        let mut service = self.detection.clone();
        self.within_deadline(request, async |it| service.check_call(it).await)
            .await
    }

    /// Sets a session's profile and labels.
    pub async fn open_session(
        &self,
        request: pb::OpenSessionRequest,
    ) -> Result<pb::OpenSessionResponse, Status> {
        let mut service = self.sessions.clone();
        self.within_deadline(request, async |it| service.open_session(it).await)
            .await
    }

    /// The rpcs of `DetectionService`, streams included, without a deadline.
    pub fn detection(&self) -> DetectionServiceClient<Authorized> {
        self.detection.clone()
    }

    /// The rpcs of `SessionService`, without a deadline.
    pub fn sessions(&self) -> SessionServiceClient<Authorized> {
        self.sessions.clone()
    }

    /// The server gets the deadline too, so that it stops working on the call. The timer
    /// here also covers the time without a connection.
    async fn within_deadline<Q, A>(
        &self,
        message: Q,
        rpc: impl AsyncFnOnce(Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Status> {
        let mut request = Request::new(message);
        request.set_timeout(self.deadline);
        // tonic has a timer for the same time and reports it as CANCELLED.
        let started = Instant::now();
        match timeout(self.deadline, rpc(request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) if started.elapsed() < self.deadline => Err(status),
            Ok(Err(_)) | Err(_) => Err(Status::deadline_exceeded("no answer within the deadline")),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn a_service_that_does_not_answer_costs_the_deadline() {
        // Accepts connections and never reads.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = Options::new(silent.local_addr().unwrap().to_string());
        let client = Client::connect_lazy(&options)
            .unwrap()
            .with_deadline(Duration::from_millis(20));
        let status = client.record(pb::Event::default()).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
    }

    #[tokio::test]
    async fn without_a_service_a_call_is_an_error() {
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = Options::new(unused.local_addr().unwrap().to_string());
        drop(unused);
        let client = Client::connect_lazy(&options).unwrap();
        let error = client.check(pb::CheckCallRequest::default()).await;
        assert!(error.is_err());
    }
}
