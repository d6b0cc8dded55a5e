//! opencode: `~/.local/share/opencode/opencode.db`, a SQLite database.
//!
//! A session whose `parent_id` is set is a sub-agent's. The database is opened so that
//! nothing is written: SQLite would create the files of its write-ahead log beside it.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rusqlite::{Connection, OpenFlags, Row};
use serde_json::Value;

use super::{
    ModelUsage, Sink, Transcript, TranscriptFormat,
    files::FileHead,
    json::{amount_at, args_at, count_at, text_at},
    response::CallResult,
    session::SessionWriter,
    time::time_of_millis,
    usage::ModelNames,
};
use crate::{
    domain::{AgentId, Outcome},
    ingest::input,
};

pub(super) const FORMAT: TranscriptFormat = TranscriptFormat {
    name: "opencode",
    title: "opencode",
    // The file itself: beside it are copies of whole repositories.
    places: |homes| vec![homes.data_dir().join("opencode/opencode.db")],
    has_name: |_| false,
    group: Some(with_logs),
    recognises,
    read,
};

/// The newest events of a database are in its write-ahead log, beside it.
fn with_logs(files: Vec<PathBuf>) -> Vec<Transcript> {
    let transcript = |file: PathBuf| {
        let mut log = file.clone().into_os_string();
        log.push("-wal");
        let logged = Path::new(&log).metadata().and_then(|log| log.modified());
        let mut transcript = Transcript::new(&FORMAT, vec![file]);
        transcript.modified = transcript.modified.max(logged.ok());
        transcript
    };
    files.into_iter().map(transcript).collect()
}

fn recognises(head: &FileHead) -> bool {
    head.bytes.starts_with(b"SQLite format 3\0") && head.contains("message_id")
}

/// Characters with a meaning in a `file:` URI.
const URI_RESERVED: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'#').add(b' ');

/// Opens the database without writing anything beside it. With a write-ahead log that its
/// program has open, the log's index exists and is shared. Otherwise the file is opened as
/// immutable: then SQLite creates no files and takes no locks.
fn open(path: &Path) -> rusqlite::Result<(Connection, bool)> {
    let beside = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let wal_bytes = fs::metadata(beside("-wal")).map_or(0, |file| file.len());
    let has_index = beside("-shm").is_file();
    if wal_bytes > 0
        && has_index
        && let Ok(connection) = open_uri(path, "mode=ro")
        && connection
            .query_row("SELECT count(*) FROM session", [], |_| Ok(()))
            .is_ok()
    {
        return Ok((connection, true));
    }
    let connection = open_uri(path, "mode=ro&immutable=1")?;
    Ok((connection, wal_bytes == 0))
}

fn open_uri(path: &Path, options: &str) -> rusqlite::Result<Connection> {
    let path = path.to_string_lossy();
    let escaped = utf8_percent_encode(&path, URI_RESERVED);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(format!("file:{escaped}?{options}"), flags)
}

struct SessionRow {
    id: String,
    parent: String,
    cwd: String,
    version: String,
    cost_usd: f64,
}

fn read(transcript: &Transcript, sink: &mut Sink) {
    for path in &transcript.paths {
        match open(path) {
            Ok((connection, is_complete)) => {
                if !is_complete {
                    let what = "the write-ahead log was not read: its index is missing";
                    report(path, sink, what);
                }
                if let Err(error) = read_sessions(&connection, path, sink) {
                    report(path, sink, &format!("cannot be read: {error}"));
                }
            }
            Err(error) => report(path, sink, &format!("cannot be opened: {error}")),
        }
    }
}

fn report(path: &Path, sink: &mut Sink, what: &str) {
    SessionWriter::new(&FORMAT, path, sink).problem(what);
}

fn read_sessions(connection: &Connection, path: &Path, sink: &mut Sink) -> rusqlite::Result<()> {
    let sessions = session_rows(connection)?;
    let parents: HashMap<&str, &str> = sessions
        .iter()
        .map(|row| (row.id.as_str(), row.parent.as_str()))
        .collect();
    for session in sessions.iter().filter(|row| is_root(&parents, &row.id)) {
        let mut writer = SessionWriter::new(&FORMAT, path, sink);
        writer.describe(&session.id, &session.cwd, &session.version);
        let members = sessions
            .iter()
            .filter(|row| root_of(&parents, &row.id) == session.id);
        let mut members: Vec<&SessionRow> = members.collect();
        // The session itself comes first: what its sub-agents do is put between.
        members.sort_by_key(|row| row.id != session.id);
        let usd: f64 = members.iter().map(|row| row.cost_usd).sum();
        if usd > 0.0 {
            writer.set_recorded_cost(usd);
        }
        let mut models = ModelNames::default();
        writer.begin_merge();
        for member in members {
            let agent = if member.id == session.id {
                AgentId::default()
            } else {
                AgentId::new(&input::bounded_id(&member.id))
            };
            read_parts(connection, &mut writer, &mut models, &member.id, &agent)?;
        }
        writer.end_merge();
        writer.finish();
    }
    Ok(())
}

