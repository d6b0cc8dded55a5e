//! Codex: `~/.codex/sessions/<year>/<month>/<day>/rollout-*.jsonl`, and
//! `archived_sessions`.
//!
//! A response has no id: its calls come one after the other, then their outputs, then a
//! `token_count`. Codex repeats a `token_count` without a new response; then its totals are
//! the same. Texts in angle brackets in the user's place are the program's.

use std::{path::PathBuf, time::SystemTime};

use serde_json::Value;

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat,
    files::{FileHead, Homes},
    json::{args_at, count_at, text_at},
    response::CallResult,
    session::SessionWriter,
    time::parse_time,
    usage::ModelNames,
};
use crate::{
    domain::{AgentId, Args, Role},
    ingest::input,
};

pub(super) const FORMAT: TranscriptFormat = TranscriptFormat {
    name: "codex",
    title: "Codex",
    places,
    has_name: |name| name.starts_with("rollout-") && name.ends_with(".jsonl"),
    group: None,
    recognises,
    read,
};

fn places(homes: &Homes) -> Vec<PathBuf> {
    let default = || homes.home.join(".codex");
    let dir = homes.codex.clone().unwrap_or_else(default);
    ["sessions", "archived_sessions"]
        .map(|name| dir.join(name))
        .into()
}

fn recognises(head: &FileHead) -> bool {
    head.any_line(|line| {
        text_at(line, "/type") == "session_meta" && line.pointer("/payload/id").is_some()
    })
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    for path in &transcript.paths {
        let mut lines = CodexLines::default();
        let mut writer = SessionWriter::new(&FORMAT, path, sink);
        writer.each_line(path, |writer, text| lines.read_line(writer, text));
        writer.finish();
    }
}

/// The state between two lines.
#[derive(Default)]
struct CodexLines {
    models: ModelNames,
    model: String,
    /// The total of tokens at the last `token_count`.
    tokens: i64,
}

impl CodexLines {
    fn read_line(
        &mut self,
        writer: &mut SessionWriter,
        text: &str,
    ) -> Result<(), serde_json::Error> {
        let line: Value = serde_json::from_str(text)?;
        let time = parse_time(text_at(&line, "/timestamp"));
        let Some(payload) = line.get("payload") else {
            return Ok(());
        };
        let main = AgentId::default();
        match (text_at(&line, "/type"), text_at(payload, "/type")) {
            ("session_meta", _) => writer.describe(
                text_at(payload, "/id"),
                text_at(payload, "/cwd"),
                text_at(payload, "/cli_version"),
            ),
            ("turn_context", _) => {
                let model = text_at(payload, "/model");
                if !model.is_empty() {
                    self.model = model.to_owned();
                }
            }
            ("compacted", _) => writer.compaction(&main, 0, time),
            ("response_item", "message") => read_message(writer, payload, time),
            ("response_item", "function_call" | "custom_tool_call" | "local_shell_call") => {
                read_call(writer, payload);
            }
            ("response_item", "function_call_output" | "custom_tool_call_output") => {
                read_output(writer, payload, time);
            }
            ("event_msg", "token_count") => self.read_usage(writer, payload),
            ("event_msg", "item_completed" | "exec_command_end") => {
                read_exit_code(writer, payload);
            }
            _ => {}
        }
        Ok(())
    }

    fn read_usage(&mut self, writer: &mut SessionWriter, payload: &Value) {
        let total = count_at(payload, "/info/total_token_usage/total_tokens");
        let Some(usage) = payload.pointer("/info/last_token_usage") else {
            return;
        };
        if total != 0 && total == self.tokens {
            return;
        }
        self.tokens = total;
        writer.add_usage(ModelUsage {
            model: self.models.get(&self.model),
            input_tokens: count_at(usage, "/input_tokens"),
            cached_input_tokens: count_at(usage, "/cached_input_tokens"),
            cache_write_tokens: count_at(usage, "/cache_write_input_tokens"),
            output_tokens: count_at(usage, "/output_tokens"),
            cost_usd: None,
            ..ModelUsage::default()
        });
        writer.end_response(&AgentId::default());
    }
}

fn read_message(writer: &mut SessionWriter, payload: &Value, time: Option<SystemTime>) {
    let text = input::text_of(payload.get("content"));
    match text_at(payload, "/role") {
        "assistant" => open_response(writer).push_text(&text, time),
        "user" if is_program_text(&text) => {
            writer.turn(&AgentId::default(), Role::System, &text, time);
        }
        "user" => writer.prompt(&text, time),
        _ => {}
    }
}

fn is_program_text(text: &str) -> bool {
    let text = text.trim_start();
    text.starts_with('<') || text.starts_with("# AGENTS.md instructions")
}

/// The response that is being written: after an output, the next one.
fn open_response<'w>(writer: &'w mut SessionWriter) -> &'w mut super::response::Response {
    let main = AgentId::default();
    if writer.response(&main, "").has_results() {
        writer.end_response(&main);
    }
    writer.response(&main, "")
}

fn read_call(writer: &mut SessionWriter, payload: &Value) {
    let call_id = text_at(payload, "/call_id");
    let args = ["arguments", "input", "action"];
    let args = args.into_iter().find(|name| payload.get(*name).is_some());
    let args = args.map_or(Args::Unknown, |name| args_at(payload, name));
    let tool = match text_at(payload, "/name") {
        "" => "local_shell",
        name => name,
    };
    open_response(writer).push_call(call_id, tool, args);
}

fn read_output(writer: &mut SessionWriter, payload: &Value, time: Option<SystemTime>) {
    let output = payload.get("output");
    // Older versions: a text with JSON in it, and the exit code beside the output.
    let parsed = output
        .and_then(Value::as_str)
        .filter(|text| text.starts_with('{'));
    let parsed: Option<Value> = parsed.and_then(|text| serde_json::from_str(text).ok());
    let wrapped = parsed
        .as_ref()
        .filter(|value| value.pointer("/metadata/exit_code").is_some());
    let code = wrapped.map(|value| count_at(value, "/metadata/exit_code"));
    let code = code.and_then(|code| i32::try_from(code).ok());
    let text = match wrapped {
        Some(value) => input::text_of(value.get("output")),
        None => input::text_of(output),
    };
    let result = CallResult {
        text,
        outcome: code.map(input::outcome_of_exit_code),
        content_hash: String::new(),
    };
    writer.result(text_at(payload, "/call_id"), time, result);
}

/// The exit code of a command comes on a line of its own, before or after the output.
fn read_exit_code(writer: &mut SessionWriter, payload: &Value) {
    let (id, code) = match payload.get("item") {
        Some(item) => (text_at(item, "/id"), item.get("exit_code")),
        None => (text_at(payload, "/call_id"), payload.get("exit_code")),
    };
    let code = code.and_then(Value::as_i64);
    if let Some(code) = code.and_then(|code| i32::try_from(code).ok()) {
        writer.set_exit_code(id, code);
    }
}
