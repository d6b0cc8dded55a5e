// A verdict: a badge, or a card with all details.

import { announce, el, said } from "./dom.js";
import * as words from "./words.js";

/** The action, coloured by strength. */
export function badge(verdict) {
  const action = words.action(verdict.action) || "note";
  return el("span", { class: `badge act-${action} ${verdict.shadow ? "shadow" : ""}`, title: words.ACTION_MEANS[action] ?? "recorded only" },
    action, verdict.shadow ? " (shadow)" : "");
}

/** All details: rule, threshold, events, and what would have prevented the verdict. */
export function card(verdict, explanation, { correction = true } = {}) {
  const evidence = verdict.evidence ?? {};
  const wasted = verdict.wasted ?? {};
  const indexes = evidence.event_indexes ?? [];
  const facts = [
    ["Why now", said(verdict.reason ?? "")],
    explanation && ["Rule", explanation.rule],
    explanation && ["Fires at", explanation.threshold],
    indexes.length && ["Events", matched(indexes, evidence)],
    (verdict.members ?? []).length && ["Calls", members(verdict.members)],
    evidence.excerpt && ["Excerpt", said(evidence.excerpt, { class: "excerpt" })],
    explanation && ["Would not have fired if", explanation.quiet],
    wasted.events && ["Wasted", words.cost(wasted.events, wasted.tokens, wasted.cost_usd)],
    verdict.trend && ["Trend", `${(verdict.trend.ema ?? 0).toFixed(2)}, ${words.level(verdict.trend.level)}`],
    (verdict.confidence ?? 0) > 0 && verdict.detector !== "operator" && ["Confidence", confidence(verdict.confidence)],
    verdict.retry_after && ["Wait", verdict.retry_after],
    verdict.operator && ["By", said(verdict.operator)],
  ].filter(Boolean);
  return el("article", { class: `verdict act-${words.action(verdict.action) || "note"}`, id: `verdict-${verdict.verdict_id}` },
    el("header", null,
      badge(verdict),
      el("h3", null, [verdict.detector, ...(verdict.also ?? [])].join(", ")),
      (verdict.event_index ?? 0) >= 0 && verdict.detector !== "operator" ? el("a", { class: "quiet", href: `#event-${verdict.event_index ?? 0}` }, `event ${verdict.event_index ?? 0}`) : null,
      verdict.agent_id ? said(verdict.agent_id, { class: "agent" }) : null,
      el("time", { class: "quiet", datetime: verdict.time }, words.moment(verdict.time))),
    verdict.pattern ? el("p", { class: "pattern" }, said(verdict.pattern)) : null,
    el("dl", null, facts.map(([name, value]) => [el("dt", null, name), el("dd", null, value)])),
    correction && verdict.correction ? offered(verdict.correction) : null);
}

function confidence(value) {
  if (value === 1) return "1.0: the occurrences are equal";
  if (value === 0.9) return "0.9: equal after masking times, ids and other volatile parts";
  return `${value.toFixed(2)}: similarity of the occurrences`;
}

function matched(indexes, evidence) {
  const laps = evidence.period > 1 ? `, ${evidence.count} laps of ${evidence.period} calls` : "";
  return [
    el("span", null, words.ranges(indexes)),
    el("span", { class: "quiet" }, ` (${words.counted(indexes.length, "event")}${laps})`),
  ];
}

function members(members) {
  return el("ul", { class: "members" }, members.map((member) => el("li", null,
    said(member.tool ?? "", { class: "tool" }), " ", member.target ? said(member.target, { class: "target" }) : null)));
}

/** The correction, with a copy button. */
function offered(text) {
  const copy = el("button", { type: "button", class: "small", on: { click: async () => {
    const done = await copied(text);
    copy.textContent = done ? "Copied" : "Select the text to copy it";
    announce(copy.textContent);
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  } } }, "Copy");
  return el("div", { class: "correction" },
    el("div", { class: "bar" }, el("span", { class: "quiet" }, "Correction"), copy),
    el("blockquote", null, said(text)));
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers offer the clipboard API only over TLS.
    const field = el("textarea", { class: "unseen", "aria-hidden": true });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
