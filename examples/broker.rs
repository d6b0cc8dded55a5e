//! A broker: the program between an agent and its tools, with Unstuck.
//!
//!     UNSTUCK_SERVER=127.0.0.1:50551 cargo run --example broker

use std::{collections::HashSet, env, error::Error, time::Duration};

use tonic::{Request, transport::Channel, transport::Endpoint};
use unstuck::pb::{self, Action, Outcome, event::Body, tool_call::Arguments};

type Client = pb::detection_service_client::DetectionServiceClient<Channel>;

const STEPS_MAX: usize = 12;
/// The longest time that an agent waits for Unstuck.
const DEADLINE: Duration = Duration::from_millis(250);

/// The example agent: it reads one file again and again until it is corrected.
fn next_call(messages: &[String]) -> Option<(String, String)> {
    let corrected = messages.iter().any(|text| text.starts_with("system: "));
    (!corrected).then(|| ("read_file".into(), "src/main.rs".into()))
}

/// Fails open: without an answer, for any reason, the agent continues.
async fn record(client: &mut Client, event: pb::Event) -> pb::EventResult {
    let mut request = Request::new(pb::RecordEventRequest { event: Some(event) });
    // The deadline is sent to the server; the timer here also covers the time
    // without a connection.
    request.set_timeout(DEADLINE);
    match tokio::time::timeout(DEADLINE, client.record_event(request)).await {
        Ok(Ok(answer)) => return answer.into_inner().result.unwrap_or_default(),
        Ok(Err(status)) => eprintln!("unstuck: {}; continuing without it", status.message()),
        Err(_) => eprintln!("unstuck: no answer in time; continuing without it"),
    }
    pb::EventResult::default()
}

async fn run(client: &mut Client) -> String {
    let session_id = format!("toy-{}", uuid::Uuid::now_v7());
    let mut messages = vec!["user: Why does src/main.rs not compile?".to_owned()];
    let mut blocked = HashSet::new();
    for step in 1..=STEPS_MAX {
        let Some(call) = next_call(&messages) else {
            return format!("corrected before step {step}: the agent answered");
        };
        // A refused call is still sent, as BLOCKED: detectors skip it, and the
        // record is complete.
        let (state, result, outcome) = match blocked.contains(&call) {
            false => ("ok", "fn main() {}", Outcome::Ok),
            true => ("refused", "this call is part of a loop", Outcome::Blocked),
        };
        messages.push(format!("tool: {result}"));
        let mut event = pb::Event::default();
        event.session_id.clone_from(&session_id);
        // The id makes it safe to send the event again if the answer was lost.
        event.event_id = format!("call-{step}");
        event.body = Some(Body::ToolCall(pb::ToolCall {
            tool: call.0.clone(),
            // Optional: by default it is taken from the arguments. If sent, a
            // verdict's members have it unchanged.
            target: call.1.clone(),
            arguments: Some(Arguments::ArgsJson(r#"{"path": "src/main.rs"}"#.into())),
            outcome: outcome.into(),
            result: Some(result.into()),
            ..Default::default()
        }));
        let answer = record(client, event).await;

        // The result's action, not the verdict's: a shadow verdict has an
        // action that is not to be performed. An unknown action is treated as
        // a warning.
        let action = Action::try_from(answer.action).unwrap_or(Action::Warn);
        let verdict = answer.verdict.unwrap_or_default();
        let (name, what) = match action {
            Action::Unspecified => (state.to_owned(), format!("{} {}", call.0, call.1)),
            _ => (format!("{action:?}").to_lowercase(), verdict.pattern),
        };
        println!("step {step}: {name:<9} {what}");

        // A broker replaces an action that it cannot perform by the next
        // weaker one. This one has no second model and no generation to stop:
        // those become BLOCK.
        // It has no checkpoints and no person to ask: those become THROTTLE,
        // without a wait.
        if action == Action::Terminate {
            return format!("terminated at step {step}: {}", verdict.reason);
        } else if action >= Action::Block {
            let members = verdict.members.into_iter();
            blocked.extend(members.map(|member| (member.tool, member.target)));
        } else if action >= Action::Throttle {
            let wait = verdict.retry_after.and_then(|wait| wait.try_into().ok());
            tokio::time::sleep(wait.unwrap_or_default()).await;
        }
        // An ALERT is for the user only; from WARN on the agent gets the
        // correction.
        if action >= Action::Warn && !verdict.correction.is_empty() {
            messages.push(format!("system: {}", verdict.correction));
        }
    }
    format!("out of budget after {STEPS_MAX} steps")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = env::var("UNSTUCK_SERVER").unwrap_or_else(|_| "127.0.0.1:50551".into());
    let address = format!("http://{}", server.trim_start_matches("http://"));
    // Connects lazily: the service may start later than this program. One channel
    // per process: it carries all sessions.
    let mut client = Client::new(Endpoint::from_shared(address)?.connect_lazy());
    println!("{}", run(&mut client).await);
    Ok(())
}
