// The policy in force, its verdicts, and its shadow verdicts.

import { call, errorMessage } from "./api.js";
import { NodeCache, el, setChildren } from "./dom.js";
import * as filters from "./filters.js";
import * as format from "./format.js";
import { precisionTable, readPrecision } from "./precision.js";

const HOURS = [["", "last 12 hours"], ["4", "last 4 hours"], ["1", "last hour"]];

export function policy(params, page) {
  const hours = filters.choice("Period", "hours", HOURS, params, (name, value) => page.setParams({ [name]: value }));
  const tabs = el("div", { class: "tabs", role: "group", "aria-label": "Profile" });
  const body = el("div", null, el("p", { class: "note" }, "Loading…"));
  const node = el("section", { class: "policy" },
    el("h1", { class: "visually-hidden" }, "Policy"),
    el("div", { class: "bar" }, tabs, hours),
    body);
  const precision = el("div", { class: "precision-box" });
  let current = params;
  let report = null;
  let lastRequest = 0;
  // Reused rows stay unfolded.
  const rows = new NodeCache();
  async function refresh() {
    const request = ++lastRequest;
    try {
      const response = await call("policy", current.hours ? { hours: Number(current.hours) } : {});
      if (request !== lastRequest) return;
      const isSame = JSON.stringify(response) === JSON.stringify(report);
      report = response;
      if (!isSame) render();
      const ratings = await readPrecision();
      if (request === lastRequest) setChildren(precision, precisionTable(ratings));
    } catch (error) {
      if (request === lastRequest) setChildren(body, el("p", { class: "note" }, `Cannot load the policy: ${errorMessage(error)}.`));
    }
  }

  function render() {
    const chosen = report.profiles.find((profile) => profile.name === current.profile);
    const tab = (name, label, isChosen) =>
      el("button", { type: "button", "aria-pressed": String(isChosen), on: { click: () => page.setParams({ profile: name }) } }, label);
    setChildren(tabs, tab("", "All profiles", !chosen), report.profiles.map((profile) => tab(profile.name, profile.name, profile === chosen)));
    setChildren(body, chosen ? profileDetails(chosen, rows) : [overview(report.profiles), el("h2", null, "Precision by week, from ratings"), precision]);
  }

  const timer = setInterval(() => document.visibilityState === "visible" && refresh(), 10_000);
  refresh();
  return {
    node,
    title: "Policy",
    refresh,
    update(params) {
      const isOther = (params.hours ?? "") !== (current.hours ?? "");
      current = params;
      hours.set(params);
      if (isOther) refresh();
      else if (report) render();
    },
    close() { lastRequest += 1; clearInterval(timer); },
  };
}

const SHADOW_HELP = "“Shadow” counts verdicts in shadow mode and of snoozed sessions: reported, not acted on.";

/** The verdicts by profile and by detector. */
function overview(profiles) {
  const names = profiles[0].detectors.map((detector) => detector.name);
  const found = (name, kind) => profiles
    .map((profile) => [profile.name, profile.detectors.find((detector) => detector.name === name)?.[kind] ?? {}])
    .filter(([, counts]) => sum(counts));
  const active = names.filter((name) => found(name, "verdicts").length || found(name, "shadow_verdicts").length);
  const inactive = names.length - active.length;
  return [
    el("p", { class: "muted about" }, SHADOW_HELP),
    table("Profiles", ["Profile", "Mode", "Verdicts", "Shadow"], profiles.map((profile) => el("tr", null,
      el("th", { scope: "row" }, el("a", { href: `/policy?profile=${encodeURIComponent(profile.name)}` }, profile.name)),
      cell("Mode", "kind", mode(profile)),
      cell("Verdicts", "verdict-counts", actionCounts(addCounts(profile.detectors.map((detector) => detector.verdicts)))),
      cell("Shadow", "verdict-counts", actionCounts(addCounts(profile.detectors.map((detector) => detector.shadow_verdicts))))))),
    el("h2", null, "By detector"),
    active.length ? table("Detectors", ["Detector", "Verdicts", "Shadow"], active.map((name) => el("tr", null,
      el("th", { scope: "row", class: "mono" }, auditLink(name)),
      cell("Verdicts", "verdict-counts", countsByProfile(found(name, "verdicts"))),
      cell("Shadow", "verdict-counts", countsByProfile(found(name, "shadow_verdicts")))))) : null,
    el("p", { class: "note" }, active.length ? `${format.counted(inactive, "other detector")} without a verdict.` : "No verdicts from any detector."),
  ];
}

