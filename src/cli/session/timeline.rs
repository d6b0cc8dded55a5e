use std::io::{self, Write};

use anstyle::Style;

use super::lanes::{Lanes, Place};
use crate::{
    cli::{
        clock,
        grid::{self, Cell, Column},
        style::{self, BAD, BOLD, DIM, PLAIN},
        verdict::action_name,
        words::counted,
    },
    pb::{GetSessionResponse, Outcome, TimelineEntry, TimelineKind, Verdict},
};

/// An index, a time, the lanes, who, what, how it ended, what was said.
const COLUMNS: [Column; 8] = [
    Column::right("event"),
    Column::left("UTC").goes(2),
    Column::left("same"),
    Column::left("agent").cut_to(8),
    Column::left("tool").cut_to(10),
    Column::left("target").cut_to(24),
    Column::left("outcome").goes(1),
    Column::left("verdict"),
];

/// What it did lately, the members of each loop below each other.
pub(super) fn write(
    out: &mut impl Write,
    answer: &GetSessionResponse,
    room: Option<usize>,
) -> io::Result<()> {
    writeln!(out, "{BOLD}Timeline{BOLD:#}")?;
    let timeline = &answer.timeline;
    if timeline.is_empty() {
        let events = answer.session.as_ref().map_or(0, |session| session.events);
        let why = match events {
            0 => "No events yet.",
            _ => "Its events are kept no longer: the session is over.",
        };
        return writeln!(out, "  {DIM}{why}{DIM:#}\n");
    }
    let lanes = Lanes::new(timeline);
    let verdicts = answer.session.iter().flat_map(|session| {
        let termination = session.termination.iter();
        session.last_verdicts.iter().chain(termination)
    });
    let verdicts: Vec<&Verdict> = verdicts.collect();
    let mut rows = Vec::new();
    let mut expected = 0;
    for entry in timeline {
        rows.extend(gap(expected, entry.event_index));
        rows.push(row(entry, &lanes, &verdicts));
        expected = entry.event_index.saturating_add(1);
    }
    grid::write(out, &COLUMNS, &rows, room)?;
    legend(out, &lanes)?;
    writeln!(out)
}

/// Events that are not kept.
fn gap(expected: i32, index: i32) -> Option<Vec<Cell>> {
    let missing = u64::try_from(index.saturating_sub(expected)).ok()?;
    let told = match (missing, expected) {
        (0, _) => return None,
        (_, 0) => format!("{} before", counted(missing, "event")),
        _ => format!("{} not kept", counted(missing, "event")),
    };
    let mut cells = vec![Cell::default(); COLUMNS.len()];
    if let Some(cell) = cells.first_mut() {
        *cell = Cell::new("⋮", DIM);
    }
    if let Some(cell) = cells.get_mut(5) {
        *cell = Cell::new(told, DIM);
    }
    Some(cells)
}

fn row(entry: &TimelineEntry, lanes: &Lanes, verdicts: &[&Verdict]) -> Vec<Cell> {
    let place = lanes.place(entry);
    let cited = !entry.loop_id.is_empty();
    let text = if cited { PLAIN } else { DIM };
    let (tool, target) = match entry.kind() {
        TimelineKind::ToolCall => (entry.tool.as_str(), entry.target.as_str()),
        TimelineKind::AgentTurn => ("", "the agent spoke"),
        TimelineKind::UserTurn => ("", "the user spoke"),
        TimelineKind::Compaction => ("", "the context was summarised"),
        TimelineKind::NewRun => ("", "a new run began"),
        TimelineKind::Unspecified => ("", ""),
    };
    let outcome = match entry.outcome() {
        Outcome::Unspecified => Cell::default(),
        Outcome::Ok => Cell::new("ok", DIM),
        Outcome::Error => Cell::new("error", BAD),
        Outcome::Blocked => Cell::new("blocked", DIM),
    };
    let time = entry.time.as_ref().map(clock::time).unwrap_or_default();
    vec![
        Cell::new(entry.event_index.to_string(), text),
        Cell::new(time, DIM),
        lane_cell(lanes.count(), place, cited),
        Cell::new(&entry.agent_id, DIM),
        Cell::new(tool, text),
        Cell::new(target, text),
        outcome,
        said(entry, verdicts),
    ]
}

/// `·A··`: a place for every lane, this event's in its own.
fn lane_cell(lanes: usize, place: Option<Place>, cited: bool) -> Cell {
    (0..lanes).fold(Cell::default(), |cell, lane| {
        let cell = if lane > 0 { cell.and(" ", PLAIN) } else { cell };
        match place {
            Some(place) if place.lane == lane => {
                let style: Style = if cited { style::of_lane(lane) } else { PLAIN };
                cell.with(place.mark.to_string(), style)
            }
            _ => cell.and("·", DIM),
        }
    })
}

/// The verdict that was given on the event.
fn said(entry: &TimelineEntry, verdicts: &[&Verdict]) -> Cell {
    let given = verdicts
        .iter()
        .find(|verdict| verdict.event_index == entry.event_index);
    match given {
        Some(verdict) => {
            let action = verdict.action();
            let told = format!("◀ {} {}", action_name(action), verdict.detector);
            Cell::new(told, style::of_action(action))
        }
        None => Cell::default(),
    }
}

fn legend(out: &mut impl Write, lanes: &Lanes) -> io::Result<()> {
    let told = match lanes.kinds() {
        (false, false) => return Ok(()),
        (true, false) => "Equal calls share a letter.",
        (false, true) => "≈ marks the members of a loop that are alike, but not equal.",
        (true, true) => {
            "Equal calls share a letter; ≈ marks members of a loop that are alike, but not equal."
        }
    };
    writeln!(out, "{DIM}{told}{DIM:#}")
}
