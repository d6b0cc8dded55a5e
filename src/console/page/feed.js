// Live verdicts.

import { arrange, calmly, el, fill, said } from "./dom.js";
import * as filters from "./filters.js";
import { badge } from "./verdict.js";
import * as words from "./words.js";

const SHOWN_MAX = 200;

export function feed(params, page) {
  let current = params;
  let paused = null;
  const change = (name, value) => page.change({ [name]: value });
  const controls = [
    filters.search("Search sessions and patterns", "q", params, change),
    filters.detector(params, change, page.detectors, [["operator", "operator actions"]]),
    filters.leastAction(params, change),
  ];
  const pause = el("button", { type: "button", "aria-pressed": "false", on: { click: () => {
    paused = paused ? null : page.live.recent.slice();
    draw();
  } } });
  const gap = el("p", { class: "note" });
  const body = el("ol", { class: "verdicts" });
  const node = el("section", { class: "feed" },
    el("h1", { class: "unseen" }, "Live verdicts"),
    el("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } }, controls, pause),
    gap, body);

  function draw() {
    const shown = paused ?? page.live.recent;
    const newer = paused ? page.live.recent.filter((verdict) => verdict.verdict_id > (paused[0]?.verdict_id ?? "")).length : 0;
    pause.setAttribute("aria-pressed", String(Boolean(paused)));
    pause.textContent = paused ? `Resume${newer ? ` (${words.count(newer)} new)` : ""}` : "Pause";
    const fitting = shown.filter((verdict) => fits(verdict, current)).slice(0, SHOWN_MAX);
    fill(gap,
      page.live.gap ? ["Some verdicts were missed while the connection was down. ", el("a", { href: "/audit" }, "See the audit log.")]
        : fitting.length ? "" : shown.length ? "No matching verdicts." : "No verdicts yet.");
    if (!paused || body.childElementCount === 0 || changed) arrange(body, fitting.map(drawn));
    changed = false;
  }

  /** Lines are reused, so that they keep their focus. */
  const lines = new WeakMap();
  const drawn = (verdict) => {
    if (!lines.has(verdict)) lines.set(verdict, line(verdict));
    return lines.get(verdict);
  };
  let changed = false;
  const soon = calmly(draw, 60, 250);
  page.live.addEventListener("verdict", soon);
  page.live.addEventListener("phase", soon);
  draw();
  return {
    node,
    title: "Live",
    refresh: draw,
    update(params) {
      current = params;
      changed = true;
      for (const control of controls) control.set(params);
      draw();
    },
    close() {
      page.live.removeEventListener("verdict", soon);
      page.live.removeEventListener("phase", soon);
    },
  };
}

function fits(verdict, params) {
  const least = words.ACTIONS.indexOf(params.least ?? "");
  const strength = words.ACTIONS.indexOf(words.action(verdict.action));
  const text = `${verdict.session_id} ${verdict.pattern ?? ""} ${verdict.reason ?? ""} ${verdict.operator ?? ""}`.toLowerCase();
  return (!params.detector || params.detector === verdict.detector)
    && strength >= least
    && (params.q ?? "").toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** Removes the detector's name from patterns of the audit log: it has its own column. */
function pattern({ pattern = "", detector }) {
  return pattern.startsWith(`${detector}: `) ? pattern.slice(detector.length + 2) : pattern;
}

/** A verdict as a list item. */
export function line(verdict) {
  const wasted = verdict.wasted ?? {};
  return el("li", { class: `line act-${words.action(verdict.action) || "note"}` },
    el("time", { datetime: verdict.time, title: verdict.time, class: "quiet" }, words.moment(verdict.time)),
    badge(verdict),
    el("span", { class: "detector" }, verdict.detector),
    el("a", { href: `/session?id=${encodeURIComponent(verdict.session_id)}`, class: "mono" }, said(verdict.session_id)),
    el("span", { class: "pattern" },
      said(pattern(verdict)),
      verdict.pattern && verdict.reason ? el("span", { class: "quiet" }, " — ") : null,
      verdict.reason ? said(verdict.reason, { class: "quiet" }) : null,
      verdict.operator ? el("span", { class: "quiet" }, ", ", said(verdict.operator)) : null),
    el("span", { class: "quiet cost", title: wasted.events ? words.cost(wasted.events, wasted.tokens, wasted.cost_usd) : null },
      wasted.events ? words.counted(wasted.events, "event") : "", wasted.cost_usd ? `, ${words.money(wasted.cost_usd)}` : ""));
}
