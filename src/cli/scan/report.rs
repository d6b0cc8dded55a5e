//! The report for a terminal: money first.

use std::io::{self, Write};

use super::{
    session_report::SessionReport,
    totals::{ScanGroup, ScanSummary, format_time, ranked},
};
use crate::{
    api,
    cli::{
        output::{render_table, terminal_dimensions},
        session::timeline::write_timeline,
        style::{BOLD, DIM},
        text_format::{format_usd, group_digits, pluralize, sanitize, sparkline, truncate, wrap},
        verdict::VerdictBlock,
    },
    ingest::transcripts::find_format,
    pb,
};

/// Sessions that are listed.
pub(super) const WORST_MAX: usize = 10;
/// Rows of a table.
const ROWS_MAX: usize = 8;
/// Models without a price that are named.
const MODELS_MAX: usize = 4;
/// The columns of a first prompt.
const PROMPT_COLUMNS_MAX: usize = 60;
const NAME_COLUMNS_MAX: usize = 40;
/// Columns before the lines about a session.
const INDENT: usize = 4;
/// Columns between two numbers.
const GAP: u16 = 3;

/// The command that guards the agents of this machine.
pub(super) const GUARD_HINT: &str = "unstuck init";

pub(super) fn write_report(
    out: &mut impl Write,
    sessions: &[SessionReport],
    summary: &ScanSummary,
    columns: usize,
) -> io::Result<()> {
    writeln!(out, "{BOLD}{}{BOLD:#}", headline(summary))?;
    for line in wrap(&scope(summary), columns) {
        writeln!(out, "{DIM}{line}{DIM:#}")?;
    }
    write_worst(out, sessions, columns)?;
    write_groups(out, summary, columns)?;
    write_notes(out, summary)?;
    writeln!(out, "\nguard them: {GUARD_HINT}")
}

/// `9 of 274 sessions looped: $3.67 of $408.00 (0.9 %)`
pub(super) fn headline(summary: &ScanSummary) -> String {
    let (looping, all) = (
        summary.looping_sessions,
        pluralize(summary.sessions, "session"),
    );
    if looping == 0 {
        let cost = match summary.cost_usd {
            usd if usd > 0.0 => format!(" ({} in all)", format_usd(usd)),
            _ => String::new(),
        };
        return format!("No loops in {all}{cost}");
    }
    let looping = group_digits(looping);
    let mut text = format!("{looping} of {all} looped: ");
    let wasted = &summary.wasted;
    if wasted.cost_usd > 0.0 && summary.cost_usd > 0.0 {
        let share = wasted.cost_usd / summary.cost_usd * 100.0;
        let (part, whole) = (format_usd(wasted.cost_usd), format_usd(summary.cost_usd));
        text += &format!("{part} of {whole} ({share:.1} %)");
    } else {
        text += &wasted.format();
        text += if summary.priced.unknown == summary.sessions {
            "; cost n/a"
        } else {
            ""
        };
    }
    text
}

/// The agents, the period, and the source of the prices.
pub(super) fn scope(summary: &ScanSummary) -> String {
    let agents: Vec<_> = ranked(&summary.by_agent, |group| (0.0, group.sessions))
        .into_iter()
        .map(|(agent, group)| format!("{} {}", title(agent), group_digits(group.sessions)))
        .collect();
    let mut text = format!("{}. ", agents.join(", "));
    let day = |time: &'_ Option<String>| Some(time.as_deref()?.get(..10)?.to_owned());
    match (day(&summary.first_event), day(&summary.last_event)) {
        (Some(first), Some(last)) if first == last => text += &format!("{first}, "),
        (Some(first), Some(last)) => text += &format!("{first} to {last}, "),
        _ => {}
    }
    text += &format!("{}.", pluralize(summary.calls, "call"));
    let priced = &summary.priced;
    if priced.exact > 0 {
        text += &format!(" Recorded cost: {}.", pluralize(priced.exact, "session"));
    }
    if priced.list > 0 {
        text += &format!(
            " List prices of {}: {}; on a subscription this is what it would have cost by API.",
            summary.prices,
            pluralize(priced.list, "session")
        );
    }
    if priced.unknown > 0 {
        text += &format!(" Cost n/a: {}", pluralize(priced.unknown, "session"));
        let models = ranked(&summary.unpriced_models, |count| (0.0, *count)).into_iter();
        let models: Vec<_> = models.take(MODELS_MAX).map(|(model, _)| model).collect();
        if !models.is_empty() {
            text += &format!(" (no price for {})", models.join(", "));
        }
        text += ".";
    }
    if summary.bad_lines > 0 {
        text += &match summary.bad_lines {
            1 => " Skipped: 1 unreadable line or file.".to_owned(),
            many => format!(
                " Skipped: {} unreadable lines or files.",
                group_digits(many)
            ),
        };
    }
    text
}

