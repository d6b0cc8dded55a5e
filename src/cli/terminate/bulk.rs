//! Which sessions a filter means: they are counted and shown before anything
//! is done.

use std::io::{self, BufRead, IsTerminal, Write};

use super::Args;
use crate::{
    cli::{
        CliError,
        client::Client,
        output::{OutputFormat, map_write_error, terminal_dimensions, to_proto_json_line},
        sessions::{SessionSelector, SessionTableRow, for_each_page, write_table},
        style::BOLD,
        text_format::pluralize,
        verdicts::warn_if_unknown_detector,
    },
    pb::{Session, SessionStatus},
};

/// Enough to see whether the filter means what was meant.
const PREVIEW_ROWS_MAX: usize = 10;

/// The sessions to terminate, once somebody has agreed; none in a dry run.
pub(super) async fn select_sessions(client: &Client, args: &Args) -> Result<Vec<String>, CliError> {
    warn_if_unknown_detector(args.detector.as_deref().unwrap_or_default());
    let selected = find_sessions(client, args).await?;
    let count = u64::try_from(selected.len()).unwrap_or(u64::MAX);
    let count = pluralize(count, "live session");
    if let (OutputFormat::Json, true) = (args.output, args.dry_run) {
        map_write_error(print_json(&selected))?;
        return Ok(Vec::new());
    }
    // The table is about what is going to happen: standard output is for what
    // has happened.
    if args.dry_run {
        map_write_error(write_preview(
            &mut anstream::stdout().lock(),
            &selected,
            &count,
        ))?;
        return Ok(Vec::new());
    }
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
            let why = "--detector chooses among sessions that loop: --status active leaves none";
            return Err(CliError::usage(why));
        }
        (Some(status @ (SessionStatus::Active | SessionStatus::Looping)), _) => vec![status],
        (Some(_), _) => {
            return Err(CliError::usage(
                "--status: those that are over cannot be terminated",
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
        };
        for_each_page(client, &selector, |sessions| {
            let sessions = sessions.into_iter();
            selected.extend(
                sessions.filter(|session| last_verdict_is_from(session, args.detector.as_deref())),
            );
            Ok(())
        })
        .await?;
    }
    Ok(selected)
}

/// The session's last verdict is of this detector, alone or among others.
fn last_verdict_is_from(session: &Session, detector: Option<&str>) -> bool {
    let Some(detector) = detector else {
        return true;
    };
    let last = session.last_verdicts.last();
    last.is_some_and(|last| {
        last.detector == detector || last.also.iter().any(|also| also == detector)
    })
}

fn write_preview(out: &mut impl Write, selected: &[Session], count: &str) -> io::Result<()> {
    let mut rows: Vec<SessionTableRow> = selected.iter().map(SessionTableRow::new).collect();
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
    let fit = if selected.len() == 1 { "fits" } else { "fit" };
    writeln!(out, "{BOLD}{count} {fit}{BOLD:#}")
}

fn print_json(selected: &[Session]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for session in selected {
        writeln!(out, "{}", to_proto_json_line(session)?)?;
    }
    Ok(())
}

/// Asks whoever sits at the terminal.
fn confirm(count: &str) -> Result<(), CliError> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let why = format!("{count} would be terminated; say --yes where nobody can be asked");
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
        _ => Err(CliError::failed("nothing was done")),
    }
}
