// The policy in force, and what it did beside what it would have done.

import { call, told } from "./api.js";
import { Nodes, el, fill } from "./dom.js";
import * as words from "./words.js";

export function policy(params, page) {
  const node = el("section", { class: "policy" }, el("h1", { class: "unseen" }, "Policy"), el("p", { class: "note" }, "Reading…"));
  let current = params;
  let known = null;
  // What somebody has unfolded stays so.
  const rows = new Nodes();
  async function refresh() {
    try {
      const answer = await call("policy");
      const isSame = JSON.stringify(answer) === JSON.stringify(known);
      known = answer;
      if (!isSame) draw();
    } catch (error) {
      if (!known) fill(node, el("h1", null, "Policy"), el("p", { class: "note" }, `Not read: ${told(error)}.`));
    }
  }

  function draw() {
    const chosen = known.profiles.find((profile) => profile.name === current.profile) ?? known.profiles[0];
    fill(node,
      el("h1", { class: "unseen" }, "Policy"),
      el("div", { class: "tabs", role: "group", "aria-label": "Profile" }, known.profiles.map((profile) =>
        el("button", { type: "button", "aria-pressed": String(profile === chosen), on: { click: () => page.change({ profile: profile.name }) } },
          profile.name, " ", el("span", { class: "quiet" }, total(profile))))),
      el("p", { class: "about" },
        el("span", { class: `mode ${chosen.shadow ? "shadow" : "enforce"}` }, chosen.shadow ? "shadow mode" : "enforced"),
        ` Trend: alpha ${chosen.alpha}, chronic above ${chosen.saturation}; alerts of new loops pause for ${words.counted(chosen.cooldown, "event")}. `,
        el("span", { class: "quiet" }, `Counts are of the last ${known.hours} hours. “Would have” are verdicts in shadow mode or while a session was snoozed: reported, not acted on.`)),
      el("div", { class: "scroll" }, el("table", { class: "detectors" },
        el("caption", { class: "unseen" }, `Detectors of the profile ${chosen.name}`),
        el("thead", null, el("tr", null, ["Detector", "Fires when", "First, then", "Ends at", "Did", "Would have"].map((label) => el("th", { scope: "col" }, label)))),
        el("tbody", null, chosen.detectors.map((detector) => rows.get(`${chosen.name} ${detector.name}`, detector, () => row(detector)))))));
  }

  const timer = setInterval(() => document.visibilityState === "visible" && refresh(), 10_000);
  refresh();
  return {
    node,
    title: "Policy",
    refresh,
    update(params) { current = params; if (known) draw(); },
    close() { clearInterval(timer); },
  };
}

function total(profile) {
  const sum = profile.detectors.flatMap((detector) => [...Object.values(detector.did), ...Object.values(detector.would)]).reduce((all, times) => all + times, 0);
  return sum ? words.count(sum) : "";
}

function row(detector) {
  const rungs = [...new Set([detector.soft, detector.hard, detector.last])];
  const cell = (label, kind, ...children) => el("td", { "data-label": label, class: kind }, children);
  return el("tr", { class: detector.enabled ? null : "off" },
    el("th", { scope: "row", class: "mono" }, detector.name, detector.enabled ? null : el("span", { class: "quiet" }, " off")),
    cell("Fires when", "rule",
      el("details", null,
        el("summary", null, detector.threshold),
        el("p", null, el("b", null, "Looks for "), detector.rule),
        el("p", null, el("b", null, "Kept quiet by "), detector.quiet),
        el("p", { class: "quiet" }, `window ${detector.window}`))),
    cell("First, then", "rungs", rungs.map((rung) => el("span", { class: `badge act-${rung}` }, rung))),
    cell("Ends at", "number", detector.terminate_after ? String(detector.terminate_after) : "–"),
    cell("Did", "times", times(detector.did)),
    cell("Would have", "times", times(detector.would)));
}

function times(counts) {
  const all = words.ACTIONS.filter((action) => counts[action]);
  if (!all.length) return el("span", { class: "none" }, "–");
  return all.flatMap((action) => [el("span", { class: `times act-${action}` }, el("b", null, words.count(counts[action])), ` ${action}`), " "]);
}
