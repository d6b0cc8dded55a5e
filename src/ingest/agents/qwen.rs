//! Qwen Code. It speaks the dialect of Claude Code without PostToolBatch, and fires
//! UserPromptSubmit with an empty prompt before every request to the model. No reply ends a
//! run.

use serde_json::{Value, json};

use super::dialect;
use crate::{
    domain::{Outcome, Role, ToolCall},
    ingest::{
        AgentSpec, Capabilities, FieldTable, HookEvent, HookPayload, HookStage, Input, Instruction,
        Reply, ReplyRequest, input,
    },
};

pub const AGENT: AgentSpec = AgentSpec {
    name: "qwen",
    title: "Qwen Code",
    aliases: &["qwen-code"],
    resume: "qwen --resume {}",
    fields: FieldTable {
        event: "/hook_event_name",
        session: &["/session_id"],
        sub_agent: "/agent_id",
        parent_agent: "",
        directory: "/cwd",
        model: "/model",
        prompt_id: "",
    },
    events: &[
        HookEvent::new("PreToolUse", HookStage::BeforeCall),
        HookEvent::new("PostToolUse", HookStage::AfterCall),
        HookEvent::new("PostToolUseFailure", HookStage::AfterCall),
        HookEvent::new("UserPromptSubmit", HookStage::Prompt),
        HookEvent::new("Stop", HookStage::TurnEnd),
        HookEvent::new("SubagentStart", HookStage::Silent),
        HookEvent::new("SubagentStop", HookStage::Silent),
        HookEvent::new("PreCompact", HookStage::Silent),
        HookEvent::new("PostCompact", HookStage::Silent),
        HookEvent::new("PermissionRequest", HookStage::Silent),
        HookEvent::new("Notification", HookStage::Silent),
        HookEvent::new("SessionStart", HookStage::Silent),
        HookEvent::new("SessionEnd", HookStage::Silent),
    ],
    capabilities: Capabilities {
        asks: false,
        refuses: true,
        reports_refusals: false,
        // `stop_hook_active` is true from the first Stop on.
        reworks: false,
    },
    recognises,
    inputs,
    reply,
};

fn recognises(body: &Value) -> bool {
    dialect::has_transcript_in(body, "/.qwen/")
}

fn inputs(payload: &HookPayload) -> Vec<Input> {
    let tool = payload.text("/tool_name");
    let args = payload.value("/tool_input");
    let call_id = payload.text("/tool_use_id");
    match payload.event.name {
        "PreToolUse" => vec![input::ask(call_id, tool, args)],
        "PostToolUse" => {
            // Also for a command that failed: its exit code is in the text.
            let text = input::text_of(payload.value("/tool_response/llmContent"));
            let call = ToolCall {
                content_hash: dialect::new_content_hash(payload),
                ..input::finished_call(tool, args, text, None)
            };
            vec![input::call_event(payload, call_id, "", call)]
        }
        "PostToolUseFailure" => {
            let text = input::text_of(payload.value("/error"));
            let call = input::finished_call(tool, args, text, Some(Outcome::Error));
            vec![input::call_event(payload, call_id, "", call)]
        }
        "UserPromptSubmit" => {
            let prompt = payload.text("/prompt");
            let event_id = input::derived_id(&["prompt", payload.text("/timestamp"), prompt]);
            let turn = input::prompt_turn(payload, prompt, event_id);
            turn.into_iter().collect()
        }
        "Stop" => match payload.text("/last_assistant_message") {
            "" => Vec::new(),
            text => vec![input::turn(payload, Role::Agent, text, String::new())],
        },
        "PostCompact" => vec![input::compaction(payload)],
        "SessionEnd" => vec![Input::End],
        _ => Vec::new(),
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
    let reply = match (event.stage, instruction) {
        (HookStage::Silent, _) => return None,
        (HookStage::BeforeCall, Instruction::Stop) => {
            Reply::interrupting(dialect::refusal(line, line))
        }
        (HookStage::AfterCall, Instruction::Stop) => {
            Reply::interrupting(dialect::context_with(request, line))
        }
        (HookStage::Prompt, Instruction::Stop) => Reply::interrupting(json!({
            "continue": false,
            "stopReason": line,
            "decision": "block",
            "reason": line,
        })),
        (HookStage::BeforeCall, Instruction::Refuse) => Reply::new(dialect::refusal(line, advice)),
        (HookStage::BeforeCall | HookStage::TurnEnd, _) | (_, Instruction::Notify) => {
            Reply::new(json!({"systemMessage": line}))
        }
        (HookStage::AfterCall | HookStage::Prompt, _) => Reply::new(dialect::context(request)),
    };
    Some(reply)
}
