//! The table, drawn anew in place, as `top` does.

use std::{
    io::{self, Write},
    time::Duration,
};

use anstream::{AutoStream, ColorChoice, adapter::strip_bytes};
use jiff::Timestamp;

use super::{Row, Wanted, conclusion, rows, write_table};
use crate::cli::{
    Failure,
    client::Client,
    output::{terminal, written},
    style::{BAD, DIM},
    words::cut,
};

/// Fast enough to see a loop grow, slow enough to read.
const REFRESH: Duration = Duration::from_secs(2);
/// Another screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the upper left; the rest of the line, the rest of the screen is blank.
const HOME: &str = "\x1b[H";
const END_OF_LINE: &str = "\x1b[K\n";
const END_OF_SCREEN: &str = "\x1b[J";
/// Lines beside the rows: the header, how many more there are, the conclusion,
/// the time.
const LINES_AROUND: usize = 4;

/// Gives the terminal back, however it ends.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Self> {
        write!(io::stdout(), "{ENTER}")?;
        Ok(Self)
    }

    fn draw(frame: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        write!(stdout, "{HOME}")?;
        // None after the last line, which would scroll.
        let mut between = "";
        for line in frame.split(|byte| *byte == b'\n') {
            write!(stdout, "{between}")?;
            stdout.write_all(line)?;
            between = END_OF_LINE;
        }
        write!(stdout, "{END_OF_SCREEN}")?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut stdout = io::stdout().lock();
        write!(stdout, "{LEAVE}").unwrap_or_default();
        stdout.flush().unwrap_or_default();
    }
}

/// Shows the sessions until somebody presses Ctrl-C.
pub(super) async fn watch(client: &Client, wanted: &Wanted) -> Result<(), Failure> {
    // Before anything is drawn: a filter that is wrong is said once.
    let mut latest = rows(client, wanted).await.map(Some)?;
    let mut trouble = None;
    let _screen = written(Screen::enter())?;
    loop {
        let (columns, lines) = terminal().unwrap_or((80, 24));
        let shown = latest.as_deref().unwrap_or_default();
        written(frame(shown, trouble.as_ref(), columns, lines).and_then(|it| Screen::draw(&it)))?;
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(()),
            () = tokio::time::sleep(REFRESH) => {}
        }
        // What was last known stays on the screen while nobody answers.
        match rows(client, wanted).await {
            Ok(rows) => (latest, trouble) = (Some(rows), None),
            Err(failure) => trouble = Some(failure),
        }
    }
}

/// What fits on the screen, the worst of it.
fn frame(
    rows: &[Row],
    trouble: Option<&Failure>,
    columns: usize,
    lines: usize,
) -> io::Result<Vec<u8>> {
    let room = lines.saturating_sub(LINES_AROUND).max(1);
    let fitting = rows.get(..room).unwrap_or(rows);
    let mut out = Vec::new();
    write_table(&mut out, fitting, Some(columns))?;
    match rows.len() - fitting.len() {
        0 => writeln!(out)?,
        more => writeln!(out, "{DIM}… {more} more{DIM:#}")?,
    }
    writeln!(out, "{}", cut(&conclusion(rows), columns))?;
    match trouble {
        Some(failure) => {
            let why = cut(&failure.to_string(), columns);
            write!(out, "{BAD}{why}{BAD:#}")?;
        }
        None => {
            let now = Timestamp::now().strftime("%H:%M:%S").to_string();
            write!(out, "{DIM}{now} UTC, Ctrl-C ends{DIM:#}")?;
        }
    }
    // The cursor's sequences must pass where colours must not.
    Ok(match AutoStream::choice(&io::stdout()) {
        ColorChoice::Never => strip_bytes(&out).into_vec(),
        _ => out,
    })
}
