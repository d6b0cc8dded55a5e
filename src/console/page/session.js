// One session: its timeline, its verdicts, and the operator's actions.

import { buttons } from "./actions.js";
import { call, errorMessage } from "./api.js";
import { NodeCache, debounce, el, setChildren, untrusted, updateChildren } from "./dom.js";
import * as format from "./format.js";
import { laneLegend, list, timelinePlot, trendLegend } from "./timeline.js";
import { badge, card } from "./verdict.js";

const REFRESH_MS = 2000;

export function session(params, page) {
  const id = params.id ?? "";
  const node = el("section", { class: "session" });
  const nodes = new NodeCache();
  const notice = el("p", { class: "note", role: "status" });
  let shown = null;
  let lastTimeline = null;
  /** The ratings of its verdicts, which only the audit log has. */
  const ratings = new Map();
  async function readRatings() {
    try {
      const response = await call("list_verdicts", { session_id: id, rated_only: true, newest_first: true, page_size: 100 });
      for (const verdict of response.verdicts ?? []) ratings.set(verdict.verdict_id, verdict.feedback);
      if (shown && ratings.size) render(shown);
    } catch { /* The cards show no rating. */ }
  }
  const rating = (verdict) => ({
    isAllowed: page.isAllowed("rate"),
    feedback: ratings.get(verdict.verdict_id),
    onRated: (rated) => rated && ratings.set(rated.verdict_id, rated.feedback),
  });
  async function refresh() {
    try {
      const response = await call("get_session", { session_id: id });
      setChildren(notice);
      render(response);
    } catch (error) {
      if (shown) setChildren(notice, `Not up to date: ${errorMessage(error)}.`);
      else setChildren(node, notFound(id, error));
    }
  }

  function render(response) {
    const timeline = response.timeline ?? [];
    if (timeline.length) lastTimeline = response;
    // The service may evict the events of a closed session; the page keeps showing those it has seen.
    const earlier = isClosed(response.session) && !timeline.length ? lastTimeline : null;
    shown = earlier ? { ...earlier, session: { ...response.session, trends: earlier.session.trends, last_verdicts: merged(earlier.session.last_verdicts, response.session) } } : response;
    const { session_id, status, labels, profile, snoozed_until, standing } = response.session;
    updateChildren(node, [
      nodes.get("head", { session_id, status, labels, profile, snoozed_until, standing, me: page.me }, () => head(() => shown.session, page, done)),
      notice,
      facts(),
      columns(),
    ]);
  }

  /** Updates the ages between two refreshes. */
  function facts() {
    const { usage, wasted, events, turns, agents, create_time, last_event_time, termination, disobeyed } = shown.session;
    const ages = [format.age(create_time), format.age(last_event_time), format.age(termination?.time)];
    return nodes.get("facts", [usage, wasted, events, turns, agents, disobeyed, ages], () => renderFacts(shown.session));
  }

  const parts = ["timeline", "verdict-cards", "event-list"].map((name) => el("section", { class: name, "aria-labelledby": name }));
  const box = el("div", { class: "columns" }, parts);
  function columns() {
    const timeline = shown.timeline ?? [];
    const session = shown.session;
    const verdicts = merged(session.last_verdicts, { last_verdicts: session.termination ? [session.termination] : [] });
    const verdictKeys = verdicts.map((verdict) => [verdict.verdict_id, verdict.event_index, verdict.action]);
    updateChildren(parts[0], [nodes.get("timeline", [timeline, session.trends, session.status, verdictKeys], () => timelineSection(shown, verdicts))]);
    updateChildren(parts[1], verdictCards(verdicts, shown, nodes, rating));
    updateChildren(parts[2], [nodes.get("event-list", [timeline, verdictKeys], () => eventSection(timeline, verdicts))]);
    return box;
  }

  function done(action, verdict, note) {
    const saved = verdict?.durable ? "Saved to disk." : "Kept in memory only.";
    page.toast(`${action.label}: done.`, note ? `${note} ${saved}` : saved);
    refresh();
  }

  const scheduleRefresh = debounce(refresh, 100, 500);
  const onVerdict = (event) => event.detail.session_id === id && scheduleRefresh();
  page.live.addEventListener("verdict", onVerdict);
  const timers = [
    setInterval(() => document.visibilityState === "visible" && refresh(), REFRESH_MS),
    setInterval(() => shown && updateChildren(node, [node.children[0], notice, facts(), box]), 1000),
  ];
  refresh();
  readRatings();
  return {
    node,
    title: id,
    refresh,
    update() {},
    close() {
      page.live.removeEventListener("verdict", onVerdict);
      timers.forEach(clearInterval);
    },
  };
}

