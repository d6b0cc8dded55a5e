// A broker: the program between an agent and its tools, with Unstuck.
//
//     cd examples && npm ci
//     UNSTUCK_SERVER=127.0.0.1:50551 npx tsx broker.ts [--stubborn[=CALLS|=errors]]

import { createHash, randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const STEPS_MAX = 20;
// The longest time that an agent waits for an answer of Unstuck.
const DEADLINE_MS = 250;
// Weakest to strongest, as in verdict.proto.
const ACTIONS = ["ok", "alert", "warn", "throttle", "checkpoint", "ask", "block", "break", "escalate", "terminate"];
const [WARN, THROTTLE, BLOCK, ESCALATE, TERMINATE] = ["warn", "throttle", "block", "escalate", "terminate"].map((name) => ACTIONS.indexOf(name));
// Arguments that only explain a call, as member.call_key in verdict.proto lists them.
const EXPLAINING = new Set(
  `description explanation justification max_output_chars max_output_length max_output_tokens reason
  reasoning thought thoughts timeout timeout_ms timeout_seconds yield_time_ms`.split(/\s+/),
);

// The fields that this program uses of the messages in proto/unstuck/v1.
type Call = { tool: string; args: Record<string, unknown> };
type Wait = { seconds: number; nanos: number };
type Verdict = { pattern: string; reason: string; correction: string; retry_after: Wait | null };
type Standing = { action: number; blocked: string[] };
type EventResult = { action: number; verdict: Verdict | null; standing: Standing | null; state_lost: boolean };
type Check = { action: number; verdict: Verdict | null };

// The .proto files are read at start, so no code is generated.
const options = { includeDirs: [fileURLToPath(new URL("../proto", import.meta.url))], keepCase: true, longs: Number, defaults: true };
const proto = loadSync(["unstuck/v1/detection_service.proto", "unstuck/v1/session_service.proto"], options);
const { DetectionService, SessionService } = (grpc.loadPackageDefinition(proto) as any).unstuck.v1;

/** The example agents: one reads a file again and again until it is corrected. Two never listen: one goes round some orders, one tries another command that is not there each time. */
function nextCall(messages: { role: string }[], step: number, stubborn: string): Call | null {
  if (stubborn === "errors") return { tool: "bash", args: { command: `tool${step} --help` } };
  if (stubborn) return { tool: "get_order", args: { order_id: 5 + ((step - 1) % Number(stubborn)) } };
  return messages.some(({ role }) => role === "system") ? null : { tool: "read_file", args: { path: "src/main.rs" } };
}

/** JSON in the form of RFC 8785, which takes the order of keys and the form of numbers from JavaScript. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical)}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${entries.map(([name, inner]) => `${JSON.stringify(name)}:${canonical(inner)}`)}}`;
}

/** The key by which `standing.blocked` names a call. */
function callKey({ tool, args }: Call): string {
  const known = Object.fromEntries(Object.entries(args).filter(([name]) => !EXPLAINING.has(name)));
  return createHash("sha256").update(`${tool}\0${canonical(known)}`).digest("hex").slice(0, 32);
}

/** An unknown action is treated as a warning. */
const known = (action: number) => (action in ACTIONS ? action : WARN);

/** Fails open: without an answer, for any reason, the agent continues. */
function ask<Response>(client: any, rpc: string, request: object): Promise<Response | null> {
  return new Promise((resolve) => {
    const deadline = Date.now() + DEADLINE_MS;
    client[rpc](request, { deadline }, (error: grpc.ServiceError | null, response?: Response) => {
      if (error) console.error(`unstuck: ${grpc.status[error.code]}: ${error.details}; continuing without it`);
      resolve(response ?? null);
    });
  });
}

async function run(detection: grpc.Client, sessions: grpc.Client, stubborn: string): Promise<string> {
  const session_id = `toy-${randomUUID()}`;
  const opening = { session_id, profile: "default", labels: { team: "examples" } };
  await ask(sessions, "OpenSession", opening);
  const messages = [{ role: "user", content: "Please do the task." }];
  let blocked = new Set<string>();
  let missed = false;
  for (let step = 1; step <= STEPS_MAX; step++) {
    const call = nextCall(messages, step, stubborn);
    if (!call) return `corrected before step ${step}: the agent answered`;
    const { tool } = call;
    const args_json = JSON.stringify(call.args);

    // May the call be made? Without an answer the keys of the last one decide.
    const check = await ask<Check>(detection, "CheckCall", { session_id, tool, args_json });
    if (check?.action === TERMINATE) return `terminated before step ${step}: ${check.verdict?.reason}`;
    // A broker replaces an action that it cannot perform by the next weaker one. This one
    // has no second model and no generation to stop: those become BLOCK.
    const refused = check ? known(check.action) >= BLOCK : blocked.has(callKey(call));
    const failed = !refused && stubborn === "errors";
    const outcome = refused ? "OUTCOME_BLOCKED" : failed ? "OUTCOME_ERROR" : "OUTCOME_OK";
    const error = failed ? `bash: tool${step}: command not found` : "";
    const result = refused ? "refused: this call is part of a loop" : "two lamps, unpaid";
    messages.push({ role: "tool", content: error || result });

    // A refused call is sent too, as BLOCKED: an agent that goes on asking is escalated
    // and then terminated.
    const event = {
      session_id,
      // The id makes it safe to send the event again if the answer was lost.
      event_id: `call-${step}`,
      usage: { input_tokens: 900 + 40 * step, output_tokens: 25, cost_usd: 0.003 },
      tool_call: { tool, args_json, error, outcome, ...(failed ? {} : { result }) },
    };
    const answer = (await ask<{ result: EventResult }>(detection, "RecordEvent", { event }))?.result;
    if (!answer) {
      missed = true;
      continue;
    }
    const { verdict, standing } = answer;
    blocked = new Set(standing?.blocked);
    // The service restarted and has lost the profile and the labels.
    if (answer.state_lost) await ask(sessions, "OpenSession", opening);

    // The result's action, not the verdict's: a shadow verdict has an action that is not to
    // be performed. What a missed answer asked for still holds.
    const action = known(answer.action || (missed && standing?.action) || 0);
    missed = false;
    const name = !action && refused ? "refused" : ACTIONS[action];
    console.log(`step ${step}: ${name.padEnd(9)} ${verdict?.pattern || `${tool} ${args_json}`}`);

    if (action === TERMINATE) return `terminated at step ${step}: ${verdict?.reason}`;
    // ESCALATE of a call that was made: its calls differ, so none can be refused. A person
    // takes over; this broker has none and ends the run.
    if (action === ESCALATE && !refused) return `handed over at step ${step}: ${verdict?.reason}`;
    // It has no checkpoints and no person to ask: those become THROTTLE, without a wait.
    if (action >= THROTTLE && action < BLOCK && verdict?.retry_after)
      await sleep(verdict.retry_after.seconds * 1_000 + verdict.retry_after.nanos / 1e6);
    // An ALERT is for the user only; from WARN on the agent gets the correction.
    if (action >= WARN && verdict?.correction) messages.push({ role: "system", content: verdict.correction });
  }
  return `out of budget after ${STEPS_MAX} steps`;
}

const address = (process.env.UNSTUCK_SERVER ?? "127.0.0.1:50551").replace(/^http:\/\//, "");
// One connection per process, which the clients share: it carries all sessions.
const clients = [DetectionService, SessionService].map((Client) => new Client(address, grpc.credentials.createInsecure()));
const stubborn = process.argv.find((argument) => argument.startsWith("--stubborn"));
console.log(await run(clients[0], clients[1], stubborn ? (stubborn.split("=")[1] ?? "1") : ""));
for (const client of clients) client.close();
