//! Cline CLI: `~/.cline/data/sessions/<session>/<session>.messages.json`, one document.

use std::{borrow::Cow, path::PathBuf, time::SystemTime};

use serde_json::Value;

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat,
    files::{FileHead, Homes},
    json::{amount_at, args_at, count_at, flag_at, list_at, text_at},
    response::CallResult,
    session::{self, SessionWriter},
    time::time_of_millis,
    usage::ModelNames,
};
use crate::{
    domain::{AgentId, Outcome},
    ingest::input,
};

pub(super) const FORMAT: TranscriptFormat = TranscriptFormat {
    name: "cline",
    title: "Cline CLI",
    places,
    has_name: |name| name.ends_with(".messages.json"),
    group: None,
    recognises,
    read,
};

/// The version of the format that is known.
const VERSION: i64 = 1;

fn places(homes: &Homes) -> Vec<PathBuf> {
    let default = || homes.home.join(".cline");
    let dir = homes.cline.clone().unwrap_or_else(default);
    vec![dir.join("data/sessions")]
}

fn recognises(head: &FileHead) -> bool {
    head.name_ends_with(".messages.json") && head.contains("\"messages\"")
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    session::read_documents(&FORMAT, transcript, sink, |writer, _, document| {
        read_document(writer, document);
    });
}

fn read_document(writer: &mut SessionWriter, document: &Value) {
    let version = count_at(document, "/version");
    if version > VERSION {
        return writer.problem(format_args!("unknown version {version} of the format"));
    }
    writer.describe(
        text_at(document, "/sessionId"),
        text_at(document, "/origin/cwd"),
        text_at(document, "/origin/version"),
    );
    let mut models = ModelNames::default();
    let main = AgentId::default();
    for message in list_at(document, "/messages") {
        let time = time_of_millis(count_at(message, "/ts"));
        let blocks = list_at(message, "/content");
        if text_at(message, "/role") != "assistant" {
            read_user_message(writer, blocks, time);
            continue;
        }
        let response = writer.response(&main, text_at(message, "/id"));
        for block in blocks {
            match text_at(block, "/type") {
                "text" => response.push_text(text_at(block, "/text"), time),
                "tool_use" => {
                    let args = args_at(block, "input");
                    response.push_call(text_at(block, "/id"), text_at(block, "/name"), args);
                }
                _ => {}
            }
        }
        let tokens = |name: &str| count_at(message, &format!("/metrics/{name}"));
        response.set_usage(ModelUsage {
            model: models.get(text_at(message, "/modelInfo/id")),
            input_tokens: tokens("inputTokens"),
            cached_input_tokens: tokens("cacheReadTokens"),
            cache_write_tokens: tokens("cacheWriteTokens"),
            output_tokens: tokens("outputTokens"),
            cost_usd: amount_at(message, "/metrics/cost").filter(|usd| *usd > 0.0),
            ..ModelUsage::default()
        });
    }
}

fn read_user_message(writer: &mut SessionWriter, blocks: &[Value], time: Option<SystemTime>) {
    for block in blocks {
        match text_at(block, "/type") {
            "tool_result" => {
                let content = block.get("content");
                let result = CallResult {
                    text: result_text(content),
                    outcome: Some(outcome(block)),
                    content_hash: String::new(),
                };
                writer.result(text_at(block, "/tool_use_id"), time, result);
            }
            "text" => writer.prompt(unwrap_prompt(text_at(block, "/text")), time),
            _ => {}
        }
    }
}

/// `<user_input mode="act">…</user_input>` is what the user wrote.
fn unwrap_prompt(text: &str) -> &str {
    let inner = text.trim().strip_prefix("<user_input");
    let inner = inner.and_then(|rest| rest.split_once('>'));
    let inner = inner.and_then(|(_, rest)| rest.strip_suffix("</user_input>"));
    inner.unwrap_or(text)
}

/// A tool works on several files or commands at once: one result for each.
fn result_text(content: Option<&Value>) -> Cow<'_, str> {
    let Some(Value::Array(parts)) = content else {
        return input::text_of(content);
    };
    let texts = parts.iter().map(|part| match part.get("result") {
        Some(result) => input::text_of(Some(result)),
        None => input::text_of(part.get("error").or_else(|| part.get("text"))),
    });
    Cow::Owned(texts.collect::<Vec<_>>().join("\n"))
}

fn outcome(block: &Value) -> Outcome {
    let parts = list_at(block, "/content");
    let has_failed = parts
        .iter()
        .any(|part| flag_at(part, "/success") == Some(false));
    if has_failed || flag_at(block, "/is_error") == Some(true) {
        Outcome::Error
    } else {
        Outcome::Ok
    }
}
