// Live verdicts.

import { debounce, el, setChildren, untrusted, updateChildren } from "./dom.js";
import * as filters from "./filters.js";
import * as format from "./format.js";
import { feedbackText } from "./rating.js";
import { badge } from "./verdict.js";

const SHOWN_MAX = 200;

export function feed(params, page) {
  let current = params;
  let paused = null;
  const setFilter = (name, value) => page.setParams({ [name]: value });
  const controls = [
    filters.search("Search sessions and patterns", "q", params, setFilter),
    filters.detector(params, setFilter, page.detectors, [["operator", "operator actions"]]),
    filters.minAction(params, setFilter),
  ];
  const pause = el("button", { type: "button", "aria-pressed": "false", on: { click: () => {
    paused = paused ? null : page.live.recent.slice();
    render();
  } } });
  const gap = el("p", { class: "note" });
  const body = el("ol", { class: "verdicts" });
  const node = el("section", { class: "feed" },
    el("h1", { class: "visually-hidden" }, "Live verdicts"),
    el("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } }, controls, pause),
    gap, body);

  function render() {
    const shown = paused ?? page.live.recent;
    const newer = paused ? page.live.recent.filter((verdict) => verdict.verdict_id > (paused[0]?.verdict_id ?? "")).length : 0;
    pause.setAttribute("aria-pressed", String(Boolean(paused)));
    pause.textContent = paused ? `Resume${newer ? ` (${format.count(newer)} new)` : ""}` : "Pause";
    const matching = shown.filter((verdict) => matchesFilters(verdict, current)).slice(0, SHOWN_MAX);
    setChildren(gap,
      page.live.gap ? ["Some verdicts were missed while the connection was down. ", el("a", { href: "/audit" }, "See the audit log.")]
        : matching.length ? "" : shown.length ? "No matching verdicts." : "No verdicts yet.");
    if (!paused || body.childElementCount === 0 || filtersChanged) updateChildren(body, matching.map(cachedRow));
    filtersChanged = false;
  }

  /** Rows are reused, so that they keep their focus. */
  const rowNodes = new WeakMap();
  const cachedRow = (verdict) => {
    if (!rowNodes.has(verdict)) rowNodes.set(verdict, verdictRow(verdict));
    return rowNodes.get(verdict);
  };
  let filtersChanged = false;
  const scheduleRender = debounce(render, 60, 250);
  page.live.addEventListener("verdict", scheduleRender);
  page.live.addEventListener("phase", scheduleRender);
  render();
  return {
    node,
    title: "Live",
    refresh: render,
    update(params) {
      current = params;
      filtersChanged = true;
      for (const control of controls) control.set(params);
      render();
    },
    close() {
      page.live.removeEventListener("verdict", scheduleRender);
      page.live.removeEventListener("phase", scheduleRender);
    },
  };
}

function matchesFilters(verdict, params) {
  const weakest = format.ACTIONS.indexOf(params.min_action ?? "");
  const strength = format.ACTIONS.indexOf(format.action(verdict.action));
  const text = `${verdict.session_id} ${verdict.pattern ?? ""} ${verdict.reason ?? ""} ${verdict.operator ?? ""}`.toLowerCase();
  return (!params.detector || params.detector === verdict.detector)
    && strength >= weakest
    && (params.q ?? "").toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** Removes the detector's name from patterns of the audit log: it has its own column. */
function pattern({ pattern = "", detector }) {
  return pattern.startsWith(`${detector}: `) ? pattern.slice(detector.length + 2) : pattern;
}

/** A verdict as a list item. */
export function verdictRow(verdict) {
  const wasted = verdict.wasted ?? {};
  return el("li", { class: `verdict-row action-${format.action(verdict.action) || "note"}` },
    el("a", { href: `/verdict?id=${encodeURIComponent(verdict.verdict_id)}`, class: "muted permalink" }, el("time", { datetime: verdict.time, title: verdict.time }, format.moment(verdict.time))),
    badge(verdict),
    el("span", { class: "detector" }, verdict.detector),
    el("a", { href: `/session?id=${encodeURIComponent(verdict.session_id)}`, class: "mono" }, untrusted(verdict.session_id)),
    el("span", { class: "pattern" },
      untrusted(pattern(verdict)),
      verdict.pattern && verdict.reason ? el("span", { class: "muted" }, " — ") : null,
      verdict.reason ? untrusted(verdict.reason, { class: "muted" }) : null,
      verdict.operator ? el("span", { class: "muted" }, ", ", untrusted(verdict.operator)) : null,
      verdict.feedback ? el("span", { class: "muted" }, " · ", feedbackText(verdict.feedback)) : null),
    el("span", { class: "muted cost", title: wasted.events ? format.cost(wasted) : null },
      wasted.events ? format.counted(wasted.events, "event") : "", wasted.cost_usd ? `, ${format.money(wasted.cost_usd)}` : ""));
}
