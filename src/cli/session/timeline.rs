//! The timeline of a session.

use std::io::{self, Write};

use anstyle::Style;

use super::lanes::{LanePosition, Lanes};
use crate::{
    cli::{
        grid::{self, Cell, Column},
        style::{self, BOLD, DIM, PLAIN, RED},
        text_format::pluralize,
        time_format,
        verdict::action_name,
    },
    pb::{GetSessionResponse, Outcome, TimelineEntry, TimelineKind, Verdict},
};

const COLUMNS: [Column; 8] = [
    Column::right("event"),
    Column::left("UTC").drop_priority(2),
    Column::left("same"),
    Column::left("agent").shrink_to(8),
    Column::left("tool").shrink_to(10),
    Column::left("target").shrink_to(24),
    Column::left("outcome").drop_priority(1),
    Column::left("verdict"),
];

/// Writes the retained events, with the members of each loop aligned.
pub(in crate::cli) fn write_timeline(
    out: &mut impl Write,
    response: &GetSessionResponse,
    width_max: Option<usize>,
) -> io::Result<()> {
    writeln!(out, "{BOLD}Timeline{BOLD:#}")?;
    let timeline = &response.timeline;
    if timeline.is_empty() {
        let events = response
            .session
            .as_ref()
            .map_or(0, |session| session.events);
        let why = match events {
            0 => "No events yet.",
            _ => "The events of this session are no longer retained.",
        };
        return writeln!(out, "  {DIM}{why}{DIM:#}\n");
    }
    let lanes = Lanes::new(timeline);
    let verdicts: Vec<&Verdict> = response
        .session
        .iter()
        .flat_map(|session| session.last_verdicts.iter().chain(&session.termination))
        .collect();
    let mut rows = Vec::new();
    let mut expected = 0;
    for entry in timeline {
        rows.extend(render_gap(expected, entry.event_index));
        rows.push(render_row(entry, &lanes, &verdicts));
        expected = entry.event_index.saturating_add(1);
    }
    grid::write(out, &COLUMNS, &rows, width_max)?;
    write_legend(out, &lanes)?;
    writeln!(out)
}

/// A row for events that are not retained.
fn render_gap(expected: i32, index: i32) -> Option<Vec<Cell>> {
    let missing = u64::try_from(index.saturating_sub(expected)).ok()?;
    let text = match (missing, expected) {
        (0, _) => return None,
        (_, 0) => format!("{} earlier", pluralize(missing, "event")),
        _ => format!("{} omitted", pluralize(missing, "event")),
    };
    let mut cells = vec![Cell::default(); COLUMNS.len()];
    if let Some(cell) = cells.first_mut() {
        *cell = Cell::new("⋮", DIM);
    }
    if let Some(cell) = cells.get_mut(5) {
        *cell = Cell::new(text, DIM);
    }
    Some(cells)
}

fn render_row(entry: &TimelineEntry, lanes: &Lanes, verdicts: &[&Verdict]) -> Vec<Cell> {
    let position = lanes.position(entry);
    let cited = !entry.loop_id.is_empty();
    let text = if cited { PLAIN } else { DIM };
    let (tool, target) = match entry.kind() {
        TimelineKind::ToolCall => (entry.tool.as_str(), entry.target.as_str()),
        TimelineKind::AgentTurn => ("", "agent message"),
        TimelineKind::UserTurn => ("", "user message"),
        TimelineKind::Compaction => ("", "context compacted"),
        TimelineKind::NewRun => ("", "new run"),
        TimelineKind::Unspecified => ("", ""),
    };
    let outcome = match entry.outcome() {
        Outcome::Unspecified => Cell::default(),
        Outcome::Ok => Cell::new("ok", DIM),
        Outcome::Error => Cell::new("error", RED),
        Outcome::Blocked => Cell::new("blocked", DIM),
    };
    let time = entry
        .time
        .as_ref()
        .map(time_format::format_time)
        .unwrap_or_default();
    vec![
        Cell::new(entry.event_index.to_string(), text),
        Cell::new(time, DIM),
        render_lanes(lanes.count(), position, cited),
        Cell::new(&entry.agent_id, DIM),
        Cell::new(tool, text),
        Cell::new(target, text),
        outcome,
        render_verdict(entry, verdicts),
    ]
}

/// `· A · ·`: a column for every lane, with the event's mark in its own.
fn render_lanes(lanes: usize, position: Option<LanePosition>, cited: bool) -> Cell {
    (0..lanes).fold(Cell::default(), |row, lane| {
        let cell = if lane > 0 {
            row.with_literal(" ", PLAIN)
        } else {
            row
        };
        match position {
            Some(position) if position.lane == lane => {
                let style: Style = if cited {
                    style::lane_style(lane)
                } else {
                    PLAIN
                };
                cell.with_text(position.mark.to_string(), style)
            }
            _ => cell.with_literal("·", DIM),
        }
    })
}

/// The verdict issued for the event.
fn render_verdict(entry: &TimelineEntry, verdicts: &[&Verdict]) -> Cell {
    let verdict_at_event = verdicts
        .iter()
        .find(|verdict| verdict.event_index == entry.event_index);
    match verdict_at_event {
        Some(verdict) => {
            let action = verdict.action();
            let text = format!("◀ {} {}", action_name(action), verdict.detector);
            Cell::new(text, style::action_style(action))
        }
        None => Cell::default(),
    }
}

fn write_legend(out: &mut impl Write, lanes: &Lanes) -> io::Result<()> {
    let text = match lanes.kinds() {
        (false, false) => return Ok(()),
        (true, false) => "Equal calls share a letter.",
        (false, true) => "≈ marks similar, but not equal, events of a loop.",
        (true, true) => {
            "Equal calls share a letter; ≈ marks similar, but not equal, events of a loop."
        }
    };
    writeln!(out, "{DIM}{text}{DIM:#}")
}
