//! SWE-agent: `*.traj`, one document with a list of actions and observations.
//!
//! An action is a command line, in which the program's own tools are commands. It has no
//! outcome.

use serde_json::{Value, json};

use super::{
    Sink, Transcript, TranscriptFormat,
    files::FileHead,
    json::{amount_at, list_at, text_at},
    session::{self, SessionWriter},
};
use crate::{
    domain::{AgentId, Args, ToolCall},
    ingest::input,
};

pub(super) const FORMAT: TranscriptFormat = TranscriptFormat {
    name: "swe-agent",
    title: "SWE-agent",
    // There is no usual place.
    places: |_| Vec::new(),
    has_name: |_| false,
    group: None,
    recognises,
    read,
};

fn recognises(head: &FileHead) -> bool {
    head.name_ends_with(".traj")
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    session::read_documents(&FORMAT, transcript, sink, |writer, path, document| {
        let name = path.file_stem().and_then(|name| name.to_str());
        read_document(writer, document, name.unwrap_or_default());
    });
}

fn read_document(writer: &mut SessionWriter, document: &Value, name: &str) {
    writer.describe(name, "", text_at(document, "/info/swe_agent_version"));
    if let Some(usd) = amount_at(document, "/info/model_stats/instance_cost") {
        writer.set_recorded_cost(usd);
    }
    let history = list_at(document, "/history").iter();
    let task = history.clone().find(|message| {
        text_at(message, "/role") == "user" && message.get("is_demo") != Some(&Value::Bool(true))
    });
    if let Some(task) = task {
        writer.prompt(&input::text_of(task.get("content")), None);
    }
    let main = AgentId::default();
    for (index, step) in list_at(document, "/trajectory").iter().enumerate() {
        let thought = text_at(step, "/thought").trim();
        if !thought.is_empty() {
            writer.turn(&main, crate::domain::Role::Agent, thought, None);
        }
        let action = text_at(step, "/action").trim();
        if action.is_empty() {
            continue;
        }
        let call = ToolCall {
            args: Args::Text(json!({ "command": action }).to_string()),
            ..input::finished_call("bash", None, text_at(step, "/observation").into(), None)
        };
        writer.call(&main, &format!("step {index}"), None, call);
    }
}
