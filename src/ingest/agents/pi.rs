//! pi, by our extension, which sends the session's id.

use serde_json::Value;

use super::plug_in;
use crate::{
    domain::{Cost, Outcome},
    ingest::{
        AgentSpec, Capabilities, FieldTable, HookEvent, HookPayload, HookStage, Input, input,
    },
};

pub const AGENT: AgentSpec = AgentSpec {
    name: "pi",
    title: "pi",
    aliases: &["pi-coding-agent"],
    resume: "pi --session {}",
    fields: FieldTable {
        event: "",
        session: &["/id"],
        sub_agent: "",
        parent_agent: "",
        directory: "/cwd",
        model: "/model",
        prompt_id: "",
    },
    events: &[
        HookEvent::new("tool_call", HookStage::BeforeCall),
        HookEvent::new("tool_result", HookStage::AfterCall),
        HookEvent::new("input", HookStage::Prompt),
        HookEvent::new("turn_end", HookStage::Silent),
        HookEvent::new("session_start", HookStage::Silent),
        HookEvent::new("session_compact", HookStage::Silent),
        HookEvent::new("session_shutdown", HookStage::Silent),
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
    let kind = body.get("type").and_then(Value::as_str);
    matches!(kind, Some("tool_call" | "tool_result"))
}

fn inputs(payload: &HookPayload) -> Vec<Input> {
    let tool = payload.text("/toolName");
    let call_id = payload.text("/toolCallId");
    match payload.event.name {
        "tool_call" => vec![input::ask(call_id, tool, payload.value("/input"))],
        "tool_result" => {
            let outcome = payload.flag("/isError").map(|is_error| {
                if is_error {
                    Outcome::Error
                } else {
                    Outcome::Ok
                }
            });
            let text = input::text_of(payload.value("/content"));
            let call = input::finished_call(tool, payload.value("/input"), text, outcome);
            vec![input::call_event(payload, call_id, "", call)]
        }
        // A prompt of an extension is not the user's.
        "input" if payload.text("/source") != "extension" => {
            let turn = input::prompt_turn(payload, payload.text("/text"), String::new());
            turn.into_iter().collect()
        }
        "turn_end" => vec![Input::Cost(cost(payload))],
        "session_compact" => vec![input::compaction(payload)],
        "session_shutdown" => vec![Input::End],
        _ => Vec::new(),
    }
}

/// The cost of the model's turn. Cached tokens are part of the input.
fn cost(payload: &HookPayload) -> Cost {
    let tokens = |name: &str| input::token_count(payload.value(&format!("/usage/{name}")));
    let usd = payload.value("/usage/cost/total").and_then(Value::as_f64);
    Cost {
        input_tokens: tokens("input") + tokens("cacheRead") + tokens("cacheWrite"),
        output_tokens: tokens("output"),
        cached_input_tokens: tokens("cacheRead"),
        usd: usd.filter(|usd| *usd >= 0.0).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use crate::ingest::tests::inputs_of;

    #[test]
    fn every_event_of_a_run_is_mapped() {
        let inputs = inputs_of("pi", "pi-0.73.1.mixed", "s");
        assert_eq!(
            inputs,
            [
                "input: user says \"mixed go\"",
                "tool_call: ask read",
                "tool_result: call read ok",
                "turn_end: cost 1550 tokens",
                "tool_call: ask bash",
                "tool_result: call bash ok",
                "turn_end: cost 1551 tokens",
                "turn_end: cost 1552 tokens",
                "tool_call: ask bash",
                "tool_result: call bash error",
                "turn_end: cost 1553 tokens",
                "tool_call: ask read",
                "tool_call: ask read",
                "tool_result: call read ok",
                "tool_result: call read ok",
                "turn_end: cost 1554 tokens",
                "turn_end: cost 1555 tokens",
            ]
        );
    }
}
