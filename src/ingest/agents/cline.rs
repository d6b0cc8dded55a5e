//! Cline CLI. A hook can end the run but not refuse one call. It runs hooks from up to
//! three directories, so every event may come several times.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::{
    domain::{MarkerKind, Outcome, Role},
    ingest::{
        AgentSpec, Capabilities, FieldTable, HookEvent, HookPayload, HookStage, Input, Instruction,
        Reply, ReplyRequest, input,
    },
};

pub const AGENT: AgentSpec = AgentSpec {
    name: "cline",
    title: "Cline CLI",
    aliases: &["cline-cli"],
    resume: "cline --id {}",
    fields: FieldTable {
        event: "",
        session: &["/sessionContext/rootSessionId", "/taskId"],
        sub_agent: "/agent_id",
        parent_agent: "/parent_agent_id",
        directory: "/workspaceInfo/rootPath",
        model: "/model/id",
        prompt_id: "",
    },
    events: &[
        HookEvent::new("PreToolUse", HookStage::BeforeCall),
        HookEvent::new("PostToolUse", HookStage::AfterCall),
        HookEvent::new("UserPromptSubmit", HookStage::Prompt),
        HookEvent::new("TaskStart", HookStage::Silent),
        HookEvent::new("TaskResume", HookStage::Silent),
        HookEvent::new("TaskComplete", HookStage::Silent),
        HookEvent::new("TaskCancel", HookStage::Silent),
        HookEvent::new("PreCompact", HookStage::Silent),
    ],
    capabilities: Capabilities {
        asks: false,
        refuses: false,
        reports_refusals: false,
        reworks: false,
    },
    recognises,
    inputs,
    reply,
};

fn recognises(body: &Value) -> bool {
    body.get("clineVersion").is_some()
}

fn inputs(payload: &HookPayload) -> Vec<Input> {
    match payload.event.name {
        "PreToolUse" => vec![input::ask(
            payload.text("/tool_call/id"),
            payload.text("/tool_call/name"),
            plain_args(payload.value("/tool_call/input")).as_deref(),
        )],
        "PostToolUse" => vec![finished_call(payload)],
        "UserPromptSubmit" => {
            let prompt = payload.text("/userPromptSubmit/prompt");
            let turn = input::prompt_turn(payload, prompt, copy_id(payload));
            turn.into_iter().collect()
        }
        "TaskComplete" => {
            let mut inputs = Vec::new();
            let text = payload.text("/turn/outputText");
            if !text.is_empty() {
                inputs.push(input::turn(payload, Role::Agent, text, copy_id(payload)));
            }
            if payload.sub_agent.is_main() {
                inputs.push(Input::End);
            }
            inputs
        }
        "PreCompact" => {
            let kind = MarkerKind::Compaction;
            vec![input::marker(payload, kind, copy_id(payload))]
        }
        _ => Vec::new(),
    }
}

/// An id that each copy of the event has.
fn copy_id(payload: &HookPayload) -> String {
    input::derived_id(&[payload.event.name, payload.text("/timestamp")])
}

fn finished_call(payload: &HookPayload) -> Input {
    let output = payload.value("/tool_result/output");
    // `postToolUse.success` only says that the tool answered.
    let is_error = payload.flag("/postToolUse/success") == Some(false)
        || parts(output).any(|part| part.get("success") == Some(&Value::Bool(false)));
    let outcome = if is_error {
        Outcome::Error
    } else {
        Outcome::Ok
    };
    let results = parts(output).filter_map(|part| part.get("result").and_then(Value::as_str));
    let text = match results.collect::<Vec<_>>() {
        texts if texts.is_empty() => input::text_of(output),
        texts => Cow::Owned(texts.join("\n")),
    };
    let args = plain_args(payload.value("/tool_result/input"));
    let call = input::finished_call(
        payload.text("/tool_result/name"),
        args.as_deref(),
        text,
        Some(outcome),
    );
    let round = payload.value("/iteration").map(Value::to_string);
    let call_id = payload.text("/tool_result/id");
    input::call_event(payload, call_id, &round.unwrap_or_default(), call)
}

fn parts(output: Option<&Value>) -> impl Iterator<Item = &Value> {
    output.and_then(Value::as_array).into_iter().flatten()
}

/// A list of one file or of commands, as other agents write it: the engine knows `path` and
/// `command`.
fn plain_args(args: Option<&Value>) -> Option<Cow<'_, Value>> {
    let args = args?;
    if let Some([file]) = args
        .get("files")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
    {
        return Some(Cow::Borrowed(file));
    }
    let Some(commands) = args.get("commands").and_then(Value::as_array) else {
        return Some(Cow::Borrowed(args));
    };
    let commands: Vec<_> = commands.iter().filter_map(Value::as_str).collect();
    Some(Cow::Owned(json!({"command": commands.join("\n")})))
}

fn reply(request: &ReplyRequest) -> Option<Reply> {
    let ReplyRequest {
        event,
        instruction,
        line,
        advice,
        ..
    } = *request;
    Some(Reply::new(match (event.stage, instruction) {
        (HookStage::Silent | HookStage::TurnEnd, _) => return None,
        (_, Instruction::Stop) => json!({"cancel": true, "errorMessage": line}),
        (_, Instruction::Notify) => return None,
        _ => json!({"cancel": false, "contextModification": advice}),
    }))
}

#[cfg(test)]
mod tests {
    use crate::ingest::tests::inputs_of;

    #[test]
    fn every_event_of_a_run_is_mapped() {
        // The hooks were installed in all three directories.
        let mut inputs = inputs_of("cline", "cline-3.0.65.mixed", "");
        inputs.dedup();
        assert_eq!(
            inputs,
            [
                "PreToolUse: ask read_files",
                "PostToolUse: call read_files ok in 1",
                "PreToolUse: ask run_commands",
                "PostToolUse: call run_commands ok in 2",
                "PreToolUse: ask editor",
                "PostToolUse: call editor error in 3",
                "PreToolUse: ask run_commands",
                "PostToolUse: call run_commands error in 4",
                "PreToolUse: ask read_files",
                "PostToolUse: call read_files ok in 5",
                "TaskComplete: agent says \"all done\"",
                "TaskComplete: end",
                "TaskComplete: agent says \"all done\"",
                "TaskComplete: end",
                "TaskComplete: agent says \"all done\"",
                "TaskComplete: end",
            ]
        );
    }
}
