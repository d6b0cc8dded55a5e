// What the guard adds to a call of a tool, beside a bare gRPC call of the same library.
import grpc from "@grpc/grpc-js";
import { Client } from "unstuck";
import { DetectionServiceClient } from "../dist/esm/gen/unstuck/v1/detection_service.js";
import { Service } from "../tests/service.js";

const [ROUNDS, CALLS, EVENTS, RATIO_MAX] = [15, 400, 50_000, 1.3];
const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];

/** The median time of a call in this round, in microseconds. */
async function micros(call) {
  const times = [];
  for (let number = 0; number < CALLS; number += 1) {
    const began = performance.now();
    await call(number);
    times.push((performance.now() - began) * 1_000);
  }
  return median(times);
}

const service = await Service.start();
const client = new Client({ target: service.target, deadline: 10_000 });
const stub = new DetectionServiceClient(service.target, grpc.credentials.createInsecure());
const guarded = client.guarded("guarded", "step", async ({ n }) => `result ${n}`);
let id = 0;
const bare = (n) => new Promise((resolve, reject) => {
  const value = { tool: "step", operation: 0, target: "", arguments: { $case: "argsJson", value: `{"n": ${n}}` }, outcome: 1, error: "", result: `result ${n}`, resultHash: "", contentHash: "" };
  const event = { sessionId: "bare", eventId: `bare-${(id += 1)}`, time: undefined, agentId: "", roundId: "", stateHash: "", body: { $case: "toolCall", value }, usage: undefined };
  stub.recordEvent({ event }, new grpc.Metadata(), { deadline: Date.now() + 10_000 }, (error) => (error ? reject(error) : resolve()));
});
// One after the other in each round, so that both meet the same machine.
const rounds = [];
for (let round = 0; round < ROUNDS; round += 1) rounds.push([await micros((n) => guarded({ n })), await micros(bare)]);
const ratio = median(rounds.map(([a, b]) => a / b));

let next = 0;
const began = performance.now();
await Promise.all(Array.from({ length: 1_000 }, async (_, index) => {
  while (next < EVENTS) {
    const number = (next += 1);
    await client.record(`batch-${index}`, "step", { n: number }, { result: `result ${number}` });
  }
}));
const rate = EVENTS / ((performance.now() - began) / 1_000);
if (client.stats.dropped) throw new Error(`${client.stats.dropped} events dropped`);
const [a, b] = [0, 1].map((column) => median(rounds.map((round) => round[column])).toFixed(0));
console.log(`TypeScript: a guarded call ${a} µs, a bare gRPC call ${b} µs, ratio ${ratio.toFixed(2)} (at most ${RATIO_MAX}: ${ratio <= RATIO_MAX ? "reached" : "not reached"}); ${Math.round(rate).toLocaleString("en")} events a second in batches`);
stub.close();
await client.close();
await service.close();
