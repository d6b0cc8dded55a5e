// All sessions, worst first.

import { call, errorMessage } from "./api.js";
import { debounce, el, setChildren, untrusted, updateChildren } from "./dom.js";
import * as filters from "./filters.js";
import * as format from "./format.js";
import { sparkline, verdictsPerMinute } from "./plots.js";
import { badge } from "./verdict.js";

const PAGE = 50;
/** Sessions also change without a verdict. */
const REFRESH_MS = 3000;

export function fleet(params, page) {
  const counts = el("div", { class: "counts", role: "group", "aria-label": "Status" });
  const plot = el("div", { class: "plot" });
  const setFilter = (name, value) => page.setParams({ [name]: value, page: "" });
  const controls = [
    filters.search("Search ids, labels, profiles", "q", params, setFilter),
    filters.detector(params, setFilter, page.detectors),
    filters.minAction(params, setFilter),
  ];
  const body = el("tbody");
  const pager = el("nav", { class: "pager", "aria-label": "Pages" });
  const note = el("p", { class: "note", role: "status" });
  const known = el("p", { class: "muted data-since" });
  const node = el("section", { class: "fleet" },
    el("h1", { class: "visually-hidden" }, "Fleet"),
    el("div", { class: "strip" }, counts, plot),
    el("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } }, controls),
    el("div", { class: "scroll" }, table(body)),
    note, pager, known);

  const rows = new Map();
  let current = params;
  let lastRequest = 0;
  async function refresh() {
    const request = ++lastRequest;
    try {
      const [response, perMinute] = await Promise.all([
        call("fleet", { status: current.status ?? "", search: current.q ?? "", detector: current.detector ?? "", min_action: current.min_action ?? "", skip: skip(current), limit: PAGE }),
        call("verdicts_per_minute"),
      ]);
      if (request !== lastRequest) return;
      setChildren(plot, verdictsPerMinute(perMinute.detectors));
      render(response);
    } catch (error) {
      if (request === lastRequest) setChildren(note, `Not up to date: ${errorMessage(error)}.`);
    }
  }

  function render({ sessions, counts: found, data }) {
    setChildren(known, dataSince(data));
    setChildren(counts, tiles(found, current, page));
    const newRows = new Map();
    const nodes = sessions.map((session) => {
      const known = rows.get(session.session_id) ?? { node: el("tr") };
      const text = JSON.stringify(session);
      // An unchanged row is reused, so that it keeps its focus.
      if (known.text !== text) renderRow(known.node, session);
      known.text = text;
      known.session = session;
      newRows.set(session.session_id, known);
      return known.node;
    });
    rows.clear();
    for (const [id, row] of newRows) rows.set(id, row);
    updateChildren(body, nodes);
    updateAges();
    const all = Object.values(found).reduce((sum, number) => sum + number, 0);
    const total = current.status ? found[current.status] ?? 0 : all;
    setChildren(note, all || isFiltered(current) ? (sessions.length ? "" : "No matching sessions.") : "No sessions yet. Connect a broker to the gRPC port, or try examples/broker.py.");
    setChildren(pager, pagerButtons(skip(current), sessions.length, total, page));
  }

  /** Updates the ages between two refreshes. */
  function updateAges() {
    const now = Date.now();
    for (const { node, session } of rows.values()) {
      for (const [name, time] of [["age", session.create_time], ["last-seen", session.last_event_time]]) {
        const cell = node.querySelector(`[data-age="${name}"]`);
        if (cell) cell.textContent = format.age(time, now);
      }
    }
  }

  // A hidden page does not refresh.
  const refreshIfVisible = () => document.visibilityState === "visible" && refresh();
  const scheduleRefresh = debounce(refreshIfVisible);
  page.live.addEventListener("verdict", scheduleRefresh);
  document.addEventListener("visibilitychange", refreshIfVisible);
  const timers = [setInterval(refreshIfVisible, REFRESH_MS), setInterval(updateAges, 1000)];
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
      page.live.removeEventListener("verdict", scheduleRefresh);
      document.removeEventListener("visibilitychange", refreshIfVisible);
      timers.forEach(clearInterval);
    },
  };
}

const skip = (params) => Math.max(0, Number.parseInt(params.page ?? "1", 10) - 1 || 0) * PAGE;
const isFiltered = (params) => ["status", "q", "detector", "min_action"].some((name) => params[name]);