/** One profile: its settings, and the verdicts of its detectors. */
function profileDetails(profile, rows) {
  return [
    el("p", { class: "about" },
      mode(profile),
      ` Trend: alpha ${profile.alpha}, chronic above ${profile.saturation}; cooldown after an alert ${format.counted(profile.cooldown, "event")}. `,
      el("span", { class: "muted" }, SHADOW_HELP)),
    table(`Detectors of the profile ${profile.name}`, ["Detector", "Fires at", "Actions", "Terminates at", "Verdicts", "Shadow"],
      profile.detectors.map((detector) => rows.get(`${profile.name} ${detector.name}`, detector, () => row(detector)))),
  ];
}

function table(caption, columns, rows) {
  return el("div", { class: "scroll" }, el("table", { class: "detectors" },
    el("caption", { class: "visually-hidden" }, caption),
    el("thead", null, el("tr", null, columns.map((label) => el("th", { scope: "col" }, label)))),
    el("tbody", null, rows)));
}

const cell = (label, kind, ...children) => el("td", { "data-label": label, class: kind }, children);

function mode(profile) {
  return el("span", { class: `mode ${profile.shadow ? "shadow" : "enforce"}` }, profile.shadow ? "shadow mode" : "enforced");
}

/** A link to the detector's verdicts in the audit log. */
const auditLink = (detector) => el("a", { href: `/audit?detector=${encodeURIComponent(detector)}` }, detector);

function row(detector) {
  const actions = [...new Set([detector.soft, detector.hard, detector.final_action])];
  return el("tr", { class: detector.enabled ? null : "off" },
    el("th", { scope: "row", class: "mono" }, auditLink(detector.name), detector.enabled ? null : el("span", { class: "muted" }, " off")),
    cell("Fires at", "rule",
      el("details", null,
        el("summary", null, detector.threshold),
        el("p", null, el("b", null, "Rule: "), detector.rule),
        el("p", null, el("b", null, "Would not fire if: "), detector.would_not_fire_if),
        el("p", { class: "muted" }, `trend half-life ${detector.trend_half_life_events} events`))),
    cell("Actions", "ladder", actions.map((action) => el("span", { class: `badge action-${action}` }, action))),
    cell("Terminates at", "number", detector.terminate_after ? format.counted(detector.terminate_after, "event") : el("span", { class: "none" }, "–")),
    cell("Verdicts", "verdict-counts", actionCounts(detector.verdicts)),
    cell("Shadow", "verdict-counts", actionCounts(detector.shadow_verdicts)));
}

const sum = (counts) => Object.values(counts).reduce((all, times) => all + times, 0);

function addCounts(many) {
  const all = {};
  for (const counts of many) for (const [action, times] of Object.entries(counts)) all[action] = (all[action] ?? 0) + times;
  return all;
}

/** Counts by profile. */
function countsByProfile(found) {
  if (!found.length) return actionCounts({});
  return found.map(([profile, counts]) => el("div", null, el("span", { class: "label" }, profile), " ", actionCounts(counts)));
}

function actionCounts(counts) {
  const all = format.ACTIONS.filter((action) => counts[action]);
  if (!all.length) return el("span", { class: "none" }, "–");
  return all.flatMap((action) => [el("span", { class: `action-count action-${action}` }, el("b", null, format.count(counts[action])), ` ${action}`), " "]);
}
