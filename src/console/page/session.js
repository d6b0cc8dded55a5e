// One session: what it did, what was said of it, what can be done.

import { buttons } from "./acts.js";
import { call, told } from "./api.js";
import { calmly, el, fill, said } from "./dom.js";
import { laneLegend, list, score, trendLegend } from "./timeline.js";
import { badge, card } from "./verdict.js";
import * as words from "./words.js";

const REFRESH_MS = 2000;

export function session(params, page) {
  const id = params.id ?? "";
  const node = el("section", { class: "session" });
  let before = "";
  let kept = null;
  let notice = null;
  async function refresh() {
    try {
      const answer = await call("get_session", { session_id: id });
      const text = JSON.stringify(answer);
      if (text === before) return;
      before = text;
      // When it is over the service keeps its end only; what was seen here stays.
      const over = ["terminated", "ended"].includes(words.status(answer.session.status));
      if ((answer.timeline ?? []).length) kept = answer;
      draw(answer, over && !(answer.timeline ?? []).length ? kept : null);
    } catch (error) {
      if (!before) fill(node, missing(id, error));
      else notice?.replaceChildren(`Not up to date: ${told(error)}.`);
    }
  }

  function draw(answer, earlier) {
    // What a person reads or has selected must not vanish below their hand.
    const shown = earlier ? { ...earlier, session: { ...answer.session, trends: earlier.session.trends, last_verdicts: merged(earlier.session.last_verdicts, answer.session) } } : answer;
    notice = el("p", { class: "note", role: "status" });
    const focused = document.activeElement?.getAttribute?.("data-act");
    fill(node, head(answer.session, page, done), notice, facts(answer.session), parts(shown, Boolean(earlier)));
    if (focused) node.querySelector(`[data-act="${focused}"]`)?.focus();
  }

  function done(act, verdict) {
    page.toast(`${act.label}: done`, verdict?.durable ? "It is on disk." : "It is kept in memory only.");
    before = "";
    refresh();
  }

  const soon = calmly(refresh, 100, 500);
  const own = (event) => event.detail.session_id === id && soon();
  page.live.addEventListener("verdict", own);
  const timer = setInterval(() => document.visibilityState === "visible" && refresh(), REFRESH_MS);
  refresh();
  return {
    node,
    title: id,
    refresh,
    update() {},
    close() {
      page.live.removeEventListener("verdict", own);
      clearInterval(timer);
    },
  };
}

function merged(verdicts, session) {
  const all = new Map([...(verdicts ?? []), ...(session.last_verdicts ?? [])].map((verdict) => [verdict.verdict_id, verdict]));
  return [...all.values()];
}

function missing(id, error) {
  return el("div", { class: "empty" },
    el("h1", null, "No such session"),
    el("p", null, said(id, { class: "mono" }), " — ", told(error), "."),
    el("p", null, el("a", { href: `/audit?session=${encodeURIComponent(id)}` }, "Look for it in the audit log"), " or ", el("a", { href: "/" }, "go to the fleet"), "."));
}

function head(session, page, done) {
  const status = words.status(session.status);
  const labels = Object.entries(session.labels ?? {}).sort();
  return el("header", { class: "head" },
    el("div", null,
      el("p", { class: "crumb" }, el("a", { href: "/" }, "Fleet")),
      el("h1", { class: "mono" }, said(session.session_id)),
      el("p", { class: "labels" },
        el("span", { class: `state ${status}` }, status),
        session.snoozed_until ? el("span", { class: "label" }, `snoozed until ${words.moment(session.snoozed_until)}`) : null,
        labels.map(([key, value]) => el("span", { class: "label" }, said(`${key}=${value}`))),
        el("span", { class: "label" }, "profile ", said(session.profile ?? "default")))),
    el("div", { class: "acts" }, buttons(session, page, done)));
}

function facts(session) {
  const usage = session.usage ?? {};
  const wasted = session.wasted ?? {};
  const tokens = (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
  const share = session.events ? Math.round((100 * (wasted.events ?? 0)) / session.events) : 0;
  const fact = (name, value, more) => el("div", { class: "fact" }, el("dt", null, name), el("dd", null, el("b", null, value), more ? el("span", { class: "quiet" }, more) : null));
  return el("dl", { class: "facts" },
    fact("Wasted in loops", words.money(wasted.cost_usd) || words.counted(wasted.events ?? 0, "event"),
      wasted.events ? `${words.cost(wasted.events, wasted.tokens)}, ${share}% of its events` : "nothing so far"),
    fact("So far", words.money(usage.cost_usd) || words.counted(session.events ?? 0, "event"), `${words.cost(session.events, tokens)}${session.turns ? `, ${words.counted(session.turns, "turn")}` : ""}`),
    fact("Began", words.age(session.create_time) && `${words.age(session.create_time)} ago`, words.moment(session.create_time)),
    fact("Last heard", words.age(session.last_event_time) && `${words.age(session.last_event_time)} ago`, words.moment(session.last_event_time)),
    (session.agents ?? 0) > 1 ? fact("Agents", words.count(session.agents)) : null);
}

function parts(answer, isKept) {
  const timeline = answer.timeline ?? [];
  const session = answer.session;
  const all = new Map([...(session.last_verdicts ?? []), ...(session.termination ? [session.termination] : [])].map((verdict) => [verdict.verdict_id, verdict]));
  const verdicts = [...all.values()];
  return el("div", { class: "columns" },
    el("section", { "aria-labelledby": "did" },
      el("h2", { id: "did" }, "What it did"),
      timeline.length ? [
        isKept ? el("p", { class: "note" }, "As it stood before it was over; the service keeps its end only.") : null,
        score(timeline, verdicts),
        trendLegend(timeline, session),
        laneLegend(timeline),
        el("h2", null, "Events, newest first"),
        list(timeline, verdicts),
      ] : el("p", { class: "note" }, session.events ? "Its events are kept no longer: the session is over." : "No events yet.")),
    el("section", { "aria-labelledby": "said-of" },
      el("h2", { id: "said-of" }, "What was said of it"),
      verdicts.length ? told_of(verdicts, answer.explanations ?? []) : el("p", { class: "note" }, "No verdict: nothing looked like a loop."),
      unlooked(session.abstentions ?? []),
      el("p", { class: "quiet" }, el("a", { href: `/audit?session=${encodeURIComponent(session.session_id)}` }, "All of it in the audit log"))));
}

/** The newest first. A rule is told with each, a correction only where it still counts. */
function told_of(verdicts, explanations) {
  const newest = verdicts.toReversed();
  return newest.map((verdict, at) => {
    const explanation = explanations.find((known) => known.detector === verdict.detector);
    const later = newest.slice(0, at).some((other) => other.loop_id && other.loop_id === verdict.loop_id);
    if (!later) return card(verdict, explanation);
    return el("details", { class: "earlier" },
      el("summary", null, badge(verdict), " ", verdict.detector, el("span", { class: "quiet" }, ` at event ${verdict.event_index ?? 0}, ${words.moment(verdict.time)}; the same loop, earlier`)),
      card(verdict, explanation, { correction: false }));
  });
}

/** "Not looking" is not "no loop". */
function unlooked(abstentions) {
  if (!abstentions.length) return null;
  return el("section", { class: "unlooked" },
    el("h2", null, "Not looked at"),
    el("ul", null, abstentions.map(({ detector, field, events }) => el("li", null, el("b", null, detector), ` passed over ${words.counted(events ?? 0, "event")}: `, el("code", null, field), " was not sent"))));
}
