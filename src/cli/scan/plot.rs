//! The events around a loop as a picture, as the console draws them: lanes of equal calls,
//! the trends above, and the verdicts across.

use serde::Serialize;

use super::session_report::LoopTimeline;
use crate::{
    cli::{
        session::lanes::Lanes,
        text_format::{sanitize, truncate},
    },
    pb::{Outcome, TimelineEntry, TimelineKind},
};

/// Coordinates are pixels.
#[derive(Default, Serialize)]
pub(super) struct PagePlot {
    width: usize,
    height: usize,
    /// The description for screen readers.
    label: String,
    /// The middle of each lane.
    lanes: Vec<usize>,
    trends: Vec<String>,
    verdicts: Vec<PlotVerdict>,
    events: Vec<PlotEvent>,
    legend: Vec<PlotLegend>,
}

#[derive(Serialize)]
struct PlotVerdict {
    x: usize,
    text_y: usize,
    action: String,
}

#[derive(Serialize)]
struct PlotEvent {
    x: usize,
    y: usize,
    /// `None`: not in a lane.
    lane: Option<usize>,
    letter: char,
    in_loop: bool,
    failed: bool,
    title: String,
}

#[derive(Serialize)]
struct PlotLegend {
    lane: usize,
    letter: char,
    name: String,
}

/// Events of a picture: the last ones.
const EVENTS_MAX: usize = 44;
const STEP: usize = 22;
const MARGIN: usize = 14;
const LANE: usize = 24;
/// Names of verdicts that would overlap are on different lines.
const NAME_LINES: usize = 3;
const NAME_LINE: usize = 12;
const NAME_WIDTH: usize = 80;
const TRENDS_TOP: usize = NAME_LINES * NAME_LINE + 4;
const TRENDS_HEIGHT: usize = 44;
const LANES_TOP: usize = TRENDS_TOP + TRENDS_HEIGHT + 12;
const NAME_COLUMNS_MAX: usize = 100;

impl PagePlot {
    /// Targets of calls are named only with `full`.
    pub fn new(timeline: &LoopTimeline, full: bool) -> Self {
        let entries = &timeline.entries;
        let skipped = entries.len().saturating_sub(EVENTS_MAX);
        let entries = entries.get(skipped..).unwrap_or_default();
        if entries.is_empty() {
            return Self::default();
        }
        // The frame: a row for each lane, and one for events in no lane.
        let lanes = Lanes::new(entries);
        let rows = lanes.count() + 1;
        let mut plot = Self {
            width: 2 * MARGIN + entries.len() * STEP,
            height: LANES_TOP + rows * LANE + 4,
            lanes: (0..rows).map(lane_y).collect(),
            trends: trends(entries),
            verdicts: verdicts(timeline, entries),
            ..Self::default()
        };
        // The events, and the call that each letter stands for.
        let mut letters = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let position = lanes.position(entry);
            let name = describe(entry, full);
            if let Some(position) = position
                && plot.legend.iter().all(|known| known.lane != position.lane)
            {
                plot.legend.push(PlotLegend {
                    lane: position.lane,
                    letter: position.mark,
                    name: name.clone(),
                });
            }
            let letter = position.map_or('·', |position| position.mark);
            letters.push(letter.to_string());
            plot.events.push(PlotEvent {
                x: event_x(at),
                y: lane_y(position.map_or(rows - 1, |position| position.lane)),
                lane: position.map(|position| position.lane),
                letter,
                in_loop: !entry.loop_id.is_empty(),
                failed: entry.outcome() == Outcome::Error,
                title: format!("event {}: {name}", entry.event_index),
            });
        }
        // From the top lane to the last one.
        plot.legend.sort_by_key(|entry| entry.lane);
        plot.label = format!(
            "events in order, equal calls share a letter: {}",
            letters.join(" ")
        );
        plot
    }
}

fn event_x(at: usize) -> usize {
    MARGIN + at * STEP + STEP / 2
}

fn lane_y(lane: usize) -> usize {
    LANES_TOP + lane * LANE + LANE / 2
}

fn describe(entry: &TimelineEntry, full: bool) -> String {
    let text = match entry.kind() {
        TimelineKind::ToolCall if full => format!("{} {}", entry.tool, entry.target),
        TimelineKind::ToolCall => entry.tool.clone(),
        TimelineKind::AgentTurn => "agent message".to_owned(),
        TimelineKind::UserTurn => "user message".to_owned(),
        TimelineKind::Compaction => "context compacted".to_owned(),
        TimelineKind::NewRun => "new run".to_owned(),
        TimelineKind::Unspecified => String::new(),
    };
    truncate(sanitize(&text).trim(), NAME_COLUMNS_MAX)
}

/// A line for each detector that has a trend.
fn trends(entries: &[TimelineEntry]) -> Vec<String> {
    let mut detectors: Vec<&str> = Vec::new();
    for sample in entries.iter().flat_map(|entry| &entry.trends) {
        if !detectors.contains(&&*sample.detector) {
            detectors.push(&sample.detector);
        }
    }
    let line = |detector: &str| {
        let points = entries.iter().enumerate().map(|(at, entry)| {
            let mut samples = entry.trends.iter();
            let sample = samples.find(|sample| sample.detector == detector);
            let ema = sample.map_or(0.0, |sample| sample.ema.clamp(0.0, 1.0));
            let y = TRENDS_TOP as f64 + (1.0 - ema) * TRENDS_HEIGHT as f64;
            format!("{},{y:.1}", event_x(at))
        });
        points.collect::<Vec<_>>().join(" ")
    };
    detectors.into_iter().map(line).collect()
}

fn verdicts(timeline: &LoopTimeline, entries: &[TimelineEntry]) -> Vec<PlotVerdict> {
    let mut shown: Vec<PlotVerdict> = Vec::new();
    let mut line = 0;
    for (at, entry) in entries.iter().enumerate() {
        let mut verdicts = timeline.verdicts.iter();
        let verdict = verdicts.find(|verdict| verdict.event_index == Some(entry.event_index));
        let Some(action) = verdict.and_then(|verdict| verdict.effective_action()) else {
            continue;
        };
        let x = event_x(at);
        let overlaps = shown.last().is_some_and(|last| x - last.x < NAME_WIDTH);
        line = if overlaps { (line + 1) % NAME_LINES } else { 0 };
        shown.push(PlotVerdict {
            x,
            text_y: (line + 1) * NAME_LINE - 2,
            action: action.name().to_owned(),
        });
    }
    shown
}
