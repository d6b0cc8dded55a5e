// A broker: the program between an agent and its tools, with Unstuck.
//
//     cd examples && npm ci
//     UNSTUCK_SERVER=127.0.0.1:50551 npx tsx broker.ts

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const STEPS_MAX = 12;
// The longest time that an agent waits for Unstuck.
const DEADLINE_MS = 250;
// Weakest to strongest, as in verdict.proto.
const ACTIONS = ["ok", "alert", "warn", "throttle", "checkpoint", "ask", "block", "break", "escalate", "terminate"];
const [WARN, THROTTLE, BLOCK, TERMINATE] = ["warn", "throttle", "block", "terminate"].map((name) => ACTIONS.indexOf(name));

// The fields that this program uses of the messages in proto/unstuck/v1.
type Call = { tool: string; target: string };
type Wait = { seconds: number; nanos: number };
type Verdict = { pattern: string; reason: string; correction: string; members: Call[]; retry_after: Wait | null };
type EventResult = { action: number; verdict: Verdict | null };

// The .proto files are read at start, so no code is generated.
const proto = loadSync("unstuck/v1/detection_service.proto", {
  includeDirs: [fileURLToPath(new URL("../proto", import.meta.url))],
  ...{ keepCase: true, longs: Number, defaults: true },
});
const { unstuck } = grpc.loadPackageDefinition(proto) as any;

/** The example agent: it reads one file again and again until it is corrected. */
function nextCall(messages: { role: string }[]): Call | null {
  return messages.some(({ role }) => role === "system") ? null : { tool: "read_file", target: "src/main.rs" };
}

/** Fails open: without an answer, for any reason, the agent continues. */
function record(client: any, event: object): Promise<EventResult> {
  return new Promise((resolve) => {
    const deadline = Date.now() + DEADLINE_MS;
    client.RecordEvent({ event }, { deadline }, (error: grpc.ServiceError | null, response?: { result?: EventResult }) => {
      if (error) console.error(`unstuck: ${grpc.status[error.code]}: ${error.details}; continuing without it`);
      resolve(response?.result ?? { action: 0, verdict: null });
    });
  });
}

async function run(client: grpc.Client): Promise<string> {
  const session_id = `toy-${randomUUID()}`;
  const messages = [{ role: "user", content: "Why does src/main.rs not compile?" }];
  const blocked = new Set<string>();
  for (let step = 1; step <= STEPS_MAX; step++) {
    const call = nextCall(messages);
    if (!call) return `corrected before step ${step}: the agent answered`;
    // A refused call is still sent, as BLOCKED: detectors skip it, and the
    // record is complete.
    const refused = blocked.has(`${call.tool} ${call.target}`);
    const result = refused ? "refused: this call is part of a loop" : 'fn main() { println!("hi") }';
    messages.push({ role: "tool", content: result });
    const { action: asked, verdict } = await record(client, {
      session_id,
      // The id makes it safe to send the event again if the answer was lost.
      event_id: `call-${step}`,
      usage: { input_tokens: 900 + 40 * step, output_tokens: 25, cost_usd: 0.003 },
      // The target is optional: by default it is taken from the arguments. If
      // sent, a verdict's members have it unchanged.
      tool_call: { ...call, args_json: JSON.stringify({ path: call.target }), result, outcome: refused ? "OUTCOME_BLOCKED" : "OUTCOME_OK" },
    });

    // The result's action, not the verdict's: a shadow verdict has an action
    // that is not to be performed. An unknown action is treated as a warning.
    const action = asked in ACTIONS ? asked : WARN;
    const name = !action && refused ? "refused" : ACTIONS[action];
    console.log(`step ${step}: ${name.padEnd(9)} ${(action && verdict?.pattern) || `${call.tool} ${call.target}`}`);
    if (!action || !verdict) continue;

    if (action === TERMINATE) return `terminated at step ${step}: ${verdict.reason}`;
    // A broker replaces an action that it cannot perform by the next weaker
    // one. This one has no second model and no generation to stop: those
    // become BLOCK.
    if (action >= BLOCK) for (const { tool, target } of verdict.members) blocked.add(`${tool} ${target}`);
    // It has no checkpoints and no person to ask: those become THROTTLE,
    // without a wait.
    else if (action >= THROTTLE && verdict.retry_after)
      await sleep(verdict.retry_after.seconds * 1_000 + verdict.retry_after.nanos / 1e6);
    // An ALERT is for the user only; from WARN on the agent gets the
    // correction.
    if (action >= WARN && verdict.correction) messages.push({ role: "system", content: verdict.correction });
  }
  return `out of budget after ${STEPS_MAX} steps`;
}

const address = (process.env.UNSTUCK_SERVER ?? "127.0.0.1:50551").replace(/^http:\/\//, "");
// One client per process: it carries all sessions.
const client = new unstuck.v1.DetectionService(address, grpc.credentials.createInsecure());
console.log(await run(client));
client.close();
