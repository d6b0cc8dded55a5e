//! Copilot CLI. Its payloads name no event and no call: the caller sends the event, and the
//! time of a call identifies it.

use serde_json::{Value, json};

use crate::{
    domain::{Outcome, Role},
    ingest::{
        AgentSpec, Capabilities, FieldTable, HookEvent, HookPayload, HookStage, Input, Instruction,
        Reply, ReplyRequest, input,
    },
};

pub const AGENT: AgentSpec = AgentSpec {
    name: "copilot",
    title: "Copilot CLI",
    aliases: &["copilot-cli", "github-copilot"],
    resume: "copilot --resume={}",
    fields: FieldTable {
        event: "",
        session: &["/sessionId"],
        sub_agent: "",
        parent_agent: "",
        directory: "/cwd",
        model: "/model",
        prompt_id: "",
    },
    events: &[
        HookEvent::new("preToolUse", HookStage::BeforeCall),
        HookEvent::new("postToolUse", HookStage::AfterCall),
        HookEvent::new("postToolUseFailure", HookStage::AfterCall),
        HookEvent::new("userPromptSubmitted", HookStage::Prompt),
        HookEvent::new("permissionRequest", HookStage::Silent),
        HookEvent::new("agentStop", HookStage::Silent),
        HookEvent::new("sessionStart", HookStage::Silent),
        HookEvent::new("sessionEnd", HookStage::Silent),
    ],
    capabilities: Capabilities {
        asks: true,
        refuses: true,
        reports_refusals: false,
        reworks: false,
    },
    recognises,
    inputs,
    reply,
};

fn recognises(body: &Value) -> bool {
    body.get("sessionId").is_some() && body.get("timestamp").is_some_and(Value::is_i64)
}

fn inputs(payload: &HookPayload) -> Vec<Input> {
    let tool = payload.text("/toolName");
    let args = payload.value("/toolArgs");
    match payload.event.name {
        "preToolUse" => vec![input::ask(&call_id(payload), tool, args)],
        "postToolUse" => {
            // `resultType` is "success" for every command that ran, so of a command only
            // the exit code in the text counts.
            let text = input::text_of(payload.value("/toolResult/textResultForLlm"));
            let call = input::finished_call(tool, args, text, None);
            vec![input::call_event(payload, &call_id(payload), "", call)]
        }
        "postToolUseFailure" => {
            let error = input::text_of(payload.value("/error"));
            let call = input::finished_call(tool, args, error, Some(Outcome::Error));
            vec![input::call_event(payload, &call_id(payload), "", call)]
        }
        "userPromptSubmitted" => {
            let turn = input::prompt_turn(payload, payload.text("/prompt"), call_id(payload));
            turn.into_iter().collect()
        }
        "agentStop" => match payload.text("/lastAssistantMessage") {
            "" => Vec::new(),
            text => vec![input::turn(payload, Role::Agent, text, String::new())],
        },
        "sessionEnd" => vec![Input::End],
        _ => Vec::new(),
    }
}

/// Equal payloads have equal ids; another call differs at least in its time.
fn call_id(payload: &HookPayload) -> String {
    let text = |path: &str| {
        payload
            .value(path)
            .map(Value::to_string)
            .unwrap_or_default()
    };
    input::derived_id(&[
        payload.event.name,
        &text("/timestamp"),
        payload.text("/toolName"),
        &text("/toolArgs"),
    ])
}

/// No reply ends a run.
fn reply(request: &ReplyRequest) -> Option<Reply> {
    let ReplyRequest {
        event,
        instruction,
        line,
        advice,
        ..
    } = *request;
    let decision = |decision: &str, reason: &str| json!({"permissionDecision": decision, "permissionDecisionReason": reason});
    Some(match (event.stage, instruction) {
        (HookStage::BeforeCall, Instruction::Stop) => Reply::interrupting(decision("deny", line)),
        (HookStage::BeforeCall, Instruction::Refuse) => Reply::new(decision("deny", advice)),
        (HookStage::BeforeCall, Instruction::Confirm) => Reply::new(decision("ask", line)),
        (HookStage::AfterCall, Instruction::Stop) => {
            Reply::interrupting(json!({"additionalContext": line}))
        }
        (HookStage::Prompt, Instruction::Stop) => Reply::interrupting(json!({})),
        (HookStage::AfterCall, _) => Reply::new(json!({"additionalContext": advice})),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use crate::ingest::tests::inputs_of;

    #[test]
    fn every_event_of_a_run_is_mapped() {
        let inputs = inputs_of("copilot", "copilot-cli-1.0.102.mixed", "");
        assert_eq!(
            inputs,
            [
                "userPromptSubmitted: user says \"mixed go\"",
                "preToolUse: ask view",
                "postToolUse: call view unknown",
                "preToolUse: ask bash",
                "postToolUse: call bash ok",
                "preToolUse: ask edit",
                "postToolUseFailure: call edit error",
                "preToolUse: ask bash",
                "postToolUse: call bash error",
                "preToolUse: ask view",
                "preToolUse: ask view",
                "postToolUse: call view unknown",
                "postToolUse: call view unknown",
                "sessionEnd: end",
            ]
        );
    }
}
