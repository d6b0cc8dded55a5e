//! `unstuck sessions`: a table of all sessions, worst first.

mod row;
mod screen;
mod selection;

use std::{
    io::{self, BufWriter, Write},
    ops::ControlFlow,
    process::ExitCode,
};

use anstream::AutoStream;
use jiff::Timestamp;

use super::{
    CliError,
    client::{self, Client, ServerArgs},
    grid,
    output::{OutputFormat, map_write_error, terminal_dimensions, to_proto_json_line},
    style,
    text_format::{pluralize, wrap},
    time_format::format_date_time,
    waste::WasteTotals,
};
use crate::pb::{self, SessionStatus};
pub(super) use row::{SessionTableRow, status_name};
pub(super) use selection::{SearchWords, SessionSelector};
use selection::{SelectionArgs, SortOrder};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Only sessions with this status.
    #[arg(long, value_enum, value_name = "STATUS")]
    status: Option<StatusName>,
    /// Only sessions with this label; can be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    #[command(flatten)]
    selection: SelectionArgs,
    /// Refresh the table every two seconds, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Output format: a table, or one JSON object per line, ordered by id unless
    /// --sort is given.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum StatusName {
    Active,
    Looping,
    Terminated,
    Ended,
    Quarantined,
}

impl From<StatusName> for SessionStatus {
    fn from(name: StatusName) -> Self {
        match name {
            StatusName::Active => Self::Active,
            StatusName::Looping => Self::Looping,
            StatusName::Terminated => Self::Terminated,
            StatusName::Ended => Self::Ended,
            StatusName::Quarantined => Self::Quarantined,
        }
    }
}

