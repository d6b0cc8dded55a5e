// The adapter of the OpenAI Agents SDK with a model of the SDK's own interface.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Agent, Runner, setTracingDisabled, tool, Usage } from "@openai/agents";
import { z } from "zod";

import { Client, Stopped } from "unstuck";
import { OpenAIAgentsGuard } from "unstuck/openai-agents";
import { Service, until } from "./service.js";

setTracingDisabled(true);
let service, client;
before(async () => {
  service = await Service.start();
  client = new Client({ target: service.target, deadline: 20_000 });
});
after(async () => {
  await client.close();
  await service.close();
});

async function run(session, { act = () => {}, execute = () => "text", using = client } = {}) {
  const guard = new OpenAIAgentsGuard(using, session);
  const requests = [];
  const model = {
    async getResponse(request) {
      requests.push(JSON.stringify(request.input));
      await act(requests.length);
      const callId = `call-${requests.length}`;
      return { usage: new Usage({ requests: 1, inputTokens: 100, outputTokens: 7, inputTokensDetails: { cached_tokens: 90 } }), output: [{ type: "function_call", callId, name: "read_file", arguments: '{"path":"a.rs"}', status: "completed" }] };
    },
  };
  let made = 0;
  const read = tool({ name: "read_file", description: "reads", parameters: z.object({ path: z.string() }), execute: async () => { made += 1; return execute(); } });
  const agent = new Agent({ name: "reader", instructions: "read", model, tools: guard.tools([read]) });
  const error = await new Runner(guard.runConfig).run(agent, "do it", { maxTurns: 20 }).then(() => null, (error) => error);
  return { guard, made, requests, error };
}

test("the correction is in the model's fourth request, the fifth call is refused, the run is stopped", async () => {
  const { guard, made, requests, error } = await run("openai");
  assert.ok(!requests[2].includes("[unstuck]"));
  assert.ok(requests[3].includes("[unstuck] "), requests[3]);
  assert.equal(made, 4);
  assert.ok(guard.stopped.atLeast("ESCALATE"));
  assert.ok([error, error.cause].some((one) => one instanceof Stopped) || error.message.includes("stopped"), `${error}`);
  const { events, usage } = await service.session("openai");
  // The tokens also of refused calls.
  assert.deepEqual([events, usage.inputTokens, usage.outputTokens, usage.cachedInputTokens], [7, 700, 49, 630]);
});

test("a failing tool is counted", async () => {
  const { guard, requests } = await run("openai-failing", { execute: () => { throw new Error("no such file"); } });
  assert.ok(requests[3].includes("[unstuck] "));
  assert.ok(guard.stopped);
  const { timeline } = await service.ask("getSession", { sessionId: "openai-failing" });
  assert.equal(timeline[0].outcome, 2);
});

test("the service is killed in mid-run: the agent goes on, and nothing is counted twice", async () => {
  const own = await Service.start();
  const using = new Client({ target: own.target });
  let number = 0;
  const act = async (request) => { if (request === 3) await own.kill(); };
  const { made } = await run("openai-killed", { act, using, execute: () => `text ${(number += 1)}` });
  assert.equal(made, 20);
  await own.restart();
  await until(() => using.stats.waiting === 0, "all is answered");
  const { events } = await own.session("openai-killed");
  assert.ok(events <= 20 && events >= 17, `${events}`);
  await using.close();
  await own.close();
});
