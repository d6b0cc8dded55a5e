//! Claude Code: `~/.claude/projects/<directory>/<session>.jsonl`, and the sub-agents of a
//! session in `<session>/subagents/agent-<id>.jsonl`.
//!
//! A response is spread over several lines with the same `message.id`, and each repeats its
//! usage. A session that was resumed in a new file repeats the lines of the old one, with
//! the same uuids. Lines of some types are long and not needed; their type comes first, so
//! they are skipped before they are parsed.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::BuildHasher,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat,
    claude_content::content_hash,
    files::{self, FileHead, Homes, is_ndjson},
    lenient::{Amount, Count, Flag, Object, Text},
    response::CallResult,
    session::SessionWriter,
    time::parse_time,
    usage::ModelNames,
};
use crate::{
    domain::{AgentId, Args, Outcome, Role},
    ingest::{claude_result, input},
};

pub(super) const FORMAT: TranscriptFormat = TranscriptFormat {
    name: "claude-code",
    title: "Claude Code",
    places,
    has_name: is_ndjson,
    group: Some(group_sessions),
    recognises,
    read,
};

fn places(homes: &Homes) -> Vec<PathBuf> {
    let dirs: Vec<PathBuf> = match &homes.claude {
        Some(dirs) => dirs
            .split(',')
            .map(|dir| PathBuf::from(dir.trim()))
            .collect(),
        None => vec![
            homes.home.join(".claude"),
            homes.config_dir().join("claude"),
        ],
    };
    dirs.iter().map(|dir| dir.join("projects")).collect()
}

fn is_sub_agent_file(path: &Path) -> bool {
    let dir = path.parent().and_then(Path::file_name);
    dir.is_some_and(|dir| dir == "subagents")
}

/// Sub-agents are read with their sessions. Files that begin with the same line are one
/// session that was resumed: they are read together, the oldest first.
fn group_sessions(files: Vec<PathBuf>) -> Vec<Transcript> {
    let is_only_one = files.len() == 1;
    let mut groups: Vec<Vec<PathBuf>> = Vec::new();
    let mut groups_by_uuid: HashMap<String, usize> = HashMap::new();
    for file in files {
        if is_sub_agent_file(&file) && !is_only_one {
            continue;
        }
        let uuid = first_uuid(&file);
        let known = uuid.as_ref().and_then(|uuid| groups_by_uuid.get(uuid));
        match known.and_then(|at| groups.get_mut(*at)) {
            Some(group) => group.push(file),
            None => {
                groups_by_uuid.extend(uuid.map(|uuid| (uuid, groups.len())));
                groups.push(vec![file]);
            }
        }
    }
    let modified = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).ok();
    let transcripts = groups.into_iter().map(|mut paths| {
        if paths.len() > 1 {
            paths.sort_by_key(modified);
        }
        Transcript::new(&FORMAT, paths)
    });
    transcripts.collect()
}

fn first_uuid(path: &Path) -> Option<String> {
    let head = FileHead::read(path)?;
    let mut uuids = head
        .lines
        .iter()
        .filter_map(|line| line.get("uuid")?.as_str());
    uuids.next().map(str::to_owned)
}

fn recognises(head: &FileHead) -> bool {
    head.any_line(|line| {
        let has_session = line.get("sessionId").is_some();
        let kind = line.get("type").and_then(|kind| kind.as_str());
        let is_message = line.get("parentUuid").is_some() && line.get("isSidechain").is_some();
        has_session && (is_message || matches!(kind, Some("cost-state" | "queue-operation")))
    })
}

/// Types of lines that come first in their line and hold nothing that is read here.
const BULK_TYPES: &[&str] = &[
    "agent-name",
    "api-request",
    "attachment",
    "custom-title",
    "file-history-snapshot",
    "last-prompt",
    "progress",
    "prompt_snapshot",
    "queue-operation",
    "summary",
];

/// The value of `type`, if it is the first member of the object.
fn leading_type(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('{')?.trim_ascii_start();
    let rest = rest.strip_prefix("\"type\"")?.trim_ascii_start();
    let rest = rest.strip_prefix(':')?.trim_ascii_start();
    let (value, _) = rest.strip_prefix('"')?.split_once('"')?;
    Some(value)
}