/// `key=value`.
pub(super) fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label has the form KEY=VALUE".to_owned()),
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let selector = SessionSelector {
        status: args.status.map(SessionStatus::from),
        labels: args.labels.iter().cloned().collect(),
        ..args.selection.to_selector()
    };
    match (args.watch, args.output) {
        (true, OutputFormat::Table) if terminal_dimensions().is_some() => {
            client::connect_and_run(&args.server, async |client| {
                screen::watch_sessions(&client, &selector).await
            })?
        }
        (true, _) => {
            let why = "--watch needs a terminal; use `unstuck watch` for pipes and programs";
            return Err(CliError::usage(why));
        }
        (false, OutputFormat::Table) => {
            let sessions = client::connect_and_run(&args.server, async |client| {
                fetch_rows(&client, &selector).await
            })?;
            map_write_error(print_table(&sessions))?;
        }
        (false, OutputFormat::Json) => client::connect_and_run(&args.server, async |client| {
            print_json_lines(&client, &selector).await
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The rows of a table and its summary.
struct SessionTable {
    rows: Vec<SessionTableRow>,
    summary: String,
}

/// The rows of the table, in the wanted order. Sorted by anything but the id, all sessions
/// are fetched, and the summary counts them all.
async fn fetch_rows(client: &Client, selector: &SessionSelector) -> Result<SessionTable, CliError> {
    let mut rows = Vec::new();
    let order = selector.sort.unwrap_or_default();
    let limit = selector.limit();
    let data_since = client
        .for_each_session_page(selector.to_request(), |sessions| {
            let matching = sessions.iter().filter(|it| selector.matches(it));
            rows.extend(matching.map(SessionTableRow::new));
            Ok(match order {
                SortOrder::Id if rows.len() > limit => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            })
        })
        .await?;
    rows.sort_by(|a, b| order.compare(a, b));
    let is_cut = rows.len() > limit;
    // Sessions that were not fetched cannot be counted in the summary.
    if is_cut && order == SortOrder::Id {
        rows.truncate(limit);
    }
    let mut summary = render_summary(&rows);
    rows.truncate(limit);
    if is_cut {
        summary += &format!(" Only the first {limit} are shown.");
    }
    // A list that is empty after a restart must not look like an idle service.
    if let Some(since) = data_since {
        summary += &format!(" Data since {}.", format_date_time(&since));
    }
    Ok(SessionTable { rows, summary })
}

/// Prints the sessions as they arrive, or sorted if an order is wanted.
async fn print_json_lines(client: &Client, selector: &SessionSelector) -> Result<(), CliError> {
    let mut sorted: Vec<(SessionTableRow, pb::Session)> = Vec::new();
    let mut remaining = selector.limit();
    client
        .for_each_session_page(selector.to_request(), |mut sessions| {
            sessions.retain(|session| selector.matches(session));
            if selector.sort.is_some() {
                let with_rows = sessions.into_iter();
                sorted.extend(with_rows.map(|it| (SessionTableRow::new(&it), it)));
                return Ok(ControlFlow::Continue(()));
            }
            sessions.truncate(remaining);
            remaining -= sessions.len();
            map_write_error(print_json(&sessions))?;
            Ok(match remaining {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            })
        })
        .await?;
    let order = selector.sort.unwrap_or_default();
    sorted.sort_by(|(a, _), (b, _)| order.compare(a, b));
    sorted.truncate(selector.limit());
    let sessions: Vec<pb::Session> = sorted.into_iter().map(|(_, session)| session).collect();
    map_write_error(print_json(&sessions))
}

fn print_json(sessions: &[pb::Session]) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for session in sessions {
        writeln!(out, "{}", to_proto_json_line(session)?)?;
    }
    out.flush()
}

fn print_table(SessionTable { rows, summary }: &SessionTable) -> io::Result<()> {
    let width_max = terminal_dimensions().map(|(columns, _)| columns);
    let mut out = BufWriter::new(AutoStream::auto(io::stdout().lock()));
    write_table(&mut out, rows, width_max)?;
    if !rows.is_empty() {
        writeln!(out)?;
    }
    for line in wrap(summary, width_max.unwrap_or(usize::MAX)) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// Writes the table, without the summary.
pub(super) fn write_table(
    out: &mut impl Write,
    rows: &[SessionTableRow],
    width_max: Option<usize>,
) -> io::Result<()> {
    let now = Timestamp::now();
    let mut cells: Vec<_> = rows.iter().map(|row| row.render_cells(now)).collect();
    if cells.is_empty() {
        return Ok(());
    }
    let mut columns = row::COLUMNS.to_vec();
    if rows.iter().any(|row| !row.replica().is_empty()) {
        columns.push(row::REPLICA);
        for (cells, row) in cells.iter_mut().zip(rows) {
            cells.push(grid::Cell::new(row.replica(), style::DIM));
        }
    }
    grid::write(out, &columns, &cells, width_max)
}

/// `12 sessions: 2 looping, 9 active, 1 terminated. Wasted in loops: 47 events.`
fn render_summary(rows: &[SessionTableRow]) -> String {
    let all = u64::try_from(rows.len()).unwrap_or(u64::MAX);
    let statuses = [
        SessionStatus::Looping,
        SessionStatus::Active,
        SessionStatus::Terminated,
        SessionStatus::Ended,
        SessionStatus::Quarantined,
    ];
    let status_counts: Vec<String> = statuses
        .into_iter()
        .filter_map(|status| {
            let count = rows.iter().filter(|row| row.status() == status).count();
            (count > 0).then(|| format!("{count} {}", status_name(status)))
        })
        .collect();
    let mut text = pluralize(all, "session");
    if !status_counts.is_empty() {
        text += &format!(": {}", status_counts.join(", "));
    }
    let mut wasted = WasteTotals::default();
    for row in rows {
        wasted += row.wasted().into();
    }
    let disobedient = rows.iter().filter(|row| row.is_disobedient()).count();
    if disobedient > 0 {
        text += &format!(". {disobedient} went on after termination (!)");
    }
    if wasted.events > 0 {
        text += &format!(". Wasted in loops: {}", wasted.format());
    }
    text + "."
}
