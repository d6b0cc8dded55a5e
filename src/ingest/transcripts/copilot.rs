//! Copilot CLI: `~/.copilot/session-state/<session>/events.jsonl`.
//!
//! A command that fails is a success here; the exit code decides.

use std::{path::PathBuf, time::SystemTime};

use serde_json::Value;

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat,
    files::{FileHead, Homes},
    json::{args_at, count_at, flag_at, list_at, text_at},
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
    name: "copilot",
    title: "Copilot CLI",
    places,
    has_name: |name| name == "events.jsonl",
    group: None,
    recognises,
    read,
};

/// The version of the format that is known.
const VERSION: i64 = 1;

fn places(homes: &Homes) -> Vec<PathBuf> {
    let default = || homes.home.join(".copilot");
    let dir = homes.copilot.clone().unwrap_or_else(default);
    vec![dir.join("session-state")]
}

fn recognises(head: &FileHead) -> bool {
    head.any_line(|line| {
        text_at(line, "/type") == "session.start" && line.pointer("/data/sessionId").is_some()
    })
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    for path in &transcript.paths {
        let mut lines = CopilotLines::default();
        let mut writer = SessionWriter::new(&FORMAT, path, sink);
        writer.each_line(path, |writer, text| {
            let line: Value = serde_json::from_str(text)?;
            lines.read_line(writer, &line);
            Ok(())
        });
        writer.finish();
    }
}

#[derive(Default)]
struct CopilotLines {
    models: ModelNames,
    /// The format is newer than this reader.
    is_unknown: bool,
}

impl CopilotLines {
    fn read_line(&mut self, writer: &mut SessionWriter, line: &Value) {
        // The first line describes the session and has the version of the format.
        let Some(data) = line.get("data") else {
            return;
        };
        let time = parse_time(text_at(line, "/timestamp"));
        if text_at(line, "/type") == "session.start" {
            let version = count_at(data, "/version");
            if version > VERSION {
                self.is_unknown = true;
                writer.problem(format_args!("unknown version {version} of the format"));
            }
            writer.describe(
                text_at(data, "/sessionId"),
                text_at(data, "/context/cwd"),
                text_at(data, "/copilotVersion"),
            );
        }
        if self.is_unknown {
            return;
        }
        // The other lines are messages, calls and results of one agent.
        let agent = AgentId::new(&input::bounded_id(text_at(data, "/parentToolCallId")));
        match text_at(line, "/type") {
            "user.message" if agent.is_main() => writer.prompt(text_at(data, "/content"), time),
            "session.usage_record" => {
                // It comes before the response that it belongs to.
                writer.end_response(&agent);
                let usage = self.usage(data);
                writer.add_usage(usage);
            }
            // A response, with the calls that it asks for.
            "assistant.message" => {
                let response = writer.response(&agent, text_at(data, "/messageId"));
                response.push_text(text_at(data, "/content"), time);
                for call in list_at(data, "/toolRequests") {
                    let args = args_at(call, "arguments");
                    response.push_call(text_at(call, "/toolCallId"), text_at(call, "/name"), args);
                }
            }
            // A call that is repeated here has the same id.
            "tool.execution_start" => {
                let (id, tool) = (text_at(data, "/toolCallId"), text_at(data, "/toolName"));
                writer
                    .response(&agent, "")
                    .push_call(id, tool, args_at(data, "arguments"));
            }
            "tool.execution_complete" => read_result(writer, data, time),
            "session.compaction_complete" => {
                let tokens = count_at(data, "/preCompactionTokens");
                writer.compaction(&agent, tokens, time);
            }
            _ => {}
        }
    }

    fn usage(&mut self, data: &Value) -> ModelUsage {
        let tokens = |name: &str| count_at(data, &format!("/usage/{name}"));
        ModelUsage {
            model: self.models.get(text_at(data, "/usage/model")),
            input_tokens: tokens("inputTokens"),
            cached_input_tokens: tokens("cacheReadTokens"),
            cache_write_tokens: tokens("cacheWriteTokens"),
            output_tokens: tokens("outputTokens"),
            // Its cost is in requests of the plan, not in dollars.
            cost_usd: None,
            ..ModelUsage::default()
        }
    }
}

fn read_result(writer: &mut SessionWriter, data: &Value, time: Option<SystemTime>) {
    let exit_code = data
        .pointer("/shellExecution/exitCode")
        .and_then(Value::as_i64);
    let exit_code = exit_code.and_then(|code| i32::try_from(code).ok());
    let is_success = flag_at(data, "/success") == Some(true);
    let text = if is_success {
        text_at(data, "/result/content")
    } else {
        text_at(data, "/error/message")
    };
    let outcome = match exit_code {
        _ if !is_success => Outcome::Error,
        Some(code) => input::outcome_of_exit_code(code),
        None => input::outcome_of_text(text).unwrap_or(Outcome::Ok),
    };
    let result = CallResult {
        text: text.into(),
        outcome: Some(outcome),
        content_hash: String::new(),
    };
    writer.result(text_at(data, "/toolCallId"), time, result);
}
