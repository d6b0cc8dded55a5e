//! Aligned rows of styled cells, one line each. Wide characters count two columns,
//! text is sanitized, and cells that do not fit are truncated.

use std::io::{self, Write};

use anstyle::Style;

use super::{
    style::{DIM, PLAIN},
    text_format::{display_width, sanitize, truncate, truncate_start},
};

/// Columns of space between two cells.
const GAP: usize = 2;

/// A column: header, alignment, and how it shrinks.
#[derive(Clone, Copy)]
pub(super) struct Column {
    name: &'static str,
    align_right: bool,
    /// May be truncated to this width.
    width_min: usize,
    /// Truncated at its start, because its end is the most recent.
    keep_end: bool,
    /// If there is no space, the columns with the highest number are dropped
    /// first. 0: never dropped.
    drop_priority: u8,
}

impl Column {
    pub const fn left(name: &'static str) -> Self {
        Self {
            name,
            align_right: false,
            width_min: usize::MAX,
            keep_end: false,
            drop_priority: 0,
        }
    }

    pub const fn right(name: &'static str) -> Self {
        Self {
            align_right: true,
            ..Self::left(name)
        }
    }

    pub const fn shrink_to(self, width_min: usize) -> Self {
        Self { width_min, ..self }
    }

    pub const fn shrink_to_end(self, width_min: usize) -> Self {
        Self {
            width_min,
            keep_end: true,
            ..self
        }
    }

    pub const fn drop_priority(self, drop_priority: u8) -> Self {
        Self {
            drop_priority,
            ..self
        }
    }
}

/// Text in pieces, each with a style.
#[derive(Clone, Default)]
pub(super) struct Cell(Vec<(String, Style)>);

impl Cell {
    pub fn new(text: impl AsRef<str>, style: Style) -> Self {
        Self(vec![(sanitize(text.as_ref()), style)])
    }

    pub fn plain(text: impl AsRef<str>) -> Self {
        Self::new(text, PLAIN)
    }

    /// Adds trusted text, without sanitizing it: white space is kept.
    pub fn with_literal(mut self, text: &'static str, style: Style) -> Self {
        self.0.push((text.to_owned(), style));
        self
    }

    /// Adds untrusted text.
    pub fn with_text(mut self, text: impl AsRef<str>, style: Style) -> Self {
        self.0.push((sanitize(text.as_ref()), style));
        self
    }

    fn width(&self) -> usize {
        self.0.iter().map(|(text, _)| display_width(text)).sum()
    }

    /// Writes the cell in at most `width_max` columns.
    fn write(&self, out: &mut impl Write, width_max: usize, keep_end: bool) -> io::Result<()> {
        let mut remaining = width_max;
        for (text, style) in &self.0 {
            let text = if keep_end {
                truncate_start(text, remaining)
            } else {
                truncate(text, remaining)
            };
            remaining -= display_width(&text);
            if *style == PLAIN {
                write!(out, "{text}")?;
            } else {
                write!(out, "{style}{text}{style:#}")?;
            }
        }
        Ok(())
    }
}

/// Writes a header and rows in at most `width_max` columns. `None`: unlimited.
pub(super) fn write(
    out: &mut impl Write,
    columns: &[Column],
    rows: &[Vec<Cell>],
    width_max: Option<usize>,
) -> io::Result<()> {
    let widths = column_widths(columns, rows, width_max);
    let header: Vec<Cell> = columns
        .iter()
        .map(|column| Cell::new(column.name, DIM))
        .collect();
    let has_header = columns.iter().any(|column| !column.name.is_empty());
    for row in has_header.then_some(&header).into_iter().chain(rows) {
        write_row(out, columns, row, &widths)?;
    }
    Ok(())
}

fn write_row(
    out: &mut impl Write,
    columns: &[Column],
    row: &[Cell],
    widths: &[usize],
) -> io::Result<()> {
    // Blanks are written only before the next text: none at the end of a line.
    let mut pending_blanks = 0;
    let mut first = true;
    for ((column, cell), width) in columns.iter().zip(row).zip(widths) {
        if *width == 0 {
            continue;
        }
        pending_blanks += if first { 0 } else { GAP };
        first = false;
        let cell_width = cell.width().min(*width);
        if column.align_right {
            pending_blanks += width - cell_width;
        }
        if cell_width > 0 {
            write!(out, "{:pending_blanks$}", "")?;
            pending_blanks = 0;
            cell.write(out, *width, column.keep_end)?;
        }
        if !column.align_right {
            pending_blanks += width - cell_width;
        }
    }
    writeln!(out)
}

