//! Output of commands: JSON lines, tables, widths and write errors.

use std::io::{self, IsTerminal, Write};

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use serde::Serialize;
use terminal_size::{Height, Width, terminal_size_of};

use super::CliError;
use crate::domain::sanitize;

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(super) enum OutputFormat {
    #[default]
    Table,
    Json,
}

/// An object as one line of JSON without terminal control characters.
pub(super) fn to_json_line(object: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(object).map(escape_invisible)
}

/// An API message as one line of proto3 JSON: snake case names, and UTC times that
/// end with `Z`, where pbjson prints `+00:00`.
pub(super) fn to_proto_json_line(message: &impl Serialize) -> serde_json::Result<String> {
    to_json_line(message).map(replace_utc_offsets_with_z)
}

/// Prints an API message as one line of JSON.
pub(super) fn print_proto_json_line(message: &impl Serialize) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", to_proto_json_line(message)?)
}

/// Replaces the offset of every string value that is a time. A `"` within a string
/// is escaped, so `:"` occurs only between a key and its value.
fn replace_utc_offsets_with_z(line: String) -> String {
    const OFFSET: &str = "+00:00";
    let mut out = String::with_capacity(line.len());
    let mut rest = line.as_str();
    while let Some((before, after)) = rest.split_once(OFFSET) {
        let (key, value) = before.rsplit_once('"').unwrap_or_default();
        let is_time = key.ends_with(':')
            && after.starts_with('"')
            && value.len() >= "1970-01-01T00:00:00".len()
            && value.parse::<jiff::civil::DateTime>().is_ok();
        out += before;
        out += if is_time { "Z" } else { OFFSET };
        rest = after;
    }
    out + rest
}

/// Escapes control characters and bidirectional marks, which serde_json prints as
/// they are. They occur only within strings, where an escape means the same.
fn escape_invisible(line: String) -> String {
    if line.is_ascii() || !line.contains(sanitize::is_invisible) {
        return line;
    }
    let mut out = String::with_capacity(line.len() + 64);
    for c in line.chars() {
        if sanitize::is_invisible(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out += &format!("\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Longer lines are hard to read.
const COLUMNS_MAX: usize = 100;
/// The width without a terminal.
const COLUMNS_DEFAULT: usize = 80;
/// A narrower line would hold little more than its indent.
const COLUMNS_MIN: usize = 40;

/// The width at which prose is wrapped.
pub(super) fn output_width(stdout: &io::StdoutLock<'_>) -> usize {
    match terminal_size_of(stdout) {
        Some((Width(columns), _)) if stdout.is_terminal() => {
            usize::from(columns).clamp(COLUMNS_MIN, COLUMNS_MAX)
        }
        _ => COLUMNS_DEFAULT,
    }
}

/// Maps a write error to a command error. A broken pipe is a success: a reader
/// such as `head` stops early.
pub(super) fn map_write_error<T>(result: io::Result<T>) -> Result<T, CliError> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(CliError::broken_pipe()),
        other => other.map_err(|error| CliError::failed(format!("cannot write: {error}"))),
    }
}

/// Width and height of the terminal; `None` if standard output is not one, so that
/// lines are not truncated.
pub(super) fn terminal_dimensions() -> Option<(usize, usize)> {
    let stdout = io::stdout().lock();
    let (Width(columns), Height(rows)) =
        terminal_size_of(&stdout).filter(|_| stdout.is_terminal())?;
    Some((usize::from(columns).max(COLUMNS_MIN), rows.into()))
}

/// A rule below the header and no other line.
const TABLE_STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// A table with names in the first column and right-aligned numbers in the others,
/// `gap` columns apart.
pub(super) fn render_table<Row>(
    header: Row,
    rows: impl IntoIterator<Item = Row>,
    gap: u16,
) -> String
where
    Row: Into<comfy_table::Row>,
{
    let mut table = Table::new();
    table.load_style(TABLE_STYLE);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        let first = column.index == 0;
        // The first column is flush with the text above and below.
        column.set_padding(if first { (0, 0) } else { (gap, 0) });
        column.set_cell_alignment(if first {
            CellAlignment::Left
        } else {
            CellAlignment::Right
        });
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped_and_decode_to_the_same_text() {
        let text = "ä\u{9b}2J\u{202e}\u{e0041}漢";
        let line = to_json_line(&text).unwrap();
        assert_eq!(line, r#""ä\u009b2J\u202e\udb40\udc41漢""#);
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }

    #[test]
    fn utc_offsets_of_times_become_z_and_other_text_is_unchanged() {
        let check = |line: &str, expected: &str| {
            assert_eq!(replace_utc_offsets_with_z(line.to_owned()), expected);
        };
        check(
            r#"{"time":"1970-01-01T00:00:00+00:00","create_time":"2026-03-11T09:15:10.123+00:00"}"#,
            r#"{"time":"1970-01-01T00:00:00Z","create_time":"2026-03-11T09:15:10.123Z"}"#,
        );
        let others = r#"{"id":"\"1970-01-01T00:00:00+00:00","x":"+00:00","y":"a+00:00"}"#;
        check(others, others);
        check("{}", "{}");
    }
}
