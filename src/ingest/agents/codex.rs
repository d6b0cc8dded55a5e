//! Codex. Its payloads have no exit code: `unstuck hook` adds it from the transcript.
//! Nothing in a reply ends a run, and `decision: "block"` at Stop would never let it end.

use serde_json::{Value, json};

use super::dialect;
use crate::{
    domain::Role,
    ingest::{
        AgentSpec, Capabilities, FieldTable, HookEvent, HookPayload, Input, Instruction, Reply,
        ReplyRequest, Seat, input,
    },
};

pub const AGENT: AgentSpec = AgentSpec {
    name: "codex",
    title: "Codex",
    aliases: &["codex-cli"],
    executables: &["codex"],
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
        HookEvent::new("PreToolUse", Seat::BeforeCall),
        HookEvent::new("PostToolUse", Seat::AfterCall),
        HookEvent::new("UserPromptSubmit", Seat::Prompt),
        HookEvent::new("Stop", Seat::TurnEnd),
        HookEvent::new("SessionStart", Seat::Silent),
        HookEvent::new("SubagentStart", Seat::Silent),
        HookEvent::new("SubagentStop", Seat::Silent),
        HookEvent::new("PermissionRequest", Seat::Silent),
        HookEvent::new("PreCompact", Seat::Silent),
        HookEvent::new("PostCompact", Seat::Silent),
        HookEvent::new("SessionEnd", Seat::Silent),
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
    let reply = match (event.seat, instruction) {
        (Seat::Silent, _) => return None,
        (Seat::BeforeCall, Instruction::Stop) => Reply::interrupting(dialect::refusal(line, line)),
        (Seat::AfterCall, Instruction::Stop) => {
            Reply::interrupting(dialect::context_with(request, line))
        }
        (Seat::Prompt, Instruction::Stop) => Reply::new(json!({
            "decision": "block",
            "reason": line,
        })),
        (Seat::BeforeCall, Instruction::Refuse) => Reply::new(dialect::refusal(line, advice)),
        (Seat::BeforeCall | Seat::TurnEnd, _) | (_, Instruction::Notify) => {
            Reply::new(json!({"systemMessage": line}))
        }
        (Seat::AfterCall | Seat::Prompt, _) => Reply::new(dialect::context(request)),
    };
    Some(reply)
}
