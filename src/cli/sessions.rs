//! `unstuck sessions`: a table of all sessions, worst first.

mod row;
mod screen;

use std::{
    collections::HashMap,
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use anstream::AutoStream;
use jiff::Timestamp;

use super::{
    CliError,
    client::{self, Client, ServerArgs},
    grid,
    output::{OutputFormat, map_write_error, terminal_dimensions, to_proto_json_line},
    text_format::{format_cost, pluralize, wrap},
};
use crate::pb::{self, SessionStatus};
pub(super) use row::{SessionTableRow, status_name};

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
    /// Refresh the table every two seconds, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Output format: a table, worst first, or one JSON object per line, ordered
    /// by id.
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

/// Which sessions to list.
#[derive(Clone, Default)]
pub(super) struct SessionSelector {
    pub status: Option<SessionStatus>,
    pub labels: HashMap<String, String>,
}

impl SessionSelector {
    pub fn to_request(&self) -> pb::ListSessionsRequest {
        /// The service's maximum.
        const PAGE_SIZE: i32 = 1_000;
        pb::ListSessionsRequest {
            page_size: PAGE_SIZE,
            page_token: String::new(),
            status: self.status.unwrap_or_default().into(),
            labels: self.labels.clone(),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let selector = SessionSelector {
        status: args.status.map(SessionStatus::from),
        labels: args.labels.iter().cloned().collect(),
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
            let rows = client::connect_and_run(&args.server, async |client| {
                fetch_rows(&client, &selector).await
            })?;
            map_write_error(print_table(rows))?;
        }
        (false, OutputFormat::Json) => client::connect_and_run(&args.server, async |client| {
            client
                .for_each_session_page(selector.to_request(), |sessions| {
                    map_write_error(print_json(&sessions))
                })
                .await
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The rows of the table, worst first.
async fn fetch_rows(
    client: &Client,
    selector: &SessionSelector,
) -> Result<Vec<SessionTableRow>, CliError> {
    let mut rows = Vec::new();
    client
        .for_each_session_page(selector.to_request(), |sessions| {
            rows.extend(sessions.iter().map(SessionTableRow::new));
            Ok(())
        })
        .await?;
    rows.sort_by(SessionTableRow::cmp_worst_first);
    Ok(rows)
}

fn print_json(sessions: &[pb::Session]) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for session in sessions {
        writeln!(out, "{}", to_proto_json_line(session)?)?;
    }
    out.flush()
}

fn print_table(rows: Vec<SessionTableRow>) -> io::Result<()> {
    let width_max = terminal_dimensions().map(|(columns, _)| columns);
    let mut out = BufWriter::new(AutoStream::auto(io::stdout().lock()));
    write_table(&mut out, &rows, width_max)?;
    if !rows.is_empty() {
        writeln!(out)?;
    }
    for line in wrap(&render_summary(&rows), width_max.unwrap_or(usize::MAX)) {
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
    let cells: Vec<_> = rows.iter().map(|row| row.render_cells(now)).collect();
    if cells.is_empty() {
        return Ok(());
    }
    grid::write(out, &row::COLUMNS, &cells, width_max)
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
    let (events, tokens, usd) = rows.iter().fold((0, 0, 0.0), |(events, tokens, usd), row| {
        let wasted = row.wasted();
        (
            events + i64::from(wasted.events),
            tokens + i64::from(wasted.tokens),
            usd + wasted.cost_usd,
        )
    });
    if events > 0 {
        text += &format!(". Wasted in loops: {}", format_cost(events, tokens, usd));
    }
    text + "."
}
