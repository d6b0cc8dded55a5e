//! Qwen Code: `~/.qwen/projects/<directory>/chats/<session>.jsonl`.

use std::time::SystemTime;

use serde_json::Value;

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat,
    files::{FileHead, is_ndjson},
    gemini,
    json::{args_at, count_at, list_at, text_at},
    response::CallResult,
    session::SessionWriter,
    time::parse_time,
    usage::ModelNames,
};
use crate::{domain::AgentId, ingest::input};

pub(super) const FORMAT: TranscriptFormat = TranscriptFormat {
    name: "qwen",
    title: "Qwen Code",
    places: |homes| vec![homes.home.join(".qwen/projects")],
    has_name: is_ndjson,
    group: None,
    recognises,
    read,
};

fn recognises(head: &FileHead) -> bool {
    head.any_line(|line| {
        line.get("sessionId").is_some()
            && line.get("parentUuid").is_some()
            && line.pointer("/message/parts").is_some()
    })
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    for path in &transcript.paths {
        let mut models = ModelNames::default();
        let mut writer = SessionWriter::new(&FORMAT, path, sink);
        writer.each_line(path, |writer, text| {
            let line: Value = serde_json::from_str(text)?;
            read_line(writer, &mut models, &line);
            Ok(())
        });
        writer.finish();
    }
}

fn read_line(writer: &mut SessionWriter, models: &mut ModelNames, line: &Value) {
    writer.describe(
        text_at(line, "/sessionId"),
        text_at(line, "/cwd"),
        text_at(line, "/version"),
    );
    let time = parse_time(text_at(line, "/timestamp"));
    let main = AgentId::default();
    match text_at(line, "/type") {
        "user" => writer.prompt(&input::text_of(line.pointer("/message/parts")), time),
        "assistant" => read_response(writer, models, line, time),
        "tool_result" => {
            let status = text_at(line, "/toolCallResult/status");
            for part in list_at(line, "/message/parts") {
                read_result(writer, part, status, line, time);
            }
        }
        "system" if text_at(line, "/subtype").contains("compress") => {
            writer.compaction(&main, 0, time);
        }
        _ => {}
    }
}

fn read_response(
    writer: &mut SessionWriter,
    models: &mut ModelNames,
    line: &Value,
    time: Option<SystemTime>,
) {
    let response = writer.response(&AgentId::default(), text_at(line, "/uuid"));
    for part in list_at(line, "/message/parts") {
        if part.get("thought").is_none() {
            response.push_text(text_at(part, "/text"), time);
        }
        if let Some(call) = part.get("functionCall") {
            let args = args_at(call, "args");
            response.push_call(text_at(call, "/id"), text_at(call, "/name"), args);
        }
    }
    let tokens = |name: &str| count_at(line, &format!("/usageMetadata/{name}"));
    response.set_usage(ModelUsage {
        model: models.get(text_at(line, "/model")),
        input_tokens: tokens("promptTokenCount"),
        cached_input_tokens: tokens("cachedContentTokenCount"),
        cache_write_tokens: 0,
        output_tokens: tokens("candidatesTokenCount").saturating_add(tokens("thoughtsTokenCount")),
        cost_usd: None,
        ..ModelUsage::default()
    });
}

fn read_result(
    writer: &mut SessionWriter,
    part: &Value,
    status: &str,
    line: &Value,
    time: Option<SystemTime>,
) {
    let Some(response) = part.get("functionResponse") else {
        return;
    };
    let output = response.pointer("/response/output");
    let text = input::text_of(output.or_else(|| response.pointer("/response/error")));
    let written = line.pointer("/toolCallResult/resultDisplay/newContent");
    let outcome = gemini::outcome(status, &text);
    let result = CallResult {
        text,
        outcome,
        content_hash: written
            .and_then(Value::as_str)
            .map(input::content_hash)
            .unwrap_or_default(),
    };
    writer.result(text_at(response, "/id"), time, result);
}
