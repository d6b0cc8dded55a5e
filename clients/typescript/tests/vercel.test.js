// The adapter of the Vercel AI SDK with the SDK's own fake model.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { generateText, stepCountIs, tool } from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { z } from "zod";

import { Client } from "unstuck";
import { VercelGuard } from "unstuck/vercel";
import { Service, until } from "./service.js";

let service, client;
before(async () => {
  service = await Service.start();
  client = new Client({ target: service.target, deadline: 20_000 });
});
after(async () => {
  await client.close();
  await service.close();
});

/** A model that makes the same call for ever. */
function looping(name, input, act = () => {}) {
  let number = 0;
  return new MockLanguageModelV3({
    doGenerate: async () => {
      number += 1;
      await act(number);
      return {
        content: [{ type: "tool-call", toolCallId: `${name}-${number}`, toolName: name, input: JSON.stringify(input) }],
        finishReason: { unified: "tool-calls" },
        usage: { inputTokens: { total: 100 }, outputTokens: { total: 10 } },
        warnings: [],
      };
    },
  });
}

async function run(session, { act, execute, using = client } = {}) {
  const guard = new VercelGuard(using, session);
  const model = looping("read_file", { path: "a.rs" }, act);
  let made = 0;
  const read_file = tool({ inputSchema: z.object({ path: z.string() }), execute: async (input) => { made += 1; return (execute ?? (() => "text"))(input); } });
  await generateText({ model, prompt: "do it", tools: guard.tools({ read_file }), prepareStep: guard.prepareStep, stopWhen: [stepCountIs(20), guard.stopWhen] });
  return { guard, made, requests: model.doGenerateCalls.map(({ prompt }) => JSON.stringify(prompt)) };
}

test("the correction is in the model's fourth request, the fifth call is refused, the run is stopped", async () => {
  const { guard, made, requests } = await run("vercel");
  assert.ok(!requests[2].includes("[unstuck]"));
  assert.ok(requests[3].includes("[unstuck] "), requests[3]);
  assert.equal(made, 4);
  assert.ok(guard.stopped.atLeast("ESCALATE"));
  assert.equal(requests.length, 7);
  assert.equal((await service.session("vercel")).events, 7);
});

test("a failing tool is counted", async () => {
  const { guard, requests } = await run("vercel-failing", { execute: () => { throw new Error("no such file"); } });
  assert.ok(requests[3].includes("[unstuck] "));
  assert.ok(guard.stopped);
});

test("the service is killed in mid-run: the agent goes on, and nothing is counted twice", async () => {
  const own = await Service.start();
  const using = new Client({ target: own.target });
  const act = async (number) => {
    if (number === 3) await own.kill();
  };
  let number = 0;
  const { made } = await run("vercel-killed", { act, using, execute: () => `text ${(number += 1)}` });
  assert.equal(made, 20);
  assert.ok(using.stats.waiting >= 17);
  await own.restart();
  await until(() => using.stats.waiting === 0, "all is answered");
  const { events } = await own.session("vercel-killed");
  assert.ok(events <= 20 && events >= 18 - 1, `${events}`);
  await using.close();
  await own.close();
});