function merged(verdicts, session) {
  const all = new Map([...(verdicts ?? []), ...(session.last_verdicts ?? [])].map((verdict) => [verdict.verdict_id, verdict]));
  return [...all.values()];
}

function notFound(id, error) {
  return el("div", { class: "empty" },
    el("h1", null, "Session not found"),
    el("p", null, untrusted(id, { class: "mono" }), " — ", errorMessage(error), "."),
    el("p", null, el("a", { href: `/audit?session=${encodeURIComponent(id)}` }, "Search the audit log"), " or ", el("a", { href: "/" }, "go to the fleet"), "."));
}

function head(current, page, done) {
  const session = current();
  const status = format.status(session.status);
  const labels = Object.entries(session.labels ?? {}).sort();
  return el("header", { class: "head" },
    el("div", null,
      el("p", { class: "crumb" }, el("a", { href: "/" }, "Fleet")),
      el("h1", { class: "mono" }, untrusted(session.session_id)),
      el("p", { class: "labels" },
        el("span", { class: `state ${status}` }, status),
        standing(session.standing),
        session.snoozed_until ? el("span", { class: "label" }, `snoozed until ${format.moment(session.snoozed_until)}`) : null,
        labels.map(([key, value]) => el("span", { class: "label" }, untrusted(`${key}=${value}`))),
        el("span", { class: "label" }, "profile ", untrusted(session.profile ?? "default"))),
      resume(session, page.me?.resume_commands ?? {})),
    el("div", { class: "operator-actions" }, buttons(current, page, done)));
}

