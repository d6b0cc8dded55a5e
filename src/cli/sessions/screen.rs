//! The table, drawn anew in place, as `top` does.

use std::{
    io::{self, Write},
    time::Duration,
};

use anstream::{AutoStream, ColorChoice, adapter::strip_bytes};
use jiff::Timestamp;

use super::{SessionSelector, SessionTableRow, fetch_rows, render_summary, write_table};
use crate::cli::{
    CliError,
    client::Client,
    output::{map_write_error, terminal_dimensions},
    style::{DIM, RED},
    text_format::truncate,
};

/// Fast enough to see a loop grow, slow enough to read.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Another screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the upper left; the rest of the line, the rest of the screen is blank.
const HOME: &str = "\x1b[H";
const END_OF_LINE: &str = "\x1b[K\n";
const END_OF_SCREEN: &str = "\x1b[J";
/// Lines beside the rows: the header, how many more there are, the conclusion,
/// the time.
const FIXED_LINES: usize = 4;

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
        let mut separator = "";
        for line in frame.split(|byte| *byte == b'\n') {
            write!(stdout, "{separator}")?;
            stdout.write_all(line)?;
            separator = END_OF_LINE;
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
pub(super) async fn watch_sessions(
    client: &Client,
    selector: &SessionSelector,
) -> Result<(), CliError> {
    // Before anything is drawn: a filter that is wrong is said once.
    let mut latest = fetch_rows(client, selector).await.map(Some)?;
    let mut last_error = None;
    let _screen = map_write_error(Screen::enter())?;
    loop {
        let (columns, lines) = terminal_dimensions().unwrap_or((80, 24));
        let known_rows = latest.as_deref().unwrap_or_default();
        map_write_error(
            render_frame(known_rows, last_error.as_ref(), columns, lines)
                .and_then(|it| Screen::draw(&it)),
        )?;
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(()),
            () = tokio::time::sleep(REFRESH_INTERVAL) => {}
        }
        // What was last known stays on the screen while nobody answers.
        match fetch_rows(client, selector).await {
            Ok(rows) => (latest, last_error) = (Some(rows), None),
            Err(failure) => last_error = Some(failure),
        }
    }
}

/// What fits on the screen, the worst of it.
fn render_frame(
    rows: &[SessionTableRow],
    last_error: Option<&CliError>,
    columns: usize,
    lines: usize,
) -> io::Result<Vec<u8>> {
    let rows_max = lines.saturating_sub(FIXED_LINES).max(1);
    let visible_rows = rows.get(..rows_max).unwrap_or(rows);
    let mut out = Vec::new();
    write_table(&mut out, visible_rows, Some(columns))?;
    match rows.len() - visible_rows.len() {
        0 => writeln!(out)?,
        more => writeln!(out, "{DIM}… {more} more{DIM:#}")?,
    }
    writeln!(out, "{}", truncate(&render_summary(rows), columns))?;
    match last_error {
        Some(failure) => {
            let why = truncate(&failure.to_string(), columns);
            write!(out, "{RED}{why}{RED:#}")?;
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
