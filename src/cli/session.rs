//! `unstuck session ID`: a session's timeline, and why each verdict fired.

mod earlier_verdicts;
pub(super) mod lanes;
pub(super) mod timeline;

use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use anstream::AutoStream;
use jiff::Timestamp;

use super::{
    CliError,
    client::{self, ServerArgs},
    grid::{self, Cell, Column},
    output::{
        OutputFormat, map_write_error, output_width, print_proto_json_line, terminal_dimensions,
    },
    sessions::status_name,
    style::{self, BOLD, DIM, PLAIN, RED},
    text_format::{format_labels, pluralize, sanitize, sparkline, wrap},
    time_format,
    verdict::{VerdictBlock, action_name},
    waste::WasteTotals,
};
use crate::{
    ingest,
    pb::{self, GetSessionResponse, Session, SessionStatus, TrendLevel},
};
use earlier_verdicts::EarlierVerdicts;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The session id.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    server: ServerArgs,
    /// Output format: a page of text, or one JSON object.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, CliError> {
    let request = pb::GetSessionRequest {
        session_id: args.id.clone(),
    };
    let (response, earlier) = client::connect_and_run(&args.server, async |client| {
        let get = client.call(request, async |mut service, request| {
            service.get_session(request).await
        });
        let response = get.await?;
        let earlier = match args.output {
            OutputFormat::Table if is_closed(&response) => {
                earlier_verdicts::fetch(&client, &args.id).await
            }
            _ => EarlierVerdicts::default(),
        };
        Ok((response, earlier))
    })?;
    map_write_error(match args.output {
        OutputFormat::Table => print_page(&response, &earlier),
        OutputFormat::Json => print_proto_json_line(&response),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the session is closed. The service may keep only how such a session ended; its
/// earlier verdicts are in the audit log.
fn is_closed(response: &GetSessionResponse) -> bool {
    let status = response.session.as_ref().map(Session::status);
    matches!(
        status,
        Some(SessionStatus::Terminated | SessionStatus::Ended)
    )
}

fn print_page(response: &GetSessionResponse, earlier: &EarlierVerdicts) -> io::Result<()> {
    let stdout = io::stdout().lock();
    let columns = output_width(&stdout);
    let mut out = BufWriter::new(AutoStream::auto(stdout));
    write_page(&mut out, response, earlier, columns)?;
    out.flush()
}

fn write_page(
    out: &mut impl Write,
    answer: &GetSessionResponse,
    earlier: &EarlierVerdicts,
    columns: usize,
) -> io::Result<()> {
    let Some(session) = &answer.session else {
        return Ok(());
    };
    write_header(out, session, columns)?;
    timeline::write_timeline(
        out,
        answer,
        terminal_dimensions().map(|(columns, _)| columns),
    )?;
    write_verdicts(out, answer, earlier, columns)?;
    write_trends(out, answer)?;
    write_abstentions(out, session, columns)
}

/// Writes id, status, usage, times and labels.
fn write_header(out: &mut impl Write, session: &Session, columns: usize) -> io::Result<()> {
    // The title.
    let style = style::status_style(session.status());
    let id = sanitize(&session.session_id);
    let status = status_name(session.status());
    writeln!(out, "{BOLD}{id}{BOLD:#}  {style}{status}{style:#}")?;
    // Usage, and the part of it in loops.
    let usage = session.usage.unwrap_or_default();
    let used = WasteTotals {
        events: session.events.into(),
        tokens: i64::from(usage.input_tokens) + i64::from(usage.output_tokens),
        cached_tokens: usage.cached_input_tokens.into(),
        cost_usd: usage.cost_usd,
    };
    let mut usage_text = used.format();
    if session.agents > 1 {
        usage_text += &format!(", {} agents", session.agents);
    }
    let wasted = session.wasted.unwrap_or_default();
    let wasted_text = match wasted.events {
        0 => String::new(),
        _ => WasteTotals::from(wasted).format(),
    };
    // The rows; an empty one is not printed.
    let now = Timestamp::now();
    let rows = [
        ("usage", usage_text),
        ("wasted", wasted_text),
        ("started", format_since(session.create_time.as_ref(), now)),
        (
            "last seen",
            format_since(session.last_event_time.as_ref(), now),
        ),
        ("in force", format_standing(session)),
        ("labels", format_labels(&session.labels).join("  ")),
        ("resume", resume_command(session)),
        ("profile", session.profile.clone()),
        (
            "snoozed",
            session
                .snoozed_until
                .as_ref()
                .map(|until| format!("until {}", time_format::format_date_time(until)))
                .unwrap_or_default(),
        ),
    ];
    for (label, text) in rows {
        for line in wrap(&text, columns - 10) {
            writeln!(out, "{DIM}{label:<10}{DIM:#}{line}")?;
        }
    }
    if let Some(text) = format_disobedience(session) {
        writeln!(out, "{RED}{text}{RED:#}")?;
    }
    writeln!(out)
}

/// The command that opens the session in its agent program again; empty for others.
fn resume_command(session: &Session) -> String {
    let label = |name: &str| session.labels.get(name).map(String::as_str);
    let command = ingest::resume_command_of(label, &session.session_id);
    sanitize(&command.unwrap_or_default())
}

/// `BLOCK since 2026-03-11 09:15:10Z, 2 calls refused`
fn format_standing(session: &Session) -> String {
    let Some(standing) = &session.standing else {
        return String::new();
    };
    let since = standing.since.as_ref().map(time_format::format_date_time);
    let mut text = format!(
        "{} since {}",
        action_name(standing.action()),
        since.unwrap_or_default()
    );
    let calls = u64::try_from(standing.blocked.len()).unwrap_or(u64::MAX);
    if calls > 0 {
        text += &format!(", {} refused", pluralize(calls, "call"));
    }
    text
}

/// `went on after termination: 100 events, $3.00`. `None`: it did not.
fn format_disobedience(session: &Session) -> Option<String> {
    let after = session.disobeyed.filter(|after| after.events > 0)?;
    let cost = WasteTotals::from(after).format();
    Some(format!("went on after termination: {cost}"))
}

/// `2026-03-11 09:15:10Z, 4s ago`
fn format_since(time: Option<&pbjson_types::Timestamp>, now: Timestamp) -> String {
    let Some(at) = time else {
        return String::new();
    };
    let age = time_format::format_age(Some(at), now);
    format!("{}, {age} ago", time_format::format_date_time(at))
}

/// Writes the verdicts, oldest first, with the rule of each detector.
fn write_verdicts(
    out: &mut impl Write,
    answer: &GetSessionResponse,
    earlier: &EarlierVerdicts,
    columns: usize,
) -> io::Result<()> {
    let Some(session) = &answer.session else {
        return Ok(());
    };
    // The service's verdicts come first, then those it did not list: the sort is
    // stable, so of two copies the service's, which has the text, is kept.
    let termination = session.termination.iter();
    let is_unlisted = |verdict: &&pb::Verdict| {
        let mut listed = session.last_verdicts.iter();
        !listed.any(|other| other.verdict_id == verdict.verdict_id)
    };
    let mut verdicts: Vec<_> = session
        .last_verdicts
        .iter()
        .chain(termination.chain(&earlier.verdicts).filter(is_unlisted))
        .collect();
    // Ids sort by time.
    verdicts.sort_by(|a, b| a.verdict_id.cmp(&b.verdict_id));
    verdicts.dedup_by(|b, a| a.verdict_id == b.verdict_id);
    if verdicts.is_empty() {
        return writeln!(out, "No verdicts: no loop was detected.\n");
    }
    writeln!(out, "{BOLD}Verdicts{BOLD:#}")?;
    earlier.write_note(out, &session.session_id)?;
    for (index, verdict) in verdicts.iter().enumerate() {
        let (before, after) = (verdicts.iter().take(index), verdicts.iter().skip(index + 1));
        let mut block = VerdictBlock::new(verdict).with_id();
        // The rule of a detector is printed with its first verdict.
        if !before.into_iter().any(|it| it.detector == verdict.detector) {
            let mut explanations = answer.explanations.iter();
            let known = explanations.find(|known| known.detector == verdict.detector);
            block = block.with_explanation(known);
        }
        // The correction of a loop is printed with its last verdict.
        if after.into_iter().any(|it| it.loop_id == verdict.loop_id) {
            block = block.without_correction();
        }
        block.write(out, columns)?;
    }
    Ok(())
}

/// Writes the trend of each agent and detector over the timeline.
fn write_trends(out: &mut impl Write, response: &GetSessionResponse) -> io::Result<()> {
    let trends = response.session.iter().flat_map(|session| &session.trends);
    let rows: Vec<Vec<Cell>> = trends
        .map(|detector_trend| {
            let events = response.timeline.iter();
            let own = events.filter(|entry| entry.agent_id == detector_trend.agent_id);
            let samples = own.map(|entry| {
                let mut samples = entry.trends.iter();
                let sample = samples.find(|sample| sample.detector == detector_trend.detector);
                sample.map_or(0.0, |sample| sample.ema)
            });
            let trend = detector_trend.trend.unwrap_or_default();
            vec![
                Cell::default()
                    .with_literal("  ", DIM)
                    .with_text(&detector_trend.detector, PLAIN),
                Cell::plain(&detector_trend.agent_id),
                Cell::plain(sparkline(samples)),
                Cell::plain(format!("{:.2}", trend.ema)),
                Cell::new(level_name(trend.level()), DIM),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}Trends{BOLD:#}")?;
    let columns = [Column::left(""); 5];
    grid::write(out, &columns, &rows, None)?;
    writeln!(out)
}

fn level_name(level: TrendLevel) -> &'static str {
    match level {
        TrendLevel::Unspecified => "",
        TrendLevel::Blip => "a blip",
        TrendLevel::Trend => "a trend",
        TrendLevel::Chronic => "chronic",
    }
}

/// Writes the detectors that skipped events for lack of a field. A skipped event
/// is not one without a loop.
fn write_abstentions(out: &mut impl Write, session: &Session, columns: usize) -> io::Result<()> {
    if session.abstentions.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}Skipped{BOLD:#}")?;
    for abstention in &session.abstentions {
        let events = u64::try_from(abstention.events).unwrap_or_default();
        let text = format!(
            "{} ({}, field {} missing)",
            abstention.detector,
            pluralize(events, "event"),
            abstention.field
        );
        for line in wrap(&text, columns - 2) {
            writeln!(out, "  {line}")?;
        }
    }
    writeln!(out)
}

#[cfg(test)]
mod tests;
