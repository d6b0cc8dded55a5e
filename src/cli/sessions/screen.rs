//! `unstuck sessions --watch`: the table redrawn in place, as `top` does.

use std::{
    io::{self, Write},
    time::Duration,
};

use anstream::{AutoStream, ColorChoice, adapter::strip_bytes};
use jiff::Timestamp;

use super::{SessionSelector, SessionTable, fetch_rows, write_table};
use crate::cli::{
    CliError,
    client::Client,
    output::{map_write_error, terminal_dimensions},
    style::{DIM, RED},
    text_format::truncate,
};

/// Short enough to see a loop grow, long enough to read the table.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Switches to the alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Moves to the upper left; clears the rest of the line; of the screen.
const HOME: &str = "\x1b[H";
const END_OF_LINE: &str = "\x1b[K\n";
const END_OF_SCREEN: &str = "\x1b[J";
/// Lines besides the rows: header, number of omitted rows, summary, time.
const FIXED_LINES: usize = 4;

/// The alternate screen. Dropping it restores the terminal.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Self> {
        write!(io::stdout(), "{ENTER}")?;
        Ok(Self)
    }

    fn draw(frame: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        write!(stdout, "{HOME}")?;
        // No line break after the last line, because it would scroll.
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

/// Shows the sessions until Ctrl-C.
pub(super) async fn watch_sessions(
    client: &Client,
    selector: &SessionSelector,
) -> Result<(), CliError> {
    // Fetched before the screen is switched, so that a wrong filter is reported
    // as an ordinary error.
    let mut latest = fetch_rows(client, selector).await?;
    let mut last_error = None;
    let _screen = map_write_error(Screen::enter())?;
    loop {
        let (columns, lines) = terminal_dimensions().unwrap_or((80, 24));
        map_write_error(
            render_frame(&latest, last_error.as_ref(), columns, lines)
                .and_then(|it| Screen::draw(&it)),
        )?;
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(()),
            () = tokio::time::sleep(REFRESH_INTERVAL) => {}
        }
        // On an error the last known rows stay on the screen.
        match fetch_rows(client, selector).await {
            Ok(table) => (latest, last_error) = (table, None),
            Err(failure) => last_error = Some(failure),
        }
    }
}

/// Renders the worst rows, as many as fit the screen.
fn render_frame(
    SessionTable { rows, summary }: &SessionTable,
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
    writeln!(out, "{}", truncate(summary, columns))?;
    match last_error {
        Some(failure) => {
            let why = truncate(&failure.to_string(), columns);
            write!(out, "{RED}{why}{RED:#}")?;
        }
        None => {
            let now = Timestamp::now().strftime("%H:%M:%SZ").to_string();
            write!(out, "{DIM}{now}, press Ctrl-C to stop{DIM:#}")?;
        }
    }
    // Colours are stripped here, not by the stream, which would also strip the
    // cursor sequences.
    Ok(match AutoStream::choice(&io::stdout()) {
        ColorChoice::Never => strip_bytes(&out).into_vec(),
        _ => out,
    })
}
