//! mini-swe-agent: `*.traj.json`, one document with the messages of the model.
//!
//! Its only tool is the shell. Version 1.1 lists the commands of a message in `extra`;
//! before, a message holds one command in a block of code.

use std::{borrow::Cow, time::SystemTime};

use serde_json::Value;

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat,
    files::FileHead,
    json::{amount_at, count_at, list_at, text_at},
    response::CallResult,
    session::{self, SessionWriter},
    time::time_of_millis,
    usage::ModelNames,
};
use crate::{
    domain::{AgentId, Args, Outcome},
    ingest::input,
};

pub(super) const FORMAT: TranscriptFormat = TranscriptFormat {
    name: "mini-swe-agent",
    title: "mini-swe-agent",
    // There is no usual place.
    places: |_| Vec::new(),
    has_name: |_| false,
    group: None,
    recognises,
    read,
};

fn recognises(head: &FileHead) -> bool {
    head.name_ends_with(".traj.json")
        || head.name_ends_with(".json") && head.contains("\"mini-swe-agent-1")
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    session::read_documents(&FORMAT, transcript, sink, |writer, path, document| {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default().split(".traj").next();
        read_document(writer, document, name.unwrap_or_default());
    });
}

fn read_document(writer: &mut SessionWriter, document: &Value, name: &str) {
    let format = text_at(document, "/trajectory_format");
    if !format.is_empty() && !format.starts_with("mini-swe-agent-1") {
        return writer.problem(format_args!("unknown version {format:?} of the format"));
    }
    let id = match text_at(document, "/instance_id") {
        "" => name,
        id => id,
    };
    let cwd = text_at(document, "/info/config/environment/cwd");
    writer.describe(id, cwd, text_at(document, "/info/mini_version"));
    if let Some(usd) = amount_at(document, "/info/model_stats/instance_cost") {
        writer.set_recorded_cost(usd);
    }
    let model = text_at(document, "/info/config/model/model_name");
    let mut messages = MiniMessages {
        model: ModelNames::default().get(model),
        waiting: Vec::new(),
        has_task: false,
    };
    for (index, message) in list_at(document, "/messages").iter().enumerate() {
        messages.read(writer, message, index);
    }
}

struct MiniMessages {
    model: std::sync::Arc<str>,
    /// Calls without a result, in order.
    waiting: Vec<String>,
    /// The first message of the user is the task; the others are results.
    has_task: bool,
}

impl MiniMessages {
    fn read(&mut self, writer: &mut SessionWriter, message: &Value, index: usize) {
        let seconds = amount_at(message, "/extra/timestamp");
        let seconds = seconds.or_else(|| amount_at(message, "/timestamp"));
        let time = seconds.and_then(|seconds| time_of_millis((seconds * 1e3) as i64));
        let text = input::text_of(message.get("content"));
        match text_at(message, "/role") {
            "assistant" => self.read_response(writer, message, &text, index, time),
            "user" if !self.has_task => {
                self.has_task = true;
                writer.prompt(&text, time);
            }
            "user" | "tool" => {
                let named = text_at(message, "/tool_call_id");
                let at = self
                    .waiting
                    .iter()
                    .position(|id| id == named)
                    .unwrap_or_default();
                if at < self.waiting.len() {
                    let id = self.waiting.remove(at);
                    writer.result(&id, time, result_of(message, &text));
                }
            }
            _ => {}
        }
    }

    fn read_response(
        &mut self,
        writer: &mut SessionWriter,
        message: &Value,
        text: &str,
        index: usize,
        time: Option<SystemTime>,
    ) {
        let main = AgentId::default();
        let response = writer.response(&main, &format!("message {index}"));
        self.waiting.clear();
        let actions = list_at(message, "/extra/actions");
        let mut commands: Vec<(String, &str)> = Vec::new();
        for (position, action) in actions.iter().enumerate() {
            let id = match text_at(action, "/tool_call_id") {
                "" => format!("{index}.{position}"),
                id => id.to_owned(),
            };
            commands.push((id, text_at(action, "/command")));
        }
        if actions.is_empty() {
            commands.extend(command_in(text).map(|command| (index.to_string(), command)));
        }
        // The block of code is the call, what is before it the agent's words.
        let words = text.split("```").next().unwrap_or_default();
        response.push_text(words, time);
        for (id, command) in commands {
            let args = serde_json::json!({ "command": command }).to_string();
            response.push_call(&id, "bash", Args::Text(args));
            self.waiting.push(id);
        }
        let usage = |name: &str| count_at(message, &format!("/extra/response/usage/{name}"));
        response.set_usage(ModelUsage {
            model: self.model.clone(),
            input_tokens: usage("prompt_tokens"),
            cached_input_tokens: usage("prompt_tokens_details/cached_tokens"),
            cache_write_tokens: 0,
            output_tokens: usage("completion_tokens"),
            cost_usd: amount_at(message, "/extra/cost").filter(|usd| *usd > 0.0),
            ..ModelUsage::default()
        });
    }
}

/// The command in a block of code.
fn command_in(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("```bash")?;
    let (command, _) = rest.split_once("```")?;
    Some(command.trim())
}

/// A result has its exit code in `extra`, or in `<returncode>` of the text.
fn result_of<'a>(message: &'a Value, text: &'a str) -> CallResult<'a> {
    let in_extra = message.pointer("/extra/returncode").and_then(Value::as_i64);
    let in_text = || {
        let (_, rest) = text.split_once("<returncode>")?;
        rest.split_once("</returncode>")?.0.trim().parse().ok()
    };
    let code: Option<i64> = in_extra.or_else(in_text);
    let raw = message.pointer("/extra/raw_output").and_then(Value::as_str);
    CallResult {
        text: Cow::Borrowed(raw.unwrap_or(text)),
        outcome: code.map(|code| match code {
            0 => Outcome::Ok,
            _ => Outcome::Error,
        }),
        content_hash: String::new(),
    }
}
