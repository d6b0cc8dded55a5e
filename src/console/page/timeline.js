// The timeline of a session: a plot with the trends above lanes of equal calls, in
// which a cycle is visible at a glance; and a list of events.

import { el, svg, untrusted } from "./dom.js";
import * as format from "./format.js";
import { Lanes } from "./lanes.js";

const KIND_LABELS = {
  TIMELINE_KIND_AGENT_TURN: "agent message",
  TIMELINE_KIND_USER_TURN: "user message",
  TIMELINE_KIND_COMPACTION: "context compacted",
  TIMELINE_KIND_NEW_RUN: "new run",
};

/** An event in a few words. */
export function describe(entry) {
  return KIND_LABELS[entry.kind] ?? [entry.tool, entry.target].filter(Boolean).join(" ");
}

const LEFT = 34, STEP_MIN = 15, STEP_MAX = 34, LANE = 24;
/** The actions of verdicts are above the trends. */
const LABEL_WIDTH = 80, LABEL_LINES = 3, PLOT_TOP = 12 * LABEL_LINES + 4, PLOT = PLOT_TOP + 76;

/** The width of the plot without scrolling: its column, less the frame. */
function plotWidth() {
  const page = Math.min(1500, document.documentElement.clientWidth);
  return (page > 1000 ? (page - 76) * (1.15 / 2.15) : page - (page > 760 ? 48 : 28)) - 24;
}

