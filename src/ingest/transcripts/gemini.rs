//! Gemini CLI: `~/.gemini/tmp/<project>/chats/session-*.jsonl`; older versions write one
//! JSON document, `session-*.json`.
//!
//! A record is written again, with the same id, as its calls end: the longest counts, in
//! the place of the first. The results of calls come again as `user` records.

use std::{collections::VecDeque, time::SystemTime};

use serde_json::Value;

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat,
    files::FileHead,
    json::{args_at, count_at, list_at, text_at},
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
    name: "gemini",
    title: "Gemini CLI",
    places: |homes| vec![homes.home.join(".gemini/tmp")],
    has_name: |name| {
        name.starts_with("session-") && (name.ends_with(".jsonl") || name.ends_with(".json"))
    },
    group: None,
    recognises,
    read,
};

fn recognises(head: &FileHead) -> bool {
    let is_header =
        |line: &Value| line.get("projectHash").is_some() && line.get("sessionId").is_some();
    head.any_line(is_header) || head.name_ends_with(".json") && head.contains("\"projectHash\"")
}

/// A record is written again at once, so few are kept until they are final.
const RECORDS_MAX: usize = 64;

fn read(transcript: &Transcript, sink: &mut Sink) {
    for path in &transcript.paths {
        let mut writer = SessionWriter::new(&FORMAT, path, sink);
        let mut records = GeminiRecords::default();
        // The project is the name of the directory above `chats`.
        let project = path.ancestors().nth(2).and_then(|dir| dir.file_name());
        records.project = project
            .and_then(|name| name.to_str())
            .unwrap_or_default()
            .to_owned();
        if path.extension().is_some_and(|end| end == "json") {
            if let Some(document) = writer.document(path) {
                records.read_header(&mut writer, &document);
                for record in list_at(&document, "/messages") {
                    records.push(&mut writer, record.clone());
                }
            }
        } else {
            writer.each_line(path, |writer, text| {
                records.push(writer, serde_json::from_str(text)?);
                Ok(())
            });
        }
        records.finish(&mut writer);
        writer.finish();
    }
}

/// The last records, which may be written again.
#[derive(Default)]
struct GeminiRecords {
    waiting: VecDeque<Value>,
    models: ModelNames,
    is_sub_agent: bool,
    project: String,
}

impl GeminiRecords {
    fn read_header(&mut self, writer: &mut SessionWriter, header: &Value) {
        writer.describe(text_at(header, "/sessionId"), &self.project, "");
        self.is_sub_agent = !matches!(text_at(header, "/kind"), "" | "main");
    }

    fn push(&mut self, writer: &mut SessionWriter, record: Value) {
        if record.get("sessionId").is_some() {
            return self.read_header(writer, &record);
        }
        let id = text_at(&record, "/id");
        let same = |known: &&mut Value| !id.is_empty() && text_at(known, "/id") == id;
        if let Some(known) = self.waiting.iter_mut().find(same) {
            if size(&record) >= size(known) {
                *known = record;
            }
            return;
        }
        self.waiting.push_back(record);
        if self.waiting.len() > RECORDS_MAX
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.read_record(writer, &oldest);
        }
    }

    fn finish(&mut self, writer: &mut SessionWriter) {
        while let Some(record) = self.waiting.pop_front() {
            self.read_record(writer, &record);
        }
    }

    fn read_record(&mut self, writer: &mut SessionWriter, record: &Value) {
        let time = parse_time(text_at(record, "/timestamp"));
        match text_at(record, "/type") {
            "user" if !self.is_sub_agent => {
                let content = record.get("content");
                let is_result = list_at(record, "/content")
                    .iter()
                    .any(|part| part.get("functionResponse").is_some());
                if !is_result {
                    writer.prompt(&input::text_of(content), time);
                }
            }
            "gemini" => self.read_response(writer, record, time),
            // The history was replaced by a summary.
            "compression" => writer.compaction(&AgentId::default(), 0, time),
            _ => {}
        }
    }

    fn read_response(
        &mut self,
        writer: &mut SessionWriter,
        record: &Value,
        time: Option<SystemTime>,
    ) {
        let main = AgentId::default();
        let response = writer.response(&main, text_at(record, "/id"));
        response.push_text(&input::text_of(record.get("content")), time);
        let tokens = |name: &str| count_at(record, &format!("/tokens/{name}"));
        response.set_usage(ModelUsage {
            model: self.models.get(text_at(record, "/model")),
            input_tokens: tokens("input").saturating_add(tokens("tool")),
            cached_input_tokens: tokens("cached"),
            cache_write_tokens: 0,
            output_tokens: tokens("output").saturating_add(tokens("thoughts")),
            cost_usd: None,
            ..ModelUsage::default()
        });
        let calls = list_at(record, "/toolCalls");
        for call in calls {
            let args = args_at(call, "args");
            response.push_call(text_at(call, "/id"), text_at(call, "/name"), args);
        }
        for call in calls {
            read_result(writer, call, time);
        }
        writer.end_response(&main);
    }
}

fn read_result(writer: &mut SessionWriter, call: &Value, time: Option<SystemTime>) {
    let status = text_at(call, "/status");
    // It may still be running.
    if !matches!(status, "success" | "error" | "cancelled") {
        return;
    }
    let result = list_at(call, "/result").iter().find_map(|part| {
        let response = part.pointer("/functionResponse/response")?;
        response.get("output").or_else(|| response.get("error"))
    });
    let text = input::text_of(result);
    let written = call
        .pointer("/resultDisplay/newContent")
        .and_then(Value::as_str);
    let outcome = outcome(status, &text);
    let result = CallResult {
        text,
        outcome,
        content_hash: written.map(input::content_hash).unwrap_or_default(),
    };
    let time = parse_time(text_at(call, "/timestamp")).or(time);
    writer.result(text_at(call, "/id"), time, result);
}

/// A command that fails is a success of the tool: its exit code is in the text.
pub(super) fn outcome(status: &str, text: &str) -> Option<Outcome> {
    match status {
        "error" => Some(Outcome::Error),
        "success" => Some(input::outcome_of_text(text).unwrap_or(Outcome::Ok)),
        _ => input::outcome_of_text(text),
    }
}

/// How long a record is: its calls and results make it longer.
fn size(record: &Value) -> usize {
    match record {
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(size).sum::<usize>(),
        Value::String(text) => 1 + text.len(),
        _ => 1,
    }
}
