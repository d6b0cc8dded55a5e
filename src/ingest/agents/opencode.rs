//! opencode, by our plug-in. The query has the root session, the body the session that acts.

use serde_json::Value;

use super::plug_in;
use crate::ingest::{
    AgentSpec, Capabilities, FieldTable, HookEvent, HookPayload, HookStage, Input, input,
};

pub const AGENT: AgentSpec = AgentSpec {
    name: "opencode",
    title: "opencode",
    aliases: &[],
    resume: "opencode --session {}",
    fields: FieldTable {
        event: "",
        session: &[],
        sub_agent: "/i/sessionID",
        parent_agent: "",
        directory: "/cwd",
        model: "/o/message/model/modelID",
        prompt_id: "",
    },
    events: &[
        HookEvent::new("tool.execute.before", HookStage::BeforeCall),
        HookEvent::new("tool.execute.after", HookStage::AfterCall),
        HookEvent::new("chat.message", HookStage::Prompt),
        HookEvent::new("experimental.session.compacting", HookStage::Silent),
        HookEvent::new("event:session.created", HookStage::Silent),
        HookEvent::new("event:session.idle", HookStage::Silent),
    ],
    capabilities: Capabilities {
        asks: false,
        refuses: true,
        reports_refusals: false,
        reworks: false,
    },
    recognises,
    inputs,
    reply: plug_in::reply,
};

fn recognises(body: &Value) -> bool {
    body.pointer("/i/sessionID").is_some()
}

fn inputs(payload: &HookPayload) -> Vec<Input> {
    match payload.event.name {
        "tool.execute.before" => vec![input::ask(
            payload.text("/i/callID"),
            payload.text("/i/tool"),
            payload.value("/o/args"),
        )],
        "tool.execute.after" => {
            let code = payload.value("/o/metadata/exit").and_then(Value::as_i64);
            let code = code.and_then(|code| i32::try_from(code).ok());
            let call = input::finished_call(
                payload.text("/i/tool"),
                payload.value("/i/args"),
                input::text_of(payload.value("/o/output")),
                code.map(input::outcome_of_exit_code),
            );
            vec![input::call_event(
                payload,
                payload.text("/i/callID"),
                "",
                call,
            )]
        }
        // The first prompt of a sub-agent is its parent's.
        "chat.message" if payload.sub_agent.is_main() => {
            let text = input::text_of(payload.value("/o/parts"));
            let id = input::bounded_id(payload.text("/o/message/id"));
            input::prompt_turn(payload, &text, id).into_iter().collect()
        }
        "experimental.session.compacting" => vec![input::compaction(payload)],
        "event:session.idle" if payload.text("/sessionID") == payload.session.as_str() => {
            vec![Input::End]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::ingest::tests::inputs_of;

    #[test]
    fn every_event_of_a_run_is_mapped() {
        let inputs = inputs_of(
            "opencode",
            "opencode-1.18.33.mixed",
            "ses_e14742923ffeazUFNrdKB4iNJG",
        );
        assert_eq!(
            inputs,
            [
                "chat.message: user says \"\\\"mixed go\\\"\"",
                "tool.execute.before: ask read",
                "tool.execute.after: call read unknown",
                "tool.execute.before: ask bash",
                "tool.execute.after: call bash ok",
                "tool.execute.before: ask edit",
                "tool.execute.after: call edit unknown",
                "tool.execute.before: ask bash",
                "tool.execute.after: call bash error",
                "tool.execute.before: ask read",
                "tool.execute.before: ask read",
                "tool.execute.after: call read unknown",
                "tool.execute.after: call read unknown",
                "event:session.idle: end",
            ]
        );
    }
}