/** The plot: the trends over the events, and below them the lanes. */
export function timelinePlot(timeline, verdicts) {
  const lanes = new Lanes(timeline);
  const available = plotWidth() - LEFT - 4;
  const step = Math.min(STEP_MAX, Math.max(STEP_MIN, available / Math.max(1, timeline.length)));
  const x = (at) => LEFT + (at + 0.5) * step;
  const rows = lanes.count + 1;
  const width = Math.ceil(LEFT + Math.max(available, timeline.length * step) + 4);
  const height = PLOT + 18 + rows * LANE + 4;
  const lane = (number) => PLOT + 18 + (number + 0.5) * LANE;
  const verdictByIndex = new Map(verdicts.filter((verdict) => verdict.event_index !== -1).map((verdict) => [verdict.event_index ?? 0, verdict]));

  let previousX = -Infinity;
  let line = 0;
  const verdictMarks = timeline.map((entry, at) => {
    const verdict = verdictByIndex.get(entry.event_index ?? 0);
    if (!verdict) return null;
    const action = format.action(verdict.action);
    // Overlapping labels are put on different lines.
    line = x(at) - previousX < LABEL_WIDTH ? (line + 1) % LABEL_LINES : 0;
    previousX = x(at);
    return svg("g", { class: `verdict-mark action-${action}` },
      svg("line", { x1: x(at), x2: x(at), y1: 12 * line + 3, y2: height - 4 }),
      svg("text", { x: x(at) - 4, y: 12 * line + 10, "text-anchor": "end" }, action.toUpperCase()));
  });
  const eventMarks = timeline.map((entry, at) => {
    const assigned = lanes.laneOf(entry);
    const row = assigned ? assigned.lane : lanes.count;
    const title = svg("title", null, `event ${entry.event_index ?? 0}: ${describe(entry)}`.slice(0, 300));
    if (!assigned) return svg("circle", { class: "event-mark single", cx: x(at), cy: lane(row), r: 2.5 }, title);
    return svg("g", { class: `event-mark lane-${assigned.lane} ${entry.loop_id ? "cited" : ""}` }, title,
      svg("circle", { cx: x(at), cy: lane(row), r: 9 > step / 2 - 0.5 ? step / 2 - 0.5 : 9 }),
      svg("text", { x: x(at), y: lane(row) + 3.7, "text-anchor": "middle" }, assigned.letter));
  });
  const loopPath = timeline.map((entry, at) => {
    const assigned = lanes.laneOf(entry);
    return assigned && entry.loop_id ? `${x(at)},${lane(assigned.lane)}` : null;
  }).filter(Boolean);
  const laneLines = Array.from({ length: rows }, (_, row) => svg("g", { class: "lane-line" },
    svg("line", { x1: LEFT, x2: width - 4, y1: lane(row), y2: lane(row) })));

  const drawing = svg("svg", { class: "timeline-plot", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": plotLabel(timeline, lanes) },
    laneLines, axis(width), trends(timeline, x), svg("polyline", { class: "loop-path", points: loopPath.join(" ") }), verdictMarks, eventMarks);
  const scroll = el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Trends and loops over the events" }, drawing);
  // The newest events are at the right.
  requestAnimationFrame(() => { scroll.scrollLeft = scroll.scrollWidth; });
  return scroll;
}

/** The letters of the last events, for screen readers. */
function plotLabel(timeline, lanes) {
  const letters = timeline.map((entry) => lanes.laneOf(entry)?.letter ?? "·").join(" ");
  return `events in order, equal calls share a letter: ${letters.slice(-400)}`;
}

const plotY = (value) => PLOT_TOP + (1 - value) * (PLOT - PLOT_TOP);

function axis(width) {
  return [0, 0.5, 1].map((value) => svg("g", { class: "axis" },
    svg("line", { x1: LEFT, x2: width - 4, y1: plotY(value), y2: plotY(value) }),
    svg("text", { x: LEFT - 6, y: plotY(value) + 3.5, "text-anchor": "end" }, value === 0.5 ? ".5" : `${value}`)));
}

/** One line per detector that has a trend. */
function trends(timeline, x) {
  const names = detectorsOf(timeline);
  return names.map((name, series) => {
    const points = [];
    const found = [];
    timeline.forEach((entry, at) => {
      const sample = (entry.trends ?? []).find((sample) => sample.detector === name);
      const ema = sample?.ema ?? 0;
      points.push(`${x(at)},${plotY(ema).toFixed(1)}`);
      if (sample?.found) found.push(svg("circle", { cx: x(at), cy: plotY(ema), r: 2.6 }));
    });
    // Lines may coincide: later ones are thinner, so that all are visible.
    const strokeWidth = 2 + 3 * Math.min(3, names.length - 1 - series);
    return svg("g", { class: `trend hue-${series % 7}` }, svg("polyline", { points: points.join(" "), "stroke-width": strokeWidth }), found);
  });
}

function detectorsOf(timeline) {
  return [...new Set(timeline.flatMap((entry) => (entry.trends ?? []).map((sample) => sample.detector)))];
}

/** The colour of each detector, and its current trend. */
export function trendLegend(timeline, session) {
  const names = detectorsOf(timeline);
  const trendOf = (name) => (session.trends ?? []).find((trend) => trend.detector === name)?.trend;
  return el("ul", { class: "legend" }, names.map((name, series) => el("li", { class: `hue-${series % 7}` },
    el("i", { class: "swatch", "aria-hidden": true }), name, " ",
    el("span", { class: "muted" }, trendOf(name) ? `${(trendOf(name).ema ?? 0).toFixed(2)}, ${format.level(trendOf(name).level)}` : "over"))));
}

/** The call of each letter. */
export function laneLegend(timeline) {
  const firstEvents = new Lanes(timeline).firstEvents(timeline);
  if (!firstEvents.length) return null;
  return el("ul", { class: "lane-legend" }, firstEvents.map(({ letter, entry }, lane) => el("li", null,
    el("span", { class: `disc lane-${lane}` }, letter),
    letter === "≈" ? el("span", { class: "muted" }, entry.tool ? "similar calls of the loop" : "turns of the loop") : untrusted(describe(entry)))));
}

/** All retained events, newest first. */
export function list(timeline, verdicts) {
  const lanes = new Lanes(timeline);
  const verdictByIndex = new Map(verdicts.map((verdict) => [verdict.event_index ?? 0, verdict]));
  const agents = new Set(timeline.map((entry) => entry.agent_id ?? "")).size > 1;
  const rows = [];
  let expected = 0;
  for (const entry of timeline) {
    const index = entry.event_index ?? 0;
    if (index > expected) rows.push(gap(index - expected, expected === 0));
    rows.push(row(entry, lanes, verdictByIndex.get(index), agents));
    expected = index + 1;
  }
  return el("ol", { class: "events", reversed: true }, rows.reverse());
}

function gap(missing, before) {
  return el("li", { class: "gap" }, `${format.counted(missing, "event")} ${before ? "earlier" : "omitted"}`);
}

const OUTCOMES = { OUTCOME_OK: "ok", OUTCOME_ERROR: "error", OUTCOME_BLOCKED: "blocked" };

function row(entry, lanes, verdict, agents) {
  const assigned = lanes.laneOf(entry);
  const action = verdict && format.action(verdict.action);
  const outcome = OUTCOMES[entry.outcome];
  return el("li", { id: `event-${entry.event_index ?? 0}`, class: entry.loop_id ? "cited" : null },
    el("span", { class: "index" }, entry.event_index ?? 0),
    assigned ? el("span", { class: `disc lane-${assigned.lane}` }, assigned.letter) : el("span", { class: "disc single", "aria-hidden": true }, "·"),
    el("span", { class: "event" },
      agents && entry.agent_id ? untrusted(entry.agent_id, { class: "agent" }) : null,
      entry.tool ? untrusted(entry.tool, { class: "tool" }) : el("span", { class: "muted" }, KIND_LABELS[entry.kind] ?? ""),
      entry.target ? untrusted(entry.target, { class: "target" }) : null),
    outcome ? el("span", { class: `outcome ${outcome}` }, outcome) : null,
    action ? el("a", { class: `badge action-${action}`, href: `#verdict-${verdict.verdict_id}` }, action) : null,
    el("time", { class: "muted", datetime: entry.time }, format.clock(entry.time)));
}
