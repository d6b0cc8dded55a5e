//! Rows whose cells line up, each on one line, whatever stands in them: wide
//! characters count as wide, text cannot steer the terminal, and what does not
//! fit is cut.

use std::io::{self, Write};

use anstyle::Style;

use super::{
    style::{DIM, PLAIN},
    text_format::{display_width, sanitize, truncate, truncate_start},
};

/// Between two columns.
const GAP: usize = 2;

/// A column: how it is headed, how it stands and how it gives way.
#[derive(Clone, Copy)]
pub(super) struct Column {
    name: &'static str,
    align_right: bool,
    /// May be cut down to so many columns.
    width_min: usize,
    /// Is cut at its beginning: its end is the latest.
    keep_end: bool,
    /// Where there is no room, those with the highest number go; 0 stays.
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

    pub const fn drop_priority(self, goes: u8) -> Self {
        Self {
            drop_priority: goes,
            ..self
        }
    }
}

/// Text in pieces of one style each.
#[derive(Clone, Default)]
pub(super) struct Cell(Vec<(String, Style)>);

impl Cell {
    pub fn new(text: impl AsRef<str>, style: Style) -> Self {
        Self(vec![(sanitize(text.as_ref()), style)])
    }

    pub fn plain(text: impl AsRef<str>) -> Self {
        Self::new(text, PLAIN)
    }

    /// Adds a piece; `text` is ours, and white space in it stays.
    pub fn with_literal(mut self, text: &'static str, style: Style) -> Self {
        self.0.push((text.to_owned(), style));
        self
    }

    /// Adds a piece of untrusted text.
    pub fn with_text(mut self, text: impl AsRef<str>, style: Style) -> Self {
        self.0.push((sanitize(text.as_ref()), style));
        self
    }

    fn width(&self) -> usize {
        self.0.iter().map(|(text, _)| display_width(text)).sum()
    }

    /// Writes it, no wider than `room`.
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

/// Writes rows below their header. `room` is how wide a line may be; `None`: as
/// wide as it needs to be.
pub(super) fn write(
    out: &mut impl Write,
    columns: &[Column],
    rows: &[Vec<Cell>],
    width_max: Option<usize>,
) -> io::Result<()> {
    let widths = column_widths(columns, rows, width_max);
    let header = columns.iter().map(|column| Cell::new(column.name, DIM));
    let header: Vec<Cell> = header.collect();
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
    // Blanks that are owed: none are written at the end of a line.
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

/// How wide each column is; 0 where it is left out.
fn column_widths(columns: &[Column], rows: &[Vec<Cell>], width_max: Option<usize>) -> Vec<usize> {
    let width = |(index, column): (usize, &Column)| {
        let cells = rows.iter().filter_map(|row| row.get(index));
        let widest = cells.map(Cell::width).max().unwrap_or(0);
        // A column with nothing in it says nothing.
        if widest == 0 {
            return 0;
        }
        widest.max(display_width(column.name))
    };
    let mut widths: Vec<usize> = columns.iter().enumerate().map(width).collect();
    if let Some(room) = width_max {
        drop_columns(columns, &mut widths, room);
        shrink_columns(columns, &mut widths, room);
    }
    widths
}

/// Leaves columns out until the others fit, cut down as far as they may be.
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

/// Takes from the column that would go first, of equals from the one that has
/// most to spare, until all fit.
fn shrink_columns(columns: &[Column], widths: &mut [usize], width_max: usize) {
    while total_width(widths) > width_max {
        let own = widths.iter_mut().zip(columns);
        let spare =
            own.map(|(width, it)| (it.drop_priority, width.saturating_sub(it.width_min), width));
        let spare = spare.filter(|(_, spare, _)| *spare > 0);
        match spare.max_by_key(|(drop_priority, spare, _)| (*drop_priority, *spare)) {
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
    fn check(rows: &[[&str; 4]], room: Option<usize>, expected: &[&str]) {
        let rows: Vec<Vec<Cell>> = rows
            .iter()
            .map(|row| row.iter().map(Cell::plain).collect())
            .collect();
        let mut out = Vec::new();
        write(&mut out, &COLUMNS, &rows, room).unwrap();
        let out = strip_colours(&out);
        assert_eq!(out.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn cells_line_up_also_where_characters_are_wide() {
        check(
            &[["漢字", "", "1", "x"], ["ab", "", "1,000", ""]],
            None,
            &["name  count  extra", "漢字      1  x", "ab    1,000"],
        );
    }

    #[test]
    fn what_does_not_fit_is_cut_or_left_out() {
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
    fn a_cell_stays_on_its_line_and_steers_no_terminal() {
        check(
            &[["a\x1b[2J\r\nb\u{202e}\u{9b}31m", "", "\x1b]0;x\x07", ""]],
            None,
            &["name       count", "a[2J b31m   ]0;x"],
        );
    }
}
