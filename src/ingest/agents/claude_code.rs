//! Claude Code. PostToolBatch fires once per response of the model, after calls that
//! succeeded, failed or were refused, so calls are recorded there; PostToolUse and
//! PostToolUseFailure come before it and have the outcome of each call.

use serde_json::{Value, json};

use super::dialect;
use crate::{
    domain::{Channel, Delta, Outcome, Role, ToolCall},
    ingest::{
        AgentSpec, Capabilities, FieldTable, HookEvent, HookPayload, HookStage, Input, Instruction,
        Reply, ReplyRequest, ReportedOutcome,
        claude_result::{self, ClaudeFileResult},
        input,
    },
};

pub const AGENT: AgentSpec = AgentSpec {
    name: "claude-code",
    title: "Claude Code",
    aliases: &["claude"],
    resume: "claude --resume {}",
    fields: FieldTable {
        event: "/hook_event_name",
        session: &["/session_id"],
        sub_agent: "/agent_id",
        parent_agent: "",
        directory: "/cwd",
        model: "/model",
        prompt_id: "/prompt_id",
    },
    events: &[
        HookEvent::new("PreToolUse", HookStage::BeforeCall),
        HookEvent::new("PostToolUse", HookStage::Silent),
        // Its `continue: false` is ignored.
        HookEvent::new("PostToolUseFailure", HookStage::Silent),
        HookEvent::new("PostToolBatch", HookStage::AfterCall),
        HookEvent::new("UserPromptSubmit", HookStage::Prompt),
        HookEvent::new("Stop", HookStage::TurnEnd),
        HookEvent::new("SubagentStop", HookStage::TurnEnd),
        HookEvent::new("MessageDisplay", HookStage::Silent),
        HookEvent::new("PostCompact", HookStage::Silent),
        HookEvent::new("PreCompact", HookStage::Silent),
        HookEvent::new("SessionStart", HookStage::Silent),
        HookEvent::new("SubagentStart", HookStage::Silent),
        HookEvent::new("SessionEnd", HookStage::Silent),
        HookEvent::new("Notification", HookStage::Silent),
    ],
    capabilities: Capabilities {
        asks: true,
        refuses: true,
        reports_refusals: true,
        reworks: true,
    },
    recognises,
    inputs,
    reply,
};

fn recognises(body: &Value) -> bool {
    dialect::has_transcript_in(body, "/.claude/")
}

fn inputs(payload: &HookPayload) -> Vec<Input> {
    match payload.event.name {
        "PreToolUse" => vec![input::ask(
            payload.text("/tool_use_id"),
            payload.text("/tool_name"),
            payload.value("/tool_input"),
        )],
        "PostToolUse" => vec![outcome(payload, Outcome::Ok)],
        "PostToolUseFailure" => vec![outcome(payload, Outcome::Error)],
        "PostToolBatch" => batch(payload),
        "UserPromptSubmit" => {
            let event_id = input::prompt_event_id(payload);
            let turn = input::prompt_turn(payload, payload.text("/prompt"), event_id);
            turn.into_iter().collect()
        }
        "Stop" | "SubagentStop" => match payload.text("/last_assistant_message") {
            "" => Vec::new(),
            text => vec![input::turn(payload, Role::Agent, text, String::new())],
        },
        "MessageDisplay" => vec![Input::Delta(Delta {
            session: payload.session.clone(),
            agent: payload.sub_agent.clone(),
            turn_id: input::bounded_id(payload.text("/message_id")),
            channel: Channel::Visible,
            text: payload.text("/delta").to_owned(),
            end_of_turn: payload.flag("/final") == Some(true),
        })],
        "PostCompact" => vec![input::compaction(payload)],
        "SessionEnd" => vec![Input::End],
        _ => Vec::new(),
    }
}