fn session_rows(connection: &Connection) -> rusqlite::Result<Vec<SessionRow>> {
    let sql = "SELECT * FROM session ORDER BY time_created, id";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([], |row| {
        Ok(SessionRow {
            id: row.get("id")?,
            parent: text(row, "parent_id"),
            cwd: text(row, "directory"),
            version: text(row, "version"),
            cost_usd: row.get("cost").unwrap_or_default(),
        })
    })?;
    rows.collect()
}

/// Columns come and go with versions: one that is missing is empty.
fn text(row: &Row, column: &str) -> String {
    let value: Option<String> = row.get(column).unwrap_or_default();
    value.unwrap_or_default()
}

/// The most parents that are followed.
const DEPTH_MAX: usize = 32;

/// The session at the top of a chain of parents. A parent that is gone is none.
fn root_of<'a>(parents: &HashMap<&'a str, &'a str>, id: &'a str) -> &'a str {
    let mut root = id;
    for _ in 0..DEPTH_MAX {
        match parents.get(root) {
            Some(parent) if parents.contains_key(parent) => root = parent,
            _ => break,
        }
    }
    root
}

fn is_root<'a>(parents: &HashMap<&'a str, &'a str>, id: &'a str) -> bool {
    root_of(parents, id) == id
}

fn read_parts(
    connection: &Connection,
    writer: &mut SessionWriter,
    models: &mut ModelNames,
    session: &str,
    agent: &AgentId,
) -> rusqlite::Result<()> {
    let sql = "SELECT m.id, m.data, p.data, p.time_created FROM message m \
               LEFT JOIN part p ON p.message_id = m.id WHERE m.session_id = ?1 \
               ORDER BY m.time_created, m.id, p.id";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([session])?;
    let mut message_id = String::new();
    let mut message = Value::Null;
    while let Some(row) = rows.next()? {
        let id: String = row.get(0)?;
        if id != message_id {
            message = parse(writer, row.get_ref(1)?);
            message_id = id;
            if text_at(&message, "/role") == "assistant" {
                let usage = usage_of(&message, models);
                writer.response(agent, &message_id).set_usage(usage);
            }
        }
        let part = parse(writer, row.get_ref(2)?);
        let created: i64 = row.get(3).unwrap_or_default();
        read_part(writer, agent, &message_id, &message, &part, created);
    }
    writer.end_response(agent);
    Ok(())
}

fn parse(writer: &mut SessionWriter, data: rusqlite::types::ValueRef) -> Value {
    let Ok(text) = data.as_str() else {
        return Value::Null;
    };
    serde_json::from_str(text).unwrap_or_else(|error| {
        writer.problem(format_args!("a row is not JSON: {error}"));
        Value::Null
    })
}

fn usage_of(message: &Value, models: &mut ModelNames) -> ModelUsage {
    let tokens = |name: &str| count_at(message, &format!("/tokens/{name}"));
    let (cached, written) = (tokens("cache/read"), tokens("cache/write"));
    ModelUsage {
        model: models.get(text_at(message, "/modelID")),
        input_tokens: tokens("input")
            .saturating_add(cached)
            .saturating_add(written),
        cached_input_tokens: cached,
        cache_write_tokens: written,
        output_tokens: tokens("output").saturating_add(tokens("reasoning")),
        // Nothing is recorded for a subscription.
        cost_usd: amount_at(message, "/cost").filter(|usd| *usd > 0.0),
        ..ModelUsage::default()
    }
}

fn read_part(
    writer: &mut SessionWriter,
    agent: &AgentId,
    message_id: &str,
    message: &Value,
    part: &Value,
    created: i64,
) {
    let is_user = text_at(message, "/role") == "user";
    let time = time_of_millis(created);
    match text_at(part, "/type") {
        "text" if is_user => {
            let is_synthetic = part.get("synthetic").and_then(Value::as_bool) == Some(true);
            if agent.is_main() && !is_synthetic {
                writer.prompt(unquoted(text_at(part, "/text")), time);
            }
        }
        "text" => writer
            .response(agent, message_id)
            .push_text(text_at(part, "/text"), time),
        "tool" => read_call(writer, agent, message_id, part),
        "compaction" => writer.compaction(agent, 0, time),
        _ => {}
    }
}

/// `opencode run "…"` records the quotes of its command line.
fn unquoted(text: &str) -> &str {
    let inner = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    inner.unwrap_or(text)
}

fn read_call(writer: &mut SessionWriter, agent: &AgentId, message_id: &str, part: &Value) {
    let call_id = text_at(part, "/callID");
    let state = part.get("state").unwrap_or(&Value::Null);
    let args = args_at(state, "input");
    let response = writer.response(agent, message_id);
    response.push_call(call_id, text_at(part, "/tool"), args);
    let exit_code = part.pointer("/state/metadata/exit").and_then(Value::as_i64);
    let exit_code = exit_code.and_then(|code| i32::try_from(code).ok());
    let (text, outcome) = match text_at(part, "/state/status") {
        "completed" => {
            let outcome = exit_code.map_or(Outcome::Ok, input::outcome_of_exit_code);
            (text_at(part, "/state/output"), outcome)
        }
        "error" => (text_at(part, "/state/error"), Outcome::Error),
        // It has not finished.
        _ => return,
    };
    let result = CallResult {
        text: text.into(),
        outcome: Some(outcome),
        content_hash: String::new(),
    };
    let time = time_of_millis(count_at(part, "/state/time/end"));
    writer.result(call_id, time, result);
}
