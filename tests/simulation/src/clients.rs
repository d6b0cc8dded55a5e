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
    Shared,
    host::{PORT, SERVER},
};

/// The timeout for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);
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

async fn retried<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Option<T> {
    let answer = timeout(ANSWER_TIMEOUT, call).await.ok()?;
    answer.ok().map(tonic::Response::into_inner)
}

/// A connection that is reopened when it fails.
struct Line {
    channel: Option<Channel>,
    ledger: Shared,
}

impl Line {
    fn new(ledger: Shared) -> Self {
        Self {
            channel: None,
            ledger,
        }
    }

    async fn channel(&mut self) -> Channel {
        loop {
            if let Some(channel) = &self.channel {
                return channel.clone();
            }
            self.channel = connect().await;
            if self.channel.is_none() {
                sleep(PAUSE).await;
            }
        }
    }

    fn lost(&mut self) {
        self.channel = None;
        self.ledger.borrow_mut().reconnected += 1;
    }

    /// Sends an event until it is answered.
    async fn record(&mut self, session: &str, event: usize) -> EventResult {
        let event = Event {
            session_id: session.to_owned(),
            event_id: format!("e{event}"),
            body: Some(Body::ToolCall(the_same_call())),
            ..Event::default()
        };
        loop {
            let mut client = DetectionServiceClient::new(self.channel().await);
            let request = RecordEventRequest {
                event: Some(event.clone()),
            };
            if let Some(answer) = retried(client.record_event(request)).await {
                return answer.result.unwrap();
            }
            self.lost();
            self.ledger.borrow_mut().resent += 1;
        }
    }
}

/// An agent that repeats the same call.
fn the_same_call() -> ToolCall {
    ToolCall {
        tool: "lookup_setting".to_owned(),
        arguments: Some(Arguments::ArgsJson("{\"name\": \"colour\"}".to_owned())),
        outcome: Outcome::Ok.into(),
        result: Some("not decided".to_owned()),
        ..ToolCall::default()
    }
}

/// Sends looping sessions until they are terminated, and events after that.
pub async fn broker(ledger: Shared) -> turmoil::Result {
    wait_for_first_verdict(&ledger).await;
    let mut line = Line::new(ledger.clone());
    for n in 0..SESSIONS {
        let session = format!("looping-{n}");
        let mut last = -1;
        for event in 0..EVENTS {
            let result = line.record(&session, event).await;
            check_answer(&ledger, &session, &result);
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
    finish(&ledger, "broker");
    wait_until_all_done(&ledger).await;
    // In the end every answered termination is still in force.
    let terminated = ledger.borrow().terminated.clone();
    for session in terminated.keys() {
        check_answer(&ledger, session, &line.record(session, EVENTS).await);
    }
    Ok(())
}

/// After an answered termination every answer is that termination.
fn check_answer(ledger: &Shared, session: &str, result: &EventResult) {
    let verdict = result.verdict.as_ref();
    let terminated = verdict.filter(|verdict| verdict.action() == Action::Terminate);
    let mut ledger = ledger.borrow_mut();
    match (ledger.terminated.get(session), terminated) {
        (Some(known), Some(verdict)) => assert_eq!(*known, verdict.verdict_id, "{session}"),
        (Some(known), None) => panic!("{session}: {known} was answered, and is lost: {result:?}"),
        (None, Some(verdict)) => {
            assert!(verdict.durable, "{session}: answered, and not on disk");
            ledger
                .terminated
                .insert(session.to_owned(), verdict.verdict_id.clone());
        }
        (None, None) => {}
    }
}

async fn terminate(line: &mut Line, session: &str) -> Verdict {
    loop {
        let mut client = SessionServiceClient::new(line.channel().await);
        let request = TerminateSessionRequest {
            session_id: session.to_owned(),
            reason: "the simulation wants it".to_owned(),
        };
        if let Some(answer) = retried(client.terminate_session(request)).await {
            return answer.verdict.unwrap();
        }
        line.lost();
    }
}

/// Terminates sessions as an operator, and queries them again.
pub async fn operator(ledger: Shared) -> turmoil::Result {
    wait_for_first_verdict(&ledger).await;
    let mut line = Line::new(ledger.clone());
    for n in 0..SESSIONS {
        let session_id = format!("ended-{n}");
        let verdict = terminate(&mut line, &session_id).await;
        assert!(verdict.durable, "{session_id}: answered, and not on disk");
        let before = ledger
            .borrow_mut()
            .terminated
            .insert(session_id, verdict.verdict_id);
        assert_eq!(before, None);
        sleep(PAUSE * 3).await;
        check_earlier(&mut line, &ledger, n).await;
    }
    finish(&ledger, "operator");
    Ok(())
}

/// Checks that an earlier termination is still in force.
async fn check_earlier(line: &mut Line, ledger: &Shared, n: usize) {
    let session_id = format!("ended-{}", n / 2);
    let expected = ledger.borrow().terminated[&session_id].clone();
    loop {
        let mut client = SessionServiceClient::new(line.channel().await);
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
            _ => line.lost(),
        }
    }
}

/// Watches verdicts and resumes after the last one seen, until it has seen the whole
/// audit log after the others are done.
pub async fn watcher(ledger: Shared) -> turmoil::Result {
    let mut line = Line::new(ledger.clone());
    // The first verdict, before any fault: the others follow it.
    let first = terminate(&mut line, "first").await;
    ledger.borrow_mut().watched.push(first.verdict_id);
    loop {
        let mut client = SessionServiceClient::new(line.channel().await);
        let after_verdict_id = ledger.borrow().watched.last().cloned().unwrap_or_default();
        let request = WatchVerdictsRequest {
            after_verdict_id,
            ..Default::default()
        };
        let Some(mut verdicts) = retried(client.watch_verdicts(request)).await else {
            line.lost();
            continue;
        };
        // No verdict may mean no news or a dead connection.
        while let Ok(Ok(Some(response))) = timeout(ANSWER_TIMEOUT * 2, verdicts.message()).await {
            let verdict = response.verdict.unwrap().verdict_id;
            ledger.borrow_mut().watched.push(verdict);
        }
        if !ledger
            .borrow()
            .done
            .is_superset(&["broker", "operator"].into())
        {
            line.lost();
            continue;
        }
        if let Some(log) = audit(&mut line).await
            && log.len() <= ledger.borrow().watched.len()
        {
            assert_eq!(ledger.borrow().watched, log, "each verdict once, in order");
            finish(&ledger, "watcher");
            return Ok(());
        }
    }
}

/// Lists the whole audit log.
async fn audit(line: &mut Line) -> Option<Vec<String>> {
    let mut client = SessionServiceClient::new(line.channel().await);
    let mut request = ListVerdictsRequest {
        page_size: 1_000,
        ..Default::default()
    };
    let mut ids = Vec::new();
    loop {
        let Some(page) = retried(client.list_verdicts(request.clone())).await else {
            line.lost();
            return None;
        };
        ids.extend(page.verdicts.into_iter().map(|verdict| verdict.verdict_id));
        if page.next_page_token.is_empty() {
            return Some(ids);
        }
        request.page_token = page.next_page_token;
    }
}

fn finish(ledger: &Shared, who: &'static str) {
    ledger.borrow_mut().done.insert(who);
}

async fn wait_until_all_done(ledger: &Shared) {
    while !ledger.borrow().done.contains("operator") {
        sleep(PAUSE).await;
    }
}

/// Waits until the watcher has its start position.
async fn wait_for_first_verdict(ledger: &Shared) {
    while ledger.borrow().watched.is_empty() {
        sleep(PAUSE).await;
    }
}
