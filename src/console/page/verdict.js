// A verdict: a badge, or a card with all details.

import { announce, el, untrusted } from "./dom.js";
import * as format from "./format.js";
import { ratingBar } from "./rating.js";

/** The action, coloured by strength. */
export function badge(verdict) {
  const action = format.action(verdict.action) || "note";
  return el("span", { class: `badge action-${action} ${verdict.shadow ? "shadow" : ""}`, title: format.ACTION_MEANINGS[action] ?? "recorded only" },
    action, verdict.shadow ? " (shadow)" : "");
}

/** All details: rule, threshold, events, and what would have prevented the verdict. With `rating` it can be rated. */
export function card(verdict, explanation, { correction = true, rating = null } = {}) {
  const evidence = verdict.evidence ?? {};
  const wasted = verdict.wasted ?? {};
  const indexes = evidence.event_indexes ?? [];
  const facts = [
    ["Why now", untrusted(verdict.reason ?? "")],
    explanation && ["Rule", explanation.rule],
    explanation && ["Fires at", explanation.threshold],
    indexes.length && ["Events", matchedEvents(indexes, evidence)],
    (verdict.members ?? []).length && ["Calls", members(verdict.members)],
    evidence.excerpt && ["Excerpt", untrusted(evidence.excerpt, { class: "excerpt" })],
    explanation && ["Would not fire if", explanation.would_not_fire_if],
    wasted.events && ["Wasted", format.cost(wasted)],
    verdict.trend && ["Trend", `${(verdict.trend.ema ?? 0).toFixed(2)}, ${format.level(verdict.trend.level)}`],
    (verdict.confidence ?? 0) > 0 && verdict.detector !== "operator" && ["Confidence", confidence(verdict.confidence)],
    verdict.retry_after && ["Wait", verdict.retry_after],
    verdict.operator && ["By", untrusted(verdict.operator)],
  ].filter(Boolean);
  return el("article", { class: `verdict action-${format.action(verdict.action) || "note"}`, id: `verdict-${verdict.verdict_id}` },
    el("header", null,
      badge(verdict),
      el("h3", null, [verdict.detector, ...(verdict.also ?? [])].join(", ")),
      (verdict.event_index ?? 0) >= 0 && verdict.detector !== "operator" ? el("a", { class: "muted", href: `#event-${verdict.event_index ?? 0}` }, `event ${verdict.event_index ?? 0}`) : null,
      verdict.agent_id ? untrusted(verdict.agent_id, { class: "agent" }) : null,
      el("a", { class: "muted permalink", href: `/verdict?id=${encodeURIComponent(verdict.verdict_id)}`, title: "This verdict alone, to share" },
        el("time", { datetime: verdict.time }, format.moment(verdict.time)))),
    verdict.pattern ? el("p", { class: "pattern" }, untrusted(verdict.pattern)) : null,
    el("dl", null, facts.map(([name, value]) => [el("dt", null, name), el("dd", null, value)])),
    correction && verdict.correction ? correctionBox(verdict.correction) : null,
    rating ? ratingBar(verdict, rating) : null);
}

function confidence(value) {
  if (value === 1) return "1.0: the occurrences are equal";
  if (value === 0.9) return "0.9: equal after masking times, ids and other volatile parts";
  return `${value.toFixed(2)}: similarity of the occurrences`;
}

function matchedEvents(indexes, evidence) {
  const laps = evidence.period > 1 ? `, ${evidence.count} laps of ${evidence.period} calls` : "";
  return [
    el("span", null, format.ranges(indexes)),
    el("span", { class: "muted" }, ` (${format.counted(indexes.length, "event")}${laps})`),
  ];
}

function members(members) {
  return el("ul", { class: "members" }, members.map((member) => el("li", null,
    untrusted(member.tool ?? "", { class: "tool" }),
    member.args ? untrusted(`(${member.args})`, { class: "args" }) : null,
    " ", member.target ? untrusted(member.target, { class: "target" }) : null)));
}

/** The correction, with a copy button. */
function correctionBox(text) {
  const copy = el("button", { type: "button", class: "small", on: { click: async () => {
    const done = await copyText(text);
    copy.textContent = done ? "Copied" : "Select the text to copy it";
    announce(copy.textContent);
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  } } }, "Copy");
  return el("div", { class: "correction" },
    el("div", { class: "bar" }, el("span", { class: "muted" }, "Correction"), copy),
    el("blockquote", null, untrusted(text)));
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers offer the clipboard API only over TLS.
    const field = el("textarea", { class: "visually-hidden", "aria-hidden": true });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
