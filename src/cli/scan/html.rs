//! The report as one page: no script, and nothing from elsewhere.

use minijinja::{AutoEscape, Environment, Value, value::Serde};
use serde::Serialize;

use super::{
    report::{headline, scope, title, worst},
    session_report::SessionReport,
    totals::{ScanSummary, format_time, ranked},
};
use crate::cli::{
    CliError,
    text_format::{format_cost, format_usd, group_digits, pluralize, sanitize, truncate},
};

/// What the page shows.
#[derive(Serialize)]
struct Page {
    headline: String,
    scope: String,
    worst: Vec<PageSession>,
    charts: [PageChart; 5],
    saved: Option<String>,
    rereads: String,
    reread_tokens: String,
    compactions: String,
    compacted: String,
}

#[derive(Serialize)]
struct PageChart {
    title: String,
    note: String,
    rows: Vec<PageBar>,
}

fn chart(title: &str, rows: Vec<PageBar>) -> PageChart {
    PageChart {
        title: title.to_owned(),
        note: String::new(),
        rows,
    }
}

/// A bar of a chart.
#[derive(Serialize)]
struct PageBar {
    name: String,
    value: String,
    /// From 0 to 100.
    percent: f64,
}

#[derive(Serialize)]
struct PageSession {
    time: String,
    project: String,
    agent: String,
    model: String,
    detector: String,
    events: String,
    usd: String,
    prompt: String,
    reopen: String,
    steps: Vec<PageStep>,
}

/// A call in the picture of a session.
#[derive(Serialize)]
struct PageStep {
    x: usize,
    class: &'static str,
}

/// Rows of a chart.
const BARS_MAX: usize = 12;
const WEEKS_MAX: usize = 26;
/// Calls of a picture.
const STEPS_SHOWN_MAX: usize = 240;
const PROMPT_COLUMNS_MAX: usize = 200;

/// Without `full` there are no prompts, error texts, paths and names of projects.
pub(super) fn render_page(
    sessions: &[SessionReport],
    summary: &ScanSummary,
    full: bool,
) -> Result<String, CliError> {
    let names = ProjectNames::new(summary, full);
    let saved = &summary.saved;
    let worst = worst(sessions).into_iter();
    let page = Page {
        headline: headline(summary),
        scope: scope(summary),
        worst: worst
            .map(|report| page_session(report, names.get(&report.start.project), full))
            .collect(),
        charts: charts(summary, &names, full),
        saved: (saved.events > 0).then(|| format_cost(saved.events, saved.tokens, saved.cost_usd)),
        rereads: pluralize(summary.rereads, "unchanged re-read"),
        reread_tokens: group_digits(summary.reread_tokens),
        compactions: pluralize(summary.compactions, "compaction"),
        compacted: pluralize(summary.compacted_sessions, "session"),
    };
    // All text is escaped.
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let rendered = environment.render_str(include_str!("page.html"), Value::from(Serde(page)));
    rendered.map_err(|error| CliError::failed(format!("cannot render the page: {error}")))
}

/// The projects, dearest first: by name, or by number.
struct ProjectNames {
    ranked: Vec<String>,
    full: bool,
}

impl ProjectNames {
    fn new(summary: &ScanSummary, full: bool) -> Self {
        let ranked = ranked(&summary.by_project, |group| {
            (group.wasted.cost_usd, group.sessions)
        });
        Self {
            ranked: ranked
                .into_iter()
                .map(|(name, _)| name.to_owned())
                .collect(),
            full,
        }
    }

    fn get(&self, name: &str) -> String {
        match self.ranked.iter().position(|known| known == name) {
            _ if self.full => sanitize(name),
            Some(number) => format!("project {}", number + 1),
            None => "unknown".to_owned(),
        }
    }
}

