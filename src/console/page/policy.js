// The policy in force, its verdicts, and its shadow verdicts.

import { call, told } from "./api.js";
import { Nodes, el, fill } from "./dom.js";
import * as filters from "./filters.js";
import * as words from "./words.js";

const HOURS = [["", "last 12 hours"], ["4", "last 4 hours"], ["1", "last hour"]];

export function policy(params, page) {
  const hours = filters.choice("Period", "hours", HOURS, params, (name, value) => page.change({ [name]: value }));
  const tabs = el("div", { class: "tabs", role: "group", "aria-label": "Profile" });
  const body = el("div", null, el("p", { class: "note" }, "Loading…"));
  const node = el("section", { class: "policy" },
    el("h1", { class: "unseen" }, "Policy"),
    el("div", { class: "bar" }, tabs, hours),
    body);
  let current = params;
  let known = null;
  let asked = 0;
  // Reused rows stay unfolded.
  const rows = new Nodes();
  async function refresh() {
    const turn = ++asked;
    try {
      const answer = await call("policy", current.hours ? { hours: Number(current.hours) } : {});
      if (turn !== asked) return;
      const isSame = JSON.stringify(answer) === JSON.stringify(known);
      known = answer;
      if (!isSame) draw();
    } catch (error) {
      if (turn === asked) fill(body, el("p", { class: "note" }, `Cannot load the policy: ${told(error)}.`));
    }
  }

  function draw() {
    const chosen = known.profiles.find((profile) => profile.name === current.profile);
    const tab = (name, label, isChosen) =>
      el("button", { type: "button", "aria-pressed": String(isChosen), on: { click: () => page.change({ profile: name }) } }, label);
    fill(tabs, tab("", "All profiles", !chosen), known.profiles.map((profile) => tab(profile.name, profile.name, profile === chosen)));
    fill(body, chosen ? inForce(chosen, rows) : overview(known.profiles));
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
      else if (known) draw();
    },
    close() { asked += 1; clearInterval(timer); },
  };
}

const WOULD = "“Shadow” counts verdicts in shadow mode and of snoozed sessions: reported, not acted on.";

/** The verdicts by profile and by detector. */
function overview(profiles) {
  const names = profiles[0].detectors.map((detector) => detector.name);
  const found = (name, kind) => profiles
    .map((profile) => [profile.name, profile.detectors.find((detector) => detector.name === name)?.[kind] ?? {}])
    .filter(([, counts]) => sum(counts));
  const loud = names.filter((name) => found(name, "did").length || found(name, "would").length);
  const quiet = names.length - loud.length;
  return [
    el("p", { class: "quiet about" }, WOULD),
    table("Profiles", ["Profile", "Mode", "Verdicts", "Shadow"], profiles.map((profile) => el("tr", null,
      el("th", { scope: "row" }, el("a", { href: `/policy?profile=${encodeURIComponent(profile.name)}` }, profile.name)),
      cell("Mode", "kind", mode(profile)),
      cell("Verdicts", "tallied", times(added(profile.detectors.map((detector) => detector.did)))),
      cell("Shadow", "tallied", times(added(profile.detectors.map((detector) => detector.would))))))),
    el("h2", null, "By detector"),
    loud.length ? table("Detectors", ["Detector", "Verdicts", "Shadow"], loud.map((name) => el("tr", null,
      el("th", { scope: "row", class: "mono" }, logged(name)),
      cell("Verdicts", "tallied", apart(found(name, "did"))),
      cell("Shadow", "tallied", apart(found(name, "would")))))) : null,
    el("p", { class: "note" }, loud.length ? `${words.counted(quiet, "other detector")} without a verdict.` : "No verdicts from any detector."),
  ];
}

/** One profile: its settings, and the verdicts of its detectors. */
function inForce(profile, rows) {
  return [
    el("p", { class: "about" },
      mode(profile),
      ` Trend: alpha ${profile.alpha}, chronic above ${profile.saturation}; cooldown after an alert ${words.counted(profile.cooldown, "event")}. `,
      el("span", { class: "quiet" }, WOULD)),
    table(`Detectors of the profile ${profile.name}`, ["Detector", "Fires at", "Actions", "Terminates at", "Verdicts", "Shadow"],
      profile.detectors.map((detector) => rows.get(`${profile.name} ${detector.name}`, detector, () => row(detector)))),
  ];
}

function table(caption, columns, rows) {
  return el("div", { class: "scroll" }, el("table", { class: "detectors" },
    el("caption", { class: "unseen" }, caption),
    el("thead", null, el("tr", null, columns.map((label) => el("th", { scope: "col" }, label)))),
    el("tbody", null, rows)));
}

const cell = (label, kind, ...children) => el("td", { "data-label": label, class: kind }, children);

function mode(profile) {
  return el("span", { class: `mode ${profile.shadow ? "shadow" : "enforce"}` }, profile.shadow ? "shadow mode" : "enforced");
}

/** A link to the detector's verdicts in the audit log. */
const logged = (detector) => el("a", { href: `/audit?detector=${encodeURIComponent(detector)}` }, detector);

function row(detector) {
  const rungs = [...new Set([detector.soft, detector.hard, detector.final_action])];
  return el("tr", { class: detector.enabled ? null : "off" },
    el("th", { scope: "row", class: "mono" }, logged(detector.name), detector.enabled ? null : el("span", { class: "quiet" }, " off")),
    cell("Fires at", "rule",
      el("details", null,
        el("summary", null, detector.threshold),
        el("p", null, el("b", null, "Rule: "), detector.rule),
        el("p", null, el("b", null, "Does not fire if: "), detector.quiet),
        el("p", { class: "quiet" }, `trend half-life ${detector.trend_half_life_events} events`))),
    cell("Actions", "rungs", rungs.map((rung) => el("span", { class: `badge act-${rung}` }, rung))),
    cell("Terminates at", "number", detector.terminate_after ? words.counted(detector.terminate_after, "event") : el("span", { class: "none" }, "–")),
    cell("Verdicts", "tallied", times(detector.did)),
    cell("Shadow", "tallied", times(detector.would)));
}

const sum = (counts) => Object.values(counts).reduce((all, times) => all + times, 0);

function added(many) {
  const all = {};
  for (const counts of many) for (const [action, times] of Object.entries(counts)) all[action] = (all[action] ?? 0) + times;
  return all;
}

/** Counts by profile. */
function apart(found) {
  if (!found.length) return times({});
  return found.map(([profile, counts]) => el("div", null, el("span", { class: "label" }, profile), " ", times(counts)));
}

function times(counts) {
  const all = words.ACTIONS.filter((action) => counts[action]);
  if (!all.length) return el("span", { class: "none" }, "–");
  return all.flatMap((action) => [el("span", { class: `times act-${action}` }, el("b", null, words.count(counts[action])), ` ${action}`), " "]);
}
