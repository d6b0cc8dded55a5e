//! A broker: the program between an agent and its tools, with Unstuck beside it.
//!
//!     UNSTUCK_SERVER=127.0.0.1:50551 cargo run --example broker

use std::{collections::HashSet, env, error::Error, time::Duration};

use tonic::{Request, transport::Channel, transport::Endpoint};
use unstuck::pb::{self, Action, Outcome, event::Body, tool_call::Arguments};

type Client = pb::detection_service_client::DetectionServiceClient<Channel>;

const STEPS_MAX: usize = 12;
/// Unstuck is a seat belt, not the engine: an agent never waits longer for it.
const DEADLINE: Duration = Duration::from_millis(250);

/// The toy agent: it reads one file for ever, until a correction tells it that it is stuck.
fn next_call(messages: &[String]) -> Option<(String, String)> {
    let corrected = messages.iter().any(|text| text.starts_with("system: "));
    (!corrected).then(|| ("read_file".into(), "src/main.rs".into()))
}

/// Fails open: without an answer, for whatever reason, the agent goes on as if
/// all were well.
async fn record(client: &mut Client, event: pb::Event) -> pb::EventResult {
    let mut request = Request::new(pb::RecordEventRequest { event: Some(event) });
    // The deadline is sent to the server; the timer here also covers the time
    // without a connection.
    request.set_timeout(DEADLINE);
    match tokio::time::timeout(DEADLINE, client.record_event(request)).await {
        Ok(Ok(answer)) => return answer.into_inner().result.unwrap_or_default(),
        Ok(Err(status)) => eprintln!("unstuck: {}; going on without it", status.message()),
        Err(_) => eprintln!("unstuck: no answer in time; going on without it"),
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
        // A refused call is still reported, as BLOCKED: it counts for no loop,
        // and the record stays whole.
        let (state, result, outcome) = match blocked.contains(&call) {
            false => ("ok", "fn main() {}", Outcome::Ok),
            true => ("refused", "this call is part of a loop", Outcome::Blocked),
        };
        messages.push(format!("tool: {result}"));
        let mut event = pb::Event::default();
        event.session_id.clone_from(&session_id);
        // An id makes it safe to send the event again when an answer was lost.
        event.event_id = format!("call-{step}");
        event.body = Some(Body::ToolCall(pb::ToolCall {
            tool: call.0.clone(),
            // It could be left out and is then found in the arguments; sent, it
            // comes back in a verdict's members as this program spells it.
            target: call.1.clone(),
            arguments: Some(Arguments::ArgsJson(r#"{"path": "src/main.rs"}"#.into())),
            outcome: outcome.into(),
            result: Some(result.into()),
            ..Default::default()
        }));
        let answer = record(client, event).await;

        // The result's action, not the verdict's: a shadow verdict has one, but
        // is not to be acted on. An action newer than this program is a warning.
        let action = Action::try_from(answer.action).unwrap_or(Action::Warn);
        let verdict = answer.verdict.unwrap_or_default();
        let (name, what) = match action {
            Action::Unspecified => (state.to_owned(), format!("{} {}", call.0, call.1)),
            _ => (format!("{action:?}").to_lowercase(), verdict.pattern),
        };
        println!("step {step}: {name:<9} {what}");

        // What a broker cannot do, it does as the next weaker action. This one
        // has no second model and no generation to stop: those become BLOCK.
        // Nor checkpoints or people to ask: those become THROTTLE, with no time
        // to wait.
        if action == Action::Terminate {
            return format!("terminated at step {step}: {}", verdict.reason);
        } else if action >= Action::Block {
            let members = verdict.members.into_iter();
            blocked.extend(members.map(|member| (member.tool, member.target)));
        } else if action >= Action::Throttle {
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

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = env::var("UNSTUCK_SERVER").unwrap_or_else(|_| "127.0.0.1:50551".into());
    let address = format!("http://{}", server.trim_start_matches("http://"));
    // Lazily: a service that is away now may be there at the next event. One
    // channel a process: it carries all sessions.
    let mut client = Client::new(Endpoint::from_shared(address)?.connect_lazy());
    println!("{}", run(&mut client).await);
    Ok(())
}
