//! Which sessions a filter means: they are counted and shown before anything
//! is done.

use std::io::{self, BufRead, IsTerminal, Write};

use super::Args;
use crate::{
    cli::{
        Failure,
        client::Client,
        output::{Output, proto_line, terminal, written},
        sessions::{Row, Wanted, each, write_table},
        style::BOLD,
        verdicts::hint_detector,
        words::counted,
    },
    pb::{Session, SessionStatus},
};

/// Enough to see whether the filter means what was meant.
const SAMPLE: usize = 10;

/// The sessions to terminate, once somebody has agreed; none in a dry run.
pub(super) async fn choose(client: &Client, args: &Args) -> Result<Vec<String>, Failure> {
    hint_detector(args.detector.as_deref().unwrap_or_default());
    let chosen = find(client, args).await?;
    let count = u64::try_from(chosen.len()).unwrap_or(u64::MAX);
    let count = counted(count, "live session");
    if let (Output::Json, true) = (args.output, args.dry_run) {
        written(print_json(&chosen))?;
        return Ok(Vec::new());
    }
    // The table is about what is going to happen: standard output is for what
    // has happened.
    if args.dry_run {
        written(show(&mut anstream::stdout().lock(), &chosen, &count))?;
        return Ok(Vec::new());
    }
    written(show(&mut anstream::stderr().lock(), &chosen, &count))?;
    if !chosen.is_empty() && !args.yes {
        confirm(&count)?;
    }
    Ok(chosen.into_iter().map(|it| it.session_id).collect())
}

async fn find(client: &Client, args: &Args) -> Result<Vec<Session>, Failure> {
    let statuses = match (args.status.map(SessionStatus::from), &args.detector) {
        (Some(SessionStatus::Active), Some(_)) => {
            let why = "--detector chooses among sessions that loop: --status active leaves none";
            return Err(Failure::usage(why));
        }
        (Some(status @ (SessionStatus::Active | SessionStatus::Looping)), _) => vec![status],
        (Some(_), _) => {
            return Err(Failure::usage(
                "--status: those that are over cannot be terminated",
            ));
        }
        (None, Some(_)) => vec![SessionStatus::Looping],
        (None, None) => vec![SessionStatus::Looping, SessionStatus::Active],
    };
    let mut chosen = Vec::new();
    for status in statuses {
        let wanted = Wanted {
            status: Some(status),
            labels: args.labels.iter().cloned().collect(),
        };
        each(client, &wanted, |sessions| {
            let sessions = sessions.into_iter();
            chosen.extend(sessions.filter(|session| seen_by(session, args.detector.as_deref())));
            Ok(())
        })
        .await?;
    }
    Ok(chosen)
}

/// The session's last verdict is of this detector, alone or among others.
fn seen_by(session: &Session, detector: Option<&str>) -> bool {
    let Some(detector) = detector else {
        return true;
    };
    let last = session.last_verdicts.last();
    last.is_some_and(|last| {
        last.detector == detector || last.also.iter().any(|also| also == detector)
    })
}

fn show(out: &mut impl Write, chosen: &[Session], count: &str) -> io::Result<()> {
    let mut rows: Vec<Row> = chosen.iter().map(Row::new).collect();
    rows.sort_by(Row::worst_first);
    let sample = rows.get(..SAMPLE).unwrap_or(&rows);
    write_table(out, sample, terminal().map(|(columns, _)| columns))?;
    if rows.len() > sample.len() {
        writeln!(out, "… and {} more", rows.len() - sample.len())?;
    }
    let fit = if chosen.len() == 1 { "fits" } else { "fit" };
    writeln!(out, "{BOLD}{count} {fit}{BOLD:#}")
}

fn print_json(chosen: &[Session]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for session in chosen {
        writeln!(out, "{}", proto_line(session)?)?;
    }
    Ok(())
}

/// Asks whoever sits at the terminal.
fn confirm(count: &str) -> Result<(), Failure> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let why = format!("{count} would be terminated; say --yes where nobody can be asked");
        return Err(Failure::usage(why));
    }
    let mut answer = String::new();
    anstream::eprint!("Terminate {count}? [y/N] ");
    stdin
        .lock()
        .read_line(&mut answer)
        .map_err(Failure::failed)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::failed("nothing was done")),
    }
}
