//! The clients of the service, and what they check. Each has a timeout for answers, then
//! reconnects and retries, as a good client does.

use std::{io, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::time::{sleep, timeout};
use tonic::{
    Status,
    transport::{Channel, Endpoint, Uri},
};
use unstuck::pb::{
    Action, Event, EventResult, GetSessionRequest, ListVerdictsRequest, Outcome,
    RecordEventRequest, TerminateSessionRequest, ToolCall, Verdict, WatchVerdictsRequest,
    detection_service_client::DetectionServiceClient, event::Body,
    session_service_client::SessionServiceClient, tool_call::Arguments,
};

use super::{
    SharedObserved,
    host::{PORT, SERVER},
};

/// The timeout for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_DELAY: Duration = Duration::from_millis(100);
const SESSIONS: usize = 20;
/// Equal calls; the fifth terminates the session.
const EVENTS: usize = 6;

async fn connect() -> Option<Channel> {
    let connector = tower::service_fn(|_: Uri| async {
        let stream = turmoil::net::TcpStream::connect((SERVER, PORT)).await?;
        Ok::<_, io::Error>(TokioIo::new(stream))
    });
    let endpoint = Endpoint::from_static("http://server:50551");
    timeout(ANSWER_TIMEOUT, endpoint.connect_with_connector(connector))
        .await
        .ok()?
        .ok()
}

async fn answered_in_time<T>(
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Option<T> {
    let answer = timeout(ANSWER_TIMEOUT, call).await.ok()?;
    answer.ok().map(tonic::Response::into_inner)
}

/// A connection that is reopened when it fails.
struct Connection {
    channel: Option<Channel>,
    observed: SharedObserved,
}

impl Connection {
    fn new(observed: SharedObserved) -> Self {
        Self {
            channel: None,
            observed,
        }
    }

    async fn channel(&mut self) -> Channel {
        loop {
            if let Some(channel) = &self.channel {
                return channel.clone();
            }
            self.channel = connect().await;
            if self.channel.is_none() {
                sleep(RETRY_DELAY).await;
            }
        }
    }

    fn disconnect(&mut self) {
        self.channel = None;
        self.observed.borrow_mut().reconnected += 1;
    }

    /// Sends an event until it is answered.
    async fn record(&mut self, session: &str, event: usize) -> EventResult {
        let event = Event {
            session_id: session.to_owned(),
            event_id: format!("e{event}"),
            body: Some(Body::ToolCall(repeated_call())),
            ..Event::default()
        };
        loop {
            let mut client = DetectionServiceClient::new(self.channel().await);
            let request = RecordEventRequest {
                event: Some(event.clone()),
            };
            if let Some(answer) = answered_in_time(client.record_event(request)).await {
                return answer.result.unwrap();
            }
            self.disconnect();
            self.observed.borrow_mut().resent += 1;
        }
    }
}

/// An agent that repeats the same call.
fn repeated_call() -> ToolCall {
    ToolCall {
        tool: "lookup_setting".to_owned(),
        arguments: Some(Arguments::ArgsJson("{\"name\": \"colour\"}".to_owned())),
        outcome: Outcome::Ok.into(),
        result: Some("not decided".to_owned()),
        ..ToolCall::default()
    }
}

/// Sends looping sessions until they are terminated, and events after that.
pub async fn broker(observed: SharedObserved) -> turmoil::Result {
    wait_for_first_verdict(&observed).await;
    let mut connection = Connection::new(observed.clone());
    for n in 0..SESSIONS {
        let session = format!("looping-{n}");
        let mut last = -1;
        for event in 0..EVENTS {
            let result = connection.record(&session, event).await;
            check_answer(&observed, &session, &result);
            // A restart loses sessions that are not terminated, so the count restarts.
            if result.event_index >= 0 {
                let counted_once = result.event_index == last + 1 || result.event_index == 0;
                assert!(
                    counted_once,
                    "{session}: {} after {last}",
                    result.event_index
                );
                last = result.event_index;
            }
        }
    }
    finish(&observed, "broker");
    wait_until_all_done(&observed).await;
    // In the end every answered termination is still in force.
    let terminated = observed.borrow().terminated.clone();
    for session in terminated.keys() {
        check_answer(
            &observed,
            session,
            &connection.record(session, EVENTS).await,
        );
    }
    Ok(())
}

/// After an answered termination every answer is that termination.
fn check_answer(observed: &SharedObserved, session: &str, result: &EventResult) {
    let verdict = result.verdict.as_ref();
    let terminated = verdict.filter(|verdict| verdict.action() == Action::Terminate);
    let mut observed = observed.borrow_mut();
    match (observed.terminated.get(session), terminated) {
        (Some(known), Some(verdict)) => assert_eq!(*known, verdict.verdict_id, "{session}"),
        (Some(known), None) => panic!("{session}: {known} was answered, and is lost: {result:?}"),
        (None, Some(verdict)) => {
            assert!(verdict.durable, "{session}: answered, and not on disk");
            observed
                .terminated
                .insert(session.to_owned(), verdict.verdict_id.clone());
        }
        (None, None) => {}
    }
}

async fn terminate(connection: &mut Connection, session: &str) -> Verdict {
    loop {
        let mut client = SessionServiceClient::new(connection.channel().await);
        let request = TerminateSessionRequest {
            session_id: session.to_owned(),
            reason: "the simulation wants it".to_owned(),
        };
        if let Some(answer) = answered_in_time(client.terminate_session(request)).await {
            return answer.verdict.unwrap();
        }
        connection.disconnect();
    }
}

/// Terminates sessions as an operator, and queries them again.
pub async fn operator(observed: SharedObserved) -> turmoil::Result {
    wait_for_first_verdict(&observed).await;
    let mut connection = Connection::new(observed.clone());
    for n in 0..SESSIONS {
        let session_id = format!("ended-{n}");
        let verdict = terminate(&mut connection, &session_id).await;
        assert!(verdict.durable, "{session_id}: answered, and not on disk");
        let before = observed
            .borrow_mut()
            .terminated
            .insert(session_id, verdict.verdict_id);
        assert_eq!(before, None);
        sleep(RETRY_DELAY * 3).await;
        check_earlier(&mut connection, &observed, n).await;
    }
    finish(&observed, "operator");
    Ok(())
}

/// Checks that an earlier termination is still in force.
async fn check_earlier(connection: &mut Connection, observed: &SharedObserved, n: usize) {
    let session_id = format!("ended-{}", n / 2);
    let expected = observed.borrow().terminated[&session_id].clone();
    loop {
        let mut client = SessionServiceClient::new(connection.channel().await);
        let request = GetSessionRequest {
            session_id: session_id.clone(),
        };
        match timeout(ANSWER_TIMEOUT, client.get_session(request)).await {
            Ok(Ok(answer)) => {
                let session = answer.into_inner().session.unwrap();
                let termination = session.termination.map(|verdict| verdict.verdict_id);
                assert_eq!(termination, Some(expected), "{session_id}");
                return;
            }
            Ok(Err(status)) if status.code() == tonic::Code::NotFound => {
                panic!("{session_id}: {expected} was answered, and is lost");
            }
            _ => connection.disconnect(),
        }
    }
}

/// Watches verdicts and resumes after the last one seen, until it has seen the whole
/// audit log after the others are done.
pub async fn watcher(observed: SharedObserved) -> turmoil::Result {
    let mut connection = Connection::new(observed.clone());
    // The first verdict, before any fault: the others follow it.
    let first = terminate(&mut connection, "first").await;
    observed.borrow_mut().watched.push(first.verdict_id);
    loop {
        let mut client = SessionServiceClient::new(connection.channel().await);
        let after_verdict_id = observed
            .borrow()
            .watched
            .last()
            .cloned()
            .unwrap_or_default();
        let request = WatchVerdictsRequest {
            after_verdict_id,
            ..Default::default()
        };
        let Some(mut verdicts) = answered_in_time(client.watch_verdicts(request)).await else {
            connection.disconnect();
            continue;
        };
        // No verdict may mean no news or a dead connection.
        while let Ok(Ok(Some(response))) = timeout(ANSWER_TIMEOUT * 2, verdicts.message()).await {
            let verdict = response.verdict.unwrap().verdict_id;
            observed.borrow_mut().watched.push(verdict);
        }
        if !observed
            .borrow()
            .done
            .is_superset(&["broker", "operator"].into())
        {
            connection.disconnect();
            continue;
        }
        if let Some(log) = list_audit_log(&mut connection).await
            && log.len() <= observed.borrow().watched.len()
        {
            assert_eq!(
                observed.borrow().watched,
                log,
                "each verdict once, in order"
            );
            finish(&observed, "watcher");
            return Ok(());
        }
    }
}

/// Lists the whole audit log.
async fn list_audit_log(connection: &mut Connection) -> Option<Vec<String>> {
    let mut client = SessionServiceClient::new(connection.channel().await);
    let mut request = ListVerdictsRequest {
        page_size: 1_000,
        ..Default::default()
    };
    let mut ids = Vec::new();
    loop {
        let Some(page) = answered_in_time(client.list_verdicts(request.clone())).await else {
            connection.disconnect();
            return None;
        };
        ids.extend(page.verdicts.into_iter().map(|verdict| verdict.verdict_id));
        if page.next_page_token.is_empty() {
            return Some(ids);
        }
        request.page_token = page.next_page_token;
    }
}

fn finish(observed: &SharedObserved, client: &'static str) {
    observed.borrow_mut().done.insert(client);
}

async fn wait_until_all_done(observed: &SharedObserved) {
    while !observed.borrow().done.contains("operator") {
        sleep(RETRY_DELAY).await;
    }
}

/// Waits until the watcher has its start position.
async fn wait_for_first_verdict(observed: &SharedObserved) {
    while observed.borrow().watched.is_empty() {
        sleep(RETRY_DELAY).await;
    }
}
