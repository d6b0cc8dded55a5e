//! A broker: the program between an agent and its tools, with Unstuck.
//!
//!     UNSTUCK_SERVER=127.0.0.1:50551 cargo run --example broker [-- --stubborn[=CALLS]]

use std::{collections::HashMap, env, error::Error, fmt::Write, future::Future, time::Duration};

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tonic::{Request, Response, Status, transport::Channel, transport::Endpoint};
use unstuck::pb::{
    self, Action, Outcome, check_call_request, detection_service_client::DetectionServiceClient,
    event::Body, session_service_client::SessionServiceClient, tool_call,
};

const STEPS_MAX: usize = 20;
/// The longest time that an agent waits for an answer of Unstuck.
const DEADLINE: Duration = Duration::from_millis(250);
/// Arguments that only explain a call, as member.call_key in verdict.proto lists them.
const EXPLAINING: &str = "description explanation justification max_output_chars max_output_length \
    max_output_tokens reason reasoning thought thoughts timeout timeout_ms timeout_seconds \
    yield_time_ms";

/// The example agents: one reads a file again and again until it is corrected, one goes
/// round some orders and never listens.
fn next_call(messages: &[String], step: usize, orders: usize) -> Option<(&'static str, Value)> {
    if orders > 0 {
        return Some(("get_order", json!({"order_id": 5 + (step - 1) % orders})));
    }
    let is_corrected = messages.iter().any(|text| text.starts_with("system: "));
    (!is_corrected).then(|| ("read_file", json!({"path": "src/main.rs"})))
}

/// The key by which `standing.blocked` names a call.
fn call_key(tool: &str, mut args: Value) -> Option<String> {
    for name in EXPLAINING.split(' ') {
        args.as_object_mut()?.remove(name);
    }
    // RFC 8785.
    let canonical = serde_json_canonicalizer::to_string(&args).ok()?;
    let hash = digest(&SHA256, format!("{tool}\0{canonical}").as_bytes());
    let mut key = String::new();
    for byte in &hash.as_ref()[..16] {
        write!(key, "{byte:02x}").ok()?;
    }
    Some(key)
}

/// A request with the deadline for the server.
fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

/// Fails open: without an answer, for any reason, the agent continues. The timer also covers
/// the time without a connection.
async fn ask<T>(rpc: impl Future<Output = Result<Response<T>, Status>>) -> Option<T> {
    match tokio::time::timeout(DEADLINE, rpc).await {
        Ok(Ok(answer)) => return Some(answer.into_inner()),
        Ok(Err(status)) => eprintln!("unstuck: {}; continuing without it", status.message()),
        Err(_) => eprintln!("unstuck: no answer in time; continuing without it"),
    }
    None
}

struct Broker {
    detection: DetectionServiceClient<Channel>,
    sessions: SessionServiceClient<Channel>,
    session_id: String,
    /// The keys of the calls that the last answer says to refuse.
    blocked: Vec<String>,
    is_answer_missed: bool,
}

impl Broker {
    fn new(channel: Channel) -> Self {
        Self {
            detection: DetectionServiceClient::new(channel.clone()),
            sessions: SessionServiceClient::new(channel),
            session_id: format!("toy-{}", uuid::Uuid::now_v7()),
            blocked: Vec::new(),
            is_answer_missed: false,
        }
    }

    async fn open_session(&mut self) {
        let opening = pb::OpenSessionRequest {
            session_id: self.session_id.clone(),
            profile: "default".into(),
            labels: HashMap::from([("team".into(), "examples".into())]),
        };
        ask(self.sessions.open_session(request(opening))).await;
    }

    /// Whether a call is refused. `Err`: the session is terminated, with the reason.
    async fn is_refused(&mut self, tool: &str, args: &Value) -> Result<bool, String> {
        let check = pb::CheckCallRequest {
            session_id: self.session_id.clone(),
            tool: tool.into(),
            arguments: Some(check_call_request::Arguments::ArgsJson(args.to_string())),
            ..Default::default()
        };
        match ask(self.detection.check_call(request(check))).await {
            Some(check) if check.action() == Action::Terminate => {
                Err(check.verdict.unwrap_or_default().reason)
            }
            // A broker replaces an action that it cannot perform by the next weaker one. This
            // one has no second model and no generation to stop: those become BLOCK.
            Some(check) => Ok(check.action() >= Action::Block),
            // Without an answer the keys of the last one decide.
            None => Ok(call_key(tool, args.clone()).is_some_and(|key| self.blocked.contains(&key))),
        }
    }

