// One verdict, to which notifications link. Opening it changes nothing.

import { call, errorMessage } from "./api.js";
import { el, setChildren, untrusted } from "./dom.js";
import { card } from "./verdict.js";

export function verdictPage(params, page) {
  const id = params.id ?? "";
  const node = el("section", { class: "verdict-page" }, el("p", { class: "note" }, "Loading…"));
  let isClosed = false;
  async function refresh() {
    try {
      const { verdict } = await call("verdict", { verdict_id: id });
      if (!isClosed) setChildren(node, details(verdict, page));
    } catch (error) {
      if (!isClosed) setChildren(node, notFound(id, error));
    }
  }
  refresh();
  return { node, title: "Verdict", refresh, update() {}, close() { isClosed = true; } };
}

function details(verdict, page) {
  const session = encodeURIComponent(verdict.session_id);
  return [
    el("header", { class: "head" }, el("div", null,
      el("p", { class: "crumb" }, el("a", { href: "/" }, "Fleet"), " › ", el("a", { href: `/session?id=${session}`, class: "mono" }, untrusted(verdict.session_id))),
      el("h1", null, "Verdict"),
      el("p", { class: "labels" }, el("span", { class: "label mono" }, verdict.verdict_id)))),
    el("h2", { class: "visually-hidden" }, "Details"),
    card(verdict, null, { rating: { isAllowed: page.isAllowed("rate") } }),
    el("p", { class: "muted" }, el("a", { href: `/session?id=${session}` }, "Timeline and other verdicts of the session"), " · ", el("a", { href: `/audit?session=${session}` }, "Its audit log")),
  ];
}

function notFound(id, error) {
  return el("div", { class: "empty" },
    el("h1", null, "Verdict not found"),
    el("p", null, untrusted(id, { class: "mono" }), " — ", errorMessage(error), "."),
    el("p", null, el("a", { href: "/audit" }, "Search the audit log"), " or ", el("a", { href: "/" }, "go to the fleet"), "."));
}