fn is_bulk(line: &str) -> bool {
    leading_type(line).is_some_and(|kind| BULK_TYPES.iter().any(|bulk| kind.starts_with(bulk)))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Line<'a> {
    #[serde(borrow)]
    r#type: Text<'a>,
    #[serde(borrow)]
    subtype: Text<'a>,
    #[serde(borrow)]
    uuid: Text<'a>,
    #[serde(borrow)]
    session_id: Text<'a>,
    #[serde(borrow)]
    agent_id: Text<'a>,
    #[serde(borrow)]
    timestamp: Text<'a>,
    #[serde(borrow)]
    cwd: Text<'a>,
    #[serde(borrow)]
    version: Text<'a>,
    is_sidechain: Flag,
    is_meta: Flag,
    is_compact_summary: Flag,
    #[serde(borrow)]
    message: Object<Message<'a>>,
    #[serde(borrow)]
    tool_use_result: Option<&'a RawValue>,
    #[serde(rename = "totalCostUSD")]
    total_cost_usd: Amount,
    compact_metadata: Object<CompactMetadata>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct CompactMetadata {
    pre_tokens: Count,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Message<'a> {
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    model: Text<'a>,
    #[serde(borrow)]
    content: Content<'a>,
    usage: Object<Usage>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Usage {
    input_tokens: Count,
    cache_creation_input_tokens: Count,
    cache_read_input_tokens: Count,
    cache_creation: Object<CacheCreation>,
    output_tokens: Count,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CacheCreation {
    ephemeral_1h_input_tokens: Count,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Block<'a> {
    #[serde(borrow)]
    r#type: Text<'a>,
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_use_id: Text<'a>,
    #[serde(borrow)]
    content: Content<'a>,
    is_error: Flag,
}

/// A text, or a list of blocks.
enum Content<'a> {
    Text(Text<'a>),
    Blocks(Vec<Block<'a>>),
}

impl Default for Content<'_> {
    fn default() -> Self {
        Self::Text(Text::default())
    }
}

impl Content<'_> {
    /// The texts of its blocks.
    fn text(&self) -> std::borrow::Cow<'_, str> {
        match self {
            Self::Text(text) => (&**text).into(),
            Self::Blocks(blocks) => match &**blocks {
                [block] => (&*block.text).into(),
                _ => {
                    let texts = blocks.iter().map(|block| &*block.text);
                    texts
                        .filter(|text| !text.is_empty())
                        .collect::<Vec<_>>()
                        .join("\n")
                        .into()
                }
            },
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> de::Visitor<'de> for ContentVisitor {
            type Value = Content<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a text or a list of blocks")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Content::Text(Text::borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Content::Text(Text::owned(text)))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Content::default())
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map
                    .next_entry::<de::IgnoredAny, de::IgnoredAny>()?
                    .is_some()
                {}
                Ok(Content::default())
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut blocks = Vec::new();
                while let Some(block) = seq.next_element()? {
                    blocks.push(block);
                }
                Ok(Content::Blocks(blocks))
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    let mut lines = ClaudeLines::default();
    for path in &transcript.paths {
        let mut writer = SessionWriter::new(&FORMAT, path, sink);
        let dir = path.with_extension("").join("subagents");
        if dir.is_dir() {
            writer.begin_merge();
            for file in files::files_below(&dir, |name| name.ends_with(".jsonl")) {
                writer.each_line(&file, |writer, text| lines.read_line(writer, text, true));
            }
            writer.end_merge();
        }
        writer.each_line(path, |writer, text| lines.read_line(writer, text, false));
        writer.finish();
    }
}

/// The state between two lines.
#[derive(Default)]
struct ClaudeLines {
    /// The lines that were read, by the hashes of their uuids.
    seen: HashSet<u64, foldhash::fast::FixedState>,
    models: ModelNames,
}

impl ClaudeLines {
    fn read_line(
        &mut self,
        writer: &mut SessionWriter,
        text: &str,
        is_sub_agent: bool,
    ) -> Result<(), serde_json::Error> {
        if is_bulk(text) {
            return Ok(());
        }
        let line: Line = serde_json::from_str(text)?;
        if !line.uuid.is_empty() {
            let hash = foldhash::fast::FixedState::default().hash_one(&*line.uuid);
            if !self.seen.insert(hash) {
                return Ok(());
            }
        }
        let is_sub_agent = is_sub_agent || line.is_sidechain.0;
        let cwd = if is_sub_agent { "" } else { &*line.cwd };
        writer.describe(&line.session_id, cwd, &line.version);
        let agent = match (is_sub_agent, &*line.agent_id) {
            (false, _) => AgentId::default(),
            // Older versions write the lines of sub-agents between the others.
            (true, "") => AgentId::new("sidechain"),
            (true, id) => AgentId::new(&input::bounded_id(id)),
        };
        let time = parse_time(&line.timestamp);
        match &*line.r#type {
            "assistant" => self.read_response(writer, &agent, &line, time),
            "user" => read_user_line(writer, &agent, &line, time),
            "system" if &*line.subtype == "compact_boundary" => {
                let metadata = line.compact_metadata.0.unwrap_or_default();
                writer.compaction(&agent, metadata.pre_tokens.get(), time);
            }
            "cost-state" => {
                if let Some(usd) = line.total_cost_usd.0 {
                    writer.set_recorded_cost(usd);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn read_response(
        &mut self,
        writer: &mut SessionWriter,
        agent: &AgentId,
        line: &Line,
        time: Option<SystemTime>,
    ) {
        let Some(message) = &line.message.0 else {
            return;
        };
        // Add the text and the calls to the response, which several lines may share.
        let response = writer.response(agent, &message.id);
        match &message.content {
            Content::Text(text) => response.push_text(text, time),
            Content::Blocks(blocks) => {
                for block in blocks {
                    match &*block.r#type {
                        "text" => response.push_text(&block.text, time),
                        "tool_use" => {
                            let args = block.input.map(|input| input.get().to_owned());
                            let args = args.map_or(Args::Unknown, Args::Text);
                            response.push_call(&block.id, &block.name, args);
                        }
                        _ => {}
                    }
                }
            }
        }
        // Set the usage, except of a message that the program has written itself: an error
        // of the API, an interruption.
        if let Some(usage) = &message.usage.0
            && &*message.model != "<synthetic>"
        {
            let cached = usage.cache_read_input_tokens.get();
            let written = usage.cache_creation_input_tokens.get();
            let uncached = usage.input_tokens.get();
            let kept_longer = usage.cache_creation.0.as_ref();
            let kept_longer = kept_longer.map(|kept| kept.ephemeral_1h_input_tokens.get());
            response.set_usage(ModelUsage {
                model: self.models.get(&message.model),
                input_tokens: uncached.saturating_add(cached).saturating_add(written),
                cached_input_tokens: cached,
                cache_write_tokens: written,
                cache_write_1h_tokens: kept_longer.unwrap_or_default(),
                output_tokens: usage.output_tokens.get(),
                cost_usd: None,
            });
        }
    }
}

/// A line in the user's place: the results of calls, or a message.
fn read_user_line(
    writer: &mut SessionWriter,
    agent: &AgentId,
    line: &Line,
    time: Option<SystemTime>,
) {
    let Some(message) = &line.message.0 else {
        return;
    };
    if let Content::Blocks(blocks) = &message.content {
        for block in blocks
            .iter()
            .filter(|block| &*block.r#type == "tool_result")
        {
            let content_hash = content_hash(writer, &block.tool_use_id, line.tool_use_result);
            let text = block.content.text();
            let outcome = outcome(&text, block.is_error.0);
            let result = CallResult {
                text,
                outcome: Some(outcome),
                content_hash: content_hash.unwrap_or_default(),
            };
            writer.result(&block.tool_use_id, time, result);
        }
        if blocks.iter().any(|block| &*block.r#type == "tool_result") {
            return;
        }
    }
    // The first prompt of a sub-agent, and what the program adds, is not the user's.
    let is_injected = !agent.is_main() || line.is_meta.0 || line.is_compact_summary.0;
    let text = message.content.text();
    if is_injected {
        return;
    }
    if text.starts_with("[Request interrupted by user") {
        writer.turn(agent, Role::System, &text, time);
    } else {
        writer.prompt(&text, time);
    }
}

fn outcome(text: &str, is_error: bool) -> Outcome {
    if claude_result::is_refusal(text, OWN_PREFIX) {
        Outcome::Blocked
    } else if is_error || claude_result::is_failure(text) {
        Outcome::Error
    } else {
        Outcome::Ok
    }
}

/// The default beginning of texts that the service sends to agents.
const OWN_PREFIX: &str = "[unstuck] ";
