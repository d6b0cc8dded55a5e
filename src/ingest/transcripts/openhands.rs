//! OpenHands: `~/.openhands/conversations/<session>/events/event-<number>-<id>.json`, one
//! document an event.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde_json::Value;

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat,
    files::FileHead,
    json::{amount_at, args_at, count_at, flag_at, text_at},
    response::CallResult,
    session::SessionWriter,
    time::parse_time,
    usage::ModelNames,
};
use crate::{
    domain::{AgentId, Outcome},
    ingest::input,
};

pub(super) const FORMAT: TranscriptFormat = TranscriptFormat {
    name: "openhands",
    title: "OpenHands",
    places: |homes| vec![homes.home.join(".openhands/conversations")],
    has_name: is_event_file,
    group: Some(group_sessions),
    recognises,
    read,
};

fn is_event_file(name: &str) -> bool {
    name.starts_with("event-") && name.ends_with(".json")
}

/// The events of a directory are one session, in the order of their names.
fn group_sessions(files: Vec<PathBuf>) -> Vec<Transcript> {
    let mut dirs: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for file in files {
        let dir = file.parent().unwrap_or(Path::new("")).to_owned();
        dirs.entry(dir).or_default().push(file);
    }
    dirs.into_values()
        .map(|paths| Transcript::new(&FORMAT, paths))
        .collect()
}

fn recognises(head: &FileHead) -> bool {
    let name = head.path.file_name().and_then(|name| name.to_str());
    name.is_some_and(is_event_file) && head.contains("\"kind\"")
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    let Some(first) = transcript.paths.first() else {
        return;
    };
    let mut writer = SessionWriter::new(&FORMAT, first, sink);
    // The directory above `events` has the session's id.
    let dir = first.parent().and_then(Path::parent);
    let id = dir.and_then(Path::file_name).and_then(|name| name.to_str());
    writer.describe(id.unwrap_or_default(), "", "");
    if let Some(state) = dir
        .map(|dir| dir.join("base_state.json"))
        .filter(|file| file.is_file())
        && let Some(state) = writer.document(&state)
    {
        read_state(&mut writer, &state);
    }
    for path in &transcript.paths {
        if let Some(event) = writer.document(path) {
            read_event(&mut writer, &event);
        }
    }
    writer.finish();
}

/// Tokens and money are totals of the session, by use.
fn read_state(writer: &mut SessionWriter, state: &Value) {
    writer.describe("", text_at(state, "/workspace/working_dir"), "");
    let uses = state
        .pointer("/stats/usage_to_metrics")
        .and_then(Value::as_object);
    let mut models = ModelNames::default();
    let mut total_usd = 0.0;
    for metrics in uses.into_iter().flat_map(serde_json::Map::values) {
        let tokens = |name: &str| count_at(metrics, &format!("/accumulated_token_usage/{name}"));
        let usd = amount_at(metrics, "/accumulated_cost").filter(|usd| *usd > 0.0);
        total_usd += usd.unwrap_or_default();
        writer.count_usage(ModelUsage {
            model: models.get(text_at(metrics, "/model_name")),
            input_tokens: tokens("prompt_tokens"),
            cached_input_tokens: tokens("cache_read_tokens"),
            cache_write_tokens: tokens("cache_write_tokens"),
            output_tokens: tokens("completion_tokens"),
            cost_usd: usd,
            ..ModelUsage::default()
        });
    }
    if total_usd > 0.0 {
        writer.set_recorded_cost(total_usd);
    }
}

fn read_event(writer: &mut SessionWriter, event: &Value) {
    let time = parse_time(text_at(event, "/timestamp"));
    let main = AgentId::default();
    let call_id = text_at(event, "/tool_call_id");
    match text_at(event, "/kind") {
        "MessageEvent" => {
            let text = input::text_of(event.pointer("/llm_message/content"));
            match text_at(event, "/source") {
                "user" => writer.prompt(&text, time),
                "agent" => {
                    writer
                        .response(&main, text_at(event, "/id"))
                        .push_text(&text, time);
                }
                _ => {}
            }
        }
        "ActionEvent" => {
            let response = writer.response(&main, text_at(event, "/llm_response_id"));
            response.push_text(&input::text_of(event.get("thought")), time);
            let args = match event.get("tool_call") {
                Some(call) => args_at(call, "arguments"),
                None => args_at(event, "action"),
            };
            response.push_call(call_id, text_at(event, "/tool_name"), args);
        }
        "ObservationEvent" => read_observation(writer, event, time),
        "AgentErrorEvent" => {
            finish(
                writer,
                call_id,
                time,
                text_at(event, "/error"),
                Outcome::Error,
            );
        }
        "UserRejectObservation" => {
            let reason = text_at(event, "/rejection_reason");
            finish(writer, call_id, time, reason, Outcome::Blocked);
        }
        "Condensation" => writer.compaction(&main, 0, time),
        _ => {}
    }
}

fn read_observation(writer: &mut SessionWriter, event: &Value, time: Option<SystemTime>) {
    let Some(observation) = event.get("observation") else {
        return;
    };
    let exit_code = observation.get("exit_code").and_then(Value::as_i64);
    let has_failed = flag_at(observation, "/is_error") == Some(true)
        || !text_at(observation, "/error").is_empty()
        || exit_code.is_some_and(|code| code > 0);
    let contents = ["content", "output"];
    let content = contents.iter().find_map(|name| observation.get(*name));
    let text = match (input::text_of(content), text_at(observation, "/error")) {
        (text, error) if text.is_empty() => error.to_owned(),
        (text, _) => text.into_owned(),
    };
    let outcome = if has_failed {
        Outcome::Error
    } else {
        Outcome::Ok
    };
    finish(
        writer,
        text_at(event, "/tool_call_id"),
        time,
        &text,
        outcome,
    );
}

fn finish(
    writer: &mut SessionWriter,
    call_id: &str,
    time: Option<SystemTime>,
    text: &str,
    outcome: Outcome,
) {
    let result = CallResult {
        text: text.into(),
        outcome: Some(outcome),
        content_hash: String::new(),
    };
    writer.result(call_id, time, result);
}
