// What operators say of a verdict: right, or a false alarm.

import { call, errorMessage } from "./api.js";
import { announce, el, setChildren, untrusted } from "./dom.js";
import * as format from "./format.js";

const RATINGS = [["RATING_RIGHT", "Right"], ["RATING_FALSE_ALARM", "False alarm"]];
const NAMES = Object.fromEntries(RATINGS);

/** `Rated right by kim, 12:00:00 UTC: reason`. */
export function feedbackText(feedback) {
  return [
    "Rated ", el("b", { class: feedback.rating === "RATING_RIGHT" ? "right" : "false-alarm" }, NAMES[feedback.rating]?.toLowerCase() ?? ""),
    feedback.operator && feedback.operator !== "unknown" ? [" by ", untrusted(feedback.operator)] : null,
    `, ${format.moment(feedback.time)}`,
    feedback.reason ? [": ", untrusted(feedback.reason)] : null,
  ];
}

/** Whether a verdict can be rated: an operator's own action cannot. */
const isRateable = (verdict) => verdict.detector !== "operator" && Boolean(verdict.verdict_id);

/**
 * The rating of a verdict, and buttons to rate it. `isAllowed`: the caller may rate.
 * `feedback`: the rating that is known. `onRated(verdict)` gets the rated verdict.
 */
export function ratingBar(verdict, { isAllowed, feedback, onRated }) {
  if (!isRateable(verdict)) return null;
  const bar = el("div", { class: "rating", role: "group", "aria-label": "Rating" });
  const note = el("span", { class: "muted", role: "status" });
  let known = verdict.feedback ?? feedback;
  const render = () => {
    setChildren(note, known ? feedbackText(known) : isAllowed ? "Was it right?" : "Not rated.");
    setChildren(bar, note, isAllowed ? RATINGS.map(([rating, label]) =>
      el("button", { type: "button", class: "small", "data-rating": rating, "aria-pressed": String(known?.rating === rating), on: { click: () => rate(rating) } }, label)) : null);
  };
  async function rate(rating) {
    for (const button of bar.querySelectorAll("button")) button.disabled = true;
    try {
      const response = await call("rate_verdict", { verdict_id: verdict.verdict_id, rating, reason: "" });
      known = response.verdict?.feedback ?? { rating };
      announce(`Rated ${NAMES[rating].toLowerCase()}.`);
      render();
      bar.querySelector(`[data-rating="${rating}"]`)?.focus();
      onRated?.(response.verdict);
    } catch (error) {
      render();
      setChildren(note, `Not rated: ${errorMessage(error)}.`);
    }
  }
  render();
  return bar;
}