/// The width of each column; 0 if it is dropped.
fn column_widths(columns: &[Column], rows: &[Vec<Cell>], width_max: Option<usize>) -> Vec<usize> {
    let width = |(index, column): (usize, &Column)| {
        let cells = rows.iter().filter_map(|row| row.get(index));
        let widest = cells.map(Cell::width).max().unwrap_or(0);
        // An empty column is dropped.
        if widest == 0 {
            return 0;
        }
        widest.max(display_width(column.name))
    };
    let mut widths: Vec<usize> = columns.iter().enumerate().map(width).collect();
    if let Some(width_max) = width_max {
        drop_columns(columns, &mut widths, width_max);
        shrink_columns(columns, &mut widths, width_max);
    }
    widths
}

/// Drops columns until the others fit at their minimum width.
fn drop_columns(columns: &[Column], widths: &mut [usize], width_max: usize) {
    loop {
        let own = widths.iter().zip(columns);
        let widths_min: Vec<usize> = own.map(|(width, it)| (*width).min(it.width_min)).collect();
        if total_width(&widths_min) <= width_max {
            return;
        }
        let columns_shown = widths.iter_mut().zip(columns);
        let droppable =
            columns_shown.filter(|(width, column)| **width > 0 && column.drop_priority > 0);
        match droppable.max_by_key(|(_, column)| column.drop_priority) {
            Some((width, _)) => *width = 0,
            None => return,
        }
    }
}

/// Shrinks columns until all fit: first the one with the highest drop priority,
/// then the one with the most width to spare.
fn shrink_columns(columns: &[Column], widths: &mut [usize], width_max: usize) {
    while total_width(widths) > width_max {
        let shrinkable = widths
            .iter_mut()
            .zip(columns)
            .map(|(width, it)| (it.drop_priority, width.saturating_sub(it.width_min), width))
            .filter(|(_, spare, _)| *spare > 0);
        match shrinkable.max_by_key(|(drop_priority, spare, _)| (*drop_priority, *spare)) {
            Some((_, _, width)) => *width -= 1,
            None => return,
        }
    }
}

fn total_width(widths: &[usize]) -> usize {
    let shown = widths.iter().filter(|width| **width > 0);
    shown.clone().sum::<usize>() + GAP * shown.count().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::style::strip_colours;

    const COLUMNS: [Column; 4] = [
        Column::left("name").shrink_to(5),
        Column::left("empty"),
        Column::right("count"),
        Column::left("extra").drop_priority(1),
    ];

    #[track_caller]
    fn check(rows: &[[&str; 4]], width_max: Option<usize>, expected: &[&str]) {
        let cells: Vec<Vec<Cell>> = rows
            .iter()
            .map(|row| row.iter().map(Cell::plain).collect())
            .collect();
        let mut out = Vec::new();
        write(&mut out, &COLUMNS, &cells, width_max).unwrap();
        let text = strip_colours(&out);
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn cells_with_wide_characters_are_aligned() {
        check(
            &[["漢字", "", "1", "x"], ["ab", "", "1,000", ""]],
            None,
            &["name  count  extra", "漢字      1  x", "ab    1,000"],
        );
    }

    #[test]
    fn columns_that_do_not_fit_are_truncated_or_dropped() {
        let rows = [["abcdefghij", "", "12", "xyz"]];
        check(
            &rows,
            Some(24),
            &["name        count  extra", "abcdefghij     12  xyz"],
        );
        check(
            &rows,
            Some(22),
            &["name      count  extra", "abcdefg…     12  xyz"],
        );
        check(&rows, Some(17), &["name        count", "abcdefghij     12"]);
        check(&rows, Some(14), &["name     count", "abcdef…     12"]);
        check(&rows, Some(3), &["name   count", "abcd…     12"]);
    }

    #[test]
    fn a_cell_is_one_line_without_control_characters() {
        check(
            &[["a\x1b[2J\r\nb\u{202e}\u{9b}31m", "", "\x1b]0;x\x07", ""]],
            None,
            &["name       count", "a[2J b31m   ]0;x"],
        );
    }
}
