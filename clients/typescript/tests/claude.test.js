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
import { Service } from "./service.js";

let service, client;
before(async () => {
  service = await Service.start();
  client = new Client({ target: service.target, deadline: 20_000 });
});
after(async () => {
  await client.close();
  await service.close();
});

/** A model that makes the same call for ever, in the format of Anthropic's messages. */
async function looping(name, input, turnsMax = 15) {
  const requests = [];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    const { tools, stream } = request.url.startsWith("/v1/messages") && body ? JSON.parse(body) : {};
    if (!stream) return response.end(JSON.stringify({ input_tokens: 1 }));
    const calls = tools?.some((tool) => tool.name === name);
    if (calls) requests.push(body);
    const more = calls && requests.length < turnsMax;
    const block = more ? { type: "tool_use", id: `toolu_${requests.length}`, name, input: {} } : { type: "text", text: "" };
    const delta = more ? { type: "input_json_delta", partial_json: JSON.stringify(input) } : { type: "text_delta", text: "done" };
    const message = { id: `msg_${requests.length}`, type: "message", role: "assistant", model: "claude-sonnet-4-5", content: [], stop_reason: null, stop_sequence: null, usage: { input_tokens: 10, output_tokens: 1 } };
    const events = [
      { type: "message_start", message },
      { type: "content_block_start", index: 0, content_block: block },
      { type: "content_block_delta", index: 0, delta },
      { type: "content_block_stop", index: 0 },
      { type: "message_delta", delta: { stop_reason: more ? "tool_use" : "end_turn", stop_sequence: null }, usage: { output_tokens: 5 } },
      { type: "message_stop" },
    ];
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.end(events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join(""));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { requests, server, url: `http://127.0.0.1:${server.address().port}` };
}

async function run(session, name, inputOf) {
  const home = await mkdtemp(path.join(tmpdir(), "unstuck-claude-"));
  await writeFile(path.join(home, "a.txt"), "hello\n");
  const model = await looping(name, inputOf(home));
  const guard = new ClaudeGuard(client, session);
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

test("the correction is in the model's fourth request, and the run is stopped", async () => {
  const { guard, requests } = await run("claude", "Read", (home) => ({ file_path: path.join(home, "a.txt") }));
  assert.ok(!requests[2].includes("[unstuck]"));
  assert.ok(requests[3].includes("[unstuck] "), requests[3]?.slice(-2000));
  assert.ok(guard.stopped?.atLeast("ESCALATE"));
  assert.ok(requests.length < 10, `${requests.length}`);
});

test("a failing tool is counted", async () => {
  const { guard } = await run("claude-failing", "Bash", () => ({ command: "exit 3", description: "run it" }));
  assert.ok(guard.stopped);
  const { timeline } = await service.ask("getSession", { sessionId: "claude-failing" });
  assert.equal(timeline[0].outcome, 2);
});
