//! Files of OTLP/JSON: one document, or one a line as a collector writes them.

use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat, files::FileHead, session::SessionWriter,
    usage::ModelNames,
};
use crate::{
    domain::{AgentId, Args, Outcome, ToolCall},
    ingest::{
        input,
        otlp::{self, OtlpBody, OtlpCall, OtlpRecord},
    },
};

pub(super) const FORMAT: TranscriptFormat = TranscriptFormat {
    name: "otlp",
    title: "OTLP/JSON",
    // There is no usual place.
    places: |_| Vec::new(),
    has_name: |_| false,
    group: None,
    recognises,
    read,
};

fn recognises(head: &FileHead) -> bool {
    head.contains("\"resourceSpans\"") || head.contains("\"resourceLogs\"")
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    for path in &transcript.paths {
        let mut records = Vec::new();
        let mut writer = SessionWriter::new(&FORMAT, path, sink);
        let is_lines = FileHead::read(path).is_some_and(|head| !head.lines.is_empty());
        if is_lines {
            writer.each_line(path, |_, text| {
                records.extend(otlp::records_of(&serde_json::from_str(text)?));
                Ok(())
            });
        } else if let Some(document) = writer.document(path) {
            records = otlp::records_of(&document);
        }
        writer.finish();
        let mut sessions: BTreeMap<String, Vec<OtlpRecord>> = BTreeMap::new();
        for record in records {
            sessions
                .entry(record.session.clone())
                .or_default()
                .push(record);
        }
        for (id, mut of_session) in sessions {
            of_session.sort_by_key(|record| record.time);
            let mut writer = SessionWriter::new(&FORMAT, path, sink);
            writer.describe(&id, "", "");
            write_session(&mut writer, of_session);
            writer.finish();
        }
    }
}

fn write_session(writer: &mut SessionWriter, records: Vec<OtlpRecord>) {
    let main = AgentId::default();
    let mut models = ModelNames::default();
    for OtlpRecord { time, body, .. } in records {
        let time = (time > 0).then(|| UNIX_EPOCH + Duration::from_nanos(time));
        match body {
            OtlpBody::Call(call) => {
                let id = call.id.clone();
                writer.call(&main, &id, time, to_tool_call(call));
            }
            OtlpBody::Prompt(text) => writer.prompt(&text, time),
            // It comes before the calls of the response.
            OtlpBody::Usage(usage) => writer.add_usage(ModelUsage {
                model: models.get(&usage.model),
                input_tokens: usage.input_tokens,
                cached_input_tokens: usage.cached_input_tokens,
                cache_write_tokens: usage.cache_write_tokens,
                output_tokens: usage.output_tokens,
                cost_usd: usage.cost_usd,
                ..ModelUsage::default()
            }),
        }
    }
}

fn to_tool_call(call: OtlpCall) -> ToolCall {
    let has_result = call.result.is_some();
    let text = match call.has_failed {
        Some(true) if !call.error.is_empty() => call.error,
        _ => call.result.unwrap_or_default(),
    };
    // The exit code in a text says more than a producer's "success".
    let outcome = input::outcome_of_text(&text).or(match call.has_failed {
        Some(true) => Some(Outcome::Error),
        Some(false) => Some(Outcome::Ok),
        None => None,
    });
    let is_known = has_result || !text.is_empty();
    let mut finished = input::finished_call(&call.tool, None, text.into(), outcome);
    finished.args = call.args.map_or(Args::Unknown, Args::Text);
    if !is_known {
        finished.result = None;
    }
    finished
}
