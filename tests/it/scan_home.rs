//! A HOME with generated transcripts of Claude Code: healthy sessions, and the sessions of
//! `traces/`, so that some loop in each way.

use std::{collections::BTreeMap, fmt::Write, fs, path::Path};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::traces;

/// The lines of a session of Claude Code.
pub struct ClaudeSession {
    id: String,
    text: String,
    lines: usize,
    time: Timestamp,
    project: usize,
}

impl ClaudeSession {
    pub fn new(id: &str, day: i64) -> Self {
        let start: Timestamp = "2026-03-02T10:00:00Z".parse().unwrap();
        Self {
            id: id.to_owned(),
            text: String::new(),
            lines: 0,
            time: start + SignedDuration::from_hours(24 * day),
            project: (day % 4).unsigned_abs() as usize,
        }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    fn line(&mut self, kind: &str, more: Value) {
        self.lines += 1;
        let mut line = json!({"parentUuid": null, "isSidechain": false, "sessionId": self.id,
            "uuid": format!("{}-{}", self.id, self.lines), "timestamp": self.time.to_string(),
            "cwd": format!("/home/dev/project-{}", self.project), "version": "2.1.0", "type": kind});
        for (key, value) in more.as_object().unwrap() {
            line[key] = value.clone();
        }
        writeln!(self.text, "{line}").unwrap();
    }

    pub fn wait(&mut self, seconds: i64) {
        self.time += SignedDuration::from_secs(seconds);
    }

    pub fn prompt(&mut self, text: &str) {
        self.line(
            "user",
            json!({"message": {"role": "user", "content": text}}),
        );
    }

    fn respond(&mut self, id: &str, input_tokens: i64, block: Value) {
        let cached = input_tokens / 10 * 9;
        let usage = json!({"input_tokens": input_tokens - cached,
            "cache_read_input_tokens": cached, "output_tokens": 60});
        let message = json!({"id": id, "role": "assistant", "model": "claude-sonnet-4-5",
            "content": [block], "usage": usage});
        self.line("assistant", json!({"message": message}));
    }

    pub fn say(&mut self, input_tokens: i64, text: &str) {
        let id = format!("{}-m{}", self.id, self.lines);
        self.respond(&id, input_tokens, json!({"type": "text", "text": text}));
    }

    pub fn compact(&mut self, tokens: i64) {
        let metadata = json!({"trigger": "auto", "preTokens": tokens});
        let marker = json!({"subtype": "compact_boundary", "compactMetadata": metadata});
        self.line("system", marker);
    }

    pub fn call(&mut self, call: &Call) {
        let use_id = format!("{}-t{}", self.id, self.lines);
        let response = match call.round {
            "" => format!("{}-m{}", self.id, self.lines),
            round => format!("{}-{round}", self.id),
        };
        let block =
            json!({"type": "tool_use", "id": use_id, "name": call.tool, "input": call.args});
        self.respond(&response, call.input_tokens, block);
        let result = json!({"type": "tool_result", "tool_use_id": use_id,
            "content": call.result, "is_error": call.failed});
        let mut line = json!({"message": {"role": "user", "content": [result]}});
        if !call.content.is_empty() {
            line["toolUseResult"] = json!({
                "file": {"content": call.content, "startLine": 1, "numLines": 1, "totalLines": 1},
                "originalFile": "x", "oldString": "x", "newString": call.content});
        }
        self.line("user", line);
    }
}

pub struct Call<'a> {
    pub tool: &'a str,
    pub args: Value,
    pub result: &'a str,
    pub failed: bool,
    /// The file after the call; empty: unknown.
    pub content: &'a str,
    /// Calls of one response share it; empty: its own.
    pub round: &'a str,
    pub input_tokens: i64,
}

impl<'a> Call<'a> {
    pub fn read(path: &str, result: &'a str) -> Self {
        Self {
            tool: "Read",
            args: json!({"file_path": path}),
            result,
            failed: false,
            content: "",
            round: "",
            input_tokens: 8_000,
        }
    }
}

/// 300 sessions in 20 weeks; each third is of a trace.
pub fn write(home: &Path) {
    let dir = home.join(".claude/projects/-home-dev");
    fs::create_dir_all(&dir).unwrap();
    let recorded = recorded_sessions();
    for n in 0..300 {
        let id = format!("session-{n:03}");
        let mut session = ClaudeSession::new(&id, n % 140);
        let trace = usize::try_from(n).unwrap() / 3 % recorded.len();
        if n % 3 == 0 {
            play(&mut session, &recorded[trace]);
        } else {
            session.prompt(&format!("do task {id}"));
            for call in 0..8 + n % 5 {
                session.wait(5);
                let path = format!("src/{n}-{call}.rs");
                session.call(&Call::read(&path, &format!("fn f{n}_{call}() {{}}")));
            }
        }
        fs::write(dir.join(format!("{id}.jsonl")), session.text()).unwrap();
    }
}

/// The lines of each session of the traces.
fn recorded_sessions() -> Vec<Vec<Value>> {
    let mut sessions: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (_, file) in traces::files() {
        for line in fs::read_to_string(file).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let event = line.get("delta").unwrap_or(&line);
            let id = event["session_id"].as_str().unwrap().to_owned();
            sessions.entry(id).or_default().push(line);
        }
    }
    sessions.into_values().collect()
}

fn play(session: &mut ClaudeSession, lines: &[Value]) {
    let mut said = String::new();
    for line in lines {
        session.wait(5);
        let text = |path: &str| {
            line.pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        // The pieces of a streamed turn are one turn.
        if line.get("delta").is_some() {
            said += text("/delta/text");
            continue;
        }
        if !said.is_empty() {
            session.say(4_000, &std::mem::take(&mut said));
        }
        let tokens = line.pointer("/usage/input_tokens").and_then(Value::as_i64);
        let tokens = tokens.unwrap_or(4_000);
        if line.get("marker").is_some() {
            session.compact(
                line["marker"]["context_tokens"]
                    .as_i64()
                    .unwrap_or_default(),
            );
        } else if text("/turn/role") == "ROLE_USER" {
            session.prompt(text("/turn/text"));
        } else if line.get("turn").is_some() {
            session.say(tokens, text("/turn/text"));
        } else {
            let failed = text("/tool_call/outcome") == "OUTCOME_ERROR";
            let result = if failed {
                "/tool_call/error"
            } else {
                "/tool_call/result"
            };
            session.call(&Call {
                tool: text("/tool_call/tool"),
                args: serde_json::from_str(text("/tool_call/args_json")).unwrap_or(json!({})),
                result: text(result),
                failed,
                content: text("/tool_call/content_hash"),
                round: text("/round_id"),
                input_tokens: tokens,
            });
        }
    }
    if !said.is_empty() {
        session.say(4_000, &said);
    }
}
