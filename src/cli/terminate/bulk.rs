//! Termination by filter: the matching sessions are counted, shown and confirmed
//! before any is terminated.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    ops::ControlFlow,
};

use super::Args;
use crate::{
    cli::{
        CliError,
        client::Client,
        output::{OutputFormat, map_write_error, print_proto_json_line, terminal_dimensions},
        sessions::{SessionSelector, SessionTableRow, write_table},
        style::BOLD,
        text_format::pluralize,
        verdicts::warn_if_unknown_detector,
    },
    pb::{Session, SessionStatus},
};

/// Enough rows to check that the filter is right.
const PREVIEW_ROWS_MAX: usize = 10;

/// The ids of the sessions to terminate, after confirmation. Empty in a dry run.
pub(super) async fn select_sessions(client: &Client, args: &Args) -> Result<Vec<String>, CliError> {
    warn_if_unknown_detector(args.detector.as_deref().unwrap_or_default());
    let selected = find_sessions(client, args).await?;
    let count = pluralize(
        u64::try_from(selected.len()).unwrap_or(u64::MAX),
        "live session",
    );
    if args.dry_run {
        map_write_error(match args.call.output {
            OutputFormat::Json => selected.iter().try_for_each(print_proto_json_line),
            OutputFormat::Table => write_preview(&mut anstream::stdout().lock(), &selected, &count),
        })?;
        return Ok(Vec::new());
    }
    // Standard output is only for sessions that are terminated.
    map_write_error(write_preview(
        &mut anstream::stderr().lock(),
        &selected,
        &count,
    ))?;
    if !selected.is_empty() && !args.yes {
        confirm(&count)?;
    }
    Ok(selected.into_iter().map(|it| it.session_id).collect())
}

async fn find_sessions(client: &Client, args: &Args) -> Result<Vec<Session>, CliError> {
    let statuses = match (args.status.map(SessionStatus::from), &args.detector) {
        (Some(SessionStatus::Active), Some(_)) => {
            let why = "--detector selects looping sessions: --status active excludes them all";
            return Err(CliError::usage(why));
        }
        (Some(status @ (SessionStatus::Active | SessionStatus::Looping)), _) => vec![status],
        (Some(_), _) => {
            return Err(CliError::usage(
                "--status: only active and looping sessions can be terminated",
            ));
        }
        (None, Some(_)) => vec![SessionStatus::Looping],
        (None, None) => vec![SessionStatus::Looping, SessionStatus::Active],
    };
    let mut selected = Vec::new();
    for status in statuses {
        let selector = SessionSelector {
            status: Some(status),
            labels: args.labels.iter().cloned().collect(),
            ..Default::default()
        };
        client
            .for_each_session_page(selector.to_request(), |mut sessions| {
                sessions.retain(|it| last_verdict_is_from(it, args.detector.as_deref()));
                selected.append(&mut sessions);
                Ok(ControlFlow::Continue(()))
            })
            .await?;
    }
    Ok(selected)
}

/// Whether this detector describes the session's last verdict; detectors in `also`
/// do not count. Always true without a detector.
fn last_verdict_is_from(session: &Session, detector: Option<&str>) -> bool {
    let Some(detector) = detector else {
        return true;
    };
    let last = session.last_verdicts.last();
    last.is_some_and(|last| last.detector == detector)
}

fn write_preview(out: &mut impl Write, selected: &[Session], count: &str) -> io::Result<()> {
    let mut rows: Vec<SessionTableRow> = selected.iter().map(SessionTableRow::new).collect();
    // Stable, and the sessions are ordered by id.
    rows.sort_by(SessionTableRow::cmp_worst_first);
    let sample = rows.get(..PREVIEW_ROWS_MAX).unwrap_or(&rows);
    write_table(
        out,
        sample,
        terminal_dimensions().map(|(columns, _)| columns),
    )?;
    if rows.len() > sample.len() {
        writeln!(out, "… and {} more", rows.len() - sample.len())?;
    }
    let verb = if selected.len() == 1 {
        "matches"
    } else {
        "match"
    };
    writeln!(out, "{BOLD}{count} {verb}{BOLD:#}")
}

/// Asks for confirmation on the terminal.
fn confirm(count: &str) -> Result<(), CliError> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let why = format!("{count} would be terminated. Not a terminal: pass --yes");
        return Err(CliError::usage(why));
    }
    let mut answer = String::new();
    anstream::eprint!("Terminate {count}? [y/N] ");
    stdin
        .lock()
        .read_line(&mut answer)
        .map_err(CliError::failed)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CliError::failed("cancelled")),
    }
}
