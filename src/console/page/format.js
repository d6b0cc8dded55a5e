// Formatting of numbers, times and names.

const WHOLE = new Intl.NumberFormat("en");
const CENTS = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** Weakest to strongest. */
export const ACTIONS = ["alert", "warn", "throttle", "checkpoint", "ask", "block", "break", "escalate", "terminate"];
export const STATUSES = ["looping", "active", "quarantined", "terminated", "ended"];

/** The meaning of each action. */
export const ACTION_MEANINGS = {
  alert: "notify the user",
  warn: "notify the controller too",
  throttle: "wait, then continue",
  checkpoint: "force a checkpoint",
  ask: "a person confirms before the session continues",
  block: "reject the calls of the loop; the run continues",
  break: "stop the generation and inject the correction",
  escalate: "hand over to another model or to a person",
  terminate: "end the session",
};

/** `ACTION_WARN` becomes `warn`, no action becomes "". */
export function action(name) {
  const short = (name ?? "").replace("ACTION_", "").toLowerCase();
  return short === "unspecified" ? "" : short;
}

export function status(name) {
  return (name ?? "").replace("SESSION_STATUS_", "").toLowerCase();
}

export function level(name) {
  return { TREND_LEVEL_BLIP: "a blip", TREND_LEVEL_TREND: "a trend", TREND_LEVEL_CHRONIC: "chronic" }[name] ?? "";
}

export function count(number) {
  return WHOLE.format(number ?? 0);
}

export function counted(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** 20.7k: short, for comparison. */
export function short(number) {
  if (number < 1000) return count(number);
  const [size, unit] = number < 1e6 ? [1e3, "k"] : number < 1e9 ? [1e6, "M"] : [1e9, "G"];
  const scaled = number / size;
  return `${scaled < 100 ? scaled.toFixed(1) : Math.round(scaled)}${unit}`;
}

export function money(usd) {
  if (!usd) return "";
  return usd < 0.1 ? `$${usd.toFixed(4)}` : `$${CENTS.format(usd)}`;
}

/** Events, and tokens and dollars if known: of a message `Wasted`. */
export function cost({ events, tokens, cached_tokens, cost_usd } = {}) {
  const parts = [counted(events ?? 0, "event")];
  if (tokens) parts.push(counted(tokens, "token") + (cached_tokens ? ` (${count(cached_tokens)} cached)` : ""));
  if (cost_usd) parts.push(money(cost_usd));
  return parts.join(", ");
}

/** What a session has used, as a message `Wasted`. */
export function used({ events, usage = {} }) {
  const tokens = (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
  return { events, tokens, cached_tokens: usage.cached_input_tokens, cost_usd: usage.cost_usd };
}

/** 3s, 5m, 2h, 4d. */
export function age(time, now = Date.now()) {
  if (!time) return "";
  return span((now - Date.parse(time)) / 1000);
}

export function span(seconds) {
  const secs = Math.max(0, Math.round(seconds));
  if (secs < 60) return `${secs}s`;
  if (secs < 3600) return `${Math.floor(secs / 60)}m`;
  if (secs < 86400) return `${Math.floor(secs / 3600)}h`;
  return `${Math.floor(secs / 86400)}d`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DATE = new Intl.DateTimeFormat("en-GB", {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
});
const TODAY = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });

export function clock(time) {
  return time ? CLOCK.format(new Date(time)) : "";
}

/** The time zone of the browser, in which all times are shown. */
export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "local time";

/** The time with its zone, and with the date unless it is today. */
export function moment(time) {
  if (!time) return "";
  const date = new Date(time);
  return date.toDateString() === new Date().toDateString() ? TODAY.format(date) : DATE.format(date);
}

/** 1–3, 5, 7–9. */
export function ranges(indexes) {
  const spans = [];
  for (const index of indexes) {
    const last = spans.at(-1);
    if (last && index === last[1] + 1) last[1] = index;
    else spans.push([index, index]);
  }
  return spans.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
}
