// The adapter of the Claude Agent SDK: the real Claude Code with a model server on loopback.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";

import { query } from "@anthropic-ai/claude-agent-sdk";

import { Client } from "unstuck";
import { ClaudeGuard } from "unstuck/claude";
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

/** A model, in the format of Anthropic's messages. `next` is asked for each turn: `[tool, input]`, or null for the end. */
async function scripted(next) {
  const requests = [];
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const piece of request) text += piece;
    const body = request.url.startsWith("/v1/messages") && text ? JSON.parse(text) : {};
    if (!body.stream) return response.end(JSON.stringify({ input_tokens: 1 }));
    const turn = {
      text, tools: body.tools?.map(({ name }) => name) ?? [], step: body.messages.filter(({ role }) => role === "assistant").length,
      // What it was asked first: a sub-agent has a prompt of its own.
      prompt: JSON.stringify(body.messages.find(({ role }) => role === "user")),
    };
    // A request without tools is for a title or a summary.
    const call = turn.tools.length > 0 ? await next(turn, requests.push(turn)) : null;
    const block = call ? { type: "tool_use", id: `toolu_${requests.length}`, name: call[0], input: {} } : { type: "text", text: "" };
    const delta = call ? { type: "input_json_delta", partial_json: JSON.stringify(call[1]) } : { type: "text_delta", text: "done" };
    const message = { id: `msg_${requests.length}`, type: "message", role: "assistant", model: "claude-sonnet-4-5", content: [], stop_reason: null, stop_sequence: null, usage: { input_tokens: 10, output_tokens: 1 } };
    const events = [
      { type: "message_start", message },
      { type: "content_block_start", index: 0, content_block: block },
      { type: "content_block_delta", index: 0, delta },
      { type: "content_block_stop", index: 0 },
      { type: "message_delta", delta: { stop_reason: call ? "tool_use" : "end_turn", stop_sequence: null }, usage: { output_tokens: 5 } },
      { type: "message_stop" },
    ];
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.end(events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join(""));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { requests, server, url: `http://127.0.0.1:${server.address().port}` };
}

/** Runs Claude Code in an empty home with `a.txt`, against the model of `script(home)`. */
async function run(session, script, using = client) {
  const home = await mkdtemp(path.join(tmpdir(), "unstuck-claude-"));
  await writeFile(path.join(home, "a.txt"), "hello\n");
  const model = await scripted(script(home));
  const guard = new ClaudeGuard(using, session);
  const env = {
    PATH: process.env.PATH, HOME: home, ANTHROPIC_BASE_URL: model.url, ANTHROPIC_API_KEY: "none", ANTHROPIC_MODEL: "claude-sonnet-4-5",
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", DISABLE_AUTOUPDATER: "1", IS_SANDBOX: "1",
  };
  try {
    const options = { cwd: home, env, hooks: guard.hooks, permissionMode: "bypassPermissions", allowDangerouslySkipPermissions: true, settingSources: [] };
    for await (const _ of query({ prompt: "do it", options }));
  } catch (error) {
    if (!guard.stopped) throw error;
  } finally {
    model.server.closeAllConnections();
    model.server.close();
    await rm(home, { recursive: true, force: true });
  }
  return { guard, requests: model.requests };
}

const TURNS_MAX = 15;
/** Makes the same call for ever. */
const looping = (name, inputOf) => (home) => (turn, number) => (number < TURNS_MAX ? [name, inputOf(home)] : null);
const reading = looping("Read", (home) => ({ file_path: path.join(home, "a.txt") }));
const [OK, ERROR, BLOCKED] = [1, 2, 3];

async function timelineOf(sessionId) {
  const { timeline } = await service.ask("getSession", { sessionId });
  return timeline.filter(({ tool }) => tool);
}

test("the correction is in the model's fourth request, the fifth call is refused, the run is stopped", async () => {
  const { guard, requests } = await run("claude", reading);
  assert.ok(!requests[2].text.includes("[unstuck]"));
  assert.ok(requests[3].text.includes("[unstuck] "), requests[3]?.text.slice(-2000));
  assert.ok(guard.stopped?.atLeast("ESCALATE"));
  assert.ok(requests.length < 10, `${requests.length}`);
  const outcomes = (await timelineOf("claude")).map(({ outcome }) => outcome);
  assert.deepEqual(outcomes.slice(0, 5), [OK, OK, OK, OK, BLOCKED]);
  assert.ok(outcomes.slice(5).every((outcome) => outcome === BLOCKED), `${outcomes}`);
});

test("a failing tool is counted", async () => {
  const { guard } = await run("claude-failing", looping("Bash", () => ({ command: "exit 3", description: "run it" })));
  assert.ok(guard.stopped);
  assert.deepEqual((await timelineOf("claude-failing")).slice(0, 3).map(({ outcome }) => outcome), [ERROR, ERROR, ERROR]);
});

test("a sub-agent is stopped alone", async () => {
  const script = (home) => ({ prompt, step, tools }) => {
    if (prompt.includes("look at the file")) return step < TURNS_MAX ? ["Read", { file_path: path.join(home, "a.txt") }] : null;
    const delegate = ["Agent", "Task"].find((name) => tools.includes(name));
    if (step === 0) return [delegate, { description: "look at it", prompt: "look at the file", subagent_type: "general-purpose" }];
    return step === 1 ? ["Bash", { command: "echo back", description: "run it" }] : null;
  };
  const { guard, requests } = await run("claude-delegating", script);
  const [own, delegated] = [false, true].map((sub) => requests.filter(({ prompt }) => prompt.includes("look at the file") === sub));
  assert.ok(delegated.length > 3 && delegated.length < 10, `${delegated.length} turns of the sub-agent`);
  assert.equal(guard.stopped, null, "the main agent goes on");
  assert.ok(own.some(({ step }) => step === 2), "to its end");
  const timeline = await timelineOf("claude-delegating");
  assert.equal(new Set(timeline.map(({ agentId }) => agentId)).size, 2);
  assert.ok(timeline.some(({ tool, agentId, outcome }) => tool === "Bash" && agentId === "" && outcome === OK));
});

test("the service is killed in mid-run: the agent goes on, and nothing is counted twice", async () => {
  const own = await Service.start();
  const using = new Client({ target: own.target });
  // What a call returns is new each time, so that no run is stopped.
  const script = () => async (turn, number) => {
    if (number === 4) await own.kill();
    return number < TURNS_MAX ? ["Bash", { command: `echo text ${number}`, description: "run it" }] : null;
  };
  const { guard, requests } = await run("claude-killed", script, using);
  assert.equal(guard.stopped, null);
  assert.equal(requests.length, TURNS_MAX, "without the service every call is made");
  const { waiting, dropped } = using.stats;
  assert.ok(waiting >= TURNS_MAX - 4 && dropped === 0, `${waiting} waiting, ${dropped} dropped`);
  await own.restart();
  await until(() => using.stats.waiting === 0, "all is answered");
  const { events } = await own.session("claude-killed");
  // What a killed process had not saved is gone; all that came later is there, once.
  assert.ok(events >= waiting && events <= TURNS_MAX - 1, `${events} events`);
  await using.close();
  await own.close();
});
