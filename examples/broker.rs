//! A broker: the program between an agent and its tools, with Unstuck.
//!
//!     UNSTUCK_SERVER=127.0.0.1:50551 cargo run --example broker [-- --stubborn[=CALLS|=errors]]

use std::{collections::HashMap, env, error::Error};

use serde_json::{Value, json};
use tonic::Status;
use unstuck_client::{
    Client, Options, call_key,
    pb::{self, Action, Outcome, check_call_request, event::Body, tool_call},
};

const STEPS_MAX: usize = 20;

/// The agents that never listen.
#[derive(Clone, Copy, PartialEq)]
enum Stubborn {
    /// Asks for this number of orders in turn.
    Orders(usize),
    /// Tries another command that is not there each time.
    Errors,
}

/// The example agents. One that is not stubborn reads a file again and again until it is
/// corrected.
fn next_call(
    messages: &[String],
    step: usize,
    stubborn: Option<Stubborn>,
) -> Option<(&'static str, Value)> {
    match stubborn {
        Some(Stubborn::Orders(orders)) => {
            return Some(("get_order", json!({"order_id": 5 + (step - 1) % orders})));
        }
        Some(Stubborn::Errors) => {
            return Some(("bash", json!({"command": format!("tool{step} --help")})));
        }
        None => {}
    }
    let is_corrected = messages.iter().any(|text| text.starts_with("system: "));
    (!is_corrected).then(|| ("read_file", json!({"path": "src/main.rs"})))
}

/// Fails open: without an answer, for any reason, the agent continues.
fn answer_or_continue<T>(answer: Result<T, Status>) -> Option<T> {
    answer
        .inspect_err(|status| eprintln!("unstuck: {}; continuing without it", status.message()))
        .ok()
}

struct Broker {
    client: Client,
    session_id: String,
    /// The keys of the calls that the last answer says to refuse.
    blocked: Vec<String>,
    is_answer_missed: bool,
}

impl Broker {
    fn new(client: Client) -> Self {
        Self {
            client,
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
        answer_or_continue(self.client.open_session(opening).await);
    }

    /// Whether a call is refused. `Err`: the session is terminated, with the reason.
    async fn is_refused(&mut self, tool: &str, args: &Value) -> Result<bool, String> {
        let check = pb::CheckCallRequest {
            session_id: self.session_id.clone(),
            tool: tool.into(),
            arguments: Some(check_call_request::Arguments::ArgsJson(args.to_string())),
            ..Default::default()
        };
        match answer_or_continue(self.client.check(check).await) {
            Some(check) if check.action() == Action::Terminate => {
                Err(check.verdict.unwrap_or_default().reason)
            }
            // A broker replaces an action that it cannot perform by the next weaker one. This
            // one has no second model and no generation to stop: those become BLOCK.
            Some(check) => Ok(check.action() >= Action::Block),
            // Without an answer the keys of the last one decide.
            None => Ok(call_key(tool, &args.to_string())
                .is_some_and(|key| self.blocked.contains(&key.to_string()))),
        }
    }

    /// Sends an event. Returns what to do, and the verdict with the reason.
    async fn record(&mut self, event: pb::Event) -> Option<(Action, pb::Verdict)> {
        let Some(answer) = answer_or_continue(self.client.record(event).await) else {
            self.is_answer_missed = true;
            return None;
        };
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

    async fn run(&mut self, stubborn: Option<Stubborn>) -> String {
        self.open_session().await;
        let mut messages = vec!["user: Please do the task.".to_owned()];
        for step in 1..=STEPS_MAX {
            let Some((tool, args)) = next_call(&messages, step, stubborn) else {
                return format!("corrected before step {step}: the agent answered");
            };
            let (state, result, outcome) = match self.is_refused(tool, &args).await {
                Err(reason) => return format!("terminated before step {step}: {reason}"),
                Ok(false) if stubborn == Some(Stubborn::Errors) => {
                    ("failed", "command not found", Outcome::Error)
                }
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
                    result: (outcome != Outcome::Error).then(|| result.into()),
                    error: match outcome {
                        Outcome::Error => format!("bash: tool{step}: {result}"),
                        _ => String::new(),
                    },
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
            // ESCALATE of a call that was made: its calls differ, so none can be refused. A
            // person takes over; this broker has none and ends the run.
            if action == Action::Escalate && outcome != Outcome::Blocked {
                return format!("handed over at step {step}: {}", verdict.reason);
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
    // One client per process: it carries all sessions.
    let client = Client::connect_lazy(&Options::new(server))?;
    let stubborn = env::args().find(|argument| argument.starts_with("--stubborn"));
    let stubborn = stubborn.map(|argument| match argument.split('=').nth(1) {
        Some("errors") => Stubborn::Errors,
        orders => Stubborn::Orders(orders.map_or(1, |number| number.parse().unwrap_or(1))),
    });
    println!("{}", Broker::new(client).run(stubborn).await);
    Ok(())
}
