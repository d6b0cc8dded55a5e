use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use crate::{
    api,
    cli::{
        trace::player::Given,
        words::{cost, ranges, wrapped},
    },
    domain::{Action, SessionView, Verdict, text},
};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();

/// As long as a session's id may be.
const ID_CHARS_MAX: usize = 256;
/// Of an agent's, what leaves room for the rest of the line.
const AGENT_CHARS_MAX: usize = 40;
const INDENT: &str = "    ";
/// Labels stand in a column of their own.
const LABEL_COLUMNS: usize = 12;

/// A session's heading, and its verdicts one below the other.
pub(super) fn write(
    out: &mut impl Write,
    view: &SessionView,
    given: &[Given],
    columns: usize,
) -> io::Result<()> {
    let id = text::quoted(view.id.as_str(), ID_CHARS_MAX);
    let cost = cost(view.events.into(), view.cost.tokens(), view.cost.usd);
    let status = view.status.name();
    writeln!(out, "{BOLD}{id}{BOLD:#}\n{DIM}{cost}, {status}{DIM:#}\n")?;
    given
        .iter()
        .try_for_each(|given| block(out, given, columns))
}

fn block(out: &mut impl Write, given: &Given, columns: usize) -> io::Result<()> {
    let verdict = &*given.verdict;
    heading(out, given)?;
    for line in wrapped(&verdict.pattern, columns - INDENT.len()) {
        writeln!(out, "{INDENT}{line}")?;
    }
    let wasted = verdict.wasted;
    let rows = [
        ("why", verdict.reason.clone()),
        ("events", ranges(&verdict.evidence.event_indexes)),
        (
            "cost so far",
            cost(wasted.events, wasted.tokens, wasted.usd),
        ),
        ("wait", wait(verdict)),
        ("correction", verdict.correction.clone()),
    ];
    for (label, text) in rows {
        row(out, label, &text, columns)?;
    }
    writeln!(out)
}

/// `● WARN at event 13 · exact_repeat · 2026-03-11 09:14:40`
fn heading(out: &mut impl Write, given: &Given) -> io::Result<()> {
    let verdict = &*given.verdict;
    let style = strength(verdict.action);
    let action = verdict.action.map_or("note", Action::name);
    write!(out, "  {style}● {}{style:#}", action.to_ascii_uppercase())?;
    if let Some(index) = verdict.event_index {
        write!(out, " at event {index}")?;
    }
    let mut detectors = verdict.detector.to_string();
    for also in &verdict.also {
        detectors += &format!(", {also}");
    }
    write!(out, " {DIM}·{DIM:#} {detectors}")?;
    let agent = text::quoted(verdict.agent.as_str(), AGENT_CHARS_MAX);
    let mut notes = Vec::new();
    if !agent.is_empty() {
        notes.push(format!("agent {agent}"));
    }
    if given.timed {
        notes.extend(time(verdict));
    }
    if verdict.shadow {
        notes.push("shadow".to_owned());
    }
    for note in notes {
        write!(out, " {DIM}· {note}{DIM:#}")?;
    }
    writeln!(out)
}

/// A label and its text, nothing where there is none.
fn row(out: &mut impl Write, label: &str, text: &str, columns: usize) -> io::Result<()> {
    let room = columns - INDENT.len() - LABEL_COLUMNS;
    let mut label = label;
    for line in wrapped(text, room) {
        writeln!(out, "{INDENT}{DIM}{label:<LABEL_COLUMNS$}{DIM:#}{line}")?;
        label = "";
    }
    Ok(())
}

/// Calm for what only tells, red for what stops.
fn strength(action: Option<Action>) -> Style {
    let color = match action {
        None | Some(Action::Alert) => AnsiColor::Cyan,
        Some(Action::Warn) => AnsiColor::Yellow,
        Some(Action::Throttle | Action::Checkpoint | Action::Ask) => AnsiColor::Magenta,
        Some(Action::Block | Action::Break | Action::Escalate) => AnsiColor::Red,
        Some(Action::Terminate) => AnsiColor::BrightRed,
    };
    color.on_default().bold()
}

/// The verdict's time in UTC, to the second.
fn time(verdict: &Verdict) -> Option<String> {
    let time = api::present_verdict(verdict).time?;
    let time = serde_json::to_value(time).ok()?;
    let (day, rest) = time.as_str()?.split_once('T')?;
    Some(format!("{day} {}", rest.get(..8)?))
}

fn wait(verdict: &Verdict) -> String {
    let wait = verdict.retry_after;
    wait.map(|wait| format!("{} s", wait.as_secs()))
        .unwrap_or_default()
}
