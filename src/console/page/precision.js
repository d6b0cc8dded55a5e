// How often the verdicts of each detector were right, by week, from the ratings of operators.

import { call } from "./api.js";
import { el } from "./dom.js";
import * as format from "./format.js";

const WEEKS = 8;

/** Rated verdicts of the last weeks: `{detector: [{right, all}, …]}`, the current week last. */
export async function readPrecision() {
  const { detectors } = await call("precision", {});
  return new Map(Object.entries(detectors));
}

const percent = ({ right, all }) => (all ? `${Math.round((100 * right) / all)}%` : "–");

/** A table of the precision per detector and week. */
export function precisionTable(detectors) {
  if (!detectors.size) return el("p", { class: "note" }, "No rated verdicts in the last 8 weeks. Rate them on a session's page, or with unstuck rate.");
  const ago = (week) => (week === WEEKS - 1 ? "this week" : `${WEEKS - 1 - week} w ago`);
  const columns = ["Detector", "Right", ...Array.from({ length: WEEKS }, (_, week) => ago(week))];
  return el("div", { class: "scroll" }, el("table", { class: "detectors precision" },
    el("caption", { class: "visually-hidden" }, "Share of rated verdicts that were right"),
    el("thead", null, el("tr", null, columns.map((label, at) => el("th", { scope: "col", class: at ? "number" : null }, label)))),
    el("tbody", null, [...detectors].map(([name, weeks]) => {
      const total = weeks.reduce((sum, { right, all }) => ({ right: sum.right + right, all: sum.all + all }), { right: 0, all: 0 });
      const cell = (label, counts) => el("td", { class: "number", "data-label": label, title: counts.all ? `${counts.right} of ${format.counted(counts.all, "rated verdict")}` : null },
        counts.all ? percent(counts) : el("span", { class: "none" }, "–"));
      return el("tr", null,
        el("th", { scope: "row", class: "mono" }, name),
        el("td", { class: "number", "data-label": "Right" }, el("b", null, percent(total)), el("span", { class: "muted" }, ` of ${format.count(total.all)}`)),
        weeks.map((counts, week) => cell(ago(week), counts)));
    }))));
}
