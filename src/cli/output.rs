//! What commands print, for people and for programs.

use std::io::{self, IsTerminal};

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

/// An object as a line of JSON that steers no terminal.
pub(super) fn to_json_line(object: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(object).map(escape_invisible)
}

/// A message of the API as proto3 JSON on a line: names in snake case, times in
/// UTC with a `Z`, where pbjson prints `+00:00`.
pub(super) fn to_proto_json_line(message: &impl Serialize) -> serde_json::Result<String> {
    to_json_line(message).map(replace_utc_offsets_with_z)
}

/// A quote within a text is escaped, so a key of this form is found nowhere
/// else; a label of such a name is left alone unless its value is a time.
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

/// serde_json escapes only what JSON asks for. Beyond it are control characters
/// that steer a terminal and marks that turn text around; they occur only within
/// strings, where an escape means the same.
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

/// Of a wide terminal no more than reads well; without one, what fits most.
const COLUMNS_MAX: usize = 100;
const COLUMNS_DEFAULT: usize = 80;
/// Below it a line would hold little more than its indent.
const COLUMNS_MIN: usize = 40;

/// How wide a line for people may be.
pub(super) fn output_width(stdout: &io::StdoutLock<'_>) -> usize {
    match terminal_size_of(stdout) {
        Some((Width(columns), _)) if stdout.is_terminal() => {
            usize::from(columns).clamp(COLUMNS_MIN, COLUMNS_MAX)
        }
        _ => COLUMNS_DEFAULT,
    }
}

/// What came of printing. Who reads no further, as `head` does, has seen enough.
pub(super) fn map_write_error<T>(result: io::Result<T>) -> Result<T, CliError> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(CliError::broken_pipe()),
        other => other.map_err(|error| CliError::failed(format!("cannot write: {error}"))),
    }
}

/// How wide and how high the terminal is; `None` where there is none, and
/// nothing needs to be cut.
pub(super) fn terminal_dimensions() -> Option<(usize, usize)> {
    let stdout = io::stdout().lock();
    let (Width(columns), Height(rows)) =
        terminal_size_of(&stdout).filter(|_| stdout.is_terminal())?;
    Some((usize::from(columns).max(COLUMNS_MIN), rows.into()))
}

/// One rule below the header and no other line.
const TABLE_STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// A table of names, on the left, and numbers, `gap` columns apart.
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
        // Flush with the text above and below.
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
    fn what_is_unseen_is_escaped_and_means_the_same() {
        let text = "ä\u{9b}2J\u{202e}\u{e0041}漢";
        let line = to_json_line(&text).unwrap();
        assert_eq!(line, r#""ä\u009b2J\u202e\udb40\udc41漢""#);
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }

    #[test]
    fn times_end_with_a_z_and_nothing_else_is_changed() {
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
