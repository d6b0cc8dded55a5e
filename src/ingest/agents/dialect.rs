//! The forms of Claude Code's hooks that other programs use too.

use serde_json::{Value, json};

use crate::ingest::{HookPayload, ReplyRequest, input};

/// Whether the transcript is in this directory. It tells programs with the same event names
/// apart.
pub(super) fn has_transcript_in(body: &Value, directory: &str) -> bool {
    let path = body.get("transcript_path").and_then(Value::as_str);
    path.is_some_and(|path| path.contains(directory))
}

/// A decision about a call, as `hookSpecificOutput`.
pub(super) fn permission(decision: &str, reason: &str) -> Value {
    json!({
        "hookEventName": "PreToolUse",
        "permissionDecision": decision,
        "permissionDecisionReason": reason,
    })
}

/// Refuses a call. The person sees the line, the agent reads the reason.
pub(super) fn refusal(line: &str, reason: &str) -> Value {
    json!({"systemMessage": line, "hookSpecificOutput": permission("deny", reason)})
}

/// Passes the line to the person and the advice to the agent.
pub(super) fn context(request: &ReplyRequest) -> Value {
    context_with(request, request.advice)
}

/// The same with another text for the agent.
pub(super) fn context_with(request: &ReplyRequest, text: &str) -> Value {
    json!({
        "systemMessage": request.line,
        "hookSpecificOutput": {
            "hookEventName": request.event.name,
            "additionalContext": text,
        },
    })
}

/// The hash of a file as a write or an edit leaves it, for Gemini CLI and Qwen Code; empty
/// if the call wrote none.
pub(super) fn new_content_hash(payload: &HookPayload) -> String {
    let content = payload.value("/tool_response/returnDisplay/newContent");
    let content = content.and_then(Value::as_str);
    content.map(input::content_hash).unwrap_or_default()
}