/** The command that opens the session in its agent program again. */
function resume(session, commands) {
  const { agent, source } = session.labels ?? {};
  if (!source || !Object.hasOwn(commands, agent)) return null;
  const id = session.session_id;
  // The id is whatever was sent, and the command is there to be pasted into a shell.
  const word = /^[\w.:@+/-]+$/.test(id) ? id : `'${id.replaceAll("'", `'\\''`)}'`;
  return el("p", { class: "muted" }, "Open again: ", el("code", null, untrusted(commands[agent].replace("{}", () => word))));
}

/** What holds now, also when nothing is new. */
function standing(standing) {
  const action = format.action(standing?.action);
  if (!action) return null;
  const calls = standing.blocked?.length ? `, ${format.counted(standing.blocked.length, "call")} refused` : "";
  return el("span", { class: "label standing" }, "in force: ", badge(standing), ` since ${format.moment(standing.since)}${calls}`);
}

function renderFacts(session) {
  const usage = session.usage ?? {};
  const wasted = session.wasted ?? {};
  const share = session.events ? Math.round((100 * (wasted.events ?? 0)) / session.events) : 0;
  const fact = (name, value, detail) => el("div", { class: "fact" }, el("dt", null, name), el("dd", null, el("b", null, value), detail ? el("span", { class: "muted" }, detail) : null));
  const since = (name, time) => fact(name, `${format.age(time)} ago`, format.moment(time));
  // If a session was terminated before the service started, only the termination is known.
  const isKnown = session.events || !isClosed(session);
  return el("dl", { class: "facts" },
    fact("Wasted in loops", format.money(wasted.cost_usd) || format.counted(wasted.events ?? 0, "event"),
      wasted.events ? `${format.cost({ ...wasted, cost_usd: 0 })}, ${share}% of its events` : "nothing so far"),
    isKnown ? fact("Usage", format.money(usage.cost_usd) || format.counted(session.events ?? 0, "event"), `${format.cost({ ...format.used(session), cost_usd: 0 })}${session.turns ? `, ${format.counted(session.turns, "turn")}` : ""}`) : null,
    isKnown ? since("Started", session.create_time) : null,
    isKnown ? since("Last seen", session.last_event_time) : null,
    session.termination ? since("Terminated", session.termination.time) : null,
    disobeyed(session.disobeyed),
    (session.agents ?? 0) > 1 ? fact("Agents", format.count(session.agents)) : null);
}

/** What it sent although it was terminated. */
function disobeyed(after) {
  if (!after?.events) return null;
  return el("div", { class: "fact disobeyed" }, el("dt", null, "After termination"),
    el("dd", null, el("b", null, format.money(after.cost_usd) || format.counted(after.events, "event")),
      el("span", null, `it went on: ${format.cost({ ...after, cost_usd: 0 })}`)));
}

const isClosed = (session) => ["terminated", "ended"].includes(format.status(session.status));

/** Why the timeline is empty. */
function emptyTimelineText(session) {
  if (!isClosed(session)) return session.events ? "No events: the session was reset." : "No events yet.";
  if (!(session.last_verdicts ?? []).length) return "The session ended without a verdict. Events are kept only for sessions that received a verdict.";
  return "No events: the session had none, they were evicted, or the service was restarted.";
}

function timelineSection({ timeline = [], session }, verdicts) {
  return el("div", null,
    el("h2", { id: "timeline" }, "Timeline"),
    timeline.length ? [
      isClosed(session) ? el("p", { class: "note" }, "The state when the session was closed.") : null,
      timelinePlot(timeline, verdicts),
      trendLegend(timeline, session),
      laneLegend(timeline),
    ] : el("p", { class: "note" }, emptyTimelineText(session)));
}

function eventSection(timeline, verdicts) {
  return el("div", { class: timeline.length ? null : "visually-hidden" }, el("h2", { id: "event-list" }, "Events, newest first"), list(timeline, verdicts));
}

/** Newest first. Each verdict has its rule; only the last verdict of a loop has its correction. */
function verdictCards(verdicts, { explanations = [], session }, nodes, rating) {
  const newest = verdicts.toReversed();
  const cards = newest.map((verdict, at) => {
    const explanation = explanations.find((known) => known.detector === verdict.detector);
    const hasLater = newest.slice(0, at).some((other) => other.loop_id && other.loop_id === verdict.loop_id);
    const { isAllowed, feedback } = rating(verdict);
    return nodes.get(verdict.verdict_id, [verdict, explanation, hasLater, isAllowed, feedback], () =>
      (hasLater ? earlierVerdict(verdict, explanation, rating(verdict)) : card(verdict, explanation, { rating: rating(verdict) })));
  });
  return [
    nodes.get("verdict-cards", null, () => el("h2", { id: "verdict-cards" }, "Verdicts")),
    ...cards,
    cards.length ? null : nodes.get("nothing", null, () => el("p", { class: "note" }, "No verdicts: no loop was detected.")),
    nodes.get("skipped", session.abstentions, () => skipped(session.abstentions ?? [])),
    nodes.get("log", null, () => el("p", { class: "muted" }, el("a", { href: `/audit?session=${encodeURIComponent(session.session_id)}` }, "All verdicts in the audit log"))),
  ];
}

/** An earlier verdict of a loop that has a later one. */
function earlierVerdict(verdict, explanation, rating) {
  return el("details", { class: "earlier-verdict" },
    el("summary", null, badge(verdict), " ", verdict.detector, el("span", { class: "muted" }, ` at event ${verdict.event_index ?? 0}, ${format.moment(verdict.time)}; earlier verdict of the same loop`)),
    card(verdict, explanation, { correction: false, rating }));
}

/** Detectors that skipped events because a field is missing. That does not mean "no loop". */
function skipped(abstentions) {
  return el("section", { class: abstentions.length ? "skipped" : "visually-hidden" },
    el("h2", null, "Skipped"),
    el("ul", null, abstentions.map(({ detector, field, events }) => el("li", null, el("b", null, detector), ` (${format.counted(events ?? 0, "event")}, field `, el("code", null, field), " missing)"))));
}
