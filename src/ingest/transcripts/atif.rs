//! ATIF, the Agent Trajectory Interchange Format 1.x of Harbor and Terminal-Bench: one
//! document, `trajectory.json`.
//!
//! Results have no outcome but an exit code in the text. Steps that were copied from
//! the trajectory before a compaction are skipped.

use serde_json::Value;

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat,
    files::FileHead,
    json::{amount_at, args_at, count_at, flag_at, list_at, text_at},
    response::CallResult,
    session::{self, SessionWriter},
    time::parse_time,
    usage::ModelNames,
};
use crate::{
    domain::{AgentId, Outcome},
    ingest::input,
};

pub(super) const FORMAT: TranscriptFormat = TranscriptFormat {
    name: "atif",
    title: "ATIF",
    // There is no usual place.
    places: |_| Vec::new(),
    has_name: |_| false,
    group: None,
    recognises,
    read,
};

fn recognises(head: &FileHead) -> bool {
    head.name_ends_with(".json") && head.contains("\"ATIF-v")
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    session::read_documents(&FORMAT, transcript, sink, |writer, _, document| {
        read_document(writer, document);
    });
}

fn read_document(writer: &mut SessionWriter, document: &Value) {
    let version = text_at(document, "/schema_version");
    if !version.starts_with("ATIF-v1.") {
        return writer.problem(format_args!("unknown version {version:?} of the format"));
    }
    writer.describe(
        text_at(document, "/session_id"),
        text_at(document, "/extra/cwd"),
        text_at(document, "/agent/version"),
    );
    if let Some(usd) = amount_at(document, "/final_metrics/total_cost_usd") {
        writer.set_recorded_cost(usd);
    }
    let mut models = ModelNames::default();
    // The steps of sub-agents are put between by their times.
    writer.begin_merge();
    read_steps(writer, &mut models, document, &AgentId::default());
    for (index, sub) in list_at(document, "/subagent_trajectories")
        .iter()
        .enumerate()
    {
        let ids = ["/trajectory_id", "/session_id"].map(|path| text_at(sub, path));
        let id = ids.into_iter().find(|id| !id.is_empty());
        let id = id.map_or_else(|| format!("sub-agent {}", index + 1), input::bounded_id);
        read_steps(writer, &mut models, sub, &AgentId::new(&id));
    }
    writer.end_merge();
}

fn read_steps(
    writer: &mut SessionWriter,
    models: &mut ModelNames,
    trajectory: &Value,
    agent: &AgentId,
) {
    let default_model = text_at(trajectory, "/agent/model_name");
    for step in list_at(trajectory, "/steps") {
        // Steps of another trajectory, repeated for the model.
        if flag_at(step, "/is_copied_context") == Some(true) {
            continue;
        }
        let time = parse_time(text_at(step, "/timestamp"));
        let message = input::text_of(step.get("message"));
        match text_at(step, "/source") {
            "user" if agent.is_main() => writer.prompt(&message, time),
            "agent" => {
                let id = format!("step {}", count_at(step, "/step_id"));
                let response = writer.response(agent, &id);
                response.push_text(&message, time);
                // The calls that the model asked for.
                for call in list_at(step, "/tool_calls") {
                    response.push_call(
                        text_at(call, "/tool_call_id"),
                        text_at(call, "/function_name"),
                        args_at(call, "arguments"),
                    );
                }
                // Add the cost of the response.
                let model = match text_at(step, "/model_name") {
                    "" => default_model,
                    model => model,
                };
                response.set_usage(ModelUsage {
                    model: models.get(model),
                    input_tokens: count_at(step, "/metrics/prompt_tokens"),
                    cached_input_tokens: count_at(step, "/metrics/cached_tokens"),
                    cache_write_tokens: 0,
                    output_tokens: count_at(step, "/metrics/completion_tokens"),
                    cost_usd: amount_at(step, "/metrics/cost_usd"),
                    ..ModelUsage::default()
                });
                // A step has the results of its own calls.
                read_results(writer, step, time);
                writer.end_response(agent);
            }
            _ => {}
        }
    }
}

fn read_results(writer: &mut SessionWriter, step: &Value, time: Option<std::time::SystemTime>) {
    let calls = list_at(step, "/tool_calls");
    for (index, result) in list_at(step, "/observation/results").iter().enumerate() {
        // Without an id it is the result of the call in the same place.
        let call_id = match text_at(result, "/source_call_id") {
            "" => calls
                .get(index)
                .map_or("", |call| text_at(call, "/tool_call_id")),
            id => id,
        };
        let is_error = flag_at(result, "/is_error").or_else(|| flag_at(result, "/extra/is_error"));
        let call_result = CallResult {
            text: input::text_of(result.get("content")),
            outcome: (is_error == Some(true)).then_some(Outcome::Error),
            content_hash: String::new(),
        };
        writer.result(call_id, time, call_result);
    }
}