fn charts(summary: &ScanSummary, names: &ProjectNames, full: bool) -> [PageChart; 5] {
    // Dollars and sessions by detector, tool and project.
    let detectors = ranked(&summary.by_detector, |group| {
        (group.wasted.cost_usd, group.sessions)
    });
    let detectors = detectors.into_iter().map(|(name, group)| {
        (
            name.to_owned(),
            group.wasted.cost_usd,
            group.looping_sessions,
        )
    });
    let tools = ranked(&summary.by_tool, |tool| {
        (tool.wasted.cost_usd, tool.looping_sessions)
    });
    let tools = tools
        .into_iter()
        .map(|(name, tool)| (sanitize(name), tool.wasted.cost_usd, tool.looping_sessions));
    let projects = names.ranked.iter().filter_map(|name| {
        let group = summary.by_project.get(name)?;
        Some((
            names.get(name),
            group.wasted.cost_usd,
            group.looping_sessions,
        ))
    });
    // All sessions by week, oldest first.
    let weeks: Vec<_> = summary.by_week.iter().rev().take(WEEKS_MAX).collect();
    let weeks = weeks.into_iter().rev();
    let weeks = weeks.map(|(week, group)| (week.clone(), group.cost_usd, group.sessions));
    // Failing calls by their text, or by tool.
    let failures: Vec<(String, f64, u64)> = if full {
        let failures = ranked(&summary.failures, |count| (0.0, *count)).into_iter();
        failures
            .map(|(message, count)| (message.to_owned(), 0.0, count))
            .collect()
    } else {
        let tools = ranked(&summary.by_tool, |tool| (0.0, tool.failing)).into_iter();
        tools
            .map(|(tool, group)| (sanitize(tool), 0.0, group.failing))
            .collect()
    };
    [
        chart("Loops by detector", bars(detectors, "session")),
        chart("Loops by tool", bars(tools, "session")),
        chart("Loops by project", bars(projects, "session")),
        chart(
            "All sessions by week",
            bars_in_order(weeks.collect(), "session"),
        ),
        PageChart {
            title: pluralize(summary.failing_calls, "failing call"),
            note: format!("at most {} in a row", summary.failing_streak),
            rows: bars(failures, "call"),
        },
    ]
}

/// The largest bars, without empty ones.
fn bars(rows: impl IntoIterator<Item = (String, f64, u64)>, unit: &str) -> Vec<PageBar> {
    let rows = rows
        .into_iter()
        .filter(|(_, usd, count)| *usd > 0.0 || *count > 0);
    bars_in_order(rows.take(BARS_MAX).collect(), unit)
}

/// Bars by dollars, or by counts where there are none.
fn bars_in_order(rows: Vec<(String, f64, u64)>, unit: &str) -> Vec<PageBar> {
    let has_usd = rows.iter().any(|(_, usd, _)| *usd > 0.0);
    let size = |usd: f64, count: u64| if has_usd { usd } else { count as f64 };
    let sizes = rows.iter().map(|(_, usd, count)| size(*usd, *count));
    let most = sizes.fold(f64::MIN_POSITIVE, f64::max);
    let bar = |(name, usd, count): (String, f64, u64)| {
        let mut value = pluralize(count, unit);
        if usd > 0.0 {
            value = format!("{}, {value}", format_usd(usd));
        }
        PageBar {
            name,
            value,
            percent: (size(usd, count) / most * 1000.0).round() / 10.0,
        }
    };
    rows.into_iter().map(bar).collect()
}

fn page_session(report: &SessionReport, project: String, full: bool) -> PageSession {
    let time = report.time().and_then(format_time).unwrap_or_default();
    let private = |text: &str| {
        if full {
            truncate(&sanitize(text), PROMPT_COLUMNS_MAX)
        } else {
            String::new()
        }
    };
    PageSession {
        time: time.get(..16).unwrap_or_default().replace('T', " "),
        project,
        agent: title(report.start.agent).to_owned(),
        model: sanitize(&report.end.main_model()),
        detector: report
            .main_verdict()
            .map(|verdict| verdict.detector.to_string())
            .unwrap_or_default(),
        events: pluralize(report.wasted.events.max(0).unsigned_abs(), "event"),
        usd: report
            .wasted_usd()
            .map_or_else(|| "n/a".to_owned(), format_usd),
        prompt: private(&report.end.first_prompt),
        reopen: private(&report.start.reopen),
        steps: page_steps(report),
    }
}

/// The calls around the loops.
fn page_steps(report: &SessionReport) -> Vec<PageStep> {
    let verdicts = || report.verdicts.iter();
    let in_loop: std::collections::BTreeSet<i32> = verdicts()
        .flat_map(|verdict| verdict.evidence.event_indexes.iter().copied())
        .collect();
    let verdict_at: std::collections::BTreeSet<i32> = verdicts()
        .filter_map(|verdict| verdict.event_index)
        .collect();
    let last = verdict_at.last().copied().unwrap_or(i32::MAX);
    // The picture ends some calls after the last verdict.
    let end = report.steps.partition_point(|step| step.index <= last) + STEPS_SHOWN_MAX / 4;
    let shown = report
        .steps
        .get(..end.min(report.steps.len()))
        .unwrap_or_default();
    let start = shown.len().saturating_sub(STEPS_SHOWN_MAX);
    let shown = shown.iter().skip(start).enumerate();
    shown
        .map(|(x, step)| PageStep {
            x: x * 4,
            class: if verdict_at.contains(&step.index) {
                "verdict"
            } else if in_loop.contains(&step.index) {
                "loop"
            } else if step.failed {
                "failed"
            } else {
                "call"
            },
        })
        .collect()
}