    /// Sends an event. Returns what to do, and the verdict with the reason.
    async fn record(&mut self, event: pb::Event) -> Option<(Action, pb::Verdict)> {
        let event = pb::RecordEventRequest { event: Some(event) };
        let Some(response) = ask(self.detection.record_event(request(event))).await else {
            self.is_answer_missed = true;
            return None;
        };
        let answer = response.result.unwrap_or_default();
        // The service restarted and has lost the profile and the labels.
        if answer.state_lost {
            self.open_session().await;
        }
        let standing = answer.standing.unwrap_or_default();
        self.blocked = standing.blocked;
        // The result's action, not the verdict's: a shadow verdict has an action that is not
        // to be performed. What a missed answer asked for still holds. An unknown action is
        // treated as a warning.
        let wanted = match answer.action {
            0 if self.is_answer_missed => standing.action,
            wanted => wanted,
        };
        self.is_answer_missed = false;
        let action = Action::try_from(wanted).unwrap_or(Action::Warn);
        Some((action, answer.verdict.unwrap_or_default()))
    }

    async fn run(&mut self, orders: usize) -> String {
        self.open_session().await;
        let mut messages = vec!["user: Please do the task.".to_owned()];
        for step in 1..=STEPS_MAX {
            let Some((tool, args)) = next_call(&messages, step, orders) else {
                return format!("corrected before step {step}: the agent answered");
            };
            let (state, result, outcome) = match self.is_refused(tool, &args).await {
                Err(reason) => return format!("terminated before step {step}: {reason}"),
                Ok(false) => ("ok", "two lamps, unpaid", Outcome::Ok),
                // It is sent too: an agent that goes on asking is escalated and then
                // terminated.
                Ok(true) => ("refused", "this call is part of a loop", Outcome::Blocked),
            };
            messages.push(format!("tool: {result}"));
            let event = pb::Event {
                session_id: self.session_id.clone(),
                // The id makes it safe to send the event again if the answer was lost.
                event_id: format!("call-{step}"),
                body: Some(Body::ToolCall(pb::ToolCall {
                    tool: tool.into(),
                    arguments: Some(tool_call::Arguments::ArgsJson(args.to_string())),
                    outcome: outcome.into(),
                    result: Some(result.into()),
                    ..Default::default()
                })),
                ..Default::default()
            };
            let Some((action, verdict)) = self.record(event).await else {
                continue;
            };
            let name = match action {
                Action::Unspecified => state.to_owned(),
                _ => format!("{action:?}").to_lowercase(),
            };
            println!("step {step}: {name:<9} {tool} {args} {}", verdict.pattern);

            if action == Action::Terminate {
                return format!("terminated at step {step}: {}", verdict.reason);
            }
            // It has no checkpoints and no person to ask: those become THROTTLE, without a
            // wait.
            if action >= Action::Throttle && action < Action::Block {
                let wait = verdict.retry_after.and_then(|wait| wait.try_into().ok());
                tokio::time::sleep(wait.unwrap_or_default()).await;
            }
            // An ALERT is for the user only; from WARN on the agent gets the correction.
            if action >= Action::Warn && !verdict.correction.is_empty() {
                messages.push(format!("system: {}", verdict.correction));
            }
        }
        format!("out of budget after {STEPS_MAX} steps")
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = env::var("UNSTUCK_SERVER").unwrap_or_else(|_| "127.0.0.1:50551".into());
    let address = format!("http://{}", server.trim_start_matches("http://"));
    // Connects lazily: the service may start later than this program. One channel per
    // process: it carries all sessions.
    let channel = Endpoint::from_shared(address)?.connect_lazy();
    let stubborn = env::args().find(|argument| argument.starts_with("--stubborn"));
    let orders = stubborn.map_or(0, |it| {
        it.split('=').nth(1).map_or(1, |n| n.parse().unwrap_or(1))
    });
    println!("{}", Broker::new(channel).run(orders).await);
    Ok(())
}
