//! `unstuck sessions`: how all sessions stand, the worst first.

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
    Failure,
    client::{self, Client, ServerArgs},
    grid,
    output::{Output, proto_line, terminal, written},
    words::{cost, counted, wrapped},
};
use crate::pb::{self, SessionStatus};
pub(super) use row::{Row, status_name};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Only sessions with this status.
    #[arg(long, value_enum, value_name = "STATUS")]
    status: Option<StatusName>,
    /// Only sessions that have this label; may be given more than once.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Stay, and show how they stand every two seconds; Ctrl-C ends it.
    #[arg(long)]
    watch: bool,
    /// A table for people, the worst first; or an object a line for programs, in
    /// the order of the ids.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
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
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is KEY=VALUE".to_owned()),
    }
}

/// Which sessions to ask for.
#[derive(Clone, Default)]
pub(super) struct Wanted {
    pub status: Option<SessionStatus>,
    pub labels: HashMap<String, String>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let wanted = Wanted {
        status: args.status.map(SessionStatus::from),
        labels: args.labels.iter().cloned().collect(),
    };
    match (args.watch, args.output) {
        (true, Output::Table) if terminal().is_some() => {
            client::run(&args.server, async |client| {
                screen::watch(&client, &wanted).await
            })?
        }
        (true, _) => {
            let why = "--watch draws on a terminal; `unstuck watch` is for pipes and programs";
            return Err(Failure::usage(why));
        }
        (false, Output::Table) => {
            let rows = client::run(&args.server, async |client| rows(&client, &wanted).await)?;
            written(print(rows))?;
        }
        (false, Output::Json) => client::run(&args.server, async |client| {
            each(&client, &wanted, print_json).await
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives each page of the sessions, in the order of their ids.
pub(super) async fn each(
    client: &Client,
    wanted: &Wanted,
    mut take: impl FnMut(Vec<pb::Session>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    /// As many as the service gives at most.
    const PAGE_SIZE: i32 = 1_000;
    let mut page_token = String::new();
    loop {
        let request = pb::ListSessionsRequest {
            page_size: PAGE_SIZE,
            page_token,
            status: wanted.status.unwrap_or_default().into(),
            labels: wanted.labels.clone(),
        };
        let page = client.sessions(request).await?;
        take(page.sessions)?;
        if page.next_page_token.is_empty() {
            return Ok(());
        }
        page_token = page.next_page_token;
    }
}

/// The sessions, the worst first.
async fn rows(client: &Client, wanted: &Wanted) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    each(client, wanted, |sessions| {
        rows.extend(sessions.iter().map(Row::new));
        Ok(())
    })
    .await?;
    rows.sort_by(Row::worst_first);
    Ok(rows)
}

fn print_json(sessions: Vec<pb::Session>) -> Result<(), Failure> {
    let print = || {
        let mut out = BufWriter::new(io::stdout().lock());
        for session in &sessions {
            writeln!(out, "{}", proto_line(session)?)?;
        }
        out.flush()
    };
    written(print())
}

fn print(rows: Vec<Row>) -> io::Result<()> {
    let room = terminal().map(|(columns, _)| columns);
    let mut out = BufWriter::new(AutoStream::auto(io::stdout().lock()));
    write_table(&mut out, &rows, room)?;
    if !rows.is_empty() {
        writeln!(out)?;
    }
    for line in wrapped(&conclusion(&rows), room.unwrap_or(usize::MAX)) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// The table alone.
pub(super) fn write_table(
    out: &mut impl Write,
    rows: &[Row],
    room: Option<usize>,
) -> io::Result<()> {
    let now = Timestamp::now();
    let cells: Vec<_> = rows.iter().map(|row| row.cells(now)).collect();
    if cells.is_empty() {
        return Ok(());
    }
    grid::write(out, &row::COLUMNS, &cells, room)
}

/// `12 sessions: 2 looping, 9 active, 1 terminated. Loops have cost 47 events.`
fn conclusion(rows: &[Row]) -> String {
    let all = u64::try_from(rows.len()).unwrap_or(u64::MAX);
    let statuses = [
        SessionStatus::Looping,
        SessionStatus::Active,
        SessionStatus::Terminated,
        SessionStatus::Ended,
        SessionStatus::Quarantined,
    ];
    let shares: Vec<String> = statuses
        .into_iter()
        .filter_map(|status| {
            let count = rows.iter().filter(|row| row.status() == status).count();
            (count > 0).then(|| format!("{count} {}", status_name(status)))
        })
        .collect();
    let mut told = counted(all, "session");
    if !shares.is_empty() {
        told += &format!(": {}", shares.join(", "));
    }
    let (events, tokens, usd) = rows.iter().fold((0, 0, 0.0), |(events, tokens, usd), row| {
        let wasted = row.wasted();
        let usd = usd + wasted.cost_usd;
        (
            events + i64::from(wasted.events),
            tokens + i64::from(wasted.tokens),
            usd,
        )
    });
    if events > 0 {
        told += &format!(". Loops have cost {}", cost(events, tokens, usd));
    }
    told + "."
}
