// The audit log, newest first, one page at a time.

import { call, told } from "./api.js";
import { el, fill } from "./dom.js";
import { line } from "./feed.js";
import * as filters from "./filters.js";
import * as words from "./words.js";

const PAGE = 50;

export function audit(params, page) {
  let current = params;
  /** The page tokens of the newer pages. */
  let earlier = [];
  const change = (name, value) => { earlier = []; page.change({ [name]: value, at: "" }); };
  const controls = [
    filters.search("Session id", "session", params, change),
    filters.search("Label, e.g. team=web", "label", params, change),
    filters.detector(params, change, page.detectors, [["operator", "operator actions"]]),
    filters.leastAction(params, change),
    together(
      labelled("from", filters.search("From", "from", params, change, "datetime-local")),
      labelled("until", filters.search("Until", "until", params, change, "datetime-local"))),
  ];
  const body = el("ol", { class: "verdicts" });
  const note = el("p", { class: "note", role: "status" });
  const pager = el("nav", { class: "pager", "aria-label": "Pages" });
  const node = el("section", { class: "audit" },
    el("h1", { class: "unseen" }, "Audit log"),
    el("form", { class: "filters", on: { submit: (event) => event.preventDefault() } }, controls),
    body, note, pager);

  let asked = 0;
  async function refresh() {
    const turn = ++asked;
    fill(note, "Loading…");
    try {
      const answer = await read(current, () => turn === asked);
      if (turn !== asked) return;
      fill(body, answer.verdicts.map(line));
      fill(note, answer.verdicts.length ? "" : "No matching entries.");
      fill(pager,
        el("button", { type: "button", disabled: !current.at, on: { click: () => page.change({ at: earlier.pop() ?? "" }) } }, "Newer"),
        el("span", { class: "quiet" }, spanned(answer.verdicts)),
        el("button", { type: "button", disabled: !answer.next, on: { click: () => { earlier.push(current.at ?? ""); page.change({ at: answer.next }); } } }, "Older"));
    } catch (error) {
      if (turn === asked) fill(note, `Cannot read the audit log: ${told(error)}.`);
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
    close() { asked += 1; },
  };
}

function labelled(label, control) {
  const node = el("label", { class: "when" }, el("span", { class: "quiet" }, label), control);
  node.set = control.set;
  return node;
}

/** Controls on one line. */
function together(...controls) {
  const node = el("span", { class: "together" }, controls);
  node.set = (params) => controls.forEach((control) => control.set(params));
  return node;
}

/** Reads one full page. The service returns a short page with a page token if a long part of the log has no match. */
async function read(params, wanted) {
  const [key, value] = (params.label ?? "").split(/=(.*)/s);
  const request = {
    page_size: PAGE,
    page_token: params.at ?? "",
    session_id: params.session ?? "",
    labels: key ? { [key]: value ?? "" } : {},
    detector: params.detector ?? "",
    least_action: params.least ? `ACTION_${params.least.toUpperCase()}` : "ACTION_UNSPECIFIED",
    newest_first: true,
  };
  if (params.from) request.start_time = new Date(params.from).toISOString();
  if (params.until) request.end_time = new Date(params.until).toISOString();
  const verdicts = [];
  for (;;) {
    const answer = await call("list_verdicts", request);
    verdicts.push(...(answer.verdicts ?? []));
    request.page_token = answer.next_page_token ?? "";
    request.page_size = PAGE - verdicts.length;
    if (!request.page_token || request.page_size <= 0 || !wanted()) return { verdicts, next: request.page_token };
  }
}

function spanned(verdicts) {
  if (!verdicts.length) return "";
  return `${words.moment(verdicts.at(-1).time)} – ${words.moment(verdicts[0].time)}`;
}
