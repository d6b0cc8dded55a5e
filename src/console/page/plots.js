// Small plots as SVG.

import { el, svg } from "./dom.js";
import { count } from "./format.js";

/** The recent trend of a session, 0 to 1. */
export function sparkline(samples, width = 88, height = 22) {
  if (!samples?.length) return el("span", { class: "none" }, "–");
  const step = width / Math.max(1, samples.length - 1);
  const y = (value) => (height - 2 - value * (height - 4)).toFixed(1);
  const points = samples.map((value, at) => `${(at * step).toFixed(1)},${y(value)}`);
  const last = samples.at(-1);
  const label = `trend ${last.toFixed(2)}, over the last ${samples.length} events`;
  return svg("svg", { class: "sparkline", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    svg("polygon", { class: "area", points: `0,${height} ${points.join(" ")} ${width},${height}` }),
    svg("polyline", { class: "line", points: points.join(" ") }),
    svg("circle", { class: "dot", cx: (samples.length - 1) * step, cy: y(last), r: 2 }));
}

/** More colours cannot be distinguished; the other series are drawn as one. */
const SERIES_MAX = 7;

/** Verdicts per minute as stacked bars, one colour per detector. */
export function verdictsPerMinute(detectors) {
  const minutes = 60, width = 480, height = 56, bar = width / minutes;
  const total = (plot) => plot.reduce((sum, times) => sum + times, 0);
  const ranked = Object.entries(detectors).sort((a, b) => total(b[1]) - total(a[1]));
  const others = ranked.splice(SERIES_MAX);
  if (others.length) {
    const sums = Array.from({ length: minutes }, (_, at) => others.reduce((sum, [, plot]) => sum + plot[at], 0));
    ranked.push([`${others.length} others`, sums]);
  }
  const heights = Array.from({ length: minutes }, (_, at) => ranked.reduce((sum, [, plot]) => sum + plot[at], 0));
  const peak = Math.max(1, ...heights);
  const tops = Array(minutes).fill(height);
  const bars = ranked.map(([, plot], series) => svg("g", { class: colour(series, ranked.length, others.length) },
    plot.map((times, at) => {
      if (!times) return null;
      const barHeight = (times / peak) * (height - 2);
      tops[at] -= barHeight;
      return svg("rect", { x: (at * bar + 0.75).toFixed(2), y: tops[at].toFixed(2), width: (bar - 1.5).toFixed(2), height: barHeight.toFixed(2), rx: 0.75 });
    })));
  const sum = total(heights);
  const label = `${count(sum)} verdicts in the last hour, at most ${count(peak)} per minute: `
    + ranked.map(([name, plot]) => `${name} ${total(plot)}`).join(", ");
  return el("figure", { class: "verdicts-per-minute" },
    el("figcaption", null,
      el("span", { class: "muted" }, "Verdicts per minute, last hour"),
      el("span", { class: "muted" }, sum ? `${count(sum)} in total, peak ${count(Math.max(...heights))}` : "none")),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": sum ? label : "no verdicts in the last hour" },
      svg("line", { class: "base", x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 }), bars),
    el("ul", { class: "legend" }, ranked.map(([name, plot], series) =>
      el("li", { class: colour(series, ranked.length, others.length) }, el("i", { class: "swatch", "aria-hidden": true }), name, " ", el("b", null, count(total(plot)))))));
}

function colour(series, all, others) {
  return others && series === all - 1 ? "hue-rest" : `hue-${series}`;
}
