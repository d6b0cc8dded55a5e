// One session: its timeline, its verdicts, and the operator's actions.

import { buttons } from "./acts.js";
import { call, told } from "./api.js";
import { Nodes, arrange, calmly, el, fill, said } from "./dom.js";
import { laneLegend, list, score, trendLegend } from "./timeline.js";
import { badge, card } from "./verdict.js";
import * as words from "./words.js";

const REFRESH_MS = 2000;

export function session(params, page) {
  const id = params.id ?? "";
  const node = el("section", { class: "session" });
  const nodes = new Nodes();
  const notice = el("p", { class: "note", role: "status" });
  let shown = null;
  let kept = null;
  async function refresh() {
    try {
      const answer = await call("get_session", { session_id: id });
      fill(notice);
      draw(answer);
    } catch (error) {
      if (shown) fill(notice, `Not up to date: ${told(error)}.`);
      else fill(node, missing(id, error));
    }
  }

  function draw(answer) {
    const timeline = answer.timeline ?? [];
    if (timeline.length) kept = answer;
    // The service may evict the events of a closed session; the page keeps showing those it has seen.
    const earlier = isOver(answer.session) && !timeline.length ? kept : null;
    shown = earlier ? { ...earlier, session: { ...answer.session, trends: earlier.session.trends, last_verdicts: merged(earlier.session.last_verdicts, answer.session) } } : answer;
    const { session_id, status, labels, profile, snoozed_until } = answer.session;
    arrange(node, [
      nodes.get("head", { session_id, status, labels, profile, snoozed_until, me: page.me }, () => head(() => shown.session, page, done)),
      notice,
      facts(),
      columns(),
    ]);
  }

  /** Updates the ages between two refreshes. */
  function facts() {
    const { usage, wasted, events, turns, agents, create_time, last_event_time, termination } = shown.session;
    const ages = [words.age(create_time), words.age(last_event_time), words.age(termination?.time)];
    return nodes.get("facts", [usage, wasted, events, turns, agents, ages], () => figures(shown.session));
  }

  const parts = ["did", "of-it", "list"].map((name) => el("section", { class: name, "aria-labelledby": name }));
  const box = el("div", { class: "columns" }, parts);
  function columns() {
    const timeline = shown.timeline ?? [];
    const session = shown.session;
    const verdicts = merged(session.last_verdicts, { last_verdicts: session.termination ? [session.termination] : [] });
    const given = verdicts.map((verdict) => [verdict.verdict_id, verdict.event_index, verdict.action]);
    arrange(parts[0], [nodes.get("did", [timeline, session.trends, session.status, given], () => did(shown, verdicts))]);
    arrange(parts[1], said_of(verdicts, shown, nodes));
    arrange(parts[2], [nodes.get("list", [timeline, given], () => events(timeline, verdicts))]);
    return box;
  }

  function done(act, verdict) {
    page.toast(`${act.label}: done.`, verdict?.durable ? "Saved to disk." : "Kept in memory only.");
    refresh();
  }

  const soon = calmly(refresh, 100, 500);
  const own = (event) => event.detail.session_id === id && soon();
  page.live.addEventListener("verdict", own);
  const timers = [
    setInterval(() => document.visibilityState === "visible" && refresh(), REFRESH_MS),
    setInterval(() => shown && arrange(node, [node.children[0], notice, facts(), box]), 1000),
  ];
  refresh();
  return {
    node,
    title: id,
    refresh,
    update() {},
    close() {
      page.live.removeEventListener("verdict", own);
      timers.forEach(clearInterval);
    },
  };
}

function merged(verdicts, session) {
  const all = new Map([...(verdicts ?? []), ...(session.last_verdicts ?? [])].map((verdict) => [verdict.verdict_id, verdict]));
  return [...all.values()];
}

function missing(id, error) {
  return el("div", { class: "empty" },
    el("h1", null, "Session not found"),
    el("p", null, said(id, { class: "mono" }), " — ", told(error), "."),
    el("p", null, el("a", { href: `/audit?session=${encodeURIComponent(id)}` }, "Search the audit log"), " or ", el("a", { href: "/" }, "go to the fleet"), "."));
}

function head(current, page, done) {
  const session = current();
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
    el("div", { class: "acts" }, buttons(current, page, done)));
}

