// The audit log, newest first, one page at a time.

import { call, errorMessage } from "./api.js";
import { el, setChildren } from "./dom.js";
import { verdictRow } from "./feed.js";
import * as filters from "./filters.js";
import * as format from "./format.js";

const PAGE = 50;

export function audit(params, page) {
  let current = params;
  /** The page tokens of the newer pages. */
  let newerPages = [];
  const setFilter = (name, value) => { newerPages = []; page.setParams({ [name]: value, page_token: "" }); };
  const controls = [
    filters.search("Session id", "session", params, setFilter),
    filters.search("Label, e.g. team=web", "label", params, setFilter),
    filters.detector(params, setFilter, page.detectors, [["operator", "operator actions"]]),
    filters.minAction(params, setFilter),
    group(
      labelled("from", filters.search("From", "from", params, setFilter, "datetime-local")),
      labelled("until", filters.search("Until", "until", params, setFilter, "datetime-local")),
      zone()),
  ];
  const body = el("ol", { class: "verdicts" });
  const note = el("p", { class: "note", role: "status" });
  const pager = el("nav", { class: "pager", "aria-label": "Pages" });
  const node = el("section", { class: "audit" },
    el("h1", { class: "visually-hidden" }, "Audit log"),
    el("form", { class: "filters", on: { submit: (event) => event.preventDefault() } }, controls),
    body, note, pager);

  let lastRequest = 0;
  async function refresh() {
    const request = ++lastRequest;
    setChildren(note, "Loading…");
    try {
      const response = await readPage(current, () => request === lastRequest);
      if (request !== lastRequest) return;
      setChildren(body, response.verdicts.map(verdictRow));
      setChildren(note, response.verdicts.length ? "" : "No matching entries.");
      setChildren(pager,
        el("button", { type: "button", disabled: !current.page_token, on: { click: () => page.setParams({ page_token: newerPages.pop() ?? "" }) } }, "Newer"),
        el("span", { class: "muted" }, timeRange(response.verdicts)),
        el("button", { type: "button", disabled: !response.next, on: { click: () => { newerPages.push(current.page_token ?? ""); page.setParams({ page_token: response.next }); } } }, "Older"));
    } catch (error) {
      if (request === lastRequest) setChildren(note, `Cannot read the audit log: ${errorMessage(error)}.`);
    }
  }
  refresh();
  return {
    node,
    title: "Audit",
    refresh() {},
    update(params) {
      current = params;
      for (const control of controls) control.set(params);
      refresh();
    },
    close() { lastRequest += 1; },
  };
}

function labelled(label, control) {
  const node = el("label", { class: "labelled" }, el("span", { class: "muted" }, label), control);
  node.set = control.set;
  return node;
}

/** In which zone the times are read and shown. */
function zone() {
  const node = el("span", { class: "muted zone" }, format.ZONE);
  node.set = () => {};
  return node;
}

/** Controls on one line. */
function group(...controls) {
  const node = el("span", { class: "filter-group" }, controls);
  node.set = (params) => controls.forEach((control) => control.set(params));
  return node;
}

/** Reads one full page. The service returns a short page with a page token if a long part of the log has no match. */
async function readPage(params, isCurrent) {
  const [key, value] = (params.label ?? "").split(/=(.*)/s);
  const request = {
    page_size: PAGE,
    page_token: params.page_token ?? "",
    session_id: params.session ?? "",
    labels: key ? { [key]: value ?? "" } : {},
    detector: params.detector ?? "",
    min_action: params.min_action ? `ACTION_${params.min_action.toUpperCase()}` : "ACTION_UNSPECIFIED",
    newest_first: true,
  };
  if (params.from) request.start_time = new Date(params.from).toISOString();
  if (params.until) request.end_time = new Date(params.until).toISOString();
  const verdicts = [];
  for (;;) {
    const response = await call("list_verdicts", request);
    verdicts.push(...(response.verdicts ?? []));
    request.page_token = response.next_page_token ?? "";
    request.page_size = PAGE - verdicts.length;
    if (!request.page_token || request.page_size <= 0 || !isCurrent()) return { verdicts, next: request.page_token };
  }
}

function timeRange(verdicts) {
  if (!verdicts.length) return "";
  return `${format.moment(verdicts.at(-1).time)} – ${format.moment(verdicts[0].time)}`;
}