/// The outcome of a call, for the batch that records it.
fn outcome(payload: &HookPayload, outcome: Outcome) -> Input {
    Input::Outcome {
        call_id: input::bounded_id(payload.text("/tool_use_id")),
        outcome: ReportedOutcome {
            outcome,
            content_hash: content_hash(payload).unwrap_or_default(),
        },
    }
}

/// The hash of a file that was read whole, or as a write or an edit leaves it.
fn content_hash(payload: &HookPayload) -> Option<String> {
    let text_at = |path: &str| payload.value(path).and_then(Value::as_str);
    let number_at = |path: &str| payload.value(path).and_then(Value::as_i64);
    let file = ClaudeFileResult {
        content: text_at("/tool_response/file/content"),
        lines: number_at("/tool_response/file/numLines"),
        first_line: number_at("/tool_response/file/startLine"),
        total_lines: number_at("/tool_response/file/totalLines"),
        original: text_at("/tool_response/originalFile"),
        old: text_at("/tool_response/oldString"),
        new: text_at("/tool_response/newString"),
        replace_all: payload.flag("/tool_response/replaceAll") == Some(true),
        written: text_at("/tool_input/content"),
    };
    claude_result::content_hash(payload.text("/tool_name"), &file)
}

/// The calls of one response of the model.
fn batch(payload: &HookPayload) -> Vec<Input> {
    let calls = payload.value("/tool_calls").and_then(Value::as_array);
    let calls = calls.map(Vec::as_slice).unwrap_or_default();
    let id_of = |call: &'_ Value| {
        let id = call.get("tool_use_id").and_then(Value::as_str);
        id.unwrap_or_default().to_owned()
    };
    let round_id = calls.first().map(id_of).unwrap_or_default();
    let events = calls.iter().map(|call| {
        let finished = batch_call(payload, call);
        input::call_event(payload, &id_of(call), &round_id, finished)
    });
    events.collect()
}

fn batch_call(payload: &HookPayload, call: &Value) -> ToolCall {
    let tool = call.get("tool_name").and_then(Value::as_str);
    let text = input::text_of(call.get("tool_response"));
    let outcome = if claude_result::is_refusal(&text, payload.prefix) {
        Some(Outcome::Blocked)
    } else if claude_result::is_failure(&text) {
        Some(Outcome::Error)
    } else {
        None
    };
    input::finished_call(
        tool.unwrap_or_default(),
        call.get("tool_input"),
        text,
        outcome,
    )
}

fn reply(request: &ReplyRequest) -> Option<Reply> {
    let ReplyRequest {
        event,
        instruction,
        line,
        advice,
        unattended,
    } = *request;
    let stop = json!({"continue": false, "stopReason": line});
    let body = match (event.stage, instruction) {
        (HookStage::Silent, _) => return None,
        // With `continue: false` alone the call would still be made.
        (HookStage::BeforeCall, Instruction::Stop) => json!({
            "continue": false,
            "stopReason": line,
            "hookSpecificOutput": dialect::permission("deny", line),
        }),
        (_, Instruction::Stop) => stop,
        (HookStage::BeforeCall, Instruction::Refuse) => json!({
            "systemMessage": line,
            "hookSpecificOutput": dialect::permission("deny", advice),
        }),
        // The dialog does not show the reason, so the person gets it as a message.
        (HookStage::BeforeCall, Instruction::Confirm) => json!({
            "systemMessage": line,
            "hookSpecificOutput": dialect::permission(if unattended { "defer" } else { "ask" }, line),
        }),
        (HookStage::TurnEnd, Instruction::Rework) => json!({
            "decision": "block",
            "reason": advice,
            "systemMessage": line,
        }),
        // At these events only a message is shown.
        (HookStage::BeforeCall | HookStage::TurnEnd, _) | (_, Instruction::Notify) => {
            json!({"systemMessage": line})
        }
        (HookStage::AfterCall | HookStage::Prompt, _) => dialect::context(request),
    };
    Some(Reply::new(body))
}
