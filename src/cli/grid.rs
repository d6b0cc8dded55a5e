//! Rows whose cells line up, each on one line, whatever stands in them: wide
//! characters count as wide, text cannot steer the terminal, and what does not
//! fit is cut.

use std::io::{self, Write};

use anstyle::Style;

use super::{
    style::{DIM, PLAIN},
    words::{columns_of, cut, cut_to_last, shown},
};

/// Between two columns.
const GAP: usize = 2;

/// A column: how it is headed, how it stands and how it gives way.
#[derive(Clone, Copy)]
pub(super) struct Column {
    name: &'static str,
    right: bool,
    /// May be cut down to so many columns.
    least: usize,
    /// Is cut at its beginning: its end is the latest.
    tail: bool,
    /// Where there is no room, those with the highest number go; 0 stays.
    goes: u8,
}

impl Column {
    pub const fn left(name: &'static str) -> Self {
        Self {
            name,
            right: false,
            least: usize::MAX,
            tail: false,
            goes: 0,
        }
    }

    pub const fn right(name: &'static str) -> Self {
        Self {
            right: true,
            ..Self::left(name)
        }
    }

    pub const fn cut_to(self, least: usize) -> Self {
        Self { least, ..self }
    }

    pub const fn cut_to_last(self, least: usize) -> Self {
        Self {
            least,
            tail: true,
            ..self
        }
    }

    pub const fn goes(self, goes: u8) -> Self {
        Self { goes, ..self }
    }
}

/// Text in pieces of one style each.
#[derive(Clone, Default)]
pub(super) struct Cell(Vec<(String, Style)>);

impl Cell {
    pub fn new(text: impl AsRef<str>, style: Style) -> Self {
        Self(vec![(shown(text.as_ref()), style)])
    }

    pub fn plain(text: impl AsRef<str>) -> Self {
        Self::new(text, PLAIN)
    }

    /// Adds a piece; `text` is ours, and white space in it stays.
    pub fn and(mut self, text: &'static str, style: Style) -> Self {
        self.0.push((text.to_owned(), style));
        self
    }

    /// Adds a piece of untrusted text.
    pub fn with(mut self, text: impl AsRef<str>, style: Style) -> Self {
        self.0.push((shown(text.as_ref()), style));
        self
    }

    fn width(&self) -> usize {
        self.0.iter().map(|(text, _)| columns_of(text)).sum()
    }

    /// Writes it, no wider than `room`.
    fn write(&self, out: &mut impl Write, room: usize, tail: bool) -> io::Result<()> {
        let mut left = room;
        for (text, style) in &self.0 {
            let text = if tail {
                cut_to_last(text, left)
            } else {
                cut(text, left)
            };
            left -= columns_of(&text);
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
    room: Option<usize>,
) -> io::Result<()> {
    let widths = widths(columns, rows, room);
    let header = columns.iter().map(|column| Cell::new(column.name, DIM));
    let header: Vec<Cell> = header.collect();
    let headed = columns.iter().any(|column| !column.name.is_empty());
    for row in headed.then_some(&header).into_iter().chain(rows) {
        line(out, columns, row, &widths)?;
    }
    Ok(())
}

fn line(
    out: &mut impl Write,
    columns: &[Column],
    row: &[Cell],
    widths: &[usize],
) -> io::Result<()> {
    // Blanks that are owed: none are written at the end of a line.
    let mut blanks = 0;
    let mut first = true;
    for ((column, cell), width) in columns.iter().zip(row).zip(widths) {
        if *width == 0 {
            continue;
        }
        blanks += if first { 0 } else { GAP };
        first = false;
        let own = cell.width().min(*width);
        if column.right {
            blanks += width - own;
        }
        if own > 0 {
            write!(out, "{:blanks$}", "")?;
            blanks = 0;
            cell.write(out, *width, column.tail)?;
        }
        if !column.right {
            blanks += width - own;
        }
    }
    writeln!(out)
}

/// How wide each column is; 0 where it is left out.
fn widths(columns: &[Column], rows: &[Vec<Cell>], room: Option<usize>) -> Vec<usize> {
    let width = |(place, column): (usize, &Column)| {
        let cells = rows.iter().filter_map(|row| row.get(place));
        let widest = cells.map(Cell::width).max().unwrap_or(0);
        // A column with nothing in it says nothing.
        if widest == 0 {
            return 0;
        }
        widest.max(columns_of(column.name))
    };
    let mut widths: Vec<usize> = columns.iter().enumerate().map(width).collect();
    if let Some(room) = room {
        leave_out(columns, &mut widths, room);
        cut_down(columns, &mut widths, room);
    }
    widths
}

/// Leaves columns out until the others fit, cut down as far as they may be.
fn leave_out(columns: &[Column], widths: &mut [usize], room: usize) {
    loop {
        let own = widths.iter().zip(columns);
        let least: Vec<usize> = own.map(|(width, it)| (*width).min(it.least)).collect();
        if total(&least) <= room {
            return;
        }
        let shown = widths.iter_mut().zip(columns);
        let shown = shown.filter(|(width, column)| **width > 0 && column.goes > 0);
        match shown.max_by_key(|(_, column)| column.goes) {
            Some((width, _)) => *width = 0,
            None => return,
        }
    }
}

/// Takes from the column that would go first, of equals from the one that has
/// most to spare, until all fit.
fn cut_down(columns: &[Column], widths: &mut [usize], room: usize) {
    while total(widths) > room {
        let own = widths.iter_mut().zip(columns);
        let spare = own.map(|(width, it)| (it.goes, width.saturating_sub(it.least), width));
        let spare = spare.filter(|(_, spare, _)| *spare > 0);
        match spare.max_by_key(|(goes, spare, _)| (*goes, *spare)) {
            Some((_, _, width)) => *width -= 1,
            None => return,
        }
    }
}

fn total(widths: &[usize]) -> usize {
    let shown = widths.iter().filter(|width| **width > 0);
    shown.clone().sum::<usize>() + GAP * shown.count().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::style::without_colours;

    const COLUMNS: [Column; 4] = [
        Column::left("name").cut_to(5),
        Column::left("empty"),
        Column::right("count"),
        Column::left("extra").goes(1),
    ];

    #[track_caller]
    fn check(rows: &[[&str; 4]], room: Option<usize>, expected: &[&str]) {
        let rows: Vec<Vec<Cell>> = rows
            .iter()
            .map(|row| row.iter().map(Cell::plain).collect())
            .collect();
        let mut out = Vec::new();
        write(&mut out, &COLUMNS, &rows, room).unwrap();
        let out = without_colours(&out);
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
