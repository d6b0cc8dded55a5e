//! pi: `~/.pi/agent/sessions/<directory>/*.jsonl`.
//!
//! The lines are a tree: a session that was continued from an earlier point has branches.
//! The last line is the leaf, and what leads to it is the session. The other branches count
//! only for what they cost.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde_json::Value;

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat,
    files::{self, FileHead, Homes, is_ndjson},
    json::{amount_at, args_at, count_at, flag_at, list_at, text_at},
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
    name: "pi",
    title: "pi",
    places,
    has_name: is_ndjson,
    group: None,
    recognises,
    read,
};

/// The newest version of the format that is known.
const VERSION: i64 = 3;

fn places(homes: &Homes) -> Vec<PathBuf> {
    let default = || homes.home.join(".pi/agent");
    let dir = homes.pi.clone().unwrap_or_else(default);
    vec![dir.join("sessions")]
}

fn recognises(head: &FileHead) -> bool {
    let is_header = |line: &Value| text_at(line, "/type") == "session" && line.get("cwd").is_some();
    head.lines.first().is_some_and(is_header)
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    for path in &transcript.paths {
        let branch = branch_of_leaf(path);
        let mut models = ModelNames::default();
        let mut writer = SessionWriter::new(&FORMAT, path, sink);
        let mut is_unknown = false;
        writer.each_line(path, |writer, text| {
            let line: Value = serde_json::from_str(text)?;
            if text_at(&line, "/type") == "session" {
                let version = count_at(&line, "/version");
                if version > VERSION {
                    is_unknown = true;
                    writer.problem(format_args!("unknown version {version} of the format"));
                }
                writer.describe(text_at(&line, "/id"), text_at(&line, "/cwd"), "");
            }
            let id = text_at(&line, "/id");
            let is_on_branch = id.is_empty() || branch.contains(id);
            if !is_unknown {
                read_line(writer, &mut models, &line, is_on_branch);
            }
            Ok(())
        });
        writer.finish();
    }
}

/// The ids of the lines that lead to the last one. Lines that cannot be read are left out
/// here; they are reported when the file is read.
fn branch_of_leaf(path: &Path) -> HashSet<String> {
    let mut parents: HashMap<String, String> = HashMap::new();
    let mut leaf = String::new();
    let mut lines = files::open_lines(path).ok().flatten();
    while let Some(Ok(Some((_, line)))) = lines.as_mut().map(|lines| lines.next_line()) {
        let Ok(Ok(line)) = line.map(serde_json::from_slice::<Value>) else {
            continue;
        };
        let id = text_at(&line, "/id");
        if text_at(&line, "/type") != "session" && !id.is_empty() {
            parents.insert(id.to_owned(), text_at(&line, "/parentId").to_owned());
            leaf = id.to_owned();
        }
    }
    let mut branch = HashSet::new();
    // A line that is its own ancestor ends the walk.
    while !leaf.is_empty() && branch.insert(leaf.clone()) {
        leaf = parents.remove(&leaf).unwrap_or_default();
    }
    branch
}

fn read_line(
    writer: &mut SessionWriter,
    models: &mut ModelNames,
    line: &Value,
    is_on_branch: bool,
) {
    let time = parse_time(text_at(line, "/timestamp"));
    let main = AgentId::default();
    let Some(message) = line.get("message") else {
        if text_at(line, "/type") == "compaction" && is_on_branch {
            writer.compaction(&main, count_at(line, "/tokensBefore"), time);
        }
        return;
    };
    match text_at(message, "/role") {
        "assistant" if !is_on_branch => {
            let usage = usage_of(message, models);
            writer.count_usage(usage);
        }
        _ if !is_on_branch => {}
        "user" => writer.prompt(&input::text_of(message.get("content")), time),
        "assistant" => {
            let response = writer.response(&main, text_at(line, "/id"));
            for block in list_at(message, "/content") {
                match text_at(block, "/type") {
                    "text" => response.push_text(text_at(block, "/text"), time),
                    "toolCall" => {
                        let args = args_at(block, "arguments");
                        response.push_call(text_at(block, "/id"), text_at(block, "/name"), args);
                    }
                    _ => {}
                }
            }
            response.set_usage(usage_of(message, models));
        }
        "toolResult" => read_result(writer, message, time),
        _ => {}
    }
}

fn usage_of(message: &Value, models: &mut ModelNames) -> ModelUsage {
    let tokens = |name: &str| count_at(message, &format!("/usage/{name}"));
    let (cached, written) = (tokens("cacheRead"), tokens("cacheWrite"));
    ModelUsage {
        model: models.get(text_at(message, "/model")),
        input_tokens: tokens("input")
            .saturating_add(cached)
            .saturating_add(written),
        cached_input_tokens: cached,
        cache_write_tokens: written,
        output_tokens: tokens("output"),
        cost_usd: amount_at(message, "/usage/cost/total"),
        ..ModelUsage::default()
    }
}

fn read_result(writer: &mut SessionWriter, message: &Value, time: Option<SystemTime>) {
    let outcome = flag_at(message, "/isError").map(|is_error| {
        if is_error {
            Outcome::Error
        } else {
            Outcome::Ok
        }
    });
    let result = CallResult {
        text: input::text_of(message.get("content")),
        outcome,
        content_hash: String::new(),
    };
    writer.result(text_at(message, "/toolCallId"), time, result);
}
