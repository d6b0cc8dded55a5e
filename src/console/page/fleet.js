// All sessions, worst first.

import { call, told } from "./api.js";
import { arrange, calmly, el, fill, said } from "./dom.js";
import * as filters from "./filters.js";
import { pulse, spark } from "./plots.js";
import { badge } from "./verdict.js";
import * as words from "./words.js";

const PAGE = 50;
/** Sessions also change without a verdict. */
const REFRESH_MS = 3000;

export function fleet(params, page) {
  const counts = el("div", { class: "counts", role: "group", "aria-label": "Status" });
  const plot = el("div", { class: "plot" });
  const change = (name, value) => page.change({ [name]: value, page: "" });
  const controls = [
    filters.search("Search ids, labels, profiles", "q", params, change),
    filters.detector(params, change, page.detectors),
    filters.leastAction(params, change),
  ];
  const body = el("tbody");
  const pager = el("nav", { class: "pager", "aria-label": "Pages" });
  const note = el("p", { class: "note", role: "status" });
  const node = el("section", { class: "fleet" },
    el("h1", { class: "unseen" }, "Fleet"),
    el("div", { class: "strip" }, counts, plot),
    el("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } }, controls),
    el("div", { class: "scroll" }, table(body)),
    note, pager);

  const rows = new Map();
  let current = params;
  let asked = 0;
  async function refresh() {
    const turn = ++asked;
    try {
      const [answer, beat] = await Promise.all([
        call("fleet", { status: current.status ?? "", search: current.q ?? "", detector: current.detector ?? "", least_action: current.least ?? "", skip: skip(current), most: PAGE }),
        call("pulse"),
      ]);
      if (turn !== asked) return;
      fill(plot, pulse(beat.detectors));
      show(answer);
    } catch (error) {
      if (turn === asked) fill(note, `Not up to date: ${told(error)}.`);
    }
  }

  function show({ sessions, counts: found }) {
    fill(counts, tiles(found, current, page));
    const kept = new Map();
    const nodes = sessions.map((session) => {
      const known = rows.get(session.session_id) ?? { node: el("tr") };
      const text = JSON.stringify(session);
      // An unchanged row is reused, so that it keeps its focus.
      if (known.text !== text) drawn(known.node, session);
      known.text = text;
      known.session = session;
      kept.set(session.session_id, known);
      return known.node;
    });
    rows.clear();
    for (const [id, row] of kept) rows.set(id, row);
    arrange(body, nodes);
    tick();
    const all = Object.values(found).reduce((sum, number) => sum + number, 0);
    const total = current.status ? found[current.status] ?? 0 : all;
    fill(note, all || isFiltered(current) ? (sessions.length ? "" : "No matching sessions.") : "No sessions yet. Connect a broker to the gRPC port, or try examples/broker.py.");
    fill(pager, pages(skip(current), sessions.length, total, page));
  }

  /** Updates the ages between two refreshes. */
  function tick() {
    const now = Date.now();
    for (const { node, session } of rows.values()) {
      for (const [name, time] of [["age", session.create_time], ["last-seen", session.last_event_time]]) {
        const cell = node.querySelector(`[data-age="${name}"]`);
        if (cell) cell.textContent = words.age(time, now);
      }
    }
  }

  // A hidden page does not refresh.
  const seen = () => document.visibilityState === "visible" && refresh();
  const soon = calmly(seen);
  page.live.addEventListener("verdict", soon);
  document.addEventListener("visibilitychange", seen);
  const timers = [setInterval(seen, REFRESH_MS), setInterval(tick, 1000)];
  refresh();
  return {
    node,
    title: "Fleet",
    refresh,
    update(params) {
      current = params;
      for (const control of controls) control.set(params);
      refresh();
    },
    close() {
      page.live.removeEventListener("verdict", soon);
      document.removeEventListener("visibilitychange", seen);
      timers.forEach(clearInterval);
    },
  };
}

const skip = (params) => Math.max(0, Number.parseInt(params.page ?? "1", 10) - 1 || 0) * PAGE;
const isFiltered = (params) => ["status", "q", "detector", "least"].some((name) => params[name]);

function tiles(found, params, page) {
  const all = Object.values(found).reduce((sum, number) => sum + number, 0);
  // Quarantine is rare: the tile is shown only if there is such a session.
  const statuses = words.STATUSES.filter((name) => name !== "quarantined" || found[name] || params.status === name);
  return [["", "all", all], ...statuses.map((name) => [name, name, found[name] ?? 0])].map(([value, label, number]) =>
    el("button", { type: "button", class: `tile ${value}`, "aria-pressed": String((params.status ?? "") === value), on: { click: () => page.change({ status: value, page: "" }) } },
      el("b", null, words.count(number)), " ", el("span", null, label)));
}

const COLUMNS = [["Status"], ["Session, labels"], ["Last verdict"], ["Trend"], ["Events", "number"], ["Wasted", "number"], ["Age", "number"], ["Last seen", "number"]];

function table(body) {
  return el("table", { class: "sessions" },
    el("caption", { class: "unseen" }, "Sessions, worst first"),
    el("thead", null, el("tr", null, COLUMNS.map(([label, kind]) => el("th", { scope: "col", class: kind }, label)))),
    body);
}

function drawn(node, session) {
  const status = words.status(session.status);
  const last = session.last_verdicts?.at(-1) ?? session.termination;
  const wasted = session.wasted ?? {};
  node.className = status;
  const cell = (label, kind, ...children) => el("td", { class: kind, "data-label": label }, children);
  fill(node,
    cell("Status", "status", el("span", { class: `state ${status}` }, status), session.snoozed_until ? el("span", { class: "quiet" }, " snoozed") : null),
    el("th", { scope: "row", class: "who" },
      el("a", { href: `/session?id=${encodeURIComponent(session.session_id)}`, class: "mono" }, said(session.session_id)),
      labels(session)),
    cell("Last verdict", "why", last ? [
      el("div", null, badge(last), " ", el("span", { class: "detector" }, last.detector), " ", el("time", { class: "quiet", datetime: last.time, title: last.time }, words.moment(last.time))),
      el("div", { class: "pattern" }, said(last.pattern || last.reason || "")),
    ] : el("span", { class: "none" }, "–")),
    cell("Trend", "trend", spark(session.trend_samples)),
    cell("Events", "number", words.count(session.events)),
    cell("Wasted", "number wasted", wasted.events ? [
      el("div", null, words.money(wasted.cost_usd) || `${words.short(wasted.events)} events`),
      wasted.tokens ? el("div", { class: "quiet" }, `${words.short(wasted.tokens)} tokens`) : null,
    ] : el("span", { class: "none" }, "–")),
    cell("Age", "number", el("span", { "data-age": "age" })),
    cell("Last seen", "number", el("span", { "data-age": "last-seen" })));
}

function labels(session) {
  const all = Object.entries(session.labels ?? {}).sort();
  if (session.profile && session.profile !== "default") all.push(["profile", session.profile]);
  if (!all.length) return null;
  return el("div", { class: "labels" }, all.map(([key, value]) => el("span", { class: "label" }, said(`${key}=${value}`))));
}

function pages(from, shown, total, page) {
  if (total <= PAGE && from === 0) return total ? el("span", { class: "quiet" }, words.counted(total, "session")) : null;
  const at = from / PAGE + 1;
  const to = (number, label) => el("button", { type: "button", disabled: number < 1 || (number > at && from + shown >= total), on: { click: () => page.change({ page: number > 1 ? String(number) : "" }) } }, label);
  return [to(at - 1, "Previous"), el("span", { class: "quiet" }, `${words.count(from + 1)}–${words.count(from + shown)} of ${words.counted(total, "session")}`), to(at + 1, "Next")];
}
