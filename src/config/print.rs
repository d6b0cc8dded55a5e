//! The merged configuration as TOML: for people to read, and for the sections
//! to be deserialised from, since `toml` can say which value it choked on.

use config::{Map, Value, ValueKind};

use super::{is_bare, join};

pub(super) fn document(root: &Value) -> String {
    let mut lines = Vec::new();
    if let ValueKind::Table(root) = &root.kind {
        table(&mut lines, "", root);
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Plain values first: after the header of a table inside it they would be
/// that table's.
fn table(lines: &mut Vec<String>, path: &str, entries: &Map<String, Value>) {
    let (tables, plain): (Vec<_>, Vec<_>) = sorted(entries)
        .into_iter()
        .partition(|(_, value)| matches!(value.kind, ValueKind::Table(_)) || is_tables(value));
    if !path.is_empty() && (!plain.is_empty() || tables.is_empty()) {
        header(lines, &format!("[{path}]"));
    }
    lines.extend(plain.into_iter().map(assignment));
    for (key, value) in tables {
        let path = join_toml(path, key);
        match &value.kind {
            ValueKind::Table(inner) => table(lines, &path, inner),
            ValueKind::Array(rows) => rows.iter().for_each(|row| self::row(lines, &path, row)),
            _ => {}
        }
    }
}

fn row(lines: &mut Vec<String>, path: &str, row: &Value) {
    header(lines, &format!("[[{path}]]"));
    if let ValueKind::Table(entries) = &row.kind {
        lines.extend(sorted(entries).into_iter().map(assignment));
    }
}

fn header(lines: &mut Vec<String>, header: &str) {
    if !lines.is_empty() {
        lines.push(String::new());
    }
    lines.push(header.to_owned());
}

fn assignment((key, value): (&String, &Value)) -> String {
    format!("{} = {}", join_toml("", key), inline(value))
}

fn inline(value: &Value) -> String {
    match &value.kind {
        ValueKind::String(text) => quoted(text),
        // The debug form keeps the point of `1.0`, and so the type.
        ValueKind::Float(number) => format!("{number:?}"),
        ValueKind::Array(items) => {
            let items: Vec<_> = items.iter().map(inline).collect();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Table(entries) => {
            let entries: Vec<_> = sorted(entries).into_iter().map(assignment).collect();
            format!("{{ {} }}", entries.join(", "))
        }
        scalar => scalar.to_string(),
    }
}

/// A non-empty array of tables only, which `[[name]]` can show.
fn is_tables(value: &Value) -> bool {
    match &value.kind {
        ValueKind::Array(rows) => {
            !rows.is_empty()
                && rows
                    .iter()
                    .all(|row| matches!(row.kind, ValueKind::Table(_)))
        }
        _ => false,
    }
}

/// JSON's strings are TOML's, save that TOML escapes DEL too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text)
        .to_string()
        .replace('\u{7f}', "\\u007f")
}

/// As `join`, but with TOML's escapes instead of Rust's.
fn join_toml(path: &str, key: &str) -> String {
    match (is_bare(key), path) {
        (true, path) => join(path, key),
        (false, "") => quoted(key),
        (false, path) => format!("{path}.{}", quoted(key)),
    }
}

fn sorted(entries: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = entries.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    entries
}
