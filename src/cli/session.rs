//! `unstuck session ID`: what a session did, and why each verdict fired.

mod history;
mod lanes;
mod timeline;

use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use anstream::AutoStream;
use jiff::Timestamp;

use super::{
    Failure,
    client::{self, ServerArgs},
    clock,
    grid::{self, Cell, Column},
    output::{Output, columns, proto_line, terminal, written},
    sessions::status_name,
    style::{self, BOLD, DIM, PLAIN},
    verdict::Block,
    words::{cost, counted, shown, spark, wrapped},
};
use crate::pb::{self, GetSessionResponse, Session, SessionStatus, TrendLevel};
use history::History;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The session.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    server: ServerArgs,
    /// A page for people, or one object on one line for programs.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let request = pb::GetSessionRequest {
        session_id: args.id.clone(),
    };
    let (answer, earlier) = client::run(&args.server, async |client| {
        let get = client.ask(request, async |mut service, request| {
            service.get_session(request).await
        });
        let answer = get.await?;
        let earlier = match args.output {
            Output::Table if is_over(&answer) => history::of(&client, &args.id).await,
            _ => History::default(),
        };
        Ok((answer, earlier))
    })?;
    written(match args.output {
        Output::Table => print(&answer, &earlier),
        Output::Json => print_json(&answer),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Of a session that is over the service may know no more than how it ended;
/// what was said before is in the audit log.
fn is_over(answer: &GetSessionResponse) -> bool {
    let status = answer.session.as_ref().map(Session::status);
    matches!(
        status,
        Some(SessionStatus::Terminated | SessionStatus::Ended)
    )
}

fn print_json(answer: &GetSessionResponse) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", proto_line(answer)?)
}

fn print(answer: &GetSessionResponse, earlier: &History) -> io::Result<()> {
    let stdout = io::stdout().lock();
    let columns = columns(&stdout);
    let mut out = BufWriter::new(AutoStream::auto(stdout));
    write(&mut out, answer, earlier, columns)?;
    out.flush()
}

fn write(
    out: &mut impl Write,
    answer: &GetSessionResponse,
    earlier: &History,
    columns: usize,
) -> io::Result<()> {
    let Some(session) = &answer.session else {
        return Ok(());
    };
    head(out, session, columns)?;
    timeline::write(out, answer, terminal().map(|(columns, _)| columns))?;
    verdicts(out, answer, earlier, columns)?;
    trends(out, answer)?;
    abstentions(out, session, columns)
}

/// Who it is, how it stands, what it has cost.
fn head(out: &mut impl Write, session: &Session, columns: usize) -> io::Result<()> {
    let now = Timestamp::now();
    let status = session.status();
    let style = style::of_status(status);
    let id = shown(&session.session_id);
    let status = status_name(status);
    writeln!(out, "{BOLD}{id}{BOLD:#}  {style}{status}{style:#}")?;
    let usage = session.usage.unwrap_or_default();
    let tokens = i64::from(usage.input_tokens) + i64::from(usage.output_tokens);
    let mut did = cost(session.events.into(), tokens, usage.cost_usd);
    if session.agents > 1 {
        did += &format!(", {} agents", session.agents);
    }
    let since = |stamp: &Option<pbjson_types::Timestamp>| {
        let at = stamp.as_ref()?;
        let age = clock::age(Some(at), now);
        Some(format!("{} UTC, {age} ago", clock::date_time(at)))
    };
    let wasted = session.wasted.unwrap_or_default();
    let mut labels: Vec<String> = session
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    labels.sort_unstable();
    let lost = match wasted.events {
        0 => String::new(),
        events => cost(events.into(), wasted.tokens.into(), wasted.cost_usd),
    };
    let rows = [
        ("so far", did),
        ("in loops", lost),
        ("began", since(&session.create_time).unwrap_or_default()),
        ("heard", since(&session.last_event_time).unwrap_or_default()),
        ("labels", labels.join("  ")),
        ("profile", session.profile.clone()),
        (
            "snoozed",
            session
                .snoozed_until
                .as_ref()
                .map(|until| format!("until {} UTC", clock::date_time(until)))
                .unwrap_or_default(),
        ),
    ];
    for (label, text) in rows {
        for line in wrapped(&text, columns - 10) {
            writeln!(out, "{DIM}{label:<10}{DIM:#}{line}")?;
        }
    }
    writeln!(out)
}

/// Each with its rule.
fn verdicts(
    out: &mut impl Write,
    answer: &GetSessionResponse,
    earlier: &History,
    columns: usize,
) -> io::Result<()> {
    let Some(session) = &answer.session else {
        return Ok(());
    };
    let termination = session.termination.iter();
    let new = |verdict: &&pb::Verdict| {
        let mut shown = session.last_verdicts.iter();
        !shown.any(|shown| shown.verdict_id == verdict.verdict_id)
    };
    let mut verdicts: Vec<_> = session
        .last_verdicts
        .iter()
        .chain(termination.chain(&earlier.verdicts).filter(new))
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
    for (place, verdict) in verdicts.iter().enumerate() {
        let (before, after) = (verdicts.iter().take(place), verdicts.iter().skip(place + 1));
        let mut block = Block::new(verdict);
        // A rule is told once, where it is first met.
        if !before.into_iter().any(|it| it.detector == verdict.detector) {
            let mut explanations = answer.explanations.iter();
            let known = explanations.find(|known| known.detector == verdict.detector);
            block = block.explained(known);
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
fn trends(out: &mut impl Write, answer: &GetSessionResponse) -> io::Result<()> {
    let trends = answer.session.iter().flat_map(|session| &session.trends);
    let rows: Vec<Vec<Cell>> = trends
        .map(|of| {
            let events = answer.timeline.iter();
            let own = events.filter(|entry| entry.agent_id == of.agent_id);
            let samples = own.map(|entry| {
                let mut samples = entry.trends.iter();
                let sample = samples.find(|sample| sample.detector == of.detector);
                sample.map_or(0.0, |sample| sample.ema)
            });
            let trend = of.trend.unwrap_or_default();
            vec![
                Cell::default().and("  ", DIM).with(&of.detector, PLAIN),
                Cell::plain(&of.agent_id),
                Cell::plain(spark(samples)),
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
fn abstentions(out: &mut impl Write, session: &Session, columns: usize) -> io::Result<()> {
    if session.abstentions.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}Not looked at{BOLD:#}")?;
    for abstention in &session.abstentions {
        let events = u64::try_from(abstention.events).unwrap_or_default();
        let told = format!(
            "{} passed over {}: {} was not sent",
            abstention.detector,
            counted(events, "event"),
            abstention.field
        );
        for line in wrapped(&told, columns - 2) {
            writeln!(out, "  {line}")?;
        }
    }
    writeln!(out)
}

#[cfg(test)]
mod tests;
