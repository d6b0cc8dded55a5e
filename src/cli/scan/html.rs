//! The report as one page: no script, and nothing from elsewhere.

use minijinja::{AutoEscape, Environment, Value, value::Serde};
use serde::Serialize;

use super::{
    plot::PagePlot,
    report::{headline, scope, title, worst},
    session_report::SessionReport,
    totals::{ScanGroup, ScanSummary, format_time, ranked},
};
use crate::cli::{
    CliError,
    text_format::{format_usd, group_digits, pluralize, sanitize, truncate},
    waste::WasteTotals,
};

/// The content of the page.
#[derive(Serialize)]
struct Page {
    headline: String,
    scope: String,
    facts: Vec<PageFact>,
    weeks: PageWeeks,
    worst: Vec<PageSession>,
    charts: [PageChart; 4],
}

/// A figure with its meaning.
#[derive(Serialize)]
struct PageFact {
    name: &'static str,
    value: String,
    detail: String,
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
    /// What the name means; empty: it says so itself.
    meaning: String,
    /// From 0 to 100.
    percent: f64,
}

/// A column for each week.
#[derive(Serialize)]
struct PageWeeks {
    /// The meaning of a column's height.
    unit: &'static str,
    width: usize,
    columns: Vec<PageWeek>,
}

#[derive(Serialize)]
struct PageWeek {
    x: usize,
    title: String,
    /// The height for all sessions, from 0 to 100.
    height: f64,
    /// The part of it that is due to loops.
    looped: f64,
    name: String,
}

#[derive(Serialize)]
struct PageSession {
    time: String,
    project: String,
    agent: String,
    model: String,
    detector: String,
    /// What the detector looks for.
    rule: String,
    /// What it found.
    pattern: String,
    events: String,
    usd: String,
    cost: String,
    prompt: String,
    reopen: String,
    plot: PagePlot,
}

/// Rows of a chart.
const BARS_MAX: usize = 12;
/// The width of a week's column, with the gap.
const WEEK_WIDTH: usize = 36;
const PROMPT_COLUMNS_MAX: usize = 200;
const PATTERN_COLUMNS_MAX: usize = 300;