pub(super) fn title(agent: &str) -> &str {
    find_format(agent).map_or(agent, |format| format.title)
}

/// The sessions whose loops cost most, dearest first.
pub(super) fn worst(sessions: &[SessionReport]) -> Vec<&SessionReport> {
    let mut worst: Vec<_> = sessions
        .iter()
        .filter(|report| report.is_looping())
        .collect();
    worst.sort_by(|a, b| {
        let dollars = b.wasted.cost_usd.total_cmp(&a.wasted.cost_usd);
        dollars.then(b.wasted.events.cmp(&a.wasted.events))
    });
    worst.truncate(WORST_MAX);
    worst
}

fn write_worst(out: &mut impl Write, sessions: &[SessionReport], columns: usize) -> io::Result<()> {
    let worst = worst(sessions);
    if worst.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{BOLD}Worst sessions{BOLD:#}")?;
    for report in worst {
        write_headline(out, report)?;
        if let Some(verdict) = report.main_verdict() {
            for line in wrap(&verdict.pattern, columns.saturating_sub(INDENT)) {
                writeln!(out, "    {line}")?;
            }
        }
        write_session(out, report, columns)?;
    }
    Ok(())
}

/// Money first, then the detector.
fn write_headline(out: &mut impl Write, report: &SessionReport) -> io::Result<()> {
    let not_known = || "n/a".to_owned();
    let cost = report.cost.usd().map(format_usd);
    let Some(verdict) = report.main_verdict() else {
        let cost = cost.unwrap_or_else(not_known);
        return writeln!(out, "{BOLD}{cost}{BOLD:#}, no loop");
    };
    let usd = report.wasted_usd().map_or_else(not_known, format_usd);
    let cost = cost.map_or_else(String::new, |cost| format!(" of {cost}"));
    let detector = &verdict.detector;
    let events = pluralize(report.wasted.events.max(0).unsigned_abs(), "event");
    writeln!(out, "{BOLD}{usd}{BOLD:#}{cost}, {detector}, {events}")
}

/// When and where it was, and how to open it again.
fn write_session(out: &mut impl Write, report: &SessionReport, columns: usize) -> io::Result<()> {
    let time = report.time().and_then(format_time).unwrap_or_default();
    let time = time.get(..16).unwrap_or_default().replace('T', " ");
    let project = sanitize(&report.start.project);
    let model = sanitize(&report.end.main_model());
    let place = [&*time, &*project, title(report.start.agent), &*model];
    let place: Vec<_> = place.into_iter().filter(|part| !part.is_empty()).collect();
    let width = columns.saturating_sub(INDENT);
    writeln!(out, "    {}", truncate(&place.join(", "), width))?;
    let prompt = &sanitize(&report.end.first_prompt);
    let prompt = truncate(prompt, PROMPT_COLUMNS_MAX.min(width));
    if !prompt.is_empty() {
        writeln!(out, "    {DIM}{prompt}{DIM:#}")?;
    }
    let reopen = sanitize(&report.start.reopen);
    if !reopen.is_empty() {
        writeln!(out, "    {reopen}")?;
    }
    Ok(())
}

fn write_groups(out: &mut impl Write, summary: &ScanSummary, columns: usize) -> io::Result<()> {
    write_group(out, "detector", ranked(&summary.by_detector, waste_key))?;
    // Tools of loops, not all.
    let tools = ranked(&summary.by_tool, |tool| {
        (tool.wasted.cost_usd, tool.looping_sessions)
    });
    let tools = tools
        .into_iter()
        .filter(|(_, tool)| tool.looping_sessions > 0);
    let tools: Vec<_> = tools.collect();
    let rows: Vec<_> = tools
        .iter()
        .take(ROWS_MAX)
        .map(|(name, tool)| {
            [
                truncate(&sanitize(name), NAME_COLUMNS_MAX),
                group_digits(tool.calls),
                group_digits(tool.failing),
                group_digits(tool.looping_sessions),
                usd_cell(tool.wasted.cost_usd),
            ]
        })
        .collect();
    if !rows.is_empty() {
        let header = ["tool", "calls", "failing", "looped", "wasted"].map(str::to_owned);
        writeln!(out, "\n{}", render_table(header, rows, GAP))?;
        write_left_out(out, tools.len())?;
    }
    write_group(out, "project", ranked(&summary.by_project, waste_key))?;
    write_weeks(out, summary)?;
    let saved = &summary.saved;
    if saved.events > 0 {
        let text = format!("An active guard would have saved {}.", saved.format());
        writeln!(out)?;
        for line in wrap(&text, columns) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

fn waste_key(group: &ScanGroup) -> (f64, u64) {
    (
        group.wasted.cost_usd,
        group.looping_sessions.saturating_mul(1_000_000) + group.sessions,
    )
}

fn usd_cell(usd: f64) -> String {
    if usd > 0.0 {
        format_usd(usd)
    } else {
        "–".to_owned()
    }
}

fn write_group(out: &mut impl Write, name: &str, groups: Vec<(&str, ScanGroup)>) -> io::Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let all = groups.len();
    let rows = groups.into_iter().take(ROWS_MAX).map(|(name, group)| {
        [
            truncate(&sanitize(name), NAME_COLUMNS_MAX),
            group_digits(group.sessions),
            group_digits(group.looping_sessions),
            usd_cell(group.cost_usd),
            usd_cell(group.wasted.cost_usd),
        ]
    });
    let header = [name, "sessions", "looped", "cost", "wasted"].map(str::to_owned);
    writeln!(out, "\n{}", render_table(header, rows, GAP))?;
    write_left_out(out, all)
}

fn write_left_out(out: &mut impl Write, rows: usize) -> io::Result<()> {
    match rows.saturating_sub(ROWS_MAX) {
        0 => Ok(()),
        more => writeln!(out, "{DIM}and {more} more{DIM:#}"),
    }
}

fn write_weeks(out: &mut impl Write, summary: &ScanSummary) -> io::Result<()> {
    let weeks = summary.weeks();
    // One point is no line.
    let [(first, _), .., (last, _)] = &*weeks else {
        return Ok(());
    };
    let line = |value: &dyn Fn(&ScanGroup) -> f64| {
        let values: Vec<f64> = weeks.iter().map(|(_, group)| value(group)).collect();
        let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        sparkline(values.into_iter().map(|value| value / most))
    };
    writeln!(out, "\nby week, {first} to {last}")?;
    writeln!(out, "  sessions {}", line(&|group| group.sessions as f64))?;
    writeln!(out, "  cost     {}", line(&|group| group.cost_usd))?;
    writeln!(
        out,
        "  looped   {}",
        line(&|group| group.looping_sessions as f64)
    )
}

/// Writes the findings that help also without loops.
fn write_notes(out: &mut impl Write, summary: &ScanSummary) -> io::Result<()> {
    if summary.failing_calls + summary.rereads + summary.compactions > 0 {
        writeln!(out)?;
    }
    if summary.failing_calls > 0 {
        let failing = pluralize(summary.failing_calls, "failing call");
        let streak = summary.failing_streak;
        writeln!(out, "{BOLD}{failing}{BOLD:#}, at most {streak} in a row")?;
    }
    for (message, count) in ranked(&summary.failures, |count| (0.0, *count))
        .into_iter()
        .take(ROWS_MAX)
    {
        writeln!(out, "{:>6}  {message}", group_digits(count))?;
    }
    if summary.rereads > 0 {
        let (reads, tokens) = (
            pluralize(summary.rereads, "unchanged re-read"),
            group_digits(summary.reread_tokens),
        );
        writeln!(out, "{reads}, about {tokens} tokens")?;
    }
    if summary.compactions > 0 {
        let (all, sessions) = (
            pluralize(summary.compactions, "compaction"),
            pluralize(summary.compacted_sessions, "session"),
        );
        let most = match summary.compactions_max {
            ..=1 => String::new(),
            most => format!(", at most {most} in one"),
        };
        writeln!(out, "{all} in {sessions}{most}")?;
    }
    Ok(())
}

/// Sessions with all their verdicts, and the events around the dearest loop.
pub(super) fn write_sessions(
    out: &mut impl Write,
    sessions: &[SessionReport],
    columns: usize,
) -> io::Result<()> {
    for report in sessions {
        writeln!(out, "{BOLD}{}{BOLD:#}", sanitize(&report.start.session_id))?;
        write_headline(out, report)?;
        write_session(out, report, columns)?;
        let path = sanitize(&report.start.path.display().to_string());
        writeln!(out, "    {path}\n")?;
        for verdict in &report.verdicts {
            VerdictBlock::new(&api::present_verdict(verdict)).write(out, columns)?;
        }
        let verdicts = report.timeline.verdicts.iter();
        let around_loop = pb::GetSessionResponse {
            session: Some(pb::Session {
                last_verdicts: verdicts.map(|it| api::present_verdict(it)).collect(),
                ..pb::Session::default()
            }),
            timeline: report.timeline.entries.clone(),
            ..pb::GetSessionResponse::default()
        };
        if !around_loop.timeline.is_empty() {
            let width_max = terminal_dimensions().map(|(width, _)| width);
            write_timeline(out, &around_loop, width_max)?;
        }
    }
    Ok(())
}
