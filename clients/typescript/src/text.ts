import { createHash } from "node:crypto";

// The service checks the first and the last 32 KiB of a text.
const PART_CHARS = 32 * 1024;
// Of the id of an event or a round.
const ID_BYTES_MAX = 128;
// Longer arguments are sent as a hash, so that a message stays below the service's 1 MiB.
const ARGS_CHARS_MAX = 128 * 1024;
// Arguments that only explain a call, as `Member.call_key` in verdict.proto lists them.
const EXPLAINING = new Set(
  `description explanation justification max_output_chars max_output_length max_output_tokens reason
  reasoning thought thoughts timeout timeout_ms timeout_seconds yield_time_ms`.split(/\s+/),
);

/** The part of a text that the service checks. */
export function bounded(text: string): string {
  return text.length <= 2 * PART_CHARS ? text : `${text.slice(0, PART_CHARS)}\n${text.slice(-PART_CHARS)}`;
}

/** An id that the service accepts: of a longer one its hash. */
export function boundedId(id: string): string {
  return Buffer.byteLength(id) <= ID_BYTES_MAX ? id : createHash("sha256").update(id).digest("hex");
}

/** Any value as text; undefined if it has none. */
export function asText(value: unknown): string | undefined {
  if (value === undefined) return undefined;
  if (typeof value === "string") return value;
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return undefined;
  }
}

/** Arguments as the service wants them; undefined: unknown. */
export function wireArguments(args: unknown) {
  const text = asText(args);
  if (text === undefined) return undefined;
  if (text.length <= ARGS_CHARS_MAX) return { $case: "argsJson" as const, value: text };
  return { $case: "argsHash" as const, value: createHash("sha256").update(text).digest("hex") };
}

/** JSON in the form of RFC 8785, which takes the order of keys and the form of numbers from JavaScript. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical)}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${entries.map(([name, inner]) => `${JSON.stringify(name)}:${canonical(inner)}`)}}`;
}

/** The key by which the service names a refused call; empty if it has none. */
export function callKey(tool: string, args: unknown): string {
  try {
    // By way of JSON, so that dates and absent values are as they are sent.
    const value = JSON.parse(asText(args) ?? "");
    const known = typeof value === "object" && value !== null && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).filter(([name]) => !EXPLAINING.has(name)))
      : value;
    return createHash("sha256").update(`${tool}\0${canonical(known)}`).digest("hex").slice(0, 32);
  } catch {
    return "";
  }
}
