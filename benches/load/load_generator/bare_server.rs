//! A bare tonic server with the same messages that only answers. It has no
//! tasks, channels, clock or state.

use std::pin::Pin;

use futures_util::{Stream, StreamExt, stream};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status, Streaming, async_trait,
    transport::{Error, Server, server::TcpIncoming},
};
use unstuck::pb::{
    CheckCallRequest, CheckCallResponse, Delta, Event, EventResult, RecordEventRequest,
    RecordEventResponse, StreamDeltasRequest, StreamDeltasResponse, StreamEventsRequest,
    StreamEventsResponse,
    detection_service_server::{DetectionService, DetectionServiceServer},
};

struct BareServer;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// With tonic's default, a connection is lost when a few thousand small messages are
/// unread, which happens when a server waits for its core.
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024 * 1024;

/// Serves until the process or the task ends, otherwise with tonic's default settings.
pub async fn serve(listener: TcpListener) -> Result<(), Error> {
    let (_, health) = tonic_health::server::health_reporter();
    Server::builder()
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .add_service(DetectionServiceServer::new(BareServer))
        .add_service(health)
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
        .await
}

#[async_trait]
impl DetectionService for BareServer {
    async fn check_call(
        &self,
        _request: Request<CheckCallRequest>,
    ) -> Result<Response<CheckCallResponse>, Status> {
        Err(Status::unimplemented("not part of the load"))
    }

    async fn record_event(
        &self,
        request: Request<RecordEventRequest>,
    ) -> Result<Response<RecordEventResponse>, Status> {
        let result = request.into_inner().event.map(answer);
        Ok(Response::new(RecordEventResponse { result }))
    }

    type StreamEventsStream = Answers<StreamEventsResponse>;

    async fn stream_events(
        &self,
        request: Request<Streaming<StreamEventsRequest>>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let answers = request.into_inner().map(|request| {
            let StreamEventsRequest { sequence, events } = request?;
            let results = events.into_iter().map(answer).collect();
            Ok(StreamEventsResponse { sequence, results })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    type StreamDeltasStream = Answers<StreamDeltasResponse>;

    async fn stream_deltas(
        &self,
        request: Request<Streaming<StreamDeltasRequest>>,
    ) -> Result<Response<Self::StreamDeltasStream>, Status> {
        let answers = request.into_inner().flat_map(|request| {
            let deltas = request.map(|request| request.deltas).unwrap_or_default();
            let ends = deltas.into_iter().filter(|delta| delta.end_of_turn);
            stream::iter(ends.map(|delta| Ok(end_of_turn(delta))))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

fn end_of_turn(delta: Delta) -> StreamDeltasResponse {
    StreamDeltasResponse {
        session_id: delta.session_id,
        turn_id: delta.turn_id,
        end_of_turn: true,
        ..StreamDeltasResponse::default()
    }
}

fn answer(event: Event) -> EventResult {
    EventResult {
        session_id: event.session_id,
        event_id: event.event_id,
        ..EventResult::default()
    }
}
