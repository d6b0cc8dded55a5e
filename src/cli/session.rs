//! `unstuck session ID`: what a session did, and why each verdict fired.

mod earlier_verdicts;
mod lanes;
mod timeline;

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
        OutputFormat, map_write_error, output_width, terminal_dimensions, to_proto_json_line,
    },
    sessions::status_name,
    style::{self, BOLD, DIM, PLAIN},
    text_format::{format_cost, pluralize, sanitize, sparkline, wrap},
    time_format,
    verdict::VerdictBlock,
};
use crate::pb::{self, GetSessionResponse, Session, SessionStatus, TrendLevel};
use earlier_verdicts::EarlierVerdicts;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The session.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    server: ServerArgs,
    /// A page for people, or one object on one line for programs.
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
        OutputFormat::Json => print_json(&response),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Of a session that is over the service may know no more than how it ended;
/// what was said before is in the audit log.
fn is_closed(response: &GetSessionResponse) -> bool {
    let status = response.session.as_ref().map(Session::status);
    matches!(
        status,
        Some(SessionStatus::Terminated | SessionStatus::Ended)
    )
}

fn print_json(response: &GetSessionResponse) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", to_proto_json_line(response)?)
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

/// Who it is, how it stands, what it has cost.
fn write_header(out: &mut impl Write, session: &Session, columns: usize) -> io::Result<()> {
    let now = Timestamp::now();
    let status = session.status();
    let style = style::status_style(status);
    let id = sanitize(&session.session_id);
    let status = status_name(status);
    writeln!(out, "{BOLD}{id}{BOLD:#}  {style}{status}{style:#}")?;
    let usage = session.usage.unwrap_or_default();
    let tokens = i64::from(usage.input_tokens) + i64::from(usage.output_tokens);
    let mut usage_text = format_cost(session.events.into(), tokens, usage.cost_usd);
    if session.agents > 1 {
        usage_text += &format!(", {} agents", session.agents);
    }
    let format_since = |stamp: &Option<pbjson_types::Timestamp>| {
        let at = stamp.as_ref()?;
        let age = time_format::format_age(Some(at), now);
        Some(format!(
            "{} UTC, {age} ago",
            time_format::format_date_time(at)
        ))
    };
    let wasted = session.wasted.unwrap_or_default();
    let mut labels: Vec<String> = session
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    labels.sort_unstable();
    let wasted_text = match wasted.events {
        0 => String::new(),
        events => format_cost(events.into(), wasted.tokens.into(), wasted.cost_usd),
    };
    let rows = [
        ("so far", usage_text),
        ("in loops", wasted_text),
        (
            "began",
            format_since(&session.create_time).unwrap_or_default(),
        ),
        (
            "heard",
            format_since(&session.last_event_time).unwrap_or_default(),
        ),
        ("labels", labels.join("  ")),
        ("profile", session.profile.clone()),
        (
            "snoozed",
            session
                .snoozed_until
                .as_ref()
                .map(|until| format!("until {} UTC", time_format::format_date_time(until)))
                .unwrap_or_default(),
        ),
    ];
    for (label, text) in rows {
        for line in wrap(&text, columns - 10) {
            writeln!(out, "{DIM}{label:<10}{DIM:#}{line}")?;
        }
    }
    writeln!(out)
}

/// Each with its rule.
fn write_verdicts(
    out: &mut impl Write,
    answer: &GetSessionResponse,
    earlier: &EarlierVerdicts,
    columns: usize,
) -> io::Result<()> {
    let Some(session) = &answer.session else {
        return Ok(());
    };
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
    // The ids sort by time. As the service gave it comes before as the log has
    // it: with its text.
    verdicts.sort_by(|a, b| a.verdict_id.cmp(&b.verdict_id));
    verdicts.dedup_by(|b, a| a.verdict_id == b.verdict_id);
    if verdicts.is_empty() {
        return writeln!(out, "No verdict: nothing looked like a loop.\n");
    }
    writeln!(out, "{BOLD}Verdicts{BOLD:#}")?;
    earlier.write_note(out, &session.session_id)?;
    for (index, verdict) in verdicts.iter().enumerate() {
        let (before, after) = (verdicts.iter().take(index), verdicts.iter().skip(index + 1));
        let mut block = VerdictBlock::new(verdict);
        // A rule is told once, where it is first met.
        if !before.into_iter().any(|it| it.detector == verdict.detector) {
            let mut explanations = answer.explanations.iter();
            let known = explanations.find(|known| known.detector == verdict.detector);
            block = block.with_explanation(known);
        }
        // Of the corrections of a loop the latest counts.
        if after.into_iter().any(|it| it.loop_id == verdict.loop_id) {
            block = block.without_correction();
        }
        block.write(out, columns)?;
    }
    Ok(())
}

/// Of each agent and detector, over the events of the timeline.
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

/// "Not looking" is not "no loop".
fn write_abstentions(out: &mut impl Write, session: &Session, columns: usize) -> io::Result<()> {
    if session.abstentions.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}Not looked at{BOLD:#}")?;
    for abstention in &session.abstentions {
        let events = u64::try_from(abstention.events).unwrap_or_default();
        let text = format!(
            "{} passed over {}: {} was not sent",
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
