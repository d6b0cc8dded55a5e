//! Facts of a call that only this machine has: its exit code and the tokens of the model's
//! turn. Agents write them to their transcripts and not to their hooks.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use memchr::memmem;
use serde::Serialize;
use serde_json::Value;

use super::payload::Payload;
use crate::cli::user_dirs;

/// The end of Codex's transcript in which a call's exit code is looked for.
const CODEX_TAIL_BYTES: u64 = 64 * 1024;
/// The end of Claude Code's transcript in which a turn's tokens are looked for.
const CLAUDE_TAIL_BYTES: u64 = 256 * 1024;

/// The object that is added to a payload.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct LocalFacts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<TurnUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// The tokens of the turn that made the call.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct TurnUsage {
    /// All tokens, including cached ones.
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// The part of the input that was read from the cache.
    pub cached_input_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Facts that cannot be read are left out.
pub(super) fn find(agent: &str, payload: &Payload<'_>) -> LocalFacts {
    let (exit_code, usage) = match agent {
        "codex" => (find_exit_code(payload), None),
        "claude-code" | "claude" => (None, find_usage(payload)),
        _ => (None, None),
    };
    LocalFacts {
        exit_code,
        usage,
        host: host_name(),
    }
}

/// The name of this machine.
pub(in crate::cli) fn host_name() -> Option<String> {
    let name = rustix::system::uname();
    let name = name.nodename().to_str().ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn find_exit_code(payload: &Payload<'_>) -> Option<i64> {
    if payload.text("hook_event_name")? != "PostToolUse" {
        return None;
    }
    let dir = user_dirs::absolute("CODEX_HOME").or_else(|| Some(user_dirs::home()?.join(".codex")));
    let path = PathBuf::from(payload.text("transcript_path")?);
    let tail = read_tail(&path, &dir?, CODEX_TAIL_BYTES)?;
    let id = payload.call_id()?;
    lines_with(&tail, &id).find_map(|line| exit_code_of(&line, &id))
}

fn find_usage(payload: &Payload<'_>) -> Option<TurnUsage> {
    if !payload.text("hook_event_name")?.starts_with("PostTool") {
        return None;
    }
    let dir = user_dirs::absolute("CLAUDE_CONFIG_DIR")
        .or_else(|| Some(user_dirs::home()?.join(".claude")));
    let path = claude_transcript(payload)?;
    let tail = read_tail(&path, &dir?, CLAUDE_TAIL_BYTES)?;
    let id = payload.call_id()?;
    lines_with(&tail, &id).find_map(|line| usage_of(&line, &id))
}

/// A sub-agent has a transcript of its own beside that of its session.
fn claude_transcript(payload: &Payload<'_>) -> Option<PathBuf> {
    let path = PathBuf::from(payload.text("transcript_path")?);
    let Some(agent) = payload.text("agent_id") else {
        return Some(path);
    };
    let is_name = agent.chars().all(|c| c.is_ascii_alphanumeric());
    let file = format!("agent-{agent}.jsonl");
    is_name.then(|| path.with_extension("").join("subagents").join(file))
}

/// The end of a regular file of this user below the agent's own directory. The payload names
/// the path, so nothing else is opened: no link, device or pipe.
fn read_tail(path: &Path, agent_dir: &Path, bytes: u64) -> Option<Vec<u8>> {
    let dir = path.parent()?.canonicalize().ok()?;
    if !dir.starts_with(agent_dir.canonicalize().ok()?) {
        return None;
    }
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut file: File = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(dir.join(path.file_name()?))
        .ok()?;
    let found = file.metadata().ok()?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    if !(found.is_file() && is_own) {
        return None;
    }
    let start = found.len().saturating_sub(bytes);
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut tail = Vec::new();
    file.take(bytes).read_to_end(&mut tail).ok()?;
    Some(tail)
}

/// The JSON lines that contain this text, the last first. The first line may be incomplete and
/// then is not JSON.
fn lines_with(tail: &[u8], text: &str) -> impl Iterator<Item = Value> {
    let found = memmem::Finder::new(text.as_bytes()).into_owned();
    tail.rsplit(|byte| *byte == b'\n')
        .filter(move |line| found.find(line).is_some())
        .filter_map(|line| serde_json::from_slice(line).ok())
}

/// The `exit_code` of the object with this id, at whatever depth.
fn exit_code_of(value: &Value, id: &str) -> Option<i64> {
    match value {
        Value::Object(members) => {
            let is_call = ["id", "call_id"]
                .iter()
                .any(|name| members.get(*name).and_then(Value::as_str) == Some(id));
            let own = || members.get("exit_code")?.as_i64();
            let inner = || members.values().find_map(|inner| exit_code_of(inner, id));
            is_call.then(own).flatten().or_else(inner)
        }
        Value::Array(items) => items.iter().find_map(|item| exit_code_of(item, id)),
        _ => None,
    }
}

/// The usage of the model's message that made this call.
fn usage_of(line: &Value, id: &str) -> Option<TurnUsage> {
    let message = line.get("message")?;
    let is_call = |block: &Value| block.get("id").and_then(Value::as_str) == Some(id);
    if !message.get("content")?.as_array()?.iter().any(is_call) {
        return None;
    }
    let usage = message.get("usage")?;
    let tokens = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or_default();
    let cached = tokens("cache_read_input_tokens");
    let input = tokens("input_tokens").saturating_add(tokens("cache_creation_input_tokens"));
    Some(TurnUsage {
        input_tokens: input.saturating_add(cached),
        output_tokens: tokens("output_tokens"),
        cached_input_tokens: cached,
        model: message
            .get("model")
            .and_then(Value::as_str)
            .map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    const CODEX_LINE: &str =
        r#"{"type": "event_msg", "payload": {"item": {"id": "call_1", "exit_code": 3}}}"#;

    #[test]
    fn the_exit_code_is_that_of_the_call() {
        let other = CODEX_LINE.replace("call_1", "call_2").replace('3', "0");
        let text = format!("half of a line\n{CODEX_LINE}\n{other}\n{{\"id\": \"call_1\"}}\n");
        let found = |id: &str| lines_with(text.as_bytes(), id).find_map(|it| exit_code_of(&it, id));
        assert_eq!(found("call_1"), Some(3));
        assert_eq!(found("call_2"), Some(0));
        assert_eq!(found("call_3"), None);
    }

    #[test]
    fn the_tokens_are_those_of_the_message_that_made_the_call() {
        let line = r#"{"message": {"model": "m", "content": [{"id": "t1"}], "usage":
            {"input_tokens": 1001, "cache_creation_input_tokens": 30,
             "cache_read_input_tokens": 200, "output_tokens": 50}}}"#;
        let line = serde_json::from_str(line).unwrap();
        let usage = usage_of(&line, "t1").unwrap();
        assert_eq!((usage.input_tokens, usage.output_tokens), (1231, 50));
        assert_eq!(usage.cached_input_tokens, 200);
        assert_eq!(usage.model.as_deref(), Some("m"));
        assert_eq!(usage_of(&line, "t2"), None);
    }

    #[test]
    fn only_a_regular_file_below_the_agents_directory_is_read() {
        let home = tempfile::tempdir().unwrap();
        let agent = home.path().join(".codex");
        fs::create_dir_all(agent.join("sessions")).unwrap();
        let (inside, outside) = (agent.join("sessions/a.jsonl"), home.path().join("secret"));
        fs::write(&inside, "0123456789").unwrap();
        fs::write(&outside, "secret").unwrap();
        let read = |path: &Path| read_tail(path, &agent, 4);
        assert_eq!(read(&inside).unwrap(), b"6789");
        assert_eq!(read(&outside), None);
        assert_eq!(read(&agent.join("sessions/../../secret")), None);
        // A link out of it, a directory, a pipe that would hang, and nothing.
        let link = agent.join("link");
        symlink(&outside, &link).unwrap();
        symlink(home.path(), agent.join("up")).unwrap();
        let pipe = agent.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for path in [link, agent.join("up/secret"), agent.clone(), pipe] {
            assert_eq!(read(&path), None, "{path:?}");
        }
        assert_eq!(read(&agent.join("missing")), None);
    }
}
