//! Codex. Its payloads have no exit code: `unstuck hook` adds it from the transcript.
//! No reply ends a run, and `decision: "block"` at Stop would never let it end.

use serde_json::{Value, json};

use super::dialect;
use crate::{
    domain::Role,
    ingest::{
        AgentSpec, Capabilities, FieldTable, HookEvent, HookPayload, HookStage, Input, Instruction,
        Reply, ReplyRequest, input,
    },
};

pub const AGENT: AgentSpec = AgentSpec {
    name: "codex",
    title: "Codex",
    aliases: &["codex-cli"],
    resume: "codex resume {}",
    fields: FieldTable {
        event: "/hook_event_name",
        session: &["/session_id"],
        sub_agent: "",
        parent_agent: "",
        directory: "/cwd",
        model: "/model",
        prompt_id: "/turn_id",
    },
    events: &[
        HookEvent::new("PreToolUse", HookStage::BeforeCall),
        HookEvent::new("PostToolUse", HookStage::AfterCall),
        HookEvent::new("UserPromptSubmit", HookStage::Prompt),
        HookEvent::new("Stop", HookStage::TurnEnd),
        HookEvent::new("SessionStart", HookStage::Silent),
        HookEvent::new("SubagentStart", HookStage::Silent),
        HookEvent::new("SubagentStop", HookStage::Silent),
        HookEvent::new("PermissionRequest", HookStage::Silent),
        HookEvent::new("PreCompact", HookStage::Silent),
        HookEvent::new("PostCompact", HookStage::Silent),
        HookEvent::new("SessionEnd", HookStage::Silent),
    ],
    capabilities: Capabilities {
        // `ask` is ignored: the call is made.
        asks: false,
        refuses: true,
        reports_refusals: false,
        reworks: false,
    },
    recognises,
    inputs,
    reply,
};

fn recognises(body: &Value) -> bool {
    dialect::has_transcript_in(body, "/.codex/")
}

fn inputs(payload: &HookPayload) -> Vec<Input> {
    let tool = payload.text("/tool_name");
    let args = payload.value("/tool_input");
    let call_id = payload.text("/tool_use_id");
    match payload.event.name {
        "PreToolUse" => vec![input::ask(call_id, tool, args)],
        "PostToolUse" => {
            let output = input::text_of(payload.value("/tool_response"));
            let call = match payload.local_exit_code() {
                Some(code) => input::finished_command(tool, args, output, code),
                None => input::finished_call(tool, args, output, None),
            };
            vec![input::call_event(payload, call_id, "", call)]
        }
        "UserPromptSubmit" => {
            let event_id = input::prompt_event_id(payload);
            let turn = input::prompt_turn(payload, payload.text("/prompt"), event_id);
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
        (HookStage::Prompt, Instruction::Stop) => Reply::new(json!({
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
