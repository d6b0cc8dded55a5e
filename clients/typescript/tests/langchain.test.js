// The adapter of LangChain with a model of LangChain's own interface.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { Command, interrupt, MemorySaver } from "@langchain/langgraph";
import { createAgent, toolRetryMiddleware } from "langchain";
import { z } from "zod";

import { Client } from "unstuck";
import { LangChainGuard } from "unstuck/langchain";
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

/** Makes the same call for ever, and keeps what it was asked. */
class Looping extends BaseChatModel {
  requests = [];
  act = () => {};
  calls = 20;
  _llmType() {
    return "looping";
  }
  bindTools() {
    return this;
  }
  async _generate(messages) {
    this.requests.push(JSON.stringify(messages));
    const number = this.requests.length;
    await this.act(number);
    const calls = number > this.calls ? [] : [{ name: "read_file", args: { path: "a.rs" }, id: `call-${number}` }];
    const usage_metadata = { input_tokens: 100, output_tokens: 7, total_tokens: 107, input_token_details: { cache_read: 90 } };
    const message = new AIMessage({ content: "", tool_calls: calls, id: `answer-${number}`, usage_metadata });
    return { generations: [{ text: "", message }] };
  }
}

async function run(session, { act, execute = () => "text", using = client, middleware = [] } = {}) {
  const guard = new LangChainGuard(using, session);
  const model = new Looping({});
  if (act) model.act = act;
  let made = 0;
  const read = tool((input, config) => { made += 1; return execute(config); }, { name: "read_file", description: "reads", schema: z.object({ path: z.string() }) });
  const agent = createAgent({ model, tools: [read], middleware: [...middleware, guard.middleware] });
  const state = await agent.invoke({ messages: [{ role: "user", content: "do it" }] }, { recursionLimit: 100 }).catch((error) => error);
  return { guard, made, state, requests: model.requests };
}

test("the correction is in the model's fourth request, the fifth call is refused, the run is stopped", async () => {
  const { guard, made, state, requests } = await run("langchain");
  assert.ok(!requests[2].includes("[unstuck]"));
  assert.ok(requests[3].includes("[unstuck] "), requests[3]);
  assert.equal(made, 4);
  assert.ok(guard.stopped.atLeast("ESCALATE"));
  assert.match(state.messages.at(-1).content, /^\[unstuck\] stopped: /);
  assert.equal(requests.length, 7);
  const { events, usage } = await service.session("langchain");
  // The tokens also of refused calls.
  assert.deepEqual([events, usage.inputTokens, usage.outputTokens, usage.cachedInputTokens], [7, 700, 49, 630]);
});

test("a failing tool is counted", async () => {
  // LangChain ends a run whose tool throws, unless a middleware makes the failure a message.
  const middleware = [toolRetryMiddleware({ maxRetries: 0, onFailure: "continue" })];
  const { guard, requests } = await run("langchain-failing", { middleware, execute: () => { throw new Error("no such file"); } });
  assert.ok(guard.stopped, `${requests.length} requests`);
  assert.ok(!requests[2].includes("[unstuck]"));
  assert.ok(requests[3].includes("[unstuck] "), requests[3]);
  const { timeline } = await service.ask("getSession", { sessionId: "langchain-failing" });
  assert.deepEqual(timeline.map(({ outcome }) => outcome), [2, 2, 2, 2, 3, 3, 3]);
});

test("an interrupt for a person is no failure", async () => {
  const guard = new LangChainGuard(client, "langchain-interrupted");
  const model = new Looping({});
  model.calls = 1;
  const read = tool(() => `text ${interrupt("May I?")}`, { name: "read_file", description: "reads", schema: z.object({ path: z.string() }) });
  const agent = createAgent({ model, tools: [read], middleware: [guard.middleware], checkpointer: new MemorySaver() });
  const thread = { configurable: { thread_id: "1" } };
  const before = client.stats.sent;
  await agent.invoke({ messages: [{ role: "user", content: "do it" }] }, thread);
  assert.equal(client.stats.sent, before);
  const { messages } = await agent.invoke(new Command({ resume: "yes" }), thread);
  assert.equal(messages.at(-2).content, "text yes");
  const { timeline } = await service.ask("getSession", { sessionId: "langchain-interrupted" });
  assert.deepEqual(timeline.map(({ outcome }) => outcome), [1]);
});

test("a tool that changes the state is corrected", async () => {
  const execute = (config) => new Command({ update: { messages: [new ToolMessage({ content: "text", tool_call_id: config.toolCall.id })] } });
  const { requests } = await run("langchain-command", { execute });
  assert.ok(requests[3].includes("[unstuck] "), requests[3]);
  const { timeline } = await service.ask("getSession", { sessionId: "langchain-command" });
  assert.deepEqual(timeline.map(({ outcome }) => outcome), [1, 1, 1, 1, 3, 3, 3]);
});

test("the service is killed in mid-run: the agent goes on, and nothing is counted twice", async () => {
  const own = await Service.start();
  const using = new Client({ target: own.target });
  const act = async (number) => { if (number === 3) await own.kill(); };
  let number = 0;
  const { made } = await run("langchain-killed", { act, using, execute: () => `text ${(number += 1)}` });
  assert.equal(made, 20);
  await own.restart();
  await until(() => using.stats.waiting === 0, "all is answered");
  const { events } = await own.session("langchain-killed");
  assert.ok(events <= 20 && events >= 17, `${events}`);
  await using.close();
  await own.close();
});