/** Since when the fleet is known, and what the last restart has kept. */
function dataSince(data) {
  if (!data) return "";
  const time = (millis) => format.moment(new Date(millis).toISOString());
  const { whole, partial, lost } = data.restored ?? {};
  const kept = data.restored && (whole || partial || lost)
    ? `; ${format.counted(whole, "session")} restored${partial ? `, ${partial} in part` : ""}${lost ? `, ${lost} lost` : ""}` : "";
  return `Data since ${time(data.data_since_ms)} (started ${time(data.started_ms)}${kept}).`;
}

function tiles(found, params, page) {
  const all = Object.values(found).reduce((sum, number) => sum + number, 0);
  // Quarantine is rare: the tile is shown only if there is such a session.
  const statuses = format.STATUSES.filter((name) => name !== "quarantined" || found[name] || params.status === name);
  return [["", "all", all], ...statuses.map((name) => [name, name, found[name] ?? 0])].map(([value, label, number]) =>
    el("button", { type: "button", class: `tile ${value}`, "aria-pressed": String((params.status ?? "") === value), on: { click: () => page.setParams({ status: value, page: "" }) } },
      el("b", null, format.count(number)), " ", el("span", null, label)));
}

const COLUMNS = [["Status"], ["Session, labels"], ["Last verdict"], ["Trend"], ["Events", "number"], ["Wasted", "number"], ["Age", "number"], ["Last seen", "number"]];

function table(body) {
  return el("table", { class: "sessions" },
    el("caption", { class: "visually-hidden" }, "Sessions, worst first"),
    el("thead", null, el("tr", null, COLUMNS.map(([label, kind]) => el("th", { scope: "col", class: kind }, label)))),
    body);
}

function renderRow(node, session) {
  const status = format.status(session.status);
  const last = session.last_verdicts?.at(-1) ?? session.termination;
  const wasted = session.wasted ?? {};
  node.className = status;
  const cell = (label, kind, ...children) => el("td", { class: kind, "data-label": label }, children);
  setChildren(node,
    cell("Status", "status", el("span", { class: `state ${status}` }, status), session.snoozed_until ? el("span", { class: "muted" }, " snoozed") : null,
      session.disobeyed?.events ? el("div", { class: "disobeyed", title: `went on after termination: ${format.cost(session.disobeyed)}` }, `went on: ${format.counted(session.disobeyed.events, "event")}`) : null),
    el("th", { scope: "row", class: "session-id" },
      el("a", { href: `/session?id=${encodeURIComponent(session.session_id)}`, class: "mono" }, untrusted(session.session_id)),
      labels(session)),
    cell("Last verdict", "last-verdict", last ? [
      el("div", null, badge(last), " ", el("span", { class: "detector" }, last.detector), " ", el("time", { class: "muted", datetime: last.time, title: last.time }, format.moment(last.time))),
      el("div", { class: "pattern" }, untrusted(last.pattern || last.reason || "")),
    ] : el("span", { class: "none" }, "–")),
    cell("Trend", "trend", sparkline(session.trend_samples)),
    cell("Events", "number", format.count(session.events)),
    cell("Wasted", "number wasted", wasted.events ? [
      el("div", null, format.money(wasted.cost_usd) || `${format.short(wasted.events)} events`),
      wasted.tokens ? el("div", { class: "muted", title: format.cost(wasted) }, `${format.short(wasted.tokens)} tokens`) : null,
    ] : el("span", { class: "none" }, "–")),
    cell("Age", "number", el("span", { "data-age": "age" })),
    cell("Last seen", "number", el("span", { "data-age": "last-seen" })));
}

function labels(session) {
  const all = Object.entries(session.labels ?? {}).sort();
  if (session.profile && session.profile !== "default") all.push(["profile", session.profile]);
  if (session.replica) all.push(["replica", session.replica]);
  if (!all.length) return null;
  return el("div", { class: "labels" }, all.map(([key, value]) => el("span", { class: "label" }, untrusted(`${key}=${value}`))));
}

function pagerButtons(from, shown, total, page) {
  if (total <= PAGE && from === 0) return total ? el("span", { class: "muted" }, format.counted(total, "session")) : null;
  const at = from / PAGE + 1;
  const to = (number, label) => el("button", { type: "button", disabled: number < 1 || (number > at && from + shown >= total), on: { click: () => page.setParams({ page: number > 1 ? String(number) : "" }) } }, label);
  return [to(at - 1, "Previous"), el("span", { class: "muted" }, `${format.count(from + 1)}–${format.count(from + shown)} of ${format.counted(total, "session")}`), to(at + 1, "Next")];
}
