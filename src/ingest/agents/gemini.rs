//! Gemini CLI. Its calls have no id. PreCompress fires before every request to the model
//! and is not a compaction.

use serde_json::{Value, json};

use super::dialect;
use crate::{
    domain::{Cost, Outcome, Role, ToolCall},
    ingest::{
        AgentSpec, Capabilities, FieldTable, HookEvent, HookPayload, HookStage, Input, Instruction,
        Reply, ReplyRequest, input,
    },
};

pub const AGENT: AgentSpec = AgentSpec {
    name: "gemini",
    title: "Gemini CLI",
    aliases: &["gemini-cli"],
    resume: "gemini --resume {}",
    fields: FieldTable {
        event: "/hook_event_name",
        session: &["/session_id"],
        sub_agent: "",
        parent_agent: "",
        directory: "/cwd",
        model: "/llm_request/model",
        prompt_id: "/prompt",
    },
    events: &[
        HookEvent::new("BeforeTool", HookStage::BeforeCall),
        HookEvent::new("AfterTool", HookStage::AfterCall),
        HookEvent::new("BeforeAgent", HookStage::Prompt),
        HookEvent::new("AfterAgent", HookStage::TurnEnd),
        HookEvent::new("BeforeModel", HookStage::Silent),
        HookEvent::new("AfterModel", HookStage::Silent),
        HookEvent::new("BeforeToolSelection", HookStage::Silent),
        HookEvent::new("PreCompress", HookStage::Silent),
        HookEvent::new("Notification", HookStage::Silent),
        HookEvent::new("SessionStart", HookStage::Silent),
        HookEvent::new("SessionEnd", HookStage::Silent),
    ],
    capabilities: Capabilities {
        asks: false,
        refuses: true,
        reports_refusals: false,
        reworks: true,
    },
    recognises,
    inputs,
    reply,
};

fn recognises(body: &Value) -> bool {
    dialect::has_transcript_in(body, "/.gemini/")
}

fn inputs(payload: &HookPayload) -> Vec<Input> {
    let tool = payload.text("/tool_name");
    let args = payload.value("/tool_input");
    match payload.event.name {
        "BeforeTool" => vec![input::ask(&call_id(payload), tool, args)],
        "AfterTool" => {
            let call = finished_call(payload, tool, args);
            vec![input::call_event(payload, &call_id(payload), "", call)]
        }
        "BeforeAgent" => {
            let prompt = payload.text("/prompt");
            let turn = input::prompt_turn(payload, prompt, call_id(payload));
            turn.into_iter().collect()
        }
        "AfterAgent" => match payload.text("/prompt_response") {
            "" => Vec::new(),
            text => vec![input::turn(payload, Role::Agent, text, call_id(payload))],
        },
        "AfterModel" => vec![Input::Cost(cost(payload))],
        "SessionEnd" => vec![Input::End],
        _ => Vec::new(),
    }
}

/// Equal payloads have equal ids; another call differs at least in its time.
fn call_id(payload: &HookPayload) -> String {
    let args = payload.value("/tool_input").map(Value::to_string);
    input::derived_id(&[
        payload.event.name,
        payload.text("/timestamp"),
        payload.text("/tool_name"),
        &args.unwrap_or_default(),
    ])
}

fn finished_call(payload: &HookPayload, tool: &str, args: Option<&Value>) -> ToolCall {
    let text = input::text_of(payload.value("/tool_response/llmContent"));
    let has_error = payload.value("/tool_response/error").is_some();
    let outcome = has_error.then_some(Outcome::Error);
    ToolCall {
        content_hash: dialect::new_content_hash(payload),
        ..input::finished_call(tool, args, text, outcome)
    }
}

fn cost(payload: &HookPayload) -> Cost {
    let tokens = |name: &str| {
        let count = payload.value(&format!("/llm_response/usageMetadata/{name}"));
        input::token_count(count)
    };
    Cost {
        input_tokens: tokens("promptTokenCount"),
        output_tokens: tokens("candidatesTokenCount"),
        cached_input_tokens: tokens("cachedContentTokenCount"),
        usd: 0.0,
    }
}

fn reply(request: &ReplyRequest) -> Option<Reply> {
    let ReplyRequest {
        event,
        instruction,
        line,
        advice,
        ..
    } = *request;
    let body = match (event.stage, instruction) {
        (HookStage::Silent, _) => return None,
        (HookStage::BeforeCall, Instruction::Stop) => json!({
            "continue": false,
            "stopReason": line,
            "decision": "deny",
            "reason": line,
        }),
        (_, Instruction::Stop) => json!({"continue": false, "stopReason": line}),
        (HookStage::BeforeCall, Instruction::Refuse)
        | (HookStage::TurnEnd, Instruction::Rework) => json!({
            "decision": "deny",
            "reason": advice,
            "systemMessage": line,
        }),
        (HookStage::BeforeCall | HookStage::TurnEnd, _) | (_, Instruction::Notify) => {
            json!({"systemMessage": line})
        }
        (HookStage::AfterCall | HookStage::Prompt, _) => dialect::context(request),
    };
    Some(Reply::new(body))
}