function figures(session) {
  const usage = session.usage ?? {};
  const wasted = session.wasted ?? {};
  const tokens = (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
  const share = session.events ? Math.round((100 * (wasted.events ?? 0)) / session.events) : 0;
  const fact = (name, value, more) => el("div", { class: "fact" }, el("dt", null, name), el("dd", null, el("b", null, value), more ? el("span", { class: "quiet" }, more) : null));
  const since = (name, time) => fact(name, `${words.age(time)} ago`, words.moment(time));
  // Of a session that was terminated before the service started, only the termination is known.
  const isKnown = session.events || !isOver(session);
  return el("dl", { class: "facts" },
    fact("Wasted in loops", words.money(wasted.cost_usd) || words.counted(wasted.events ?? 0, "event"),
      wasted.events ? `${words.cost(wasted.events, wasted.tokens)}, ${share}% of its events` : "nothing so far"),
    isKnown ? fact("Usage", words.money(usage.cost_usd) || words.counted(session.events ?? 0, "event"), `${words.cost(session.events, tokens)}${session.turns ? `, ${words.counted(session.turns, "turn")}` : ""}`) : null,
    isKnown ? since("Started", session.create_time) : null,
    isKnown ? since("Last seen", session.last_event_time) : null,
    session.termination ? since("Terminated", session.termination.time) : null,
    (session.agents ?? 0) > 1 ? fact("Agents", words.count(session.agents)) : null);
}

const isOver = (session) => ["terminated", "ended"].includes(words.status(session.status));

/** Why the timeline is empty. */
function nothing(session) {
  if (!isOver(session)) return session.events ? "No events: the session was reset." : "No events yet.";
  if (!(session.last_verdicts ?? []).length) return "The session ended without a verdict. Events are kept only for sessions that received a verdict.";
  return "No events: the session had none, they were evicted, or the service was restarted.";
}

function did({ timeline = [], session }, verdicts) {
  return el("div", null,
    el("h2", { id: "did" }, "Timeline"),
    timeline.length ? [
      isOver(session) ? el("p", { class: "note" }, "The state when the session was closed.") : null,
      score(timeline, verdicts),
      trendLegend(timeline, session),
      laneLegend(timeline),
    ] : el("p", { class: "note" }, nothing(session)));
}

function events(timeline, verdicts) {
  return el("div", { class: timeline.length ? null : "unseen" }, el("h2", { id: "list" }, "Events, newest first"), list(timeline, verdicts));
}

/** Newest first. Each verdict has its rule; only the last verdict of a loop has its correction. */
function said_of(verdicts, { explanations = [], session }, nodes) {
  const newest = verdicts.toReversed();
  const cards = newest.map((verdict, at) => {
    const explanation = explanations.find((known) => known.detector === verdict.detector);
    const later = newest.slice(0, at).some((other) => other.loop_id && other.loop_id === verdict.loop_id);
    return nodes.get(verdict.verdict_id, [verdict, explanation, later], () => (later ? earlier(verdict, explanation) : card(verdict, explanation)));
  });
  return [
    nodes.get("of-it", null, () => el("h2", { id: "of-it" }, "Verdicts")),
    ...cards,
    cards.length ? null : nodes.get("nothing", null, () => el("p", { class: "note" }, "No verdicts: no loop was detected.")),
    nodes.get("unlooked", session.abstentions, () => unlooked(session.abstentions ?? [])),
    nodes.get("log", null, () => el("p", { class: "quiet" }, el("a", { href: `/audit?session=${encodeURIComponent(session.session_id)}` }, "All verdicts in the audit log"))),
  ];
}

/** An earlier verdict of a loop that has a later one. */
function earlier(verdict, explanation) {
  return el("details", { class: "earlier" },
    el("summary", null, badge(verdict), " ", verdict.detector, el("span", { class: "quiet" }, ` at event ${verdict.event_index ?? 0}, ${words.moment(verdict.time)}; earlier verdict of the same loop`)),
    card(verdict, explanation, { correction: false }));
}

/** Detectors that skipped events for lack of a field. A skipped event is not one without a loop. */
function unlooked(abstentions) {
  return el("section", { class: abstentions.length ? "unlooked" : "unseen" },
    el("h2", null, "Skipped"),
    el("ul", null, abstentions.map(({ detector, field, events }) => el("li", null, el("b", null, detector), ` (${words.counted(events ?? 0, "event")}, field `, el("code", null, field), " missing)"))));
}