/// Renders the page. Without `full` it has no prompts, error texts, paths and names of
/// projects.
pub(super) fn render_page(
    sessions: &[SessionReport],
    summary: &ScanSummary,
    full: bool,
) -> Result<String, CliError> {
    let names = ProjectNames::new(summary, full);
    let worst = worst(sessions).into_iter();
    let page = Page {
        headline: headline(summary),
        scope: scope(summary),
        facts: facts(summary),
        weeks: weeks(summary),
        worst: worst
            .map(|report| page_session(report, names.get(&report.start.project), full))
            .collect(),
        charts: charts(sessions, summary, &names, full),
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

fn facts(summary: &ScanSummary) -> Vec<PageFact> {
    let mut facts = Vec::new();
    let mut add = |name, value, detail| {
        facts.push(PageFact {
            name,
            value,
            detail,
        });
    };
    // Money, or events where there is none.
    let money = |waste: &WasteTotals| match waste.cost_usd {
        usd if usd > 0.0 => format_usd(usd),
        _ => pluralize(waste.events.max(0).unsigned_abs(), "event"),
    };
    let use_of = |waste: &WasteTotals| {
        let without_money = WasteTotals {
            cost_usd: 0.0,
            ..*waste
        };
        without_money.format()
    };
    if summary.looping_sessions > 0 {
        let (wasted, saved) = (&summary.wasted, &summary.saved);
        add("Wasted in loops", money(wasted), use_of(wasted));
        if saved.events > 0 {
            add("A guard would have saved", money(saved), use_of(saved));
        }
    }
    // Findings that help also without loops.
    if summary.failing_calls > 0 {
        add(
            "Failing calls",
            group_digits(summary.failing_calls),
            format!("at most {} in a row", summary.failing_streak),
        );
    }
    if summary.rereads > 0 {
        add(
            "Unchanged re-reads",
            group_digits(summary.rereads),
            format!("about {} tokens", group_digits(summary.reread_tokens)),
        );
    }
    if summary.compactions > 0 {
        let compacted = pluralize(summary.compacted_sessions, "session");
        add(
            "Compactions",
            group_digits(summary.compactions),
            match summary.compactions_max {
                ..=1 => format!("in {compacted}"),
                most => format!("in {compacted}, at most {most} in one"),
            },
        );
    }
    facts
}

/// Dollars by week, or sessions where there are none.
fn weeks(summary: &ScanSummary) -> PageWeeks {
    let weeks = summary.weeks();
    let has_usd = weeks.iter().any(|(_, group)| group.cost_usd > 0.0);
    let size = |group: &ScanGroup| {
        if has_usd {
            group.cost_usd
        } else {
            group.sessions as f64
        }
    };
    let sizes = weeks.iter().map(|(_, group)| size(group));
    let most = sizes.fold(f64::MIN_POSITIVE, f64::max);
    let column = |(at, (week, group)): (usize, &(String, ScanGroup))| {
        let looped = if has_usd {
            group.wasted.cost_usd
        } else {
            group.looping_sessions as f64
        };
        let percent = |value: f64| (value / most * 1000.0).round() / 10.0;
        let mut title = format!("week of {week}: {}", pluralize(group.sessions, "session"));
        title += &format!(", {} looped", group_digits(group.looping_sessions));
        if group.cost_usd > 0.0 {
            title += &format!(", {}", format_usd(group.cost_usd));
        }
        PageWeek {
            x: at * WEEK_WIDTH,
            title,
            height: percent(size(group)),
            looped: percent(looped.min(size(group))),
            name: week.get(5..).unwrap_or(week).to_owned(),
        }
    };
    PageWeeks {
        unit: if has_usd { "cost" } else { "sessions" },
        width: weeks.len() * WEEK_WIDTH,
        columns: weeks.iter().enumerate().map(column).collect(),
    }
}

fn charts(
    sessions: &[SessionReport],
    summary: &ScanSummary,
    names: &ProjectNames,
    full: bool,
) -> [PageChart; 4] {
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
    let mut detectors = bars(detectors, "session");
    for bar in &mut detectors {
        bar.meaning = rule_of(sessions, &bar.name).unwrap_or_default().to_owned();
    }
    [
        chart("Loops by detector", detectors),
        chart("Loops by tool", bars(tools, "session")),
        chart("Loops by project", bars(projects, "session")),
        PageChart {
            title: if full {
                "Failing calls by message"
            } else {
                "Failing calls by tool"
            }
            .to_owned(),
            note: format!("at most {} in a row", summary.failing_streak),
            rows: bars(failures, "call"),
        },
    ]
}

/// What a detector looks for.
fn rule_of(sessions: &[SessionReport], detector: &str) -> Option<&'static str> {
    let mut sessions = sessions.iter();
    sessions.find_map(|report| {
        let verdict = report.main_verdict()?;
        report.rule.filter(|_| *verdict.detector == *detector)
    })
}

/// The largest bars, without empty ones, by dollars, or by counts where there are none.
fn bars(rows: impl IntoIterator<Item = (String, f64, u64)>, unit: &str) -> Vec<PageBar> {
    let rows = rows
        .into_iter()
        .filter(|(_, usd, count)| *usd > 0.0 || *count > 0);
    let rows: Vec<_> = rows.take(BARS_MAX).collect();
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
            meaning: String::new(),
            percent: (size(usd, count) / most * 1000.0).round() / 10.0,
        }
    };
    rows.into_iter().map(bar).collect()
}

fn page_session(report: &SessionReport, project: String, full: bool) -> PageSession {
    let time = report.time().and_then(format_time).unwrap_or_default();
    let private = |text: &str, columns_max: usize| {
        if full {
            truncate(&sanitize(text), columns_max)
        } else {
            String::new()
        }
    };
    let verdict = report.main_verdict();
    PageSession {
        time: time.get(..16).unwrap_or_default().replace('T', " "),
        project,
        agent: title(report.start.agent).to_owned(),
        model: sanitize(&report.end.main_model()),
        detector: verdict.map_or_else(String::new, |verdict| verdict.detector.to_string()),
        rule: report.rule.unwrap_or_default().to_owned(),
        pattern: verdict.map_or_else(String::new, |verdict| {
            private(&verdict.pattern, PATTERN_COLUMNS_MAX)
        }),
        events: pluralize(report.wasted.events.max(0).unsigned_abs(), "event"),
        usd: report
            .wasted_usd()
            .map_or_else(|| "n/a".to_owned(), format_usd),
        cost: report.cost.usd().map(format_usd).unwrap_or_default(),
        prompt: private(&report.end.first_prompt, PROMPT_COLUMNS_MAX),
        reopen: private(&report.start.reopen, PROMPT_COLUMNS_MAX),
        plot: PagePlot::new(&report.timeline, full),
    }
}
